"""What a variant of a layout keeps the same for all requests: its static prefix, in characters and tokens."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from kvscope.model.prompt import TransformSpec
from kvscope.prompts.layouts.order import Broken, broken_prefixes
from kvscope.prompts.layouts.plan import Plan
from kvscope.prompts.layouts.schema import CONVERSATION, LayoutForm, VariableForm
from kvscope.prompts.segments import CHAT, prompt_text, segments
from kvscope.prompts.transforms import apply_transforms
from kvscope.prompts.transforms.padding import find_padding
from kvscope.prompts.values import line_key_hash

Encode = Callable[[str, Mapping[str, Any]], Sequence[int]]

_QUESTIONS = ("Alpha?", "Zulu!")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VariantMeasure:
    """One variant. Tokens are those that two renderings share which differ in every variable.

    ``static_blocks`` are the whole blocks of these, ``padding_tokens`` what the last one lacks, and ``align``
    the transform that fills it with white space where one does; None without a tokenizer.
    """

    name: str
    segments: tuple[str, ...]
    broken: tuple[Broken, ...]
    static_chars: int
    static_tokens: int | None
    static_blocks: int | None
    padding_tokens: int | None
    align: TransformSpec | None


def measured(
    plan: Plan, form: LayoutForm, *, encode: Encode | None = None, block_size: int = 16
) -> list[VariantMeasure]:
    """Return a measure of each variant; ``encode`` counts tokens as the engine does."""
    first, second = _samples(form.variables)
    found: list[VariantMeasure] = []
    for name, variant in plan.variants.items():
        bodies = [
            {
                "messages": variant.messages(values, [{"role": "user", "content": question}]),
                **({"tools": list(plan.tools)} if plan.tools else {}),
            }
            for values, question in zip((first, second), _QUESTIONS, strict=True)
        ]
        tokens = None if encode is None else _shared(*(encode(CHAT, body) for body in bodies))
        found.append(
            VariantMeasure(
                name=name,
                segments=tuple(segment.name for segment in variant.segments),
                broken=tuple(broken_prefixes(variant.segments)),
                static_chars=_shared(*(prompt_text(segments(CHAT, body)) for body in bodies)),
                static_tokens=tokens,
                static_blocks=None if tokens is None else tokens // block_size,
                padding_tokens=None if tokens is None else -tokens % block_size,
                align=_alignment(bodies, encode, block_size) if encode is not None and tokens else None,
            )
        )
    return found


def outline(plan: Plan, variant: str) -> list[str]:
    """Return the lines of a variant: its tools, then each segment under a heading, templates as written."""
    lines: list[str] = []
    for tool in plan.tools:
        lines += ["[tool]", msgspec.json.encode(tool, order="deterministic").decode()]
    for segment in plan.variants[variant].segments:
        kind = "" if segment.role == CONVERSATION else f" {segment.role}, {segment.scope.value}"
        lines.append(f"[{segment.name}{kind}]")
        lines += (segment.text or "(the request's messages)").strip("\n").split("\n")
    return lines


def _alignment(bodies: Sequence[dict[str, Any]], encode: Encode, block_size: int) -> TransformSpec | None:
    """Return the padding before the first line that varies which makes what both share whole blocks."""
    for one, other in zip(*(body["messages"] for body in bodies), strict=False):
        if one == other:
            continue
        first, second = one["content"], other["content"]
        start = first.rfind("\n", 0, _shared(first, second)) + 1
        keys = {line_key_hash(text[start:].split("\n", 1)[0]) for text in (first, second)}
        if start == 0 or len(keys) > 1:  # nothing before it, or a line without a label to know it by
            return None
        params = {"role": one["role"], "line_keys": sorted(keys)}

        def tokens_with(padding: str, params: Mapping[str, Any] = params) -> int:
            spec = TransformSpec(kind="align_block", params={**params, "padding": padding})
            return _shared(*(encode(CHAT, apply_transforms((spec,), CHAT, body)) for body in bodies))

        padding = find_padding(tokens_with, block_size)
        if padding is None:
            return None
        return TransformSpec(kind="align_block", params={**params, "padding": padding})
    return None


def _samples(forms: Mapping[str, VariableForm]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two sets of values that differ in every variable which can differ."""
    first: dict[str, Any] = {}
    second: dict[str, Any] = {}
    for name, form in forms.items():
        first[name], second[name] = _pair(form)
    return first, second


def _pair(form: VariableForm) -> tuple[Any, Any]:
    if form.enum:
        return form.enum[0], form.enum[-1]
    match form.type:
        case "string":
            return "Alpha", "Zulu"
        case "integer" | "number":
            return 1, 22
        case "boolean":
            return False, True
        case "list":
            return ["Alpha"], ["Zulu", "Yankee"]


def _shared(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Return how many items both begin with."""
    for at, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return at
    return min(len(first), len(second))
