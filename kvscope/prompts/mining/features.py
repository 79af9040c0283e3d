"""What tells one prompt template from another: hashes of neighbouring words, their digits aside.

Nothing of a prompt is kept but hashes. A text's first 2,048 features speak for it: prefix caching looks at
the beginning of prompts, and so does this.
"""

from collections.abc import Iterable

MOST_FEATURES = 2048
_MOST_LINES = 400
_LINE_CHARS = 4096
_KNOWN_LINES = 8192
_DIGITS = str.maketrans("123456789", "000000000")  # far quicker than naming a value, and as good here

Features = frozenset[int]


class LineFeatures:
    """Features of lines, remembered by the lines' hashes: most lines of most requests are old ones."""

    def __init__(self, width: int) -> None:
        """``width`` is how many neighbouring words make a feature."""
        self._width = width
        self._known: dict[int, tuple[int, ...]] = {}

    def of(self, texts: Iterable[str]) -> Features:
        """Return the features of ``texts``; the numbers mean nothing in another process."""
        found: set[int] = set()
        left = _MOST_LINES
        for text in texts:
            for line in text.split("\n", left)[:left]:
                left -= 1
                if line and not line.isspace():
                    found.update(self._of_line(line))
                    if len(found) >= MOST_FEATURES:
                        return frozenset(found)
        return frozenset(found)

    def _of_line(self, line: str) -> tuple[int, ...]:
        key = hash(line)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _KNOWN_LINES:  # the oldest half goes, so that this stays cheap
                for old in list(self._known)[: _KNOWN_LINES // 2]:
                    del self._known[old]
            known = self._known[key] = tuple(map(hash, word_runs(line, self._width)))
        return known


def word_runs(line: str, width: int) -> list[tuple[str, ...]]:
    """Return each run of ``width`` neighbouring words, the line's start and end among them.

    Digits count as one and the same, so times and numbers do.
    """
    words = ["", *line[:_LINE_CHARS].translate(_DIGITS).split(), ""]
    return list(zip(*(words[at:] for at in range(width)), strict=False)) or [tuple(words)]
