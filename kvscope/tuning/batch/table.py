"""A table whose rows become prompts, and what an order of its rows and fields would share.

Each row is written field by field, so a prompt is a path in a prefix tree and an edge of it a field with its
value. An edge is computed once, whichever rows go through it, when rows come in the order of the tree.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """``values[row, field]`` numbers the distinct values of a field from 0; ``tokens[field][value]`` is what
    the field with that value takes in a prompt, its name and punctuation included.
    """

    fields: tuple[str, ...]
    values: Ints
    tokens: tuple[Ints, ...]

    @property
    def total_tokens(self) -> int:
        """Tokens of all rows."""
        return sum(int(sizes[self.values[:, field]].sum()) for field, sizes in enumerate(self.tokens))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row at its new place: its number in the table, and its fields in the order to write them."""

    row: int
    fields: tuple[int, ...]


Plan = tuple[Row, ...]


def build(
    rows: Sequence[Mapping[str, str]], fields: Sequence[str], tokens: Mapping[tuple[str, str], int]
) -> Table:
    """Return the table of ``rows``; ``tokens`` tells the size of each (field, value) that they hold."""
    values = np.empty((len(rows), len(fields)), dtype=np.int64)
    sizes = []
    for place, field in enumerate(fields):
        numbers: dict[str, int] = {}
        values[:, place] = [numbers.setdefault(row[field], len(numbers)) for row in rows]
        sizes.append(np.array([tokens[field, value] for value in numbers], dtype=np.int64))
    return Table(fields=tuple(fields), values=values, tokens=tuple(sizes))


def computed_tokens(table: Table, plan: Plan) -> int:
    """Return how many tokens the plan computes when nothing is evicted: those of the prefix tree's edges."""
    seen: dict[tuple[int, int, int], int] = {}
    computed = 0
    for row in plan:
        node = 0
        for field in row.fields:
            value = int(table.values[row.row, field])
            edge = (node, field, value)
            if edge not in seen:
                seen[edge] = len(seen) + 1
                computed += int(table.tokens[field][value])
            node = seen[edge]
    return computed


def as_given(table: Table) -> Plan:
    """Return the order in which the table stands."""
    fields = tuple(range(len(table.fields)))
    return tuple(Row(row=row, fields=fields) for row in range(len(table.values)))


def in_one_order(table: Table, fields: Sequence[int]) -> Plan:
    """Return all rows with the same order of fields, sorted so that equal beginnings stand together."""
    columns = [table.values[:, field] for field in reversed(fields)]
    order = np.lexsort(columns) if columns else np.arange(len(table.values))
    return tuple(Row(row=row, fields=tuple(fields)) for row in order.tolist())


def by_exchange_rule(table: Table) -> Plan:
    """Return all rows with fields in descending L p / (1 - p), the best order of independent fields.

    L is a field's mean tokens, p the share of rows whose value was seen in an earlier row. The rule follows
    from exchanging two neighbours in the expected shared prefix, sum over i of L_i times p_1 … p_i.
    """
    rows = max(len(table.values), 1)

    def worth(field: int) -> float:
        again = 1 - len(table.tokens[field]) / rows
        mean = float(table.tokens[field][table.values[:, field]].mean()) if len(table.values) else 0.0
        return mean * again / max(1 - again, 1e-12)

    return in_one_order(table, sorted(range(len(table.fields)), key=worth, reverse=True))
