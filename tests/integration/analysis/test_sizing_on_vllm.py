"""Against a real vLLM server: the size of its cache, and its counts of tokens."""

import json
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvscope.cache.model_config import read_shape
from kvscope.cache.model_files import load_config
from kvscope.cache.sizing import SizeOptions, size
from kvscope.demo.engines import Engine
from kvscope.prompts.counters import load_counter
from kvscope.prompts.counting import count, read_subject

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(420)]


def cache_config(url: str) -> dict[str, str]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/metrics", timeout=30) as answer:
        page = answer.read().decode()
    found = [
        sample.labels
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "vllm:cache_config_info"
    ]
    return dict(found[0])


def test_the_servers_own_cache(vllm_server: Engine) -> None:
    told = cache_config(vllm_server.url)
    name, config = load_config(str(vllm_server.options.model))
    shape = read_shape(config, name=name)
    # 2 layers, 2 KV heads of 32, keys and values, float32
    block_bytes = int(told["block_size"]) * 2 * 2 * 32 * 2 * 4
    sizing = size(
        shape,
        SizeOptions(
            tokens=vllm_server.options.max_model_len,
            block_size=int(told["block_size"]),
            gpu_memory_bytes=int(told["num_gpu_blocks"]) * block_bytes,
        ),
    )
    assert sizing.block_bytes == block_bytes
    assert sizing.num_blocks == int(told["num_gpu_blocks"])
    assert sizing.kv_cache_size_tokens == int(told["kv_cache_size_tokens"])
    assert sizing.concurrent_requests == int(float(told["kv_cache_max_concurrency"]))


def test_the_server_counts_as_its_files_do(vllm_server: Engine) -> None:
    counters = [load_counter(f"files={vllm_server.options.model}"), load_counter(f"server={vllm_server.url}")]
    body = {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "你好, world"}]
    }
    for text in (
        "The quick brown fox.",
        "你好",
        "",
        json.dumps(body),
        json.dumps({"prompt": "Hi"}),
        '"a"\n"b"',
    ):
        files, server = count(read_subject(text), counters, context=20)
        assert (files.tokens, files.segments, files.context) == (
            server.tokens,
            server.segments,
            server.context,
        )
        assert files.template_tokens == server.template_tokens
