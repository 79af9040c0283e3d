"""Several servers: who gets what, who is left, and what clients see of a death."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from collectors.gateway.routing import Routable, order
from collectors.gateway.settings import GatewaySettings
from kvscope.model.advice import Routing
from kvscope.pipeline.contracts import Decision
from tests.support.gateway import (
    FakeServer,
    FixedPolicy,
    Heard,
    Wire,
    chunked,
    document,
    fake_server,
    recording,
    request,
    running_gateway,
    saying,
)
from tests.support.telemetry import eventually

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
QUICK = {"health_interval_seconds": 0.05, "health_timeout_seconds": 0.2, "abandon_seconds": 0.3}


class Known:
    """A server as the policies see it."""

    def __init__(self, url: str, in_flight: int = 0, ttft_seconds: float | None = None) -> None:
        self.url = url
        self.in_flight = in_flight
        self.ttft_seconds = ttft_seconds


class Cached:
    """A prefix index that knows what it is told."""

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self._tokens = tokens

    def cached_tokens(self, api: str, body: Mapping[str, Any]) -> Mapping[str, int]:
        del api, body
        return self._tokens


def first(
    policy: Routing, servers: list[Known], *, cached: Mapping[str, int] | None = None, **of: Any
) -> str:
    asked = Routable(**({"key": "k", "api": "chat", "body": {}} | of))
    return order(policy, asked, servers, Cached(cached or {}), slack=2)[0].url


def test_a_session_has_one_home_and_only_a_lost_servers_sessions_move() -> None:
    servers = [Known(f"http://s{number}") for number in range(4)]
    sessions = [f"session-{number}" for number in range(400)]
    homes = {one: first(Routing.SESSION, servers, session=one) for one in sessions}
    assert {url: 60 < list(homes.values()).count(url) < 140 for url in set(homes.values())} == dict.fromkeys(
        (server.url for server in servers), True
    )
    left = servers[1:]
    for one in sessions:
        now = first(Routing.SESSION, left, session=one)
        assert now == homes[one] or homes[one] == servers[0].url


def test_each_policy_looks_at_what_it_names() -> None:
    busy, idle = Known("http://busy", 5, 0.1), Known("http://idle", 1, 0.9)
    assert first(Routing.LEAST_LOAD, [busy, idle]) == idle.url
    assert first(Routing.SESSION, [busy, idle]) == idle.url  # a request without a session has no home
    # 0.1 s for each of six against 0.9 s for each of two
    assert first(Routing.LATENCY, [busy, idle]) == busy.url
    assert first(Routing.LATENCY, [busy, idle, Known("http://new")]) == "http://new"
    warm = {busy.url: 640, idle.url: 0}
    assert first(Routing.PREFIX, [Known(busy.url, 3), idle], cached=warm) == busy.url
    assert first(Routing.PREFIX, [Known(busy.url, 4), idle], cached=warm) == idle.url  # beyond the slack


@pytest.mark.parametrize("policy", list(Routing))
def test_ties_keep_a_session_together(policy: Routing) -> None:
    servers = [Known(f"http://s{number}") for number in range(3)]
    for session in ("a", "b", "c"):
        assert len({first(policy, servers, session=session, key=key) for key in "xyz"}) == 1


def named(name: str) -> Callable[[Heard, Wire], Any]:
    """Return a script that says who answers."""
    return saying(document(json.dumps({"id": name}).encode()))


async def health(heard: Heard, wire: Wire) -> bool:
    """Answer a question for health; False for anything else."""
    if " /health " in heard.line:
        await wire.send(document(b""))
        return True
    return False


@contextlib.asynccontextmanager
async def two() -> AsyncIterator[tuple[FakeServer, FakeServer]]:
    async with fake_server(named("one")) as one, fake_server(named("two")) as other:
        yield one, other


def session_at(urls: list[str], wanted: str) -> str:
    """Return a session whose home is ``wanted``."""
    servers = [Known(url) for url in urls]
    return next(
        name for name in map(str, range(100)) if first(Routing.SESSION, servers, session=name) == wanted
    )


async def test_an_arm_may_route_otherwise_than_is_set() -> None:
    async with two() as (one, other):
        at_one = session_at([one.url, other.url], one.url)
        busy = asyncio.Event()

        async def hold(heard: Heard, wire: Wire) -> None:
            if not await health(heard, wire):
                await busy.wait()
                await wire.send(document(b"{}"))

        one.script = hold
        policy = FixedPolicy()
        async with running_gateway(one.url, other.url, policy=policy) as gateway:
            headers = [("x-session-id", at_one)]
            waiting = asyncio.create_task(gateway.ask({}, headers=headers))
            await eventually(lambda: any("POST" in heard.line for heard in one.heard))
            policy.decision = Decision(routing=Routing.LEAST_LOAD, experiment="e", arm="spread")
            assert (await gateway.ask({}, headers=headers)).json == {"id": "two"}
            busy.set()
            assert (await waiting).status == 200
            engines = {record.get("arm"): record["engine"] for record in gateway.records}
    assert engines == {None: one.url, "spread": other.url}


async def test_a_server_that_is_gone_costs_no_request() -> None:
    async with two() as (one, other):
        session = session_at([one.url, other.url], one.url)
        async with running_gateway(one.url, other.url, settings=QUICK) as gateway:
            headers = [("x-session-id", session)]
            assert (await gateway.ask({}, headers=headers)).json == {"id": "one"}
            port = int(one.url.rpartition(":")[2])
            await one.stop()
            answers = [await gateway.ask({}, headers=headers) for _ in range(3)]
            assert [answer.json for answer in answers] == [{"id": "two"}] * 3
            assert gateway.server.upstreams.silent() == (one.url,)
            assert (await gateway.ask(None, method="GET", target="/v1/models")).status == 200
            again = await asyncio.start_server(one._serve, "127.0.0.1", port)
            await eventually(lambda: gateway.server.upstreams.silent() == ())
            assert (await gateway.ask({}, headers=headers)).json == {"id": "one"}
            again.close()
            engines = [record["engine"] for record in gateway.records]
    assert engines == [one.url, other.url, other.url, other.url, one.url]


async def test_a_request_that_has_not_begun_goes_elsewhere_and_one_that_has_ends_with_an_error() -> None:
    async with two() as (one, other):
        session = session_at([one.url, other.url], one.url)
        headers = [("x-session-id", session)]

        async def die(heard: Heard, wire: Wire) -> None:
            if await health(heard, wire):
                return
            if heard.json.get("seed"):
                await wire.send(chunked(EVENT, end=False))
            wire.cut()

        one.script = die
        async with running_gateway(one.url, other.url) as gateway:
            begun = await gateway.ask({"stream": True, "seed": 1}, headers=headers)
            # passive: until it is asked for its health again it is not the first choice
            assert gateway.server.upstreams.silent() == (one.url,)
            await eventually(lambda: gateway.server.upstreams.silent() == ())
            fresh = await gateway.ask({"stream": False}, headers=headers)
            statuses = [(record["status"], record["engine"]) for record in gateway.records]
    assert begun.body.startswith(EVENT)
    assert b"UpstreamError" in begun.body
    assert fresh.json == {"id": "two"}
    assert statuses == [("error", one.url), ("ok", other.url)]


async def test_what_may_have_had_an_effect_is_not_sent_twice() -> None:
    """A chat may be computed twice; a POST to an unknown route may not be repeated."""
    async with two() as (one, other):

        async def die(heard: Heard, wire: Wire) -> None:
            if not await health(heard, wire):
                wire.cut()

        one.script = other.script = die
        async with running_gateway(one.url, other.url) as gateway:
            answer = await gateway.ask({}, target="/v1/load_lora_adapter")
            assert answer.status == 502
            posts = [heard for heard in one.heard + other.heard if heard.line.startswith("POST")]
            assert len(posts) == 1
            assert (await gateway.ask(None, method="GET", target="/v1/models")).status == 502
            assert all(any("/v1/models" in heard.line for heard in asked.heard) for asked in (one, other))


@pytest.mark.parametrize("sick", ["503", "silent"])
async def test_a_server_that_is_not_well_gets_nothing_and_its_streams_end(sick: str) -> None:
    async with two() as (one, other):
        session = session_at([one.url, other.url], one.url)
        ill = asyncio.Event()

        async def fall_ill(heard: Heard, wire: Wire) -> None:
            if " /health " in heard.line:
                if not ill.is_set():
                    await wire.send(document(b""))
                elif sick == "503":
                    await wire.send(document(b"", status="503 Service Unavailable"))
                else:
                    await wire.peer_closed()
            else:
                await wire.send(chunked(EVENT, end=False))
                await wire.peer_closed()

        one.script = fall_ill
        async with running_gateway(one.url, other.url, settings=QUICK) as gateway:
            reader, writer = await gateway.connect()
            writer.write(request({"stream": True}, headers=[("x-session-id", session)]))
            await reader.readuntil(EVENT)
            ill.set()
            async with asyncio.timeout(5):
                await eventually(lambda: gateway.server.upstreams.silent() == (one.url,))
                answer = await gateway.ask({}, headers=[("x-session-id", session)])
                rest = await reader.readuntil(b"0\r\n\r\n")
            writer.close()
    assert answer.json == {"id": "two"}
    assert b"UpstreamError" in rest


class Foretelling:
    """A forecast of fixed seconds by engine."""

    def __init__(self, seconds: Mapping[str, float | None]) -> None:
        self.seconds = seconds

    def ttft_seconds(self, api: str, body: Mapping[str, Any], *, engine: str, in_flight: int) -> float | None:
        del api, body, in_flight
        if (seconds := self.seconds.get(engine)) is not None and seconds < 0:
            raise RuntimeError("no forecast")
        return seconds


DEADLINE = [("X-Kvscope-Deadline-Ms", "500")]


@pytest.mark.parametrize(
    ("foretold", "deadline", "status"),
    [
        (0.4, DEADLINE, 200),
        (0.6, DEADLINE, 503),
        (0.6, [], 200),
        (0.6, [("X-Kvscope-Deadline-Ms", "soon")], 200),
        (None, DEADLINE, 200),
        (-1.0, DEADLINE, 200),  # a forecast that fails
    ],
)
async def test_a_deadline_that_cannot_be_kept_is_told_at_once(
    foretold: float | None, deadline: list[tuple[str, str]], status: int
) -> None:
    async with fake_server() as server:
        forecast = Foretelling({server.url: foretold})
        async with running_gateway(server.url, settings={"deadline": "reject"}, forecast=forecast) as gateway:
            answer = await gateway.ask({}, headers=deadline)
            record = gateway.records[0]
            late = gateway.metric("kvscope_gateway_late_total", action="reject")
            failed = gateway.metric("kvscope_gateway_fail_open_total", part="forecast")
    assert answer.status == status
    assert len(server.heard) == (status == 200)
    assert failed == (foretold == -1.0)
    assert late == (status == 503)
    if status == 503:
        assert answer.header("retry-after") == "1"
        assert (answer.json["error"]["type"], record["status"]) == ("DeadlineExceeded", "rejected")
        assert "0.60 s" in answer.json["error"]["message"]
    else:
        assert server.heard[0].header("x-kvscope-deadline-ms") is None


async def test_the_guard_is_off_unless_it_is_set() -> None:
    async with fake_server() as server:
        forecast = Foretelling({server.url: 9.0})
        async with running_gateway(server.url, forecast=forecast) as gateway:
            assert (await gateway.ask({}, headers=DEADLINE)).status == 200


async def test_a_request_that_would_be_late_goes_to_the_fallback_or_to_who_is_in_time() -> None:
    async with two() as (one, other), fake_server(named("spare")) as spare:
        settings = {"deadline": "fallback", "fallback": spare.url}
        seconds: dict[str, float | None] = {one.url: 0.6, other.url: 0.1}
        async with running_gateway(
            one.url, other.url, settings=settings, forecast=Foretelling(seconds)
        ) as gateway:
            in_time = [(await gateway.ask({}, headers=DEADLINE)).json["id"] for _ in range(4)]
            seconds[other.url] = 0.7
            late = await gateway.ask({}, headers=DEADLINE)
            engine = gateway.records[-1]["engine"]
    assert in_time == ["two"] * 4
    assert (late.json, engine) == ({"id": "spare"}, spare.url)


def test_settings_that_contradict_each_other_are_refused() -> None:
    for wrong in (
        {"deadline": "fallback"},
        {"fallback": "http://a"},
        {"deadline": "fallback", "fallback": "a"},
        {"routing": "random"},
    ):
        with pytest.raises(ValueError):
            GatewaySettings.model_validate(wrong)


async def test_recordings_pass_whichever_server_answers() -> None:
    raw = recording("chat_stream_usage")
    settings = {"routing": "latency"}
    async with (
        fake_server(saying(raw)) as one,
        fake_server(saying(raw)) as other,
        running_gateway(one.url, other.url, settings=settings) as gateway,
    ):
        bodies = {(await gateway.ask({"stream": True})).body for _ in range(8)}
        engines = {record["engine"] for record in gateway.records}
    assert len(bodies) == 1
    assert engines == {one.url, other.url}  # one that is unknown is tried
