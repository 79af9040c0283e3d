"""Lines of traces of block ids, many at a time."""

import itertools
from collections.abc import Iterator, Sequence

from kvscope.analysis.formats import block_traces, weka
from kvscope.analysis.formats.columns import BlockColumns
from kvscope.analysis.formats.records import Place
from kvscope.analysis.formats.sources import BrokenStreamError

Line = tuple[int, bytes]
_BATCH_BYTES, _STEP_BYTES = 1 << 19, 1 << 17


def batches(lines: Iterator[Line]) -> Iterator[list[Line]]:
    """Yield the lines a batch at a time; raises as they do, once the lines before have come."""
    batch: list[Line] = []
    size, step = 0, 1
    try:
        while True:
            known = len(batch)
            batch.extend(itertools.islice(lines, step))  # what came before an error stays
            size += sum(len(line) for _, line in batch[known:])
            if len(batch) < known + step:
                break
            step = max(_STEP_BYTES * len(batch) // max(size, 1), 1)  # lines of the usual size
            if size >= _BATCH_BYTES:
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
