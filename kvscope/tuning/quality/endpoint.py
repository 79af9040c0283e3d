"""Asks an OpenAI-compatible server for whole answers, one at a time."""

import dataclasses
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any

from kvscope.errors import UnreachableError, UsageError

_PATHS = {"chat": "/v1/chat/completions", "completion": "/v1/completions"}
_NOT_ASKED = ("stream", "stream_options", "logprobs", "top_logprobs", "prompt_logprobs", "best_of")
_BAD_INPUT = frozenset({400, 404, 413, 422})
_NOT_FOUND = 404
_REASON_CHARS = 60


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A server's base URL. ``model`` None: what each body names. ``key``: sent as a bearer token."""

    url: str
    model: str | None = None
    key: str | None = None
    timeout_seconds: float = 120.0

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise UsageError(f"{self.url!r} is not a URL such as http://127.0.0.1:8000")

    def answer(self, api: str, body: Mapping[str, Any], *, max_tokens: int) -> str:
        """Return the answer at temperature 0, tool calls as JSON after its text.

        An answer is at most ``max_tokens`` long. Raises ``UsageError`` where the server refuses the body,
        ``UnreachableError`` where it does not answer.
        """
        document = self._ask(api, _greedy(body, self.model, max_tokens))
        try:
            return _text(document["choices"][0])
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise UnreachableError(f"{self.url} gave no answer in OpenAI's form") from error

    def _ask(self, api: str, body: Mapping[str, Any]) -> Any:
        headers = {"Content-Type": "application/json"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked above
            self.url.rstrip("/") + _PATHS[api], data=json.dumps(body).encode(), headers=headers, method="POST"
        )
        # a proxy of the environment is for the world outside, not for the server beside us
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=self.timeout_seconds) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                if error.code in _BAD_INPUT:
                    raise UsageError(f"the server answered {error.code}: {_reason(error)}") from error
            raise UnreachableError(f"{self.url} answered {error.code}") from error
        except (OSError, HTTPException, ValueError) as error:
            raise UnreachableError(f"{self.url} gave no answer: {error}") from error


def _greedy(body: Mapping[str, Any], model: str | None, max_tokens: int) -> dict[str, Any]:
    asked = {key: value for key, value in body.items() if key not in _NOT_ASKED}
    asked.pop("max_completion_tokens", None)
    limits = [value for key in ("max_tokens", "max_completion_tokens") if type(value := body.get(key)) is int]
    asked |= {"temperature": 0, "n": 1, "seed": 0, "max_tokens": min([max_tokens, *limits])}
    if model is not None:
        asked["model"] = model
    return asked


def _reason(error: urllib.error.HTTPError) -> str:
    """Return the kind of error alone: a server's message may repeat the prompt."""
    try:
        told = json.loads(error.read())
        kind = told.get("error", told)["type"]
    except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError):
        return "no kind of error told"
    hint = "; is the model's name right?" if error.code == _NOT_FOUND else ""
    return f"{str(kind)[:_REASON_CHARS]}{hint}"


def _text(choice: Mapping[str, Any]) -> str:
    if "text" in choice:
        return str(choice["text"] or "")
    message = choice["message"]
    text = str(message.get("content") or "")
    calls = [
        {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        for call in message.get("tool_calls") or ()
    ]
    return text + json.dumps(calls, sort_keys=True) if calls else text
