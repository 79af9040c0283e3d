"""Values are made fit for both databases in one way."""

import json
import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.model.request import MissCause, Status
from kvscope.store import clean

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=20)


@given(ANY_TEXT)
def test_any_text_becomes_storable_and_stays_the_same_then(value: str) -> None:
    cleaned = clean.text(value)
    assert "\x00" not in cleaned
    assert cleaned.encode().decode() == cleaned
    assert clean.text(cleaned) == cleaned


@given(st.text(min_size=250, max_size=300))
def test_a_long_key_is_cut_once(value: str) -> None:
    cut = clean.key(value)
    assert len(cut) <= clean.KEY_CHARS
    assert clean.key(cut) == cut


def test_long_keys_that_differ_at_the_end_stay_different() -> None:
    keys = {clean.key("x" * 1_000 + str(number)) for number in range(100)}
    assert len(keys) == 100
    assert all(key.startswith("x" * 200) and len(key) == 256 for key in keys)


def test_an_enum_becomes_its_value() -> None:
    cleaned = clean.text(Status.OK)
    assert (cleaned, type(cleaned)) == ("ok", str)


@pytest.mark.parametrize(("value", "cleaned"), [(0, 0), (2**31 - 1, 2**31 - 1), (12.0, 12), (np.int64(7), 7)])
def test_counts(value: object, cleaned: int) -> None:
    assert clean.count(value) == cleaned


@pytest.mark.parametrize("value", [-1, 2**31, 1.5, math.nan, math.inf, True, "1", None])
def test_what_is_no_count(value: object) -> None:
    with pytest.raises(clean.UnfitError):
        clean.count(value)


def test_real_numbers() -> None:
    assert [clean.real(value) for value in (1, 1.5, math.nan, math.inf)] == [1.0, 1.5, None, None]
    assert type(clean.real(np.float32(1.5))) is float
    assert clean.boolean(np.bool_(1)) is True
    with pytest.raises(clean.UnfitError):
        clean.finite(math.nan)


@pytest.mark.parametrize(
    ("cleaner", "value"),
    [
        (clean.real, "1"),
        (clean.real, True),
        (clean.real, 10**400),
        (clean.boolean, 1),
        (clean.text, b"x"),
        (clean.counts, [1]),
    ],
)
def test_other_kinds_are_refused(cleaner: Callable[[object], object], value: object) -> None:
    with pytest.raises(clean.UnfitError):
        cleaner(value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=10,
)


@given(JSON)
def test_any_json_value_becomes_storable(value: Any) -> None:
    encoded = clean.json_text(value)
    assert "\\u0000" not in encoded.replace("\\\\", "")
    again = json.loads(encoded)
    assert clean.json_text(again) == clean.json_text(json.loads(clean.json_text(again)))


def test_the_order_of_keys_does_not_matter() -> None:
    assert clean.json_text({"b": 1, "a": {"d": 1, "c": 2}}) == clean.json_text(
        {"a": {"c": 2, "d": 1}, "b": 1}
    )


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (np.float64(1.5), "1.5"),
        (np.int64(3), "3"),
        (np.bool_(1), "true"),
        (np.array([1.0, math.nan]), "[1.0,null]"),
        (MappingProxyType({"a": (1, 2)}), '{"a":[1,2]}'),
        ({MissCause.COLD: 1}, '{"cold":1}'),
        ({2: "two", None: 0}, '{"2":"two","None":0}'),
        ({"\\u0000": "\\u0000"}, '{"\\\\u0000":"\\\\u0000"}'),
    ],
)
def test_values_of_other_libraries_are_encoded(value: Any, encoded: str) -> None:
    assert clean.json_text(value) == encoded
