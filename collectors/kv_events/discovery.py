"""Asks engines where they publish their cache events: ``GET /kv_event_sources``, since vLLM 0.31.

The answer maps each data-parallel rank to its publisher's settings, ports already counted up by rank and
free ports resolved (vLLM 0.32, read and executed).
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from collectors.kv_events.source import Place
from kvscope.errors import UnreachableError

_LARGEST_ANSWER_BYTES = 1024 * 1024
_MOST_RANKS = 1_024
_RANK = re.compile(r"[0-9]{1,6}")
_BOUND = re.compile(r"tcp://(?P<host>\*|[\w.:%\[\]-]+):(?P<port>[0-9]{1,5})", re.ASCII)
_OK, _NOT_FOUND = 200, 404
_ANY_HOSTS = ("*", "0.0.0.0", "[::]", "::")  # noqa: S104 - read in an answer, not bound


async def ask(session: aiohttp.ClientSession, engine: str) -> list[Place] | None:
    """Return where ``engine`` publishes, or None where it does not know the question.

    Raises ``UnreachableError`` when it gives no usable answer.
    """
    url = f"{engine}/kv_event_sources"
    try:
        async with session.get(url) as response:
            if response.status == _NOT_FOUND:
                return None
            if response.status != _OK:
                raise UnreachableError(f"{url} answered {response.status}")
            body = bytearray()
            async for chunk in response.content.iter_chunked(65_536):
                body += chunk
                if len(body) > _LARGEST_ANSWER_BYTES:
                    raise UnreachableError(f"{url} answers with more than {_LARGEST_ANSWER_BYTES} bytes")
        return places(json.loads(body), engine)
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError, RecursionError) as error:
        raise UnreachableError(f"{url} gives no answer ({type(error).__name__})") from error


def places(document: Any, engine: str) -> list[Place]:
    """Return the publishers in an answer that can be heard from another process, by rank."""
    host = _written(urlsplit(engine).hostname or "127.0.0.1")
    found = dict(_publishers(document, engine, host)) if isinstance(document, Mapping) else {}
    return [found[rank] for rank in sorted(found)][:_MOST_RANKS]


def _publishers(document: Mapping[Any, Any], engine: str, host: str) -> Iterator[tuple[int, Place]]:
    for rank, told in document.items():
        if not (isinstance(rank, str) and _RANK.fullmatch(rank) and isinstance(told, Mapping)):
            continue
        endpoint = reachable(told.get("endpoint"), host)
        if told.get("enable_kv_cache_events") is not True or told.get("publisher") != "zmq" or not endpoint:
            continue
        yield (
            int(rank),
            Place(
                engine=engine,
                replica=str(int(rank)),
                endpoint=endpoint,
                replay_endpoint=reachable(told.get("replay_endpoint"), host),
            ),
        )


def reachable(address: Any, host: str) -> str | None:
    """Return an address to connect to for one that an engine binds, or None where there is none."""
    if not isinstance(address, str):
        return None
    if address.startswith("ipc://"):
        return address
    match = _BOUND.fullmatch(address)
    if match is None:
        return None
    return f"tcp://{host if match['host'] in _ANY_HOSTS else match['host']}:{match['port']}"


def _written(host: str) -> str:
    return f"[{host}]" if ":" in host else host
