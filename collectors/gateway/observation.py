"""What an answer told."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(slots=True, kw_only=True)
class Observation:
    """What an answer told; None where it did not. Times are in seconds of the monotonic clock."""

    first_content_at: float | None = None
    gaps_seconds: list[float] | None = None
    finish_reason: str | None = None  # as vLLM's chat answers name it
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    tool_calls: int = 0
    fingerprint: str | None = None
    fingerprint_told: bool = False  # a last chunk, which holds it where the server has one, was seen
    failed: bool = False  # the answer itself tells of an error
    unread: int = 0  # events on which the observer failed; they passed all the same

    def take_tokens(self, prompt: Any, output: Any, cached: Any) -> None:
        """Note counts of tokens; what is no count is unknown."""
        self.prompt_tokens, self.output_tokens, self.cached_tokens = (
            _count(prompt),
            _count(output),
            _count(cached),
        )

    def take_fingerprint(self, chunk: Mapping[str, Any]) -> None:
        """Note the server's fingerprint, or that a usage object came without one."""
        fingerprint = chunk.get("system_fingerprint")
        if isinstance(fingerprint, str):
            self.fingerprint, self.fingerprint_told = fingerprint, True
        elif chunk.get("usage") and not chunk.get("choices"):
            self.fingerprint_told = True


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
