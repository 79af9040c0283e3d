"""How good a fit is on requests that it has not seen: later ones, of other sessions."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

Fit = Callable[[Any, Any], Callable[[Any], Any]]
"""Takes rows of features and targets, returns a function from rows to predictions."""

LEVEL = 0.90
_FOLDS = 4
_INNER_FOLDS = 5
_LEAST_TRAINING_ROWS = 15
_LEAST_PREDICTION_SECONDS = 1e-6  # below, the scale of an error has no meaning


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows in order of arrival; ``groups`` numbers the sessions."""

    features: Any
    target: Any
    groups: Any

    def __len__(self) -> int:
        return len(self.target)

    def take(self, index: Any) -> "Rows":
        """Return some of the rows."""
        return Rows(features=self.features[index], target=self.target[index], groups=self.groups[index])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Errors on held-out rows, all folds together.

    ``grouped`` is False where some fold had to be fitted on rows of the very sessions that it was judged
    on, because too few others came before.
    """

    r2: float
    mae: float
    coverage: float
    grouped: bool


def score(rows: Rows, fit: Fit) -> Score | None:
    """Fit on earlier rows and judge on later ones, in four steps; None where these have no variance."""
    import numpy as np

    actual, predicted, inside = [], [], []
    grouped = True
    for training, test, apart in _folds(rows):
        grouped &= apart
        known, asked = rows.take(training), rows.take(test)
        seconds = fit(known.features, known.target)(asked.features)
        low, high = error_range(known, fit)
        spread = error_scale(seconds)
        actual.append(asked.target)
        predicted.append(seconds)
        inside.append((asked.target >= seconds + low * spread) & (asked.target <= seconds + high * spread))
    truth, told, covered = (np.concatenate(parts) for parts in (actual, predicted, inside))
    total = float(((truth - truth.mean()) ** 2).sum())
    if not total:
        return None
    return Score(
        r2=1.0 - float(((truth - told) ** 2).sum()) / total,
        mae=float(np.abs(truth - told).mean()),
        coverage=float(covered.mean()),
        grouped=grouped,
    )


def error_scale(seconds: Any) -> Any:
    """Return the unit in which errors of predictions are measured: the root of the prediction.

    Long prefills vary more than short ones, but less than in proportion: on the recordings this scale
    gave narrower intervals at equal coverage than a constant or a proportional one.
    """
    import numpy as np

    return np.sqrt(np.maximum(seconds, _LEAST_PREDICTION_SECONDS))


def error_range(rows: Rows, fit: Fit) -> tuple[float, float]:
    """Return the 5 % and 95 % quantiles of errors in units of ``error_scale``.

    The errors are out of fold, with whole sessions left out at a time (cross-conformal prediction: Vovk,
    Annals of Mathematics and Artificial Intelligence 74, 2015), with the finite-sample correction.
    """
    import numpy as np

    fold = np.unique(rows.groups, return_inverse=True)[1] % _INNER_FOLDS
    if len(np.unique(fold)) < _INNER_FOLDS:  # too few sessions: blocks of time instead
        fold = np.arange(len(rows)) * _INNER_FOLDS // len(rows)
    errors = []
    for number in range(_INNER_FOLDS):
        out = fold == number
        known, asked = rows.take(~out), rows.take(out)
        seconds = fit(known.features, known.target)(asked.features)
        errors.append((asked.target - seconds) / error_scale(seconds))
    pooled = np.concatenate(errors)
    tail = (1.0 - LEVEL) / 2
    return -_conformal(-pooled, 1.0 - tail), _conformal(pooled, 1.0 - tail)


def _conformal(errors: Any, level: float) -> float:
    import numpy as np

    place = min(1.0, math.ceil((len(errors) + 1) * level) / len(errors))
    return float(np.quantile(errors, place, method="higher"))


def _folds(rows: Rows) -> Iterator[tuple[Any, Any, bool]]:
    """Yield index arrays of earlier rows and later rows, and whether they share no session."""
    import numpy as np

    first = max(_LEAST_TRAINING_ROWS, len(rows) // (_FOLDS + 1))
    edges = [first + (len(rows) - first) * step // _FOLDS for step in range(_FOLDS + 1)]
    for begin, end in itertools.pairwise(edges):
        earlier, test = np.arange(begin), np.arange(begin, end)
        strangers = earlier[~np.isin(rows.groups[earlier], rows.groups[test])]
        apart = len(strangers) >= _LEAST_TRAINING_ROWS
        yield strangers if apart else earlier, test, apart
