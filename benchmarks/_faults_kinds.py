"""Faults to plant in a clean log, each with the suggestion that should find it and where it is."""

import dataclasses
import datetime as dt
import json
import random
import uuid
from collections.abc import Callable
from typing import Any

from _faults_draft import Draft
from _faults_texts import Texts

Plant = Callable[[list[Draft], random.Random, Texts], None]
"""Plants one fault in all drafts of a log; values and labels are of the half that the texts are of."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """``kinds`` are the suggestions that name it rightly, the first the expected one.

    ``where`` is the segment at fault: ``system``, ``tools``, ``user`` or None for what is of the servers.
    ``alone``: with others planted, too, it would be another fault.
    """

    name: str
    kinds: tuple[str, ...]
    families: tuple[str, ...]
    plant: Plant
    where: str | None = None
    alone: bool = False
    blocks: int | None = None  # the cache's size for this fault, in blocks


def _line(
    labels: tuple[str, ...],
    other_labels: tuple[str, ...],
    value: Callable[[Draft, random.Random, Texts], str],
) -> Plant:
    """Plant a first line of the system message whose value changes."""

    def plant(drafts: list[Draft], rng: random.Random, texts: Texts) -> None:
        label = rng.choice(other_labels if texts.held_out else labels)
        for draft in drafts:
            draft.head.append(f"{label} {value(draft, rng, texts)}")

    return plant


def _clock(draft: Draft, _rng: random.Random, texts: Texts) -> str:
    at = dt.datetime.fromtimestamp(draft.at, dt.UTC)
    return f"{at:%A, %d %B %Y, %H:%M:%S}" if texts.held_out else f"{at:%Y-%m-%dT%H:%M:%SZ}"


def _clock_cn(draft: Draft, _rng: random.Random, texts: Texts) -> str:
    at = dt.datetime.fromtimestamp(draft.at, dt.UTC)
    form = "%Y年%m月%d日 %H时%M分%S秒" if texts.held_out else "%Y年%m月%d日 %H:%M:%S"
    return at.strftime(form)


def _uuid(_draft: Draft, rng: random.Random, texts: Texts) -> str:
    value = uuid.UUID(int=rng.getrandbits(128), version=4)
    return value.hex if texts.held_out else str(value)


def _counter(draft: Draft, _rng: random.Random, texts: Texts) -> str:
    return str(draft.number + (7000 if texts.held_out else 12))


_FIRST = ("Ann", "Boris", "Chen", "Dana", "Emil", "Fatima", "Goro", "Hana", "Ivan", "Jun")
_LAST = ("Smith", "Okafor", "Li", "Petrova", "Garcia", "Tanaka", "Müller", "Rossi", "Novak", "Singh")


def _name(_draft: Draft, rng: random.Random, texts: Texts) -> str:
    family = rng.choice(_LAST)
    return f"{rng.choice(_FIRST)} {family[0] + '. ' if texts.held_out else ''}{family}"


def _email(_draft: Draft, rng: random.Random, texts: Texts) -> str:
    separator = "_" if texts.held_out else "."
    return f"{rng.choice(_FIRST).lower()}{separator}{rng.randrange(1000)}@mail.example.org"


def _shuffle_tools(drafts: list[Draft], rng: random.Random, _texts: Texts) -> None:
    for draft in drafts:
        rng.shuffle(draft.tools)


def _shuffled(value: Any, rng: random.Random) -> Any:
    """Return JSON with the keys of all its objects in another order."""
    if isinstance(value, list):
        return [_shuffled(item, rng) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _shuffled(value[key], rng) for key in rng.sample(list(value), len(value))}


def _tool_keys(drafts: list[Draft], rng: random.Random, _texts: Texts) -> None:
    for draft in drafts:
        draft.tools = [_shuffled(tool, rng) for tool in draft.tools]


def _schema_lists(drafts: list[Draft], rng: random.Random, texts: Texts) -> None:
    name, values = (
        ("status", "open closed paid void") if texts.held_out else ("unit", "gram pound ounce stone")
    )
    for draft in drafts:
        changed = []
        for tool in draft.tools:
            function = json.loads(json.dumps(tool["function"]))
            given = values.split()
            function["parameters"]["properties"][name] = {
                "type": "string",
                "enum": rng.sample(given, len(given)),
            }
            changed.append({"type": "function", "function": function})
        draft.tools = changed


def _whitespace(drafts: list[Draft], rng: random.Random, texts: Texts) -> None:
    for draft in drafts:
        if texts.held_out:  # blank lines between rules, now one, now several
            draft.rules = [line + "\n" * rng.choice((1, 2, 3)) for line in draft.rules]
        else:
            draft.rules = [line + " " * rng.choice((0, 1, 2)) for line in draft.rules]


def _examples(drafts: list[Draft], rng: random.Random, texts: Texts) -> None:
    said = rng.sample(texts.sentences, 12)
    pairs = list(zip(said[:6], said[6:], strict=True))
    for draft in drafts:
        draft.examples = [
            f"<example>\nQuestion: {question}\nAnswer: {answer}\n</example>"
            if texts.held_out
            else f"Example:\nUser says {question}\nAssistant says {answer}"
            for question, answer in rng.sample(pairs, len(pairs))
        ]


def _documents(drafts: list[Draft], rng: random.Random, _texts: Texts) -> None:
    for draft in drafts:
        rng.shuffle(draft.documents)


def _json_text(drafts: list[Draft], rng: random.Random, texts: Texts) -> None:
    keys = ("region", "plan", "limits", "channels", "style", "flags")
    value: dict[str, Any] = {key: rng.choice(texts.sentences) for key in keys}
    if texts.held_out:
        value = {"profile": value, "notes": rng.choice(texts.sentences)}
    for draft in drafts:
        draft.settings = json.dumps(_shuffled(value, rng))
        draft.rules, draft.examples = draft.rules[:10], draft.rules[10:]


def _tenant(drafts: list[Draft], rng: random.Random, texts: Texts) -> None:
    count = 16  # so many that new ones keep coming
    said = {at: " ".join(rng.sample(texts.sentences, 2)) for at in range(count)}
    label = "Company profile:" if texts.held_out else "Tenant:"
    for draft in drafts:
        at = rng.randrange(count)
        draft.tenant = f"t{at}"
        draft.head.append(f"{label} Firm {chr(65 + at % 26)}{chr(97 + at % 26)}. {said[at]}")


def _talk(drafts: list[Draft], rng: random.Random, texts: Texts, turns: int) -> None:
    """Make the log one of long conversations, two at a time."""
    past: dict[str, list[dict[str, Any]]] = {}
    for draft in drafts:
        draft.session = f"s{draft.number // (2 * turns)}-{draft.number % 2}"
        history = past.setdefault(draft.session, [])
        draft.rules = draft.rules[:6]
        draft.history = list(history)
        answer = " ".join(rng.sample(texts.sentences, 3))
        history += [
            {"role": "user", "content": draft.question},
            {"role": "assistant", "content": answer},
        ]


def _truncated(drafts: list[Draft], rng: random.Random, texts: Texts) -> None:
    _talk(drafts, rng, texts, 15)
    kept = 10 if texts.held_out else 8
    for draft in drafts:
        draft.history = draft.history[-kept:]


def _rewritten(drafts: list[Draft], rng: random.Random, texts: Texts) -> None:
    _talk(drafts, rng, texts, 15)
    for draft in drafts:  # answers of older turns are shortened once newer ones stand behind them
        old = [
            {**each, "content": each["content"][: 60 if texts.held_out else 80]}
            if each["role"] == "assistant" and at < len(draft.history) - 3
            else each
            for at, each in enumerate(draft.history)
        ]
        draft.history = old


def _near_identical(drafts: list[Draft], rng: random.Random, texts: Texts) -> None:
    # many wordings of one text, more than the cache holds at once
    wordings = [rng.choice(texts.sentences) for _ in range(12)]
    place = 3 if texts.held_out else 0
    for draft in drafts:
        draft.rules[place] = f"{draft.rules[place]} {wordings[draft.number % 12]}"


def _images(drafts: list[Draft], rng: random.Random, texts: Texts) -> None:
    asked = " ".join(rng.sample(texts.sentences, 10))
    for draft in drafts:
        draft.image = f"https://images.example.org/{rng.getrandbits(64):x}.png"
        draft.question = asked
        draft.rules = draft.rules[:4]


def _at_once(drafts: list[Draft], rng: random.Random, texts: Texts) -> None:
    size = 6 if texts.held_out else 4
    for first in range(0, len(drafts), size):
        own = " ".join(rng.sample(texts.sentences, 20))
        for draft in drafts[first : first + size]:
            draft.at = drafts[first].at
            draft.documents = [own]
            draft.rules = draft.rules[:6]


def _evicted(drafts: list[Draft], rng: random.Random, texts: Texts) -> None:
    apps = 6 if texts.held_out else 5
    own = [rng.sample(texts.sentences, 26) for _ in range(apps)]
    for draft in drafts:
        draft.rules = list(own[draft.number % apps])


def _scattered(drafts: list[Draft], rng: random.Random, texts: Texts) -> None:
    _talk(drafts, rng, texts, 12)
    engines = 3 if texts.held_out else 4
    for draft in drafts:
        draft.engine = f"e{rng.randrange(engines)}"


def _salts(drafts: list[Draft], rng: random.Random, texts: Texts) -> None:
    for draft in drafts:
        draft.tenant = f"t{rng.randrange(3)}"
        draft.salt = f"{draft.tenant}-{draft.number if texts.held_out else draft.session}"


def _short_block(drafts: list[Draft], _rng: random.Random, texts: Texts) -> None:
    label = "Order" if texts.held_out else "Ticket"
    for draft in drafts:
        draft.rules = draft.rules[:1]
        draft.question = f"Please answer.\n{label}: {draft.number + 100}"


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="early_clock",
        kinds=("move_volatile",),
        families=("chat", "tools", "rag", "agent"),
        where="system",
        plant=_line(("Current time:", "Now:"), ("The time of this request is:", "Server clock ="), _clock),
    ),
    Fault(
        name="early_clock_cn",
        kinds=("move_volatile",),
        families=("chat", "tools", "rag"),
        where="system",
        plant=_line(("当前时间\uff1a", "现在是\uff1a"), ("系统时间\uff1a", "请求时间\uff1a"), _clock_cn),
    ),
    Fault(
        name="early_uuid",
        kinds=("move_volatile",),
        families=("chat", "tools", "rag"),
        where="system",
        plant=_line(("Request id:",), ("trace =", "Correlation id:"), _uuid),
    ),
    Fault(
        name="early_counter",
        kinds=("move_volatile",),
        families=("chat", "tools", "rag"),
        where="system",
        plant=_line(("Conversation number:",), ("Queue position:", "Call no. ="), _counter),
    ),
    Fault(
        name="early_name",
        kinds=("move_volatile",),
        families=("chat", "rag"),
        where="system",
        plant=_line(("You talk to:",), ("The caller's name is:", "用户\uff1a"), _name),
    ),
    Fault(
        name="early_email",
        kinds=("move_volatile",),
        families=("chat", "rag"),
        where="system",
        plant=_line(("User:",), ("Account =", "Reply address:"), _email),
    ),
    Fault(
        name="tool_order",
        kinds=("sort_tools",),
        families=("tools", "agent"),
        where="tools",
        plant=_shuffle_tools,
    ),
    Fault(
        name="tool_keys",
        kinds=("canonical_json",),
        families=("tools", "agent"),
        where="tools",
        plant=_tool_keys,
    ),
    Fault(
        name="schema_lists",
        kinds=("canonical_json",),
        families=("tools",),
        where="tools",
        plant=_schema_lists,
    ),
    Fault(
        name="whitespace",
        kinds=("normalize_whitespace",),
        families=("chat", "tools", "rag"),
        where="system",
        plant=_whitespace,
    ),
    Fault(
        name="example_order",
        kinds=("fix_example_order",),
        families=("chat", "rag"),
        where="system",
        plant=_examples,
    ),
    Fault(
        name="document_order", kinds=("sort_documents",), families=("rag",), where="user", plant=_documents
    ),
    Fault(
        name="json_text",
        kinds=("canonical_json",),
        families=("chat", "tools"),
        where="system",
        plant=_json_text,
    ),
    Fault(
        name="tenant_first",
        kinds=("split_tenant",),
        families=("chat", "tools"),
        where="system",
        plant=_tenant,
    ),
    Fault(name="history_cut", kinds=("stable_history",), families=("chat",), plant=_truncated, alone=True),
    Fault(
        name="history_rewritten", kinds=("stable_history",), families=("chat",), plant=_rewritten, alone=True
    ),
    Fault(
        name="near_identical",
        kinds=("unify_prompts",),
        families=("chat",),
        where="system",
        plant=_near_identical,
        alone=True,
    ),
    Fault(
        name="image_first",
        kinds=("text_before_image",),
        families=("chat",),
        where="user",
        plant=_images,
        alone=True,
    ),
    Fault(name="at_once", kinds=("stagger_identical",), families=("chat",), plant=_at_once, alone=True),
    Fault(
        name="evicted",
        kinds=("more_memory", "keep_warm"),
        families=("chat",),
        plant=_evicted,
        alone=True,
        blocks=160,
    ),
    Fault(name="replicas", kinds=("route_affinity",), families=("chat",), plant=_scattered, alone=True),
    Fault(name="fine_salts", kinds=("widen_salt",), families=("chat", "rag"), plant=_salts),
    Fault(
        name="short_block",
        kinds=("align_block",),
        families=("chat",),
        where="user",
        plant=_short_block,
        alone=True,
    ),
)
