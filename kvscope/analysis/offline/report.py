"""What a replay of files is asked for and what it says."""

import dataclasses

from kvscope.analysis.formats.records import BadLine
from kvscope.analysis.formats.sources import Watch
from kvscope.analysis.offline.differences import Difference
from kvscope.analysis.offline.load import Encoder
from kvscope.analysis.offline.what_ifs import WhatIfRows, WhatIfs
from kvscope.cache.curve import Curve, CurvePoint
from kvscope.cache.groups import Group
from kvscope.cache.replay import ReplayedRequest
from kvscope.cache.shapes import ModelShape
from kvscope.model.telemetry import CacheEventBatch

EXACT, ESTIMATED = "exact", "estimated"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """How to replay. ``num_blocks`` is the engine's count for text and tokens; None means without limit.

    ``watch`` hears of the bytes that were read. ``kv_events`` are the engine's own: they tell in which order
    it let the requests in. ``layers`` is the model whose groups of layers share the pool, None: one group of
    full attention; ``batched_tokens`` is then the engine's largest batch, None: no prompt is larger.
    """

    num_blocks: int | None = None
    block_size: int | None = None
    policy: str = "lru"
    curve: bool = False
    per_request: bool = False
    tokenizer: Encoder | None = None
    watch: Watch | None = None
    kv_events: tuple[CacheEventBatch, ...] = ()
    what_ifs: WhatIfs = dataclasses.field(default_factory=WhatIfs)
    layers: ModelShape | None = None
    batched_tokens: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How many requests hit what the engine had recorded, of those for which it had; why others did not."""

    compared: int
    equal: int
    differences: tuple[Difference, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """The outcome; ``notes`` say what the figures rest on. ``per_request`` and ``points`` where asked for.

    ``groups`` are those of the layers, where a model was named.
    ``exactness`` is ``exact`` where the prompts' blocks are known for certain and, if the engine's own counts
    are there, all agree; else ``estimated``. Rates are None where nothing was looked up.
    """

    requests: int
    queried_tokens: int
    hit_tokens: int
    hit_rate: float | None
    block_hit_rate: float | None
    exactness: str
    notes: tuple[str, ...]
    block_size: int
    blocks: int | None
    policy: str
    distinct_blocks: int | None
    agreement: Agreement | None
    per_request: tuple[ReplayedRequest, ...] | None
    points: tuple[CurvePoint, ...] | None
    points_exactness: str | None
    skipped: tuple[BadLine, ...]
    what_ifs: WhatIfRows
    groups: tuple[Group, ...] | None = None


class Evidence:
    """Gathers what the figures rest on."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.exact = True

    def note(self, text: str) -> None:
        """Add what a reader should know."""
        self.notes.append(text)

    def estimate(self, text: str) -> None:
        """Add why the figures are not exact."""
        self.notes.append(text)
        self.exact = False

    @property
    def exactness(self) -> str:
        """The word for it."""
        return EXACT if self.exact else ESTIMATED


def rate(part: int, whole: int) -> float | None:
    """Return a share, None of nothing."""
    return part / whole if whole else None


def curve_points(curve: Curve, num_blocks: int | None) -> tuple[CurvePoint, ...]:
    """Return the curve's points, that of ``num_blocks`` among them."""
    points = {point.blocks: point for point in curve.points()}
    if num_blocks is not None:
        points[num_blocks] = curve.point(num_blocks)
    return tuple(points[blocks] for blocks in sorted(points))
