"""Planted faults are found, predicted exactly and nothing else is suggested."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvscope.cache.replay import ReplayRequest, replay
from kvscope.errors import UnreachableError
from kvscope.model.advice import Suggestion
from kvscope.model.prompt import Prompt, Risk, TransformSpec
from kvscope.prompts.tokenizing import LocalTokenizer, load_tokenizer
from kvscope.prompts.transforms import apply_transforms
from kvscope.prompts.values import line_key_hash
from kvscope.tuning.advisor import Advice, advise
from kvscope.tuning.effects import cost_saved_per_day
from kvscope.tuning.judge import stand_ins
from kvscope.tuning.logs import read_prompts
from kvscope.tuning.window import Limits
from tests.support import faults

BLOCK_SIZE = 16
DATA = Path(__file__).parents[2] / "data"


def advice(prompts: Sequence[Prompt], tokenizer: LocalTokenizer, **more: Any) -> Advice:
    given: dict[str, Any] = {"block_size": BLOCK_SIZE, "num_blocks": None, "ttft": None, "now": 7.0}
    return advise(prompts, tokenizer=tokenizer, **(given | more))


def replayed_rate(
    prompts: Sequence[Prompt],
    tokenizer: LocalTokenizer,
    route: str,
    specs: Sequence[TransformSpec] = (),
    num_blocks: int | None = None,
) -> float:
    """Replay the window by hand, with ``specs`` on ``route``, and return that route's hit rate."""
    requests = []
    for prompt in sorted(prompts, key=lambda each: each.arrived_at):
        body = dict(prompt.body)
        if prompt.route == route:
            body = apply_transforms(specs, prompt.api, body)
        tokens = tokenizer.encode(prompt.api, body)
        requests.append(ReplayRequest(request_id=prompt.request_id, tokens=tokens, salt=prompt.salt))
    result = replay(requests, block_size=BLOCK_SIZE, num_blocks=num_blocks)
    own = [each for each in result.per_request if each.request_id.startswith(f"{route}-")]
    return sum(each.hit_tokens for each in own) / sum(each.prompt_tokens for each in own)


def best(found: Advice) -> Suggestion:
    assert found.none_because is None
    return found.suggestions[0]


def of_prompts(found: Advice) -> list[Suggestion]:
    """Return the suggestions that change prompts; in a small cache there is one for more memory, too."""
    return [each for each in found.suggestions if each.transforms]


@pytest.mark.parametrize("text", faults.TEXTS)
@pytest.mark.parametrize("name", faults.FAULTS)
def test_a_planted_fault_is_found_and_predicted_exactly(
    name: str, text: str, tool_tokenizer: LocalTokenizer
) -> None:
    planted = faults.FAULTS[name].planted
    window = faults.window(name, text=text, requests=24)
    (found,) = advice(window, tool_tokenizer).suggestions
    assert (found.kind, found.route) == (planted.kind, "shop")
    assert found.risk is (Risk.REVIEW if planted.kind == "move_volatile" else Risk.SAFE)
    assert found.evidence["role"] == planted.role
    assert found.evidence["message_index"] == planted.message_index
    assert found.evidence["value_kind"] in planted.value_kinds
    if planted.line is not None:
        assert found.transforms[0].params["line_keys"] == [line_key_hash(planted.line)]
    assert found.hit_rate_before == replayed_rate(window, tool_tokenizer, "shop")
    assert found.hit_rate_after == replayed_rate(window, tool_tokenizer, "shop", found.transforms)
    assert found.hit_rate_after > found.hit_rate_before + 0.5


@pytest.mark.parametrize("name", faults.CLEAN)
def test_nothing_is_suggested_on_clean_traffic(name: str, tool_tokenizer: LocalTokenizer) -> None:
    found = advice(faults.CLEAN[name](), tool_tokenizer)
    assert found.suggestions == ()
    assert found.none_because


