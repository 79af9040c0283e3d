"""The demo's script: traffic, causes, suggestion, experiment, promotion, traffic again, and what came of it.

Everything but the script itself is the product: the agent runs as `kvscope agent` does, the script reads the
store and writes the wishes that a person would write from the command line or the dashboard.
"""

import asyncio
import contextlib
import dataclasses
import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from kvscope.agent.checks import Check, run_checks
from kvscope.clock import system_clock
from kvscope.demo import story, trial
from kvscope.demo.client import Tally, TrafficClient
from kvscope.demo.engines import Engine, EngineOptions, answers, free_port, start_builtin
from kvscope.demo.measuring import Phase, measure
from kvscope.demo.model import build_model
from kvscope.demo.process import ChildProcess
from kvscope.demo.show import Screen
from kvscope.demo.sidecar import Sidecar, start_sidecar
from kvscope.demo.vllm import start_vllm
from kvscope.demo.workload import REQUESTS_PER_ROUND, TUNED_ROUTE, Workload
from kvscope.errors import KvscopeError
from kvscope.model.advice import Experiment, ExperimentState, IntentAction, Suggestion, Verdict
from kvscope.reports.tuning import build_report, render
from kvscope.store.database import Store, open_store

LEAST_GAIN = 0.3
"""The demo succeeds when the tuned route's hit rate has grown by at least this."""
MOST_ERROR = 0.03
"""... and lies no further than this from what was predicted."""

_EXPERIMENT = "demo-support-layout"
_WATCH_SECONDS = 0.5
_DASHBOARD_SECONDS = 60.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What a run of the demo can be told."""

    engine: Literal["vllm", "builtin"] = "vllm"
    output: Path = Path("demo-out")
    dashboard: bool = False  # leave the dashboard running at the end
    as_json: bool = False
    seed: int = 1
    rounds: int = 6  # of REQUESTS_PER_ROUND requests each, before and after
    clients: int = 4
    pause_seconds: float = 0.12  # of a client between two requests, on average
    min_units: int = 25  # sessions in each arm before a verdict
    longest_trial_seconds: float = 600.0
    time_scale: float = 1.0  # of the built-in engine's modelled times


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """What came of a run; ``document`` is what ``--json`` prints."""

    succeeded: bool
    document: dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class _Stage:
    """What a run works with."""

    options: DemoOptions
    screen: Screen
    engine: Engine
    sidecar: Sidecar
    store: Store


def run_demo(options: DemoOptions) -> DemoResult:
    """Run the whole loop and stop everything that it started; prints as it goes.

    Raises ``UnreachableError`` when a server does not start or dies, ``KeyboardInterrupt`` on SIGINT and
    SIGTERM.
    """
    screen = Screen(to_stderr=options.as_json)
    with _stopping(), contextlib.ExitStack() as running:
        stage = _set_up(options, screen, running)
        result = _play(stage)
        if options.as_json:
            sys.stdout.write(json.dumps(result.document, indent=2, ensure_ascii=False) + "\n")
            sys.stdout.flush()
        if options.dashboard:
            _leave_dashboard(stage, running)
    return result


@contextlib.contextmanager
def _stopping() -> Iterator[None]:
    """Turn SIGTERM into an interrupt as Ctrl-C is one; while things are being stopped, neither counts."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)  # a second one must not leave processes behind
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _set_up(options: DemoOptions, screen: Screen, running: contextlib.ExitStack) -> _Stage:
    output = options.output
    output.mkdir(parents=True, exist_ok=True)
    for old in (*output.glob("kvscope.db*"), *output.glob("*.log")):  # each run tells its own story
        if old.is_dir():
            shutil.rmtree(old)  # the agent's spool
        else:
            old.unlink()
    screen.heading(story.title(options.engine))
    with screen.progress("making a tiny model and its tokenizer"):
        model = build_model(output / "model", weights=options.engine == "vllm")
    engine_options = EngineOptions(
        model=model,
        otlp_endpoint=f"http://127.0.0.1:{free_port()}",
        blocks=story.CACHE_BLOCKS,
        time_scale=options.time_scale,
    )
    start = start_vllm if options.engine == "vllm" else start_builtin
    with screen.progress(f"starting {story.ENGINE_NAMES[options.engine]}") as progress:
        engine = start(engine_options, output / "engine.log", progress=progress)
    running.callback(engine.stop)
    with screen.progress("starting kvscope agent"):
        sidecar = start_sidecar(engine, output)
    running.callback(sidecar.stop)
    store = running.enter_context(contextlib.closing(open_store(sidecar.db)))
    screen.line(f"engine {engine.url}, gateway {sidecar.gateway}, store {sidecar.db}")
    return _Stage(options, screen, engine, sidecar, store)


