"""The rules whose change is no search over transforms, a family a module."""

from collections.abc import Iterator, Sequence

from kvscope.tuning.conversations import stable_history
from kvscope.tuning.operations import more_memory, route_affinity
from kvscope.tuning.rule import Operation, Rule, Traffic
from kvscope.tuning.salts import widen_salt
from kvscope.tuning.timing import keep_warm, stagger_identical
from kvscope.tuning.wording import align_block, text_before_image, unify_prompts

RULES: Sequence[Rule] = (
    more_memory,
    keep_warm,
    route_affinity,
    widen_salt,
    stagger_identical,
    stable_history,
    unify_prompts,
    text_before_image,
    align_block,
)
_WITHOUT_TOKENS: Sequence[Rule] = (text_before_image,)


def operations(traffic: Traffic) -> Iterator[Operation]:
    """Yield what would raise the hit rate of a route by at least ``traffic.min_gain``.

    Where no prompt could be tokenised (images in all), only rules with tokens of their own are asked.
    """
    for rule in RULES if any(traffic.judge.now.prompt_tokens) else _WITHOUT_TOKENS:
        yield from rule(traffic)
