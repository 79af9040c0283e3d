"""Plans of tables against brute force: nothing is lost, the exact one is the best, ours is near it."""

import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from kvscope.tuning.batch.exact import exact
from kvscope.tuning.batch.greedy import ggr, grouped
from kvscope.tuning.batch.table import Plan, Row, Table, as_given, build, by_exchange_rule, computed_tokens

FIELDS = "abcd"


@st.composite
def tables(draw: st.DrawFn, rows: int = 12, fields: int = 4) -> Table:
    names = FIELDS[: draw(st.integers(1, fields))]
    values = st.fixed_dictionaries({name: st.sampled_from("xyz") for name in names})
    found = draw(st.lists(values, min_size=1, max_size=rows))
    tokens = {(name, value): draw(st.integers(0, 40)) for name in names for value in "xyz"}
    return build(found, names, tokens)


def least(table: Table) -> int:
    """Try every order of fields in every row."""
    orders = list(itertools.permutations(range(len(table.fields))))
    plans = itertools.product(orders, repeat=len(table.values))
    return min(computed_tokens(table, _plan(plan)) for plan in plans)


def _plan(orders: Sequence[tuple[int, ...]]) -> Plan:
    return tuple(Row(row=row, fields=fields) for row, fields in enumerate(orders))


@given(tables(rows=4, fields=3))
def test_the_exact_plan_is_the_best_of_all(table: Table) -> None:
    assert computed_tokens(table, exact(table)) == least(table)


@given(tables())
def test_every_plan_holds_each_row_once_and_shares_no_less_than_nothing(table: Table) -> None:
    for plan in (as_given(table), by_exchange_rule(table), ggr(table), grouped(table)):
        assert sorted(row.row for row in plan) == list(range(len(table.values)))
        assert all(sorted(row.fields) == list(range(len(table.fields))) for row in plan)
        assert computed_tokens(table, plan) <= table.total_tokens


@given(tables())
def test_rows_come_in_the_order_of_the_tree(table: Table) -> None:
    """A prefix is used by rows that stand together, so that a cache of one prompt is enough."""
    for plan in (ggr(table), grouped(table), by_exchange_rule(table)):
        paths = [[(field, int(table.values[row.row, field])) for field in row.fields] for row in plan]
        computed = 0
        for before, path in itertools.pairwise([[], *paths]):
            shared = len(
                list(itertools.takewhile(lambda two: two[0] == two[1], zip(before, path, strict=False)))
            )
            computed += sum(int(table.tokens[field][value]) for field, value in path[shared:])
        assert computed == computed_tokens(table, plan)


@given(tables(rows=6, fields=4))
def test_ours_is_exact_on_small_tables(table: Table) -> None:
    best = computed_tokens(table, exact(table))
    assert computed_tokens(table, grouped(table)) == best
    assert computed_tokens(table, ggr(table)) >= best
