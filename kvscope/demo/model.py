"""Builds a tiny language model on the spot, so that the demo downloads nothing.

The tokenizer is a byte-level BPE of 8,000 tokens, trained on the standard library's own sources; the
weights are random. Its answers are nonsense, its prefill is real work, and a prefix hit saves most of it.
"""

import json
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kvscope.errors import UsageError

MODEL_NAME = "tiny"
VOCABULARY = 8_000
MAX_POSITIONS = 16_384
_HIDDEN = 128
_INTERMEDIATE = 352
_LAYERS = 2
_HEADS = 4
_KV_HEADS = 2
_HEAD_DIM = _HIDDEN // _HEADS
_SEED = 20_261_129
_CORPUS_BYTES = 8_000_000
_RECIPE = 1  # raise it when anything below changes what is built
_SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")
_SKIPPED = frozenset({"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__"})

# Real templates render tools before the messages, in the order given; so does this one.
CHAT_TEMPLATE = """\
{%- if tools %}<|im_start|>tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif -%}
{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "dtype": "float32",
    "eos_token_id": 1,
    "head_dim": _HEAD_DIM,
    "hidden_act": "silu",
    "hidden_size": _HIDDEN,
    "initializer_range": 0.02,
    "intermediate_size": _INTERMEDIATE,
    "max_position_embeddings": MAX_POSITIONS,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": _HEADS,
    "num_hidden_layers": _LAYERS,
    "num_key_value_heads": _KV_HEADS,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 10_000.0, "rope_type": "default"},
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": VOCABULARY,
}


def build_model(folder: Path, *, weights: bool) -> Path:
    """Return ``folder`` with the tokenizer, and with the weights if asked; what is there is used again.

    Raises ``UsageError`` when ``folder`` holds something else.
    """
    stamp = folder / "kvscope-model.json"
    if folder.exists() and any(folder.iterdir()) and not stamp.exists():
        raise UsageError(f"{folder} is not empty and holds no model of the demo's; name another folder")
    recipe = {"recipe": _RECIPE}
    if not stamp.exists() or json.loads(stamp.read_text("utf-8")) != recipe:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            _write_tokenizer(scratch)
            (scratch / stamp.name).write_text(json.dumps(recipe), "utf-8")
            shutil.rmtree(folder, ignore_errors=True)
            scratch.replace(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    if weights and not (folder / "model.safetensors").exists():
        _write_weights(folder / "model.safetensors")
    return folder


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise UsageError(
            f"the standard library's sources gave {tokenizer.get_vocab_size()} tokens, not {VOCABULARY}; "
            "the demo needs a Python with its sources (a full installation)"
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, "utf-8")
    settings = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_POSITIONS,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), "utf-8")
    (folder / "config.json").write_text(json.dumps(_CONFIG, indent=2), "utf-8")
    generation = {"bos_token_id": 0, "eos_token_id": 1}
    (folder / "generation_config.json").write_text(json.dumps(generation), "utf-8")


def _corpus() -> Iterator[str]:
    """Yield sources of the standard library, in a fixed order, up to a fixed number of bytes."""
    root = Path(sysconfig.get_path("stdlib"))
    left = _CORPUS_BYTES
    for path in sorted(root.rglob("*.py")):
        if _SKIPPED.intersection(path.relative_to(root).parts):
            continue
        text = path.read_bytes().decode("utf-8", errors="replace")
        yield text
        left -= len(text)
        if left <= 0:
            return


def _write_weights(path: Path) -> None:
    """Write random weights; numpy's generator is seeded, so every build has the same."""
    from safetensors.numpy import save_file

    random = np.random.default_rng(_SEED)
    tensors = {name: _tensor(random, name, shape) for name, shape in _shapes()}
    scratch = path.with_suffix(".part")
    save_file(tensors, scratch, metadata={"format": "pt"})
    scratch.replace(path)


def _tensor(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    if name.endswith("norm.weight"):
        return np.ones(shape, dtype=np.float32)
    return random.standard_normal(shape, dtype=np.float32) * np.float32(_CONFIG["initializer_range"])


def _shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the names and shapes that a Llama checkpoint has (Hugging Face's names)."""
    yield "model.embed_tokens.weight", (VOCABULARY, _HIDDEN)
    for layer in range(_LAYERS):
        prefix = f"model.layers.{layer}."
        yield prefix + "self_attn.q_proj.weight", (_HEADS * _HEAD_DIM, _HIDDEN)
        yield prefix + "self_attn.k_proj.weight", (_KV_HEADS * _HEAD_DIM, _HIDDEN)
        yield prefix + "self_attn.v_proj.weight", (_KV_HEADS * _HEAD_DIM, _HIDDEN)
        yield prefix + "self_attn.o_proj.weight", (_HIDDEN, _HEADS * _HEAD_DIM)
        yield prefix + "mlp.gate_proj.weight", (_INTERMEDIATE, _HIDDEN)
        yield prefix + "mlp.up_proj.weight", (_INTERMEDIATE, _HIDDEN)
        yield prefix + "mlp.down_proj.weight", (_HIDDEN, _INTERMEDIATE)
        yield prefix + "input_layernorm.weight", (_HIDDEN,)
        yield prefix + "post_attention_layernorm.weight", (_HIDDEN,)
    yield "model.norm.weight", (_HIDDEN,)
    yield "lm_head.weight", (VOCABULARY, _HIDDEN)
