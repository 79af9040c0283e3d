"""Every kind of suggestion in words, in one table: a title, what a person must set, what could go wrong.

The terminal, reports and the dashboard all say it from here. A test walks transforms and rules and fails
where a kind has no words.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from kvscope.reports import words

Change = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The words of a kind. ``by_hand`` tells from a suggestion's change what a person must set.

    It is None where the gateway makes the change: the transforms then say themselves what they do.
    """

    title: str
    harm: str
    by_hand: Callable[[Change], str] | None = None


def _history(change: Change) -> str:
    step = change["history"].get("drop_messages")
    if step is None:
        return "Send each message of a conversation in every later turn as it was sent first."
    return f"Cut history {step} messages at a time, not at every turn: leave it whole in between."


def _one_prompt(change: Change) -> str:
    asked = change["system_prompt"]
    replaced = ", ".join(asked["replace"])
    return (
        f"Use one system prompt ({asked['keep']}) in place of {len(asked['replace'])} that nearly agree"
        f" ({replaced})."
    )


def _touch(change: Change) -> str:
    seconds = change["keep_warm"]["every_seconds"]
    return f"Touch the route's prefix (a request with max_tokens 1) {seconds:g} seconds after its last use."


KINDS: Mapping[str, Kind] = {
    "move_volatile": Kind(
        title="Move changing lines behind stable ones",
        harm=(
            "The model reads the moved lines later, and in the user's turn where they go there. A line that"
            " others refer to, or that needs a system message's authority, should stay."
        ),
    ),
    "split_tenant": Kind(
        title="Put shared text before each tenant's own",
        harm="A rule of the tenant's that stood first stands last in the system message.",
    ),
    "drop_volatile": Kind(
        title="Leave changing lines out",
        harm="The model no longer sees what these lines say.",
    ),
    "coarsen_volatile": Kind(
        title="Round times of day",
        harm="The model no longer knows the exact time.",
    ),
    "use_variant": Kind(
        title="Use another variant of the layout",
        harm="The variant's order or wording is another one: answers may differ.",
    ),
    "sort_tools": Kind(
        title="Send tools in one order",
        harm="A model may lean a little towards tools that come first.",
    ),
    "canonical_json": Kind(
        title="Write JSON keys in one order",
        harm=(
            "The JSON stays equal. Where lists are sorted too, a model may lean a little towards values that"
            " come first."
        ),
    ),
    "normalize_whitespace": Kind(
        title="Write white space in one way",
        harm="Text in which spaces at line ends or blank lines mean something (a patch, a table) loses them.",
    ),
    "fix_example_order": Kind(
        title="Send examples in one order",
        harm="The order of examples moves answers a little.",
    ),
    "sort_documents": Kind(
        title="Send documents in one order",
        harm="Documents no longer stand by relevance.",
    ),
    "align_block": Kind(
        title="Let the stable prefix end on a block",
        harm="White space costs a few tokens, and it fits one tokenizer, template and block size only.",
    ),
    "stable_history": Kind(
        title="Keep the history as it was sent",
        harm=(
            "Prompts are longer between two cuts; messages that were shortened on purpose come back in full."
        ),
        by_hand=_history,
    ),
    "unify_prompts": Kind(
        title="Share one system prompt",
        harm="Services that must differ in what they tell the model become one.",
        by_hand=_one_prompt,
    ),
    "text_before_image": Kind(
        title="Put text before images",
        harm=(
            "The model reads the text before it sees the image. The figures are rough: each image counts as a"
            " text of fixed length."
        ),
        by_hand=lambda _: "Send text that comes again before the images in a message.",
    ),
    "stagger_identical": Kind(
        title="Let the first of equal prompts go ahead",
        harm="The requests behind it wait, so their time to first token may grow.",
        by_hand=lambda _: "Hold requests with one prefix back until the first of them has its first token.",
    ),
    "more_memory": Kind(
        title="Give the cache more memory",
        harm="More memory for the cache leaves less for all else on the GPU, or costs more GPUs.",
        by_hand=lambda change: (
            f"Give the engine {change['blocks']:,} blocks: more --gpu-memory-utilization, or more GPUs."
        ),
    ),
    "keep_warm": Kind(
        title="Keep the prefix warm",
        harm="The touches compute tokens of their own and take their turn on a busy engine.",
        by_hand=_touch,
    ),
    "route_affinity": Kind(
        title="Send a route's requests to one replica",
        harm="Load spreads less evenly over replicas.",
        by_hand=lambda change: (
            f"Choose the replica by {words.text(change['routing'])}:"
            f" set collectors.gateway.routing to {change['routing']}."
        ),
    ),
    "widen_salt": Kind(
        title="Share the cache more widely",
        harm="Requests of one tenant can tell by their speed what another of that tenant's has sent.",
        by_hand=lambda change: (
            f"Send one cache_salt a {change['cache_salt']}, so that its requests share the cache."
        ),
    ),
}


def title(kind: str) -> str:
    """Return what a kind of suggestion does, as a heading; an unknown kind by its name."""
    known = KINDS.get(kind)
    return words.text(kind).capitalize() if known is None else known.title


def harm(kind: str) -> str:
    """Return what could go wrong, in a sentence or two."""
    known = KINDS.get(kind)
    return f"Not known to this version of kvscope: {words.text(kind)}." if known is None else known.harm


def by_hand(kind: str, change: Change) -> str:
    """Return what a person must set; stored changes of another version may lack what the words need."""
    known = KINDS.get(kind)
    try:
        if known is not None and known.by_hand is not None:
            return known.by_hand(change)
    except (KeyError, TypeError, AttributeError, ValueError):
        pass
    return f"{title(kind)}: a person must act."
