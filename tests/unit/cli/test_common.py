"""What commands share: ages, JSON, cells."""

import json

import pytest

from kvscope.cli.common import as_json_value, milliseconds, percent, show, since_at
from kvscope.clock import system_clock
from kvscope.errors import UsageError
from kvscope.model.request import RequestRecord, Status


@pytest.mark.parametrize(("age", "seconds"), [("90s", 90), ("30m", 1800), ("1.5h", 5400), ("7d", 604_800)])
def test_an_age_is_a_number_and_a_unit(age: str, seconds: float) -> None:
    at = since_at(age)
    assert at is not None
    assert system_clock() - at == pytest.approx(seconds, abs=5)


@pytest.mark.parametrize("age", ["24", "h", "-1h", "1y", "", "1 h", "٣h" * 20, "1e9h"])
def test_other_forms_of_age_are_refused(age: str) -> None:
    with pytest.raises(UsageError, match="--since"):
        since_at(age)


def test_a_record_becomes_json_with_iso_times() -> None:
    record = RequestRecord(request_id="r", arrived_at=1_795_966_295.5, status=Status.OK, causes={"cold": 3})
    value = json.loads(json.dumps(as_json_value(record)))
    assert value["arrived_at"] == "2026-11-29T15:31:35.500Z"
    assert value["status"] == "ok"
    assert value["causes"] == {"cold": 3}
    assert value["cached_tokens"] is None
    assert as_json_value({"at": 1_795_966_295.5}) == {"at": "2026-11-29T15:31:35.500Z"}


def test_numbers_that_json_has_not_are_null() -> None:
    assert as_json_value({"a": float("nan"), "b": [float("inf"), 1.5]}) == {"a": None, "b": [None, 1.5]}


def test_cells_hold_no_control_characters() -> None:
    assert show("a\x1b[31mb\x00") == "a\ufffd[31mb\ufffd"


def test_cells_show_the_unknown_as_a_dash() -> None:
    assert [show(None), show(0), show(12345), show(True)] == ["–", "0", "12,345", "yes"]
    assert [percent(None), percent(0.359)] == ["–", "35.9%"]
    assert [milliseconds(None), milliseconds(0.0123)] == ["–", "12.3 ms"]
