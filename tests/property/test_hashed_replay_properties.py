"""Hashes stand for what they were made of: through JSON and back, every replay is the same."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.analysis.formats.block_traces import mooncake, mooncake_line
from kvscope.analysis.formats.hashed import hashed, hashed_line
from kvscope.analysis.formats.records import BlockHashes, BlockIds, LoggedRequest, Place, TokenIds
from kvscope.analysis.offline.hashing import Hasher, Salter
from kvscope.analysis.offline.load import load_requests
from kvscope.analysis.offline.replay_files import replay_loaded
from kvscope.analysis.offline.report import ReplayOptions

BLOCK_SIZE = 3
PLACE = Place(name="log:1", path="log")
# of few tokens and short, so that prompts begin alike
TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=14)
OUTPUTS = st.one_of(st.none(), st.integers(0, 9), st.lists(st.integers(0, 2), max_size=9))


@st.composite
def logs(draw: st.DrawFn) -> list[LoggedRequest]:
    at = 0.0
    found = []
    for number in range(draw(st.integers(1, 8))):
        at += draw(st.integers(0, 4))
        lasts = draw(st.one_of(st.none(), st.integers(0, 9)))
        found.append(
            LoggedRequest(
                request_id=f"r{number}",
                origin="log:1",
                at=at,
                finished_at=None if lasts is None else at + lasts,
                prompt=TokenIds(ids=draw(TOKENS)),
                output=draw(OUTPUTS),
                cached_tokens=draw(st.one_of(st.none(), st.integers(0, 9))),
                salt=draw(st.sampled_from([None, "s"])),
                model=draw(st.sampled_from([None, "m"])),
                lookup=draw(st.booleans()),
            )
        )
    return found


def figures(requests: list[LoggedRequest], **options: Any) -> Any:
    loaded = load_requests(requests, tokenizer=None, keep_ids=True)
    return replay_loaded(loaded, ReplayOptions(per_request=True, curve=True, **options))


@settings(max_examples=40)
@given(logs(), st.sampled_from([None, 12, 30]))
def test_hashed_prompts_replay_as_their_tokens(requests: list[LoggedRequest], blocks: int | None) -> None:
    hasher = Hasher(Salter(b"salt"), block_size=BLOCK_SIZE, tokenizer=None)
    read = []
    for each in requests:
        made = hasher.hashed(each)
        assert isinstance(made.prompt, BlockHashes)
        read.append(hashed(json.loads(json.dumps(hashed_line(made, made.prompt))), PLACE))
    options = {"num_blocks": blocks, "block_size": BLOCK_SIZE}
    again, source = figures(read, **options), figures(requests, **options)
    assert again.per_request == source.per_request
    assert (again.hit_rate, again.block_hit_rate) == (source.hit_rate, source.block_hit_rate)
    assert (again.points, again.exactness) == (source.points, source.exactness)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(0, 2)), min_size=1),
    st.sampled_from([None, 7]),
)
def test_a_trace_goes_through_mooncakes_form(
    prompts: list[tuple[list[int], int]], blocks: int | None
) -> None:
    requests = [
        LoggedRequest(
            request_id="r",
            origin="log:1",
            at=100.0 + number / 8,
            prompt=BlockIds(ids=ids, block_size=BLOCK_SIZE, scope="of a file"),
            prompt_tokens=len(ids) * BLOCK_SIZE - short,
        )
        for number, (ids, short) in enumerate(prompts)
    ]
    hasher = Hasher(Salter(b"salt"), block_size=16, tokenizer=None)
    lines = [mooncake_line(hasher.hashed(each), begins_at=100.0) for each in requests]
    read = [mooncake(json.loads(json.dumps(line)), PLACE) for line in lines]
    again, source = (figures(each, num_blocks=blocks) for each in (read, requests))
    assert (again.hit_tokens, again.queried_tokens) == (source.hit_tokens, source.queried_tokens)
    assert again.points == source.points
