"""Lists of block ids of many requests at once, as columns: without an object a line or an id."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Ids = NDArray[np.uint64]
_ALLOWED = b"0123456789, []\t\n\r"
_OPENS = ord("[")
_ZERO = ord("0")
_WORD_DIGITS = 8
_MOST_DIGITS = 20
_LARGEST_HIGH, _LARGEST_LOW = divmod((1 << 64) - 1, 10**16)
_PART_BYTES = 1 << 18
_PAD = b"0" * (3 * _WORD_DIGITS)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BlockColumns:
    """Requests of one file as columns; ``ids`` are all of theirs, ``lengths`` how many each has.

    ``at`` is in seconds of the file's clock. ``origin`` names the file. The ids are of one ``scope``.
    """

    origin: str
    block_size: int
    ids: Ids
    lengths: Ints
    prompt_tokens: Ints
    at: NDArray[np.float64]
    scope: str = ""


def id_columns(lists: Sequence[bytes], tokens: Ints, block_size: int) -> tuple[Ids, Ints] | None:
    """Return the ids of JSON lists and how many each holds; None where a list needs a closer look.

    Each list is JSON that was found well-formed, each of its ids a whole number from 0 to 2**64 - 1, and they
    fit the prompts' ``tokens``.
    """
    ids: list[Ids] = [np.zeros(0, dtype=np.uint64)]
    lengths: list[Ints] = [np.zeros(0, dtype=np.int64)]
    for part in _parts(lists):
        found = _columns(part)
        if found is None:
            return None
        ids.append(found[0])
        lengths.append(found[1])
    held = np.concatenate(lengths)
    fits = (np.maximum(tokens - 1, 0) // block_size <= held) & (held <= -(-tokens // block_size))
    return (np.concatenate(ids), held) if fits.all() else None


def _parts(lists: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Yield the lists a part at a time: what is needed to read them is many times as long."""
    begin = size = 0
    for end, each in enumerate(lists, start=1):
        size += len(each)
        if size >= _PART_BYTES:
            yield lists[begin:end]
            begin, size = end, 0
    if begin < len(lists):
        yield lists[begin:]


def _columns(lists: Sequence[bytes]) -> tuple[Ids, Ints] | None:
    text = b"".join((_PAD, *lists))
    if text.translate(None, _ALLOWED):
        return None
    places = np.frombuffer(text, dtype=np.uint8)
    sizes = np.fromiter(map(len, lists), np.int64, len(lists))
    starts = np.cumsum(sizes) - sizes + len(_PAD)
    if not np.array_equal(np.flatnonzero(places == _OPENS), starts):
        return None  # not lists, or lists in lists
    digits = (places - _ZERO) < 10  # noqa: PLR2004 - what is below "0" wraps around
    digits[: len(_PAD)] = False
    edges = np.flatnonzero(digits[1:] != digits[:-1]) + 1
    begins, ends = edges[::2], edges[1::2]
    ids = _numbers(text, ends, ends - begins)
    lengths = np.diff(np.searchsorted(begins, starts), append=len(begins))
    return None if ids is None else (ids, lengths)


def _numbers(text: bytes, ends: Ints, sizes: Ints) -> Ids | None:
    """Return the numbers of so many digits that end before each of ``ends``; None where one is too large."""
    longest = int(sizes.max(initial=0))
    if longest > _MOST_DIGITS:
        return None
    words = np.ndarray((len(text) - _WORD_DIGITS + 1,), dtype="<u8", buffer=text, strides=(1,))
    numbers = _word_numbers(words[ends - _WORD_DIGITS], np.minimum(sizes, _WORD_DIGITS))
    for word in range(1, -(-longest // _WORD_DIGITS)):
        left = sizes - word * _WORD_DIGITS
        longer = np.flatnonzero(left > 0)
        high = words[ends[longer] - (word + 1) * _WORD_DIGITS]
        high = _word_numbers(high, np.minimum(left[longer], _WORD_DIGITS))
        if word == 2 and not _fits(high, numbers[longer]):  # noqa: PLR2004 - digits from the 17th on
            return None
        numbers[longer] += high * np.uint64(10 ** (word * _WORD_DIGITS))
    return numbers


def _fits(high: Ids, low: Ids) -> bool:
    """Whether numbers of which ``low`` are the last 16 digits are below 2**64."""
    return bool(((high < _LARGEST_HIGH) | ((high == _LARGEST_HIGH) & (low <= _LARGEST_LOW))).all())


def _word_numbers(words: Ids, sizes: Ints) -> Ids:
    """Return the numbers whose last ``sizes`` of eight digits the words hold, the first digit lowest.

    Eight digits are added up to four pairs, two fours and one eight, each in its part of the word.
    """
    unused = (8 * (_WORD_DIGITS - sizes)).astype(np.uint64)
    digits = words ^ np.uint64(0x3030303030303030)
    digits >>= unused
    digits <<= unused
    pairs = digits >> np.uint64(8)
    pairs += digits * np.uint64(10)
    mask = np.uint64(0x000000FF000000FF)
    fours = (pairs >> np.uint64(16)) & mask
    fours *= np.uint64(0x0000271000000001)
    pairs &= mask
    pairs *= np.uint64(0x000F424000000064)
    fours += pairs
    return fours >> np.uint64(32)
