"""Reads files and replays them: the whole of ``kvscope replay`` but for its command line."""

from collections.abc import Sequence
from pathlib import Path

from kvscope.analysis.offline.load import Loaded, load
from kvscope.analysis.offline.replay_blocks import report_on_blocks
from kvscope.analysis.offline.replay_prompts import report_on_prompts
from kvscope.analysis.offline.report import Evidence, ReplayOptions, ReplayReport
from kvscope.cache.policies import POLICIES
from kvscope.errors import UsageError


def replay_files(paths: Sequence[Path], options: ReplayOptions) -> ReplayReport:
    """Read ``paths`` and replay their requests in the order of their times.

    Raises ``UsageError`` for files without requests, sizes that no engine has, a policy that is not known, a
    tokenizer that does not fit the recorded token counts, and a cache smaller than a request.
    """
    if options.policy not in POLICIES:
        raise UsageError(f"no policy {options.policy!r}; known are {', '.join(POLICIES)}")
    loaded = load(
        paths, block_size=options.block_size, tokenizer=options.tokenizer, keep_ids=options.per_request
    )
    evidence = Evidence()
    _note_order(loaded, evidence)
    if loaded.builder is not None:
        return report_on_blocks(loaded.builder, loaded, options, evidence)
    return report_on_prompts(loaded, options, evidence)


def _note_order(loaded: Loaded, evidence: Evidence) -> None:
    if loaded.went_back:
        count = loaded.went_back
        evidence.note(
            f"{count:,} request{'s stand' if count > 1 else ' stands'} behind later ones in their file: all "
            "were put in the order of their times"
        )
