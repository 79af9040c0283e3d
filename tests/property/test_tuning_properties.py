"""Whatever the prompts hold, the advisor answers, and what it predicts is what a replay of the fix gives."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.cache.replay import ReplayRequest, replay
from kvscope.prompts.transforms import apply_transforms
from kvscope.tuning.advisor import advise
from kvscope.tuning.judge import stand_ins
from kvscope.tuning.structure import learn
from tests.support import faults

LINES = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        [
            "Time: {n}",
            "id={n}",
            "  ",
            "",
            "Rule: be kind  ",
            "12:00:{n}",
            "当前: {n}",
            "\x00\x1f: {n}",
            "\ud800",
        ]
    ),
)
CONTENT = st.one_of(
    st.none(),
    st.text(max_size=40),
    st.lists(LINES, max_size=6).map("\n".join),
    st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=20)}), max_size=2),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
TOOL = st.fixed_dictionaries(
    {"function": st.fixed_dictionaries({"name": st.text(max_size=4), "parameters": JSON})}
)
BODY = st.fixed_dictionaries(
    {
        "messages": st.lists(
            st.fixed_dictionaries(
                {
                    "role": st.sampled_from(["system", "developer", "user", "assistant", "tool"]),
                    "content": CONTENT,
                }
            ),
            max_size=4,
        )
    },
    optional={"tools": st.lists(st.one_of(TOOL, JSON), max_size=3) | JSON},
)


class FourCharacters:
    def __init__(self) -> None:
        self._encode = stand_ins(4)

    def encode(self, api: str, body: Any) -> list[int]:
        return list(self._encode(api, body))


def numbered(body: Any, number: int) -> Any:
    """Put ``number`` in the place of each ``{n}``, so that requests of one body differ as real ones do."""
    if isinstance(body, str):
        return body.replace("{n}", str(number))
    if isinstance(body, list):
        return [numbered(item, number) for item in body]
    if isinstance(body, dict):
        return {key: numbered(value, number) for key, value in body.items()}
    return body


@settings(max_examples=60, deadline=None)
@given(bodies=st.lists(BODY, min_size=1, max_size=3), blocks=st.none() | st.integers(20, 60))
def test_any_prompts_give_advice_that_replay_confirms(
    bodies: list[dict[str, Any]], blocks: int | None
) -> None:
    prompts = [
        faults.prompt(number, numbered(bodies[number % len(bodies)], number), route="any", at=float(number))
        for number in range(12)
    ]
    structure = learn(prompts)
    assert structure.prompts == 12
    tokenizer = FourCharacters()
    advice = advise(prompts, tokenizer=tokenizer, block_size=2, num_blocks=blocks, ttft=None, now=0.0)
    assert bool(advice.suggestions) != bool(advice.none_because)
    for suggestion in filter(lambda each: each.transforms, advice.suggestions):
        assert suggestion.hit_rate_after >= suggestion.hit_rate_before + 0.02
        requests = [
            ReplayRequest(
                request_id=each.request_id,
                tokens=tokenizer.encode(
                    each.api, apply_transforms(suggestion.transforms, "chat", dict(each.body))
                ),
            )
            for each in prompts
        ]
        fitting = [each for each in requests if blocks is None or len(each.tokens) <= (blocks - 1) * 2]
        assert replay(fitting, block_size=2, num_blocks=blocks).hit_rate == suggestion.hit_rate_after
