"""Which parts of free prompts repeat: messages that are made from a template, told from what people type."""

from collections import Counter

from kvscope.prompts.mining.features import Features

_MOST = 65_536  # features counted
_FEWEST_TIMES = 3
_SHARE = 0.02  # of the prompts must have a feature: in much traffic some words meet by chance
_FEWEST = 8  # features that make a template
_LEAST_PART = 0.2  # of a prompt
_HALVED_AT = 4096


class RepeatedText:
    """Counts features over prompts, in bounded memory."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._seen = 0

    def repeated(self, features: Features) -> Features | None:
        """Count a prompt; return the part of it that repeats, None where that is no template."""
        self._seen += 1
        counts = self._counts
        counts.update(features)
        if len(counts) > _MOST or self._seen > _HALVED_AT:
            self._age()
        enough = max(_FEWEST_TIMES, self._seen * _SHARE)
        found = frozenset(feature for feature in features if counts[feature] >= enough)
        return found if len(found) >= max(_FEWEST, _LEAST_PART * len(features)) else None

    def _age(self) -> None:
        """Count what was seen half, and forget what was seen once; what is left is what repeats."""
        self._seen //= 2
        self._counts = Counter({feature: n // 2 for feature, n in self._counts.items() if n > 1})
        if len(self._counts) > _MOST // 2:
            self._counts = Counter(dict(self._counts.most_common(_MOST // 4)))
