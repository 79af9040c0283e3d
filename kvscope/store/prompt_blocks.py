"""Salted block hashes of prompts: stored only where someone asked for it, for replays from the store."""

from collections.abc import Iterator, Sequence

import numpy as np
from sqlalchemy import select

from kvscope.model.prompt_blocks import PromptBlocks
from kvscope.store import clean, schema
from kvscope.store.bulk import Statements
from kvscope.store.engines import Engines

_B = schema.prompt_blocks.c
_R = schema.requests.c
_COLUMNS = tuple(column.name for column in schema.prompt_blocks.columns)
_PAGE = 1_000
_HASH = np.dtype("<i8")


class PromptBlockStore:
    """Keeps block hashes of requests; its methods raise ``UnreachableError`` when the database is away."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._statements = Statements(engines.writer.dialect)

    def write(self, prompts: Sequence[PromptBlocks]) -> None:
        """Write and commit; what is known of a request is replaced."""
        if not prompts:
            return
        rows = [_row(each) for each in prompts]
        with self._engines.writing() as connection:
            connection.execute(self._statements.upsert(schema.prompt_blocks), rows)

    def read(self, *, since_at: float | None = None) -> Iterator[PromptBlocks]:
        """Yield all prompts in the order in which they were imported, as of one moment of the store.

        ``since_at`` leaves out requests that arrived before, and those whose arrival no source told.
        """
        query = select(schema.prompt_blocks).order_by(_B.position, _B.request_id)
        if since_at is not None:
            query = query.join(schema.requests, _R.request_id == _B.request_id).where(
                _R.arrived_at >= since_at
            )
        with self._engines.reading() as connection:
            for row in connection.execution_options(yield_per=_PAGE).execute(query).mappings():
                values = {name: row[name] for name in _COLUMNS}
                hashes = np.frombuffer(values.pop("hashes"), dtype=_HASH)
                yield PromptBlocks(hashes=hashes.tolist(), **values)


def _row(prompt: PromptBlocks) -> dict[str, object]:
    row: dict[str, object] = {name: getattr(prompt, name) for name in _COLUMNS}
    row["request_id"] = clean.key(prompt.request_id)
    row["hashes"] = np.asarray(prompt.hashes, dtype=_HASH).tobytes()
    return row
