"""Plans a batch: orders are made in several ways, and exact replay of the cache says which one is best."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from kvscope.cache.replay import ReplayRequest, replay
from kvscope.errors import UsageError
from kvscope.tuning.batch.greedy import ggr, grouped
from kvscope.tuning.batch.inputs import Batch
from kvscope.tuning.batch.table import Plan, Table, as_given, build, by_exchange_rule, in_one_order

AS_GIVEN = "given"
ROW_MARK = "{row}"
_TABLE_METHODS: Mapping[str, Callable[[Table], Plan]] = {
    AS_GIVEN: as_given,
    "sorted": lambda table: in_one_order(table, range(len(table.fields))),
    "exchange": by_exchange_rule,
    "ggr": ggr,
    "grouped": grouped,
}
METHODS = tuple(_TABLE_METHODS)


class Encoder(Protocol):
    """Turns a body into prompt tokens, as ``PromptTokenizer`` does."""

    def encode(self, api: str, body: Mapping[str, Any]) -> Sequence[int]:
        """Return the prompt tokens of ``body``; raises ``UsageError`` where it has none."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """The cache that the batch will run on; ``num_blocks`` None: without limit."""

    block_size: int
    num_blocks: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """The batch in its best order.

    ``lines`` are the lines to write, ``origins`` the line of the file that each was. ``hit_rates`` tells
    what each method reaches in replay, hit ÷ prompt tokens, one request after the other.
    """

    method: str
    hit_rates: Mapping[str, float]
    prompt_tokens: int
    lines: tuple[bytes, ...]
    origins: tuple[int, ...]

    @property
    def hit_rate_before(self) -> float:
        """What the file's own order reaches."""
        return self.hit_rates[AS_GIVEN]

    @property
    def hit_rate_after(self) -> float:
        """What the plan reaches."""
        return self.hit_rates[self.method]


def plan_requests(batch: Batch, encoder: Encoder, cache: Cache) -> BatchPlan:
    """Order requests as in a walk through their prefix tree: every shared prefix is used in one go.

    No other order has more hits, as long as the cache holds the longest prompt. Requests of different
    models or salts share nothing and stand apart. Raises ``UsageError`` naming the line without a prompt.
    """
    tokens = []
    for request in batch.requests:
        try:
            tokens.append(list(encoder.encode(request.api, request.body)))
        except UsageError as error:
            raise UsageError(f"line {request.line_number}: {error}") from error
    scopes = [
        (str(each.body.get("model", "")), str(each.body.get("cache_salt", ""))) for each in batch.requests
    ]
    given = list(range(len(tokens)))
    orders = {AS_GIVEN: given, "sorted": sorted(given, key=lambda place: (scopes[place], tokens[place]))}
    rates = {
        method: _hit_rate([tokens[place] for place in order], [scopes[place] for place in order], cache)
        for method, order in orders.items()
    }
    best = _best(rates)
    return BatchPlan(
        method=best,
        hit_rates=rates,
        prompt_tokens=sum(map(len, tokens)),
        lines=tuple(batch.requests[place].line for place in orders[best]),
        origins=tuple(batch.requests[place].line_number for place in orders[best]),
    )


def plan_rows(
    batch: Batch, encoder: Encoder, cache: Cache, *, movable: Sequence[str] | None, template: str
) -> BatchPlan:
    """Order rows, and in each row the ``movable`` fields (None: all).

    These come first, the others behind them as they were. A row's prompt is ``template`` with the row as a
    JSON object in place of ``{row}``. Raises ``UsageError`` for names that are no fields and for a template
    without the mark.
    """
    rows = [row.values for row in batch.rows]
    names = tuple(rows[0])
    chosen = names if movable is None else tuple(movable)
    if unknown := [name for name in chosen if name not in names]:
        raise UsageError(f"no field {unknown[0]!r}; the fields are {', '.join(names)}")
    if ROW_MARK not in template:
        raise UsageError(f"the template has no {ROW_MARK}: that is where the row goes")
    fixed = tuple(name for name in names if name not in chosen)
    table = build(rows, chosen, _sizes(rows, chosen, encoder))
    given = [_written(row, names) for row in rows]
    texts: dict[str, list[tuple[int, str]]] = {}
    for method, make in _TABLE_METHODS.items():
        texts[method] = [
            (row.row, _written(rows[row.row], [*(chosen[field] for field in row.fields), *fixed]))
            for row in make(table)
        ]
    texts[AS_GIVEN] = list(enumerate(given))
    rates = {}
    total = 0
    for method, written in texts.items():
        bodies = [{"prompt": template.replace(ROW_MARK, text)} for _, text in written]
        tokens = [encoder.encode("completion", body) for body in bodies]
        rates[method] = _hit_rate(tokens, [("", "")] * len(tokens), cache)
        total = total or sum(map(len, tokens))
    best = _best(rates)
    return BatchPlan(
        method=best,
        hit_rates=rates,
        prompt_tokens=total,
        lines=tuple(text.encode() for _, text in texts[best]),
        origins=tuple(batch.rows[place].line_number for place, _ in texts[best]),
    )


def _scope(body: Mapping[str, Any]) -> tuple[str, str]:
    """Return what parts caches: the model and the salt."""
    return str(body.get("model") or ""), str(body.get("cache_salt") or "")


def _sizes(
    rows: Sequence[Mapping[str, str]], names: Sequence[str], encoder: Encoder
) -> dict[tuple[str, str], int]:
    pieces = {(name, row[name]) for name in names for row in rows}
    return {
        (name, value): len(encoder.encode("completion", {"prompt": f"{_key(name)}{value}, "}))
        for name, value in pieces
    }


def _written(values: Mapping[str, str], names: Sequence[str]) -> str:
    return "{" + ", ".join(_key(name) + values[name] for name in names) + "}"


def _key(name: str) -> str:
    return f"{json.dumps(name, ensure_ascii=False)}: "


def _hit_rate(prompts: Sequence[Sequence[int]], scopes: Sequence[tuple[str, str]], cache: Cache) -> float:
    requests = (
        ReplayRequest(request_id=str(place), tokens=tokens, lora=scope[0] or None, salt=scope[1] or None)
        for place, (tokens, scope) in enumerate(zip(prompts, scopes, strict=True))
    )
    found = replay(requests, block_size=cache.block_size, num_blocks=cache.num_blocks)
    return found.hit_rate or 0.0


def _best(rates: Mapping[str, float]) -> str:
    """Return the method with the highest rate; of equals the one that changes least, which stands first."""
    return max(rates, key=lambda method: rates[method])
