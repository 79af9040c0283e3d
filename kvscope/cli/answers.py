"""``kvscope answers``: what a suggested change does to a server's answers, before it is put in force."""

import json
import os
from pathlib import Path
from typing import Any

import click
import msgspec

from kvscope.cli.common import db_option, emit_json, emit_table, json_option, opened, percent
from kvscope.cli.logs import show_skipped, skipped_json
from kvscope.cli.progress import reading, steps
from kvscope.errors import UsageError
from kvscope.model.prompt import TransformSpec
from kvscope.reports.changes import changes_of
from kvscope.tuning.logs import read_prompts
from kvscope.tuning.quality.checks import Check, conforms, matches, valid_json
from kvscope.tuning.quality.compare import Asked, Comparison, Share, compare
from kvscope.tuning.quality.endpoint import Endpoint

_KEY = "KVSCOPE_SERVER_KEY"
_JUDGE_KEY = "KVSCOPE_JUDGE_KEY"


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, allow_dash=True))
@click.option("--server", required=True, metavar="URL", help=f"Who answers; a key, if any, is ${_KEY}.")
@click.option("--model", help="Model to ask for. Default: what each recorded body names.")
@click.option(
    "--from",
    "source",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="What `kvscope suggest --json` printed. Default: the store's suggestions.",
)
@click.option("--suggestion", metavar="ID", help="Which one; default: the best that the gateway can apply.")
@click.option(
    "--last", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Newest prompts to ask."
)
@click.option("--max-tokens", type=click.IntRange(1), default=256, show_default=True, help="Longest answer.")
@click.option("--regex", multiple=True, help="Must occur in an answer.")
@click.option(
    "--schema", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="JSON schema of an answer."
)
@click.option(
    "--judge", metavar="URL", help=f"Whose model judges answers that differ; a key is ${_JUDGE_KEY}."
)
@click.option("--judge-model", metavar="NAME", help="The judge's model.")
@click.option("--show-text", is_flag=True, help="Show the answers themselves.")
@db_option
@json_option
def answers(
    files: tuple[Path, ...],
    server: str,
    model: str | None,
    source: Path | None,
    suggestion: str | None,
    last: int,
    max_tokens: int,
    regex: tuple[str, ...],
    schema: Path | None,
    judge: str | None,
    judge_model: str | None,
    show_text: bool,
    db: str | None,
    as_json: bool,
) -> None:
    """Ask a server the prompts in FILES as they are and with a suggested change, and compare the answers.

    Answers are at temperature 0. Each prompt is also asked twice as it is: what differs then is the server's
    own noise. Answers are neither stored nor shown unless --show-text is given.
    """
    if (judge is None) is not (judge_model is None):
        raise UsageError("--judge and --judge-model go together: who judges, with which model?")
    checks = [valid_json(), *map(matches, regex), *([] if schema is None else [_schema(schema)])]
    endpoint = Endpoint(url=server, model=model, key=os.environ.get(_KEY))
    judging = (
        None if judge is None else Endpoint(url=judge, model=judge_model, key=os.environ.get(_JUDGE_KEY))
    )
    chosen = _chosen(_of_store(db) if source is None else _of_file(source), suggestion)
    specs = tuple(TransformSpec.from_json(spec) for spec in chosen["change"]["transforms"])
    with reading(files, "asking") as watch:
        read = read_prompts(files, watch=watch)
    prompts = [prompt for prompt in read.prompts if prompt.route == chosen["route"]]
    if not prompts:
        raise UsageError(f"no prompt of the route {chosen['route']} in FILES")
    with steps("asking") as hear:
        found = compare(
            prompts,
            specs,
            Asked(
                server=endpoint, last=last, max_tokens=max_tokens, checks=checks, judge=judging, watch=hear
            ),
        )
    if as_json:
        emit_json(_document(found, chosen, show_text=show_text) | {"skipped": skipped_json(read.skipped)})
        return
    click.echo(f"{chosen['id']} on {chosen['route']}: {' '.join(changes_of(specs))}")
    _show(found, show_text=show_text)
    show_skipped(read.skipped)


def _schema(path: Path) -> Check:
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise UsageError(f"{path} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"{path} must hold one JSON object, the schema")
    return conforms(value, path.name)


def _of_store(db: str | None) -> list[dict[str, Any]]:
    with opened(db) as store:
        return [
            {"id": item.id, "route": item.route, "change": dict(item.change)}
            for item in store.advice.suggestions()
        ]


class _Told(msgspec.Struct):
    id: str
    route: str
    change: dict[str, Any]


class _ToldFile(msgspec.Struct):
    suggestions: list[_Told]


def _of_file(path: Path) -> list[dict[str, Any]]:
    try:
        told = msgspec.json.decode(path.read_bytes(), type=_ToldFile)
    except (msgspec.DecodeError, ValueError) as error:
        raise UsageError(f"{path} is not what `kvscope suggest --json` prints: {error}") from error
    return [msgspec.structs.asdict(each) for each in told.suggestions]


def _chosen(suggestions: list[dict[str, Any]], wanted: str | None) -> dict[str, Any]:
    known = [each for each in suggestions if wanted in (None, each["id"])]
    if not known:
        raise UsageError("there is no such suggestion" if wanted else "there is no suggestion to compare")
    found = next((each for each in known if each["change"].get("transforms")), None)
    if found is None:
        raise UsageError(
            "no transform is in it that could be applied to recorded prompts: a person must act on it"
        )
    return found


def _document(found: Comparison, chosen: dict[str, Any], *, show_text: bool) -> dict[str, Any]:
    return {
        "suggestion": chosen["id"],
        "route": chosen["route"],
        "transforms": chosen["change"]["transforms"],
        "prompts": found.prompts,
        "untouched": found.untouched,
        "same": found.same,
        "noise": found.noise,
        "common_start": found.common_start,
        "checks": found.checks,
        "judgements": found.judgements,
        "refused": [{"request_id": name, "reason": reason} for name, reason in found.refused],
        "answers": found.pairs if show_text else None,
    }


def _interval(share: Share) -> str:
    return (
        f"{share.count} of {share.of}, {percent(share.share)} ({percent(share.low)} to {percent(share.high)})"
    )


def _show(found: Comparison, *, show_text: bool) -> None:
    emit_table(
        f"Answers to {found.prompts:,} prompts at temperature 0",
        ("", "answers that are the same (95 % interval)"),
        [("asked twice as they are", _interval(found.noise)), ("changed", _interval(found.same))],
        empty="",
    )
    click.echo(f"answers begin alike for {percent(found.common_start)} of their length")
    emit_table(
        "Checks",
        ("check", "held as they are", "changed", "lost", "gained"),
        [(row.name, row.before, row.after, row.lost, row.gained) for row in found.checks],
        empty="",
    )
    if found.judgements is not None:
        told = ", ".join(f"{count} {word}" for word, count in found.judgements.items())
        click.echo(f"the judge: {told}")
    if found.untouched:
        click.echo(f"{found.untouched:,} prompts that the change leaves as they are were not asked")
    for name, reason in found.refused:
        click.echo(f"refused {name}: {reason}", err=True)
    for pair in found.pairs if show_text else ():
        emit_table(
            pair.request_id,
            ("as it is", "again", "changed"),
            [(pair.before, pair.again, pair.after)],
            empty="",
        )
