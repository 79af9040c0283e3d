"""vLLM 0.32's statistics of finished requests, as far as the plugin reads them, without vLLM."""

import dataclasses
import enum


class FinishReason(enum.IntEnum):
    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3
    REPETITION = 4


@dataclasses.dataclass
class FinishedRequestStats:
    finish_reason: FinishReason = FinishReason.LENGTH
    request_id: str | None = "chatcmpl-a"
    e2e_latency: float = 0.5
    num_prompt_tokens: int = 100
    num_preemptions: int = 1
    num_generation_tokens: int = 5
    queued_time: float = 0.01
    prefill_time: float = 0.2
    inference_time: float = 0.4
    decode_time: float = 0.2
    mean_time_per_output_token: float = 0.05
    num_cached_tokens: int = 64


@dataclasses.dataclass
class IterationStats:
    finished_requests: list[FinishedRequestStats]
    iteration_timestamp: float = 1_795_966_295.5
