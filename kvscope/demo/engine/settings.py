"""What the built-in engine is told on its command line."""

import dataclasses
from pathlib import Path

from kvscope.errors import ConfigError
from kvscope.model.cache_config import BUILT_IN_ENGINE

ENGINE_HEADER = "x-kvscope-engine"
FINGERPRINT = BUILT_IN_ENGINE


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long the modelled engine takes; the defaults were fitted to the demo's model on two CPU cores.

    Prefill takes ``base + per_token * new + per_pair * new * (cached + new / 2)`` seconds: a fixed part, the
    linear layers, and attention of each new token to all before it.
    """

    base_seconds: float = 0.012
    per_token_seconds: float = 30e-6
    per_pair_seconds: float = 8e-9
    decode_seconds: float = 0.004  # per generated token
    scale: float = 1.0  # multiplies all of the above

    def prefill_seconds(self, *, new_tokens: int, cached_tokens: int) -> float:
        """Return the time of one prefill."""
        pairs = new_tokens * (cached_tokens + new_tokens / 2)
        linear = self.per_token_seconds * new_tokens
        return self.scale * (self.base_seconds + linear + self.per_pair_seconds * pairs)

    def step_seconds(self) -> float:
        """Return the time of one decoding step."""
        return self.scale * self.decode_seconds


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The engine's settings; addresses that are None turn a signal off."""

    tokenizer: Path
    model: str = "tiny-builtin"
    host: str = "127.0.0.1"
    port: int = 8000
    block_size: int = 32
    blocks: int = 1_200  # one of them is vLLM's null block
    max_model_len: int = 8_192
    otlp_endpoint: str | None = None  # of a gRPC receiver
    kv_events: str | None = None  # address to bind a ZMQ PUB socket to
    timing: Timing = dataclasses.field(default_factory=Timing)

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ConfigError(f"--block-size must be at least 1, not {self.block_size}")
        needed = -(-self.max_model_len // self.block_size) + 1
        if self.blocks < needed:
            raise ConfigError(
                f"--blocks {self.blocks} cannot hold one request of {self.max_model_len} tokens; "
                f"at least {needed} are needed, or a smaller --max-model-len"
            )
