"""Fixtures that several rooms of the tests share: the demo's model, both engines."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from kvscope.demo.engines import Engine, EngineOptions, free_port, start_builtin
from kvscope.demo.model import build_model
from kvscope.demo.vllm import start_vllm, vllm_installed

# a busy machine makes examples slow, which says nothing about what they test
settings.register_profile("kvscope", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kvscope")

pytest_plugins = ["tests.support.databases"]


@pytest.fixture(scope="session")
def tiny_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the demo's tokenizer and chat template, for `load_tokenizer`."""
    return build_model(tmp_path_factory.mktemp("tokenizer") / "model", weights=False)


@pytest.fixture
def builtin_engine(tiny_tokenizer: Path, tmp_path: Path) -> Iterator[Engine]:
    """A built-in engine with an empty cache; an agent may listen at its `options.otlp_endpoint`."""
    options = EngineOptions(
        model=tiny_tokenizer, otlp_endpoint=f"http://127.0.0.1:{free_port()}", time_scale=0.2
    )
    engine = start_builtin(options, tmp_path / "builtin-engine.log")
    yield engine
    engine.stop()


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The one real vLLM of a test session; its cache is warm with what other tests sent.

    An agent may listen at its `options.otlp_endpoint`, and at its `options.middleware_endpoint` for what does
    not pass a gateway; one test's agent at a time.
    """
    if not vllm_installed():
        pytest.fail("vLLM is not installed here: run `make install`, or leave these out by -m 'not vllm'")
    folder = tmp_path_factory.mktemp("vllm")
    options = EngineOptions(
        model=build_model(folder / "model", weights=True),
        otlp_endpoint=f"http://127.0.0.1:{free_port()}",
        middleware_endpoint=f"http://127.0.0.1:{free_port()}",
    )
    engine = start_vllm(options, folder / "vllm.log")
    yield engine
    engine.stop()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that need every span of the shared vLLM, and give real servers a second try.

    While nobody listens its exporter waits longer and longer (gRPC: up to two minutes) and drops what it
    holds; tests that run no receiver leave it so. The order of the others stays as it was shuffled.

    A machine that stalls for seconds can break what goes over sockets; the summary counts each second try
    and names it, so a test that needs one is seen.
    """
    items.sort(key=lambda item: "test_real_vllm" not in item.nodeid)
    for item in items:
        if "/integration/" in item.nodeid:
            item.add_marker(pytest.mark.flaky(reruns=1))
