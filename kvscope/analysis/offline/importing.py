"""Logged requests as parts of request records and, where wanted, as salted block hashes: no text."""

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from kvscope.analysis.formats.records import (
    BadLine,
    BlockHashes,
    BlockIds,
    Body,
    LoggedRequest,
    TokenIds,
)
from kvscope.analysis.offline.hashing import Hasher
from kvscope.errors import UsageError
from kvscope.model.prompt_blocks import PromptBlocks
from kvscope.model.request import MissCause, RequestPart, Source
from kvscope.prompts.routes import RouteMiner

_WALL_CLOCK = 1e9  # Unix seconds of September 2001: a smaller time counts from a trace's own beginning


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """One request for the store; ``blocks`` where hashes were asked for and could be made."""

    part: RequestPart
    blocks: PromptBlocks | None = None


def imported(
    found: Iterable[LoggedRequest | BadLine], *, hasher: Hasher | None = None, begins_at: float | None = None
) -> Iterator[Imported | BadLine]:
    """Yield what the store takes, the same for the same input, so that a second import changes nothing.

    ``begins_at`` is the Unix time at which a trace with a clock of its own began; without it such a request
    has no time of arrival. A prompt that cannot be hashed is told as ``BadLine`` besides its record.
    """
    routes = RouteMiner()
    for position, each in enumerate(found):
        if isinstance(each, BadLine):
            yield each
            continue
        request_id, piece = _names(each)
        blocks = None
        if hasher is not None:
            try:
                blocks = _blocks(hasher.hashed(each), request_id, position)
            except UsageError as error:
                yield BadLine(origin=each.origin, reason=str(error))
        yield Imported(
            part=RequestPart(
                request_id=request_id,
                source=Source.LOG,
                values=_values(each, blocks, begins_at) | {"route": _route(each, routes)},
                piece=piece,
            ),
            blocks=blocks,
        )


def logged(stored: Iterable[PromptBlocks]) -> Iterator[LoggedRequest]:
    """Yield stored requests as a replay takes them."""
    for each in stored:
        prompt: BlockIds | BlockHashes
        if each.plain:
            prompt = BlockIds(ids=each.hashes, block_size=each.block_size)
        else:
            prompt = BlockHashes(
                hashes=each.hashes, block_size=each.block_size, answer_hashed=each.answer_hashed
            )
        yield LoggedRequest(
            request_id=each.request_id,
            origin="store:0",
            at=each.at,
            finished_at=each.finished_at,
            prompt=prompt,
            prompt_tokens=each.prompt_tokens,
            cached_tokens=each.cached_tokens,
            output=each.output_tokens,
            lookup=each.lookup,
        )


def _names(request: LoggedRequest) -> tuple[str, str]:
    """Return the record's id, and what tells its piece from others of that id.

    An id that the log gives is kept, so that records of other sources meet it; of one that gives none, place
    and content are the id, so that files of one name stay apart.
    """
    digest = hashlib.blake2b(digest_size=8)
    digest.update(msgspec.msgpack.encode([request.at, request.salt, _content(request)]))
    if request.request_id == request.origin:
        return f"{request.request_id}#{digest.hexdigest()}", ""
    return request.request_id, digest.hexdigest()


def _content(request: LoggedRequest) -> Any:
    match request.prompt:
        case Body(api=api, body=body):
            return [api, body]
        case TokenIds(ids=ids) | BlockIds(ids=ids) | BlockHashes(hashes=ids):
            return list(ids)


def _values(request: LoggedRequest, blocks: PromptBlocks | None, begins_at: float | None) -> dict[str, Any]:
    output = request.output
    prompt = request.prompt
    tokens = request.prompt_tokens
    if tokens is None and blocks is not None:
        tokens = blocks.prompt_tokens
    if tokens is None and isinstance(prompt, TokenIds):
        tokens = len(prompt.ids)
    ended, at = request.finished_at, request.at
    cached = request.cached_tokens
    missed = None if tokens is None or cached is None else max(tokens - cached, 0)
    return {
        "session": request.session,
        "tenant": request.tenant,
        "model": request.model,
        "arrived_at": _wall_clock(at, begins_at),
        "prompt_tokens": tokens,
        "cached_tokens": cached,
        "causes": {MissCause.UNKNOWN.value: missed} if missed else None,
        "output_tokens": output if isinstance(output, int | None) else len(output),
        "e2e_seconds": None if ended is None or at is None or ended < at else ended - at,
    }


def _route(request: LoggedRequest, routes: RouteMiner) -> str | None:
    """Return the route that the log names, else the one that the gateway would."""
    if isinstance(request.prompt, Body):
        return routes.route(request.prompt.api, request.prompt.body, request.route)
    return request.route


def _wall_clock(at: float | None, begins_at: float | None) -> float | None:
    if at is None or at >= _WALL_CLOCK:
        return at
    return None if begins_at is None else begins_at + at


def _blocks(request: LoggedRequest, request_id: str, position: int) -> PromptBlocks:
    prompt = request.prompt
    plain = isinstance(prompt, BlockIds)
    if isinstance(prompt, BlockIds):
        hashes, tokens = prompt.ids, len(prompt.ids) * prompt.block_size
    elif isinstance(prompt, BlockHashes):
        hashes, tokens = prompt.hashes, 0
    else:
        raise UsageError("a prompt that is not hashed")
    return PromptBlocks(
        request_id=request_id,
        position=position,
        block_size=prompt.block_size,
        hashes=hashes,
        plain=plain,
        prompt_tokens=tokens if request.prompt_tokens is None else request.prompt_tokens,
        output_tokens=request.output if isinstance(request.output, int | None) else len(request.output),
        answer_hashed=isinstance(prompt, BlockHashes) and prompt.answer_hashed,
        cached_tokens=request.cached_tokens if request.whole else None,
        lookup=request.lookup,
        at=request.at,
        finished_at=request.finished_at,
    )
