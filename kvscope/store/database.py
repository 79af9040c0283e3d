"""The door to the store: one call opens it, with its schema checked."""

import dataclasses

from kvscope.store import migrate
from kvscope.store.advice import AdviceStore
from kvscope.store.engines import Engines, connect
from kvscope.store.experiments import ExperimentStore
from kvscope.store.partitions import Partitions
from kvscope.store.prompt_blocks import PromptBlockStore
from kvscope.store.reader import Reader
from kvscope.store.retention import Retention
from kvscope.store.rollups import Rollups
from kvscope.store.urls import locate
from kvscope.store.writer import SqlBatchStore


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """An open store, by what it is used for; ``url`` is for messages and holds no password."""

    url: str
    batches: SqlBatchStore
    reader: Reader
    advice: AdviceStore
    experiments: ExperimentStore
    retention: Retention
    rollups: Rollups
    partitions: Partitions
    prompt_blocks: PromptBlockStore
    engines: Engines

    def close(self) -> None:
        """Close all connections."""
        self.engines.close()


def open_store(url: str, *, upgrade: bool = False) -> Store:
    """Open the store at ``url``; with ``upgrade``, make it or bring its schema up to date first.

    Raises ``UsageError`` when no store can be there, ``UnreachableError`` when it cannot be opened, and
    ``SchemaError`` when its schema is older or newer than ours.
    """
    location = locate(url)
    if upgrade:
        migrate.upgrade(url)
    else:
        migrate.require(url)
    engines = connect(location)
    return Store(
        url=location.shown,
        batches=SqlBatchStore(engines),
        reader=Reader(engines),
        advice=AdviceStore(engines),
        experiments=ExperimentStore(engines),
        retention=Retention(engines),
        rollups=Rollups(engines),
        partitions=Partitions(engines),
        prompt_blocks=PromptBlockStore(engines),
        engines=engines,
    )