def _play(stage: _Stage) -> DemoResult:
    screen, store, options = stage.screen, stage.store, stage.options
    screen.heading("Traffic as it comes")
    before = _traffic(stage, "before")
    story.show_phase(screen, before)
    story.show_misses(screen, store, before)
    with screen.progress("waiting for the agent's advice"):
        requests = before.of(TUNED_ROUTE).requests
        suggestion = trial.wait_for_suggestion(store, TUNED_ROUTE, requests=requests)
    story.show_models(screen, store.advice.models())
    story.show_suggestions(screen, store.advice.suggestions())
    predicted = story.predicted(suggestion, before.of(TUNED_ROUTE))

    screen.heading(f"Experiment on route {TUNED_ROUTE}, on running traffic")
    story.show_approval(screen, suggestion)
    experiment = _experiment(stage, suggestion)
    look = trial.last_look(store, experiment)
    story.show_verdict(screen, experiment, look)
    if experiment.verdict is not Verdict.KEEP:
        screen.line("nothing is promoted, so there is no traffic to compare: the demo ends here")
        document = story.document(options.engine, before, predicted, None, experiment, look)
        return DemoResult(succeeded=False, document=document | _reports(stage))

    trial.ask(store, experiment, IntentAction.PROMOTE)
    screen.heading("Promoted; traffic again, all in new sessions")
    after = _traffic(stage, "after")
    story.show_phase(screen, after)
    checks = [
        check
        for check in run_checks(store, vllm=stage.engine.url, agent=stage.sidecar.admin)
        if check.name == "sums agree"
    ]
    document = story.document(options.engine, before, predicted, after, experiment, look)
    document["sums_agree"] = all(check.ok for check in checks) and bool(checks)
    succeeded = _succeeded(document)
    document |= {"succeeded": succeeded} | _reports(stage)
    _show_end(stage, document, checks)
    return DemoResult(succeeded=succeeded, document=document)


def _succeeded(document: dict[str, Any]) -> bool:
    before, predicted, after = (document[key]["hit_rate"] for key in ("before", "predicted", "after"))
    if before is None or after is None:
        return False
    came_true = after - before >= LEAST_GAIN and abs(after - predicted) <= MOST_ERROR
    return came_true and bool(document["sums_agree"])


def _traffic(stage: _Stage, phase: str) -> Phase:
    """Send a whole phase and return its figures."""
    options = stage.options
    total = options.rounds * REQUESTS_PER_ROUND
    client = _client(stage, phase)
    began_at = system_clock()
    with stage.screen.progress(f"sending {total} requests, {options.clients} at a time", total) as progress:
        asyncio.run(client.run(rounds=options.rounds, progress=lambda tally: progress(tally.requests)))
        return measure(
            stage.store,
            phase,
            began_at=began_at,
            ended_at=system_clock(),
            requests=client.tally.requests,
        )


