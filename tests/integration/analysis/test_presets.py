"""Presets equal the configuration classes of transformers whose defaults are a published model's."""

import pytest

from kvscope.cache.model_config import read_shape
from kvscope.cache.model_files import presets
from kvscope.cache.sizing import SizeOptions, size

# whose numbers the classes' defaults are; other classes' defaults are of models that nobody published
_DEFAULTS = (
    "deepseek-v3",
    "gpt-oss-120b",
    "jamba-v0.1",
    "llama-2-7b",
    "mistral-7b-v0.1",
    "mixtral-8x7b",
    "qwen3-next-80b-a3b",
)


@pytest.mark.parametrize("name", _DEFAULTS)
def test_a_preset_takes_what_the_class_describes(name: str) -> None:
    from transformers import CONFIG_MAPPING

    config = presets()[name]["config"]
    described = CONFIG_MAPPING[config["model_type"]]().to_dict()
    # the one key in which published files and defaults part
    described["max_position_embeddings"] = config["max_position_embeddings"]
    options = SizeOptions(tokens=32_768, gpu_memory_bytes=64 * 2**30)
    preset = size(read_shape(config, name=name), options)
    whole = size(read_shape(described, name=name), options)
    assert preset.layers == whole.layers
    assert preset.bytes == whole.bytes
    assert preset.concurrent_requests == whole.concurrent_requests
