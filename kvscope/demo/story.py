"""The parts of the demo's story: what each shows, and the JSON document of the whole."""

from collections.abc import Sequence
from typing import Any

from kvscope.demo.measuring import Phase, figures
from kvscope.demo.show import Screen, milliseconds, number, percent
from kvscope.demo.workload import TUNED_ROUTE
from kvscope.model.advice import Experiment, FittedModel, Look, Suggestion
from kvscope.reports.content import Traffic
from kvscope.store.database import Store

CACHE_BLOCKS = 800  # of 32 tokens: small enough that the demo's traffic evicts
ENGINE_NAMES = {"vllm": "a real vLLM server", "builtin": "the built-in engine"}
_PLACES = 6


def title(engine: str) -> str:
    """Return the demo's first line."""
    if engine == "builtin":
        return "kvscope on its built-in engine: a model of vLLM's cache and timing, no language model"
    return "kvscope on a real vLLM (CPU)"


def show_phase(screen: Screen, phase: Phase) -> None:
    """Show hit rate and TTFT by route."""
    rows = [
        (
            row.key,
            number(row.requests),
            number(row.prompt_tokens),
            percent(row.hit_rate),
            *_ttft(row),
            milliseconds(row.tpot_seconds_mean),
        )
        for row in (*phase.routes.values(), phase.total)
    ]
    columns = ("route", "requests", "prompt tokens", "hit rate", "TTFT mean", "p50", "p95", "TPOT mean")
    screen.table("Hit rate and time to first token by route", columns, rows)
    if phase.missing:
        screen.line(f"note: of {phase.missing} requests not everything has arrived yet")


def show_misses(screen: Screen, store: Store, phase: Phase) -> None:
    """Show miss causes in tokens by route, and the places that break prefixes."""
    rows = [
        (route, cause, number(tokens), percent(tokens / max(1, phase.routes[route].prompt_tokens)))
        for route in phase.routes
        for cause, tokens in phase.causes[route].items()
    ]
    screen.table("Why prompt tokens missed", ("route", "cause", "tokens", "of the route's"), rows)
    places = [
        (
            miss.route,
            miss.cause,
            _place(miss.role, miss.message_index),
            "–"
            if miss.example_char_start is None
            else f"{miss.example_char_start} to {miss.example_char_end}",
            miss.value_kind or "–",
            number(miss.requests),
            number(miss.tokens),
        )
        for miss in store.reader.misses(since_at=phase.began_at)
        if miss.role is not None
    ]
    columns = ("route", "cause", "where", "characters", "what differs", "requests", "tokens lost")
    screen.table("Where prefixes break", columns, places[:_PLACES])


def show_models(screen: Screen, models: Sequence[FittedModel]) -> None:
    """Show how well the latency models fit."""
    rows = [
        (
            model.name,
            model.target,
            ", ".join(model.features),
            f"{model.r2:.2f}",
            milliseconds(model.mae_seconds),
            percent(model.coverage_90),
            number(model.rows),
        )
        for model in models
    ]
    columns = ("model", "predicts", "features", "R²", "mean error", "90 % interval holds", "requests")
    screen.table("Latency models, their errors on held-out requests", columns, rows)


def show_suggestions(screen: Screen, suggestions: Sequence[Suggestion]) -> None:
    """Show the agent's suggestions, the best first."""
    rows = [
        (
            item.route,
            item.kind,
            item.risk.value,
            percent(item.hit_rate_before),
            percent(item.hit_rate_after),
            milliseconds(item.ttft_change_seconds, sign=True),
            number(item.tokens_saved_per_day),
        )
        for item in suggestions
    ]
    columns = ("route", "change", "risk", "hit rate now", "predicted", "TTFT change", "tokens saved a day")
    screen.table("Suggestions, best first", columns, rows)


def show_approval(screen: Screen, suggestion: Suggestion) -> None:
    """Say who approves what."""
    screen.line(
        f"{suggestion.kind} has risk `{suggestion.risk.value}` and needs a person's yes: "
        "this script gives it, in a person's place"
    )


