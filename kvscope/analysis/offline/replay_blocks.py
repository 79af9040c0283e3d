"""Traces of block ids, replayed as a plain cache of blocks."""

from kvscope.analysis.offline.load import Loaded
from kvscope.analysis.offline.report import (
    EXACT,
    Evidence,
    ReplayOptions,
    ReplayReport,
    curve_points,
    rate,
)
from kvscope.analysis.offline.what_ifs import Traffic, answered, notes
from kvscope.cache.curve import Curve, capacity_curve
from kvscope.cache.policies import hit_blocks
from kvscope.cache.replay import ReplayedRequest
from kvscope.cache.traces import BlockTrace, Ints, TraceBuilder
from kvscope.errors import UsageError


def report_on_blocks(
    builder: TraceBuilder, loaded: Loaded, options: ReplayOptions, evidence: Evidence
) -> ReplayReport:
    """Replay block ids; a lookup may find the last, partial block too, as the published figures count."""
    if options.kv_events:
        raise UsageError("KV events order prompts of text or tokens; requests of block ids have no tokens")
    trace, order = builder.build()
    evidence.note(
        "block ids are taken as they are: generated tokens are in no block, and requests do not overlap"
    )
    if trace.rechained:
        evidence.note("the ids name blocks apart from what stands before them: they were chained to prefixes")
    traffic = Traffic(
        trace=trace, num_blocks=options.num_blocks, reserved=0, seconds=builder.seconds, resized=None
    )
    for note in notes(options.what_ifs):
        evidence.note(note)
    curve = capacity_curve(trace) if options.curve else None
    per_request = None
    if curve is not None and options.policy == "lru" and not options.per_request:
        found_blocks, found_tokens = curve.hits(_capacity(curve, options.num_blocks))
    else:
        hits = hit_blocks(trace, options.policy, options.num_blocks)
        tokens = trace.hit_tokens(hits)
        found_blocks, found_tokens = int(hits.sum()), int(tokens.sum())
        if options.per_request:
            names = [loaded.ids[place] for place in order.tolist()]
            per_request = _per_request(trace, names, tokens)
    return ReplayReport(
        requests=len(trace),
        queried_tokens=trace.queried_tokens,
        hit_tokens=found_tokens,
        hit_rate=rate(found_tokens, trace.queried_tokens),
        block_hit_rate=rate(found_blocks, trace.queried_blocks),
        exactness=evidence.exactness,
        notes=tuple(evidence.notes),
        block_size=trace.block_size,
        blocks=options.num_blocks,
        policy=options.policy,
        distinct_blocks=trace.distinct,
        agreement=None,
        per_request=per_request,
        points=None if curve is None else curve_points(curve, options.num_blocks),
        points_exactness=None if curve is None else EXACT,
        skipped=tuple(loaded.skipped),
        what_ifs=answered(options.what_ifs, traffic),
    )


def _capacity(curve: Curve, num_blocks: int | None) -> int:
    return max(curve.distinct, curve.smallest) if num_blocks is None else num_blocks


def _per_request(trace: BlockTrace, names: list[str], tokens: Ints) -> tuple[ReplayedRequest, ...]:
    return tuple(
        ReplayedRequest(request_id=name, prompt_tokens=prompt, hit_tokens=hit, recorded_cached_tokens=None)
        for name, prompt, hit in zip(names, trace.prompt_tokens.tolist(), tokens.tolist(), strict=True)
    )
