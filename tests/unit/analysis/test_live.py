"""The live analyser, from what the gateway and the engine tell to causes in the store."""

import gzip
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kvscope.errors import RetryableIngestError, UnreachableError
from kvscope.model.prompt import Prompt
from kvscope.model.request import RequestPart, Source, Status
from kvscope.model.telemetry import BlockRemoved, BlockStored, CacheEvent, CacheEventBatch
from kvscope.pipeline.contracts import Batch

DATA = Path(__file__).parents[2] / "data" / "cache"
ENGINE = "http://127.0.0.1:1"
SYSTEM = " ".join(f"Rule {number}: answer politely and check the account." for number in range(40))
MakeRig = Callable[..., Any]


def prompt(request_id: str, text: str, at: float, **more: Any) -> Prompt:
    body = {"messages": [{"role": "system", "content": text}, {"role": "user", "content": "Hello?"}]}
    given = {"api": "chat", "route": "support", "engine": ENGINE, "body": body, "sent_body": body} | more
    return Prompt(request_id=request_id, arrived_at=at, **given)


def part(request_id: str, source: Source = Source.GATEWAY, **values: Any) -> Batch:
    return Batch(parts=[RequestPart(request_id=request_id, source=source, values=values)])


def tokens_of(rig: Any, sent: Prompt) -> int:
    return len(rig.analyser._tokenizer.encode(sent.api, sent.sent_body))


def finish(rig: Any, sent: Prompt, cached: int | None, **more: Any) -> None:
    """Commit what the gateway tells when a request is over, and wait until the analyser has heard it."""
    values = {
        "prompt_tokens": tokens_of(rig, sent),
        "cached_tokens": cached,
        "status": Status.OK,
        "route": sent.route,
        "ttft_client_seconds": 0.1,
        "e2e_seconds": 0.2,
    }
    tell(rig, part(sent.request_id, **(values | more)))


def tell(rig: Any, batch: Batch) -> None:
    rig.writer.offer(batch).result(timeout=10)
    assert rig.analyser.drain()
    rig.writer.offer(part("flush", route="x")).result(timeout=10)


def records(rig: Any) -> dict[str, Any]:
    return {record.request_id: record for record in rig.store.reader.requests()}


