"""Ids around ids, as vLLM 0.32 forms them."""

import pytest

from kvscope.model.ids import request_id_of_engine, request_id_of_response


@pytest.mark.parametrize(
    ("engine_id", "request_id"),
    [
        ("chatcmpl-cap-11-0000", "cap-11-0000"),
        ("chatcmpl-chatcmpl-1", "chatcmpl-1"),
        ("cmpl-abc-0", "abc"),
        ("cmpl-550e8400-e29b-41d4-a716-446655440000-1", "550e8400-e29b-41d4-a716-446655440000"),
        ("cmpl-abc", "abc"),
        ("9f1c", "9f1c"),
        ("chatcmpl-", "chatcmpl-"),
        ("", ""),
    ],
)
def test_engine_ids_lose_what_the_engine_put_around_them(engine_id: str, request_id: str) -> None:
    assert request_id_of_engine(engine_id) == request_id


@pytest.mark.parametrize(
    ("response_id", "request_id"),
    [
        ("chatcmpl-abc", "abc"),
        ("cmpl-550e8400-e29b-41d4-a716-446655440000", "550e8400-e29b-41d4-a716-446655440000"),
        ("resp_1", "resp_1"),
    ],
)
def test_a_completion_body_has_no_index_to_lose(response_id: str, request_id: str) -> None:
    assert request_id_of_response(response_id) == request_id
