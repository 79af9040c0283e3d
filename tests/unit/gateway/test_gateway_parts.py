"""Single parts of the gateway: events, usage, headers, settings, quantiles."""

import pytest
from pydantic import ValidationError

from collectors.gateway.headers import UsedIds, client_headers, identify, onward
from collectors.gateway.record import quantile
from collectors.gateway.settings import GatewaySettings
from collectors.gateway.sse import EventSplitter, Piece, event_data
from collectors.gateway.usage import UsageStripper, asking, can_ask
from kvscope.prompts.segments import sequences_asked


def whole(*raws: bytes) -> list[Piece]:
    return [Piece(raw, whole=True) for raw in raws]


@pytest.mark.parametrize(
    ("fed", "pieces", "rest"),
    [
        ([b"data: a\n\n"], whole(b"data: a\n\n"), b""),
        ([b"data: a\n", b"\ndata: b\n\nda"], whole(b"data: a\n\n", b"data: b\n\n"), b"da"),
        ([b"data: a\r\n\r\ndata: b\r\n\r\n"], whole(b"data: a\r\n\r\n", b"data: b\r\n\r\n"), b""),
        ([b"data: a\r\n\r", b"\ndata: b\r\n"], whole(b"data: a\r\n\r\n"), b"data: b\r\n"),
        ([b"data: a\r\rdata: b\r\r", b"x"], whole(b"data: a\r\r", b"data: b\r\r"), b"x"),
        ([b"data: a\n\r\n"], whole(b"data: a\n\r\n"), b""),
        ([b": ping\n\n", b"", b"data: x"], whole(b": ping\n\n"), b"data: x"),
        ([b"\n\n\n"], whole(b"\n\n"), b"\n"),
    ],
)
def test_events_are_split_at_blank_lines(fed: list[bytes], pieces: list[Piece], rest: bytes) -> None:
    splitter = EventSplitter()
    assert [piece for data in fed for piece in splitter.feed(data)] == pieces
    assert splitter.rest() == rest
    assert splitter.rest() == b""


def test_an_oversized_event_goes_out_in_parts() -> None:
    splitter = EventSplitter(limit=10)
    pieces = [
        piece for data in (b"x" * 8, b"y" * 8, b"z\n", b"\ndata: a\n\n") for piece in splitter.feed(data)
    ]
    assert b"".join(piece.raw for piece in pieces) == b"x" * 8 + b"y" * 8 + b"z\n\ndata: a\n\n"
    assert [piece.whole for piece in pieces[:-1]] == [False] * (len(pieces) - 1)
    assert pieces[-1] == Piece(b"data: a\n\n", whole=True)


@pytest.mark.parametrize(
    ("raw", "data"),
    [
        (b"data: {}\n\n", b"{}"),
        (b"data:{}\n\n", b"{}"),
        (b"event: x\r\ndata: a\r\ndata: b\r\nid: 1\r\n\r\n", b"a\nb"),
        (b"\ndata: a\n\n", b"a"),
        (b": data: a\n\n", b""),
        (b"data\n\n", b""),
        (b"\n\n", b""),
    ],
)
def test_data_of_an_event(raw: bytes, data: bytes) -> None:
    assert event_data(raw) == data


def chunk(**more: object) -> dict[str, object]:
    return {"choices": [{"index": 0}], **more}


def test_a_comment_between_last_chunk_and_usage_keeps_its_place() -> None:
    stripper = UsageStripper(may_wait=True, fingerprint=None)
    last, ping, usage, done = whole(b'data: {"a":1}\n\n', b": ping\n\n", b"data: u\n\n", b"data: [DONE]\n\n")
    assert stripper.pass_on(last, chunk=chunk(), terminal=True) == b""
    assert stripper.pass_on(ping, chunk=None, terminal=False) == b""
    told: dict[str, object] = {
        "choices": [],
        "usage": {"prompt_tokens": 1},
        "system_fingerprint": 'v"1',
    }
    assert stripper.pass_on(usage, chunk=told, terminal=False) == (
        b'data: {"a":1,"system_fingerprint":"v\\"1"}\n\n: ping\n\n'
    )
    assert stripper.pass_on(done, chunk=None, terminal=False) == done.raw


