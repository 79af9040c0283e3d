"""Reads keys of a Hugging Face ``config.json``, one clear line for each way in which one can be wrong."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.errors import UsageError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The part of a ``config.json`` that describes the language model, and the file's name for messages.

    ``defaults`` are the values that the model's configuration class has for keys that the file leaves out.
    """

    values: Mapping[str, Any]
    name: str
    defaults: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def get(self, key: str) -> Any:
        """Return a value, None where the file has none or null."""
        value = self.values.get(key)
        return self.defaults.get(key) if value is None else value

    def whole(self, *names: str) -> int:
        """Return the first of ``names`` that is there; else raises ``UsageError`` naming the first."""
        found = self.whole_or_none(*names)
        if found is None:
            others = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
            raise UsageError(f"{self.name} has no key {names[0]!r}{others}: without it the cache has no size")
        return found

    def whole_or_none(self, *names: str) -> int | None:
        """Return the first of ``names`` that is there, None when none is."""
        for name in names:
            value = self.get(name)
            if value is not None:
                return self.checked(name, value)
        return None

    def checked(self, name: str, value: Any) -> int:
        """Return ``value`` as a count of 1 or more; raises ``UsageError`` naming the key otherwise."""
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int or value < 1:
            raise UsageError(
                f"{self.name}: key {name!r} must be a whole number of 1 or more, not {value!r:.60}"
            )
        return int(value)

    def words(self, name: str, count: int) -> list[str] | None:
        """Return a list of one word a layer, None where there is none; raises ``UsageError`` on others."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, Sequence) or not all(isinstance(word, str) for word in value):
            raise UsageError(f"{self.name}: key {name!r} must be a list of words, not {value!r:.60}")
        if len(value) != count:
            raise UsageError(
                f"{self.name}: key {name!r} names {len(value)} layers, but the model has {count}"
            )
        return list(value)

    def indices(self, name: str) -> set[int]:
        """Return a list of layer numbers as a set, empty where there is none."""
        value = self.get(name)
        if value is None:
            return set()
        if not isinstance(value, Sequence) or not all(type(index) is int for index in value):
            raise UsageError(f"{self.name}: key {name!r} must be a list of layer numbers, not {value!r:.60}")
        return set(value)

    def bad(self, name: str, allowed: str) -> UsageError:
        """Return the error for a key whose value is not understood."""
        return UsageError(f"{self.name}: key {name!r} is {self.get(name)!r:.60}; allowed: {allowed}")
