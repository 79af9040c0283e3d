"""Kinds of value, line labels, and their cost on hostile text."""

import time

import pytest

from kvscope.prompts.values import ValueKind, find_values, kind_at, line_key, line_key_hash

CASES = [
    ("2026-11-29T17:31:05Z", "timestamp"),
    ("2026-11-29T17:31:05.123456+02:00", "timestamp"),
    ("2026-11-29 17:31:05", "timestamp"),
    ("2026/11/29 17:31", "timestamp"),
    ("Sun, 29 Nov 2026 17:31:05 +0000", "timestamp"),  # RFC 2822
    ("Sun Nov 29 17:31:05 2026", "timestamp"),  # C's asctime
    ("11/29/2026, 5:31:05 PM", "timestamp"),
    ("November 29, 2026 at 5:31 PM", "timestamp"),
    ("29.11.2026 17:31", "timestamp"),
    ("20261129T173105Z", "timestamp"),
    ("1795966295", "timestamp"),
    ("1795966295.3594697", "timestamp"),
    ("1795966295359", "timestamp"),
    ("2026年11月29日 17:31:05", "timestamp"),
    ("2026年11月29日下午5:31", "timestamp"),
    ("2026年11月29日17时31分05秒", "timestamp"),
    ("2026-11-29", "date"),
    ("11/29/2026", "date"),
    ("Sunday, November 29, 2026", "date"),
    ("29 Nov 2026", "date"),
    ("2026年11月29日", "date"),
    ("2026년 11월 29일", "date"),
    ("17:31:05", "time"),
    ("5:31 p.m.", "time"),
    ("下午3点", "time"),
    ("550e8400-e29b-41d4-a716-446655440000", "uuid"),
    ("deadbee1", "hex_id"),
    ("0x8f3a9b2c", "hex_id"),
    ("req_8f3a", "prefixed_id"),
    ("order-12345", "prefixed_id"),
    ("ORD-2026-00123", "prefixed_id"),
    ("chatcmpl-550e8400-e29b-41d4-a716-446655440000", "prefixed_id"),
    ("8f3ax9k2zz", "opaque_id"),
    ("1,234.56", "number"),
    ("42", "number"),
    ("5%", "number"),
    ("bob.smith+x@mail.example.com", "email"),
    ("10.0.0.1:8080", "ip"),
    ("2001:db8::8a2e:370:7334", "ip"),
    ("https://example.com/a?b=1", "url"),
]


@pytest.mark.parametrize(("value", "kind"), CASES)
@pytest.mark.parametrize("frame", ["{}", "x {} y", "now={}, next", "「{}」", '{{"at": "{}"}}'])
def test_value_is_found_whole_and_named(value: str, kind: str, frame: str) -> None:
    text = frame.format(value)
    start = text.index(value)
    span = next(span for span in find_values(text) if span.start >= start)
    assert (str(span.kind), text[span.start : span.end]) == (kind, value)


@pytest.mark.parametrize(
    "text", ["", "no values here", "deadbeef", "state-of-the-art", "::", "@", "你好", "a" * 50]
)
def test_plain_words_hold_no_value(text: str) -> None:
    assert find_values(text) == []


def test_numbers_of_implausible_years_are_numbers() -> None:
    assert [span.kind for span in find_values("9999999999 0000000001")] == [ValueKind.NUMBER] * 2


def test_kind_at_covers_and_touches() -> None:
    text = "time: 17:31:05!"
    start, end = 6, 14
    assert [kind_at(text, position) is not None for position in range(len(text) + 1)] == [
        start <= position <= end for position in range(len(text) + 1)
    ]
    assert kind_at(text, -1) is None
    assert kind_at(text, 99) is None


def test_kind_at_prefers_the_longest() -> None:
    text = "7 2026-11-29T17:31:05Z"
    span = kind_at(text, 1)
    assert span is not None
    assert span.kind is ValueKind.NUMBER
    touching_both = kind_at("5%2026-11-29", 2)
    assert touching_both is not None
    assert touching_both.kind is ValueKind.DATE


def test_kind_at_in_a_very_long_line() -> None:
    text = "word " * 100_000 + "id req_8f3a " + "word " * 100_000
    span = kind_at(text, text.index("8f3a"))
    assert span is not None
    assert text[span.start : span.end] == "req_8f3a"


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("Current time: 2026-11-29T17:31:05Z", "Current time:"),
        ("  request_id = req_8f3a ", "request_id="),
        ("当前时间：2026年11月29日", "当前时间："),  # noqa: RUF001 - the full-width colon is the case
        ("It is 17:31:05 now", "It is <time> now"),
        ("2026-11-29 17:31:05 start", "<timestamp> start"),
        ("see https://example.com/1 for more", "see <url> for more"),
        ("You are   a helpful\tassistant.", "You are a helpful assistant."),
        ("Order 66: done", "Order <number>: done"),
        ("", ""),
    ],
)
def test_line_key(line: str, key: str) -> None:
    assert line_key(line) == key


def test_line_key_hash_is_stable_and_tells_lines_apart() -> None:
    # `printf 'Current time:' | sha256sum`
    first = line_key_hash("Current time: 2026-11-29T17:31:05Z")
    assert first == line_key_hash("Current time: 2027-01-02T03:04:05Z") == "58fbd3e9dacefdc8"
    assert first != line_key_hash("Current date: 2026-11-29")
    assert len(line_key_hash("x 1 " * 5000)) == 16


@pytest.mark.parametrize(
    "unit", ["a", "1", "a1-", "-", " ", "1.", "1:", "a@", "Nov ", "2026-", "ff:", "下午 ", "年", "a%40@"]
)
def test_hostile_text_takes_linear_time(unit: str) -> None:
    """Four times the text must not take sixteen times the time."""

    def seconds(chars: int) -> float:
        text = unit * (chars // len(unit))
        began = time.process_time()
        find_values(text)
        line_key_hash(text)
        return time.process_time() - began

    # the least of several: what else the processor does only adds
    small, large = (min(seconds(chars) for _ in range(3)) for chars in (50_000, 200_000))
    assert large < 10 * small + 0.05
