"""Block hashes beside those of vLLM's own request hasher, for any tokens, salt, adapter and images."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvscope.cache.vllm_hashes import Lora, Media, block_hashes, event_hash, root_hash

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.filterwarnings("default"),  # torch and vLLM warn of themselves while they are imported
]

media = st.lists(
    st.tuples(st.text(min_size=1, max_size=8), st.integers(0, 12), st.integers(1, 30)), max_size=4
)
lora = st.none() | st.builds(Lora, name=st.text(min_size=1, max_size=9), path=st.text(max_size=300))


def laid_out(parts: list[tuple[str, int, int]]) -> list[Media]:
    found, at = [], 0
    for identifier, gap, length in parts:
        found.append(Media(identifier=identifier, offset=at + gap, length=length))
        at += gap + length
    return found


@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor"])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    blocks=st.tuples(st.lists(st.integers(0, 1 << 33), min_size=1, max_size=70), st.integers(1, 20)),
    salt=st.none() | st.text(max_size=40),
    adapter=lora,
    parts=media,
    seed=st.none() | st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12),
)
def test_the_same_hashes(
    monkeypatch: pytest.MonkeyPatch,
    algorithm: str,
    blocks: tuple[list[int], int],
    salt: str | None,
    adapter: Lora | None,
    parts: list[tuple[str, int, int]],
    seed: str | None,
) -> None:
    from vllm.lora.request import LoRARequest
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.request import Request

    tokens, block_size = blocks
    if seed is None:
        monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    else:
        monkeypatch.setenv("PYTHONHASHSEED", seed)
    function = get_hash_fn_by_name(algorithm)
    kv_cache_utils.init_none_hash(function)
    images = laid_out(parts)
    features: list[Any] = [
        MultiModalFeatureSpec(
            data=None,
            modality="image",
            identifier=each.identifier,
            mm_position=PlaceholderRange(offset=each.offset, length=each.length),
        )
        for each in images
    ]
    request = Request(
        "r",
        tokens,
        SamplingParams(max_tokens=1),
        None,
        mm_features=features,
        lora_request=None if adapter is None else LoRARequest(adapter.name, 1, adapter.path or "p"),
        cache_salt=salt,
        block_hasher=kv_cache_utils.get_request_block_hasher(block_size, function),
    )
    named = None if adapter is None else Lora(name=adapter.name, path=adapter.path or "p")
    given_seed = {} if seed is None else {"seed": seed}
    own = block_hashes(
        tokens, block_size, algorithm=algorithm, salt=salt, lora=named, media=images, **given_seed
    )
    assert root_hash(algorithm, **given_seed) == kv_cache_utils.NONE_HASH
    assert own == list(request.block_hashes)
    assert [event_hash(each) for each in own] == [
        kv_cache_utils.maybe_convert_block_hash(each) for each in request.block_hashes
    ]
