"""``kvscope layout``: prompt layouts checked, rendered and compared, before any request needs them."""

import difflib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from kvscope.cli.common import emit_json, emit_table, json_option
from kvscope.cli.mining import mine, order
from kvscope.errors import UsageError
from kvscope.prompts.layouts.measure import VariantMeasure, measured, outline
from kvscope.prompts.layouts.plan import Plan, compile_layout
from kvscope.prompts.layouts.schema import DEFAULT_VARIANT, LayoutForm, read_layout
from kvscope.prompts.segments import CHAT, segments
from kvscope.prompts.tokenizing import load_tokenizer

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_SUFFIXES = frozenset({".yaml", ".yml"})


@click.group()
def layout() -> None:
    """Check, render and compare prompt layouts."""


layout.add_command(mine)
layout.add_command(order)


@layout.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--tokenizer", type=click.Path(exists=True, path_type=Path), help="Count the static prefix in tokens."
)
@click.option("--block-size", type=click.IntRange(1, 4096), default=16, show_default=True)
@json_option
def check(files: tuple[Path, ...], tokenizer: Path | None, block_size: int, as_json: bool) -> int:
    """Check FILES, or all layouts of a folder; exit code 1 where one is wrong.

    The static prefix is what two renderings share that differ in every variable.
    """
    encode = None if tokenizer is None else load_tokenizer(tokenizer).encode
    rows: list[dict[str, Any]] = []
    names: dict[str, Path] = {}
    for path in _expanded(files):
        row: dict[str, Any] = {"file": str(path), "ok": True, "fault": None}
        rows.append(row)
        try:
            form = read_layout(path)
            plan = compile_layout(form)
            _require_own_name(plan, names)
        except UsageError as error:
            row |= {"ok": False, "fault": _without_path(str(error), path)}
            continue
        names[plan.name] = path
        variants = measured(plan, form, encode=encode, block_size=block_size)
        row |= {
            "layout": plan.name,
            "variables": sorted(form.variables),
            "variants": variants,
            "warnings": list(_warnings(plan, variants)),
        }
    if as_json:
        emit_json({"files": rows})
    else:
        for row in rows:
            _show(row)
    return 0 if all(row["ok"] for row in rows) else 1


@layout.command()
@click.argument("file", type=_FILE)
@click.option("--variant", default=DEFAULT_VARIANT, show_default=True)
@click.option(
    "--var", "pairs", multiple=True, metavar="NAME=VALUE", help="A variable; JSON where it is no string."
)
@click.option("--variables", metavar="JSON", help="All variables as a JSON object; - reads standard input.")
@click.option("--body", "body_file", type=_FILE, help="A chat body (JSON) with the request's messages.")
@json_option
def render(
    file: Path,
    variant: str,
    pairs: tuple[str, ...],
    variables: str | None,
    body_file: Path | None,
    as_json: bool,
) -> None:
    """Render FILE as the gateway does; --json prints the body that the engine would get."""
    form = read_layout(file)
    plan = compile_layout(form)
    given = _object(sys.stdin.read() if variables == "-" else variables or "{}", "--variables")
    given |= dict(_pair(form, pair) for pair in pairs)
    body = {} if body_file is None else _object(_read(body_file), str(body_file))
    rendered = plan.render(body, given, variant)
    if as_json:
        emit_json({"layout": plan.name, "variant": variant, "body": rendered})
        return
    for part in segments(CHAT, rendered):
        click.echo(f"[{part.role}]\n{part.text}\n")


