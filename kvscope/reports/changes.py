"""What transforms would change, in words."""

from collections.abc import Iterable

from kvscope.errors import UsageError
from kvscope.model.advice import RoutePolicy, Suggestion
from kvscope.model.prompt import TransformSpec
from kvscope.prompts.transforms import describe


def changes_of(transforms: Iterable[TransformSpec]) -> tuple[str, ...]:
    """Return one line a transform; one that this version does not understand is named as such."""
    return tuple(_change(spec) for spec in transforms)


def in_force(suggestion: Suggestion, policies: Iterable[RoutePolicy]) -> bool:
    """Return whether all that the suggestion would change is in force on its route already."""
    found = [spec for policy in policies if policy.route == suggestion.route for spec in policy.transforms]
    return bool(suggestion.transforms) and all(spec in found for spec in suggestion.transforms)


def _change(spec: TransformSpec) -> str:
    try:
        return describe(spec)
    except UsageError:
        return f"{spec.kind} (not known to this version of kvscope)"
