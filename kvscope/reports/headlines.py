"""The few sentences that a reader should take away from a report."""

from collections.abc import Iterator

from kvscope.reports import kinds, words
from kvscope.reports.content import Report


def headlines(report: Report) -> tuple[str, ...]:
    """Return the sentences, most important first; what is unknown is left out or said to be so."""
    return tuple(_headlines(report))


def _headlines(report: Report) -> Iterator[str]:
    totals = report.totals
    if not totals.requests:
        yield "No requests in this window."
        return
    if totals.hit_rate is None:
        yield "How many prompt tokens came from the cache is unknown: no source told it."
    else:
        yield (
            f"{words.percent(totals.hit_rate)} of {words.count(totals.prompt_tokens)} prompt tokens"
            " came from the prefix cache."
        )
    yield from _cause(report)
    for promotion in report.promotions:
        before, after = promotion.before, promotion.after
        if before and after and before.hit_rate is not None and after.hit_rate is not None:
            yield (
                f"On route {promotion.route} the promoted layout moved the hit rate from"
                f" {words.percent(before.hit_rate)} to {words.percent(after.hit_rate)}"
                + _predicted(promotion.predicted_hit_rate)
                + "."
            )
    yield from _suggestion(report)
    if any(line.agree is False for line in report.sums):
        yield "The records do not agree with an engine's own counter: see the last section."


def _predicted(rate: float | None) -> str:
    return "" if rate is None else f" ({words.percent(rate)} was predicted)"


def _cause(report: Report) -> Iterator[str]:
    if not report.causes:
        return
    cause = report.causes[0]
    meaning = words.CAUSE_MEANINGS.get(cause.cause, "")
    sentence = f"{words.percent(cause.share)} of the tokens that missed are {words.text(cause.cause)}"
    if meaning:
        sentence += f": they {meaning}"
    where = next((place for place in report.places if place.cause == cause.cause), None)
    if where is not None and where.role is not None:
        kind = f" ({words.text(where.value_kind)})" if where.value_kind else ""
        spot = words.place(where.role, where.message_index)
        sentence += f"; the largest part on route {where.route}, after {spot}{kind}"
    yield sentence + "."


def _suggestion(report: Report) -> Iterator[str]:
    best = next((item for item in report.suggestions if not item.in_force), None)
    if best is not None:
        yield (
            f"The best open suggestion, on route {best.route}: {kinds.title(best.kind).lower()}; predicted"
            f" hit rate {words.percent(best.hit_rate_after)} after {words.percent(best.hit_rate_before)}."
        )