@pytest.mark.parametrize(
    ("last", "fingerprint", "out"),
    [
        (b'data: {"a":1}\n\n', None, b'data: {"a":1}\n\n'),
        (b'data: {"system_fingerprint":"own"}\n\n', "v1", b'data: {"system_fingerprint":"own"}\n\n'),
        (b'data: {"a":1}\r\n\r\n', "v1", b'data: {"a":1}\r\n\r\n'),
    ],
)
def test_the_fingerprint_is_put_only_where_the_form_is_known(
    last: bytes, fingerprint: str | None, out: bytes
) -> None:
    stripper = UsageStripper(may_wait=True, fingerprint=None)
    stripper.pass_on(Piece(last, whole=True), chunk=chunk(), terminal=True)
    told: dict[str, object] = {
        "choices": [],
        "usage": {"prompt_tokens": 1},
        "system_fingerprint": fingerprint,
    }
    assert stripper.pass_on(Piece(b"u", whole=True), chunk=told, terminal=False) == out


def test_without_a_usage_chunk_what_waited_goes_out_as_it_came() -> None:
    stripper = UsageStripper(may_wait=True, fingerprint="v1")
    stripper.pass_on(Piece(b"data: {}\n\n", whole=True), chunk=chunk(), terminal=True)
    done = Piece(b"data: [DONE]\n\n", whole=True)
    assert stripper.pass_on(done, chunk=None, terminal=False) == b"data: {}\n\ndata: [DONE]\n\n"
    assert stripper.release() == b""


def test_asking_keeps_the_clients_bytes() -> None:
    raw = b'{"stream": true}  \n'
    assert asking(raw, {"stream": True}) == b'{"stream": true,"stream_options":{"include_usage":true}}  \n'


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ({"stream": True}, True),
        ({"stream": True, "stream_options": {}}, True),
        ({"stream": 1}, False),
        ({"stream": True, "stream_options": {"include_usage": True}}, False),
        ({"stream": True, "stream_options": []}, False),
        ({}, False),
    ],
)
def test_when_usage_can_be_asked_for(body: dict[str, object], answer: bool) -> None:
    assert can_ask("chat", body) is answer
    assert not can_ask("messages", body)


@pytest.mark.parametrize(
    ("body", "choices"),
    [
        ({}, 1),
        ({"n": 3}, 3),
        ({"n": None, "prompt": "x"}, 1),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": [[1], [2]], "n": 2}, 4),
        ({"prompt": ["a", "b"]}, 2),
        ({"prompt": []}, 1),
    ],
)
def test_number_of_choices(body: dict[str, object], choices: int) -> None:
    assert sequences_asked("completion", body) == choices


def test_header_bytes_survive() -> None:
    raw = [(b"x-utf8", "ü".encode()), (b"x-latin", b"\xfc"), (b"content-length", b"3"), (b"host", b"a")]
    assert onward(raw, host=b"engine:1") == [(b"Host", b"engine:1"), *raw[:3]]
    assert client_headers(
        [(b"X-A", b"\xff"), (b"Content-Length", b"3")], engine="http://e", length_changes=True
    ) == [(b"X-A", b"\xff")]


@pytest.mark.parametrize("body", [None, {}, {"request_id": ""}, {"request_id": 5}])
def test_an_id_that_is_none_is_replaced(body: dict[str, object] | None) -> None:
    parent = b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"
    ids = identify([(b"Traceparent", parent)], body, UsedIds())
    assert ids.added == [(b"x-request-id", ids.request_id.encode())]
    assert ids.trace_id == "a" * 32


def test_ids_that_were_used_before_get_a_number() -> None:
    used = UsedIds(most=4)
    assert [used.unused(one) for one in ("a", "a~2", "a", "a", "b")] == ["a", "a~2", "a~3", "a~4", "b"]
    assert [used.unused(one) for one in ("c", "d", "e", "f", "a")] == ["c", "d", "e", "f", "a"]
    long = "x" * 5_000
    assert [used.unused(long) for _ in range(2)] == [long, f"{long}~2"]
    odd = "line\nbreak"
    assert used.unused(odd) == odd
    assert len(used.unused(odd)) == 32


def test_settings_describe_themselves_and_refuse_what_they_do_not_know() -> None:
    assert all(field.description for field in GatewaySettings.model_fields.values())
    assert GatewaySettings(session_header="X-Chat-Id").session_header == "x-chat-id"
    for wrong in ({"prot": 1}, {"port": 70_000}, {"session_header": "a b"}, {"body_limit_bytes": 0}):
        with pytest.raises(ValidationError):
            GatewaySettings.model_validate(wrong)


@pytest.mark.parametrize(("share", "value"), [(0.0, 1.0), (0.5, 2.5), (0.95, 3.85), (1.0, 4.0)])
def test_quantiles_are_numpys_default_ones(share: float, value: float) -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], share) == pytest.approx(value)
    assert quantile([7.0], share) == 7.0
