"""A store, a writer and an analyser as the agent wires them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from kvscope.analysis.live import Analyser, AnalyserSettings
from kvscope.model.cache_config import CacheConfig
from kvscope.pipeline.writer import Writer, WriterSettings
from kvscope.prompts.tokenizing import PromptTokenizer, load_tokenizer
from kvscope.store.database import Store, open_store

DATA = Path(__file__).parents[2] / "data"
ENGINE = "http://127.0.0.1:1"


class Rig:
    """The live analyser over a real writer and store, with a clock that the test turns."""

    def __init__(self, store: Store, tokenizer: PromptTokenizer, **settings: Any) -> None:
        self.store = store
        self.now = 1_800_000_000.0
        self.registry = CollectorRegistry()
        self.configs: dict[str, CacheConfig] = {}
        self.writer = Writer(store.batches, WriterSettings(), self.registry)
        self.analyser = Analyser(
            tokenizer=tokenizer,
            sink=self.writer,
            cache_configs=self.configs.get,
            clock=lambda: self.now,
            registry=self.registry,
            settings=AnalyserSettings(**settings),
        )
        self.writer.subscribe(self.analyser.on_committed)

    def configure(self, *, block_size: int = 32, prefix_caching: bool = True) -> None:
        self.configs[ENGINE] = CacheConfig(
            engine=ENGINE,
            replica="0",
            block_size=block_size,
            num_blocks=300,
            prefix_caching=prefix_caching,
        )

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    def start(self) -> None:
        self.writer.start()
        self.analyser.start()

    def stop(self) -> None:
        self.analyser.stop()
        self.writer.stop()


@pytest.fixture(scope="session")
def recorded_tokenizer() -> PromptTokenizer:
    return load_tokenizer(DATA / "tokenizer")


@pytest.fixture
def make_rig(tmp_path: Path, recorded_tokenizer: PromptTokenizer) -> Iterator[Callable[..., Rig]]:
    rigs: list[Rig] = []
    store = open_store(f"sqlite:///{tmp_path / 'kvscope.db'}", upgrade=True)

    def make(tokenizer: PromptTokenizer = recorded_tokenizer, **settings: Any) -> Rig:
        rig = Rig(store, tokenizer, **settings)
        rigs.append(rig)
        return rig

    yield make
    for rig in rigs:
        rig.stop()
    store.close()