def show_verdict(screen: Screen, experiment: Experiment, look: Look | None) -> None:
    """Show the arms, the differences with their intervals, and the verdict."""
    if look is not None:
        arms = look.results["arms"]
        rows = [
            (
                name,
                number(arm["units"]),
                number(arm["requests"]),
                percent(arm["hit_rate"]),
                milliseconds((arm["ttft_seconds"] or {}).get("mean")),
            )
            for name, arm in arms.items()
        ]
        screen.table("Arms", ("arm", "sessions", "requests", "hit rate", "TTFT mean"), rows)
        differences = [
            (row["metric"], _figure(row, "estimate"), f"{_figure(row, 'low')} to {_figure(row, 'high')}")
            for row in look.results["differences"].values()
            if row.get("estimate") is not None
        ]
        level = f"{1 - experiment.alpha:.0%} interval, valid at every look"
        screen.table("Treatment minus baseline", ("metric", "difference", level), differences)
        for reason in look.reasons:
            screen.line(reason)
    verdict = experiment.verdict.value if experiment.verdict else experiment.state.value
    screen.line(f"verdict: {verdict}")


def predicted(suggestion: Suggestion, before: Traffic) -> dict[str, Any]:
    """Return what the suggestion says of the route once the change is in force.

    ``hit_rate`` is over the whole window, whose replay begins with an empty cache; ``hit_rate_warm`` is over
    its newer half. The spread of times is not predicted, so it is None.
    """
    change = suggestion.ttft_change_seconds
    mean = None if change is None or before.ttft is None else before.ttft.mean + change
    return {
        "suggestion": suggestion.id,
        "change": suggestion.kind,
        "hit_rate": suggestion.hit_rate_after,
        "hit_rate_warm": suggestion.evidence.get("hit_rate_newer_half_after"),
        "ttft_seconds": {"mean": mean, "p50": None, "p95": None},
    }


def document(
    engine: str,
    before: Phase,
    predicted: dict[str, Any],
    after: Phase | None,
    experiment: Experiment,
    look: Look | None,
) -> dict[str, Any]:
    """Return what ``kvscope demo --json`` prints."""
    return {
        "engine": engine,
        "engine_is_real": engine == "vllm",
        "route": TUNED_ROUTE,
        "before": before.as_json(TUNED_ROUTE),
        "predicted": predicted,
        "after": after.as_json(TUNED_ROUTE) if after else None,
        "verdict": experiment.verdict.value if experiment.verdict else None,
        "experiment": {
            "name": experiment.name,
            "state": experiment.state.value,
            "reasons": list(look.reasons) if look else [],
            "results": dict(look.results) if look else {},
        },
        "sums_agree": False,
        "succeeded": False,
    }


def show_result(screen: Screen, document: dict[str, Any]) -> None:
    """Show before, predicted and after side by side."""
    before, predicted, after = document["before"], document["predicted"], document["after"]
    rows = [
        ("hit rate", *(percent(part["hit_rate"]) for part in (before, predicted, after))),
        *(
            (f"TTFT {name}", *(milliseconds((part["ttft_seconds"] or {}).get(name)) for part in parts))
            for name in ("mean", "p50", "p95")
            for parts in [(before, predicted, after)]
        ),
    ]
    if predicted["hit_rate_warm"] is not None:
        rows.insert(1, ("hit rate, cache warm", "–", percent(predicted["hit_rate_warm"]), "–"))
    kind = "measured" if document["engine_is_real"] else "measured on the built-in engine"
    columns = (f"route {document['route']}", f"before ({kind})", "predicted", f"after ({kind})")
    screen.table("The tuned route", columns, rows)
    total = [document[part]["total"] for part in ("before", "after")]
    screen.line(
        f"all routes together: hit rate {percent(total[0]['hit_rate'])} before, "
        f"{percent(total[1]['hit_rate'])} after; verdict of the experiment: {document['verdict']}"
    )


def _ttft(row: Traffic) -> tuple[str, str, str]:
    times = figures(row)["ttft_seconds"] or {}
    mean, p50, p95 = (milliseconds(times.get(name)) for name in ("mean", "p50", "p95"))
    return mean, p50, p95


def _place(role: str | None, message_index: int | None) -> str:
    return f"{role} message {message_index}" if message_index is not None else str(role)


def _figure(row: dict[str, Any], key: str) -> str:
    value = row[key]
    return "–" if value is None else f"{value:+,.4g}"
