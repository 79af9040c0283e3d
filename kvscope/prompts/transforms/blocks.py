"""Lists of documents or examples in a text, recognised by tags or labels, put into one canonical order.

Only neighbours of one kind that stand side by side are sorted, by their text; nothing is written anew. Blocks
that carry numbers stay: others may refer to them. What stands inside a block is never looked at.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from kvscope.model.prompt import Risk
from kvscope.prompts.segments import CHAT
from kvscope.prompts.transforms.base import Body, Params, Transform, map_message_texts
from kvscope.prompts.transforms.tools import written_canonically

_DOCUMENT = "document"
_EXAMPLE = "example"
_WORDS = {
    **dict.fromkeys(
        ("document", "doc", "source", "passage", "context", "chunk", "snippet", "file"), _DOCUMENT
    ),
    **dict.fromkeys(("example", "sample", "demonstration", "demo", "shot"), _EXAMPLE),
}
_OPENING = re.compile(rf"<({'|'.join(_WORDS)})(?:\s[^<>]{{0,500}})?>")
_NUMBERED = re.compile(
    r"(?i)^<\w+\s[^<>]*\b(?:index|number|num|no|n|i|rank|position)\s*=|^<\w+[^<>]*>\s*[\[(#]?\d"
)
_LABEL = re.compile(rf"(?i)({'|'.join(_WORDS)})[^\n\d:]{{0,40}}:(?!\s*\d)")
_PARAGRAPHS = re.compile(r"\n{2,}")
_OWN_ROLES = frozenset({"assistant"})  # what the engine wrote stays as it is in the cache


class _Block(NamedTuple):
    kind: str
    start: int
    end: int


def _sort_documents(api: str, body: Body, _params: Sequence[Params]) -> Body:
    changed = _sorted_in_texts(api, body, _DOCUMENT)
    documents = changed.get("documents")
    if api != CHAT or not isinstance(documents, list) or not all(map(_has_id, documents)):
        return changed
    ordered = sorted(documents, key=written_canonically)
    same = all(new is old for new, old in zip(ordered, documents, strict=True))
    return changed if same else {**changed, "documents": ordered}


def _has_id(document: Any) -> bool:
    """Tell whether a document of the body has a name of its own, so that its place is not its name."""
    return isinstance(document, dict) and any(isinstance(document.get(key), str) for key in ("doc_id", "id"))


def _fix_example_order(api: str, body: Body, _params: Sequence[Params]) -> Body:
    return _sorted_in_texts(api, body, _EXAMPLE)


def _sorted_in_texts(api: str, body: Body, kind: str) -> Body:
    if api != CHAT:
        return body
    return map_message_texts(
        body, lambda role, text: text if role in _OWN_ROLES else _sorted_text(text, kind)
    )


def _sorted_text(text: str, kind: str) -> str:
    for blocks in (_tagged(text), list(_labelled(text))):
        for run in _runs(text, blocks):
            if run[0].kind == kind:
                text = _with_sorted(text, run)
    return text


def _with_sorted(text: str, run: Sequence[_Block]) -> str:
    """Return ``text`` with the run's blocks sorted; what stands between them stays in its place."""
    ordered = sorted(text[block.start : block.end] for block in run)
    pieces: list[str] = []
    position = 0
    for block, new in zip(run, ordered, strict=True):
        pieces += text[position : block.start], new
        position = block.end
    return "".join([*pieces, text[position:]])


def _tagged(text: str) -> list[_Block]:
    """Return blocks such as ``<document>…</document>``, outermost ones only."""
    found: list[_Block] = []
    position = 0
    unclosed: set[str] = set()
    while opening := _OPENING.search(text, position):
        word = opening[1]
        closing = f"</{word}>"
        end = -1 if word in unclosed else text.find(closing, opening.end())
        if end < 0:
            unclosed.add(word)  # nor will another one be closed: so this stays linear
            position = opening.end()
            continue
        position = end + len(closing)
        if not _NUMBERED.match(text[opening.start() : opening.end() + 8]):
            found.append(_Block(_WORDS[word], opening.start(), position))
    return found


def _labelled(text: str) -> Iterator[_Block]:
    """Yield paragraphs that begin with a label such as ``Example:``; none where tags are in use."""
    if _OPENING.search(text):
        return
    start = 0
    for gap in [*_PARAGRAPHS.finditer(text), None]:
        end = len(text.rstrip("\n")) if gap is None else gap.start()
        if (label := _LABEL.match(text, start, end)) is not None:
            yield _Block(_WORDS[label[1].lower()], start, end)
        start = len(text) if gap is None else gap.end()


def block_lists(text: str) -> Iterator[tuple[str, int, int, tuple[str, ...]]]:
    """Yield the lists that the transforms sort: kind of block, start, end, and the blocks' texts.

    The kind is ``document`` or ``example``.
    """
    for blocks in (_tagged(text), list(_labelled(text))):
        for run in _runs(text, blocks):
            texts = tuple(text[block.start : block.end] for block in run)
            yield run[0].kind, run[0].start, run[-1].end, texts


def _runs(text: str, blocks: Sequence[_Block]) -> list[list[_Block]]:
    """Return the blocks of one kind that nothing but space parts, two or more together."""
    runs: list[list[_Block]] = []
    for block in blocks:
        last = runs[-1][-1] if runs else None
        if last is not None and last.kind == block.kind and not text[last.end : block.start].strip():
            runs[-1].append(block)
        else:
            runs.append([block])
    return [run for run in runs if len(run) > 1]


SORT_DOCUMENTS = Transform(
    kind="sort_documents",
    risk=Risk.REVIEW,
    describe=lambda _: (
        "Puts documents that stand side by side (in tags, or as paragraphs with a label) in the order of"
        " their text, and the body's documents that have ids; numbered ones stay."
    ),
    apply=_sort_documents,
)
FIX_EXAMPLE_ORDER = Transform(
    kind="fix_example_order",
    risk=Risk.REVIEW,
    describe=lambda _: (
        "Puts examples that stand side by side (in tags, or as paragraphs with a label) in the order of their"
        " text; numbered ones stay."
    ),
    apply=_fix_example_order,
)