def test_from_prompts_and_usage_to_causes_in_the_store(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.configure()
    rig.start()
    first = prompt("a", f"Time: 2026-11-29 17:31:05\n{SYSTEM}", rig.now)
    second = prompt("b", f"Time: 2026-11-29 18:44:10\n{SYSTEM}", rig.now + 1)
    for sent in (first, second):
        rig.analyser.arrived(sent)
        finish(rig, sent, 0)
    told = records(rig)
    for request_id in "ab":
        causes = told[request_id].causes
        assert causes is not None
        assert sum(causes.values()) == told[request_id].prompt_tokens
        assert told[request_id].sources["causes"] == "analysis"
    assert told["a"].causes.keys() == {"cold", "granularity"}
    assert told["b"].causes["diverged"] > 300
    row = next(row for row in rig.store.reader.misses() if row.cause == "diverged")
    assert (row.route, row.role, row.message_index, row.value_kind) == ("support", "system", 0, "timestamp")
    assert (row.example_char_start, row.example_char_end) == (6, 25)
    assert rig.metric("kvscope_analysed_requests_total", result="attributed") == 2
    assert [sent.request_id for sent in rig.analyser.window()] == ["a", "b"]


def test_order_of_sources_and_repeats_do_not_matter(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.configure()
    rig.start()
    sent = prompt("a", SYSTEM, rig.now)
    rig.analyser.arrived(sent)
    tell(rig, part("a", Source.PLUGIN, cached_tokens=0))
    assert rig.metric("kvscope_analysed_requests_total", result="attributed") == 0
    tell(rig, part("a", Source.SPAN, prompt_tokens=tokens_of(rig, sent), ttft_seconds=0.1))
    causes = records(rig)["a"].causes
    assert causes is not None
    tell(rig, part("a", Source.GATEWAY, cached_tokens=0, prompt_tokens=1))
    assert records(rig)["a"].causes == causes
    assert rig.metric("kvscope_analysed_requests_total", result="attributed") == 1


def test_cached_tokens_that_stay_unknown_leave_no_causes(make_rig: MakeRig) -> None:
    rig = make_rig(cached_tokens_timeout_seconds=30)
    rig.configure()
    rig.start()
    sent = prompt("a", SYSTEM, rig.now)
    rig.analyser.arrived(sent)
    finish(rig, sent, None)
    rig.now += 31
    rig.analyser._worker.put(None)  # a tick
    assert rig.analyser.drain()
    finish(rig, sent, 0)
    assert records(rig)["a"].causes is None
    assert rig.metric("kvscope_analysed_requests_total", result="given_up") == 1


def test_prompts_wait_until_the_block_size_is_known(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.start()
    for at, request_id in enumerate("ab"):
        sent = prompt(request_id, SYSTEM, rig.now + at)
        rig.analyser.arrived(sent)
        finish(rig, sent, 0 if at == 0 else 416)
    assert records(rig)["a"].causes is None
    rig.configure()
    tell(rig, part("c", prompt_tokens=1))
    told = records(rig)
    assert told["a"].causes.keys() == {"cold", "granularity"}
    assert sum(told["b"].causes.values()) + 416 == told["b"].prompt_tokens
    assert told["b"].causes.keys() <= {"evicted", "granularity"}


def test_without_a_block_size_for_long_the_causes_are_unknown(make_rig: MakeRig) -> None:
    rig = make_rig(block_size_timeout_seconds=5)
    rig.start()
    sent = prompt("a", SYSTEM, rig.now)
    rig.analyser.arrived(sent)
    finish(rig, sent, 0)
    rig.now += 6
    tell(rig, part("c", prompt_tokens=1))
    assert records(rig)["a"].causes == {"unknown": tokens_of(rig, sent)}


def test_block_size_from_events(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.start()
    stored = BlockStored(block_hashes=(1,), parent_block_hash=None, token_ids=tuple(range(16)), block_size=16)
    rig.analyser.on_events(
        CacheEventBatch(engine=ENGINE, replica="0", sequence=0, at=rig.now, events=(stored,))
    )
    sent = prompt("a", SYSTEM, rig.now)
    rig.analyser.arrived(sent)
    finish(rig, sent, 0)
    assert records(rig)["a"].causes["granularity"] == (tokens_of(rig, sent) - 1) % 16 + 1


@pytest.mark.parametrize(
    ("sent", "caching"),
    [({"prompt_logprobs": 1}, True), ({"prompt_logprobs": 0}, True), ({}, False)],
)
def test_prompts_that_are_not_looked_up(make_rig: MakeRig, sent: dict[str, Any], caching: bool) -> None:
    rig = make_rig()
    rig.configure(prefix_caching=caching)
    rig.start()
    plain = prompt("a", SYSTEM, rig.now)
    asked = prompt("a", SYSTEM, rig.now, sent_body={**plain.body, **sent})
    rig.analyser.arrived(asked)
    finish(rig, asked, 0)
    assert records(rig)["a"].causes == {"disabled": tokens_of(rig, asked)}


def test_another_number_of_tokens_than_the_engines_is_counted_and_not_guessed(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.configure()
    rig.start()
    sent = prompt("a", SYSTEM, rig.now)
    rig.analyser.arrived(sent)
    finish(rig, sent, 32, prompt_tokens=100)
    assert records(rig)["a"].causes == {"granularity": 4, "unknown": 64}
    assert rig.metric("kvscope_analyser_token_mismatches_total") == 1


def test_requests_without_a_prompt_and_prompts_without_tokens(make_rig: MakeRig) -> None:
    class Unreachable:
        def encode(self, api: str, body: Mapping[str, Any]) -> list[int]:
            raise UnreachableError("no server")

    rig = make_rig(Unreachable())
    rig.configure()
    rig.start()
    rig.analyser.arrived(prompt("a", SYSTEM, rig.now))
    tell(rig, part("a", prompt_tokens=100, cached_tokens=0))
    tell(rig, part("observed", Source.PLUGIN, prompt_tokens=100, cached_tokens=32, engine=ENGINE))
    assert records(rig)["a"].causes == {"granularity": 4, "unknown": 96}
    assert records(rig)["observed"].causes == {"granularity": 4, "unknown": 64}
    assert rig.metric("kvscope_analyser_failures_total", step="tokenizer") == 1


def test_a_request_that_the_engine_refused_was_not_computed(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.configure()
    rig.start()
    refused = prompt("a", SYSTEM, rig.now)
    rig.analyser.arrived(refused)
    tell(rig, part("a", status=Status.REJECTED, e2e_seconds=0.01))
    again = prompt("b", SYSTEM, rig.now + 1)
    rig.analyser.arrived(again)
    finish(rig, again, 0)
    assert records(rig)["b"].causes.keys() == {"cold", "granularity"}


def test_changed_prompts_are_located_in_what_was_sent(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.configure()
    rig.start()
    for at, request_id in enumerate("ab"):
        asked = {"messages": [{"role": "system", "content": f"Time: 17:31:0{at}\n{SYSTEM}"}]}
        sent = {"messages": [{"role": "system", "content": f"{SYSTEM}\nTime: 17:31:0{at}"}]}
        given = prompt(request_id, "", rig.now + at, body=asked, sent_body=sent)
        rig.analyser.arrived(given)
        finish(rig, given, 0 if at == 0 else 416)
    causes = records(rig)["b"].causes
    assert "diverged" not in causes
    assert rig.analyser.window()[0].body["messages"][0]["content"].startswith("Time")


def test_a_full_queue_drops_and_counts_and_a_fault_costs_one_request(make_rig: MakeRig) -> None:
    rig = make_rig(queue_items=3)
    rig.configure()
    for number in range(5):
        rig.analyser.arrived(prompt(str(number), SYSTEM, rig.now))
    rig.analyser.on_committed(part("0", cached_tokens=1))
    rig.analyser.on_events(CacheEventBatch(engine=ENGINE, replica="0", sequence=0, at=0.0, events=()))
    assert rig.metric("kvscope_analyser_dropped_total", what="prompt") == 2
    assert rig.metric("kvscope_analyser_dropped_total", what="parts") == 1
    assert rig.metric("kvscope_analyser_dropped_total", what="events") == 1
    rig.start()
    assert rig.analyser.drain()
    tell(rig, part("0", prompt_tokens=5, cached_tokens=50))  # impossible: counted, and the thread lives on
    assert rig.metric("kvscope_analyser_failures_total", step="analysis") == 1
    finish(rig, prompt("1", SYSTEM, rig.now), 0)
    assert records(rig)["1"].causes is not None
    rig.analyser.stop()
    rig.analyser.stop()
    rig.analyser.arrived(prompt("late", SYSTEM, rig.now))
    assert rig.metric("kvscope_analyser_dropped_total", what="prompt") == 3


def test_results_wait_while_the_store_has_no_room(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.configure()
    rig.start()
    offered: list[Batch] = []

    class Full:
        refusing = True

        def offer(self, batch: Batch) -> Any:
            if self.refusing:
                raise RetryableIngestError("full")
            offered.append(batch)

    full = rig.analyser._outbox._sink = Full()
    sent = prompt("a", SYSTEM, rig.now)
    rig.analyser.arrived(sent)
    finish(rig, sent, 0)
    assert offered == []
    full.refusing = False
    rig.analyser._worker.put(None)
    assert rig.analyser.drain()
    assert [given.parts[0].request_id for given in offered] == ["a"]


def test_memory_is_bounded(make_rig: MakeRig) -> None:
    rig = make_rig(open_requests=5, window_prompts=3, window_bytes=10_000)
    rig.configure()
    rig.start()
    for number in range(20):
        rig.analyser.arrived(prompt(str(number), "Be brief.", rig.now))
    assert rig.analyser.drain()
    assert [sent.request_id for sent in rig.analyser.window()] == ["17", "18", "19"]
    rig.analyser.arrived(prompt("big", "x " * 6_000, rig.now))
    assert rig.analyser.drain()
    assert rig.analyser.window() == []
    assert len(rig.analyser._open) == 5
    assert rig.metric("kvscope_analysed_requests_total", result="given_up") == 16


def recorded_batches() -> list[tuple[float, Any]]:
    """Return the recorded run as what the agent hears, by time: prompts, events, then answers."""
    heard: list[tuple[float, Any]] = []
    with gzip.open(DATA / "vllm-0.32.0-sequential.jsonl.gz", "rt") as lines:
        for row in map(json.loads, lines):
            body = row["body"]
            sent = Prompt(
                request_id=row["request_id"],
                api="chat",
                route=row["kind"],
                arrived_at=row["sent_at"],
                body=body,
                sent_body=body,
                engine=ENGINE,
            )
            answer = part(
                row["request_id"],
                prompt_tokens=row["prompt_tokens"],
                cached_tokens=row["cached_tokens"],
                ttft_client_seconds=row["first_byte_at"] - row["sent_at"],
                e2e_seconds=row["done_at"] - row["sent_at"],
                route=row["kind"],
                status=Status.OK,
            )
            heard += [(row["sent_at"], sent), (row["done_at"], answer)]
    with gzip.open(DATA / "vllm-0.32.0-sequential-events.jsonl.gz", "rt") as lines:
        for row in map(json.loads, lines):
            events: list[CacheEvent] = []
            for event in row["events"]:
                if event["type"] == "BlockRemoved":
                    events.append(BlockRemoved(block_hashes=tuple(event["block_hashes"])))
                    continue
                keys = event["extra_keys"]
                events.append(
                    BlockStored(
                        block_hashes=tuple(event["block_hashes"]),
                        parent_block_hash=event["parent_block_hash"],
                        token_ids=tuple(event["token_ids"]),
                        block_size=event["block_size"],
                        extra_keys=None if keys is None else tuple(tuple(k) if k else None for k in keys),
                    )
                )
            batch = CacheEventBatch(
                engine=ENGINE, replica="0", sequence=row["sequence"], at=row["at"], events=tuple(events)
            )
            heard.append((row["at"], batch))
    return sorted(heard, key=lambda item: item[0])


def test_a_recorded_run_live(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.start()
    heard = recorded_batches()
    rig.now = heard[0][0]  # the block size comes with the first events
    for _, item in heard:
        match item:
            case Prompt():
                rig.analyser.arrived(item)
            case CacheEventBatch():
                rig.analyser.on_events(item)
            case answer:
                rig.writer.offer(answer).result(timeout=10)
    assert rig.analyser.drain()
    tell(rig, part("flush", route="x"))
    told = [record for record in records(rig).values() if record.request_id != "flush"]
    assert len(told) == 160
    for record in told:
        assert record.cached_tokens + sum(record.causes.values()) == record.prompt_tokens
    (total,) = rig.store.reader.hits("total")
    assert (total.prompt_tokens, total.cached_tokens) == (101_894, 45_728)
    assert total.causes == {
        "cold": 28_918,
        "diverged": 18_634,
        "granularity": 4_326,
        "evicted": 2_208,
        "isolated": 2_080,
    }
    assert rig.metric("kvscope_analyser_token_mismatches_total") == 0


def sequence(request_id: str, piece: str, source: Source = Source.PLUGIN, **values: int) -> Batch:
    return Batch(parts=[RequestPart(request_id=request_id, source=source, values=values, piece=piece)])


def test_several_answers_to_one_prompt_are_counted_once_all_are_told(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.configure()
    rig.start()
    first = prompt("a", SYSTEM, rig.now)
    body = {**first.body, "n": 3}
    sent = prompt("a", SYSTEM, rig.now, body=body, sent_body=body)
    tokens = tokens_of(rig, sent)
    rig.analyser.arrived(sent)
    tell(rig, sequence("a", "g", Source.GATEWAY, prompt_tokens=tokens, output_tokens=6))
    for piece, cached in (("s1", 0), ("s2", 64), ("s3", 64)):
        assert records(rig)["a"].causes is None
        tell(rig, sequence("a", piece, prompt_tokens=tokens, output_tokens=2, cached_tokens=cached))
        tell(rig, sequence("a", piece, prompt_tokens=tokens, output_tokens=2, cached_tokens=cached))
    told = records(rig)["a"]
    assert (told.prompt_tokens, told.cached_tokens, told.output_tokens) == (3 * tokens, 128, 6)
    assert sum(told.causes.values()) == 3 * tokens - 128
    assert rig.metric("kvscope_analyser_token_mismatches_total") == 0


def test_a_lost_report_of_one_sequence_leaves_the_sums_unknown_not_small(make_rig: MakeRig) -> None:
    rig = make_rig(cached_tokens_timeout_seconds=30)
    rig.configure()
    rig.start()
    body = {"n": 3, "messages": [{"role": "user", "content": SYSTEM}]}
    sent = prompt("a", SYSTEM, rig.now, body=body, sent_body=body)
    rig.analyser.arrived(sent)
    tokens = tokens_of(rig, sent)
    tell(rig, sequence("a", "g", Source.GATEWAY, prompt_tokens=tokens, output_tokens=6))
    tell(rig, part("a", Source.GATEWAY, status=Status.OK, engine="http://e"))
    for piece in ("s1", "s2"):
        tell(rig, sequence("a", piece, prompt_tokens=tokens, output_tokens=2, cached_tokens=64))
    rig.now += 31
    rig.analyser._worker.put(None)  # a tick
    assert rig.analyser.drain()
    tell(rig, part("b", Source.GATEWAY, status=Status.OK))  # what was found before is written too
    told = records(rig)["a"]
    assert (told.prompt_tokens, told.cached_tokens, told.output_tokens) == (None, None, None)
    assert told.sequences == 3
    tell(rig, sequence("a", "s3", prompt_tokens=tokens, output_tokens=2, cached_tokens=64))  # late, not lost
    told = records(rig)["a"]
    assert (told.prompt_tokens, told.cached_tokens, told.output_tokens) == (3 * tokens, 192, 6)


def test_sequences_of_a_request_whose_prompt_was_not_seen_add_up(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.configure()
    rig.start()
    for piece, cached in (("s1", 0), ("s2", 64), ("s2", 64), ("s3", 32)):
        tell(rig, sequence("a", piece, prompt_tokens=100, cached_tokens=cached))
    told = records(rig)["a"]
    assert (told.prompt_tokens, told.cached_tokens) == (300, 96)
    assert sum(told.causes.values()) == 204
    assert sum(row.tokens for row in rig.store.reader.misses()) == 204


def test_a_prompt_that_cannot_be_compared_costs_those_behind_it_nothing(make_rig: MakeRig) -> None:
    class OddTokens:
        def encode(self, api: str, body: Mapping[str, Any]) -> list[int]:
            del api
            return [-1] if body.get("odd") else list(range(100))

    rig = make_rig(tokenizer=OddTokens())
    rig.start()
    for number, more in enumerate(({"odd": True}, {})):
        body = {"messages": [{"role": "user", "content": "x"}]} | more
        rig.analyser.arrived(prompt(str(number), "", rig.now, body=body, sent_body=body))
    rig.configure()  # both have waited for the block size
    tell(rig, part("1", prompt_tokens=100, cached_tokens=0, status=Status.OK))
    assert records(rig)["1"].causes is not None
    assert rig.metric("kvscope_analysed_requests_total", result="attributed") == 1
    assert rig.metric("kvscope_analyser_failures_total", step="analysis") == 1
