"""Latency models: how many seconds a prompt takes, from what has to be computed and from the load.

``prefill_linear`` and ``ttft_linear`` are non-negative linear forms of the uncached tokens (the linear
layers' work) and of uncached × (cached + uncached / 2) (the attention's: each new token attends to all
before it). They are fitted robustly (``analysis.robust``), so a server's slow first requests do not bend
them, and speak of a typical request. ``queue_linear`` is of the load alone; ``ttft_p50`` and ``ttft_p95``
are quantiles. ``entropy_baseline`` is the published form (entropy of the text, log length, their product),
kept as the one to beat. Errors are measured on later requests of other sessions.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.analysis.features import GROUPS, IN_FLIGHT, PREFILLING, PREFILLING_TOKENS, features_of
from kvscope.analysis.held_out import HeldOut, Rows, added_r2, error_range, judge
from kvscope.analysis.loads import loads
from kvscope.analysis.robust import Line, fit_line, fit_quantile
from kvscope.model.advice import AddedR2, FittedModel
from kvscope.model.request import RequestRecord, Status

MIN_ROWS = 30
_WORK = ("uncached_tokens", "attention_work")
_LOAD = (IN_FLIGHT, PREFILLING, PREFILLING_TOKENS)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LatencyFit:
    """The models that could be fitted, why others could not, and what to know of the former."""

    models: tuple[FittedModel, ...]
    refusals: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What a model predicts and from what; ``optional`` features are used where they are known.

    ``quantile`` None means the typical value.
    """

    name: str
    target: str
    features: tuple[str, ...]
    optional: tuple[str, ...] = ()
    non_negative: bool = True
    quantile: float | None = None

    def fit(self, features: Any, target: Any) -> Line:
        """Fit this form; the ``Fit`` of ``analysis.held_out``."""
        if self.quantile is not None:
            return fit_quantile(features, target, level=self.quantile)
        return fit_line(features, target, non_negative=self.non_negative)


FORMS = (
    Form(name="prefill_linear", target="prefill_seconds", features=_WORK),
    Form(name="queue_linear", target="queue_seconds", features=(PREFILLING, PREFILLING_TOKENS)),
    Form(name="ttft_linear", target="ttft_seconds", features=_WORK, optional=_LOAD),
    Form(name="ttft_p50", target="ttft_seconds", features=_WORK, optional=_LOAD, quantile=0.5),
    Form(name="ttft_p95", target="ttft_seconds", features=_WORK, optional=_LOAD, quantile=0.95),
    Form(
        name="entropy_baseline",
        target="prefill_seconds",
        features=("prompt_entropy", "log_prompt_tokens", "entropy_x_log_prompt_tokens"),
        non_negative=False,
    ),
    Form(name="tpot_linear", target="tpot_seconds", features=("context_tokens",), optional=(IN_FLIGHT,)),
)

_Known = Sequence[tuple[RequestRecord, Mapping[str, float]]]


def fit_latency(records: Sequence[RequestRecord], *, now: float) -> LatencyFit:
    """Fit each model that the records allow; those of the most common model on the most common engine."""
    busy = loads(records)  # of all requests: those that cannot be fitted were in the way, too
    # the times of several sequences belong to none of them
    single = [r for r in records if r.status in (Status.OK, None) and r.sequences == 1]
    usable, notes = _of_one_server(single)
    usable.sort(key=lambda record: record.arrived_at or 0.0)
    known = [(record, features_of(record, busy.get(record.request_id))) for record in usable]
    models: list[FittedModel] = []
    refusals: list[str] = []
    for form in FORMS:
        result = _fit(form, known, now)
        if isinstance(result, str):
            refusals.append(f"{form.name}: {result}")
        else:
            model, measured = result
            models.append(model)
            notes += _notes(model, measured)
    return LatencyFit(models=tuple(models), refusals=tuple(refusals), notes=tuple(notes))


def _of_one_server(records: Sequence[RequestRecord]) -> tuple[list[RequestRecord], list[str]]:
    """Keep the records of the most common model and engine: others have other speeds."""
    counts = Counter((record.model, record.engine) for record in records)
    if len(counts) <= 1:
        return list(records), []
    kept = counts.most_common(1)[0][0]
    of_it = [record for record in records if (record.model, record.engine) == kept]
    note = (
        f"fitted on the {len(of_it)} requests of model {kept[0]} on {kept[1]};"
        f" {len(records) - len(of_it)} of others are left out"
    )
    return of_it, [note]