def test_faults_of_several_routes_in_one_small_cache(tool_tokenizer: LocalTokenizer) -> None:
    window = [
        *faults.window("clock_first", "user_name_early", route="first", seed=3),
        *faults.sessions(route="second", seed=4),
        *faults.window("shuffled_tools", route="third", text="coder", seed=5),
    ]
    found = of_prompts(advice(window, tool_tokenizer, num_blocks=400))
    assert {(each.route, each.kind) for each in found} == {
        ("first", "move_volatile"),
        ("third", "sort_tools"),
    }
    for each in found:
        before = replayed_rate(window, tool_tokenizer, each.route, num_blocks=400)
        after = replayed_rate(window, tool_tokenizer, each.route, each.transforms, num_blocks=400)
        assert (each.hit_rate_before, each.hit_rate_after) == (before, after)
    assert len(next(each for each in found if each.route == "first").transforms[0].params["line_keys"]) == 2


def test_what_only_helps_together_is_a_plan(tool_tokenizer: LocalTokenizer) -> None:
    names = ("clock_first", "shuffled_tools", "json_key_order", "trailing_spaces")
    window = faults.window(*names)
    found = advice(window, tool_tokenizer)
    plan = best(found)
    assert {spec.kind for spec in plan.transforms} == {
        "move_volatile",
        "sort_tools",
        "canonical_json",
        "normalize_whitespace",
    }
    assert plan.risk is Risk.REVIEW
    assert plan.hit_rate_after == replayed_rate(window, tool_tokenizer, "shop", plan.transforms)
    assert [part["kind"] for part in plan.evidence["parts"]] == [
        "canonical_json",
        "sort_tools",
        "move_volatile",
        "normalize_whitespace",
    ]
    # what may run without a person's yes is offered by itself
    safe = [each for each in found.suggestions if each.risk is Risk.SAFE]
    assert {spec.kind for spec in safe[0].transforms} >= {"sort_tools", "canonical_json"}
    gains = [each.tokens_saved_per_day or 0.0 for each in found.suggestions]
    assert gains == sorted(gains, reverse=True)


def test_a_line_that_need_not_move_stays(tool_tokenizer: LocalTokenizer) -> None:
    window = faults.window("clock_first")
    for number, each in enumerate(window):
        system = each.body["messages"][0]
        system["content"] = system["content"].replace("English", ("English", "French")[number % 2])
    assert best(advice(window, tool_tokenizer)).transforms[0].params["line_keys"] == [
        line_key_hash("Current time: 2026-11-18T11:06:40+00:00")
    ]


def test_figures_of_a_suggestion(tool_tokenizer: LocalTokenizer) -> None:
    window = faults.window("clock_first", seconds_between=3.0)
    found = best(
        advice(window, tool_tokenizer, ttft=lambda prompt_tokens, cached: (prompt_tokens - cached) / 1000)
    )
    evidence = found.evidence
    assert (evidence["requests"], evidence["window_seconds"]) == (40, 117.0)
    assert (evidence["char_start"], evidence["char_end"]) == (14, 39)
    assert evidence["hit_rate_window_before"] == pytest.approx(found.hit_rate_before)
    assert set(evidence["example_request_ids"]) <= {each.request_id for each in window}
    assert evidence["tokens_lost"] > 0
    # the moved line costs a token or two of its own, so tokens hit more and tokens saved differ a little
    assert found.ttft_change_seconds == pytest.approx(-evidence["tokens_lost"] / 40 / 1000, rel=0.02)
    newer = evidence["hit_rate_newer_half_after"] - evidence["hit_rate_newer_half_before"]
    tokens = sum(len(tool_tokenizer.encode("chat", each.body)) for each in window) / 40
    assert found.tokens_saved_per_day == pytest.approx(newer * tokens * 86_400 / 3, rel=0.02)
    assert found.created_at == 7.0


def test_no_text_of_a_prompt_is_in_a_suggestion(tool_tokenizer: LocalTokenizer) -> None:
    found = best(advice(faults.window("user_name_early", "trailing_spaces"), tool_tokenizer))
    told = json.dumps([dict(found.evidence), dict(found.change)])
    for word in ("User", "Miller", "Alice", "support", "Always", "refund"):
        assert word not in told


