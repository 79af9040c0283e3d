"""The grid in this process and on a real Ray cluster of two workers, of which some are killed."""

import gzip
import itertools
import json
import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvscope.analysis.scale_out.engines import LocalEngine, RayEngine, engine_of
from kvscope.analysis.scale_out.grid import GridOptions, GridReport, parse_layout, run_grid
from kvscope.analysis.scale_out.hashing import HashOptions
from kvscope.cli.main import main
from kvscope.errors import UsageError

DATA = Path(__file__).parents[2] / "data"
MOONCAKE = DATA / "traces" / "mooncake-conversation-300.jsonl"
TOKENIZER = DATA / "tokenizer"
CELLS = GridOptions(replicas=(1, 2, 3), blocks=(None, 2_000), policies=("lru", "lfu"), routing="session")


def recording(name: str) -> Path:
    return DATA / "cache" / f"vllm-0.32.0-{name}.jsonl.gz"


def replayed(capsys: pytest.CaptureFixture[str], *arguments: Any) -> dict[str, Any]:
    with pytest.raises(SystemExit) as end:
        main([*map(str, arguments), "--json"])
    out, err = capsys.readouterr()
    assert end.value.code == 0, err
    value: dict[str, Any] = json.loads(out)
    return value


def grid(*paths: Path, engine: LocalEngine | RayEngine | None = None, **options: Any) -> GridReport:
    return run_grid(paths, GridOptions(**options), engine or LocalEngine())


@pytest.mark.parametrize("policy", ["lru", "lfu", "infinite"])
@pytest.mark.parametrize("blocks", [None, 2_000])
def test_one_replica_is_what_replay_says(
    capsys: pytest.CaptureFixture[str], policy: str, blocks: int | None
) -> None:
    (row,) = grid(MOONCAKE, blocks=(blocks,), policies=(policy,)).rows
    limit = () if blocks is None else ("--blocks", blocks)
    report = replayed(capsys, "replay", MOONCAKE, "--policy", policy, *limit)
    for name in ("requests", "queried_tokens", "hit_tokens", "hit_rate", "block_hit_rate"):
        assert getattr(row, name) == report[name]


def test_prompts_one_after_the_other_are_what_the_engine_did() -> None:
    """The recording's own counts: one client, 300 blocks of 32 of which one is the null block."""
    report = grid(recording("sequential"), blocks=(300,), hashing=HashOptions(block_size=32))
    assert (report.rows[0].hit_tokens, report.rows[0].queried_tokens) == (45_728, 101_894)
    assert report.exactness == "exact"
    assert grid(recording("concurrent-4"), hashing=HashOptions(block_size=32)).exactness == "estimated"


def test_files_are_one_trace_in_the_order_of_their_times(tmp_path: Path) -> None:
    lines = MOONCAKE.read_text().splitlines()
    parts = [tmp_path / f"{number}.jsonl" for number in range(3)]
    for number, part in enumerate(parts):
        part.write_text("\n".join(lines[number::3]))
    # ties within a timestamp are in the order of the files, so the finite cache may differ a little
    assert grid(*parts).rows == grid(MOONCAKE).rows


def test_replicas_share_nothing() -> None:
    one, two, many = grid(MOONCAKE, replicas=(1, 2, 1_000)).rows
    assert (one.routing, two.routing) == (None, "round_robin")
    assert one.hit_tokens > two.hit_tokens > many.hit_tokens == 0
    by_prefix = grid(MOONCAKE, replicas=(2,), routing="prefix").rows[0]
    assert one.hit_tokens >= by_prefix.hit_tokens > two.hit_tokens


