"""An experiment as the terminal shows it: what is changed, arms, differences and guardrails."""

import click

from kvscope.cli.common import emit_table, percent
from kvscope.model.advice import Experiment, Look
from kvscope.reports import words
from kvscope.reports.changes import changes_of
from kvscope.reports.content import ArmLine
from kvscope.reports.trials import arm_lines, guardrail_lines, interval_lines


def print_trial(experiment: Experiment, look: Look | None) -> None:
    """Print what the treatment does and what ``look`` saw of it; without a look, what is planned."""
    for change in changes_of(experiment.treatment.transforms):
        click.echo(f"  treatment: {change}")
    for reason in look.reasons if look else ("no look has been taken yet",):
        click.echo(f"  {reason}")
    emit_table(
        "Arms",
        ("arm", "share", "requests", "units", "hit rate", "mean TTFT"),
        map(_arm_cells, arm_lines(experiment, look)),
        empty="no arms",
    )
    intervals = interval_lines(look)
    if intervals:
        emit_table(
            f"Differences, treatment less baseline ({1 - experiment.alpha:.0%} intervals)",
            ("metric", "difference", "interval"),
            (
                (
                    words.metric(line.metric) + (" (decides)" if line.decides else ""),
                    words.quantity(line.estimate, line.metric, change=True),
                    line.note or words.interval(line.low, line.high, line.metric),
                )
                for line in intervals
            ),
            empty="",
        )
    emit_table(
        "Guardrails",
        ("metric", "may get worse by", "state", "why"),
        (
            (
                words.metric(line.metric),
                words.margin(line.margin, line.metric, relative=line.relative),
                words.text(line.state),
                line.reason,
            )
            for line in guardrail_lines(experiment, look)
        ),
        empty="no guardrails",
    )


def _arm_cells(line: ArmLine) -> tuple[str | int | None, ...]:
    return (
        f"{line.name} (baseline)" if line.baseline and line.name != "baseline" else line.name,
        percent(line.share),
        line.requests,
        line.units,
        percent(line.hit_rate),
        words.seconds(line.ttft.mean) if line.ttft else None,
    )
