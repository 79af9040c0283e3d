"""What many caches would have hit on the same files: every combination of what may be chosen."""

import dataclasses
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from kvscope.analysis.formats.records import BadLine
from kvscope.analysis.formats.sources import expanded
from kvscope.analysis.offline.report import Evidence, rate
from kvscope.analysis.scale_out.engines import Engine
from kvscope.analysis.scale_out.hashing import FileTask, HashOptions, hash_file, joined
from kvscope.cache.policies import POLICIES, hit_blocks
from kvscope.cache.routing import ROUTINGS, conversations, routed
from kvscope.cache.traces import BlockTrace, Ints, TraceBuilder
from kvscope.errors import UsageError
from kvscope.model.prompt import TransformSpec
from kvscope.prompts.transforms import check_spec, layout_name

Layout = tuple[TransformSpec, ...]
_NULL_BLOCKS = 1
_BY_CACHE = "prefix"  # routes by what the replicas hold, so not apart from the caches


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GridOptions:
    """What is combined; ``blocks`` are those of one replica, None without limit, as in ``ReplayOptions``."""

    replicas: tuple[int, ...] = (1,)
    blocks: tuple[int | None, ...] = (None,)
    policies: tuple[str, ...] = ("lru",)
    layouts: tuple[Layout, ...] = ((),)
    routing: str = "round_robin"
    hashing: HashOptions = dataclasses.field(default_factory=HashOptions)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One combination; ``usable`` are the blocks of a replica that hold anything."""

    layout: str
    replicas: int
    routing: str
    blocks: int | None
    usable: int | None
    policy: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GridRow:
    """What one combination hit. Rates are None where nothing was looked up."""

    layout: str
    replicas: int
    routing: str | None
    blocks: int | None
    policy: str
    requests: int
    queried_tokens: int
    hit_tokens: int
    hit_rate: float | None
    block_hit_rate: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GridReport:
    """All rows in the order of layouts, replicas, blocks and policies, and what they rest on."""

    rows: tuple[GridRow, ...]
    block_size: int
    exactness: str
    notes: tuple[str, ...]
    skipped: tuple[BadLine, ...]


def run_grid(
    paths: Sequence[Path],
    options: GridOptions,
    engine: Engine,
    done: Callable[[int, int], None] = lambda _done, _all: None,
) -> GridReport:
    """Replay the requests of ``paths`` in each combination, requests one after the other.

    Each file is hashed once a layout, on ``engine``, and so is each cell; ``done`` hears how many parts of
    the work are over, of how many. Raises ``UsageError`` as ``replay_files``, and for combinations that mean
    nothing.
    """
    _check(options)
    files = expanded(paths)
    tasks = [
        FileTask(path, number, layout) for layout in options.layouts for number, path in enumerate(files)
    ]
    cells_a_layout = len(options.replicas) * len(options.blocks) * len(options.policies)
    parts = itertools.count(1), len(tasks) + cells_a_layout * len(options.layouts)
    columns = []
    for each in engine.map(hash_file, tasks, options.hashing):
        columns.append(each)
        done(next(parts[0]), parts[1])
    evidence = Evidence()
    rows: list[GridRow] = []
    block_size = 0
    for place, layout in enumerate(options.layouts):
        mine = columns[place * len(files) : (place + 1) * len(files)]
        trace, plain = joined(mine, evidence, estimated=options.hashing.tokenizer is None)
        block_size = trace.block_size
        for row in engine.map(run_cell, _cells(options, layout_name(layout), plain=plain), trace):
            rows.append(row)
            done(next(parts[0]), parts[1])
    return GridReport(
        rows=tuple(rows),
        block_size=block_size,
        exactness=evidence.exactness,
        notes=tuple(dict.fromkeys(evidence.notes)),
        skipped=tuple(skipped for each in columns[: len(files)] for skipped in each.skipped),
    )


def parse_layout(text: str) -> Layout:
    """Return the layout that is ``as_sent``, kinds joined by ``+``, or a JSON list of transforms.

    Raises ``UsageError``.
    """
    if text == layout_name(()):
        return ()
    try:
        given = json.loads(text) if text.startswith("[") else [{"kind": kind} for kind in text.split("+")]
        specs = tuple(TransformSpec.from_json(each) for each in given)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{text!r} is no prompt layout: {error}") from error
    for spec in specs:
        check_spec(spec)
    return specs


def run_cell(trace: BlockTrace, cell: Cell) -> GridRow:
    """Return what one combination hits of ``trace``; raises ``UsageError`` where the cache is too small."""
    if cell.replicas == 1:
        hits = hit_blocks(trace, cell.policy, cell.usable)
    elif cell.routing == _BY_CACHE:
        usable = cell.usable if cell.policy == "lru" else None
        hits = routed(trace, cell.replicas, usable, cell.routing).hits
    else:
        hits = np.zeros(len(trace), dtype=np.int64)
        replica = _replicas(trace, cell)
        for number in range(cell.replicas):
            places = np.flatnonzero(replica == number)
            hits[places] = hit_blocks(_part(trace, places), cell.policy, cell.usable)
    tokens = int(trace.hit_tokens(hits).sum())
    return GridRow(
        layout=cell.layout,
        replicas=cell.replicas,
        routing=cell.routing if cell.replicas > 1 else None,
        blocks=cell.blocks,
        policy=cell.policy,
        requests=len(trace),
        queried_tokens=trace.queried_tokens,
        hit_tokens=tokens,
        hit_rate=rate(tokens, trace.queried_tokens),
        block_hit_rate=rate(int(hits.sum()), trace.queried_blocks),
    )


def _cells(options: GridOptions, layout: str, *, plain: bool) -> list[Cell]:
    """Return the combinations under one layout; of prompts' blocks one is the engine's null block."""
    reserved = 0 if plain else _NULL_BLOCKS
    combined = itertools.product(options.replicas, options.blocks, options.policies)
    return [
        Cell(
            layout=layout,
            replicas=replicas,
            routing=options.routing,
            blocks=blocks,
            usable=None if blocks is None else max(blocks - reserved, 0),
            policy=policy,
        )
        for replicas, blocks, policy in combined
    ]


def _replicas(trace: BlockTrace, cell: Cell) -> Ints:
    """Return each request's replica, where it does not depend on what the caches hold."""
    if cell.routing == "session":
        return np.asarray(conversations(trace), dtype=np.int64) % cell.replicas
    return np.arange(len(trace)) % cell.replicas


def _part(trace: BlockTrace, places: Ints) -> BlockTrace:
    """Return the trace of some of the requests, in their order."""
    builder = TraceBuilder(trace.block_size)
    blocks, starts = trace.blocks, trace.starts
    for place in places.tolist():
        builder.add(
            blocks[starts[place] : starts[place + 1]].tolist(),
            prompt_tokens=int(trace.prompt_tokens[place]),
            lookup_blocks=int(trace.lookups[place]),
            uncached=int(trace.uncached[place]),
        )
    return builder.build()[0]


def _check(options: GridOptions) -> None:
    if unknown := [each for each in options.policies if each not in POLICIES]:
        raise UsageError(f"no policy {unknown[0]!r}; known are {', '.join(POLICIES)}")
    if options.routing not in ROUTINGS:
        raise UsageError(f"no routing {options.routing!r}; known are {', '.join(ROUTINGS)}")
    if min(options.replicas) < 1:
        raise UsageError(f"traffic needs at least one replica, not {min(options.replicas)}")
    only = {"lru", "infinite"}
    if options.routing == _BY_CACHE and max(options.replicas) > 1 and not only.issuperset(options.policies):
        raise UsageError(f"routing by {_BY_CACHE} is known for the policy lru alone")
