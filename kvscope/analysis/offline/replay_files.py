"""Reads files and replays them: the whole of ``kvscope replay`` but for its command line."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from kvscope.analysis.offline.importing import logged
from kvscope.analysis.offline.load import Loaded, load, load_requests
from kvscope.analysis.offline.replay_blocks import report_on_blocks
from kvscope.analysis.offline.replay_prompts import ENGINE_POLICIES, report_on_prompts
from kvscope.analysis.offline.report import Evidence, ReplayOptions, ReplayReport
from kvscope.analysis.offline.what_ifs import WhatIfs
from kvscope.cache.policies import POLICIES
from kvscope.errors import UsageError
from kvscope.model.prompt_blocks import PromptBlocks


def replay_files(paths: Sequence[Path], options: ReplayOptions) -> ReplayReport:
    """Read ``paths`` and replay their requests in the order of their times.

    Raises ``UsageError`` for files without requests, sizes that no engine has, a policy that is not known, a
    tokenizer that does not fit the recorded token counts, and a cache smaller than a request.
    """
    _check(options)
    loaded = load(
        paths,
        block_size=options.block_size,
        tokenizer=options.tokenizer,
        keep_ids=options.per_request,
        watch=options.watch,
    )
    return replay_loaded(loaded, options)


def replay_stored(stored: Iterable[PromptBlocks], options: ReplayOptions) -> ReplayReport:
    """Replay requests whose block hashes were stored; raises as ``replay_files``."""
    _check(options)
    loaded = load_requests(logged(stored), tokenizer=options.tokenizer, keep_ids=options.per_request)
    if not loaded.prompts and not loaded.builder:
        raise UsageError(
            "the store holds no block hashes of prompts: name files to replay, or import them with "
            "`kvscope import --blocks`"
        )
    return replay_loaded(loaded, options)


def replay_loaded(loaded: Loaded, options: ReplayOptions) -> ReplayReport:
    """Replay what was loaded, one request at least; raises as ``replay_files``."""
    evidence = Evidence()
    _note_order(loaded, evidence)
    if loaded.builder is not None:
        if options.layers is not None:
            raise UsageError(
                "--layers is for text and tokens: block ids of a trace tell of no group of layers"
            )
        return report_on_blocks(loaded.builder, loaded, options, evidence)
    return report_on_prompts(loaded, options, evidence)


def _check(options: ReplayOptions) -> None:
    if options.layers is None and options.batched_tokens is not None:
        raise UsageError("--batched-tokens is of the groups of layers: name the model with --layers")
    if options.layers is not None:
        _check_layers(options)
    if options.policy not in POLICIES:
        raise UsageError(f"no policy {options.policy!r}; known are {', '.join(POLICIES)}")


def _check_layers(options: ReplayOptions) -> None:
    one_group = [
        name
        for name, asked in (
            ("--curve", options.curve),
            ("--kv-events", bool(options.kv_events)),
            (f"--policy {options.policy}", options.policy not in ENGINE_POLICIES),
            ("what-if questions (--lower-blocks, --replicas, ...)", options.what_ifs != WhatIfs()),
        )
        if asked
    ]
    if one_group:
        raise UsageError(f"--layers replays the engine's own pool: leave out {', '.join(one_group)}, or it")


def _note_order(loaded: Loaded, evidence: Evidence) -> None:
    if loaded.went_back:
        count = loaded.went_back
        evidence.note(
            f"{count:,} request{'s stand' if count > 1 else ' stands'} behind later ones in their file: all "
            "were put in the order of their times"
        )
