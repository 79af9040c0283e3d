"""Pads the part of a prompt that stays the same to whole blocks, so that all of it can be a hit."""

from collections.abc import Callable, Sequence

from kvscope.errors import UsageError
from kvscope.model.prompt import Risk
from kvscope.prompts.segments import CHAT
from kvscope.prompts.transforms.base import Body, Params, Transform, map_message_texts
from kvscope.prompts.transforms.lines import check_lines
from kvscope.prompts.values import line_key_hash

_MOST_CHARS = 1024
_UNITS = ("\n", " \n", "\t\n", "  \n", " \t\n")


def find_padding(tokens_with: Callable[[str], int], block_size: int) -> str | None:
    """Return white space that makes the tokens before a line whole blocks, None where none was found.

    ``tokens_with`` tells how many tokens stand before the line with that space in front of it. Tokenizers
    merge spaces, so that the number of tokens is tried and not computed.
    """
    for count in range(1, 2 * block_size + 1):
        for unit in _UNITS:
            padding = "\n" + unit * (count - 1)
            if len(padding) <= _MOST_CHARS and tokens_with(padding) % block_size == 0:
                return padding
    return None


def _check(params: Params) -> None:
    padding = params.get("padding")
    if not isinstance(padding, str) or padding.strip() or not padding.endswith("\n"):
        raise UsageError("align_block needs `padding`: white space that ends with a line break")
    if len(padding) > _MOST_CHARS:
        raise UsageError(f"align_block: padding has {_MOST_CHARS} characters at most")
    check_lines("align_block", {key: value for key, value in params.items() if key != "padding"})


def _align(api: str, body: Body, params: Sequence[Params]) -> Body:
    if api != CHAT:
        return body

    def pad(role: str, text: str) -> str:
        for each in params:
            if each["role"] == role:
                text = _padded(text, frozenset(each["line_keys"]), each["padding"])
        return text

    return map_message_texts(body, pad)


def _padded(text: str, keys: frozenset[str], padding: str) -> str:
    """Return ``text`` with just ``padding`` between its first line with one of the keys and those before."""
    position = 0
    for line in text.split("\n"):
        if line.strip() and line_key_hash(line) in keys:
            before = text[:position].rstrip()
            return before + padding + text[position:] if before else text
        position += len(line) + 1
    return text


ALIGN_BLOCK = Transform(
    kind="align_block",
    risk=Risk.REVIEW,
    describe=lambda params: (
        f"Makes the white space before the first of {len(params.get('line_keys', ()))} kinds of lines of"
        f" {params.get('role')} messages {len(params.get('padding', ''))} characters long, so that what"
        " stands before it fills its last block."
    ),
    apply=_align,
    check=_check,
)
