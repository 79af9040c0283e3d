"""Answers in the shapes of vLLM 0.32: whole ones, and the chunks of streamed ones."""

import json
import time
from collections.abc import Sequence
from typing import Any

from kvscope.demo.engine.core import Run
from kvscope.demo.engine.settings import FINGERPRINT

DONE = b"data: [DONE]\n\n"


def event(document: dict[str, Any]) -> bytes:
    """Return one server-sent event."""
    return b"data: " + json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


class Answer:
    """Writes one run's answer; ``model`` is the name that the client is shown."""

    def __init__(self, run: Run, model: str, block_size: int) -> None:
        self._run = run
        self._job = run.job
        self._chat = run.job.api == "chat"
        self._model = model
        self._block_size = block_size
        self._created = int(time.time())

    def opening(self) -> bytes | None:
        """Return the chunk before the first token: chat answers begin with the role alone."""
        if not self._chat:
            return None
        chunk = self._chunk([self._choice({"delta": {"role": "assistant", "content": ""}, "logprobs": None})])
        chunk["prompt_token_ids"] = list(self._job.tokens) if self._job.return_token_ids else None
        chunk["prompt_text"] = None
        return event(chunk)

    def piece(self, text: str, token: int, finish_reason: str | None) -> bytes:
        """Return the chunk of one token."""
        content: dict[str, Any] = {"delta": {"content": text}} if self._chat else {"text": text}
        choice = self._choice({**content, "logprobs": None}, finish_reason)
        if finish_reason is not None or not self._chat:
            choice["stop_reason"] = None
        if not self._chat:
            choice["prompt_token_ids"] = list(self._job.tokens) if self._job.return_token_ids else None
        choice["token_ids"] = [token] if self._job.return_token_ids else None
        chunk = self._chunk([choice])
        if finish_reason is not None and not self._job.include_usage:
            chunk["system_fingerprint"] = FINGERPRINT
        return event(chunk)

    def closing(self) -> bytes:
        """Return what ends a stream: usage if it was asked for, then the end mark."""
        if not self._job.include_usage:
            return DONE
        usage = self.usage()
        details = usage["prompt_tokens_details"]
        usage["prompt_tokens_details"] = {key: value for key, value in details.items() if value is not None}
        del usage["completion_tokens_details"]
        return event(self._chunk([]) | {"usage": usage, "system_fingerprint": FINGERPRINT}) + DONE

    def usage(self) -> dict[str, Any]:
        """Return the token counts; created are the full blocks that were not cached (chat only)."""
        prompt, output = len(self._job.tokens), len(self._run.output)
        cached = self._run.cached_tokens
        created = prompt // self._block_size * self._block_size - cached if self._chat else None
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + output,
            "completion_tokens": output,
            "prompt_tokens_details": {
                "cached_tokens": cached,
                "created_cache_tokens": created,
                "multimodal_tokens": None,
            },
            "completion_tokens_details": None,
        }

    def whole(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return the answer of a request that does not stream."""
        text = "".join(texts)
        shown = list(self._job.tokens) if self._job.return_token_ids else None
        content: dict[str, Any] = {"message": _message(text)} if self._chat else {"text": text}
        choice = self._choice({**content, "logprobs": None}, self._run.finish_reason)
        choice |= {"stop_reason": None, "routed_experts": None}
        choice["token_ids"] = self._run.output if self._job.return_token_ids else None
        rest: dict[str, Any] = {"prompt_logprobs": None, "prompt_token_ids": shown}
        if self._chat:
            rest["prompt_text"] = None
        else:
            choice |= rest
            rest = {}
        return {
            "id": self._job.id,
            "object": "chat.completion" if self._chat else "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": self.usage(),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
            **rest,
        }

    def _choice(self, content: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        return {"index": 0, **content, "finish_reason": finish_reason}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._job.id,
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }


def _message(text: str) -> dict[str, Any]:
    empty = ("refusal", "annotations", "audio", "function_call", "reasoning")
    return {"role": "assistant", "content": text, **dict.fromkeys(empty)}
