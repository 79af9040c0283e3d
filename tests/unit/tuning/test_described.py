"""What a route's prompts consist of: segments with their scope, and what varies in them."""

from kvscope.tuning.described import Part, described
from tests.support import faults


def one(parts: list[Part], kind: str) -> Part:
    (part,) = [part for part in parts if part.kind == kind and part.role != "user"]
    return part


def test_segments_and_what_varies_in_them() -> None:
    parts = described(faults.window("clock_first", "counter_first", "shuffled_tools"))
    segments = {part.role: part for part in parts if part.kind == "segment"}
    assert segments.keys() == {"tools", "system", "user"}
    assert (segments["system"].scope, segments["system"].distinct) == ("request", 40)
    clock, counter = one(parts, "timestamp"), one(parts, "counter")
    assert (clock.char_start, clock.scope, clock.distinct) == (14, "request", 40)
    assert counter.message_index == 0
    assert one(parts, "tool_order").role == "tools"


def test_the_scope_is_the_widest_that_has_one_value() -> None:
    parts = described(faults.sessions(count=6, turns=5))
    by_place = {(part.role, part.message_index): part for part in parts if part.kind == "segment"}
    assert by_place["system", 0].scope == "route"
    assert (by_place["user", 1].scope, by_place["user", 1].distinct) == ("session", 6)
