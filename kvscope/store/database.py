"""The door to the store: one call opens it, with its schema checked."""

import dataclasses
import logging
from collections.abc import Sequence

from kvscope.errors import SchemaError, UnreachableError
from kvscope.pipeline.contracts import Batch, BatchStore
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
from kvscope.store.writer import OnConflict, SqlBatchStore

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """An open store, by what it is used for; ``url`` is for messages and holds no password."""

    url: str
    batches: BatchStore
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


class _Unchecked:
    """Batches for a store that was away when it was opened: its schema is checked before the first write."""

    def __init__(self, url: str, batches: BatchStore) -> None:
        self._url = url
        self._batches = batches
        self._checked = False

    def write(self, batches: Sequence[Batch]) -> int:
        """Do as ``SqlBatchStore.write``; raises ``SchemaError`` besides."""
        if not self._checked:
            migrate.require(self._url)
            self._checked = True
        return self._batches.write(batches)


def open_store(
    url: str, *, upgrade: bool = False, may_be_away: bool = False, on_conflict: OnConflict | None = None
) -> Store:
    """Open the store at ``url``; with ``upgrade``, make it or bring its schema up to date first.

    Raises ``UsageError`` when no store can be there, ``UnreachableError`` when it cannot be opened, and
    ``SchemaError`` when its schema is older or newer than ours. One that ``may_be_away`` is opened all the
    same when it cannot be reached, and whoever uses it gets the ``UnreachableError``. ``on_conflict`` hears
    of each conflict between sources that is written.
    """
    location = locate(url)
    engines = connect(location)
    batches: BatchStore = SqlBatchStore(engines, on_conflict)
    try:
        if upgrade:
            migrate.upgrade(url)
        else:
            migrate.require(url)
    except SchemaError:
        raise
    except UnreachableError as error:
        if not may_be_away:
            raise
        _LOG.warning("%s; what is recorded waits for it", error)
        batches = _Unchecked(url, batches)
    return Store(
        url=location.shown,
        batches=batches,
        reader=Reader(engines),
        advice=AdviceStore(engines),
        experiments=ExperimentStore(engines),
        retention=Retention(engines),
        rollups=Rollups(engines),
        partitions=Partitions(engines),
        prompt_blocks=PromptBlockStore(engines),
        engines=engines,
    )