def test_layouts_are_those_of_the_transforms(tmp_path: Path) -> None:
    """Two tools in either order: the prompts share nothing behind the first, and all when sorted."""
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {}}} for name in ("b_tool", "a_tool")
    ]
    message = [{"role": "user", "content": "a question of some length " * 30}]
    log = tmp_path / "log.jsonl"
    bodies = [{"messages": message, "tools": tools}, {"messages": message, "tools": tools[::-1]}]
    log.write_text("\n".join(map(json.dumps, bodies)))
    layouts = (parse_layout("as_sent"), parse_layout("sort_tools"), parse_layout('[{"kind": "sort_tools"}]'))
    sent, ordered, again = grid(log, layouts=layouts).rows
    assert (sent.layout, ordered.layout) == ("as_sent", "sort_tools")
    assert ordered == again
    assert sent.hit_tokens < ordered.hit_tokens > 100
    assert grid(log).exactness == "estimated"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policies": ("arc",)}, "no policy 'arc'"),
        ({"routing": "random"}, "no routing 'random'"),
        ({"replicas": (0,)}, "at least one replica"),
        ({"replicas": (2,), "routing": "prefix", "policies": ("lfu",)}, "for the policy lru alone"),
        ({"blocks": (100,)}, "the largest request needs 236 blocks"),
        ({"layouts": (parse_layout("sort_tools"),)}, "have no other prompt layout"),
    ],
)
def test_combinations_that_mean_nothing(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        grid(MOONCAKE, **options)


def test_tokens_have_the_layout_that_was_sent_alone() -> None:
    with pytest.raises(UsageError, match="have no other prompt layout"):
        grid(recording("sequential"), layouts=(parse_layout("sort_tools"),))


def test_files_that_share_no_cache() -> None:
    with pytest.raises(UsageError, match="they share no cache"):
        grid(MOONCAKE, DATA / "traces" / "weka-session.json")
    for text in ("sort", "[1]", "[{}]"):
        with pytest.raises(UsageError):
            parse_layout(text)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayEngine]:
    """Two worker processes on this machine."""
    import ray

    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=100 * 2**20,
    )
    yield RayEngine(ray)
    ray.shutdown()


class KillingEngine:
    """Ray, but the first worker that is given a task of each map is killed in the middle of it."""

    def __init__(self, engine: RayEngine, folder: Path) -> None:
        self._engine = engine
        self._folder = folder
        self.maps = 0

    def map(
        self, function: Callable[[Any, Any], Any], items: Sequence[Any], shared: Any = None
    ) -> Iterator[Any]:
        self.maps += 1
        mark = str(self._folder / f"killed-{self.maps}")

        def doomed(shared: Any, item: Any) -> Any:
            result = function(shared, item)
            try:
                os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return result
            os.kill(os.getpid(), signal.SIGKILL)
            return None

        return self._engine.map(doomed, items, shared)


def test_a_cluster_gives_the_same_though_its_workers_are_killed(cluster: RayEngine, tmp_path: Path) -> None:
    engine = KillingEngine(cluster, tmp_path)
    wanted = run_grid([MOONCAKE], CELLS, LocalEngine())
    assert run_grid([MOONCAKE], CELLS, engine) == wanted
    assert len(wanted.rows) == 12
    texts = GridOptions(
        blocks=(700,), layouts=((), parse_layout("normalize_whitespace")),
        hashing=HashOptions(block_size=32, tokenizer=str(TOKENIZER)),
    )  # fmt: skip
    with gzip.open(recording("real-prompts")) as lines:
        (tmp_path / "log.jsonl").write_bytes(b"".join(itertools.islice(lines, 40)))
    log = [tmp_path / "log.jsonl"]
    assert run_grid(log, texts, engine) == run_grid(log, texts, LocalEngine())
    assert engine.maps == 5
    assert len(list(tmp_path.glob("killed-*"))) == 5


def test_errors_of_workers_are_those_of_this_process(cluster: RayEngine) -> None:
    with pytest.raises(UsageError, match="the largest request needs 236 blocks"):
        run_grid([MOONCAKE], GridOptions(blocks=(100,)), cluster)


def test_the_command_on_a_cluster(cluster: RayEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert cluster.ray.is_initialized()
    arguments = ("grid", MOONCAKE, "--replicas", 1, "--replicas", 2, "--blocks", 2000, "--blocks", 0)
    assert replayed(capsys, *arguments, "--engine", "ray") == replayed(capsys, *arguments)


def test_an_address_without_its_engine() -> None:
    with pytest.raises(UsageError, match="add --engine ray"), engine_of("local", "ray://127.0.0.1:1"):
        pass
