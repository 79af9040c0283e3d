"""Entropy of prompt texts."""

import numpy as np


def character_entropy(text: str) -> float:
    """Return the Shannon entropy of the text's characters in bits per character (0 for an empty text).

    H = -sum p(c) log2 p(c) over the code points c (Shannon 1948).
    """
    if not text:
        return 0.0
    if text.isascii():
        codes = np.frombuffer(text.encode(), dtype=np.uint8)
    else:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    counts = np.bincount(codes)
    shares = counts[counts > 0] / len(codes)
    return float(max(0.0, -(shares * np.log2(shares)).sum()))
