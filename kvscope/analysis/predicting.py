"""Asks a fitted latency model about a prompt that was not sent."""

import dataclasses
from collections.abc import Mapping

from kvscope.analysis.features import GROUPS, IN_FLIGHT, load_features, text_features, work_features
from kvscope.analysis.intervals import error_scale
from kvscope.analysis.loads import Load
from kvscope.model.advice import FittedModel

_SLACK = 0.25  # of a feature's seen span, on either side


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A predicted latency and its 90 % interval for one request."""

    seconds: float
    low: float
    high: float


def predict_seconds(
    model: FittedModel, *, prompt_tokens: int, cached_tokens: int, load: Load | int | None = None
) -> Prediction | str:
    """Return the latency of a request, or why the model cannot tell.

    ``load`` is what the engine has to do besides, or the number of requests in flight; what is not given is
    the median of what the model has seen. A question may lie outside of that by a quarter of each feature's
    span. A load below the least seen is always answered: an empty server is the natural end of the scale.
    """
    known = work_features(prompt_tokens, cached_tokens) | text_features(prompt_tokens, None)
    known["context_tokens"] = float(prompt_tokens)
    known |= {name: model.typical[name] for name in GROUPS["load"] if name in model.typical}
    if isinstance(load, Load):
        known |= load_features(load)
    elif load is not None:
        known[IN_FLIGHT] = float(load)
    return predict_from(model, known)


def predict_from(model: FittedModel, known: Mapping[str, float]) -> Prediction | str:
    """Return the latency of a request with the ``known`` features, or why the model cannot tell."""
    seconds = model.coefficients["intercept"]
    for name in model.features:
        value = known.get(name)
        if value is None:
            return f"{model.name} needs {name}, which is not known of a prompt that was not sent"
        if refusal := _outside(model, name, value):
            return refusal
        seconds += model.coefficients[name] * value
    low, high = model.error_quantiles
    spread = float(error_scale(seconds))
    return Prediction(
        seconds=seconds, low=max(0.0, seconds + low * spread), high=max(0.0, seconds + high * spread)
    )


def _outside(model: FittedModel, name: str, value: float) -> str | None:
    least, most = model.ranges[name]
    slack = _SLACK * (most - least)
    below = value < least - slack and name not in GROUPS["load"]
    if below or value > most + slack:
        return f"{model.name} has seen {name} from {least:g} to {most:g}, and {value:g} is too far outside"
    return None
