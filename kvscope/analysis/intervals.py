"""Intervals around predictions that hold what they promise while a server's load and speed change.

The errors of earlier predictions, in units of ``error_scale``, give the limits. Servers drift, so only the
newest errors count, and the level that is asked for follows what was covered: after a miss a little wider,
after a hit a little narrower (adaptive conformal inference: Gibbs and Candès, NeurIPS 2021).
"""

import heapq
import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvscope.analysis.held_out import Fit, Rows

LEVEL = 0.90
_NEWEST = 400  # errors: enough for a 5 % tail, few enough to forget
_STEP = 0.01
_WIDEST, _NARROWEST = 0.002, 0.5  # shares that may lie outside
_INNER_FOLDS = 5
_LEAST_PREDICTION_SECONDS = 1e-6  # below, the scale of an error has no meaning


def error_scale(seconds: Any) -> Any:
    """Return the unit in which errors of predictions are measured: the root of the prediction.

    Long prefills vary more than short ones, but less than in proportion: on the recordings this scale
    gave narrower intervals at equal coverage than a constant or a proportional one.
    """
    import numpy as np

    return np.sqrt(np.maximum(seconds, _LEAST_PREDICTION_SECONDS))


def errors_of(rows: "Rows", fit: "Fit") -> Any:
    """Return the newest rows' errors in units of ``error_scale``, in order of arrival.

    They are out of fold, with whole sessions left out at a time (cross-conformal prediction: Vovk, Annals
    of Mathematics and Artificial Intelligence 74, 2015).
    """
    import numpy as np

    fold = np.unique(rows.groups, return_inverse=True)[1] % _INNER_FOLDS
    if len(np.unique(fold)) < _INNER_FOLDS:  # too few sessions: blocks of time instead
        fold = np.arange(len(rows)) * _INNER_FOLDS // len(rows)
    errors = np.empty(len(rows))
    for number in range(_INNER_FOLDS):
        out = fold == number
        known, asked = rows.take(~out), rows.take(out)
        seconds = fit(known.features, known.target)(asked.features)
        errors[out] = (asked.target - seconds) / error_scale(seconds)
    return errors[-_NEWEST:]


def limits(errors: Sequence[float], outside: float = 1.0 - LEVEL) -> tuple[float, float]:
    """Return the limits between which all but a share ``outside`` of the sorted errors lie, half a side.

    They have the finite-sample correction of conformal prediction.
    """
    last = len(errors) - 1
    share = min(1.0, math.ceil((last + 2) * (1.0 - outside / 2)) / (last + 1))
    place = math.ceil(share * last)
    return errors[last - place], errors[place]


def follow(errors: Any, seconds: Any, asked: "Rows") -> Any:
    """Return for each of the ``asked`` rows whether its interval holds it.

    Rows are asked in turn; the error of one counts for others that are asked after it could be known.
    """
    import numpy as np

    newest, ordered = deque(errors.tolist()), sorted(errors.tolist())
    scaled = ((asked.target - seconds) / error_scale(seconds)).tolist()
    waiting: list[tuple[float, int]] = []
    inside = np.zeros(len(asked), dtype=bool)
    outside = 1.0 - LEVEL
    for place, (at, known_at) in enumerate(zip(asked.at.tolist(), asked.known_at.tolist(), strict=True)):
        while waiting and waiting[0][0] <= at:
            _, told = heapq.heappop(waiting)
            newest.append(scaled[told])
            insort(ordered, scaled[told])
            if len(newest) > _NEWEST:
                del ordered[bisect_left(ordered, newest.popleft())]
            outside += _STEP * (1.0 - LEVEL - (not inside[told]))
            outside = min(max(outside, _WIDEST), _NARROWEST)
        low, high = limits(ordered, outside)
        inside[place] = low <= scaled[place] <= high
        heapq.heappush(waiting, (known_at, place))
    return inside
