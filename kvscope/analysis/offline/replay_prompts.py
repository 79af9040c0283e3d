"""Prompts as tokens, replayed through the model of the engine's block pool."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence

from kvscope.analysis.offline.differences import differences
from kvscope.analysis.offline.load import DEFAULT_BLOCK_SIZE, Loaded, LoadedPrompt
from kvscope.analysis.offline.report import (
    ESTIMATED,
    EXACT,
    Agreement,
    Evidence,
    ReplayOptions,
    ReplayReport,
    curve_points,
)
from kvscope.analysis.offline.token_check import TokenCheck
from kvscope.analysis.offline.what_ifs import Traffic, WhatIfRows, WhatIfs, answered, notes
from kvscope.cache.admissions import admissions
from kvscope.cache.curve import capacity_curve
from kvscope.cache.groups import Group
from kvscope.cache.hashing import ChainMemo
from kvscope.cache.model_groups import model_groups
from kvscope.cache.overlap import TimedRequest, overlapping, replay_groups, replay_overlapping
from kvscope.cache.policies import hit_blocks
from kvscope.cache.replay import (
    UNKNOWN_TOKENS,
    ReplayResult,
    Tally,
    computed_chain,
    computed_tokens,
)
from kvscope.cache.traces import BlockTrace, TraceBuilder
from kvscope.errors import UsageError

ENGINE_POLICIES = ("lru", "infinite")
_NULL_BLOCKS = 1


def report_on_prompts(loaded: Loaded, options: ReplayOptions, evidence: Evidence) -> ReplayReport:
    """Replay prompts as the engine would have served them; overlapping in time where the files tell ends."""
    block_size = _block_size(loaded, options)
    if loaded.partial:
        evidence.estimate(
            f"of {loaded.partial:,} prompts the files hold a part only (no system prompt, no tools): hits "
            "are those of the part, and what the server counted is not compared"
        )
    _judge_tokens(loaded.prompts, options, evidence)
    timed = _with_zeros([each.timed for each in loaded.prompts], evidence)
    timed = _in_order(timed, options, block_size, evidence)
    num_blocks = None if options.policy == "infinite" else options.num_blocks
    by_engine = options.policy in ENGINE_POLICIES
    # without a limit and without overlap nothing depends on the pool's order: the quick way gives the same
    groups = None if options.layers is None else model_groups(options.layers, block_size)
    quick = num_blocks is None and groups is None and not overlapping(timed)
    trace = None
    if options.curve or quick or not by_engine:
        trace = _as_trace(timed, block_size)
    if groups is not None:
        result = _through_groups(timed, groups, num_blocks, options.batched_tokens, evidence)
    elif trace is not None and quick:
        result = _under_policy(timed, trace, "infinite", None)
    elif trace is None or by_engine:
        result = _through_pool(timed, block_size, num_blocks, evidence)
    else:
        usable = None if num_blocks is None else max(num_blocks - _NULL_BLOCKS, 0)
        evidence.note(
            "a plain cache of blocks under another policy than the engine's; requests do not overlap"
        )
        result = _under_policy(timed, trace, options.policy, usable)
    step = block_size if groups is None else math.lcm(*(group.block_size for group in groups))
    agreement = _explained(_agreement(result), timed, result, step, options)
    what_ifs = _what_ifs(timed, trace, loaded, options, evidence)
    if not result.exact:
        evidence.estimate(
            "of generated tokens only the number is known: the blocks that they fill are found by no request"
        )
    if agreement is not None and options.policy == "lru" and agreement.equal < agreement.compared:
        evidence.estimate("not every request hit what the engine recorded: order or capacity were others")
    report = ReplayReport(
        requests=result.requests,
        queried_tokens=result.queried_tokens,
        hit_tokens=result.hit_tokens,
        hit_rate=result.hit_rate,
        block_hit_rate=result.block_hit_rate,
        exactness=evidence.exactness,
        notes=tuple(evidence.notes),
        block_size=block_size,
        blocks=options.num_blocks,
        policy=options.policy,
        distinct_blocks=None if trace is None else trace.distinct,
        agreement=agreement,
        per_request=result.per_request if options.per_request else None,
        points=None,
        points_exactness=None,
        skipped=tuple(loaded.skipped),
        what_ifs=what_ifs,
        groups=groups,
    )
    if trace is None or not options.curve:
        return report
    curve = capacity_curve(trace, reserved=_NULL_BLOCKS)
    certain = evidence.exact and curve.exact and not overlapping(timed)
    return dataclasses.replace(
        report,
        points=curve_points(curve, options.num_blocks),
        points_exactness=EXACT if certain else ESTIMATED,
    )


def _judge_tokens(prompts: Sequence[LoadedPrompt], options: ReplayOptions, evidence: Evidence) -> None:
    """Compare the tokens that were made here with the engine's counts; raises ``UsageError``."""
    check = TokenCheck()
    for each in prompts:
        if each.tokenised:
            request = each.timed.request
            check.add(request.request_id, len(request.tokens), each.recorded_prompt_tokens)
    check.judge(evidence, estimated=options.tokenizer is None)


def _with_zeros(timed: Sequence[TimedRequest], evidence: Evidence) -> list[TimedRequest]:
    """Return the requests with the zeros that engines up to vLLM 0.23 leave out of what they report."""
    reported = {each.request.recorded_cached_tokens for each in timed}
    if None not in reported or len(reported) == 1 or 0 in reported:
        return list(timed)
    evidence.note(
        "the engine reported no zero: where it reported nothing, 0 cached tokens are taken as recorded"
    )
    return [
        each
        if each.request.recorded_cached_tokens is not None
        else dataclasses.replace(each, request=dataclasses.replace(each.request, recorded_cached_tokens=0))
        for each in timed
    ]


