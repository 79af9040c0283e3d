"""What the prompts of each route have in common, told from running traffic that leaves nothing but hashes.

Of each route the texts that begin its prompts are sampled, newer ones in place of older ones, as hashes of
their words; they are aligned only when somebody asks. A line's key (``line_key_hash``) stays with its words,
so that what varies can be named to a transform without its text.
"""

import dataclasses
import threading
import time
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvscope.model.prompt import TransformSpec
from kvscope.prompts.mining.alignment import MinedSegment, mined_segments, tokens_of
from kvscope.prompts.segments import Segment
from kvscope.prompts.values import ValueKind, find_values, line_key_hash

FEWEST_SAMPLES = 5
_SAMPLES = 32  # a dozen outvote a tenth of noise
_PAUSE_SECONDS = 1.0  # between two samples of a route that has so many: this costs a millisecond or two
_MOST_WORDS = 4096  # of a text, spaces between them included
_MOST_CHARS = 32_768  # of a text
_MOST_TEXTS = 4  # of a prompt
_MOST_BYTES = 16_000_000
_WORD_BYTES, _LINE_BYTES = 9, 80
_MOST_ROUTES = 512
_INSTRUCTIONS = ("system", "developer")
_BEGINNING = frozenset(
    {*_INSTRUCTIONS, "tools"}
)  # after these one text more: what the user's prompt begins with
_SHORT_CHARS = 4  # between two places that vary: chance, or a word between two values
_LENGTH = 0xFFF  # of a word's number: its characters, so that lengths need no room of their own
_KINDS = (None, *ValueKind)


@dataclasses.dataclass(frozen=True, slots=True)
class SampledText:
    """A text without its text: of each word a hash and a kind of value, of each line its key.

    ``line_ends`` counts the words before the end of each line.
    """

    words: Sequence[int]
    kinds: Sequence[int]
    line_ends: Sequence[int]
    line_keys: Sequence[str]

    def keys(self, low: int, high: int) -> frozenset[str]:
        """Return the keys of the lines in which the words from ``low`` to before ``high`` stand."""
        # a line break between two lines is in neither
        first, last = bisect_right(self.line_ends, low), bisect_left(self.line_ends, max(low, high - 1))
        return frozenset(key for key in self.line_keys[first : last + 1] if key)


@dataclasses.dataclass(frozen=True, slots=True)
class RouteSample:
    """The sampled prompts of one route: of each its beginning, as (role, text)."""

    route: str
    requests: int
    prompts: Sequence[Sequence[tuple[str, SampledText]]]


class RouteSamples:
    """Samples traffic in bounded memory (16 MB at most) without its text; for any thread."""

    def __init__(self) -> None:
        self._routes: OrderedDict[str, _Route] = OrderedDict()
        self._kept = 0
        self._lock = threading.Lock()

    def add(self, route: str, parts: Sequence[Segment]) -> None:
        """Count a request of ``route`` with these texts, and perhaps keep its words' hashes."""
        with self._lock:
            entry = self._routes.setdefault(route, _Route())
            self._routes.move_to_end(route)
            entry.requests += 1
            now = time.monotonic()
            wanted = len(entry.prompts) < _SAMPLES or now - entry.sampled_at >= _PAUSE_SECONDS
            if wanted:
                entry.sampled_at = now
        if wanted:
            sample = [(part.role, _sampled(part.text)) for part in _beginning(parts)]
            with self._lock:
                self._keep(entry, sample)

    def samples(self) -> list[RouteSample]:
        """Return what is known of each route, the busiest first."""
        with self._lock:
            found = [
                RouteSample(name, entry.requests, tuple(entry.prompts))
                for name, entry in self._routes.items()
            ]
        return sorted(found, key=lambda sample: -sample.requests)

    def _keep(self, entry: "_Route", sample: list[tuple[str, SampledText]]) -> None:
        if len(entry.prompts) == _SAMPLES:
            self._kept -= _size(entry.prompts.popleft())
        entry.prompts.append(sample)
        self._kept += _size(sample)
        while len(self._routes) > 1 and (self._kept > _MOST_BYTES or len(self._routes) > _MOST_ROUTES):
            _, oldest = self._routes.popitem(last=False)
            self._kept -= sum(map(_size, oldest.prompts))
            oldest.prompts.clear()


