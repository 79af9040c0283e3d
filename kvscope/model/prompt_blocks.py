"""A prompt as salted hashes of its blocks: kept only where someone asked for it, and never with text."""

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PromptBlocks:
    """What a replay needs of one request.

    ``hashes`` are below 2**63, one a block of ``block_size`` tokens. ``plain``: they are a trace's block ids,
    whose last block may be partial; else those of full blocks, of generated tokens too where
    ``answer_hashed``. ``at`` and ``finished_at`` are in seconds of the source's own clock; requests of one
    time are in the order of ``position``. ``cached_tokens`` is what the engine counted.
    """

    request_id: str
    position: int
    block_size: int
    hashes: Sequence[int]
    plain: bool
    prompt_tokens: int
    output_tokens: int | None = None
    answer_hashed: bool = False
    cached_tokens: int | None = None
    lookup: bool = True
    at: float | None = None
    finished_at: float | None = None
