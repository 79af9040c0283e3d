"""Tokenizers in .tiktoken files, which hold tokens and ranks but neither rules nor chat templates."""

import base64
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvscope.errors import UsageError

# encodings whose rules tiktoken has, and whose tokens a .tiktoken file brings
_TIKTOKEN_NAMES = ("cl100k_base", "o200k_base", "p50k_base", "p50k_edit", "r50k_base")


class TiktokenTokenizer:
    """Tokenises completion prompts with a .tiktoken file; special tokens in them count as their text."""

    def __init__(self, encoding: Any) -> None:
        self._encoding = encoding

    def encode(self, api: str, body: Mapping[str, Any]) -> list[int]:
        """Return the prompt tokens; raises ``UsageError`` for chats, whose template such a file lacks."""
        prompt = body.get("prompt")
        if api == "completion" and isinstance(prompt, list) and all(type(each) is int for each in prompt):
            return list(prompt)
        if api != "completion" or not isinstance(prompt, str):
            raise UsageError("a .tiktoken file has no chat template: it can tokenise one text only")
        tokens: list[int] = self._encoding.encode_ordinary(prompt)
        return tokens


def tiktoken_encoding(path: Path, name: str) -> Any:
    """Return tiktoken's encoding ``name`` with the tokens of ``path``; nothing is downloaded.

    Raises ``UsageError`` naming what is missing or broken.
    """
    try:
        import tiktoken
        import tiktoken_ext.openai_public as public
    except ImportError as error:
        raise UsageError(f"{path} needs tiktoken: pip install tiktoken") from error
    if name not in _TIKTOKEN_NAMES:
        known = ", ".join(_TIKTOKEN_NAMES)
        raise UsageError(f"{path} does not say how it splits text: write NAME={path}, NAME one of {known}")
    ranks = _ranks(path)
    # tiktoken's own constructor fetches the tokens from the net: the same function, with those of the file
    built = public.ENCODING_CONSTRUCTORS[name]
    scope = {**built.__globals__, "load_tiktoken_bpe": lambda *_given, **_checks: ranks}
    parts = types.FunctionType(built.__code__, scope)()
    parts.pop("explicit_n_vocab", None)  # of the published tokens, not necessarily of these
    return tiktoken.Encoding(**parts)


def _ranks(path: Path) -> dict[bytes, int]:
    """Return the tokens of a .tiktoken file: a line each, base64 and rank.

    Read here and not by tiktoken, which keeps a copy of what it once read under the same path.
    """
    try:
        pairs = (line.split() for line in path.read_bytes().splitlines() if line.strip())
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}
    except OSError as error:
        raise UsageError(f"no tokenizer at {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"{path} is not a .tiktoken file: {error}") from error
    if len(set(ranks.values())) < len(ranks) or any(bytes([value]) not in ranks for value in range(256)):
        raise UsageError(f"{path} is not a whole .tiktoken file: ranks repeat, or single bytes are missing")
    return ranks
