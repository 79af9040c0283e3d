"""``kvscope fit`` and ``kvscope predict``: the latency models."""

import click

from kvscope.analysis.bands import EntropyBand, entropy_bands
from kvscope.analysis.latency import LatencyFit, fit_latency
from kvscope.analysis.loads import Load
from kvscope.analysis.predicting import predict_seconds
from kvscope.cli.common import (
    db_option,
    emit_json,
    emit_table,
    json_option,
    milliseconds,
    opened,
    percent,
    since_at,
    since_option,
)
from kvscope.clock import system_clock
from kvscope.errors import UsageError


@click.command()
@db_option
@json_option
@since_option
def fit(db: str | None, as_json: bool, since: str | None) -> int:
    """Fit the latency models to the records and keep them; exit code 1 when none can be fitted."""
    with opened(db) as store:
        records = store.reader.requests(since_at=since_at(since))
        result = fit_latency(records, now=system_clock())
        store.advice.save_models(list(result.models))
    bands = entropy_bands(records)
    if as_json:
        emit_json(
            {
                "models": result.models,
                "refusals": result.refusals,
                "notes": result.notes,
                "entropy_bands": bands,
            }
        )
    else:
        _show(result, bands)
    return 0 if result.models else 1


def _show(result: LatencyFit, bands: list[EntropyBand]) -> None:
    emit_table(
        "Latency models (errors are on held-out, later requests)",
        ("model", "predicts", "features", "R²", "mean abs. error", "90 % interval covers", "rows"),
        (
            (
                model.name,
                model.target,
                ", ".join(model.features),
                model.r2,
                milliseconds(model.mae_seconds),
                percent(model.coverage_90),
                model.rows,
            )
            for model in result.models
        ),
        empty="no model could be fitted",
    )
    emit_table(
        "What groups of features add to R², with 90 % intervals",
        ("model", "group", "adds", "from", "to"),
        (
            (model.name, group, added.value, added.low, added.high)
            for model in result.models
            for group, added in model.added_r2.items()
        ),
        empty="",
    )
    emit_table(
        "Quantiles: pinball loss, and that of the prompt's length alone",
        ("model", "loss", "by length", "at or below"),
        (
            (
                model.name,
                milliseconds(model.pinball_seconds),
                milliseconds(model.pinball_by_length_seconds),
                percent(model.below_rate),
            )
            for model in result.models
            if model.quantile is not None
        ),
        empty="",
    )
    emit_table(
        "TTFT by entropy of the prompt (bits a character), a quarter of the requests each",
        ("from", "to", "requests", "prompt tokens", "cached", "mean", "p50", "p95"),
        (
            (
                band.entropy_from,
                band.entropy_to,
                band.requests,
                round(band.prompt_tokens_mean),
                round(band.cached_tokens_mean),
                milliseconds(band.ttft_mean_seconds),
                milliseconds(band.ttft_p50_seconds),
                milliseconds(band.ttft_p95_seconds),
            )
            for band in bands
        ),
        empty="",
    )
    for note in result.notes:
        click.echo(f"note: {note}")
    for reason in result.refusals:
        click.echo(f"refused: {reason}")


@click.command()
@db_option
@json_option
@click.option("--model", "name", default="ttft_linear", show_default=True, help="Which model.")
@click.option("--prompt-tokens", type=click.IntRange(min=1), required=True)
@click.option("--cached-tokens", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--in-flight", type=click.IntRange(min=0), help="Other requests; default: the usual load.")
@click.option("--prefilling", type=click.IntRange(min=0), help="Of these, without a first token yet.")
@click.option("--prefilling-tokens", type=click.IntRange(min=0), help="Their uncached tokens.")
def predict(
    db: str | None,
    as_json: bool,
    name: str,
    prompt_tokens: int,
    cached_tokens: int,
    in_flight: int | None,
    prefilling: int | None,
    prefilling_tokens: int | None,
) -> int:
    """Predict a latency; exit code 1 when the question lies outside what the model has seen."""
    if cached_tokens >= prompt_tokens:
        raise UsageError(
            "--cached-tokens must be less than --prompt-tokens: the last token is always computed"
        )
    with opened(db) as store:
        models = {model.name: model for model in store.advice.models()}
    if name not in models:
        raise UsageError(f"no model {name!r}; there is: {', '.join(models) or 'none, run `kvscope fit`'}")
    load: Load | int | None = in_flight
    if prefilling is not None or prefilling_tokens is not None:
        load = Load(
            in_flight=max(in_flight or 0, prefilling or 0),
            prefilling=prefilling or 0,
            prefilling_tokens=prefilling_tokens or 0,
        )
    answer = predict_seconds(
        models[name], prompt_tokens=prompt_tokens, cached_tokens=cached_tokens, load=load
    )
    if isinstance(answer, str):
        if as_json:
            emit_json({"refused": answer})
        else:
            click.echo(f"refused: {answer}")
        return 1
    if as_json:
        emit_json(answer)
    else:
        low, high = milliseconds(answer.low), milliseconds(answer.high)
        click.echo(f"{name}: {milliseconds(answer.seconds)} (90 % interval {low} to {high})")
    return 0
