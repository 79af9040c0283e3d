"""The order of a layout's segments: local search against every order, and against a layout's constraints."""

import itertools
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kvscope.cli.main import main
from kvscope.errors import UsageError
from kvscope.model.prompt import Prompt
from kvscope.prompts.layouts.order import named
from kvscope.prompts.layouts.schema import LayoutForm, parse_layout
from kvscope.tuning.ordering import Order, best_of_all, best_order, by_exchange, climbed, is_allowed

DATA = Path(__file__).parents[2] / "data" / "tokenizer"
RULES = " ".join(["Never promise what the table below does not hold."] * 12)
FIRM = " ".join(["Its goods are all kept in the same house."] * 5)
LAYOUT = f"""
variables: {{now: {{}}, firm: {{}}}}
segments:
  - {{name: clock, role: system, scope: dynamic, text: "Current time: {{{{ now }}}}"}}
  - {{name: firm, role: system, scope: project, text: "Firm: {{{{ firm }}}}. {FIRM}"}}
  - {{name: rules, role: system, scope: global, text: "{RULES}"}}
  - {{role: messages}}
"""


def prompts(count: int = 24) -> list[Prompt]:
    found = []
    for number in range(count):
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": f"Question {number}?"}],
            "kvscope": {"layout": "l", "variables": {"now": f"12:{number:02}", "firm": "AB"[number % 2]}},
        }
        found.append(
            Prompt(
                request_id=str(number),
                api="chat",
                route="l",
                arrived_at=float(number),
                body=body,
                sent_body=body,
                engine="e",
            )
        )
    return found


def characters(_api: str, body: Mapping[str, Any]) -> list[int]:
    return [ord(letter) for message in body["messages"] for letter in message["content"]]


def form(text: str = LAYOUT) -> LayoutForm:
    return parse_layout(text, name="l")


def test_what_never_changes_comes_first() -> None:
    found = best_order(form(), prompts(), encode=characters, block_size=16, num_blocks=None)
    assert found.order == ("rules", "firm", "clock", "messages")
    assert found.hit_rate_before < 0.05
    assert found.hit_rate_after > 0.8
    assert found.requests == 24


def test_a_layouts_constraints_hold() -> None:
    text = LAYOUT.replace("name: rules, role: system", "name: rules, after: [firm], role: system")
    found = best_order(form(text), prompts(), encode=characters, block_size=16, num_blocks=None)
    assert found.order == ("firm", "rules", "clock", "messages")
    segments = named(form())
    assert is_allowed(segments, ("rules", "clock", "firm", "messages"))
    assert not is_allowed(segments, ("rules", "clock", "messages", "firm"))  # across the conversation


def test_requests_of_another_layout_are_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match="no request names layout l"):
        best_order(
            form(),
            [],
            encode=characters,
            block_size=16,
            num_blocks=None,
        )


def shared_length(order: Order, lengths: dict[str, int], values: list[dict[str, int]]) -> float:
    """Return the length of what each request shares with some earlier one: all prefixes, one by one."""
    total = 0
    for at, own in enumerate(values):
        best = 0
        for other in values[:at]:
            agree = [own[name] == other[name] for name in order]
            same = order[: agree.index(False)] if False in agree else order
            best = max(best, sum(lengths[name] for name in same))
        total += best
    return total


def test_search_is_seldom_worse_than_every_order_and_never_by_much() -> None:
    rng = random.Random(6)
    equal, worst, cases = 0, 0.0, 60
    for case in range(cases):
        names = tuple("abcdefg"[: rng.choice((3, 4, 5, 6)) if case % 20 else 7])
        lengths = {name: rng.randrange(5, 200) for name in names}
        kinds = {name: rng.choice((1, 2, 4, 12)) for name in names}
        tied = {name: rng.choice(names) for name in names}  # some vary together
        values = []
        for _ in range(14):
            free = {name: rng.randrange(kinds[name]) for name in names}
            values.append(
                {name: free[tied[name]] // 2 if name > tied[name] else free[name] for name in names}
            )
        before = tuple(rng.sample(names, 2))

        def allowed(order: Order, first: Order = before) -> bool:
            return order.index(first[0]) < order.index(first[1])

        def score(
            order: Order, lengths: dict[str, int] = lengths, values: list[dict[str, int]] = values
        ) -> float:
            return shared_length(order, lengths, values)

        given = next(order for order in itertools.permutations(names) if allowed(order))
        repeats = {name: 1 - (len({each[name] for each in values}) - 1) / 13 for name in names}
        start = by_exchange(given, lengths, repeats, allowed)
        found, _ = climbed((given, start), allowed, score)
        most = score(best_of_all(names, allowed, score))
        assert allowed(found)
        assert score(given) <= score(found) <= most
        equal += score(found) == most
        worst = max(worst, 1 - score(found) / most if most else 0.0)
    assert equal >= 0.9 * cases
    assert worst <= 0.1


def test_of_independent_segments_the_exchange_rule_is_the_best_order() -> None:
    rng = random.Random(7)
    for _ in range(40):
        names = tuple("abcde")
        lengths = {name: float(rng.randrange(1, 100)) for name in names}
        repeats = {name: rng.uniform(0.05, 0.95) for name in names}

        def expected(
            order: Order, lengths: dict[str, float] = lengths, repeats: dict[str, float] = repeats
        ) -> float:
            total, reached = 0.0, 1.0
            for name in order:
                reached *= repeats[name]
                total += lengths[name] * reached
            return total

        found = by_exchange(names, lengths, repeats, lambda _: True)
        assert expected(found) == pytest.approx(expected(best_of_all(names, lambda _: True, expected)))


def test_the_command_prints_the_order_as_a_variant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "l.yaml").write_text(LAYOUT)
    (tmp_path / "log.jsonl").write_text("\n".join(json.dumps(dict(each.body)) for each in prompts(12)))
    arguments = ["layout", "order", str(tmp_path / "l.yaml"), str(tmp_path / "log.jsonl")]
    with pytest.raises(SystemExit, match="0"):
        main([*arguments, "--tokenizer", str(DATA)])
    assert "order: [rules, firm, clock, messages]" in capsys.readouterr().out
