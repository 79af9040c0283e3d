"""A segment's text as a template: Jinja2 in a sandbox, and the usual case without Jinja2's cost."""

from collections.abc import Collection
from typing import Protocol

import jinja2
import jinja2.meta
import jinja2.nodes
import jinja2.sandbox

from kvscope.errors import UsageError
from kvscope.prompts.layouts.variables import Values, VariableError

_RENDERING = (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError)


class Text(Protocol):
    """A text that needs variables."""

    def render(self, values: Values) -> str:
        """Return the text; raises ``VariableError`` where the values do not go with the template."""
        ...


class _Filled:
    """Text with variables in it and nothing else: by far the most segments."""

    __slots__ = ("_parts",)

    def __init__(self, parts: list[tuple[str, str | None]]) -> None:
        self._parts = parts  # text, then the variable behind it

    def render(self, values: Values) -> str:
        pieces: list[str] = []
        for text, name in self._parts:
            pieces.append(text)
            if name is not None:
                value = values[name]
                pieces.append(value if type(value) is str else str(value))
        return "".join(pieces)


class _Jinja:
    """Any other template."""

    __slots__ = ("_name", "_template")

    def __init__(self, name: str, template: jinja2.Template) -> None:
        self._name = name
        self._template = template

    def render(self, values: Values) -> str:
        try:
            # what `render` does, without a copy of the values: there are no globals to add
            context = self._template.new_context(values, shared=True)  # type: ignore[arg-type]
            return "".join(self._template.root_render_func(context)).strip("\n")
        except _RENDERING as error:
            raise VariableError(
                f"segment {self._name} cannot be rendered with these variables: {error}"
            ) from error


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False
    )
    environment.globals.clear()  # a prompt is made of its variables alone: no clock, no random words
    for name in ("random", "pprint"):  # other requests must give other text for other values alone
        del environment.filters[name]
    return environment


_ENVIRONMENT = _environment()


def compile_text(name: str, source: str, declared: Collection[str]) -> tuple[str | Text, frozenset[str]]:
    """Return the text, rendered where it needs no variable, and the variables that it uses.

    Raises ``UsageError`` where segment ``name`` has a faulty template or uses what is not declared.
    """
    try:
        source = source.strip("\n")  # a block of YAML ends with a line break that is not meant
        tree = _ENVIRONMENT.parse(source)
        used = frozenset(jinja2.meta.find_undeclared_variables(tree))
        if any(True for _ in jinja2.meta.find_referenced_templates(tree)):
            raise UsageError(f"segment {name}: a layout stands for itself: no include, import or extends")
        if unknown := used - set(declared):
            raise UsageError(
                f"segment {name} uses {', '.join(sorted(unknown))}, not declared under `variables`"
            )
        if used and (parts := _plain_parts(tree)) is not None:
            return _Filled(parts), used
        template = _Jinja(name, _ENVIRONMENT.from_string(source))
        return (template, used) if used else (template.render({}), used)
    except jinja2.TemplateSyntaxError as error:
        raise UsageError(f"segment {name}, line {error.lineno}: {error.message}") from error
    except (jinja2.TemplateError, RecursionError) as error:
        raise UsageError(f"segment {name}: {error}") from error
    except VariableError as error:
        raise UsageError(str(error)) from error


def _plain_parts(tree: jinja2.nodes.Template) -> list[tuple[str, str | None]] | None:
    """Return texts and names of a template of text and bare variables, or None for any other."""
    parts: list[tuple[str, str | None]] = []
    text = ""
    for output in tree.body:
        if not isinstance(output, jinja2.nodes.Output):
            return None
        for node in output.nodes:
            if isinstance(node, jinja2.nodes.TemplateData):
                text += node.data
            elif isinstance(node, jinja2.nodes.Name):
                parts.append((text, node.name))
                text = ""
            else:
                return None
    if text:
        parts.append((text, None))
    return parts