def _client(stage: _Stage, phase: str) -> TrafficClient:
    workload = Workload(seed=stage.options.seed, phase=phase, model=stage.engine.model)
    return TrafficClient(
        stage.sidecar.gateway,
        workload,
        seed=stage.options.seed,
        clients=stage.options.clients,
        pause_seconds=stage.options.pause_seconds,
    )


def _experiment(stage: _Stage, suggestion: Suggestion) -> Experiment:
    """Run the experiment until the agent has decided, or until it has taken too long."""
    store, options = stage.store, stage.options
    experiment = trial.begin(store, suggestion, name=_EXPERIMENT, min_units=options.min_units)
    client = _client(stage, "experiment")
    with stage.screen.progress("sending traffic until the agent decides") as progress:
        asyncio.run(_until_decided(client, stage, experiment, progress))
    experiment = store.experiments.get(experiment.id)
    if experiment.state is ExperimentState.RUNNING:
        raise KvscopeError(
            f"no verdict after {options.longest_trial_seconds:.0f} s and {client.tally.requests} requests; "
            f"see {options.output / 'agent.log'}"
        )
    stage.screen.line(
        f"{client.tally.requests} requests, {sum(client.tally.sessions.values())} finished sessions"
    )
    return experiment


async def _until_decided(client: TrafficClient, stage: _Stage, experiment: Experiment, progress: Any) -> None:
    ended = asyncio.Event()

    def count(tally: Tally) -> None:
        progress(tally.requests)

    async def watch() -> None:
        while await asyncio.to_thread(trial.is_open, stage.store, experiment):  # noqa: ASYNC110 - the store tells
            await asyncio.sleep(_WATCH_SECONDS)
        ended.set()

    async def send() -> None:
        async with asyncio.timeout(stage.options.longest_trial_seconds):
            await client.run(until=ended.is_set, progress=count)

    watching = asyncio.create_task(watch())
    try:
        with contextlib.suppress(TimeoutError):
            await send()
    finally:
        watching.cancel()


def _reports(stage: _Stage) -> dict[str, Any]:
    """Write the report in both forms and return where."""
    report = build_report(stage.store, now=system_clock())
    files = []
    forms: tuple[Literal["md", "html"], ...] = ("md", "html")
    for form in forms:
        file = stage.options.output / f"report.{form}"
        file.write_text(render(report, form), "utf-8")
        files.append(str(file))
    return {"reports": files, "store": stage.sidecar.db}


def _show_end(stage: _Stage, document: dict[str, Any], checks: list[Check]) -> None:
    screen = stage.screen
    screen.heading("What was predicted, and what came")
    story.show_result(screen, document)
    for check in checks:
        screen.line(f"sums {'agree' if check.ok else 'DO NOT AGREE'}: {check.detail}")
    screen.line(f"report: {' and '.join(document['reports'])}")
    if not document["succeeded"]:
        screen.line(
            f"NOT as it should be: expected are a gain of at least {LEAST_GAIN:g}, at most {MOST_ERROR:g} "
            "from the prediction, and sums that agree"
        )


def _leave_dashboard(stage: _Stage, running: contextlib.ExitStack) -> None:
    """Show the dashboard until Ctrl-C; engine and agent go on meanwhile."""
    port = free_port()
    code = "from kvscope.cli.main import main; main()"
    argv = [sys.executable, "-c", code, "dashboard", "--db", stage.sidecar.db, "--port", str(port)]
    argv += ["--agent", stage.sidecar.admin]
    dashboard = ChildProcess("the dashboard", argv, stage.options.output / "dashboard.log")
    running.callback(dashboard.stop)
    url = f"http://127.0.0.1:{port}"
    dashboard.ready_or_stop(lambda: answers(url), deadline_seconds=_DASHBOARD_SECONDS)
    stage.screen.line(f"dashboard: {url}; Ctrl-C stops it, the agent and the engine")
    with contextlib.suppress(KeyboardInterrupt):
        while dashboard.running():
            time.sleep(_WATCH_SECONDS)
