"""Which arm serves a request: sticky by hash, the same in every process and after every restart."""

import functools
import hashlib
import math

from kvscope.model.advice import Arm, Experiment, Unit

_HASH_RANGE = float(2**64)


def bucket(experiment_id: str, key: str) -> float:
    """Return a number in [0, 1) that depends on the experiment and ``key`` alone."""
    digest = hashlib.blake2b(
        key.encode("utf-8", "surrogatepass"), digest_size=8, salt=_salt(experiment_id)
    ).digest()
    # 53 bits fill a float exactly, so that the result is below 1
    return (int.from_bytes(digest) >> 11) * 2048 / _HASH_RANGE


@functools.lru_cache(maxsize=256)
def _salt(experiment_id: str) -> bytes:
    return hashlib.blake2b(experiment_id.encode(), digest_size=16).digest()


def unit_key(unit: Unit, *, session: str | None, tenant: str | None, request_id: str) -> str:
    """Return what is assigned as a whole: the session or the tenant, or the request where none is told."""
    if unit is Unit.TENANT and tenant is not None:
        return f"t:{tenant}"
    if unit is not Unit.TENANT and session is not None:
        return f"s:{session}"
    return f"r:{request_id}"


def arm_by_share(experiment: Experiment, key: str) -> Arm:
    """Return the arm of ``key``.

    The treatment takes the low end of the range, so that a ramp up moves units from the baseline to the
    treatment only, and a ramp down the other way.
    """
    at = bucket(experiment.id, key)
    upper = 0.0
    baseline = experiment.arms[0]
    for arm in experiment.arms:
        if arm.baseline:
            baseline = arm
            continue
        upper += arm.share
        if at < upper:
            return arm
    return baseline


def slice_at(experiment: Experiment, at: float) -> int:
    """Return the number of the time slice that ``at`` falls in, counted from the start."""
    return math.floor((at - (experiment.started_at or 0.0)) / experiment.slice_seconds)


def arm_of_slice(experiment: Experiment, number: int) -> Arm:
    """Return the arm of one time slice.

    Slices 2k and 2k + 1 are a pair that holds each arm once, in an order drawn by hash: a paired,
    randomised block, so that drift over time weighs on both arms alike.
    """
    pair, second = divmod(number, 2)
    treatment_first = bucket(experiment.id, f"pair:{pair}") < 0.5  # noqa: PLR2004 - a fair coin
    return experiment.treatment if treatment_first != bool(second) else experiment.baseline


def arm_for(
    experiment: Experiment, *, session: str | None, request_id: str, at: float, tenant: str | None = None
) -> Arm:
    """Return the arm that serves a request which arrived at ``at``."""
    if experiment.unit is Unit.TIME_SLICE:
        return arm_of_slice(experiment, slice_at(experiment, at))
    key = unit_key(experiment.unit, session=session, tenant=tenant, request_id=request_id)
    return arm_by_share(experiment, key)
