"""Numbers as people read them."""

import pytest

from kvscope.reports import evidence, kinds, words


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (words.count(1234), "1,234"),
        (words.count(None), "unknown"),
        (words.count(0), "0"),
        (words.percent(0.359), "35.9 %"),
        (words.percent(None), "unknown"),
        (words.percent(-0.0001), "0.0 %"),
        (words.seconds(0.123), "123 ms"),
        (words.seconds(0.0046), "4.6 ms"),
        (words.seconds(12.34), "12.3 s"),
        (words.seconds(0.0), "0.0 ms"),
        (words.seconds(None), "unknown"),
        (words.change_seconds(0.012), "+12 ms"),
        (words.change_seconds(-0.131), "−131 ms"),
        (words.change_seconds(None), "unknown"),
        (words.points(0.312), "+31.2 points"),
        (words.points(0.0), "0.0 points"),
        (words.change_percent(-0.5), "−50.0 %"),
        (words.decimal(0.9712), "0.97"),
        (words.moment(1_790_000_000.0), "2026-09-21 14:13:20 UTC"),
        (words.moment(None), "unknown"),
        (words.span(200.0), "3 min 20 s"),
        (words.span(0.2), "0 s"),
        (words.span(90_000.0), "1 d 1 h"),
        (words.characters(186, 186), "character 186"),
        (words.rough(557_430_431.0), "557,000,000"),
        (words.rough(None), "unknown"),
        (words.requests(1), "1 request"),
        (words.quantity(0.609, "output_tokens", change=True), "+0.61"),
        (words.place("system", 0), "system message 0"),
        (words.place("tools", None), "tools"),
        (words.place(None, 3), "message 3"),
        (words.place(None, None), "unknown"),
        (words.characters(12, 1031), "characters 12 to 1,031"),
        (words.characters(None, None), "unknown"),
        (words.text("in_flight"), "in flight"),
        (kinds.title("sort_tools"), "Send tools in one order"),
        (kinds.title("some_new_rule"), "Some new rule"),
        (words.quantity(-816.1, "uncached_tokens", change=True), "−816"),
        (words.quantity(1.5, "output_tokens", change=True), "+1.5"),
        (words.quantity(0.02, "error", change=True), "+2.0 points"),
        (words.quantity(0.25, "hit_rate"), "25.0 %"),
        (words.quantity(None, "ttft_seconds"), "unknown"),
        (words.interval(-0.137, -0.125, "ttft_seconds"), "−137 to −125 ms"),
        (words.interval(None, -0.125, "ttft_seconds"), "any to −125 ms"),
        (words.interval(-12.0, 3.0, "uncached_tokens"), "−12 to +3.0"),
        (words.margin(0.1, "ttft_seconds", relative=True), "10 %"),
        (words.margin(0.02, "error", relative=False), "2.0 points"),
        (words.short_id("0123456789abcdef"), "0123456789ab…"),
    ],
)
def test_numbers_read_as_people_write_them(written: str, expected: str) -> None:
    assert written == expected


def test_evidence_names_the_place_the_cost_and_the_examples() -> None:
    told = {
        "requests": 148,
        "window_seconds": 900.0,
        "window_capped": True,
        "tokens_lost": 118_400,
        "example_request_ids": ["r1", "r2"],
        "hit_rate_newer_half_before": 0.05,
        "hit_rate_newer_half_after": 0.9,
        "parts": [
            {
                "role": "system",
                "message_index": 0,
                "char_start": 4,
                "char_end": 23,
                "value_kind": "timestamp",
            },
            {"role": "tools", "message_index": "tools", "value_kind": "tool_order"},
        ],
        "blocks_wanted": 900,
    }
    assert evidence.lines(told) == (
        ("Where", "system message 0, characters 4 to 23: timestamp; tools: tool order"),
        ("Seen in", "148 requests in 15 min, the newest of more"),
        ("Lost", "118,400 tokens"),
        ("On the newer half alone", "5.0 % to 90.0 %"),
        ("Examples", "r1, r2"),
        ("Blocks wanted", "900"),
    )


def test_no_evidence_is_no_lines() -> None:
    assert evidence.lines({}) == ()
