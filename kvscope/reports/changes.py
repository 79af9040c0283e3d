"""What transforms would change, in words."""

from collections.abc import Iterable, Mapping
from typing import Any

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
    return (_of_the_application(change) or f"{words.title(suggestion.kind)}; a person must act.",)


def _of_the_application(change: Mapping[str, Any]) -> str | None:
    """Return what to change in the application that sends the prompts."""
    if "keep_warm" in change:
        seconds = change["keep_warm"]["every_seconds"]
        return (
            f"Touch the route's prefix (a request with max_tokens 1) {seconds:g} seconds after its last use."
        )
    if "stagger" in change:
        return "Hold requests with one prefix back until the first of them has its first token."
    if "history" in change:
        step = change["history"].get("drop_messages")
        if step is None:
            return "Send each message of a conversation in every later turn as it was sent first."
        return f"Cut history {step} messages at a time, not at every turn: leave it whole in between."
    return _of_the_wording(change)


def _of_the_wording(change: Mapping[str, Any]) -> str | None:
    if "system_prompt" in change:
        kept, replaced = change["system_prompt"]["keep"], len(change["system_prompt"]["replace"])
        return f"Use one system prompt ({kept}) in place of {replaced} that nearly agree."
    if change.get("content_order") == "text_first":
        return "Send text that comes again before the images in a message."
    return None


def in_force(suggestion: Suggestion, policies: Iterable[RoutePolicy]) -> bool:
    """Return whether all that the suggestion would change is in force on its route already."""
    found = [spec for policy in policies if policy.route == suggestion.route for spec in policy.transforms]
    return bool(suggestion.transforms) and all(spec in found for spec in suggestion.transforms)


def _change(spec: TransformSpec) -> str:
    try:
        return describe(spec)
    except UsageError:
        return f"{spec.kind} (not known to this version of kvscope)"
