"""A layout compiled: immutable, so that it can be replaced as a whole while requests are rendered."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.errors import UsageError
from kvscope.prompts.layouts.order import arranged, named
from kvscope.prompts.layouts.schema import (
    CONVERSATION,
    DEFAULT_VARIANT,
    LayoutForm,
    SegmentForm,
    VariantForm,
)
from kvscope.prompts.layouts.template import Text, compile_text
from kvscope.prompts.layouts.variables import Values, Variables, compile_variables

REQUEST_KEY = "kvscope"
"""The key of a chat body that names layout and variables; it never goes on to the engine."""

Message = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class _Turn:
    """Neighbouring segments of one role: one message. Neighbours without variables are one text."""

    role: str
    texts: tuple[str | Text, ...]

    def message(self, values: Values, separator: str) -> Message | None:
        """Return the message, or None where all its texts are empty."""
        texts = self.texts
        if len(texts) == 1:
            only = texts[0]
            content = only if isinstance(only, str) else only.render(values)
        else:
            rendered = [text if isinstance(text, str) else text.render(values) for text in texts]
            content = separator.join([text for text in rendered if text])
        return {"role": self.role, "content": content} if content else None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One arrangement of a layout, ready to be rendered."""

    name: str
    segments: tuple[SegmentForm, ...]  # in order, as compiled
    before: tuple[_Turn, ...]
    behind: tuple[_Turn, ...]
    separator: str

    def messages(self, values: Values, conversation: Sequence[Any]) -> list[Any]:
        """Return the request's messages with the layout's around them.

        A layout's message beside one of the same role becomes one with it: templates want turns to alternate.
        """
        turns = (turn.message(values, self.separator) for turn in self.before)
        messages: list[Any] = [message for message in turns if message is not None]
        if conversation:
            first = len(messages)
            messages.extend(conversation)
            self._join(messages, first)
        for turn in self.behind:
            if (message := turn.message(values, self.separator)) is not None:
                messages.append(message)
                self._join(messages, len(messages) - 1)
        return messages

    def _join(self, messages: list[Any], second: int) -> None:
        """Make one message of ``second`` and the one before it, where both have the same role and text."""
        if second == 0:
            return
        first, other = messages[second - 1], messages[second]
        if not (isinstance(first, dict) and isinstance(other, dict)):
            return  # not understood: the engine says what it thinks of it
        if first.get("role") != other.get("role"):
            return
        content = _joined(first.get("content"), other.get("content"), self.separator)
        if content is not None:
            # what else the client's message holds, such as a name, stays; ours has a role and a content only
            messages[second - 1 : second + 1] = [{**first, **other, "content": content}]


def _joined(first: Any, second: Any, separator: str) -> str | list[Any] | None:
    """Return two contents as one; parts that are no text keep their place. None: they stay apart."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}{separator}{second}" if first and second else first or second
    parts: list[Any] = []
    for content in (first, second):
        if isinstance(content, str):
            parts.append({"type": "text", "text": content})
        elif isinstance(content, list):
            parts.extend(content)
        else:
            return None
    return parts


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A layout file, checked and compiled: everything that does not depend on a request is done."""

    name: str
    variables: Variables
    tools: tuple[Mapping[str, Any], ...]
    variants: Mapping[str, Variant]
    unused: frozenset[str]  # variables that no segment of any variant uses

    def render(
        self, body: Mapping[str, Any], given: Values, variant: str = DEFAULT_VARIANT
    ) -> dict[str, Any]:
        """Return a chat body for the engine: ``body`` with the layout's messages and tools in it.

        Raises ``UsageError`` (``VariableError`` where variables are at fault) with the reason.
        """
        values = self.variables.checked(given)
        chosen = self.variants.get(variant)
        if chosen is None:
            raise UsageError(
                f"layout {self.name} has no variant {variant!r}; known: {', '.join(self.variants)}"
            )
        conversation = _conversation(body.get("messages"), instructed=bool(chosen.before))
        rendered = {key: value for key, value in body.items() if key != REQUEST_KEY}
        if self.tools:
            if body.get("tools"):
                raise UsageError(f"layout {self.name} has tools of its own; send none")
            rendered["tools"] = list(self.tools)
        rendered["messages"] = chosen.messages(values, conversation)
        if not rendered["messages"]:
            raise UsageError(
                f"layout {self.name} gives no message with these variables, and the body has none"
            )
        return rendered


def _conversation(messages: Any, *, instructed: bool) -> Sequence[Any]:
    if messages is None:
        return ()
    if not isinstance(messages, list):
        raise UsageError("messages must be a list")
    if instructed and messages:
        first = messages[0]
        if isinstance(first, dict) and first.get("role") in ("system", "developer"):
            raise UsageError("the layout brings the system message; send the conversation without one")
    return messages


def compile_layout(form: LayoutForm) -> Plan:
    """Return the plan of ``form``; raises ``UsageError`` with the first thing that is wrong."""
    variables = compile_variables(form.variables)
    _check_tools(form.tools)
    segments = named(form)
    if DEFAULT_VARIANT in form.variants:
        raise UsageError(f"variants: {DEFAULT_VARIANT} is the name of what `segments` themselves say")
    used: set[str] = set()
    variants = {
        name: _variant(name, arranged(segments, variant, name), form, used)
        for name, variant in {DEFAULT_VARIANT: VariantForm(), **form.variants}.items()
    }
    return Plan(
        name=form.layout,
        variables=variables,
        tools=tuple(form.tools),
        variants=variants,
        unused=frozenset(form.variables) - used,
    )


def _variant(name: str, ordered: tuple[SegmentForm, ...], form: LayoutForm, used: set[str]) -> Variant:
    place = next(at for at, segment in enumerate(ordered) if segment.role == CONVERSATION)
    return Variant(
        name=name,
        segments=ordered,
        before=_turns(ordered[:place], form, used),
        behind=_turns(ordered[place + 1 :], form, used),
        separator=form.separator,
    )


def _turns(segments: Sequence[SegmentForm], form: LayoutForm, used: set[str]) -> tuple[_Turn, ...]:
    turns: list[tuple[str, list[str | Text]]] = []
    for segment in segments:
        text, variables = compile_text(segment.name, segment.text or "", form.variables)
        used |= variables
        if not turns or turns[-1][0] != segment.role:
            turns.append((segment.role, [text]))
            continue
        texts = turns[-1][1]
        last = texts[-1]
        if isinstance(text, str) and isinstance(last, str):
            texts[-1] = form.separator.join(filter(None, (last, text)))
        else:
            texts.append(text)
    return tuple(_Turn(role, tuple(texts)) for role, texts in turns)


def _check_tools(tools: Sequence[Mapping[str, Any]]) -> None:
    names = set()
    for place, tool in enumerate(tools):
        function = tool.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if tool.get("type") != "function" or not isinstance(name, str):
            raise UsageError(f"tools[{place}] must have type: function and a function with a name")
        if name in names:
            raise UsageError(f"tools[{place}]: the name {name} is used twice")
        names.add(name)
