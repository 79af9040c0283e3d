"""Tokenizers that count: a Hugging Face folder, a tiktoken file, or a server that is asked."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from kvscope.errors import UsageError
from kvscope.prompts.tiktoken_files import tiktoken_encoding
from kvscope.prompts.tokenizing import LocalTokenizer, ServerTokenizer, load_tokenizer


class TokenCounter(Protocol):
    """Counts the tokens of texts and of whole prompts."""

    @property
    def name(self) -> str:
        """Return what to call it."""
        ...

    def count(self, text: str) -> int:
        """Return the tokens of ``text`` alone, without any that mark its begin or end."""
        ...

    def count_prompt(self, api: str, body: Mapping[str, Any]) -> int | None:
        """Return the tokens of the whole prompt as the engine counts; None where no chat template tells."""
        ...


class FileCounter:
    """Counts with a model's own ``tokenizer.json`` and chat template."""

    def __init__(self, name: str, tokenizer: LocalTokenizer) -> None:
        self.name = name
        self._tokenizer = tokenizer

    def count(self, text: str) -> int:
        """Return the tokens of ``text`` alone."""
        return len(self._tokenizer.encode_text(text, add_special_tokens=False))

    def count_prompt(self, api: str, body: Mapping[str, Any]) -> int | None:
        """Return the tokens of the prompt as vLLM renders it; None for a chat without a template."""
        if api == "chat" and not self._tokenizer.has_template:
            return None
        return len(self._tokenizer.encode(api, body))


class ServerCounter:
    """Asks a vLLM server's ``/tokenize``."""

    def __init__(self, name: str, tokenizer: ServerTokenizer) -> None:
        self.name = name
        self._tokenizer = tokenizer

    def count(self, text: str) -> int:
        """Return the tokens of ``text`` alone."""
        if not text:
            return 0
        return len(self._tokenizer.encode("completion", {"prompt": text, "add_special_tokens": False}))

    def count_prompt(self, api: str, body: Mapping[str, Any]) -> int | None:
        """Return the tokens of the prompt as that server counts."""
        return len(self._tokenizer.encode(api, {key: value for key, value in body.items() if key != "model"}))


class TransformersCounter:
    """Counts with transformers, for tokenizers in files that it alone can read."""

    def __init__(self, name: str, tokenizer: Any) -> None:
        self.name = name
        self._tokenizer = tokenizer

    def count(self, text: str) -> int:
        """Return the tokens of ``text`` alone."""
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    def count_prompt(self, api: str, body: Mapping[str, Any]) -> int | None:
        """Return the tokens of a completion prompt; None for chats, which need a ``tokenizer.json`` here."""
        prompt = body.get("prompt")
        return (
            len(self._tokenizer.encode(prompt)) if api == "completion" and isinstance(prompt, str) else None
        )


class TiktokenCounter:
    """Counts with tiktoken, which knows texts and no chat templates."""

    def __init__(self, name: str, encoding: Any) -> None:
        self.name = name
        self._encoding = encoding

    def count(self, text: str) -> int:
        """Return the tokens of ``text`` alone; special tokens in it count as the text that they are."""
        return len(self._encoding.encode_ordinary(text))

    def count_prompt(self, api: str, body: Mapping[str, Any]) -> int | None:
        """Return the tokens of one completion prompt that is a text; None for anything else."""
        prompt = body.get("prompt")
        return self.count(prompt) if api == "completion" and isinstance(prompt, str) else None


def load_counter(given: str) -> TokenCounter:
    """Return the tokenizer that ``given`` names: a path, a server's URL, or ``NAME=`` before one of them.

    NAME is what to call it; for a .tiktoken file it must be the encoding's. Raises ``UsageError``.
    """
    name, _, rest = given.partition("=")
    labelled = bool(rest) and not given.startswith(("http://", "https://")) and not Path(given).exists()
    where = rest if labelled else given
    if where.startswith(("http://", "https://")):
        return ServerCounter(
            name if labelled else where.partition("://")[2].rstrip("/"), ServerTokenizer(where)
        )
    path = Path(where)
    if path.suffix == ".tiktoken":
        encoding_name = name if labelled else path.stem
        return TiktokenCounter(encoding_name, tiktoken_encoding(path, encoding_name))
    folder = path.parent if path.is_file() and path.name == "tokenizer.json" else path
    return _files(path, name if labelled else folder.resolve().name.removesuffix(".json"))


def _files(path: Path, name: str) -> TokenCounter:
    """Return the tokenizer of ``tokenizer.json``; what else a folder may hold transformers reads."""
    if not path.is_dir() or (path / "tokenizer.json").is_file():
        return FileCounter(name, load_tokenizer(path))
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise UsageError(
            f"{path} has no tokenizer.json; other files need transformers: pip install transformers"
        ) from error
    try:
        return TransformersCounter(name, AutoTokenizer.from_pretrained(str(path), local_files_only=True))
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise UsageError(
            f"{path} has no tokenizer.json, and transformers finds none in it: {reason}"
        ) from error
