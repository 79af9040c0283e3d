"""Counts one text under several tokenizers: how long, what costs most, how often it fits into a context."""

import bisect
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.errors import UsageError
from kvscope.prompts.counters import TokenCounter
from kvscope.prompts.segments import CHAT, COMPLETION, Segment, prompt_text, segments

_BODY_KEYS = ("body", "request")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is counted: one text, one request body, or examples (lines of JSON), told by content."""

    kind: str  # "text", "body", "examples"
    text: str
    api: str | None = None  # of a body
    body: Mapping[str, Any] | None = None
    examples: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SegmentCount:
    """The tokens of one segment of a body; its text stays out."""

    role: str
    message_index: int | None
    characters: int
    tokens: int
    share_rate: float | None  # of all segments' tokens


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ContextFit:
    """What a context of so many tokens holds of the text."""

    context_tokens: int
    fits: bool
    left_tokens: int  # negative: too many by that number
    copies: int | None  # of a text or body, whole ones; None for examples
    examples: int | None  # from the first on, in their order; None without examples


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """One tokenizer's counts.

    ``tokens`` are those of the whole prompt where there is one and a chat template renders it; then
    ``template_tokens`` are those that the template adds to the segments (fewer than none where it leaves some
    out). Without a template they are None, and ``tokens`` is the sum of the segments. Rates are None for an
    empty text.
    """

    tokenizer: str
    tokens: int
    characters: int
    utf8_bytes: int
    tokens_per_char: float | None
    tokens_per_byte: float | None
    template_tokens: int | None = None
    example_tokens: tuple[int, ...] = ()
    segments: tuple[SegmentCount, ...] = ()
    context: ContextFit | None = None


def read_subject(text: str) -> Subject:
    """Return what ``text`` is: a body (plain or under ``body`` or ``request``), lines of JSON, or text."""
    try:
        value = json.loads(text) if text.lstrip()[:1] in {"{", "["} else None
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        body, api = _body(value)
        if api is not None:
            return Subject(kind="body", text=prompt_text(segments(api, body)), api=api, body=body)
    examples = _examples(text) if value is None else None
    if examples is not None:
        return Subject(kind="examples", text="\n".join(examples), examples=examples)
    return Subject(kind="text", text=text)


def count(
    subject: Subject, counters: Sequence[TokenCounter], *, context: int | None = None
) -> list[TokenRow]:
    """Return a row a tokenizer, in their order; ``context`` is a context window in tokens."""
    return [_row(subject, counter, context) for counter in counters]


def _body(value: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
    """Return the request body in a JSON object and its API; None as API when it is none."""
    body = next((value[key] for key in _BODY_KEYS if isinstance(value.get(key), dict)), value)
    messages, prompt = body.get("messages"), body.get("prompt")
    if isinstance(messages, list) and messages and all(isinstance(each, dict) for each in messages):
        return body, CHAT
    texts = isinstance(prompt, list) and prompt and all(isinstance(each, str) for each in prompt)
    return body, COMPLETION if isinstance(prompt, str) or texts else None


def _examples(text: str) -> tuple[str, ...] | None:
    """Return the examples of JSON lines, two or more; None where some line is no JSON object, list or text.

    A request body stands for its texts, a JSON string for what it says, anything else for its line.
    """
    found = []
    for line in text.splitlines():
        if not line.strip():
            continue
        if line.lstrip()[0] not in '{["':
            return None
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            return None
        body, api = _body(value) if isinstance(value, dict) else ({}, None)
        told = prompt_text(segments(api, body)) if api is not None else line.strip()
        found.append(value if isinstance(value, str) else told)
    return tuple(found) if len(found) > 1 else None


def _row(subject: Subject, counter: TokenCounter, context: int | None) -> TokenRow:
    parts = _segments(subject, counter)
    examples = tuple(counter.count(example) for example in subject.examples)
    listed = sum(part.tokens for part in parts)
    whole = None
    if subject.api is not None and subject.body is not None:
        whole = _whole(counter, subject.api, subject.body)
    alone = listed if parts else counter.count(subject.text)
    tokens = alone if whole is None else whole
    size = len(subject.text.encode("utf-8", "surrogatepass"))
    return TokenRow(
        tokenizer=counter.name,
        tokens=tokens,
        characters=len(subject.text),
        utf8_bytes=size,
        tokens_per_char=tokens / len(subject.text) if subject.text else None,
        tokens_per_byte=tokens / size if size else None,
        template_tokens=None if whole is None else whole - listed,
        example_tokens=examples,
        segments=parts,
        context=None if context is None else _fit(subject, counter, tokens, context),
    )


def _whole(counter: TokenCounter, api: str, body: Mapping[str, Any]) -> int | None:
    """Return the tokens of the rendered prompt, None where this tokenizer cannot tell.

    A body with several prompts has no single one; its segments are counted instead.
    """
    prompt = body.get("prompt")
    if api == COMPLETION and isinstance(prompt, list) and len(prompt) > 1:
        return None
    try:
        return counter.count_prompt(api, body)
    except UsageError as error:
        raise UsageError(f"{counter.name}: {error}") from error


def _segments(subject: Subject, counter: TokenCounter) -> tuple[SegmentCount, ...]:
    """Return the segments of a body, those that cost most first."""
    if subject.api is None or subject.body is None:
        return ()
    counted = [(part, counter.count(part.text)) for part in segments(subject.api, subject.body)]
    total = sum(tokens for _, tokens in counted)
    rows = [_segment(part, tokens, total) for part, tokens in counted]
    return tuple(sorted(rows, key=lambda row: -row.tokens))


def _segment(part: Segment, tokens: int, total: int) -> SegmentCount:
    return SegmentCount(
        role=part.role,
        message_index=part.message_index,
        characters=len(part.text),
        tokens=tokens,
        share_rate=tokens / total if total else None,
    )


def _fit(subject: Subject, counter: TokenCounter, tokens: int, context: int) -> ContextFit:
    """Return what fits; examples are taken from the first on, a line each, as long as all of them fit."""
    examples = subject.examples
    taken = bisect.bisect_right(
        range(1, len(examples) + 1), context, key=lambda n: counter.count("\n".join(examples[:n]))
    )
    return ContextFit(
        context_tokens=context,
        fits=tokens <= context,
        left_tokens=context - tokens,
        copies=None if examples or not tokens else context // tokens,
        examples=taken if examples else None,
    )
