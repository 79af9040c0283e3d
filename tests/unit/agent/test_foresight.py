"""What is known of a prompt before it is sent, from texts alone."""

from collections.abc import Mapping
from typing import Any

import pytest

from kvscope.agent.foresight import Foresight
from kvscope.cache.index import BlockIndex
from kvscope.model.advice import FittedModel
from kvscope.model.telemetry import BlockRemoved, BlockStored, CacheEventBatch

ENGINES = ("http://one", "http://two")
BLOCK = 16
CHARS_A_TOKEN = 4


class Quarters:
    """Makes a token of each four characters."""

    def encode(self, api: str, body: Mapping[str, Any]) -> list[int]:
        del api
        text = str(body["prompt"])
        return [hash(text[at : at + 4]) % 50_000 for at in range(0, len(text), CHARS_A_TOKEN)]


class Caches:
    """The engines' caches, by their events."""

    def __init__(self) -> None:
        self.by_engine = {engine: BlockIndex() for engine in ENGINES}
        self._sequence = dict.fromkeys(ENGINES, 0)

    def apply(self, engine: str, *events: Any, at: float) -> None:
        number = self._sequence[engine]
        self._sequence[engine] += 1
        self.by_engine[engine].apply(
            CacheEventBatch(engine=engine, replica="0", sequence=number, at=at, events=events)
        )

    def store(self, engine: str, tokens: list[int], *, at: float = 1.0) -> None:
        full = len(tokens) // BLOCK
        self.apply(
            engine,
            BlockStored(
                block_hashes=tuple(range(1, full + 1)),
                parent_block_hash=None,
                token_ids=tuple(tokens[: full * BLOCK]),
                block_size=BLOCK,
            ),
            at=at,
        )


def prompt(tail: str) -> dict[str, Any]:
    stable = "".join(f"line {number:04} of the rules. " for number in range(160))
    return {"model": "m", "prompt": stable + tail}


@pytest.fixture
def caches() -> Caches:
    return Caches()


@pytest.fixture
def foresight(caches: Caches) -> Foresight:
    made = Foresight(Quarters(), engines=ENGINES, clock=lambda: 10.0)
    made.follow(caches.by_engine.get)
    return made


def test_a_prompt_is_known_by_the_text_that_it_shares_with_one_before(
    foresight: Foresight, caches: Caches
) -> None:
    old, new = prompt("old question " * 60), prompt("new question " * 60)
    assert foresight.cached_tokens("completion", new) == {}
    caches.store(ENGINES[1], foresight.encode("completion", old))
    foresight.encode("completion", old)
    shared = len(prompt("")["prompt"]) // CHARS_A_TOKEN
    known = foresight.cached_tokens("completion", new)
    assert set(known) == {ENGINES[1]}
    assert shared - 512 // CHARS_A_TOKEN - BLOCK < known[ENGINES[1]] <= shared
    assert known[ENGINES[1]] % BLOCK == 0
    whole = foresight.cached_tokens("completion", old)[ENGINES[1]]
    assert whole > known[ENGINES[1]]


@pytest.mark.parametrize(
    "other", [{"model": "n"}, {"cache_salt": "s"}, {"prompt": "x" + prompt("")["prompt"]}]
)
def test_another_model_salt_or_beginning_is_not_known(
    foresight: Foresight, caches: Caches, other: dict[str, Any]
) -> None:
    foresight.cached_tokens("completion", prompt(""))
    caches.store(ENGINES[0], foresight.encode("completion", prompt("")))
    foresight.encode("completion", prompt(""))
    assert foresight.cached_tokens("completion", prompt("") | other) == {}


def test_what_was_evicted_is_not_cached(foresight: Foresight, caches: Caches) -> None:
    body = prompt("")
    foresight.cached_tokens("completion", body)
    for engine in ENGINES:
        caches.store(engine, foresight.encode("completion", body))
    foresight.encode("completion", body)
    whole = foresight.cached_tokens("completion", body)
    assert whole[ENGINES[0]] == whole[ENGINES[1]] > 800
    kept = whole[ENGINES[0]] // BLOCK // 2
    caches.apply(ENGINES[0], BlockRemoved(block_hashes=tuple(range(kept + 1, 200))), at=5.0)
    half = foresight.cached_tokens("completion", body)
    assert half[ENGINES[1]] == whole[ENGINES[1]]
    assert 0 < half[ENGINES[0]] <= kept * BLOCK


def model(**ranges: tuple[float, float]) -> FittedModel:
    """TTFT of 0.1 s, 1 ms for each uncached token and 50 ms for each request in flight."""
    return FittedModel(
        name="ttft_linear",
        target="ttft_seconds",
        features=("uncached_tokens", "requests_in_flight"),
        coefficients={"intercept": 0.1, "uncached_tokens": 0.001, "requests_in_flight": 0.05},
        r2=0.9,
        mae_seconds=0.01,
        coverage_90=0.9,
        error_quantiles=(-0.1, 0.1),
        rows=100,
        ranges={"uncached_tokens": (0.0, 5000.0), "requests_in_flight": (0.0, 8.0)} | ranges,
        fitted_at=1.0,
    )


def test_the_first_token_is_foretold_by_the_model(foresight: Foresight, caches: Caches) -> None:
    body = prompt("")
    ask: dict[str, Any] = {"engine": ENGINES[0], "in_flight": 2}
    assert foresight.ttft_seconds("completion", body, **ask) is None
    foresight.foretell_with([model()])
    tokens = len(body["prompt"]) // CHARS_A_TOKEN
    # a token of four characters is what is assumed before any was counted
    assert foresight.ttft_seconds("completion", body, **ask) == pytest.approx(0.2 + tokens / 1000, abs=0.002)
    caches.store(ENGINES[0], foresight.encode("completion", body))
    foresight.encode("completion", body)
    cached = foresight.cached_tokens("completion", body)[ENGINES[0]]
    warm = foresight.ttft_seconds("completion", body, **ask)
    assert warm == pytest.approx(0.2 + (tokens - cached) / 1000, abs=0.002)
    cold = foresight.ttft_seconds("completion", body, engine=ENGINES[1], in_flight=2)
    assert cold == pytest.approx(0.2 + tokens / 1000, abs=0.002)


def test_more_than_was_ever_seen_counts_as_the_most(foresight: Foresight) -> None:
    foresight.foretell_with([model()])
    body = {"model": "m", "prompt": "x" * 4}
    seconds = foresight.ttft_seconds("completion", body, engine=ENGINES[0], in_flight=500)
    assert seconds == pytest.approx(0.1 + 0.001 + 8 * 0.05)


def test_nothing_is_kept_before_it_is_asked_for(foresight: Foresight) -> None:
    foresight.encode("completion", prompt(""))
    assert not foresight._marks
