"""Runs the advisor on labelled logs and counts: what it found, what it made up, and whether it came true."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from _faults_logs import Label, Log

from kvscope.cache.replay import ReplayRequest, replay
from kvscope.model.advice import Suggestion
from kvscope.model.prompt import Prompt
from kvscope.prompts.tokenizing import PromptTokenizer
from kvscope.prompts.transforms import apply_transforms
from kvscope.tuning.advisor import advise

BLOCK = 16


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One thing that a suggestion names."""

    kind: str
    role: str | None
    message_index: int | str | None
    chars: tuple[int, int] | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What came of one log. Errors are predicted - replayed hit rate of each suggestion that was applied.

    ``errors`` are over the same requests, ``later_errors`` over those that came next.
    """

    log: Log
    said: tuple[Said, ...]
    hits: Mapping[str, bool]  # name of a planted fault -> found
    segments: Mapping[str, bool]  # of those found: named at the right segment
    ranges: Mapping[str, bool]  # of those found whose line is known: a range within that line
    false: tuple[Said, ...]
    errors: tuple[float, ...]
    later_errors: tuple[float, ...]


def measured(log: Log, tokenizer: PromptTokenizer) -> Found:
    """Return what the advisor finds in a log."""
    advice = advise(
        log.prompts, tokenizer=tokenizer, block_size=BLOCK, num_blocks=log.blocks, ttft=None, now=0.0
    )
    said = tuple(dict.fromkeys(each for item in advice.suggestions for each in _said(item)))
    named = {label.fault.name: [each for each in said if _names(each, label)] for label in log.labels}
    hits = {name: bool(each) for name, each in named.items()}
    labels = {label.fault.name: label for label in log.labels}
    found = [labels[name] for name, hit in hits.items() if hit]
    right = {each for each in said for label in log.labels if _names(each, label)}
    errors, later = [], []
    for item in advice.suggestions:
        after = _applied(item, log, tokenizer)
        if after is not None:
            errors.append(item.hit_rate_after - after[0])
            later.append(item.evidence["hit_rate_newer_half_after"] - after[1])
    return Found(
        log=log,
        said=said,
        hits=hits,
        segments={each.fault.name: any(_at(one, each) for one in named[each.fault.name]) for each in found},
        ranges={
            each.fault.name: any(_within(one, each.chars) for one in named[each.fault.name])
            for each in found
            if each.chars is not None
        },
        false=tuple(each for each in said if each not in right),
        errors=tuple(errors),
        later_errors=tuple(later),
    )


def _said(item: Suggestion) -> Iterator[Said]:
    for part in item.evidence.get("parts") or ({"kind": item.kind, **item.evidence},):
        start, end = part.get("char_start"), part.get("char_end")
        yield Said(
            kind=part["kind"],
            role=part.get("role"),
            message_index=part.get("message_index"),
            chars=None if start is None or end is None else (start, end),
        )


def _names(said: Said, label: Label) -> bool:
    """Whether a thing said is of this fault: of its kind, and in its segment where both have one."""
    segment = label.fault.where
    alike = segment is None or said.role is None or said.role == segment
    return said.kind in label.fault.kinds and alike and (label.chars is None or _within(said, label.chars))


def _at(said: Said, label: Label) -> bool:
    match label.fault.where:
        case "system":
            return (said.role, said.message_index) == ("system", 0)
        case "tools":
            return (said.role, said.message_index) == ("tools", "tools")
        case "user":
            return said.role == "user"
    return True


def _within(said: Said, chars: tuple[int, int] | None) -> bool:
    return said.chars is None or chars is None or (chars[0] <= said.chars[0] and said.chars[1] <= chars[1])


def _applied(item: Suggestion, log: Log, tokenizer: PromptTokenizer) -> tuple[float, float] | None:
    """Return the hit rate with the change applied, over the log and what came next; None: by hand."""
    change, blocks = item.change, log.blocks
    prompts: Sequence[Prompt] = (*log.prompts, *log.later)
    bodies = [dict(prompt.body) for prompt in prompts]
    engines = [prompt.engine for prompt in prompts]
    if not item.transforms and "blocks" not in change and change.get("cache_salt") != "tenant":
        return None
    if item.transforms:
        bodies = [apply_transforms(item.transforms, "chat", body) for body in bodies]
    if "blocks" in change:
        blocks = change["blocks"]
    if change.get("cache_salt") == "tenant":
        bodies = [{**body, "cache_salt": prompt.tenant} for body, prompt in zip(bodies, prompts, strict=True)]
    half = len(log.prompts)
    tokens = [tokenizer.encode("chat", body) for body in bodies]
    hits = _replayed(tokens, [body.get("cache_salt") for body in bodies], engines, blocks)
    return _rate(hits[:half], tokens[:half]), _rate(hits[half:], tokens[half:])


def _replayed(
    tokens: Sequence[Sequence[int]], salts: Sequence[Any], engines: Sequence[str], blocks: int | None
) -> list[int]:
    hits = [0] * len(tokens)
    for engine in sorted(set(engines)):
        own = [at for at, each in enumerate(engines) if each == engine]
        sent = (ReplayRequest(request_id=str(at), tokens=list(tokens[at]), salt=salts[at]) for at in own)
        result = replay(sent, block_size=BLOCK, num_blocks=blocks)
        for at, each in zip(own, result.per_request, strict=True):
            hits[at] = each.hit_tokens
    return hits


def _rate(hits: Sequence[int], tokens: Sequence[Sequence[int]]) -> float:
    return sum(hits) / sum(map(len, tokens))
