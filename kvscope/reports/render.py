"""Writes a report as Markdown, as one self-contained HTML page, or as JSON."""

import functools
import json
from collections.abc import Mapping
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from kvscope.clock import iso
from kvscope.errors import UsageError
from kvscope.reports import evidence, kinds, words
from kvscope.reports.content import Report
from kvscope.reports.headlines import headlines

Format = Literal["md", "html", "json"]
_MARKDOWN_SPECIAL = str.maketrans(
    {"\\": "\\\\", "|": "\\|", "`": "\\`", "*": "\\*", "[": "\\[", "<": "&lt;", "\n": " ", "\r": " "}
)


def render(report: Report, format: Format) -> str:  # noqa: A002 - the word that callers use
    """Return the report as text; raises ``UsageError`` for a format that is not known."""
    if format == "json":
        return json.dumps(_json(report.as_json()), indent=2, ensure_ascii=False) + "\n"
    if format not in ("md", "html"):
        raise UsageError(f"unknown report format {format!r}; known are md, html, json")
    template = _environment(format).get_template(f"report.{format}.j2")
    return template.render(report=report, headlines=headlines(report), causes=words.CAUSE_MEANINGS)


@functools.cache
def _environment(form: str) -> Environment:
    environment = Environment(
        loader=PackageLoader("kvscope.reports"),
        autoescape=select_autoescape(enabled_extensions=("html.j2",), default=False),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # what autoescape is to HTML, this is to Markdown: a route's name is text, never markup
        finalize=_markdown if form == "md" else None,
    )
    environment.filters |= {
        "count": words.count,
        "percent": words.percent,
        "points": words.points,
        "requests": words.requests,
        "rough": words.rough,
        "change_percent": words.change_percent,
        "seconds": words.seconds,
        "change_seconds": words.change_seconds,
        "gpu_seconds": words.gpu_seconds,
        "ttft_change": evidence.ttft_change,
        "decimal": words.decimal,
        "moment": words.moment,
        "span": words.span,
        "words": words.text,
        "title": kinds.title,
        "metric": words.metric,
        "quantity": words.quantity,
        "evidence": evidence.lines,
    }
    environment.globals |= {
        "place": words.place,
        "characters": words.characters,
        "interval": words.interval,
        "margin": words.margin,
    }
    return environment


def _markdown(value: Any) -> Any:
    """Escape text; what a macro of the template has made (``safe``) is Markdown already."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return value.translate(_MARKDOWN_SPECIAL)
    return value


def _json(value: Any) -> Any:
    """Return ``value`` with moments as ISO 8601 text, as every ``--json`` of kvscope has them."""
    if isinstance(value, Mapping):
        return {
            str(key): iso(item) if str(key).endswith("_at") and isinstance(item, int | float) else _json(item)
            for key, item in value.items()
        }
    return [_json(item) for item in value] if isinstance(value, list | tuple) else value