@layout.command()
@click.argument("file", type=_FILE)
@click.argument("other", type=_FILE, required=False)
@click.option("--variant", "first", default=DEFAULT_VARIANT, show_default=True, help="Variant of FILE.")
@click.option("--to", "second", help="Variant to compare with; default: the same, or every other of FILE.")
@json_option
def diff(file: Path, other: Path | None, first: str, second: str | None, as_json: bool) -> None:
    """Compare two variants of FILE, or FILE with OTHER, segment by segment.

    What stands before the first difference keeps its blocks in the cache when one replaces the other.
    """
    one = compile_layout(read_layout(file))
    two = one if other is None else compile_layout(read_layout(other))
    _require_variant(one, first)
    if second is not None:
        wanted = [second]
    elif other is not None:
        wanted = [first]
    else:
        wanted = [name for name in one.variants if name != first]
    if not wanted:
        raise UsageError(f"{file} has one variant only; name another file to compare with")
    found = [_compared(one, first, two, name) for name in wanted]
    if as_json:
        emit_json({"comparisons": found})
        return
    for each in found:
        click.echo(f"{each['from']} → {each['to']}: the first {each['same_lines']} lines are the same")
        for line in each["diff"]:
            click.echo(f"  {line}")


def _require_own_name(plan: Plan, names: dict[str, Path]) -> None:
    if plan.name in names:
        raise UsageError(f"layout {plan.name} is in {names[plan.name]} already; rename one")


def _compared(one: Plan, first: str, two: Plan, second: str) -> dict[str, Any]:
    _require_variant(two, second)
    before, after = outline(one, first), outline(two, second)
    same = next((at for at, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), None)
    lines = difflib.unified_diff(before, after, lineterm="", n=1)
    return {
        "from": f"{one.name}/{first}",
        "to": f"{two.name}/{second}",
        "same": before == after,
        "same_lines": min(len(before), len(after)) if same is None else same,
        "diff": list(lines)[2:],
    }


def _require_variant(plan: Plan, name: str) -> None:
    if name not in plan.variants:
        raise UsageError(f"layout {plan.name} has no variant {name!r}; known: {', '.join(plan.variants)}")


def _expanded(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            inside = sorted(each for each in path.iterdir() if each.suffix in _SUFFIXES)
            if not inside:
                raise UsageError(f"{path}: no layout in this folder (*.yaml)")
            yield from inside
        else:
            yield path


def _warnings(plan: Plan, variants: Sequence[VariantMeasure]) -> Iterator[str]:
    for name in sorted(plan.unused):
        yield f"variable {name} is used in no segment"
    for variant in variants:
        for broken in variant.broken:
            yield (
                f"variant {variant.name}: {broken.segment} ({broken.scope.value}) stands before"
                f" {', '.join(broken.behind)}, which changes less often: order: stable_first would mend it"
            )


def _show(row: dict[str, Any]) -> None:
    if not row["ok"]:
        click.echo(f"{row['file']}: {row['fault']}")
        return
    click.echo(f"{row['file']}: layout {row['layout']} is right")
    for warning in row["warnings"]:
        click.echo(f"  note: {warning}")
    for each in row["variants"]:
        if each.align is not None:
            spec = json.dumps(each.align.as_json())
            click.echo(
                f"  note: variant {each.name} is {each.padding_tokens} tokens short of a block: {spec}"
            )
    emit_table(
        "",
        ("variant", "segments", "static chars", "static tokens", "blocks", "tokens to the next block"),
        (
            (
                each.name,
                ", ".join(each.segments),
                each.static_chars,
                each.static_tokens,
                each.static_blocks,
                each.padding_tokens,
            )
            for each in row["variants"]
        ),
        empty="",
    )


def _without_path(message: str, path: Path) -> str:
    return message.removeprefix(f"{path}: ")


def _pair(form: LayoutForm, pair: str) -> tuple[str, Any]:
    name, equals, text = pair.partition("=")
    if not equals:
        raise UsageError(f"--var {pair!r}: write NAME=VALUE")
    variable = form.variables.get(name)
    if variable is None or variable.type == "string":
        return name, text
    try:
        return name, json.loads(text)
    except ValueError:
        return name, text  # the check of its type says it better


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{where}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"{where}: a JSON object is needed, not {type(value).__name__}")
    return value


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
