"""What a line of a log or trace says about one request, whatever its format."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BlockIds:
    """The prompt as ids of its blocks, the last partial one perhaps included.

    Equal ids mean equal blocks within one ``scope``; "" is the scope that all files share.
    """

    ids: Sequence[int]
    block_size: int
    scope: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BlockHashes:
    """The prompt as salted hashes of the full blocks that it and its known answer fill, without its text.

    A hash, below 2**63, names a block with all before it. ``answer_hashed`` says that the blocks of
    generated tokens are among ``hashes``; without them their tokens are known by number only.
    """

    hashes: Sequence[int]
    block_size: int
    answer_hashed: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TokenIds:
    """The prompt as the engine's own tokens."""

    ids: Sequence[int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """The prompt as an OpenAI request body; ``api`` is ``chat`` or ``completion``."""

    api: str
    body: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest:
    """One request of a file.

    ``origin`` is its file and line. ``at`` is in seconds of the file's own clock, None where the file tells
    no time. ``prompt_tokens`` and ``cached_tokens`` are what the engine counted. ``output`` is what was
    generated: token ids, or only their number, or None where nothing is said. ``whole`` is false where the
    file holds a part of the prompt only, so that the engine's counts are those of more than is known.
    ``text`` is the body beside the engine's tokens, where the file has both.
    """

    request_id: str
    origin: str
    at: float | None
    prompt: BlockIds | BlockHashes | TokenIds | Body
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output: Sequence[int] | int | None = None
    finished_at: float | None = None
    session: str | None = None
    tenant: str | None = None
    route: str | None = None
    model: str | None = None
    salt: str | None = None
    lookup: bool = True
    whole: bool = True
    text: Body | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BadLine:
    """A line that was left out and why; ``origin`` is its file's name and its number."""

    origin: str
    reason: str

    @property
    def file(self) -> str:
        """The file's name."""
        return self.origin.rpartition(":")[0]

    @property
    def line(self) -> int:
        """The line's number, from 1 on."""
        return int(self.origin.rpartition(":")[2].partition("/")[0])  # "/": a place in a list on the line


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a line stands: ``name`` is its file's name and its number, ``path`` the file's path.

    ``block_size`` is what the user says of traces of block ids; None for the format's usual one.
    """

    name: str
    path: str
    block_size: int | None = None


class LineError(Exception):
    """Raised by a format for a line that it cannot use; the text is the reason."""
