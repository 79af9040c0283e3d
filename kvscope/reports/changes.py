"""What transforms would change, in words."""

from collections.abc import Iterable

from kvscope.errors import UsageError
from kvscope.model.advice import RoutePolicy, Suggestion
from kvscope.model.prompt import TransformSpec
from kvscope.prompts.transforms import describe
from kvscope.reports import words


def changes_of(transforms: Iterable[TransformSpec]) -> tuple[str, ...]:
    """Return one line a transform; one that this version does not understand is named as such."""
    return tuple(_change(spec) for spec in transforms)


def steps_of(suggestion: Suggestion) -> tuple[str, ...]:
    """Return one line a thing to do: what the gateway would change, else what a person has to."""
    change = suggestion.change
    told = changes_of(suggestion.transforms)
    if told:
        return told
    if "blocks" in change:
        return (f"Give the engine {change['blocks']:,} blocks: more --gpu-memory-utilization, or more GPUs.",)
    if "routing" in change:
        return (f"Choose the replica by {words.text(change['routing'])}: set gateway.routing.",)
    if "cache_salt" in change:
        return (f"Send one cache_salt a {change['cache_salt']}, so that its requests share the cache.",)
    return (f"{words.title(suggestion.kind)}; a person must act.",)


def in_force(suggestion: Suggestion, policies: Iterable[RoutePolicy]) -> bool:
    """Return whether all that the suggestion would change is in force on its route already."""
    found = [spec for policy in policies if policy.route == suggestion.route for spec in policy.transforms]
    return bool(suggestion.transforms) and all(spec in found for spec in suggestion.transforms)


def _change(spec: TransformSpec) -> str:
    try:
        return describe(spec)
    except UsageError:
        return f"{spec.kind} (not known to this version of kvscope)"
