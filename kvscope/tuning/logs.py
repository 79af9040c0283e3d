"""Request logs of any known format as prompts with their text, for advice, entropies and layouts."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from kvscope.analysis.formats.detect import KNOWN, read
from kvscope.analysis.formats.records import BadLine, BlockHashes, BlockIds, Body, LoggedRequest
from kvscope.analysis.formats.sources import Watch
from kvscope.errors import UsageError
from kvscope.model.prompt import Prompt
from kvscope.prompts.routes import RouteMiner

NO_TEXT = "hashes of blocks without text: `kvscope replay` tells of capacity and routing"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Requests in the order of the files, and the lines that were left out."""

    requests: tuple[LoggedRequest, ...]
    skipped: tuple[BadLine, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReadResult:
    """Prompts in order of arrival, and the lines that were left out."""

    prompts: tuple[Prompt, ...]
    skipped: tuple[BadLine, ...]


def read_log(paths: Sequence[Path], *, block_size: int | None = None, watch: Watch | None = None) -> Log:
    """Return what all files hold; ``watch`` hears of the bytes read.

    ``block_size`` is that of traces of block ids where it is not their format's usual one.

    Raises ``UsageError`` for a file that cannot be read, and where no file holds a request.
    """
    requests: list[LoggedRequest] = []
    skipped: list[BadLine] = []
    for each in read(paths, block_size=block_size, watch=watch):
        if isinstance(each, BadLine):
            skipped.append(each)
        else:
            requests.append(each)
    if not requests:
        first = "".join(f"; {each.origin}: {each.reason}" for each in skipped[:1])
        raise UsageError(f"no request in {', '.join(map(str, paths))}{first}. Known formats: {KNOWN}")
    return Log(requests=tuple(requests), skipped=tuple(skipped))


def read_prompts(paths: Sequence[Path], *, watch: Watch | None = None) -> ReadResult:
    """Return the prompts of all files; raises as ``read_log``, and where none of the requests has a text."""
    log = read_log(paths, watch=watch)
    prompts = prompts_of(log.requests)
    without = tuple(BadLine(origin=each.origin, reason=NO_TEXT) for each in log.requests if hashed(each))
    if not prompts:
        raise UsageError(f"no text in {', '.join(map(str, paths))}: it has {NO_TEXT}")
    return ReadResult(prompts=prompts, skipped=log.skipped + without)


def hashed(request: LoggedRequest) -> bool:
    """Whether a request is known by hashes alone, not by its text or tokens."""
    return isinstance(request.prompt, BlockIds | BlockHashes)


def prompts_of(requests: Sequence[LoggedRequest]) -> tuple[Prompt, ...]:
    """Return the requests with text or tokens as prompts, in order of arrival.

    One that tells no time has that of the one before it, or 0: it keeps its place. Different models never
    share a cache, so the model's name stands for the engine.
    """
    miner = RouteMiner()
    prompts: list[Prompt] = []
    at = 0.0
    for each in requests:
        at = at if each.at is None else each.at
        body = _body(each)
        if body is not None:
            prompts.append(
                Prompt(
                    request_id=each.request_id,
                    api=body.api,
                    route=miner.route(body.api, body.body, each.route),
                    arrived_at=at,
                    body=body.body,
                    sent_body=body.body,
                    engine=each.model or "",
                    session=each.session,
                    tenant=each.tenant,
                )
            )
    return tuple(sorted(prompts, key=lambda prompt: prompt.arrived_at))


def _body(request: LoggedRequest) -> Body | None:
    if request.text is not None:
        return request.text
    return request.prompt if isinstance(request.prompt, Body) else None
