"""Logs larger than memory are read as a stream: what is held does not grow with the file."""

import gzip
import json
import random
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from kvscope.analysis.formats.detect import read
from kvscope.analysis.offline.importing import imported

_LINES = 800
_MOST_BYTES = 6_000_000  # the file unpacked holds 18 million


def plain(path: Path) -> Any:
    return path.open("wb")


def packed(path: Path) -> Any:
    return gzip.open(path, "wb", compresslevel=1)


def frames(path: Path) -> Any:
    return zstandard.open(path, "wb")


def lines() -> Iterator[bytes]:
    words = random.Random(7)
    for number in range(_LINES):
        body = {"model": "m", "messages": [{"role": "user", "content": words.randbytes(10_000).hex(" ", 4)}]}
        yield json.dumps({"request": body, "sent_at": 1_764_417_600 + number, "route": "r"}).encode() + b"\n"


@pytest.mark.parametrize("opened", [plain, packed, frames])
def test_what_is_held_is_a_small_part_of_the_file(tmp_path: Path, opened: Callable[[Path], Any]) -> None:
    log = tmp_path / "log"
    with opened(log) as out:
        for line in lines():
            out.write(line)
    assert sum(map(len, lines())) > 3 * _MOST_BYTES
    read_bytes: list[int] = []
    tracemalloc.start()
    try:
        count = sum(1 for _ in imported(read([log], watch=read_bytes.append)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == _LINES
    assert peak < _MOST_BYTES
    assert sum(read_bytes) == log.stat().st_size
