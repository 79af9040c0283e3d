"""A declared layout's variant as a transform, so that arms and policies hold one like any other change."""

from collections.abc import Iterable, Sequence
from typing import Any

from kvscope.errors import UsageError
from kvscope.model.prompt import Risk, TransformSpec
from kvscope.prompts.transforms.base import Body, Params, Transform

_KIND = "use_variant"


def variant_in(specs: Iterable[TransformSpec]) -> str | None:
    """Return the variant that ``specs`` ask for, the last of several; None where they ask for none."""
    names = [spec.params["variant"] for spec in specs if spec.kind == _KIND]
    return names[-1] if names else None


def use_variant(variant: str) -> TransformSpec:
    """Return the spec that renders a route's declared layout in ``variant``."""
    return TransformSpec(kind=_KIND, params={"variant": variant})


def _check(params: Params) -> None:
    variant: Any = params.get("variant")
    if not isinstance(variant, str) or not variant or params.keys() != {"variant"}:
        raise UsageError("use_variant needs `variant`, the name of a variant of the route's layout")


def _unchanged(_api: str, body: Body, _params: Sequence[Params]) -> Body:
    """Plain messages have no variants: the gateway renders the layout that a request names."""
    return body


USE_VARIANT = Transform(
    kind=_KIND,
    risk=Risk.REVIEW,
    describe=lambda params: (
        f"Renders the route's declared layout in its variant {params.get('variant')}; plain messages stay."
    ),
    apply=_unchanged,
    check=_check,
)
