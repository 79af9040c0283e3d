"""A radix tree of token sequences: the known prompt that a new one has most in common with."""

import dataclasses
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.uint32]
Item = TypeVar("Item")


@dataclasses.dataclass(slots=True, eq=False)
class _Node(Generic[Item]):
    """The tokens from the parent's end to ``end`` of all items below, and the newest of these items.

    ``items`` end here. An edge holds no tokens of its own: they are those of the newest item.
    """

    end: int
    newest: "tuple[int, Item, Tokens] | None" = None
    children: "dict[int, _Node[Item]]" = dataclasses.field(default_factory=dict)
    items: dict[int, tuple[Item, Tokens]] = dataclasses.field(default_factory=dict)


class RadixTree(Generic[Item]):
    """Items by their token sequences; a lookup goes down one path, however many items there are."""

    def __init__(self) -> None:
        self._root: _Node[Item] = _Node(0)

    def __bool__(self) -> bool:
        return self._root.newest is not None

    def add(self, tokens: Tokens, number: int, item: Item) -> None:
        """Add an item under a number that is larger than those before it; sequences may be alike."""
        entry = number, item, tokens
        node = self._root
        while True:
            node.newest = entry
            if node.end == len(tokens):
                break
            child = node.children.get(int(tokens[node.end]))
            if child is None:
                child = node.children[int(tokens[node.end])] = _Node(len(tokens))
            else:
                same = _common(tokens, _tokens_of(child), node.end, min(child.end, len(tokens)))
                if same < child.end:
                    child = self._split(node, child, same)
            node = child
        node.items[number] = item, tokens

    def remove(self, tokens: Tokens, number: int) -> None:
        """Remove the item of that number and sequence; raises ``KeyError`` where there is none."""
        path = [self._root]
        while path[-1].end < len(tokens):
            path.append(path[-1].children[int(tokens[path[-1].end])])
        del path[-1].items[number]
        for at in range(len(path) - 1, -1, -1):
            node = path[at]
            if at and not node.items and len(node.children) < 2:  # noqa: PLR2004 - it tells nothing apart
                self._pass_over(path[at - 1], node)
            elif node.newest is not None and node.newest[0] == number:
                node.newest = _newest(node)

    def nearest(self, tokens: Tokens) -> tuple[Item, int] | None:
        """Return the newest of the items with the longest common prefix, and its length; None if empty."""
        node = self._root
        while node.end < len(tokens):
            child = node.children.get(int(tokens[node.end]))
            if child is None:
                break
            same = _common(tokens, _tokens_of(child), node.end, min(child.end, len(tokens)))
            node = child
            if same < child.end:
                return None if child.newest is None else (child.newest[1], same)
        return None if node.newest is None else (node.newest[1], node.end)

    def _split(self, parent: _Node[Item], child: _Node[Item], end: int) -> _Node[Item]:
        """Put a node between both that ends at ``end``."""
        tokens = _tokens_of(child)
        between: _Node[Item] = _Node(end, newest=child.newest, children={int(tokens[end]): child})
        parent.children[int(tokens[parent.end])] = between
        return between

    def _pass_over(self, parent: _Node[Item], node: _Node[Item]) -> None:
        """Take out a node without items: its only child takes its place, if it has one."""
        first = next(first for first, child in parent.children.items() if child is node)
        if node.children:
            (parent.children[first],) = node.children.values()
        else:
            del parent.children[first]


def _tokens_of(node: _Node[Item]) -> Tokens:
    """Return tokens that lead through the node; each has an item at or below it."""
    if node.newest is None:
        raise AssertionError("a node without items")
    return node.newest[2]


def _newest(node: _Node[Item]) -> tuple[int, Item, Tokens] | None:
    below = [child.newest for child in node.children.values() if child.newest is not None]
    here = [(number, item, tokens) for number, (item, tokens) in node.items.items()]
    return max([*below, *here], key=lambda entry: entry[0], default=None)


def _common(one: Tokens, other: Tokens, start: int, end: int) -> int:
    """Return where the two first differ between ``start`` and ``end``, ``end`` where they do not."""
    unlike = np.flatnonzero(one[start:end] != other[start:end])
    return start + int(unlike[0]) if len(unlike) else end
