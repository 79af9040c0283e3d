"""Sorts the requests of an experiment by arm and unit; what every figure of a look is summed from."""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence

from kvscope.experiments.assignment import slice_at, unit_key
from kvscope.experiments.metrics import Metric
from kvscope.model.advice import Experiment, Unit
from kvscope.model.request import RequestRecord
from kvscope.stats.moments import Moments, RatioMoments

Units = Mapping[str, Sequence[RequestRecord]]
"""The requests of an arm that count, by unit."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sorted:
    """The requests of an experiment by what becomes of them.

    ``assigned`` counts units by arm before anything is left out: the sample ratio is about these.
    ``counted`` holds, by arm, the units and requests that figures are made of.
    """

    counted: Mapping[str, Units]
    assigned: Mapping[str, int]
    warmups: Mapping[str, int]  # requests by arm
    crossed: int  # units that were seen in both arms, left out
    sessionless: int  # requests that were units of their own for want of a session or tenant
    earlier: int  # requests from before the shares were last changed, left out
    requests: int


def sort_requests(
    experiment: Experiment, records: Sequence[RequestRecord], *, since_at: float, now: float
) -> Sorted:
    """Sort ``records``; those of other experiments and arms are passed over."""
    names = tuple(arm.name for arm in experiment.arms)
    units: dict[str, dict[str, list[RequestRecord]]] = {name: defaultdict(list) for name in names}
    earlier = 0
    for record in records:
        if record.experiment != experiment.id or record.arm not in names:
            continue
        if record.arrived_at is not None and record.arrived_at < since_at:
            earlier += 1
            continue
        units[record.arm][_unit_of(experiment, record)].append(record)
    assigned = {name: len(found) for name, found in units.items()}
    crossed = _leave_out_crossed(experiment, units)
    if experiment.unit is Unit.TIME_SLICE:
        _leave_out_open_pairs(experiment, units, now)
    everything = [record for found in units.values() for unit in found.values() for record in unit]
    return Sorted(
        counted={name: _without_warmup(found) for name, found in units.items()},
        assigned=assigned,
        warmups={
            name: sum(bool(record.warmup) for unit in found.values() for record in unit)
            for name, found in units.items()
        },
        crossed=crossed,
        sessionless=sum(_is_alone(experiment, record) for record in everything),
        earlier=earlier,
        requests=len(everything),
    )


class Figures:
    """The sums of each metric over each arm's units, worked out once a look."""

    def __init__(self, counted: Mapping[str, Units]) -> None:
        self._counted = counted
        self._pairs: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}
        self._moments: dict[tuple[str, str], RatioMoments] = {}

    def moments(self, arm: str, metric: Metric) -> RatioMoments:
        """Return the moments of a metric over an arm's units; units of which nothing is known are absent."""
        key = (arm, metric.name)
        if key not in self._moments:
            self._moments[key] = RatioMoments.of(self._of_units(arm, metric).values())
        return self._moments[key]

    def paired(self, treatment: str, baseline: str, metric: Metric, factor: float = 1.0) -> Moments:
        """Return the moments of treatment - ``factor`` × baseline over the pairs of slices that have both."""
        top, bottom = self._of_units(treatment, metric), self._of_units(baseline, metric)
        return Moments.of(
            top[pair][0] / top[pair][1] - factor * bottom[pair][0] / bottom[pair][1]
            for pair in top.keys() & bottom.keys()
            if top[pair][1] and bottom[pair][1]
        )

    def _of_units(self, arm: str, metric: Metric) -> dict[str, tuple[float, float]]:
        key = (arm, metric.name)
        if key not in self._pairs:
            sums = {unit: _sums(records, metric) for unit, records in self._counted[arm].items()}
            self._pairs[key] = {unit: pair for unit, pair in sums.items() if pair is not None}
        return self._pairs[key]


def _sums(records: Sequence[RequestRecord], metric: Metric) -> tuple[float, float] | None:
    top = bottom = 0.0
    told = False
    for record in records:
        pair = metric.pair(record)
        if pair is not None:
            told = True
            top += pair[0]
            bottom += pair[1]
    return (top, bottom) if told else None


def _unit_of(experiment: Experiment, record: RequestRecord) -> str:
    if experiment.unit is Unit.TIME_SLICE:
        return str(slice_at(experiment, record.arrived_at or 0.0) // 2)
    return unit_key(
        experiment.unit, session=record.session, tenant=record.tenant, request_id=record.request_id
    )


def _is_alone(experiment: Experiment, record: RequestRecord) -> bool:
    return (record.tenant if experiment.unit is Unit.TENANT else record.session) is None


def _leave_out_crossed(experiment: Experiment, units: Mapping[str, dict[str, list[RequestRecord]]]) -> int:
    """Drop sessions that both arms served: they belong to neither. A pair of slices is meant to have both."""
    if experiment.unit is Unit.TIME_SLICE:
        return 0
    first, second = (units[arm.name] for arm in experiment.arms)
    crossed = first.keys() & second.keys()
    for key in crossed:
        del first[key], second[key]
    return len(crossed)


def _leave_out_open_pairs(
    experiment: Experiment, units: Mapping[str, dict[str, list[RequestRecord]]], now: float
) -> None:
    """Drop the pair of slices that is still running: half a pair is no comparison."""
    open_pair = str(slice_at(experiment, now) // 2)
    for found in units.values():
        found.pop(open_pair, None)


def _without_warmup(units: Units) -> Units:
    kept = {key: [record for record in unit if not record.warmup] for key, unit in units.items()}
    return {key: unit for key, unit in kept.items() if unit}
