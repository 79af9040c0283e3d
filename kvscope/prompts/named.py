"""A tokenizer by the name that a user gives: a folder, a file, or a server's URL."""

from pathlib import Path

from kvscope.prompts.shared_prefix import SharedPrefixTokenizer
from kvscope.prompts.tokenizing import ServerTokenizer, load_tokenizer


def named_tokenizer(name: str) -> SharedPrefixTokenizer | ServerTokenizer:
    """Return the tokenizer ``name``, for one thread; raises ``UsageError``."""
    if name.startswith(("http://", "https://")):
        return ServerTokenizer(name)
    return SharedPrefixTokenizer(load_tokenizer(Path(name)))
