"""Real texts for made logs: sentences, documents and tools of the given recordings, split in two halves.

One half serves to build with, the other for the figures that are written down.
"""

import dataclasses
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SENTENCE = re.compile(r"[A-Z][A-Za-z ,'-]{40,160}[.!]")
_FILES = 30


@dataclasses.dataclass(frozen=True, slots=True)
class Texts:
    """What logs are made of; no sentence holds a digit, a colon or markup."""

    sentences: tuple[str, ...]
    documents: tuple[str, ...]  # paragraphs of issue texts
    questions: tuple[str, ...]
    tools: tuple[dict[str, Any], ...]
    held_out: bool  # of the half that is not for building


@functools.cache
def texts(folder: Path, *, held_out: bool) -> Texts:
    """Return one half of the texts under ``folder``; raises ``FileNotFoundError`` where it is not there."""
    agents = folder / "lmcache_agent_trace"
    issues = [_longest(file) for file in _some(agents / "miniswe", held_out=held_out)]
    talks = [_longest(file) for file in _some(agents / "taubench", held_out=held_out)]
    if not issues or not talks:
        raise FileNotFoundError(folder)
    sentences = sorted({found for text in (*issues, *talks) for found in _SENTENCE.findall(text)})
    questions = sorted({line.strip() for text in talks for line in text.split("\n") if _is_question(line)})
    documents = [text.split("<instructions>")[0][:1500].strip() for text in issues]
    paragraphs = sorted({part.strip() for text in documents for part in re.split(r"\n\s*\n", text)})
    return Texts(
        sentences=tuple(sentences),
        documents=tuple(_plain(part) for part in paragraphs if 120 < len(part) < 900),
        questions=tuple(questions),
        tools=tuple(_tools(folder / "bfcl" / "multi_turn_func_doc", held_out=held_out)),
        held_out=held_out,
    )


def _some(folder: Path, *, held_out: bool) -> list[Path]:
    return sorted(folder.glob("*.jsonl"))[int(held_out) :: 2][:_FILES]


def _longest(file: Path) -> str:
    """Return the text of a session's longest request."""
    with file.open() as lines:
        return max((json.loads(line)["input"] for line in lines), key=len, default="")


def _is_question(line: str) -> bool:
    return 25 < len(line) < 200 and "<" not in line and ":" not in line and not any(map(str.isdigit, line))


def _plain(text: str) -> str:
    """Return a paragraph as one line without markup, so that it is no list of its own."""
    return " ".join(re.sub(r"[<>{}\[\]]", "", text).split())


def _tools(folder: Path, *, held_out: bool) -> Iterator[dict[str, Any]]:
    for file in sorted(folder.glob("*.json"))[int(held_out) :: 2]:
        for line in file.read_text().splitlines():
            schema = json.loads(line)
            yield {
                "type": "function",
                "function": {key: schema[key] for key in ("name", "description", "parameters")},
            }
