"""How good a fit is on requests that it has not seen: later ones, of other sessions."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from kvscope.analysis.intervals import errors_of, follow, limits

Fit = Callable[[Any, Any], Callable[[Any], Any]]
"""Takes rows of features and targets, returns a function from rows to predictions."""

_FOLDS = 4
_LEAST_TRAINING_ROWS = 15
_DRAWS = 400


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows in order of arrival; ``groups`` numbers the sessions.

    ``at`` is when a row was asked, ``known_at`` when its target could be known, in seconds.
    """

    features: Any
    target: Any
    groups: Any
    at: Any
    known_at: Any

    def __len__(self) -> int:
        return len(self.target)

    def take(self, index: Any) -> "Rows":
        """Return some of the rows."""
        return Rows(**{name: getattr(self, name)[index] for name in self.__slots__})

    def having(self, features: Any) -> "Rows":
        """Return the same rows with other features."""
        return dataclasses.replace(self, features=features)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Predictions of rows by fits that had seen earlier rows only, all folds together.

    ``grouped`` is False where some fold had to be fitted on rows of the very sessions that it was judged
    on, because too few others came before.
    """

    actual: Any
    predicted: Any
    groups: Any
    covered: float | None
    grouped: bool

    @property
    def r2(self) -> float | None:
        """The share of the variance that is told; None where there is none."""
        total = float(((self.actual - self.actual.mean()) ** 2).sum())
        return 1.0 - float(((self.actual - self.predicted) ** 2).sum()) / total if total else None

    @property
    def mae(self) -> float:
        """The mean absolute error."""
        return float(abs(self.actual - self.predicted).mean())

    def below(self) -> float:
        """Return the share of rows at or below their prediction: the level, for a quantile that fits."""
        return float((self.actual <= self.predicted).mean())

    def pinball(self, level: float) -> float:
        """Return the mean pinball loss of predictions of the quantile ``level`` (Koenker 1978)."""
        import numpy as np

        errors = self.actual - self.predicted
        return float(np.maximum(level * errors, (level - 1.0) * errors).mean())


def judge(rows: Rows, fit: Fit, *, intervals: bool = False) -> HeldOut:
    """Fit on earlier rows and predict later ones, in four steps.

    With ``intervals`` it is told how many of them cover; they go with the errors that were known when a
    row was asked, as those of a running agent do.
    """
    import numpy as np

    parts = []
    grouped = True
    for training, test, apart in _folds(rows):
        grouped &= apart
        known, asked = rows.take(training), rows.take(test)
        seconds = fit(known.features, known.target)(asked.features)
        inside = follow(errors_of(known, fit), seconds, asked) if intervals else ()
        parts.append((asked.target, seconds, asked.groups, inside))
    actual, predicted, groups, inside = (np.concatenate(each) for each in zip(*parts, strict=True))
    covered = float(inside.mean()) if intervals else None
    return HeldOut(actual=actual, predicted=predicted, groups=groups, covered=covered, grouped=grouped)


def error_range(rows: Rows, fit: Fit) -> tuple[float, float]:
    """Return the limits of the 90 % interval for the next row, in units of ``intervals.error_scale``."""
    return limits(sorted(errors_of(rows, fit).tolist()))


def added_r2(with_it: HeldOut, without: HeldOut) -> tuple[float, float, float] | None:
    """Return how much more of the variance one of two fits tells, and a 90 % interval of it.

    Both must be judged on the same rows. The interval is a bootstrap over sessions, as requests of one
    session are alike. None where the rows have no variance.
    """
    import numpy as np

    if with_it.r2 is None or without.r2 is None:
        return None
    _, number = np.unique(with_it.groups, return_inverse=True)
    sessions = int(number.max()) + 1

    def by_session(values: Any) -> Any:
        return np.bincount(number, weights=values, minlength=sessions)

    actual = with_it.actual
    gain = by_session((actual - without.predicted) ** 2 - (actual - with_it.predicted) ** 2)
    count, total, squares = by_session(np.ones(len(actual))), by_session(actual), by_session(actual**2)
    drawn = np.random.default_rng(0).integers(0, sessions, size=(_DRAWS, sessions))
    rows = count[drawn].sum(axis=1)
    variance = squares[drawn].sum(axis=1) - total[drawn].sum(axis=1) ** 2 / rows
    found = gain[drawn].sum(axis=1)[variance > 0] / variance[variance > 0]
    low, high = np.quantile(found, [0.05, 0.95]) if len(found) else (float("nan"), float("nan"))
    return with_it.r2 - without.r2, float(low), float(high)


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
