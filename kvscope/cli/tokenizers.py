"""``--tokenizer DIR|URL`` of the commands that read logs."""

from collections.abc import Callable
from typing import Any

import click


def tokenizer_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option ``--tokenizer``; ``text`` says what is without one."""
    return click.option(
        "--tokenizer",
        metavar="DIR|FILE|URL",
        help="Folder of the model's tokenizer, its tokenizer.json, a .tiktoken file, or a server's URL"
        f" (its /tokenize). {text}",
    )
