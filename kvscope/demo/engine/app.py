"""The built-in engine's HTTP side: the routes of vLLM's server that clients and kvscope use."""

import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import aclosing
from importlib.metadata import version
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tokenizers import Tokenizer

from kvscope.clock import system_clock
from kvscope.demo.engine.answers import Answer
from kvscope.demo.engine.body import ApiError, decode_body, parse_job, tokenized
from kvscope.demo.engine.core import CacheChange, EngineCore, Run, new_run
from kvscope.demo.engine.events import EventPublisher
from kvscope.demo.engine.settings import ENGINE_HEADER, FINGERPRINT, EngineSettings
from kvscope.demo.engine.telemetry import EngineMetrics, RequestTracer
from kvscope.errors import ConfigError
from kvscope.prompts.tokenizing import load_tokenizer

_WORDS = 400  # how many different words answers are made of
_Endpoint = Callable[[Request], Awaitable[Response]]


class BuiltinEngine:
    """The engine and its application; ``app`` is served by whoever made it, then ``close`` is called."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._tokenizer = load_tokenizer(settings.tokenizer)
        self._words = _plain_words(settings)
        self._events = (
            EventPublisher(settings.kv_events, block_size=settings.block_size, clock=system_clock)
            if settings.kv_events
            else None
        )
        self._core = EngineCore(
            settings, list(self._words), on_change=self._events.publish if self._events else _nothing
        )
        self._metrics = EngineMetrics(settings, self._core)
        self._tracer = RequestTracer(settings.otlp_endpoint, system_clock) if settings.otlp_endpoint else None
        routes = {
            ("GET", "/health"): self._health,
            ("GET", "/ping"): self._health,
            ("GET", "/version"): self._version,
            ("GET", "/metrics"): self._page,
            ("GET", "/v1/models"): self._models,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/v1/completions"): self._completion,
        }
        self.app = _Marked(
            Starlette(
                routes=[
                    Route(path, _guarded(endpoint), methods=[method])
                    for (method, path), endpoint in routes.items()
                ]
            )
        )

    def close(self) -> None:
        """Send the spans and events that wait."""
        if self._tracer is not None:
            self._tracer.close()
        if self._events is not None:
            self._events.close()

    async def _health(self, _: Request) -> Response:
        return Response()

    async def _version(self, _: Request) -> Response:
        return JSONResponse({"version": f"{version('kvscope')}+{FINGERPRINT}"})

    async def _page(self, _: Request) -> Response:
        return Response(generate_latest(self._metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def _models(self, _: Request) -> Response:
        model = {
            "id": self._settings.model,
            "object": "model",
            "created": int(system_clock()),
            "owned_by": FINGERPRINT,
            "root": self._settings.model,
            "parent": None,
            "max_model_len": self._settings.max_model_len,
        }
        return JSONResponse({"object": "list", "data": [model]})

    async def _tokenize(self, request: Request) -> Response:
        body = decode_body(await request.body())
        tokens = tokenized(self._tokenizer, "completion" if "prompt" in body else "chat", body)
        limit = self._settings.max_model_len
        return JSONResponse(
            {"count": len(tokens), "max_model_len": limit, "tokens": tokens, "token_strs": None}
        )

    async def _chat(self, request: Request) -> Response:
        return await self._generate(request, "chat", "chatcmpl-")

    async def _completion(self, request: Request) -> Response:
        return await self._generate(request, "completion", "cmpl-")

    async def _generate(self, request: Request, api: str, prefix: str) -> Response:
        body = decode_body(await request.body())
        named = request.headers.get("x-request-id") or body.get("request_id")
        name = named if isinstance(named, str) and named else uuid.uuid4().hex[:16]
        job = parse_job(
            body,
            api=api,
            request_id=prefix + name,
            tokenizer=self._tokenizer,
            settings=self._settings,
        )
        run = new_run(job)
        answer = Answer(run, self._settings.model, self._settings.block_size)
        if job.stream:
            return StreamingResponse(self._stream(run, answer, request), media_type="text/event-stream")
        texts = [self._words[token] async for token in self._tokens(run, request)]
        return JSONResponse(answer.whole(texts))

    async def _stream(self, run: Run, answer: Answer, request: Request) -> AsyncIterator[bytes]:
        async with aclosing(self._tokens(run, request)) as tokens:
            async for token in tokens:
                if len(run.output) == 1 and (opening := answer.opening()):
                    yield opening
                yield answer.piece(self._words[token], token, run.finish_reason)
        yield answer.closing()

    async def _tokens(self, run: Run, request: Request) -> AsyncGenerator[int]:
        """Yield the tokens; only a run that came to its end has a span, as with vLLM."""
        async with aclosing(self._core.generate(run)) as tokens:
            async for token in tokens:
                if len(run.output) == 1:
                    self._metrics.first_token(run)
                yield token
        self._metrics.finished(run)
        if self._tracer is not None:
            self._tracer.finished(run, request.headers)


def _nothing(_: CacheChange) -> None:
    """Hear of a change that nobody asked for."""


def _plain_words(settings: EngineSettings) -> dict[int, str]:
    """Return tokens that are a whole word each, with their texts: answers are made of these."""
    tokenizer = Tokenizer.from_file(str(settings.tokenizer / "tokenizer.json"))
    words: dict[int, str] = {}
    for token in range(tokenizer.get_vocab_size()):
        text = tokenizer.decode([token])
        if text.startswith(" ") and len(text) > 3 and text[1:].isascii() and text[1:].isalpha():  # noqa: PLR2004
            words[token] = text
        if len(words) == _WORDS:
            break
    if not words:
        raise ConfigError(f"the tokenizer in {settings.tokenizer} has no words to answer with")
    return words


def _guarded(endpoint: _Endpoint) -> _Endpoint:
    """Answer what ``endpoint`` refuses in OpenAI's form."""

    async def guarded(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ApiError as error:
            return JSONResponse(error.as_json(), status_code=error.status)

    return guarded


class _Marked:
    """Adds to every answer the header that says what answered."""

    def __init__(self, app: Starlette) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        async def marked(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (ENGINE_HEADER.encode(), b"builtin")]
            await send(message)

        await self._app(scope, receive, marked)
