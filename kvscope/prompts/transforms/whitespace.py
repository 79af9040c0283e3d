"""Whitespace that no reader sees, made the same everywhere."""

from collections.abc import Sequence

from kvscope.model.prompt import Risk
from kvscope.prompts.segments import CHAT
from kvscope.prompts.transforms.base import Body, Params, Transform, map_message_texts, map_prompt_texts


def _normalize_whitespace(api: str, body: Body, _params: Sequence[Params]) -> Body:
    if api == CHAT:
        return map_message_texts(body, _change)
    return map_prompt_texts(api, body, _trim)


def _change(role: str, text: str) -> str:
    # An assistant turn stays as the engine wrote it: its tokens are in the cache in just that form.
    return text if role == "assistant" else _trim(text)


def _trim(text: str) -> str:
    """Drop spaces and tabs at line ends and all but one of a run of blank lines.

    The last line keeps its end: what a completion continues from is part of its meaning.
    """
    *lines, last = text.split("\n")
    kept: list[str] = []
    for line in lines:
        trimmed = line.rstrip(" \t\r")
        if trimmed or not kept or kept[-1]:
            kept.append(trimmed)
    return "\n".join([*kept, last])


NORMALIZE_WHITESPACE = Transform(
    kind="normalize_whitespace",
    risk=Risk.SAFE,
    describe=lambda _: (
        "Drops spaces at line ends (not of a text's last line) and all but one of a run of blank lines, "
        "outside assistant messages."
    ),
    apply=_normalize_whitespace,
)
