"""A request body to the engine's own prompt tokens: from the model's files, or by asking the server."""

import hashlib
import json
import threading
import urllib.error
import urllib.request
from array import array
from collections import OrderedDict
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any, Protocol

from kvscope.errors import UnreachableError, UsageError
from kvscope.prompts.rendering import ChatTemplate, template_arguments

_TOKENS = 2**32
_CACHED_TOKENS = 2_000_000  # of four bytes each
_SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


class PromptTokenizer(Protocol):
    """Turns a body into prompt tokens as the engine does; may be called from any thread."""

    def encode(self, api: str, body: Mapping[str, Any]) -> list[int]:
        """Return the prompt tokens of ``body``; ``api`` is ``chat`` or ``completion``.

        Raises ``UsageError`` for a body without a prompt that can be tokenised, ``UnreachableError`` when a
        server that must be asked does not answer.
        """
        ...


class _TokenCache:
    """The tokens of recently seen texts, by the texts' digests; bounded by the number of tokens."""

    def __init__(self, max_tokens: int = _CACHED_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._tokens = 0
        self._entries: OrderedDict[bytes, array[int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: bytes) -> list[int] | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry.tolist()

    def put(self, key: bytes, tokens: list[int]) -> None:
        if len(tokens) > self._max_tokens:
            return
        with self._lock:
            if key in self._entries:
                return
            self._entries[key] = array("I", tokens)
            self._tokens += len(tokens)
            while self._tokens > self._max_tokens:
                self._tokens -= len(self._entries.popitem(last=False)[1])


def _digest(*parts: str) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part.encode("utf-8", "surrogatepass"))
        digest.update(b"\0")
    return digest.digest()


def _prompt_of(body: Mapping[str, Any]) -> str | list[int]:
    """Return the one prompt of a completion body, as text or as the tokens that it already is."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and prompt and all(map(_is_token, prompt)):
        return prompt
    raise UsageError("a completion body needs one prompt: a text or a list of token ids")


def _is_token(value: Any) -> bool:
    return type(value) is int and 0 <= value < _TOKENS


class LocalTokenizer:
    """Renders and tokenises with a model's own files, exactly as vLLM does for text."""

    def __init__(
        self, tokenizer: Any, template: ChatTemplate | None, tool_template: ChatTemplate | None
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._tool_template = tool_template or template
        self._cache = _TokenCache()

    @property
    def has_template(self) -> bool:
        """Whether chat bodies can be rendered."""
        return self._template is not None

    def render(self, body: Mapping[str, Any]) -> str:
        """Return the prompt text of a chat body; raises ``UsageError``."""
        template = self._tool_template if body.get("tools") else self._template
        if template is None:
            raise UsageError("this tokenizer has no chat template; name the model's folder with one in it")
        return template.render(body)

    @property
    def backend(self) -> Any:
        """The ``tokenizers.Tokenizer`` behind it."""
        return self._tokenizer

    def prompt(self, api: str, body: Mapping[str, Any]) -> tuple[str, bool] | list[int]:
        """Return the prompt's text and whether special tokens are added to it, or the tokens that it is.

        They are added to completions, not to rendered chats. Raises ``UsageError``.
        """
        if api == "chat":
            return self.render(body), bool(body.get("add_special_tokens", False))
        prompt = _prompt_of(body)
        if isinstance(prompt, list):
            return list(prompt)
        return prompt, bool(body.get("add_special_tokens", True))

    def encode(self, api: str, body: Mapping[str, Any]) -> list[int]:
        """Return the prompt tokens."""
        prompt = self.prompt(api, body)
        if isinstance(prompt, list):
            return prompt
        text, special = prompt
        return self.encode_text(text, add_special_tokens=special)

    def encode_text(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the tokens of ``text``."""
        key = _digest(text, str(add_special_tokens))
        known = self._cache.get(key)
        if known is not None:
            return known
        try:
            tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        except TypeError as error:  # JSON may hold halves of surrogate pairs, UTF-8 may not
            raise UsageError("the prompt holds a lone surrogate, which is no text") from error
        self._cache.put(key, tokens)
        return tokens


def load_tokenizer(path: Path) -> LocalTokenizer:
    """Load ``tokenizer.json`` and, from beside it, the chat template of a Hugging Face model folder.

    ``path`` is that folder or the file itself. Raises ``UsageError`` naming what is missing or broken.
    """
    from tokenizers import Tokenizer

    folder = path.parent if path.is_file() else path
    file = path if path.is_file() else path / "tokenizer.json"
    if not file.is_file():
        raise UsageError(
            f"no tokenizer at {path}: name a folder with tokenizer.json in it (Hugging Face), or that file"
        )
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:
        raise UsageError(f"{file} is not a tokenizer.json that can be read: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    config = _read_config(folder / "tokenizer_config.json")
    sources = _template_sources(folder, config)
    special = _special_tokens(config)
    templates = {name: ChatTemplate(source, special) for name, source in sources.items()}
    return LocalTokenizer(tokenizer, templates.get("default"), templates.get("tool_use"))


def _read_config(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} is not JSON that can be read: {error}") from error
    if not isinstance(config, dict):
        raise UsageError(f"{file} must hold a JSON object")
    return config


def _template_sources(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the chat templates by name; ``default`` and perhaps ``tool_use``."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return {"default": file.read_text(encoding="utf-8")}
        except (OSError, ValueError) as error:
            raise UsageError(f"{file} cannot be read as text: {error}") from error
    given = config.get("chat_template")
    if given is None:
        given = _read_config(folder / "chat_template.json").get("chat_template")
    if isinstance(given, str):
        return {"default": given}
    if isinstance(given, list):
        return {
            entry["name"]: entry["template"]
            for entry in given
            if isinstance(entry, dict) and {"name", "template"} <= entry.keys()
        }
    return {}


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    tokens: dict[str, str] = {}
    for name in _SPECIAL_TOKENS:
        value = config.get(name)
        if isinstance(value, Mapping):
            value = value.get("content")
        if isinstance(value, str):
            tokens[name] = value
    return tokens


class ServerTokenizer:
    """Asks a vLLM server's ``/tokenize``: right for every model, at the price of a request each."""

    def __init__(self, base_url: str, *, timeout_seconds: float = 10.0) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise UsageError(f"{base_url!r} is not a server's URL; it must begin with http:// or https://")
        self._url = base_url.rstrip("/") + "/tokenize"
        self._timeout_seconds = timeout_seconds
        # a proxy of the environment is for the world outside, not for the server beside us
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._cache = _TokenCache()

    def encode(self, api: str, body: Mapping[str, Any]) -> list[int]:
        """Return the prompt tokens as the server counts them."""
        if api == "chat":
            question = self._chat_question(body)
        else:
            prompt = _prompt_of(body)
            if isinstance(prompt, list):
                return list(prompt)
            question = {"prompt": prompt, "add_special_tokens": body.get("add_special_tokens", True)}
        if body.get("model") is not None:
            question["model"] = body["model"]
        text = json.dumps(question)
        key = _digest(text)
        known = self._cache.get(key)
        if known is not None:
            return known
        tokens = self._ask(text)
        self._cache.put(key, tokens)
        return tokens

    def _chat_question(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(body.get("messages"), list):
            raise UsageError("a chat body needs a list of messages")
        question: dict[str, Any] = {
            "messages": body["messages"],
            "add_generation_prompt": body.get("add_generation_prompt", True),
        }
        for name in ("tools", "continue_final_message", "add_special_tokens"):
            if body.get(name) is not None:
                question[name] = body[name]
        if arguments := template_arguments(body):
            question["chat_template_kwargs"] = arguments
        return question

    def _ask(self, text: str) -> list[int]:
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked above
            self._url, data=text.encode(), headers={"Content-Type": "application/json"}, method="POST"
        )
        try:
            with self._opener.open(request, timeout=self._timeout_seconds) as answer:
                tokens = json.loads(answer.read())["tokens"]
        except urllib.error.HTTPError as error:
            with error:
                refused = error.code in {400, 422}
                reason = f"{self._url} answered {error.code}"
            if refused:
                raise UsageError(f"{reason}: it cannot tokenise this body") from error
            raise UnreachableError(reason) from error
        except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
            raise UnreachableError(f"{self._url} gave no tokens: {error}") from error
        if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
            raise UnreachableError(f"{self._url} gave no list of tokens")
        return tokens
