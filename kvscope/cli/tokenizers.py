"""``--tokenizer DIR|URL`` of the commands that read logs."""

from collections.abc import Callable
from typing import Any

import click


def tokenizer_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option ``--tokenizer``; ``text`` says what is without one."""
    return click.option(
        "--tokenizer",
        metavar="DIR|URL",
        help=f"Folder of the model's tokenizer, or a running server's URL (its /tokenize). {text}",
    )