def test_ids_are_stable_and_differ_by_route_and_change(tool_tokenizer: LocalTokenizer) -> None:
    def ids(*names: str, route: str = "a", seed: int = 1) -> list[str]:
        found = advice(faults.window(*names, route=route, seed=seed), tool_tokenizer)
        return [each.id for each in found.suggestions]

    assert ids("clock_first") == ids("clock_first", seed=2)
    assert len({*ids("clock_first"), *ids("clock_first", route="b"), *ids("hex_id_middle")}) == 3


def test_a_refusing_latency_model_gives_no_change(tool_tokenizer: LocalTokenizer) -> None:
    found = best(advice(faults.window("clock_first"), tool_tokenizer, ttft=lambda *_: None))
    assert found.ttft_change_seconds is None
    assert found.evidence["ttft_requests"] == 0


def test_requests_without_times_have_no_rate(tool_tokenizer: LocalTokenizer) -> None:
    found = best(advice(faults.window("request_id_first", seconds_between=0.0), tool_tokenizer))
    assert found.evidence["window_seconds"] is None
    assert found.tokens_saved_per_day is None
    assert found.evidence["tokens_lost"] > 0


def test_reasons_for_no_suggestion(tool_tokenizer: LocalTokenizer) -> None:
    clean = faults.window(requests=3)
    assert advice([], tool_tokenizer).none_because == "no prompts in the window"
    assert "too few requests" in str(advice(clean, tool_tokenizer).none_because)
    assert "nothing varies" in str(advice(faults.window(), tool_tokenizer).none_because)
    assert "items of lists" in str(advice(faults.shuffled_examples(), tool_tokenizer).none_because)
    assert "holds what repeats" in str(advice(faults.two_settings(), tool_tokenizer).none_because)
    images = [
        faults.prompt(
            number,
            {
                "messages": [
                    {"role": "system", "content": f"Time: {number}"},
                    {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
                ]
            },
            route="image",
            at=float(number),
        )
        for number in range(9)
    ]
    assert "no prompt could be replayed" in str(advice(images, tool_tokenizer).none_because)


def test_each_route_is_told_why_nothing_changes(tool_tokenizer: LocalTokenizer) -> None:
    window = [
        *faults.window("clock_first", route="clock"),
        *faults.window(route="stable"),
        *faults.all_different(),
        *faults.window(route="rare", requests=3),
    ]
    told = advice(window, tool_tokenizer).unchanged
    assert told.keys() == {"stable", "unique", "rare"}
    assert told["stable"].startswith("already at its ceiling")
    assert told["unique"].startswith("no reuse to be had: 0%")
    assert told["rare"] == "too few requests: 3 of 8"


def test_seconds_and_cost_saved_a_day(tool_tokenizer: LocalTokenizer) -> None:
    def seconds(prompt_tokens: int, cached: int) -> float:
        return (prompt_tokens - cached) / 1000

    window = faults.window("clock_first")
    found = best(advice(window, tool_tokenizer, ttft=seconds))
    evidence = found.evidence
    assert evidence["ttft_change_low_seconds"] < (found.ttft_change_seconds or 0.0)
    assert evidence["ttft_change_high_seconds"] > (found.ttft_change_seconds or 0.0)
    # a thousandth of a second a token
    saved = evidence["gpu_seconds_saved_per_day"]
    assert saved == pytest.approx((found.tokens_saved_per_day or 0.0) / 1000)
    assert cost_saved_per_day(found, price_per_gpu_hour=3.6, gpus=2) == pytest.approx(saved * 0.002)
    alone = best(advice(window, tool_tokenizer))
    assert cost_saved_per_day(alone, price_per_gpu_hour=3.6) is None
    assert cost_saved_per_day(alone, price_per_gpu_hour=3.6, seconds_per_token=0.001) == pytest.approx(
        saved / 1000
    )


def test_a_minimal_gain_is_respected(tool_tokenizer: LocalTokenizer) -> None:
    window = faults.window("clock_first")
    assert advice(window, tool_tokenizer, min_gain=0.95).suggestions == ()
    assert advice(window, tool_tokenizer, min_gain=0.8).suggestions


def test_prompts_that_do_not_fit_the_cache_are_left_out(tool_tokenizer: LocalTokenizer) -> None:
    window = faults.window("clock_first")
    huge = faults.prompt(
        99, {"messages": [{"role": "user", "content": "refund " * 9000}]}, route="huge", at=faults.START_AT
    )
    found = best(advice([huge, *window], tool_tokenizer, num_blocks=100))
    assert found.hit_rate_after == replayed_rate(window, tool_tokenizer, "shop", found.transforms, 100)


def test_each_engine_has_a_cache_of_its_own(tool_tokenizer: LocalTokenizer) -> None:
    window = [
        faults.prompt(number, each.body, route="shop", at=each.arrived_at, engine=f"http://{number % 2}")
        for number, each in enumerate(faults.window("clock_first"))
    ]
    found = best(advice(window, tool_tokenizer))
    parts = [replayed_rate(window[at::2], tool_tokenizer, "shop", found.transforms) for at in (0, 1)]
    assert found.hit_rate_after == pytest.approx(sum(parts) / 2, abs=0.001)


def test_salted_prompts_share_nothing_across_salts(tool_tokenizer: LocalTokenizer) -> None:
    window = faults.window("clock_first")
    salted = [
        faults.prompt(number, {**each.body, "cache_salt": str(number)}, route="shop", at=each.arrived_at)
        for number, each in enumerate(window)
    ]
    assert advice(salted, tool_tokenizer).suggestions == ()


def test_completions_have_no_turn_to_move_lines_to(tool_tokenizer: LocalTokenizer) -> None:
    window = [
        faults.prompt(
            number,
            {"prompt": each.body["messages"][0]["content"]},
            route="shop",
            at=each.arrived_at,
            api="completion",
        )
        for number, each in enumerate(faults.window("trailing_spaces"))
    ]
    assert best(advice(window, tool_tokenizer)).kind == "normalize_whitespace"


class TestInForce:
    """What counts as sent now while transforms are in force or on trial."""

    CLOCK = "Current time: 2026-11-18T11:06:40+00:00"

    def moved(self) -> TransformSpec:
        return TransformSpec(
            kind="move_volatile", params={"role": "system", "line_keys": [line_key_hash(self.CLOCK)]}
        )

    def sent(self, window: Sequence[Prompt], every: int) -> list[Prompt]:
        """Return the window with each ``every``-th request sent with the clock moved."""
        return [
            faults.prompt(
                number,
                each.body,
                route="shop",
                at=each.arrived_at,
                sent_body=(
                    each.body if number % every else apply_transforms([self.moved()], "chat", dict(each.body))
                ),
            )
            for number, each in enumerate(window)
        ]

    def test_a_promoted_fix_is_not_suggested_again(self, tool_tokenizer: LocalTokenizer) -> None:
        window = self.sent(faults.window("clock_first"), every=2)
        in_force = {"shop": [self.moved()]}
        assert advice(window, tool_tokenizer, in_force=in_force).suggestions == ()
        assert advice(self.sent(window, every=1), tool_tokenizer).suggestions == ()

    def test_a_further_fix_keeps_the_one_in_force(self, tool_tokenizer: LocalTokenizer) -> None:
        window = self.sent(faults.window("clock_first", "user_name_early"), every=3)
        found = best(advice(window, tool_tokenizer, in_force={"shop": [self.moved()]}))
        (spec,) = found.transforms
        assert line_key_hash(self.CLOCK) in spec.params["line_keys"]
        assert len(spec.params["line_keys"]) == 2
        assert found.evidence["in_force"] == "move_volatile"
        assert found.hit_rate_before == replayed_rate(window, tool_tokenizer, "shop", [self.moved()])
        assert found.hit_rate_after == replayed_rate(window, tool_tokenizer, "shop", found.transforms)

    def test_without_policies_the_form_of_most_requests_counts(self, tool_tokenizer: LocalTokenizer) -> None:
        window = self.sent(faults.window("clock_first"), every=4)
        found = best(advice(window, tool_tokenizer))
        assert found.evidence["requests"] == 30
        assert found.transforms == (self.moved(),)

    def test_an_experiments_arm_is_judged_by_the_policy_in_force(
        self, tool_tokenizer: LocalTokenizer
    ) -> None:
        window = faults.window("clock_first")
        mixed = advice(self.sent(window, every=2), tool_tokenizer, in_force={})
        assert mixed == advice(window, tool_tokenizer, in_force={})


def test_the_window_is_bounded(tool_tokenizer: LocalTokenizer) -> None:
    window = faults.window("clock_first", requests=60)
    found = best(advice(window, tool_tokenizer, limits=Limits(prompts_per_route=20)))
    assert found.evidence["requests"] == 20
    assert found.evidence["window_capped"] is True
    newest = window[-20:]
    assert found.hit_rate_after == replayed_rate(newest, tool_tokenizer, "shop", found.transforms)
    small = best(advice(window, tool_tokenizer, limits=Limits(characters=12_000)))
    assert small.evidence["requests"] < 20


def test_each_body_is_tokenised_once(tool_tokenizer: LocalTokenizer) -> None:
    calls: list[str] = []

    class Counting:
        def encode(self, api: str, body: Any) -> list[int]:
            calls.append(json.dumps(body))
            return tool_tokenizer.encode(api, body)

    window = faults.window("clock_first", requests=20) + faults.sessions()
    best(advise(window, tokenizer=Counting(), block_size=16, num_blocks=None, ttft=None, now=0.0))
    assert len(calls) == len(set(calls)) == len(window) + 20


def test_a_dead_tokenizer_server_is_told() -> None:
    class Dead:
        def encode(self, api: str, body: Any) -> list[int]:
            raise UnreachableError(f"no answer for {api} {len(body)}")

    with pytest.raises(UnreachableError, match="no answer"):
        advise(
            faults.window("clock_first"),
            tokenizer=Dead(),
            block_size=16,
            num_blocks=None,
            ttft=None,
            now=0.0,
        )


def test_a_recording_of_a_real_server() -> None:
    """The clocks in the recorded traffic are found; the replay gives what the engine had counted."""
    recording = DATA / "cache" / "vllm-0.32.0-sequential.jsonl.gz"
    with gzip.open(recording) as file:
        rows = {row["request_id"]: row for row in map(json.loads, file)}
    found = of_prompts(
        advise(
            read_prompts([recording]).prompts,
            tokenizer=load_tokenizer(DATA / "tokenizer"),
            block_size=32,
            num_blocks=300,
            ttft=None,
            now=0.0,
        )
    )
    # three assistants, each with a clock in some requests and a user's id in others
    assert [each.kind for each in found] == ["move_volatile"] * 3
    for each in found:
        assert {part["value_kind"] for part in each.evidence["parts"]} == {"timestamp", "hex_id"}
        kinds = {rows[name]["kind"] for name in each.evidence["example_request_ids"]}
        assert kinds & {"timestamp_first", "user_first"}
        # 45,728 of 101,894 tokens were cached, as vLLM 0.32 counted; a log tells no generated tokens
        assert each.evidence["hit_rate_window_before"] == pytest.approx(45_728 / 101_894, abs=0.005)


class FourCharacters:
    """A tokenizer as quick as can be: what is bounded here is the advisor's own work."""

    def __init__(self) -> None:
        self.seen = 0
        self._encode = stand_ins(4)

    def encode(self, api: str, body: Mapping[str, Any]) -> list[int]:
        self.seen += len(body["messages"][0]["content"])
        return list(self._encode(api, body))


def test_prompts_of_a_megabyte_are_bounded() -> None:
    body = "Rules of the shop about refunds, shipping and 漢字.\n" * 20_000
    window = [
        faults.prompt(
            number,
            {
                "messages": [
                    {"role": "system", "content": f"Current time: 12:00:{number:02}\n{body}"},
                    {"role": "user", "content": f"question {number}"},
                ]
            },
            route="huge",
            at=float(number),
        )
        for number in range(40)
    ]
    tokenizer = FourCharacters()
    found = best(advise(window, tokenizer=tokenizer, block_size=16, num_blocks=None, ttft=None, now=0.0))
    assert (found.kind, found.evidence["value_kind"]) == ("move_volatile", "time")
    assert found.evidence["window_capped"] is True
    assert tokenizer.seen <= 2 * 3 * Limits().characters
