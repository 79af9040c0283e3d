"""Any answer of ``/kv_event_sources`` gives addresses to connect to, or none."""

import re
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectors.kv_events.discovery import places

# a busy machine is no failure
calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
addresses = st.builds(
    "{}{}{}".format,
    st.sampled_from(["tcp://", "ipc://", "inproc://", "tcp:", ""]),
    st.sampled_from(["*", "0.0.0.0", "[::]", "host", "::", ""]) | st.text(max_size=6),
    st.sampled_from([":5557", ":", ":0", ":99999999", ":x", ""]),
)
publishers = st.fixed_dictionaries(
    {
        "enable_kv_cache_events": st.just(True) | scalars,
        "publisher": st.just("zmq") | scalars,
        "endpoint": addresses | scalars,
        "replay_endpoint": addresses | scalars,
    }
)
ranks = st.integers(0, 2_000).map(str) | st.text(max_size=4) | st.just("9" * 5_000)
answers = st.dictionaries(ranks, publishers | scalars, max_size=4) | scalars | st.lists(scalars, max_size=2)


@calm
@given(answers)
def test_any_answer_gives_addresses_or_none(answer: Any) -> None:
    found = places(answer, "http://engine:8000")
    assert [int(place.replica) for place in found] == sorted({int(place.replica) for place in found})
    for place in found:
        for address in (place.endpoint, place.replay_endpoint):
            assert address is None or re.fullmatch(r"(?s)ipc://.*|tcp://[^*]*:[0-9]{1,5}", address)