class _Route:
    def __init__(self) -> None:
        self.requests = 0
        self.sampled_at = 0.0
        self.prompts: deque[list[tuple[str, SampledText]]] = deque()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LivePiece:
    """A piece that most prompts share, or a place where each has its own; ``words`` of a place are the most.

    ``line_keys`` are of the lines in which a place stands in most prompts.
    """

    static: bool
    words: int
    chars: int | None  # None of a place
    distinct: int
    value_kind: ValueKind | None = None
    line_keys: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LiveText:
    """One text of a route's prompts (``position`` counts from 0 at the prompt's head)."""

    role: str
    position: int
    prompts: int
    pieces: tuple[LivePiece, ...]

    @property
    def static_chars(self) -> int:
        """Characters that most prompts share."""
        return sum(piece.chars or 0 for piece in self.pieces)

    @property
    def prefix_chars(self) -> int:
        """Characters that most prompts share before the first place where they differ."""
        return (self.pieces[0].chars or 0) if self.pieces else 0

    @property
    def change(self) -> TransformSpec | None:
        """The transform that moves what varies behind what stays, None where nothing stands so."""
        if self.role not in _INSTRUCTIONS:
            return None
        last = max((at for at, piece in enumerate(self.pieces) if piece.static), default=0)
        keys = dict.fromkeys(key for piece in self.pieces[:last] for key in piece.line_keys)
        if not keys:
            return None
        return TransformSpec(kind="move_volatile", params={"role": self.role, "line_keys": list(keys)})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LiveRoute:
    """What was found of one route in ``requests`` seen."""

    route: str
    requests: int
    texts: tuple[LiveText, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the form in which it is shown."""
        return {
            "route": self.route,
            "requests": self.requests,
            "texts": [_told(text) for text in self.texts],
        }


def mined_routes(samples: Sequence[RouteSample]) -> list[LiveRoute]:
    """Return what prompts of each route share and where they vary; routes with few samples are left out."""
    found = [
        LiveRoute(route=sample.route, requests=sample.requests, texts=tuple(_texts(sample)))
        for sample in samples
        if len(sample.prompts) >= FEWEST_SAMPLES
    ]
    return [route for route in found if route.texts]


def _texts(sample: RouteSample) -> Iterator[LiveText]:
    """Align the texts at each position of the prompts that have the role which most have there."""
    for position in range(_MOST_TEXTS):
        here = [prompt[position] for prompt in sample.prompts if position < len(prompt)]
        if len(here) < FEWEST_SAMPLES:
            return
        role = Counter(role for role, _ in here).most_common(1)[0][0]
        texts = [text for own, text in here if own == role]
        if len(texts) >= FEWEST_SAMPLES:
            found = mined_segments([text.words for text in texts])
            pieces = _joined([_piece(segment, texts) for segment in found])
            yield LiveText(role=role, position=position, prompts=len(texts), pieces=tuple(pieces))


def _joined(pieces: Sequence[LivePiece]) -> list[LivePiece]:
    """Return the pieces with places that only a few characters part as one place."""
    found: list[LivePiece] = []
    for piece in pieces:
        if len(found) > 1 and not piece.static and _is_short(found[-1]) and not found[-2].static:
            between, before = found.pop(), found.pop()
            kind = piece.value_kind if piece.value_kind == before.value_kind else None
            joined = LivePiece(
                static=False,
                words=before.words + between.words + piece.words,
                chars=None,
                distinct=max(before.distinct, piece.distinct),
                value_kind=kind,
                line_keys=tuple(dict.fromkeys((*before.line_keys, *piece.line_keys))),
            )
            found.append(joined)
        else:
            found.append(piece)
    return found


def _is_short(piece: LivePiece) -> bool:
    return piece.chars is not None and piece.chars < _SHORT_CHARS


def _piece(segment: MinedSegment, texts: Sequence[SampledText]) -> LivePiece:
    if segment.static:
        chars = sum(word & _LENGTH for word in segment.tokens if isinstance(word, int))
        return LivePiece(static=True, words=len(segment.tokens), chars=chars, distinct=1)
    keys: Counter[str] = Counter()
    kinds: Counter[int] = Counter()
    for number, low, high in segment.fillings:
        keys.update(texts[number].keys(low, high))
        kinds.update({kind for kind in texts[number].kinds[low:high] if kind})
    most = len(segment.fillings) / 2
    kind, times = kinds.most_common(1)[0] if kinds else (0, 0)
    return LivePiece(
        static=False,
        words=segment.longest,
        chars=None,
        distinct=segment.distinct,
        value_kind=_KINDS[kind] if times > most else None,
        line_keys=tuple(key for key, count in keys.items() if count > most),
    )


def _beginning(parts: Sequence[Segment]) -> Iterator[Segment]:
    """Return tools, instructions and the first text after them."""
    for part in parts[:_MOST_TEXTS]:
        yield part
        if part.role not in _BEGINNING:
            return


def _sampled(text: str) -> SampledText:
    text = text[:_MOST_CHARS]
    words = tokens_of(text)[:_MOST_WORDS]
    spans = iter(find_values(text))
    span = next(spans, None)
    kinds = bytearray(len(words))
    line_ends = array("i")
    at = 0
    for number, word in enumerate(words):
        while span is not None and span.end <= at:
            span = next(spans, None)
        if span is not None and span.start < at + len(word):
            kinds[number] = _KINDS.index(span.kind)
        line_ends.extend([number] * word.count("\n"))
        at += len(word)
    keys = [line_key_hash(line) if line.strip() else "" for line in text.split("\n")[: len(line_ends) + 1]]
    return SampledText(array("q", map(_number, words)), bytes(kinds), line_ends, keys)


def _number(word: str) -> int:
    """Return a number that means nothing in another process, but how long the word is."""
    return hash(word) & ~_LENGTH | min(len(word), _LENGTH)


def _size(prompt: Sequence[tuple[str, SampledText]]) -> int:
    return sum(_WORD_BYTES * len(text.words) + _LINE_BYTES * len(text.line_keys) for _, text in prompt)


def _told(text: LiveText) -> Mapping[str, Any]:
    change = text.change
    return {
        "role": text.role,
        "position": text.position,
        "prompts": text.prompts,
        "static_chars": text.static_chars,
        "static_prefix_chars": text.prefix_chars,
        "pieces": [dataclasses.asdict(piece) for piece in text.pieces],
        "change": None if change is None else change.as_json(),
    }
