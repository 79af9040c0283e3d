"""``kvscope fit`` and ``kvscope predict``: the latency models."""

import click

from kvscope.analysis.latency import fit_latency, predict_seconds
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
        result = fit_latency(store.reader.requests(since_at=since_at(since)), now=system_clock())
        store.advice.save_models(list(result.models))
    if as_json:
        emit_json({"models": result.models, "refusals": result.refusals, "notes": result.notes})
        return 0 if result.models else 1
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
    for note in result.notes:
        click.echo(f"note: {note}")
    for reason in result.refusals:
        click.echo(f"refused: {reason}")
    return 0 if result.models else 1


@click.command()
@db_option
@json_option
@click.option("--model", "name", default="ttft_linear", show_default=True, help="Which model.")
@click.option("--prompt-tokens", type=click.IntRange(min=1), required=True)
@click.option("--cached-tokens", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--in-flight", type=click.IntRange(min=0), default=0, show_default=True, help="Other requests.")
def predict(
    db: str | None, as_json: bool, name: str, prompt_tokens: int, cached_tokens: int, in_flight: int
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
    answer = predict_seconds(
        models[name], prompt_tokens=prompt_tokens, cached_tokens=cached_tokens, in_flight=in_flight
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
