"""OpenAI-style and Anthropic request bodies, plain or wrapped with times, usage and the engine's tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.analysis.formats.anthropic import as_openai, is_anthropic
from kvscope.analysis.formats.fields import Usage, first_text, unix_seconds, usage_of
from kvscope.analysis.formats.records import Body, LineError, LoggedRequest, Place, TokenIds

_BODY_KEYS = ("body", "request")
TIME_KEYS = ("sent_at", "arrived_at", "timestamp", "time", "t_start", "created_at", "ts")
_END_KEYS = ("done_at", "finished_at", "t_end")
ID_KEYS = ("request_id", "x_request_id", "id")
SESSION_KEYS = ("session", "session_id")
TENANT_KEYS = ("tenant", "tenant_id")
ROUTE_KEYS = ("route",)


def body_of(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the body that a line wraps, or the line itself."""
    return next((value[key] for key in _BODY_KEYS if isinstance(value.get(key), dict)), value)


def api_of(body: Mapping[str, Any]) -> str | None:
    """Return ``chat`` or ``completion``, None for what is no request body."""
    messages, prompt = body.get("messages"), body.get("prompt")
    if isinstance(messages, list) and messages and all(isinstance(each, dict) for each in messages):
        return "chat"
    return "completion" if isinstance(prompt, str | list) and prompt else None


def is_body(value: Mapping[str, Any]) -> bool:
    """Whether the line is, or wraps, a request body."""
    return api_of(body_of(value)) is not None


def body(value: Mapping[str, Any], place: Place) -> LoggedRequest:
    """Read a body and what stands beside it; raises ``LineError``.

    ``prompt_token_ids`` and ``output_token_ids`` are the engine's own tokens, as in kvscope's recordings.
    """
    inner = body_of(value)
    api = api_of(inner)
    if api is None:
        raise LineError("no request body: neither `messages` (a list of objects) nor `prompt`")
    usage = _usage(value)
    tokens = _tokens(value, "prompt_token_ids")
    output = _tokens(value, "output_token_ids")
    salt = inner.get("cache_salt")
    at, finished_at = _times(value)
    text = Body(api=api, body=as_openai(inner) if is_anthropic(inner) else inner)
    return LoggedRequest(
        request_id=first_text(value, ID_KEYS) or place.name,
        origin=place.name,
        at=at,
        finished_at=finished_at,
        prompt=text if tokens is None else TokenIds(ids=tokens),
        text=None if tokens is None else text,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        output=usage.output_tokens if output is None else output,
        session=first_text(value, SESSION_KEYS),
        tenant=first_text(value, TENANT_KEYS),
        route=first_text(value, ROUTE_KEYS),
        model=first_text(inner, ("model",)),
        salt=salt if isinstance(salt, str) else None,
        # vLLM looks nothing up when it is asked for the prompt's log-probabilities (0.32, read)
        lookup=inner.get("prompt_logprobs") is None,
    )


def _usage(value: Mapping[str, Any]) -> Usage:
    """Return the engine's counts, which stand in the line, in its response or beside the body."""
    response = value.get("response")
    for holder in (value, response):
        usage = holder.get("usage") if isinstance(holder, dict) else None
        if isinstance(usage, dict):
            return usage_of(usage)
    return usage_of(value)


def _times(value: Mapping[str, Any]) -> tuple[float | None, float | None]:
    given = next((value[key] for key in TIME_KEYS if value.get(key) is not None), None)
    at = None if given is None else unix_seconds(given)
    if given is not None and at is None:
        raise LineError("a time that is no number and no date of ISO 8601, RFC 5322 or a web log")
    end = next((value[key] for key in _END_KEYS if value.get(key) is not None), None)
    finished_at = None if end is None else unix_seconds(end)
    if finished_at is None and at is not None and isinstance(value.get("e2e"), int | float):
        finished_at = at + value["e2e"]
    return at, finished_at


def _tokens(value: Mapping[str, Any], key: str) -> Sequence[int] | None:
    tokens = value.get(key)
    if tokens is None:
        return None
    if not isinstance(tokens, list) or not all(type(token) is int and token >= 0 for token in tokens):
        raise LineError(f"`{key}` must be a list of token ids")
    return tokens
