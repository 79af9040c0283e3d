"""``kvscope doctor``: what works, what is missing, do the sums agree."""

import click

from kvscope.agent.checks import run_checks
from kvscope.cli.common import db_option, emit_json, emit_table, json_option, opened


@click.command()
@click.option("--vllm", metavar="URL", help="Base URL of the vLLM server; default: those that were scraped.")
@click.option(
    "--agent",
    metavar="URL",
    default="http://127.0.0.1:8801",
    show_default=True,
    help="The agent's admin port.",
)
@db_option
@json_option
def doctor(vllm: str | None, agent: str, db: str | None, as_json: bool) -> int:
    """Check agent, engine, sources and sums; exit code 1 when a check does not hold."""
    with opened(db) as store:
        checks = run_checks(store, vllm=vllm, agent=agent)
    if as_json:
        emit_json({"checks": checks})
    else:
        emit_table(
            "Doctor",
            ("", "check", "found", "what to do"),
            (("ok" if c.ok else "FAILS", c.name, c.detail, "" if c.ok else c.fix) for c in checks),
            empty="",
        )
    return 0 if all(check.ok for check in checks) else 1
