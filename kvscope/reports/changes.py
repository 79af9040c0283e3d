"""What transforms would change, in words."""

from collections.abc import Iterable

from kvscope.errors import UsageError
from kvscope.model.prompt import TransformSpec
from kvscope.prompts.transforms import describe


def changes_of(transforms: Iterable[TransformSpec]) -> tuple[str, ...]:
    """Return one line a transform; one that this version does not understand is named as such."""
    return tuple(_change(spec) for spec in transforms)


def _change(spec: TransformSpec) -> str:
    try:
        return describe(spec)
    except UsageError:
        return f"{spec.kind} (not known to this version of kvscope)"
