"""Tokens of requests that are several sequences: they add up, once each, or are unknown."""

from kvscope.model.merge import merge
from kvscope.model.request import MOST_PIECES, RequestPart, RequestRecord, Source


def joined(*parts: RequestPart) -> RequestRecord:
    record = RequestRecord(request_id="r")
    for part in parts:
        record = merge(record, part)
    return record


def part(source: Source, piece: str, prompt: int, cached: int | None) -> RequestPart:
    values = {"prompt_tokens": prompt, "cached_tokens": cached}
    return RequestPart(request_id="r", source=source, values=values, piece=piece)


def test_sequences_add_up_and_what_comes_twice_counts_once() -> None:
    told = [part(Source.PLUGIN, piece, 100, cached) for piece, cached in (("a", 0), ("b", 64), ("b", 64))]
    record = joined(*told, part(Source.GATEWAY, "g", 100, None))
    assert (record.prompt_tokens, record.cached_tokens, record.sequences) == (200, 64, 2)
    assert record.sources == {"prompt_tokens": "plugin", "cached_tokens": "plugin"}


def test_a_source_that_lost_a_sequence_is_not_taken() -> None:
    spans = [part(Source.SPAN, piece, 100, None) for piece in "xy"]
    reports = [part(Source.PLUGIN, piece, 100, 32) for piece in "abc"]
    record = joined(*reports, *spans)
    assert (record.prompt_tokens, record.cached_tokens) == (300, 96)
    assert record.sources["prompt_tokens"] == "plugin"


def test_a_client_s_own_span_is_not_one_more_sequence() -> None:
    record = joined(part(Source.SPAN, "s", 100, None), part(Source.SPAN, "", 100, 32))
    assert (record.prompt_tokens, record.cached_tokens, record.sequences) == (100, 32, 1)


def test_an_id_of_very_many_requests_makes_their_tokens_unknown_and_stays_small() -> None:
    parts = [part(Source.SPAN, f"s{number}", 100, 32) for number in range(MOST_PIECES + 50)]
    record = joined(*parts)
    assert (record.prompt_tokens, record.cached_tokens) == (None, None)
    assert record.sequences > MOST_PIECES
    assert record.sources == {}
    assert len(record.pieces["span"]) == 1
    assert merge(record, parts[0]) is record


def test_a_sum_that_no_column_holds_is_unknown() -> None:
    record = joined(*(part(Source.SPAN, piece, 2**30, 5) for piece in "abc"))
    assert (record.prompt_tokens, record.cached_tokens) == (None, 15)


def test_a_sequence_of_which_nothing_is_told_makes_the_sum_unknown() -> None:
    told, silent = part(Source.GATEWAY, "g1", 100, 64), part(Source.GATEWAY, "g2", 100, None)
    assert joined(told).cached_tokens == 64
    record = joined(told, silent)
    assert (record.prompt_tokens, record.cached_tokens, record.sequences) == (200, None, 2)
    aborted = RequestPart(request_id="r", source=Source.GATEWAY, values={"model": "m"}, piece="g3")
    assert joined(told, aborted).prompt_tokens is None
    spans = [part(Source.SPAN, piece, 100, None) for piece in "xy"]
    assert joined(told, *spans).cached_tokens is None
