"""Asks a running agent's admin port, for commands and the dashboard."""

import dataclasses
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from kvscope.errors import UnreachableError, UsageError

DEFAULT_AGENT = "http://127.0.0.1:8801"
_QUICK_SECONDS = 2.0  # what is kept ready: an agent that is there answers at once


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LastLook:
    """What the agent's advisor last said: ``unchanged`` tells by route why nothing is suggested for it.

    ``looked_at`` is None before its first look at traffic; ``none_because`` is None where it suggested
    something.
    """

    looked_at: float | None
    none_because: str | None
    unchanged: Mapping[str, str]


def ask(agent: str, page: str, *, timeout_seconds: float) -> dict[str, Any]:
    """Return the JSON object under ``page``; raises ``UsageError`` (no URL) or ``UnreachableError``."""
    if not agent.startswith(("http://", "https://")):
        raise UsageError(f"--agent {agent!r}: give a URL such as {DEFAULT_AGENT}")
    url = f"{agent.rstrip('/')}/{page}"
    try:
        with urllib.request.urlopen(url, timeout=timeout_seconds) as answer:  # noqa: S310 - scheme checked above
            found: dict[str, Any] = dict(json.loads(answer.read()))
            return found
    except urllib.error.HTTPError as error:
        raise UnreachableError(f"{url} answered {error.code}: is this the admin port of an agent?") from error
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise UnreachableError(f"no agent answers at {agent}: {reason}") from error
    except (ValueError, TypeError) as error:
        raise stranger(agent) from error


def last_look(agent: str) -> LastLook:
    """Return what the agent's advisor last said; raises as ``ask`` does."""
    found = ask(agent, "advice", timeout_seconds=_QUICK_SECONDS)
    try:
        unchanged = {str(route): str(reason) for route, reason in found["unchanged"].items()}
        looked_at, because = found["looked_at"], found["none_because"]
    except (KeyError, AttributeError) as error:
        raise stranger(agent) from error
    return LastLook(looked_at=looked_at, none_because=because, unchanged=unchanged)


def stranger(agent: str) -> UnreachableError:
    """Return the error for an answer that no agent gives."""
    return UnreachableError(f"what answers at {agent} is not a kvscope agent's admin port")
