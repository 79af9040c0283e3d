"""Aligns prompts of one route token by token: what all of them say, and where each says something of its own.

Tokens are words or their hashes, so nothing but hashes need be kept. Two texts are aligned at the tokens that
stand once in both (patience, after Bram Cohen's diff), and between these again, so that the work is nearly
linear in the texts.
"""

import dataclasses
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from itertools import pairwise

_MAJORITY = 0.5
_FEWEST = 5  # texts that tell of a place by themselves
_TOKEN = re.compile(r"\s+|\S+")

Tokens = Sequence[Hashable]


@dataclasses.dataclass(frozen=True, slots=True)
class MinedSegment:
    """A piece of a template: ``tokens`` that most prompts have here; none where each has its own.

    ``distinct`` counts the different fillings that were seen of a varying place (1 for a static piece);
    ``longest`` is the most tokens that one of them has; ``fillings`` tells where they stand: number of the
    text, first token, token after the last.
    """

    tokens: tuple[Hashable, ...]
    distinct: int
    longest: int
    fillings: tuple[tuple[int, int, int], ...] = ()

    @property
    def static(self) -> bool:
        """Whether most prompts say the same here."""
        return bool(self.tokens)


def tokens_of(text: str) -> list[str]:
    """Return the words of ``text`` and the spaces between them: joined they are the text."""
    return _TOKEN.findall(text)


def mined_segments(texts: Sequence[Tokens], *, again: bool = True) -> list[MinedSegment]:
    """Return what ``texts`` have in common and where they vary; a token of most texts is one of the template.

    A tenth of noise in every text is outvoted, where there are a dozen texts or more. ``again`` looks once
    more at what varies, by another text than the first time.
    """
    if not texts:
        return []
    backbone = sorted(texts, key=len)[len(texts) // 2]
    places = [_aligned(backbone, text) for text in texts]
    need = len(texts) * _MAJORITY
    common = [sum(place[at] >= 0 for place in places) > need for at in range(len(backbone))]
    pieces: list[MinedSegment] = []
    static: list[Hashable] = []
    at = 0
    while at <= len(backbone):
        # what others have between the last common token and the next one
        end = at
        while end < len(backbone) and not common[end]:
            end += 1
        spans = tuple(_spans(texts, places, at, end, len(backbone)))
        fillings = Counter(tuple(texts[number][low:high]) for number, low, high in spans)
        agreed, votes = fillings.most_common(1)[0] if fillings else ((), 0)
        if votes * 2 > fillings.total() or not fillings:
            static.extend(agreed)
        else:
            for piece in _within(texts, spans, fillings, again=again):
                if piece.static:
                    static.extend(piece.tokens)
                else:
                    _close(pieces, static)
                    pieces.append(piece)
        if end < len(backbone):
            static.append(backbone[end])
        at = end + 1
    _close(pieces, static)
    return pieces


def _within(
    texts: Sequence[Tokens],
    spans: tuple[tuple[int, int, int], ...],
    fillings: Counter[tuple[Hashable, ...]],
    *,
    again: bool,
) -> list[MinedSegment]:
    """Return a place that varies, or what is in it: noise in the backbone may hide what others share."""
    longest = max(map(len, fillings))
    if not again or longest == 1 or len(spans) < _FEWEST:
        return [MinedSegment((), len(fillings), longest, spans)]
    inside = mined_segments([texts[number][low:high] for number, low, high in spans], again=False)
    return [
        dataclasses.replace(
            piece,
            fillings=tuple(
                (spans[at][0], spans[at][1] + low, spans[at][1] + high) for at, low, high in piece.fillings
            ),
        )
        for piece in inside
    ]


def _close(pieces: list[MinedSegment], static: list[Hashable]) -> None:
    if static:
        pieces.append(MinedSegment(tuple(static), 1, len(static)))
        static.clear()


def _spans(
    texts: Sequence[Tokens], places: Sequence[Sequence[int]], start: int, end: int, length: int
) -> Iterator[tuple[int, int, int]]:
    """Tell where texts have what stands at ``start`` to ``end`` of the backbone, of those with both edges."""
    for number, (text, place) in enumerate(zip(texts, places, strict=True)):
        low = 0 if start == 0 else place[start - 1] + 1
        high = len(text) if end == length else place[end]
        if (start == 0 or place[start - 1] >= 0) and high >= 0:
            yield number, low, high


def _aligned(one: Tokens, other: Tokens) -> list[int]:
    """Return for each token of ``one`` the place of its like in ``other``, or -1; places only grow."""
    found = [-1] * len(one)
    todo = [(0, len(one), 0, len(other))]
    while todo:
        low, high, low2, high2 = todo.pop()
        while low < high and low2 < high2 and one[low] == other[low2]:
            found[low] = low2
            low, low2 = low + 1, low2 + 1
        while low < high and low2 < high2 and one[high - 1] == other[high2 - 1]:
            high, high2 = high - 1, high2 - 1
            found[high] = high2
        anchors = _anchors(one, other, (low, high, low2, high2))
        for anchor, place in anchors:
            found[anchor] = place
        edges = [(low - 1, low2 - 1), *anchors, (high, high2)] if anchors else []
        todo.extend(
            (first[0] + 1, second[0], first[1] + 1, second[1])
            for first, second in pairwise(edges)
            if first[0] + 1 < second[0] and first[1] + 1 < second[1]
        )
    return found


def _anchors(one: Tokens, other: Tokens, within: tuple[int, int, int, int]) -> list[tuple[int, int]]:
    """Return pairs of places of tokens that stand once in both ranges, as many as keep their order."""
    low, high, low2, high2 = within
    once, once2 = _once(one, low, high), _once(other, low2, high2)
    pairs = [(place, once2[token]) for token, place in once.items() if token in once2]
    pairs.sort()
    # the longest increasing run of places, by patience sorting
    tops: list[int] = []
    piles: list[int] = []  # index of the pair on top of each pile
    before: list[int] = []
    for number, (_, place) in enumerate(pairs):
        pile = bisect_left(tops, place)
        before.append(piles[pile - 1] if pile else -1)
        tops[pile : pile + 1] = [place]
        piles[pile : pile + 1] = [number]
    chosen: list[tuple[int, int]] = []
    number = piles[-1] if piles else -1
    while number >= 0:
        chosen.append(pairs[number])
        number = before[number]
    return chosen[::-1]


def _once(tokens: Tokens, low: int, high: int) -> dict[Hashable, int]:
    found: dict[Hashable, int] = {}
    twice: set[Hashable] = set()
    for place in range(low, high):
        token = tokens[place]
        if token in found:
            twice.add(token)
        found[token] = place
    return {token: place for token, place in found.items() if token not in twice}
