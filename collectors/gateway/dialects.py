"""The APIs that the gateway reads: where each one tells content, tokens, the end and errors.

Facts: answers of vLLM 0.32, recorded in ``tests/data/gateway``.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from collectors.gateway.observation import Observation
from kvscope.prompts.segments import CHAT, COMPLETION

RESPONSES = "responses"
MESSAGES = "messages"
PATHS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETION,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
}

_STOP_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_INCOMPLETE = {"max_output_tokens": "length"}
_CALL = "function_call"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How to read one API's answers.

    ``running`` marks events that hold output and nothing else to note, ``last`` the last one, ``usage_mark``
    those with an OpenAI ``usage``, of which the last one is read; inside a JSON string their quotes would be
    escaped.
    ``note_event`` notes an event of a stream and tells whether it holds output.
    """

    running: bytes
    last: bytes
    usage_mark: bytes | None = None
    note_event: Callable[[Observation, Mapping[str, Any]], bool]
    note_answer: Callable[[Observation, Mapping[str, Any]], None]


def choices_of(chunk: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the choices of a chat or completion answer; what is none is left out."""
    return _dicts(chunk.get("choices"))


def take_openai_usage(seen: Observation, usage: Any) -> None:
    """Note the tokens that a chat's or completion's ``usage`` tells."""
    if isinstance(usage, dict):
        details = usage.get("prompt_tokens_details")
        # vLLM up to 0.23 says null for "none cached" and for "not told": the recorder tells them apart
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        seen.take_tokens(usage.get("prompt_tokens"), usage.get("completion_tokens"), cached)


def chat_view(api: str, body: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the body in the form of the chat or completion API, as far as its texts go."""
    if api == MESSAGES:
        messages = _dicts(body.get("messages"))
        head = [{"role": "system", "content": body["system"]}] if body.get("system") else []
        return CHAT, {"model": body.get("model"), "tools": _tools(body), "messages": [*head, *messages]}
    if api == RESPONSES:
        asked = body.get("input")
        messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else _dicts(asked)
        head = [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
        return CHAT, {"model": body.get("model"), "tools": _tools(body), "messages": [*head, *messages]}
    return api, body


def _note_chunk(seen: Observation, chunk: Mapping[str, Any]) -> bool:
    """Note a chunk of a chat or completion; its usage is read by the observer, which may see it often."""
    if chunk.get("error"):
        seen.failed = True
    seen.take_fingerprint(chunk)
    choices = choices_of(chunk)
    for choice in choices:
        _note_choice(seen, choice, choice.get("delta"))
    return any(map(_has_content, choices))


def _note_completion(seen: Observation, answer: Mapping[str, Any]) -> None:
    take_openai_usage(seen, answer.get("usage"))
    seen.failed = bool(answer.get("error"))
    seen.take_fingerprint(answer)
    for choice in choices_of(answer):
        _note_choice(seen, choice, choice.get("message"))


def _note_choice(seen: Observation, choice: Mapping[str, Any], said: Any) -> None:
    if isinstance(reason := choice.get("finish_reason"), str):
        seen.finish_reason = reason
    if isinstance(said, dict) and said.get("tool_calls"):
        seen.tool_calls += sum(1 for call in _dicts(said["tool_calls"]) if call.get("id"))


def _has_content(choice: Mapping[str, Any]) -> bool:
    """Tell whether a choice holds output: text, reasoning, tool calls or token ids, not a role alone."""
    delta = choice.get("delta")
    if isinstance(delta, dict) and any(value for key, value in delta.items() if key != "role"):
        return True
    return bool(choice.get("text") or choice.get("token_ids"))


def _note_response_event(seen: Observation, event: Mapping[str, Any]) -> bool:
    kind = str(event.get("type", ""))
    if kind in {"response.completed", "response.incomplete", "response.failed"}:
        response = event.get("response")
        _note_response(seen, response if isinstance(response, dict) else {})
        seen.failed = seen.failed or kind == "response.failed"
    elif kind == "error" or event.get("error"):
        seen.failed = True
    return kind.endswith(".delta") and bool(event.get("delta"))


def _note_response(seen: Observation, answer: Mapping[str, Any]) -> None:
    usage = answer.get("usage")
    if isinstance(usage, dict):
        details = usage.get("input_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        seen.take_tokens(usage.get("input_tokens"), usage.get("output_tokens"), cached)
    seen.failed = bool(answer.get("error")) or answer.get("status") == "failed"
    seen.tool_calls = sum(1 for item in _dicts(answer.get("output")) if item.get("type") == _CALL)
    if answer.get("status") == "completed":
        seen.finish_reason = "tool_calls" if seen.tool_calls else "stop"
    elif isinstance(details := answer.get("incomplete_details"), dict):
        reason = str(details.get("reason"))
        seen.finish_reason = _INCOMPLETE.get(reason, reason)


def _note_message_event(seen: Observation, event: Mapping[str, Any]) -> bool:
    kind = event.get("type")
    if kind == "error":
        seen.failed = True
    elif kind == "message_start" and isinstance(message := event.get("message"), dict):
        _take_message_usage(seen, message.get("usage"))
    elif kind == "message_delta":
        delta = event.get("delta")
        if isinstance(delta, dict):
            _take_stop_reason(seen, delta)
        _take_message_usage(seen, event.get("usage"))
    elif kind == "content_block_start" and isinstance(block := event.get("content_block"), dict):
        seen.tool_calls += block.get("type") == "tool_use"
    if kind != "content_block_delta" or not isinstance(delta := event.get("delta"), dict):
        return False
    return delta.get("type") != "signature_delta"  # it vouches for what was said before


def _note_message(seen: Observation, answer: Mapping[str, Any]) -> None:
    _take_message_usage(seen, answer.get("usage"))
    _take_stop_reason(seen, answer)
    seen.failed = answer.get("type") == "error" or bool(answer.get("error"))
    seen.tool_calls = sum(1 for block in _dicts(answer.get("content")) if block.get("type") == "tool_use")


def _take_stop_reason(seen: Observation, told: Mapping[str, Any]) -> None:
    if isinstance(reason := told.get("stop_reason"), str):
        seen.finish_reason = _STOP_REASONS.get(reason, reason)


def _take_message_usage(seen: Observation, usage: Any) -> None:
    """Note Anthropic's usage, whose input tokens leave out those read from or written to a cache."""
    if not isinstance(usage, dict) or not isinstance(fresh := usage.get("input_tokens"), int):
        return
    read, written = usage.get("cache_read_input_tokens"), usage.get("cache_creation_input_tokens")
    prompt = fresh + sum(part for part in (read, written) if isinstance(part, int))
    seen.take_tokens(prompt, usage.get("output_tokens"), read)


def _tools(body: Mapping[str, Any]) -> list[Any] | None:
    tools = body.get("tools")
    return [{"type": "function", "function": tool} for tool in _dicts(tools)] if tools else None


def _dicts(value: Any) -> list[dict[str, Any]]:
    return list(_each(value)) if isinstance(value, list) else []


def _each(values: list[Any]) -> Iterator[dict[str, Any]]:
    return (value for value in values if isinstance(value, dict))


_OPENAI = Dialect(
    running=b'"finish_reason":null',
    last=b"[DONE]\n\n",
    usage_mark=b'"usage":{',
    note_event=_note_chunk,
    note_answer=_note_completion,
)
DIALECTS: Mapping[str, Dialect] = {
    CHAT: _OPENAI,
    COMPLETION: _OPENAI,
    RESPONSES: Dialect(
        running=b'"type":"response.output_text.delta"',
        last=b"event: response.completed",
        note_event=_note_response_event,
        note_answer=_note_response,
    ),
    MESSAGES: Dialect(
        running=b'"type":"content_block_delta","delta":{"type":"t',  # text or thinking
        last=b"event: message_stop",
        note_event=_note_message_event,
        note_answer=_note_message,
    ),
}