def _block_size(loaded: Loaded, options: ReplayOptions) -> int:
    block_size = options.block_size or loaded.block_size or DEFAULT_BLOCK_SIZE
    if loaded.block_size not in {None, block_size}:
        raise UsageError(
            f"the hashes are of blocks of {loaded.block_size} tokens, not {block_size}: they stay as they are"
        )
    return block_size


def _in_order(
    timed: Sequence[TimedRequest], options: ReplayOptions, block_size: int, evidence: Evidence
) -> list[TimedRequest]:
    """Return the requests as the engine let them in, by its events where they are at hand."""
    if not options.kv_events:
        return sorted(timed, key=lambda each: each.at)
    found = admissions(timed, options.kv_events, block_size)
    if not found.told:
        raise UsageError(
            "the KV events tell of none of the requests: they are of another engine or time, or of blocks of "
            f"other than {block_size} tokens"
        )
    evidence.note(f"the engine's KV events tell in which order it let {found.told:,} requests in")
    return list(found.requests)


def _through_groups(
    timed: Sequence[TimedRequest],
    groups: Sequence[Group],
    num_blocks: int | None,
    batched_tokens: int | None,
    evidence: Evidence,
) -> ReplayResult:
    """Replay as vLLM keeps windows by default, or densely where the recorded counts clearly say so."""
    replayed = functools.partial(
        replay_groups, timed, groups, num_blocks=num_blocks, batched_tokens=batched_tokens
    )
    result = replayed()
    agreement = _agreement(result)
    if agreement is None or agreement.equal == agreement.compared:
        return result
    dense = replayed(retention=None)
    if not _fits_better(dense, agreement):
        return result
    evidence.note("windows are kept wherever a hit may end: that fits the recorded counts")
    return dense


def _through_pool(
    timed: Sequence[TimedRequest], block_size: int, num_blocks: int | None, evidence: Evidence
) -> ReplayResult:
    """Replay as the newest vLLM frees blocks, or as older ones where the recorded counts clearly say so."""
    result = replay_overlapping(timed, block_size=block_size, num_blocks=num_blocks)
    agreement = _agreement(result)
    if num_blocks is None or agreement is None or agreement.equal == agreement.compared:
        return result
    older = replay_overlapping(timed, block_size=block_size, num_blocks=num_blocks, uncached_first=False)
    if not _fits_better(older, agreement):
        return result
    evidence.note("freed blocks queue as in vLLM 0.23 and before: that fits the recorded counts")
    return older


def _fits_better(other: ReplayResult, than: Agreement) -> bool:
    """Whether fewer than half as many requests differ from the recorded counts."""
    fits = _agreement(other)
    return fits is not None and 2 * (fits.compared - fits.equal) < than.compared - than.equal


def _under_policy(
    timed: Sequence[TimedRequest], trace: BlockTrace, policy: str, usable: int | None
) -> ReplayResult:
    tally = Tally(trace.block_size)
    for each, blocks in zip(timed, hit_blocks(trace, policy, usable).tolist(), strict=True):
        tally.add(each.request, blocks * trace.block_size)
    return tally.result(evictions=0)


def _as_trace(timed: Sequence[TimedRequest], block_size: int) -> BlockTrace:
    """Return the blocks that the requests fill, generated tokens included, in the order given."""
    builder = TraceBuilder(block_size)
    memo = ChainMemo()
    stand_ins = itertools.count(UNKNOWN_TOKENS)
    for each in timed:
        request = each.request
        prompt_tokens = len(request.tokens)
        builder.add(
            computed_chain(request, block_size, stand_ins, memo=memo),
            # what is not looked up counts in no rate
            prompt_tokens=prompt_tokens if request.lookup else 0,
            lookup_blocks=max(prompt_tokens - 1, 0) // block_size if request.lookup else 0,
            uncached=int(computed_tokens(request) % block_size > 0),
        )
    return builder.build()[0]


def _agreement(result: ReplayResult) -> Agreement | None:
    known = [each for each in result.per_request if each.recorded_cached_tokens is not None]
    if not known:
        return None
    equal = sum(each.hit_tokens == each.recorded_cached_tokens for each in known)
    return Agreement(compared=len(known), equal=equal)


def _explained(
    agreement: Agreement | None,
    timed: Sequence[TimedRequest],
    result: ReplayResult,
    block_size: int,
    options: ReplayOptions,
) -> Agreement | None:
    if agreement is None or agreement.equal == agreement.compared or options.policy != "lru":
        return agreement
    found = differences(timed, result.per_request, block_size=block_size, num_blocks=options.num_blocks)
    return dataclasses.replace(agreement, differences=found)


def _what_ifs(
    timed: Sequence[TimedRequest],
    trace: BlockTrace | None,
    loaded: Loaded,
    options: ReplayOptions,
    evidence: Evidence,
) -> WhatIfRows:
    if options.what_ifs == WhatIfs():
        return WhatIfRows()
    for note in notes(options.what_ifs):
        evidence.note(note)
    traffic = Traffic(
        trace=trace if trace is not None else _as_trace(timed, _block_size(loaded, options)),
        num_blocks=options.num_blocks,
        reserved=_NULL_BLOCKS,
        seconds=timed[-1].at - timed[0].at,
        resized=(lambda size: _as_trace(timed, size)) if loaded.block_size is None else None,
    )
    return answered(options.what_ifs, traffic)