def _fit(form: Form, known: _Known, now: float) -> tuple[FittedModel, HeldOut] | str:
    names = [*form.features, *_usable_options(form, known)]
    picked = [
        (record, features)
        for record, features in known
        if getattr(record, form.target) is not None and all(name in features for name in names)
    ]
    if len(picked) < MIN_ROWS:
        needs = ", ".join((form.target, *form.features))
        return f"{len(picked)} requests tell {needs}; at least {MIN_ROWS} are needed"
    rows, names = _matrix(picked, names, form.target)
    if not names:
        return f"{', '.join(form.features)} did not vary over {len(rows)} requests"
    if not float(rows.target.var()):
        return f"{form.target} did not vary over {len(rows)} requests"
    measured = judge(rows, form.fit, intervals=form.quantile is None)
    if measured.r2 is None:
        return f"{form.target} did not vary over the later requests"
    line = form.fit(rows.features, rows.target)
    columns = dict(zip(names, rows.features.T, strict=True))
    coefficients = dict(zip(names, map(float, line.coefficients), strict=True))
    pinball, pinball_by_length = _pinball(form, picked, measured)
    model = FittedModel(
        name=form.name,
        target=form.target,
        features=tuple(names),
        coefficients={"intercept": line.intercept, **coefficients},
        r2=measured.r2,
        mae_seconds=measured.mae,
        coverage_90=measured.covered,
        rows=len(rows),
        error_quantiles=error_range(rows, form.fit),
        ranges={name: (float(column.min()), float(column.max())) for name, column in columns.items()},
        fitted_at=now,
        quantile=form.quantile,
        below_rate=None if form.quantile is None else measured.below(),
        pinball_seconds=pinball,
        pinball_by_length_seconds=pinball_by_length,
        added_r2=_worth(form, picked, names, measured),
        typical={name: float(sorted(column)[len(rows) // 2]) for name, column in columns.items()},
        from_at=float(rows.at[0]),
        to_at=float(rows.at[-1]),
    )
    return model, measured


def _worth(form: Form, picked: _Known, names: Sequence[str], measured: HeldOut) -> dict[str, AddedR2]:
    """Return what each group of features adds: those that are in, against leaving them out; entropy, added.

    Of a quantile it is not told: R² is of means.
    """
    found: dict[str, AddedR2] = {}
    if form.quantile is not None:
        return found
    for group, members in GROUPS.items():
        inside = any(name in members for name in names)
        if inside:
            others = [name for name in names if name not in members]
        elif group == "entropy" and all(set(members) <= features.keys() for _, features in picked):
            others = [*names, *members]
        else:
            continue
        rows, _ = _matrix(picked, others, form.target)
        other = judge(rows, form.fit)
        told = added_r2(measured, other) if inside else added_r2(other, measured)
        if told is not None:
            found[group] = AddedR2(value=told[0], low=told[1], high=told[2])
    return found


def _pinball(form: Form, picked: _Known, measured: HeldOut) -> tuple[float | None, float | None]:
    """Return the pinball loss of a quantile model, and of the same quantile by the prompt's length alone."""
    if form.quantile is None:
        return None, None
    rows, _ = _matrix(picked, GROUPS["length"], form.target)
    by_length = judge(rows, form.fit)
    return measured.pinball(form.quantile), by_length.pinball(form.quantile)


def _notes(model: FittedModel, measured: HeldOut) -> list[str]:
    notes = []
    if model.r2 <= 0 and model.quantile in (None, 0.5):  # a high quantile is not near the mean
        notes.append(f"{model.name}: no better than the mean of what was held out")
    if not measured.grouped:
        notes.append(
            f"{model.name}: judged in part on sessions that it was also fitted on: there are too few"
        )
    return notes


def _usable_options(form: Form, known: _Known) -> list[str]:
    """Return the optional features that most of the model's requests tell."""
    having = [features for record, features in known if getattr(record, form.target) is not None]
    return [name for name in form.optional if sum(name in features for features in having) * 2 > len(having)]


def _matrix(picked: _Known, names: Sequence[str], target: str) -> tuple[Rows, list[str]]:
    """Return the rows as arrays, without features that never vary."""
    import numpy as np

    numbers: dict[str, int] = {}
    groups = [
        numbers.setdefault(record.session or f"request {record.request_id}", len(numbers))
        for record, _ in picked
    ]
    features = np.array([[told[name] for name in names] for _, told in picked]).reshape(len(picked), -1)
    varies = np.ptp(features, axis=0) > 0 if features.size else np.zeros(features.shape[1], dtype=bool)
    at = np.array([record.arrived_at or 0.0 for record, _ in picked])
    told_after = [record.e2e_seconds or record.ttft_seconds or 0.0 for record, _ in picked]
    rows = Rows(
        features=features[:, varies],
        target=np.array([float(getattr(record, target)) for record, _ in picked]),
        groups=np.array(groups),
        at=at,
        known_at=at + np.array(told_after),
    )
    return rows, [name for name, vary in zip(names, varies, strict=True) if vary]
