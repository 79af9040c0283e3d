"""What suggestions and layouts would change, in words."""

from collections.abc import Iterable

from kvscope.errors import UsageError
from kvscope.model.advice import RoutePolicy, Suggestion
from kvscope.model.prompt import TransformSpec
from kvscope.prompts.transforms import describe
from kvscope.reports import kinds

_SALTS = "widen_salt"


def changes_of(transforms: Iterable[TransformSpec]) -> tuple[str, ...]:
    """Return one line a transform; one that this version does not understand is named as such."""
    return tuple(_change(spec) for spec in transforms)


def steps_of(suggestion: Suggestion) -> tuple[str, ...]:
    """Return one line a thing to do: what the gateway would change, else what a person has to.

    Where both are needed, what a person has to do comes first.
    """
    told = changes_of(suggestion.transforms)
    if suggestion.salts_first:
        return (f"First, by hand: {kinds.by_hand(_SALTS, suggestion.change)}", *told)
    return told or (kinds.by_hand(suggestion.kind, suggestion.change),)


def harms_of(suggestion: Suggestion) -> tuple[str, ...]:
    """Return what could go wrong, one line for each kind of change in the suggestion."""
    found = dict.fromkeys(spec.kind for spec in suggestion.transforms)
    if suggestion.salts_first:
        found = {_SALTS: None, **found}
    return tuple(kinds.harm(kind) for kind in found or (suggestion.kind,))


def in_force(suggestion: Suggestion, policies: Iterable[RoutePolicy]) -> bool:
    """Return whether all that the suggestion would change is in force on its route already.

    Salts are the application's, so what needs wider ones is never known to be.
    """
    if suggestion.salts_first:
        return False
    found = [spec for policy in policies if policy.route == suggestion.route for spec in policy.transforms]
    return bool(suggestion.transforms) and all(spec in found for spec in suggestion.transforms)


def _change(spec: TransformSpec) -> str:
    try:
        return describe(spec)
    except UsageError:
        return f"{spec.kind} (not known to this version of kvscope)"
