"""Every kind that the advisor can suggest has words, and the words say exactly what to do."""

import ast
import importlib
import inspect
import pkgutil

import pytest

from kvscope import tuning
from kvscope.model.advice import Suggestion
from kvscope.model.prompt import Risk
from kvscope.prompts.transforms import TRANSFORMS
from kvscope.reports import evidence, kinds
from kvscope.reports.changes import harms_of, steps_of


def suggested_kinds() -> set[str]:
    """Return the transforms' kinds and those that modules of ``tuning`` give to an ``Operation``."""
    found = set(TRANSFORMS)
    for info in pkgutil.walk_packages(tuning.__path__, f"{tuning.__name__}."):
        module = importlib.import_module(info.name)
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Operation":
                (kind,) = [each.value for each in node.keywords if each.arg == "kind"]
                found.add(str(eval(ast.unparse(kind), vars(module))))
    return found


def test_every_kind_has_words_and_there_are_no_words_for_others() -> None:
    assert {"stable_history", "keep_warm", "widen_salt", "sort_tools"} <= suggested_kinds()
    assert set(kinds.KINDS) == suggested_kinds()
    assert {kind for kind, told in kinds.KINDS.items() if told.by_hand is None} == set(TRANSFORMS)
    for told in kinds.KINDS.values():
        assert told.harm.endswith(".")
        assert not told.title.endswith(".")


def suggestion(kind: str, change: dict[str, object]) -> Suggestion:
    return Suggestion(
        id="a", kind=kind, route="r", risk=Risk.SAFE, evidence={}, hit_rate_before=0.1, hit_rate_after=0.9,
        ttft_change_seconds=None, tokens_saved_per_day=None, change=change, created_at=0.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "change", "told"),
    [
        ("more_memory", {"blocks": 1536}, "1,536 blocks"),
        ("route_affinity", {"routing": "least_load"}, "set collectors.gateway.routing to least_load"),
        ("widen_salt", {"cache_salt": "tenant"}, "one cache_salt a tenant"),
        ("keep_warm", {"keep_warm": {"every_seconds": 42.5}}, "42.5 seconds after"),
        ("stagger_identical", {"stagger": "until_first_token"}, "has its first token"),
        ("stable_history", {"history": {"drop_messages": 8}}, "8 messages at a time"),
        ("stable_history", {"history": {"append_only": True}}, "as it was sent first"),
        ("unify_prompts", {"system_prompt": {"keep": "a1", "replace": ["b2", "c3"]}}, "(a1) in place of 2"),
        ("text_before_image", {"content_order": "text_first"}, "before the images"),
        ("more_memory", {}, "a person must act"),
        ("rule_of_tomorrow", {}, "Rule of tomorrow: a person must act."),
        ("rule_of_tomorrow", {"transforms": [{"kind": "unheard_of"}]}, "unheard_of (not known"),
    ],
)
def test_a_change_is_told_exactly(kind: str, change: dict[str, object], told: str) -> None:
    assert told in " ".join(steps_of(suggestion(kind, change)))


def test_a_plan_of_several_changes_tells_what_each_may_do() -> None:
    plan = suggestion("sort_tools", {"transforms": [{"kind": "sort_tools"}, {"kind": "sort_documents"}]})
    assert harms_of(plan) == (kinds.harm("sort_tools"), kinds.harm("sort_documents"))


def test_a_change_of_ttft_comes_with_its_interval_and_is_told_once() -> None:
    told = {"ttft_change_low_seconds": -0.14, "ttft_change_high_seconds": -0.122}
    told["gpu_seconds_saved_per_day"] = 3456.0
    assert evidence.ttft_change(-0.131, told) == "−131 ms (−140 to −122 ms)"
    assert evidence.ttft_change(-0.131, {}) == "−131 ms"
    assert evidence.ttft_change(None, {}) == "unknown"
    assert evidence.lines({**told, "prefill_assumed": True, "mean_wait_seconds": 0.2}) == (
        ("Assumed", "0.1 ms of prefill a token, as no latency model is fitted"),
        ("Their mean wait", "200 ms"),
    )
