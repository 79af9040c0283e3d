"""Request bodies to generation jobs, refused as OpenAI's API and vLLM refuse them."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from kvscope.demo.engine.settings import EngineSettings
from kvscope.errors import UsageError
from kvscope.prompts.tokenizing import PromptTokenizer

_DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's and vLLM's default of `/v1/completions`


class ApiError(Exception):
    """Raised for a request that is answered with an error in OpenAI's form."""

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def as_json(self) -> dict[str, Any]:
        """Return the body of the answer."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request to generate, checked and tokenised."""

    id: str  # the answer's id, e.g. `chatcmpl-<X-Request-Id>`
    api: str  # "chat" or "completion"
    tokens: tuple[int, ...]
    max_tokens: int | None  # None: until the engine stops by itself
    ignore_eos: bool
    salt: str | None
    lookup: bool  # False: the prefix cache is not asked
    stream: bool
    include_usage: bool
    return_token_ids: bool
    parameters: Mapping[str, Any]  # sampling parameters that spans show


def decode_body(raw: bytes) -> dict[str, Any]:
    """Return the JSON object of a request; raises ``ApiError``."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ApiError(f"the body is not JSON: {error}", kind="Bad Request", param="body") from error
    if not isinstance(body, dict):
        raise ApiError("the body must be a JSON object", kind="Bad Request", param="body")
    return body


def tokenized(tokenizer: PromptTokenizer, api: str, body: Mapping[str, Any]) -> list[int]:
    """Return the prompt's tokens; raises ``ApiError`` for a body without a prompt."""
    field = "messages" if api == "chat" else "prompt"
    if body.get(field) is None:
        raise ApiError(f"{field} is missing", kind="Bad Request", param=f"body.{field}")
    try:
        return tokenizer.encode(api, body)
    except UsageError as error:
        raise ApiError(str(error), param=field) from error


def parse_job(
    body: Mapping[str, Any],
    *,
    api: str,
    request_id: str,
    tokenizer: PromptTokenizer,
    settings: EngineSettings,
) -> Job:
    """Return the job that ``body`` asks for; raises ``ApiError``."""
    if body.get("model", settings.model) != settings.model:
        raise ApiError(
            f"The model `{body['model']}` does not exist. Valid aliases: {settings.model}.",
            status=404,
            kind="NotFoundError",
            param="model",
        )
    if body.get("n", 1) != 1:
        raise ApiError("the built-in engine makes one choice: n must be 1", param="n")
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise ApiError("stream_options must be an object", param="stream_options")
    tokens = tokenized(tokenizer, api, body)
    return Job(
        id=request_id,
        api=api,
        tokens=tuple(tokens),
        max_tokens=_max_tokens(body, api, len(tokens), settings.max_model_len),
        ignore_eos=bool(body.get("ignore_eos")),
        salt=_salt(body),
        lookup=body.get("prompt_logprobs") is None,
        stream=bool(body.get("stream")),
        include_usage=bool(options.get("include_usage")),
        return_token_ids=bool(body.get("return_token_ids")),
        parameters={key: body[key] for key in ("temperature", "top_p") if body.get(key)},
    )


def _salt(body: Mapping[str, Any]) -> str | None:
    salt = body.get("cache_salt")
    if salt is not None and not (isinstance(salt, str) and salt):
        raise ApiError("cache_salt must be a text that is not empty", param="cache_salt")
    return salt


def _max_tokens(body: Mapping[str, Any], api: str, prompt: int, limit: int) -> int | None:
    name = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    asked = body.get(name)
    if asked is None and api == "completion":
        asked = _DEFAULT_COMPLETION_TOKENS
    if asked is not None and (type(asked) is not int or asked < 1):
        raise ApiError(f"{name} must be at least 1, got {asked!r}", param=name)
    if prompt + (asked or 1) > limit:
        raise ApiError(
            f"the prompt has {prompt} tokens and {asked or 1} are asked for, but the context holds {limit}",
            param=name,
        )
    return asked
