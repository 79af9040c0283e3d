"""Lines of traces of block ids, many at a time."""

from collections.abc import Iterator, Sequence

from kvscope.analysis.formats import block_traces, weka
from kvscope.analysis.formats.columns import BlockColumns
from kvscope.analysis.formats.records import Place
from kvscope.analysis.formats.sources import BrokenStreamError

Line = tuple[int, bytes]
_BATCH_LINES, _BATCH_BYTES = 4_096, 1 << 20


def batches(lines: Iterator[Line]) -> Iterator[list[Line]]:
    """Yield the lines a batch at a time; raises as they do, once the lines before have come."""
    batch: list[Line] = []
    size = 0
    try:
        for line in lines:
            batch.append(line)
            size += len(line[1])
            if size >= _BATCH_BYTES or len(batch) >= _BATCH_LINES:
                yield batch
                batch, size = [], 0
    except BrokenStreamError:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def block_columns(
    batch: Sequence[Line], name: str, path: str, block_size: int | None
) -> list[BlockColumns] | None:
    """Return the requests of a batch of lines of the file ``name`` as columns.

    None where they are no block ids, or where one of them needs a closer look.
    """
    first = batch[0][1]
    if b'"hash_ids"' not in first:
        return None
    if b'"hash_id_scope"' not in first:
        columns = block_traces.columns([line for _, line in batch], name, block_size)
        return None if columns is None else [columns]
    found: list[BlockColumns] = []
    for number, line in batch:
        columns = weka.columns(line, Place(name=f"{name}:{number}", path=path, block_size=block_size))
        if columns is None:
            return None
        found.append(columns)
    return found
