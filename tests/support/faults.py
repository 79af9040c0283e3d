"""Windows of made-up traffic with planted faults, or none, and what an advisor should say of them.

Everything follows from a seed. Texts are ours: sentences from word lists under fixed headings, in English and
Chinese, with the constant `key: value` lines that real prompts have and that must not be taken for faults.
"""

import dataclasses
import datetime as dt
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvscope.model.prompt import Prompt

START_AT = 1_795_000_000.0
ENGINE = "http://engine:8000"

_GIVEN_NAMES = (
    "Alice",
    "Bob",
    "Chiara",
    "David",
    "Elena",
    "Farid",
    "Grace",
    "Hugo",
    "Ivan",
    "Julia",
    "Ana Sofia",
    "Li",
)
_FAMILY_NAMES = (
    "Miller",
    "Tanaka",
    "Rossi",
    "Okafor",
    "Petrova",
    "Haddad",
    "Lindqvist",
    "Horvat",
    "Nowak",
    "O'Brien",
)
_WORDS = (
    "refund",
    "invoice",
    "shipping",
    "escalate",
    "manager",
    "warranty",
    "customer",
    "policy",
    "delivery",
    "verify",
    "account",
    "exchange",
    "privacy",
    "discount",
    "region",
    "payment",
)
_WORDS_ZH = ("退款", "发票", "物流", "升级", "经理", "保修", "客户", "政策", "配送", "核实", "账户", "换货")


def _sentences(rng: random.Random, words: Sequence[str], count: int, form: str) -> list[str]:
    return [form.format(n=number, text=" ".join(rng.choices(words, k=9))) for number in range(1, count + 1)]


def _support(rng: random.Random) -> list[str]:
    return [
        "You are the support assistant of a shop for outdoor gear.",
        "Tone: calm, short, friendly",
        "Language: English",
        "## Rules",
        *_sentences(rng, _WORDS, 22, "{n}. Always {text}."),
        "## Limits",
        "Refund limit: 150.00 EUR",
        "Opening hours: 09:00 - 17:30",
        "Escalation address: help@example.com",
        *_sentences(rng, _WORDS, 6, "- Never {text}."),
    ]


def _policy_zh(rng: random.Random) -> list[str]:
    return [
        "你是一家户外用品商店的客服助手。",
        "语气: 平和、简短、友好",
        "## 规则",
        *_sentences(rng, _WORDS_ZH, 24, "{n}. 必须{text}。"),
        "退款上限: 1000 元",
    ]


def _coder(rng: random.Random) -> list[str]:
    return [
        "You are a coding agent. You work in a repository and answer with one shell command.",
        "",
        "```python",
        "timeout_seconds = 30",
        "retries = 3",
        'default = {"mode": "edit", "depth": 2}',
        "```",
        "",
        *_sentences(rng, _WORDS, 20, "* Step {n} may {text};"),
        "Answer format: a JSON object with the keys `thought` and `command`",
    ]


TEXTS: Mapping[str, Callable[[random.Random], list[str]]] = {
    "support": _support,
    "policy_zh": _policy_zh,
    "coder": _coder,
}


def _tools() -> list[dict[str, Any]]:
    names = ("cancel_order", "create_ticket", "find_customer", "get_invoice", "list_orders", "send_mail")
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": f"Use this to {name.replace('_', ' ')} in the shop's back office.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "id": {"type": "string", "description": "Number of the order or customer."},
                        "reason": {"type": "string", "enum": ["late", "broken", "other"]},
                        "limit": {"type": "integer", "minimum": 1, "maximum": 50},
                    },
                    "required": ["id"],
                },
            },
        }
        for name in names
    ]


