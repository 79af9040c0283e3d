"""Changes of a request body that make one prompt layout from another.

``apply_transforms`` is pure and idempotent. What a transform does not understand stays as it was, and
``cache_salt``, images and other parts that are not text stay where they are.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.errors import UsageError
from kvscope.model.prompt import Risk, TransformSpec
from kvscope.prompts.transforms.base import Params, Transform
from kvscope.prompts.transforms.blocks import FIX_EXAMPLE_ORDER, SORT_DOCUMENTS
from kvscope.prompts.transforms.coarse import COARSEN_VOLATILE, DROP_VOLATILE
from kvscope.prompts.transforms.padding import ALIGN_BLOCK
from kvscope.prompts.transforms.tools import CANONICAL_JSON, SORT_TOOLS
from kvscope.prompts.transforms.variant import USE_VARIANT
from kvscope.prompts.transforms.volatile import MOVE_VOLATILE, SPLIT_TENANT
from kvscope.prompts.transforms.whitespace import NORMALIZE_WHITESPACE

__all__ = ["AS_SENT", "TRANSFORMS", "apply_transforms", "check_spec", "describe", "layout_name", "risk_of"]

AS_SENT = "as_sent"
"""The name of a prompt layout without transforms."""

TRANSFORMS: Mapping[str, Transform] = {
    transform.kind: transform
    # The order of this table is the order of application: one set of transforms gives one prompt.
    # Lines move before spaces are put in order, spaces before JSON is recognised, padding comes last.
    for transform in (
        USE_VARIANT,
        DROP_VOLATILE,
        COARSEN_VOLATILE,
        SPLIT_TENANT,
        MOVE_VOLATILE,
        NORMALIZE_WHITESPACE,
        SORT_TOOLS,
        CANONICAL_JSON,
        SORT_DOCUMENTS,
        FIX_EXAMPLE_ORDER,
        ALIGN_BLOCK,
    )
}


def apply_transforms(specs: Sequence[TransformSpec], api: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return ``body`` with the transforms applied, or the same object where they change nothing.

    The order of ``specs`` does not matter. Raises ``UsageError`` for an unknown kind or wrong parameters.
    """
    asked: dict[str, list[Params]] = {}
    for spec in specs:
        check_spec(spec)
        transform = TRANSFORMS[spec.kind]
        asked.setdefault(transform.applied_with or spec.kind, []).append(transform.rewritten(spec.params))
    changed = body
    for kind, transform in TRANSFORMS.items():
        if params := asked.get(kind):
            changed = transform.apply(api, changed, params)
    return body if _same(changed, body) else changed


def _same(changed: dict[str, Any], body: dict[str, Any]) -> bool:
    """Tell whether texts that went one way came back: one transform may undo what another did."""
    if changed is body:
        return True
    texts = ("messages", "prompt")
    return changed.keys() == body.keys() and all(
        changed[key] is body[key] or (key in texts and changed[key] == body[key]) for key in body
    )


def check_spec(spec: TransformSpec) -> None:
    """Raise ``UsageError`` where the spec's kind is unknown or its parameters are wrong."""
    _known(spec).check(spec.params)


def risk_of(spec: TransformSpec) -> Risk:
    """Return what the transform may do to answers; raises ``UsageError`` for an unknown kind."""
    return _known(spec).risk


def describe(spec: TransformSpec) -> str:
    """Return one exact line on what the transform does, for reports."""
    return _known(spec).describe(spec.params)


def layout_name(specs: Sequence[TransformSpec]) -> str:
    """Return the kinds joined by ``+`` in order of application, or ``as_sent`` for none.

    A variant is no kind of change here: who renders the layout names it.
    """
    kinds = {spec.kind for spec in specs} - {USE_VARIANT.kind}
    return "+".join(kind for kind in TRANSFORMS if kind in kinds) or AS_SENT


def _known(spec: TransformSpec) -> Transform:
    transform = TRANSFORMS.get(spec.kind)
    if transform is None:
        raise UsageError(f"unknown transform {spec.kind!r}; known are {', '.join(TRANSFORMS)}")
    return transform
