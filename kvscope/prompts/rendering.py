"""Chat messages to the text that the engine tokenises, as vLLM and transformers render it.

Facts in here were read from and executed on vLLM 0.32.0 with transformers 5.19: what a client's messages and
tools look like when the model's chat template sees them.
"""

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
from typing_extensions import override

from kvscope.errors import UsageError

_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}


class _GenerationTag(jinja2.ext.Extension):
    """Accepts ``{% generation %}`` blocks, which mark what a model wrote and render as their content."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance variable

    @override
    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - called by templates, maybe by position
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002 - as above
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return dt.datetime.now().strftime(form)  # noqa: DTZ005 - the engine uses its local time too


class ChatTemplate:
    """A model's chat template, compiled once.

    ``special_tokens`` maps names as ``bos_token`` to the text that the template may insert.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._source = source
        self._special_tokens = dict(special_tokens)
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, jinja2.ext.loopcontrols],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
            self._takes_parts = _iterates_content(environment.parse(source))
        except jinja2.TemplateError as error:
            raise UsageError(f"the chat template cannot be compiled: {error}") from error

    def render(self, body: Mapping[str, Any]) -> str:
        """Return the prompt text of a chat body; raises ``UsageError`` where the engine would refuse it."""
        if body.get("continue_final_message"):
            raise UsageError("a body with continue_final_message cannot be rendered here; ask the server")
        conversation = conversation_of(body, parts=self._takes_parts)
        if not ("'developer'" in self._source or '"developer"' in self._source):
            conversation = _developer_as_system(conversation)
        try:
            return self._template.render(
                **{**self._special_tokens, **template_arguments(body)},
                messages=conversation,
                tools=tools_of(body),
                documents=body.get("documents"),
                add_generation_prompt=body.get("add_generation_prompt", True),
            )
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise UsageError(f"the chat template refused the messages: {error}") from error


def template_arguments(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a chat body hands to the template besides messages, tools and documents."""
    given = body.get("chat_template_kwargs")
    arguments: dict[str, Any] = dict(given) if isinstance(given, Mapping) else {}
    for name in ("messages", "tools", "documents", "add_generation_prompt"):
        arguments.pop(name, None)
    effort = body.get("reasoning_effort")
    if effort is not None:
        arguments.setdefault("enable_thinking", effort != "none")
        arguments["reasoning_effort"] = effort
    return arguments


def tools_of(body: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the tools as the template sees them: known keys only, in the engine's order, or None."""
    given = body.get("tools")
    if not given:
        return None
    if not isinstance(given, list):
        raise UsageError(f"tools must be a list, not {type(given).__name__}")
    return [_tool(tool) for tool in given]


def _tool(given: Any) -> dict[str, Any]:
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or "name" not in function:
        raise UsageError("each of the tools must have a function with a name")
    deferred = given.get("defer_loading")
    seen = {
        "name": function["name"],
        "description": function.get("description"),
        "parameters": function.get("parameters"),
    }
    if function.get("strict") is not None:
        seen["strict"] = function["strict"]
    inner_deferred = function.get("defer_loading")
    inner_deferred = deferred if inner_deferred is None else inner_deferred
    if inner_deferred is not None:
        seen["defer_loading"] = inner_deferred
    tool = {"type": given.get("type", "function"), "function": seen}
    if deferred is not None:
        tool["defer_loading"] = deferred
    return tool


def conversation_of(body: Mapping[str, Any], *, parts: bool) -> list[dict[str, Any]]:
    """Return the messages as the template sees them.

    With ``parts`` each content is a list of text parts, else one string: the texts joined by a newline.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise UsageError("a chat body needs a list of messages")
    return [_message(message, parts=parts) for message in messages]


def _message(message: Any, *, parts: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise UsageError("each message must be an object with a role")
    role = message["role"]
    texts = part_texts(message.get("content"))
    wrapped = parts and role != "tool"  # results of tools are text for every template
    content = [{"type": "text", "text": text} for text in texts] if wrapped else "\n".join(texts)
    seen: dict[str, Any] = {"role": role, "content": content}
    if role == "assistant":
        if message.get("tool_calls"):
            seen["tool_calls"] = [_tool_call(call) for call in message["tool_calls"]]
        if message.get("reasoning") is not None:
            seen["reasoning"] = seen["reasoning_content"] = message["reasoning"]
    elif role == "tool" and "tool_call_id" in message:
        seen["tool_call_id"] = message["tool_call_id"]
    elif role == "developer":
        seen["tools"] = message.get("tools")
    if isinstance(message.get("name"), str):
        seen["name"] = message["name"]
    return seen


def part_texts(content: Any) -> list[str]:
    """Return the texts of a message's content; raises ``UsageError`` for images and other media."""
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, Sequence):
        raise UsageError(f"the content of a message must be text or a list, not {type(content).__name__}")
    texts: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(kind, str) and kind in _TEXT_PARTS:
            text = part.get(_TEXT_PARTS[kind])
            if text is not None:
                texts.append(str(text))
        else:
            raise UsageError(f"only text can be tokenised here, not a content part of type {kind!r}")
    return texts


def _tool_call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise UsageError("each of tool_calls must be an object with a function")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = {}
    if not isinstance(arguments, Mapping):
        arguments = {}
    seen: dict[str, Any] = {"id": call["id"]} if "id" in call else {}
    return seen | {
        "function": {"arguments": arguments, "name": function.get("name")},
        "type": call.get("type", "function"),
    }


def _developer_as_system(conversation: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the conversation with developer messages as system ones, all of those joined at the front."""
    if not any(message["role"] == "developer" for message in conversation):
        return conversation
    renamed = [
        {key: value for key, value in message.items() if key != "tools"} | {"role": "system"}
        if message["role"] == "developer"
        else message
        for message in conversation
    ]
    system = [at for at, message in enumerate(renamed) if message["role"] == "system"]
    if system == [0]:
        return renamed
    joined = "\n\n".join(
        text
        for text in (_plain(message["content"]) for message in renamed if message["role"] == "system")
        if text
    )
    others = [message for message in renamed if message["role"] != "system"]
    return [{"role": "system", "content": joined}, *others]


def _plain(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _iterates_content(template: jinja2.nodes.Template) -> bool:
    """Whether the template loops over a message's content: then the engine hands it lists of parts."""
    return any(_is_content(loop.iter) for loop in template.find_all(jinja2.nodes.For))


def _is_content(node: jinja2.nodes.Node) -> bool:
    """Whether ``node`` reads ``content`` or ``message.content``, filtered or sliced or not."""
    if isinstance(node, jinja2.nodes.Name):
        return bool(node.name == "content")
    if isinstance(node, jinja2.nodes.Getattr):
        return bool(node.attr == "content")
    if isinstance(node, jinja2.nodes.Filter):
        return node.node is not None and _is_content(node.node)
    if isinstance(node, jinja2.nodes.Getitem):
        if isinstance(node.arg, jinja2.nodes.Slice):
            return _is_content(node.node)
        return isinstance(node.arg, jinja2.nodes.Const) and bool(node.arg.value == "content")
    return False
