"""Reads the file of an offline batch: request bodies, or the rows of a table."""

import csv
import dataclasses
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from kvscope.analysis.formats.bodies import api_of, body_of
from kvscope.analysis.formats.sources import BrokenStreamError, opened
from kvscope.errors import UsageError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    """A request of the batch: its line as it stands in the file, and its body."""

    line_number: int
    line: bytes
    api: str
    body: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """A row of a table: the number of its line, and each field's value as JSON text."""

    line_number: int
    values: Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Either requests or rows, and the lines that were left out as (line number, reason)."""

    requests: tuple[BatchRequest, ...] = ()
    rows: tuple[BatchRow, ...] = ()
    skipped: tuple[tuple[int, str], ...] = ()


def read_batch(path: Path) -> Batch:
    """Return the batch in ``path``; ``-`` is standard input.

    JSON lines of request bodies (plain, wrapped, or as in OpenAI's batch files), JSON lines of flat objects,
    or CSV with a header. Raises ``UsageError`` for a file that cannot be read, holds neither, or holds both.
    """
    lines: list[tuple[int, bytes]] = []
    skipped: list[tuple[int, str]] = []
    with opened(path) as found:
        try:
            lines.extend((number, line.rstrip(b"\r\n")) for number, line in found)
        except BrokenStreamError as error:
            skipped.append((len(lines) + 1, str(error)))
    first = next((line for _, line in lines if line.strip()), None)
    if first is None:
        raise UsageError(f"{path} is empty: a batch is JSON lines of request bodies or rows, or CSV")
    if not first.lstrip().startswith(b"{"):
        return Batch(rows=tuple(_csv_rows(path, lines, skipped)), skipped=tuple(skipped))
    return _json_lines(path, lines, skipped)


def _json_lines(path: Path, lines: list[tuple[int, bytes]], skipped: list[tuple[int, str]]) -> Batch:
    requests: list[BatchRequest] = []
    rows: list[BatchRow] = []
    for number, line in lines:
        if not line.strip():
            continue
        try:
            value = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            skipped.append((number, f"not JSON: {error}"))
            continue
        if not isinstance(value, dict) or not value:
            skipped.append((number, "no JSON object with fields"))
            continue
        body = body_of(value)
        if api := api_of(body):
            requests.append(BatchRequest(line_number=number, line=line, api=api, body=body))
        else:
            values = {str(name): msgspec.json.encode(each).decode() for name, each in value.items()}
            rows.append(BatchRow(line_number=number, values=values))
    if requests and rows:
        raise UsageError(
            f"{path}: line {requests[0].line_number} is a request body, line {rows[0].line_number} a row of "
            "a table: plan them as two files"
        )
    if not requests and not rows:
        reason = f"; line {skipped[0][0]}: {skipped[0][1]}" if skipped else ""
        raise UsageError(f"{path} holds neither request bodies nor rows{reason}")
    return Batch(requests=tuple(requests), rows=tuple(_same_fields(rows, skipped)), skipped=tuple(skipped))


def _same_fields(rows: list[BatchRow], skipped: list[tuple[int, str]]) -> Iterator[BatchRow]:
    """Yield the rows that have the first one's fields; the others are no rows of one table."""
    for row in rows:
        if row.values.keys() == rows[0].values.keys():
            yield row
        else:
            skipped.append((row.line_number, "its fields are not those of the first row"))


def _csv_rows(
    path: Path, lines: list[tuple[int, bytes]], skipped: list[tuple[int, str]]
) -> Iterator[BatchRow]:
    try:
        text = b"\n".join(line for _, line in lines).decode("utf-8-sig")
    except ValueError as error:
        raise UsageError(f"{path} is neither JSON lines nor CSV in UTF-8") from error
    reader = csv.reader(io.StringIO(text), strict=True)
    try:
        header = next(reader)
        if len(header) < 2 or len(set(header)) < len(header):  # noqa: PLR2004 - one column is plain text
            raise UsageError(
                f"{path} is neither JSON lines nor CSV with a header of two or more different names"
            )
        for cells in reader:
            if len(cells) == len(header):
                values = {
                    name: msgspec.json.encode(cell).decode() for name, cell in zip(header, cells, strict=True)
                }
                yield BatchRow(line_number=reader.line_num, values=values)
            elif cells:
                skipped.append((reader.line_num, f"{len(cells)} cells, the header has {len(header)}"))
    except csv.Error as error:
        raise UsageError(f"{path}: line {reader.line_num} is not CSV: {error}") from error
