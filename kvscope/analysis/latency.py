"""Latency models: how many seconds a prompt takes, from what has to be computed and from the load.

``prefill_linear`` and ``ttft_linear`` are non-negative linear forms of the uncached tokens (the linear
layers' work) and of uncached × (cached + uncached / 2) (the attention's: each new token attends to all
before it). They are fitted robustly (``analysis.robust``), so a server's slow first requests do not bend
them, and speak of a typical request. ``entropy_baseline`` is the published form (entropy of the text, log
length, their product), kept as the one to beat. Errors are measured on later requests of other sessions.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvscope.analysis.held_out import Rows, Score, error_range, score
from kvscope.analysis.robust import Line, fit_line
from kvscope.model.advice import FittedModel
from kvscope.model.request import RequestRecord, Status

MIN_ROWS = 30
_SLACK = 0.25  # of a feature's seen span, on either side
_IN_FLIGHT = "requests_in_flight"
_ENTROPY = "prompt_entropy"

Feature = Callable[[RequestRecord], float | None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LatencyFit:
    """The models that could be fitted, why others could not, and what to know of the former."""

    models: tuple[FittedModel, ...]
    refusals: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A predicted latency and its 90 % interval for one request."""

    seconds: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """What a model predicts and from what; ``optional`` features are used where they are known."""

    name: str
    target: str
    features: tuple[str, ...]
    optional: tuple[str, ...] = ()
    non_negative: bool = True


_FORMS = (
    _Form(name="prefill_linear", target="prefill_seconds", features=("uncached_tokens", "attention_work")),
    _Form(
        name="ttft_linear",
        target="ttft_seconds",
        features=("uncached_tokens", "attention_work"),
        optional=(_IN_FLIGHT,),
    ),
    _Form(
        name="entropy_baseline",
        target="prefill_seconds",
        features=(_ENTROPY, "log_prompt_tokens", "entropy_x_log_prompt_tokens"),
        non_negative=False,
    ),
    _Form(name="tpot_linear", target="tpot_seconds", features=("context_tokens",), optional=(_IN_FLIGHT,)),
)


def features_of(record: RequestRecord) -> dict[str, float]:
    """Return the features of a request that are known."""
    found: dict[str, float] = {}
    if record.requests_in_flight is not None:
        found[_IN_FLIGHT] = float(record.requests_in_flight)
    if record.prompt_tokens:
        found |= _text_features(record.prompt_tokens, record.prompt_entropy)
        if record.cached_tokens is not None:
            found |= _work_features(record.prompt_tokens, record.cached_tokens)
        if record.output_tokens is not None:
            found["context_tokens"] = record.prompt_tokens + record.output_tokens / 2
    return found


def fit_latency(records: Sequence[RequestRecord], *, now: float) -> LatencyFit:
    """Fit each model that the records allow; those of the most common model on the most common engine."""
    # the times of several sequences belong to none of them
    single = [r for r in records if r.status in (Status.OK, None) and r.sequences == 1]
    usable, notes = _of_one_server(single)
    usable.sort(key=lambda record: record.arrived_at or 0.0)
    known = [(record, features_of(record)) for record in usable]
    models: list[FittedModel] = []
    refusals: list[str] = []
    for form in _FORMS:
        result = _fit(form, known, now)
        if isinstance(result, str):
            refusals.append(f"{form.name}: {result}")
        else:
            model, measured = result
            models.append(model)
            notes += _notes(model, measured)
    return LatencyFit(models=tuple(models), refusals=tuple(refusals), notes=tuple(notes))


def predict_seconds(
    model: FittedModel, *, prompt_tokens: int, cached_tokens: int, in_flight: int = 0
) -> Prediction | str:
    """Return the latency of a request, or why the model cannot tell.

    A question may lie outside what the model has seen by a quarter of each feature's span. A load below
    the least seen is always answered: an empty server is the natural end of the scale.
    """
    known = _work_features(prompt_tokens, cached_tokens) | _text_features(prompt_tokens, None)
    known |= {_IN_FLIGHT: float(in_flight), "context_tokens": float(prompt_tokens)}
    seconds = model.coefficients["intercept"]
    for name in model.features:
        value = known.get(name)
        if value is None:
            return f"{model.name} needs {name}, which is not known of a prompt that was not sent"
        if refusal := _outside(model, name, value):
            return refusal
        seconds += model.coefficients[name] * value
    low, high = model.error_quantiles
    spread = math.sqrt(max(seconds, 0.0))
    return Prediction(
        seconds=seconds, low=max(0.0, seconds + low * spread), high=max(0.0, seconds + high * spread)
    )


