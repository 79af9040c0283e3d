"""What the application writes: templates that nearly agree, images before text, prefixes between blocks."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kvscope.analysis.shingles import Hashes, window_hashes
from kvscope.model.prompt import Prompt, Risk, TransformSpec
from kvscope.prompts.segments import CHAT, content_text, part_text
from kvscope.prompts.transforms.padding import find_padding
from kvscope.prompts.values import line_key_hash
from kvscope.tuning.effects import Effect
from kvscope.tuning.judge import Tokens
from kvscope.tuning.rule import Operation, Traffic, told
from kvscope.tuning.search import merged
from kvscope.tuning.structure import LEADING_ROLES, VaryingLine, learn
from kvscope.tuning.window import RouteWindow

UNIFY_PROMPTS = "unify_prompts"
TEXT_BEFORE_IMAGE = "text_before_image"
ALIGN_BLOCK = "align_block"
_Key = tuple[str, str]  # model, text
_WORD = re.compile(r"\w+")
_NEARLY = 0.6  # of the windows of both texts together
_MOST_TEXTS = 64
_COMES_BACK = 2
_STAND_IN_DIGESTS = 8
_ID_CHARS = 12
_SAMPLES = 4
_MOST_PLACES = 3
_MOST_TRIED_TOKENS = 2_000_000


def unify_prompts(traffic: Traffic) -> Iterator[Operation]:
    """Suggest one text where the system messages of several routes, or of one, differ a little.

    Each has its own place in the cache, so that this gains only where they push each other out, or where
    there are so many that they are met for the first time again and again: the replay tells.
    """
    used: dict[_Key, list[int]] = {}
    for at, prompt in enumerate(traffic.window.prompts):
        text = _leading_text(prompt)
        if text and traffic.judge.now.prompt_tokens[at]:
            used.setdefault((str(prompt.sent_body.get("model")), text), []).append(at)
    common = sorted(
        (key for key, positions in used.items() if len(positions) >= _COMES_BACK),
        key=lambda key: -len(used[key]),
    )[:_MOST_TEXTS]
    for group in _alike(traffic, common, used):
        positions = tuple(sorted(at for key in group for at in used[key]))
        prompts = traffic.window.prompts
        kept = prompts[used[group[0]][0]]
        bodies = {at: _with_leading(prompts[at], kept) for key in group[1:] for at in used[key]}
        first = next(
            (route for route in traffic.routes if route.route == prompts[used[group[1]][0]].route),
            traffic.routes[0],
        )
        seconds = prompts[positions[-1]].arrived_at - prompts[positions[0]].arrived_at
        all_of_them = dataclasses.replace(
            first,
            route=prompts[used[group[1]][0]].route,
            positions=positions,
            seen=len(positions),
            window_seconds=seconds or None,
        )
        effect = Effect(traffic.judge.now, traffic.judge.rewritten(bodies), all_of_them)
        if effect.least_gain >= traffic.min_gain and effect.saved > 0:
            yield Operation(
                kind=UNIFY_PROMPTS,
                effect=effect,
                change={
                    "system_prompt": {
                        "keep": _digest(group[0][1]),
                        "replace": sorted(_digest(key[1]) for key in group[1:]),
                    }
                },
                evidence=told(effect, traffic.window)
                | {
                    "role": LEADING_ROLES[0],
                    "message_index": 0,
                    "texts": len(group),
                    "routes": sorted({prompts[at].route for at in positions}),
                    "example_of_kept": kept.request_id,
                },
                risk=Risk.QUALITY,
            )


def _alike(
    traffic: Traffic, keys: Sequence[_Key], used: Mapping[_Key, Sequence[int]]
) -> Iterator[list[_Key]]:
    """Yield groups of texts of one model that share most of their windows of words, the most used first."""
    hashes = {key: _windows(traffic, key[1]) for key in keys} if len(keys) > 1 else {}
    uses = {key: _use(traffic, key, used[key]) for key in hashes}

    def alike(first: _Key, second: _Key) -> bool:
        if first[0] != second[0] or not _may_be_one(uses[first], uses[second]):
            return False
        return _shared_share(hashes[first], hashes[second]) >= _NEARLY

    left = [key for key in keys if key in hashes and len(hashes[key])]
    while left:
        first, *rest = left
        group = [first, *(key for key in rest if alike(first, key))]
        left = [key for key in rest if key not in group]
        if len(group) > 1:
            yield group


@dataclasses.dataclass(frozen=True, slots=True)
class _Use:
    """Whose text it is, on which routes, its lines without their values, its words; both sorted."""

    tenants: frozenset[str | None]
    routes: frozenset[str]
    lines: tuple[str, ...]
    words: tuple[str, ...]


def _use(traffic: Traffic, key: _Key, positions: Sequence[int]) -> _Use:
    prompts = [traffic.window.prompts[at] for at in positions]
    return _Use(
        tenants=frozenset(prompt.tenant for prompt in prompts),
        routes=frozenset(prompt.route for prompt in prompts),
        lines=tuple(sorted(line_key_hash(line) for line in key[1].split("\n") if line.strip())),
        words=tuple(sorted(_WORD.findall(key[1]))),
    )


def _may_be_one(first: _Use, second: _Use) -> bool:
    """Whether one text may stand for both: not a tenant's own, and on one route not two values of its lines.

    Nor may lines, or words of a line (keys of JSON), that only come in another order: that is another fault.
    """
    same = first.lines == second.lines or first.words == second.words
    return first.tenants == second.tenants and not (same and first.routes & second.routes)


def _windows(traffic: Traffic, text: str) -> Hashes:
    tokens = traffic.judge.encoded("completion", {"prompt": text, "add_special_tokens": False})
    return np.unique(window_hashes(np.asarray(tokens, dtype=np.int64).astype(np.uint32)))


def _shared_share(first: Hashes, second: Hashes) -> float:
    """Return the windows in both ÷ those in either."""
    both = len(np.intersect1d(first, second, assume_unique=True))
    return both / (len(first) + len(second) - both)


def _leading(prompt: Prompt) -> list[Any]:
    messages = prompt.sent_body.get("messages")
    found: list[Any] = []
    for message in messages if prompt.api == CHAT and isinstance(messages, list) else ():
        if not isinstance(message, dict) or message.get("role") not in LEADING_ROLES:
            break
        found.append(message)
    return found


def _leading_text(prompt: Prompt) -> str:
    return "\n".join(content_text(message.get("content")) for message in _leading(prompt))


def _with_leading(prompt: Prompt, kept: Prompt) -> dict[str, Any]:
    messages = [*_leading(kept), *prompt.sent_body["messages"][len(_leading(prompt)) :]]
    return {**prompt.sent_body, "messages": messages}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_ID_CHARS]


def text_before_image(traffic: Traffic) -> Iterator[Operation]:
    """Suggest to send text that comes again before the images that differ.

    An image's tokens are the model's own; here a text made of its digest stands for them, before and after.
    """
    for route in traffic.routes:
        before: dict[int, dict[str, Any]] = {}
        after: dict[int, dict[str, Any]] = {}
        place: tuple[str, int] | None = None
        for at in route.positions:
            prompt = traffic.window.prompts[at]
            found = _image_first(prompt)
            if found is not None or _has_image(prompt):
                before[at] = _with_stand_ins(prompt.sent_body, text_first=False)
                after[at] = _with_stand_ins(prompt.sent_body, text_first=True)
                place = place or found
        if place is None:
            continue
        judge = traffic.judge
        effect = Effect(judge.rewritten(before), judge.rewritten(after), route)
        if effect.least_gain >= traffic.min_gain:
            yield Operation(
                kind=TEXT_BEFORE_IMAGE,
                effect=effect,
                change={"content_order": "text_first"},
                evidence=told(effect, traffic.window)
                | {
                    "role": place[0],
                    "message_index": place[1],
                    "images": len(before),
                    "image_tokens_assumed": True,
                },
                risk=Risk.REVIEW,
            )


def _messages(body: Mapping[str, Any]) -> list[Any]:
    messages = body.get("messages")
    return [each for each in messages if isinstance(each, dict)] if isinstance(messages, list) else []


def _has_image(prompt: Prompt) -> bool:
    return prompt.api == CHAT and any(
        part_text(part) is None
        for message in _messages(prompt.sent_body)
        if isinstance(message.get("content"), list)
        for part in message["content"]
    )


def _image_first(prompt: Prompt) -> tuple[str, int] | None:
    """Return role and index of the first message in which something that is no text stands before text."""
    for index, message in enumerate(_messages(prompt.sent_body)):
        content = message.get("content")
        if prompt.api == CHAT and isinstance(content, list):
            texts = [part_text(part) is not None for part in content]
            if False in texts and True in texts[texts.index(False) :]:
                return str(message.get("role")), index
    return None


def _with_stand_ins(body: Mapping[str, Any], *, text_first: bool) -> dict[str, Any]:
    messages = []
    for message in _messages(body):
        content = message.get("content")
        if isinstance(content, list):
            parts = sorted(content, key=lambda part: part_text(part) is None) if text_first else content
            content = [{"type": "text", "text": part_text(part) or _stand_in(part)} for part in parts]
        messages.append({**message, "content": content})
    return {**body, "messages": messages}


def _stand_in(part: Any) -> str:
    written = json.dumps(part, sort_keys=True, default=str)
    return " ".join(
        hashlib.sha256(f"{number}{written}".encode("utf-8", "surrogatepass")).hexdigest()
        for number in range(_STAND_IN_DIGESTS)
    )


def align_block(traffic: Traffic) -> Iterator[Operation]:
    """Suggest white space that fills the last block of what stays, where much is lost in it."""
    judge = traffic.judge
    for route in traffic.routes:
        lengths = [judge.now.prompt_tokens[at] for at in route.newer_half]
        lost = _common(traffic, route.newer_half, ()) % judge.block_size
        if not sum(lengths) or lost * len(lengths) < traffic.min_gain * sum(lengths):
            continue
        prompts = [traffic.window.prompts[at] for at in route.positions]
        lines = learn(prompts, roles=(*LEADING_ROLES, "user")).lines
        usual = [line for line in lines if not line.repeated and 2 * line.occurrences > len(prompts)]
        for line in usual[:_MOST_PLACES]:
            spec = _padding(traffic, route, line)
            if spec is None:
                continue
            effect = Effect(judge.now, judge.outcome(route, [spec]), route)
            if effect.least_gain >= traffic.min_gain and effect.saved > 0:
                yield Operation(
                    kind=ALIGN_BLOCK,
                    effect=effect,
                    change={"transforms": [each.as_json() for each in merged([*route.in_force, spec])]},
                    evidence=told(effect, traffic.window)
                    | {
                        "role": line.place.role,
                        "message_index": line.place.message_index,
                        "char_start": line.place.char_start,
                        "char_end": line.place.char_end,
                        "value_kind": str(line.place.value_kind),
                        "block_size": judge.block_size,
                        "tokens_in_last_block": lost,
                    },
                    risk=Risk.REVIEW,
                )
                break


def _padding(traffic: Traffic, route: RouteWindow, line: VaryingLine) -> TransformSpec | None:
    """Return the transform that fills the block before ``line``, None where no padding does."""
    samples = route.newer_half[-_SAMPLES:]
    left = _MOST_TRIED_TOKENS

    def spec(padding: str) -> TransformSpec:
        params = {"role": line.place.role, "line_keys": [line.key_hash], "padding": padding}
        return TransformSpec(kind=ALIGN_BLOCK, params=params)

    def tokens_with(padding: str) -> int:
        nonlocal left
        left -= sum(traffic.judge.now.prompt_tokens[at] for at in samples)
        if left < 0:
            raise _TooLongError
        return _common(traffic, samples, (spec(padding),), route)

    try:
        found = find_padding(tokens_with, traffic.judge.block_size)
    except _TooLongError:
        return None
    return None if found is None else spec(found)


class _TooLongError(Exception):
    """So many tries of such long prompts would take too long."""


def _common(
    traffic: Traffic,
    positions: Sequence[int],
    specs: Sequence[TransformSpec],
    route: RouteWindow | None = None,
) -> int:
    """Return how many tokens the prompts share from their start, changed by ``specs``."""
    shared: Tokens | None = None
    for at in positions:
        tokens = traffic.judge.tokens(at)
        if route is not None and tokens:
            tokens = traffic.judge.encoded(
                traffic.window.prompts[at].api, traffic.window.changed(at, specs, route)
            )
        if not tokens:
            continue
        shared = tokens if shared is None else shared[: _same(shared, tokens)]
    return 0 if shared is None else len(shared)


def _same(first: Tokens, second: Tokens) -> int:
    count = min(len(first), len(second))
    parts = np.flatnonzero(np.frombuffer(first, np.int64)[:count] != np.frombuffer(second, np.int64)[:count])
    return int(parts[0]) if len(parts) else count
