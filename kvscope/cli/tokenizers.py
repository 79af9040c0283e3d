"""``--tokenizer DIR|URL`` of the commands that read logs."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from kvscope.analysis.offline.load import Encoder


def tokenizer_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option ``--tokenizer``; ``text`` says what is without one."""
    return click.option(
        "--tokenizer",
        metavar="DIR|URL",
        help=f"Folder of the model's tokenizer, or a running server's URL (its /tokenize). {text}",
    )


def named_tokenizer(named: str | None) -> "Encoder | None":
    """Return the tokenizer that ``--tokenizer`` names; raises ``UsageError``."""
    from kvscope.prompts.shared_prefix import SharedPrefixTokenizer
    from kvscope.prompts.tokenizing import ServerTokenizer, load_tokenizer

    if named is None:
        return None
    if named.startswith(("http://", "https://")):
        return ServerTokenizer(named)
    return SharedPrefixTokenizer(load_tokenizer(Path(named)))
