"""Session files of the coding agent Claude Code: a line a message, each answer a request with all before it.

An answer may take several lines with one message id, a content part each. Sub-agents (``isSidechain``) have
conversations of their own in the same file. Where a line goes on from an earlier message (``parentUuid``),
what came after that one is left out, as the agent does when its user goes back. Neither the system prompt nor
the tools are in the file, so a prompt is known in part, and the server's counts are those of more.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from kvscope.analysis.formats.anthropic import openai_messages
from kvscope.analysis.formats.fields import Usage, first_text, unix_seconds, usage_of
from kvscope.analysis.formats.records import Body, LineError, LoggedRequest, Place

_ROLES = ("user", "assistant")
_OTHER_TYPES = ("summary", "file-history-snapshot")
_NOTHING_SAID = "<synthetic>"  # the agent's own words in the server's place, such as those for an error


def is_agent_log(value: Mapping[str, Any]) -> bool:
    """Whether the line is of a session file."""
    kind = value.get("type")
    return isinstance(kind, str) and ("sessionId" in value or kind in _OTHER_TYPES)


@dataclasses.dataclass(slots=True)
class _Conversation:
    """Messages so far.

    ``answers`` are the places of the server's among them by their ids, ``open_id`` names the one whose lines
    may still be coming, ``last_at`` is the latest line's time.
    """

    messages: list[Mapping[str, Any]] = dataclasses.field(default_factory=list)
    answers: dict[str, int] = dataclasses.field(default_factory=dict)
    open_id: str | None = None
    last_at: float | None = None

    def upto(self, length: int) -> "_Conversation":
        """Return the conversation as it was with so many messages."""
        answers = {name: place for name, place in self.answers.items() if place < length}
        return _Conversation(self.messages[:length], answers, last_at=self.last_at)


class AgentLog:
    """Reads one file."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[_Conversation, int]] = {}  # line's id -> messages up to it
        self._latest: dict[tuple[str, bool], _Conversation] = {}
        self._linked: set[tuple[str, bool]] = set()
        self._open: dict[str, LoggedRequest] = {}

    def read(self, value: Mapping[str, Any], place: Place) -> Iterator[LoggedRequest | LineError]:
        """Yield the requests that are known to be over; raises ``LineError``."""
        key = (str(value.get("sessionId")), value.get("isSidechain") is True)
        conversation = self._conversation(value, key)
        kind = value["type"]
        if kind in _ROLES:
            message = value.get("message")
            if not isinstance(message, Mapping) or not isinstance(message.get("content"), str | list):
                raise LineError("a line of a session needs `message` with `content`, a text or a list")
            if kind == "user":
                yield from self._close(conversation)
                conversation.messages.append({"role": "user", "content": message["content"]})
            elif message.get("model") != _NOTHING_SAID:
                yield from self._answer(conversation, value, message, place)
        if value.get("timestamp") is not None:
            conversation.last_at = unix_seconds(value["timestamp"])
        if isinstance(value.get("uuid"), str):
            self._places[value["uuid"]] = conversation, len(conversation.messages)

    def end(self) -> Iterator[LoggedRequest]:
        """Yield the requests whose answers were the last of their conversations."""
        yield from self._open.values()
        self._open.clear()

    def _conversation(self, value: Mapping[str, Any], key: tuple[str, bool]) -> _Conversation:
        """Return the conversation that the line goes on with."""
        parent = value.get("parentUuid")
        found = self._places.get(parent) if isinstance(parent, str) else None
        latest = self._latest.get(key)
        if found is not None:
            conversation, length = found
            message = value.get("message")
            if value["type"] == "user" and not _is_result(message) and length < len(conversation.messages):
                conversation = conversation.upto(length)
            self._linked.add(key)
        elif latest is None or (key in self._linked and "parentUuid" in value):
            conversation = _Conversation()
        else:
            conversation = latest
        self._latest[key] = conversation
        return conversation

    def _answer(
        self, conversation: _Conversation, value: Mapping[str, Any], message: Mapping[str, Any], place: Place
    ) -> Iterator[LoggedRequest | LineError]:
        name = first_text(message, ("id",)) or place.name
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        usage = message.get("usage")
        counted = usage_of(usage if isinstance(usage, Mapping) else {})
        at = unix_seconds(value.get("timestamp"))
        if name in conversation.answers:
            self._more(conversation, name, parts, counted, at)
            return
        yield from self._close(conversation)
        conversation.answers[name] = len(conversation.messages)
        conversation.messages.append({"role": "assistant", "content": parts})
        before = conversation.messages[:-1]
        if not before:
            yield LineError("an answer of which the file does not hold the question")
            return
        messages = [each for earlier in before for each in openai_messages(earlier)]
        request = LoggedRequest(
            request_id=first_text(value, ("requestId",)) or name,
            origin=place.name,
            at=at if conversation.last_at is None else conversation.last_at,
            prompt=Body(api="chat", body={"messages": messages}),
            session=first_text(value, ("sessionId",)),
            model=first_text(message, ("model",)),
            whole=False,
        )
        self._open[name] = _with(request, counted, at)
        conversation.open_id = name

    def _more(
        self, conversation: _Conversation, name: str, parts: list[Any], counted: Usage, at: float | None
    ) -> None:
        """Add a line's parts to an answer that has begun."""
        place = conversation.answers[name]
        answer = conversation.messages[place]
        conversation.messages[place] = {**answer, "content": [*answer["content"], *parts]}
        if name in self._open:
            self._open[name] = _with(self._open[name], counted, at)

    def _close(self, conversation: _Conversation) -> Iterator[LoggedRequest]:
        """Yield the request whose answer has come to its end."""
        open_id, conversation.open_id = conversation.open_id, None
        if open_id is not None and open_id in self._open:
            yield self._open.pop(open_id)


def _is_result(message: Any) -> bool:
    """Whether a message holds results of tools, which may answer several lines of one answer."""
    content = message.get("content") if isinstance(message, Mapping) else None
    return isinstance(content, list) and any(
        isinstance(part, Mapping) and part.get("type") == "tool_result" for part in content
    )


def _with(request: LoggedRequest, counted: Usage, at: float | None) -> LoggedRequest:
    """Return the request with what a line of its answer tells; a later one knows more."""
    output = request.output if isinstance(request.output, int) else None
    return dataclasses.replace(
        request,
        prompt_tokens=_greater(request.prompt_tokens, counted.prompt_tokens),
        cached_tokens=_greater(request.cached_tokens, counted.cached_tokens),
        output=_greater(output, counted.output_tokens),
        finished_at=request.finished_at if at is None else at,
    )


def _greater(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)
