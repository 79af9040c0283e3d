"""The best plan of a small table, by dynamic programming over sets of rows and fields."""

import functools
from collections.abc import Iterator, Sequence

from kvscope.tuning.batch.table import Plan, Row, Table

MOST_ROWS, MOST_FIELDS = 6, 4  # 3^6 ways to part the rows, 2^4 sets of fields


def smallest_tree(
    table: Table, rows: Sequence[int], fields: Sequence[int]
) -> list[tuple[int, tuple[int, ...]]]:
    """Return (row, order of its fields) with the fewest tokens in the prefix tree, in the tree's order.

    The first of the rows goes through some edge, a field with its value; a set of the rows that have this
    value goes with it. What follows inside the set and what is left outside are smaller problems of the
    same kind. Exponential in rows and fields.
    """
    values = {field: [int(table.values[row, field]) for row in rows] for field in fields}
    sizes = {field: table.tokens[field].tolist() for field in fields}

    @functools.cache
    def least(members: int, left: int) -> tuple[int, tuple[int, int] | None]:
        """Return the tree's tokens for sets as bits, and its first edge as (rows, field)."""
        if not members or not left:
            return 0, None
        first = (members & -members).bit_length() - 1
        best: tuple[int, tuple[int, int] | None] | None = None
        for place, field in enumerate(fields):
            if not left >> place & 1:
                continue
            value = values[field][first]
            same = sum(1 << row for row in _bits(members) if values[field][row] == value)
            for group in _subsets(same & ~(1 << first)):
                taken = group | 1 << first
                cost = (
                    sizes[field][value]
                    + least(taken, left & ~(1 << place))[0]
                    + least(members & ~taken, left)[0]
                )
                if best is None or cost < best[0]:
                    best = cost, (taken, place)
        return best or (0, None)

    def walk(members: int, left: int, before: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
        _, edge = least(members, left)
        if edge is None:
            yield from ((rows[row], before) for row in _bits(members))
            return
        taken, place = edge
        yield from walk(taken, left & ~(1 << place), (*before, fields[place]))
        yield from walk(members & ~taken, left, before)

    return list(walk((1 << len(rows)) - 1, (1 << len(fields)) - 1, ()))


def exact(table: Table) -> Plan:
    """Return the best plan of a table of few rows and fields."""
    found = smallest_tree(table, range(len(table.values)), range(len(table.fields)))
    return tuple(Row(row=row, fields=fields) for row, fields in found)


def _bits(members: int) -> Iterator[int]:
    while members:
        low = members & -members
        yield low.bit_length() - 1
        members ^= low


def _subsets(members: int) -> Iterator[int]:
    subset = members
    while True:
        yield subset
        if not subset:
            return
        subset = (subset - 1) & members
