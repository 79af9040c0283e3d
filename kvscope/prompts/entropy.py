"""Entropy of prompt texts, in bits; how much it tells of latency is shown by the fit, never assumed."""

import zlib
from collections import deque

import numpy as np
import numpy.typing as npt

WINDOW_CHARACTERS = 256


def character_entropy(text: str) -> float:
    """Return the Shannon entropy of the text's characters in bits per character (0 for an empty text).

    H = -sum p(c) log2 p(c) over the code points c (Shannon 1948).
    """
    return counted_entropy(np.bincount(_codes(text))) if text else 0.0


def value_entropy(values: npt.ArrayLike) -> float:
    """Return the Shannon entropy of how often each whole number occurs, in bits a value; 0 for none."""
    return counted_entropy(np.unique(np.asarray(values), return_counts=True)[1])


def counted_entropy(counts: npt.ArrayLike) -> float:
    """Return the Shannon entropy of outcomes that came ``counts`` times, in bits; 0 where there are none."""
    found = np.asarray(counts)
    found = found[found > 0]
    shares = found / max(found.sum(), 1)
    return float(max(0.0, -(shares * np.log2(shares)).sum()))


def window_entropy(text: str, window_characters: int = WINDOW_CHARACTERS) -> float:
    """Return the mean entropy of all windows of ``window_characters`` characters, in bits per character.

    A text that is shorter than the window is one window. Unlike the entropy of the whole text it does not
    grow with a long text's variety of subjects.
    """
    codes = _codes(text)
    if len(codes) <= window_characters:
        return character_entropy(text)
    # n H = n log2 n - sum c log2 c: a step of the window changes two of the counts
    terms = np.arange(window_characters + 1, dtype=float)
    terms[1:] *= np.log2(terms[1:])
    weigh: list[float] = terms.tolist()
    _, places = np.unique(codes, return_inverse=True)
    letters: list[int] = places.tolist()
    counts = [0] * (max(letters) + 1)
    inside: deque[int] = deque()
    spent = total = 0.0
    for letter in letters:
        if len(inside) == window_characters:
            gone = inside.popleft()
            spent += weigh[counts[gone] - 1] - weigh[counts[gone]]
            counts[gone] -= 1
        inside.append(letter)
        spent += weigh[counts[letter] + 1] - weigh[counts[letter]]
        counts[letter] += 1
        if len(inside) == window_characters:
            total += weigh[window_characters] - spent
    windows = len(letters) - window_characters + 1
    return max(0.0, total / windows / window_characters)


def compressed_bits(text: str) -> float:
    """Return the size of the text under DEFLATE (RFC 1951), in bits per character; 0 for an empty text."""
    if not text:
        return 0.0
    packed = zlib.compress(text.encode("utf-8", "surrogatepass"), level=6, wbits=-15)
    return 8 * len(packed) / len(text)


def _codes(text: str) -> npt.NDArray[np.uint8] | npt.NDArray[np.uint32]:
    if text.isascii():
        return np.frombuffer(text.encode(), dtype=np.uint8)
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
