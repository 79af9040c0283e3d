"""Loads at arrival against counting request by request."""

from hypothesis import given
from hypothesis import strategies as st

from kvscope.analysis.loads import Load, loads
from kvscope.model.request import RequestRecord


@st.composite
def records(draw: st.DrawFn) -> list[RequestRecord]:
    made = []
    for number in range(draw(st.integers(0, 12))):
        first = draw(st.integers(1, 6))
        prompt = draw(st.integers(1, 9))
        made.append(
            RequestRecord(
                request_id=str(number),
                engine=draw(st.sampled_from("ab")),
                arrived_at=float(draw(st.integers(0, 12))),
                ttft_seconds=float(first),
                e2e_seconds=float(first + draw(st.integers(0, 6))),
                prompt_tokens=prompt,
                cached_tokens=draw(st.integers(0, prompt)),
            )
        )
    return made


@given(records())
def test_loads_are_what_counting_gives(made: list[RequestRecord]) -> None:
    found = loads(made)
    for record in made:
        at = record.arrived_at or 0.0
        before = [other for other in made if other.engine == record.engine and (other.arrived_at or 0) < at]
        prefilling = [o for o in before if (o.arrived_at or 0) + (o.ttft_seconds or 0) > at]
        assert found[record.request_id] == Load(
            in_flight=sum((o.arrived_at or 0) + (o.e2e_seconds or 0) > at for o in before),
            prefilling=len(prefilling),
            prefilling_tokens=sum((o.prompt_tokens or 0) - (o.cached_tokens or 0) for o in prefilling),
        )


def test_a_request_that_does_not_tell_all_is_left_out() -> None:
    assert loads([RequestRecord(request_id="a", arrived_at=1.0, ttft_seconds=1.0)]) == {}
