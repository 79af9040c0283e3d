"""Where publishers are: ranks by port, and the answer of ``/kv_event_sources``."""

from typing import Any

import pytest

from collectors.kv_events.discovery import places, reachable
from collectors.kv_events.factory import FACTORY
from collectors.kv_events.settings import KvEventsSettings, address_of_rank
from collectors.kv_events.source import Place
from collectors.kv_events.subscriber import named_places
from kvscope.config.load import load_settings
from kvscope.errors import ConfigError
from tests.support.telemetry import context

ENGINE = "http://10.0.0.5:8000"


def _told(**more: Any) -> dict[str, Any]:
    """What vLLM 0.32 tells of one rank (executed)."""
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": "tcp://*:5557",
        "replay_endpoint": "tcp://*:5558",
        "buffer_steps": 10_000,
        "hwm": 100_000,
        "max_queue_size": 100_000,
        "topic": "kv",
        **more,
    }


def test_each_rank_has_its_own_ports_and_is_its_replica() -> None:
    endpoint = {"endpoint": "tcp://h:5557", "replay_endpoint": "tcp://h:6557", "ranks": 3}
    settings = KvEventsSettings.model_validate({"endpoints": [endpoint, "tcp://h:7000"]})
    assert named_places(settings, context(upstreams=["http://a", "http://b"])) == [
        Place(
            engine="http://a",
            replica=str(rank),
            endpoint=f"tcp://h:{5557 + rank}",
            replay_endpoint=f"tcp://h:{6557 + rank}",
        )
        for rank in range(3)
    ] + [Place(engine="http://b", endpoint="tcp://h:7000")]


def test_ranks_of_an_inproc_address_have_a_suffix() -> None:
    assert [address_of_rank("inproc://cache", rank) for rank in (0, 1)] == [
        "inproc://cache",
        "inproc://cache_dp1",
    ]


@pytest.mark.parametrize(
    "endpoint",
    [
        {"endpoint": "ipc:///run/kv", "ranks": 2},
        {"endpoint": "tcp://h:65535", "ranks": 2},
        {"endpoint": "tcp://h:1", "replay_endpoint": "tcp://h:65534", "ranks": 3},
    ],
)
def test_ranks_without_an_address_are_refused(endpoint: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="leaves no address for rank"):
        KvEventsSettings.model_validate({"endpoints": [endpoint]})


def test_what_an_engine_tells_becomes_addresses_to_connect_to() -> None:
    answer = {
        "1": _told(endpoint="tcp://*:5558", replay_endpoint=None),
        "0": _told(),
        "10": _told(endpoint="tcp://10.0.0.9:41234", replay_endpoint="tcp://0.0.0.0:7"),
    }
    assert places(answer, ENGINE) == [
        Place(
            engine=ENGINE,
            replica="0",
            endpoint="tcp://10.0.0.5:5557",
            replay_endpoint="tcp://10.0.0.5:5558",
        ),
        Place(engine=ENGINE, replica="1", endpoint="tcp://10.0.0.5:5558"),
        Place(
            engine=ENGINE, replica="10", endpoint="tcp://10.0.0.9:41234", replay_endpoint="tcp://10.0.0.5:7"
        ),
    ]


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        {},
        {"0": None},
        {"0": _told(publisher="null")},
        {"0": _told(enable_kv_cache_events=False)},
        {"0": _told(endpoint="inproc://cache")},
        {"0": _told(endpoint=5557)},
        {"0": _told(endpoint="tcp://*:")},
        {"x": _told()},
        {"²": _told()},
        {"detail": "Not Found"},
    ],
)
def test_answers_without_a_publisher_that_can_be_heard_give_none(answer: Any) -> None:
    assert places(answer, ENGINE) == []


def test_addresses_of_many_forms() -> None:
    assert reachable("tcp://[::]:5", "[::1]") == "tcp://[::1]:5"
    assert reachable("tcp://[fe80::1]:5", "h") == "tcp://[fe80::1]:5"
    assert reachable("ipc:///run/kv", "h") == "ipc:///run/kv"
    assert places({"0": _told()}, "http://[::1]:8000")[0].endpoint == "tcp://[::1]:5557"


def test_a_clear_line_names_what_is_wrong_with_ranks() -> None:
    flags = {"collectors": {"kv_events": {"endpoints": [{"endpoint": "tcp://h:1", "ranks": 0}]}}}
    with pytest.raises(ConfigError, match=r"endpoints\.0\.ranks: input should be greater"):
        load_settings(None, flags, [FACTORY], {})
