"""A tokenizer by the name that a user gives: a folder, a file, or a server's URL."""

from pathlib import Path

from kvscope.prompts.shared_prefix import SharedPrefixTokenizer
from kvscope.prompts.tiktoken_files import TiktokenTokenizer, tiktoken_encoding
from kvscope.prompts.tokenizing import ServerTokenizer, load_tokenizer

_TIKTOKEN = ".tiktoken"


def named_tokenizer(name: str) -> SharedPrefixTokenizer | ServerTokenizer | TiktokenTokenizer:
    """Return the tokenizer ``name``, for one thread; raises ``UsageError``.

    A .tiktoken file has the name of its encoding, or ``ENCODING=`` before its path.
    """
    if name.startswith(("http://", "https://")):
        return ServerTokenizer(name)
    if name.endswith(_TIKTOKEN):
        label, _, rest = name.partition("=")
        path = Path(rest or name)
        return TiktokenTokenizer(tiktoken_encoding(path, label if rest else path.stem))
    return SharedPrefixTokenizer(load_tokenizer(Path(name)))
