"""What suggestions and layouts would change, in words."""

from collections.abc import Iterable

from kvscope.errors import UsageError
from kvscope.model.advice import RoutePolicy, Suggestion
from kvscope.model.prompt import TransformSpec
from kvscope.prompts.transforms import describe
from kvscope.reports import kinds


def changes_of(transforms: Iterable[TransformSpec]) -> tuple[str, ...]:
    """Return one line a transform; one that this version does not understand is named as such."""
    return tuple(_change(spec) for spec in transforms)


def steps_of(suggestion: Suggestion) -> tuple[str, ...]:
    """Return one line a thing to do: what the gateway would change, else what a person has to."""
    told = changes_of(suggestion.transforms)
    return told or (kinds.by_hand(suggestion.kind, suggestion.change),)


def harms_of(suggestion: Suggestion) -> tuple[str, ...]:
    """Return what could go wrong, one line for each kind of change in the suggestion."""
    found = dict.fromkeys(spec.kind for spec in suggestion.transforms)
    return tuple(kinds.harm(kind) for kind in found or (suggestion.kind,))


def in_force(suggestion: Suggestion, policies: Iterable[RoutePolicy]) -> bool:
    """Return whether all that the suggestion would change is in force on its route already."""
    found = [spec for policy in policies if policy.route == suggestion.route for spec in policy.transforms]
    return bool(suggestion.transforms) and all(spec in found for spec in suggestion.transforms)


def _change(spec: TransformSpec) -> str:
    try:
        return describe(spec)
    except UsageError:
        return f"{spec.kind} (not known to this version of kvscope)"
