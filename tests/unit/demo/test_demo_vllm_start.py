"""How a real vLLM is started, and what is said when it cannot be."""

import itertools
import json
from pathlib import Path

import pytest

from kvscope.demo import vllm
from kvscope.demo.engines import EngineOptions, answers, free_port
from kvscope.errors import UsageError

_OPTIONS = EngineOptions(model=Path("model"), otlp_endpoint="http://127.0.0.1:4317", blocks=800)


def test_without_vllm_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(vllm, "vllm_installed", lambda: False)
    with pytest.raises(UsageError, match="ENGINE=builtin"):
        vllm.start_vllm(_OPTIONS, tmp_path / "log")
    assert not list(tmp_path.iterdir())


def test_every_signal_is_switched_on_and_the_cache_is_small() -> None:
    words = vllm._argv(_OPTIONS, 8001, 5557, 5558)
    flags = dict(itertools.pairwise(words))
    assert flags["--num-gpu-blocks-override"] == "800"
    assert flags["--block-size"] == "32"
    assert flags["--otlp-traces-endpoint"] == "http://127.0.0.1:4317"
    assert {"--enable-prefix-caching", "--enable-prompt-tokens-details", "--enforce-eager"} < set(words)
    events = json.loads(flags["--kv-events-config"])
    # with a host in it, vLLM would connect to the address instead of binding it
    assert events["endpoint"] == "tcp://*:5557"
    assert events["replay_endpoint"] == "tcp://*:5558"


def test_nothing_is_downloaded_or_reported_and_the_plugin_knows_where_to_send() -> None:
    environment = vllm._environment(_OPTIONS)
    assert environment["HF_HUB_OFFLINE"] == environment["VLLM_NO_USAGE_STATS"] == "1"
    assert environment["KVSCOPE_OTLP_ENDPOINT"] == "http://127.0.0.1:4317"


def test_a_free_port_answers_nobody() -> None:
    assert not answers(f"http://127.0.0.1:{free_port()}/health")