@dataclasses.dataclass(slots=True, kw_only=True)
class Draft:
    """One request while it is being made; faults change it in place."""

    rng: random.Random
    number: int
    at: float
    lines: list[str]
    tools: list[dict[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """What was planted and what an advisor should say of it.

    ``line`` is an example of the planted line (its label stays, its value changes), ``prefix`` what stands
    before its value; both are None for faults of tools and whitespace.
    """

    name: str
    kind: str
    role: str
    message_index: int | str
    value_kinds: frozenset[str]
    line: str | None = None
    prefix: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A way to spoil a request, and what it plants."""

    planted: Planted
    spoil: Callable[[Draft], None]


def _line_fault(
    name: str,
    prefix: str,
    value: Callable[[Draft], str],
    kinds: set[str],
    *,
    at_line: int = 0,
    suffix: str = "",
) -> Fault:
    def spoil(draft: Draft) -> None:
        draft.lines.insert(at_line, f"{prefix}{value(draft)}{suffix}")

    example = Draft(rng=random.Random(0), number=0, at=START_AT, lines=[], tools=[])
    planted = Planted(
        name=name,
        kind="move_volatile",
        role="system",
        message_index=0,
        value_kinds=frozenset(kinds),
        line=f"{prefix}{value(example)}{suffix}",
        prefix=prefix,
    )
    return Fault(planted=planted, spoil=spoil)


def _utc(draft: Draft) -> dt.datetime:
    return dt.datetime.fromtimestamp(draft.at, dt.UTC)


def _full_name(draft: Draft) -> str:
    return f"{draft.rng.choice(_GIVEN_NAMES)} {draft.rng.choice(_FAMILY_NAMES)}"


def _shuffle_tools(draft: Draft) -> None:
    draft.rng.shuffle(draft.tools)


def _shuffle_keys(value: Any, rng: random.Random) -> Any:
    if isinstance(value, list):
        return [_shuffle_keys(item, rng) for item in value]
    if not isinstance(value, dict):
        return value
    keys = list(value)
    rng.shuffle(keys)
    return {key: _shuffle_keys(value[key], rng) for key in keys}


def _change_key_order(draft: Draft) -> None:
    draft.tools[:] = [_shuffle_keys(tool, draft.rng) for tool in draft.tools]


def _trailing_spaces(draft: Draft) -> None:
    for at, line in enumerate(draft.lines):
        if draft.rng.random() < 0.2:
            draft.lines[at] = line + " " * draft.rng.randint(1, 3)


_TOOLS = {"role": "tools", "message_index": "tools"}
FAULTS: Mapping[str, Fault] = {
    fault.planted.name: fault
    for fault in (
        _line_fault(
            "clock_first", "Current time: ", lambda d: _utc(d).isoformat(timespec="seconds"), {"timestamp"}
        ),
        _line_fault(
            "request_id_first",
            "Request-ID: ",
            lambda d: str(uuid.UUID(int=d.rng.getrandbits(128), version=4)),
            {"uuid"},
        ),
        _line_fault("user_name_early", "User: ", _full_name, {"name_like"}, at_line=2),
        _line_fault(
            "hex_id_middle", "trace = ", lambda d: f"{d.rng.getrandbits(64):016x}", {"hex_id"}, at_line=9
        ),
        _line_fault("counter_first", "This is call number ", lambda d: str(1000 + d.number), {"number"}),
        _line_fault(
            "clock_zh",
            "当前时间\uff1a",
            lambda d: _utc(d).strftime("%Y年%m月%d日 %H:%M:%S"),
            {"timestamp"},
        ),
        Fault(
            planted=Planted(
                name="shuffled_tools", kind="sort_tools", value_kinds=frozenset({"tool_order"}), **_TOOLS
            ),
            spoil=_shuffle_tools,
        ),
        Fault(
            planted=Planted(
                name="json_key_order",
                kind="canonical_json",
                value_kinds=frozenset({"json_key_order"}),
                **_TOOLS,
            ),
            spoil=_change_key_order,
        ),
        Fault(
            planted=Planted(
                name="trailing_spaces",
                kind="normalize_whitespace",
                role="system",
                message_index=0,
                value_kinds=frozenset({"whitespace"}),
            ),
            spoil=_trailing_spaces,
        ),
    )
}


def prompt(number: int, body: Mapping[str, Any], *, route: str, at: float, **more: Any) -> Prompt:
    """Return a prompt as the gateway hands it on, sent unchanged."""
    return Prompt(
        request_id=f"{route}-{number:04d}",
        api=more.pop("api", "chat"),
        route=route,
        arrived_at=at,
        body=body,
        sent_body=more.pop("sent_body", body),
        engine=more.pop("engine", ENGINE),
        **more,
    )


def question(rng: random.Random, words: Sequence[str] = _WORDS) -> str:
    """Return a user's text that is unlike the others."""
    return f"Order {rng.randint(10_000, 99_999)}: {' '.join(rng.choices(words, k=12))}?"


def window(
    *faults: str,
    text: str = "support",
    requests: int = 40,
    seed: int = 1,
    route: str = "shop",
    seconds_between: float = 3.0,
    with_tools: bool | None = None,
) -> list[Prompt]:
    """Return requests of a route with ``faults`` planted; ``with_tools`` gives them tools in any case."""
    rng = random.Random(seed)
    lines = TEXTS[text](random.Random(seed + 1))
    chosen = [FAULTS[name] for name in faults]
    tooled = with_tools or any(fault.planted.role == "tools" for fault in chosen)
    made: list[Prompt] = []
    for number in range(requests):
        at = START_AT + number * seconds_between
        draft = Draft(rng=rng, number=number, at=at, lines=list(lines), tools=_tools() if tooled else [])
        # the first fault named stands first in the prompt
        for fault in reversed(chosen):
            fault.spoil(draft)
        body: dict[str, Any] = {
            "model": "tiny",
            "messages": [
                {"role": "system", "content": "\n".join(draft.lines)},
                {"role": "user", "content": question(rng)},
            ],
        }
        if draft.tools:
            body["tools"] = draft.tools
        made.append(prompt(number, body, route=route, at=at))
    return made


def sessions(
    *, text: str = "support", count: int = 6, turns: int = 5, seed: int = 1, route: str = "chat"
) -> list[Prompt]:
    """Return conversations that grow turn by turn, interleaved: nothing to mend, hits from the history."""
    rng = random.Random(seed)
    system = {"role": "system", "content": "\n".join(TEXTS[text](random.Random(seed + 1)))}
    history: list[list[dict[str, str]]] = [[system] for _ in range(count)]
    made: list[Prompt] = []
    for turn in range(turns):
        for session in range(count):
            number = turn * count + session
            history[session].append({"role": "user", "content": question(rng)})
            body = {"model": "tiny", "messages": list(history[session])}
            made.append(
                prompt(number, body, route=route, at=START_AT + number * 2.0, session=f"session-{session}")
            )
            history[session].append(
                {"role": "assistant", "content": f"Done: {' '.join(rng.choices(_WORDS, k=8))}."}
            )
    return made


def clock_in_user_turn(*, requests: int = 40, seed: int = 1) -> list[Prompt]:
    """Return requests whose volatile line already stands where it does no harm."""
    made = window(requests=requests, seed=seed, route="late-clock")
    for each in made:
        stamp = dt.datetime.fromtimestamp(each.arrived_at, dt.UTC).isoformat()
        messages: Any = each.body["messages"]
        messages[-1]["content"] += f"\nCurrent time: {stamp}"
    return made


def all_different(*, requests: int = 40, seed: int = 1) -> list[Prompt]:
    """Return requests that share nothing."""
    rng = random.Random(seed)
    return [
        prompt(
            number,
            {
                "model": "tiny",
                "messages": [{"role": "user", "content": f"{rng.random()} {question(rng)}" * 9}],
            },
            route="unique",
            at=START_AT + number,
        )
        for number in range(requests)
    ]


def two_settings(*, requests: int = 40, seed: int = 1) -> list[Prompt]:
    """Return requests whose system prompt comes in two constant variants, as a setting makes them."""
    made = window(requests=requests, seed=seed, route="settings")
    for number, each in enumerate(made):
        messages: Any = each.body["messages"]
        if number % 2:
            messages[0]["content"] = messages[0]["content"].replace("Language: English", "Language: French")
    return made


def shuffled_examples(*, requests: int = 40, seed: int = 1) -> list[Prompt]:
    """Return requests with few-shot examples in changing order: a fault, but no line may be moved for it."""
    rng = random.Random(seed)
    made = window(requests=requests, seed=seed, route="examples")
    examples = [f"Q: {word} {word}? A: {word}." for word in _WORDS]
    for each in made:
        rng.shuffle(examples)
        messages: Any = each.body["messages"]
        messages[0]["content"] = "\n".join([*examples, messages[0]["content"]])
    return made


CLEAN: Mapping[str, Callable[[], list[Prompt]]] = {
    "stable": window,
    "stable_zh": lambda: window(text="policy_zh"),
    "stable_tools": lambda: window(text="coder", with_tools=True),
    "sessions": sessions,
    "clock_in_user_turn": clock_in_user_turn,
    "all_different": all_different,
    "two_settings": two_settings,
    "shuffled_examples": shuffled_examples,
    "identical": lambda: [
        prompt(number, window(requests=1)[0].body, route="same", at=START_AT + number) for number in range(30)
    ],
}
