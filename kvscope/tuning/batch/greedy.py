"""Two greedy ways to give each row of a table its own order of fields.

Both take the group of rows that share a value, write that field first, and go on inside the group and with
the rows that are left. They differ in what a group is worth and in how they end.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from kvscope.tuning.batch.exact import MOST_FIELDS, MOST_ROWS, smallest_tree
from kvscope.tuning.batch.table import Ints, Plan, Row, Table

_Worth = Callable[["_Node", int, int], float]
_SAMPLE_ROWS = 512


def ggr(table: Table) -> Plan:
    """Return the plan of Greedy Group Recursion (Liu et al., MLSys 2025).

    A group of n rows with a value of L tokens is worth (n - 1) times the sum of the squares of L and of the
    tokens of fields that depend on it; here those that are the same in the whole group.
    """
    return _Planner(table, _Node.squared, exact=False).plan()


def grouped(table: Table) -> Plan:
    """Return kvscope's plan: a group is worth the tokens that it saves.

    These are (n - 1) times the tokens of all fields that are constant in the group. What is left of a few
    rows and fields is solved exactly.
    """
    return _Planner(table, _Node.saved, exact=True).plan()


class _Planner:
    def __init__(self, table: Table, worth: _Worth, *, exact: bool) -> None:
        self._table = table
        self._worth = worth
        self._exact = exact
        self._rows: list[Row] = []

    def plan(self) -> Plan:
        fields = tuple(range(len(self._table.fields)))
        todo: list[tuple[Ints, tuple[int, ...], tuple[int, ...]]] = [
            (np.arange(len(self._table.values)), (), fields)
        ]
        while todo:  # a stack, not recursion: a group a row deep would be too deep
            rows, before, left = todo.pop()
            parts = self._split(rows, before, left)
            todo.extend(reversed(parts))
        return tuple(self._rows)

    def _split(
        self, rows: Ints, before: tuple[int, ...], left: tuple[int, ...]
    ) -> list[tuple[Ints, tuple[int, ...], tuple[int, ...]]]:
        """Return the groups of ``rows`` in order, or put the rows down where nothing is left to share."""
        constant = tuple(field for field in left if _constant(self._table.values[rows, field]))
        before, left = before + constant, tuple(field for field in left if field not in constant)
        if len(rows) == 1 or not left:
            self._rows += [Row(row=int(row), fields=before + left) for row in rows]
            return []
        if self._exact and len(rows) <= MOST_ROWS and len(left) <= MOST_FIELDS:
            small = smallest_tree(self._table, rows.tolist(), left)
            self._rows += [Row(row=row, fields=before + fields) for row, fields in small]
            return []
        node = _Node(self._table, rows, left)
        groups, alone = node.groups(self._worth)
        parts = [(members, (*before, field), _without(left, field)) for field, members in groups]
        self._rows += [Row(row=int(row), fields=before + left) for row in alone] if not parts else []
        if parts and len(alone):
            parts.append((alone, before + left, ()))
        return parts


class _Node:
    """Rows and fields among which groups are looked for, most worth first."""

    def __init__(self, table: Table, rows: Ints, fields: Sequence[int]) -> None:
        self._table = table
        self._rows = rows
        self._fields = fields
        self._alive = np.ones(len(rows), dtype=bool)
        self._members: dict[tuple[int, int], Ints] = {}
        for field in fields:
            values = table.values[rows, field]
            order = np.argsort(values, kind="stable")
            found, starts = np.unique(values[order], return_index=True)
            for value, places in zip(found.tolist(), np.split(order, starts[1:]), strict=True):
                if len(places) > 1:
                    self._members[field, value] = places

    def groups(self, worth: _Worth) -> tuple[list[tuple[int, Ints]], Ints]:
        """Return disjoint groups as (field, rows), and the rows that share nothing any more."""
        heap = [(-worth(self, field, value), field, value) for field, value in self._members]
        heapq.heapify(heap)
        found = []
        while heap:
            stale, field, value = heapq.heappop(heap)
            places = self._living(field, value)
            if len(places) <= 1:
                continue
            now = -worth(self, field, value)
            if now > stale and heap and now > heap[0][0]:  # rows went to other groups since: look again later
                heapq.heappush(heap, (now, field, value))
                continue
            self._alive[places] = False
            found.append((field, self._rows[places]))
        return found, self._rows[self._alive]

    def squared(self, field: int, value: int) -> float:
        """Return (n - 1) times the squares of the tokens of each field that is constant in the group."""
        return sum(size**2 for size in self._sizes(field, value)) * self._others(field, value)

    def saved(self, field: int, value: int) -> float:
        """Return (n - 1) times the tokens of all fields that are constant: what is not computed again."""
        return sum(self._sizes(field, value)) * self._others(field, value)

    def _others(self, field: int, value: int) -> int:
        return len(self._living(field, value)) - 1

    def _sizes(self, field: int, value: int) -> Iterator[int]:
        """Yield the tokens of the fields that are constant in the group, judged by its first rows."""
        rows = self._rows[self._living(field, value)[:_SAMPLE_ROWS]]
        for other in self._fields:
            values = self._table.values[rows, other]
            if _constant(values):
                yield int(self._table.tokens[other][values[0]])

    def _living(self, field: int, value: int) -> Ints:
        places = self._members[field, value]
        living: Ints = places[self._alive[places]]
        if len(living) < len(places):
            self._members[field, value] = living
        return living


def _constant(values: Ints) -> bool:
    return bool(len(values)) and bool((values == values[0]).all())


def _without(fields: tuple[int, ...], gone: int) -> tuple[int, ...]:
    return tuple(field for field in fields if field != gone)