def _work_features(prompt_tokens: int, cached_tokens: int) -> dict[str, float]:
    uncached = prompt_tokens - cached_tokens
    return {
        "uncached_tokens": float(uncached),
        "attention_work": uncached * (cached_tokens + uncached / 2),
    }


def _text_features(prompt_tokens: int, entropy: float | None) -> dict[str, float]:
    length = math.log(prompt_tokens)
    if entropy is None:
        return {"log_prompt_tokens": length}
    return {
        _ENTROPY: entropy,
        "log_prompt_tokens": length,
        "entropy_x_log_prompt_tokens": entropy * length,
    }


def _outside(model: FittedModel, name: str, value: float) -> str | None:
    least, most = model.ranges[name]
    slack = _SLACK * (most - least)
    below = value < least - slack and name != _IN_FLIGHT
    if below or value > most + slack:
        return f"{model.name} has seen {name} from {least:g} to {most:g}, and {value:g} is too far outside"
    return None


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


def _fit(
    form: _Form, known: Sequence[tuple[RequestRecord, Mapping[str, float]]], now: float
) -> tuple[FittedModel, Score] | str:
    names = [*form.features, *_usable_options(form, known)]
    picked = [
        (record, [features[name] for name in names], float(getattr(record, form.target)))
        for record, features in known
        if getattr(record, form.target) is not None and all(name in features for name in names)
    ]
    if len(picked) < MIN_ROWS:
        needs = ", ".join((form.target, *form.features))
        return f"{len(picked)} requests tell {needs}; at least {MIN_ROWS} are needed"
    rows, names = _matrix(picked, names)
    if not names:
        return f"{', '.join(form.features)} did not vary over {len(rows)} requests"
    if not float(rows.target.var()):
        return f"{form.target} did not vary over {len(rows)} requests"

    def fit(features: Any, target: Any) -> Line:
        return fit_line(features, target, non_negative=form.non_negative)

    measured = score(rows, fit)
    if measured is None:
        return f"{form.target} did not vary over the later requests"
    line = fit(rows.features, rows.target)
    ranges = {
        name: (float(rows.features[:, place].min()), float(rows.features[:, place].max()))
        for place, name in enumerate(names)
    }
    coefficients = dict(zip(names, map(float, line.coefficients), strict=True))
    model = FittedModel(
        name=form.name,
        target=form.target,
        features=tuple(names),
        coefficients={"intercept": line.intercept, **coefficients},
        r2=measured.r2,
        mae_seconds=measured.mae,
        coverage_90=measured.coverage,
        rows=len(rows),
        error_quantiles=error_range(rows, fit),
        ranges=ranges,
        fitted_at=now,
    )
    return model, measured


def _notes(model: FittedModel, measured: Score) -> list[str]:
    notes = []
    if measured.r2 <= 0:
        notes.append(f"{model.name}: no better than the mean of what was held out")
    if not measured.grouped:
        notes.append(
            f"{model.name}: judged in part on sessions that it was also fitted on: there are too few"
        )
    return notes


def _usable_options(form: _Form, known: Sequence[tuple[RequestRecord, Mapping[str, float]]]) -> list[str]:
    """Return the optional features that most of the model's requests tell."""
    having = [features for record, features in known if getattr(record, form.target) is not None]
    return [name for name in form.optional if sum(name in features for features in having) * 2 > len(having)]


def _matrix(
    picked: Sequence[tuple[RequestRecord, Sequence[float], float]], names: Sequence[str]
) -> tuple[Rows, list[str]]:
    """Return the rows as arrays, without features that never vary."""
    import numpy as np

    numbers: dict[str, int] = {}
    groups = [
        numbers.setdefault(record.session or f"request {record.request_id}", len(numbers))
        for record, _, _ in picked
    ]
    features = np.array([values for _, values, _ in picked])
    varies = np.ptp(features, axis=0) > 0
    rows = Rows(
        features=features[:, varies],
        target=np.array([seconds for _, _, seconds in picked]),
        groups=np.array(groups),
    )
    return rows, [name for name, vary in zip(names, varies, strict=True) if vary]
