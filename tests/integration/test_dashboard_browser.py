"""The dashboard in a real browser: every page opens, and a click on "Start" starts an experiment.

Needs Playwright's Python package and Debian's Chromium; Playwright's own browsers are not used.
"""

import re
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

from dashboards import launch
from kvscope.clock import system_clock
from kvscope.experiments.controller import Controller
from kvscope.experiments.policy import LivePolicy
from kvscope.model.advice import ExperimentState, IntentAction
from kvscope.store.database import Store, open_store
from tests.support.seed import seed

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
PAGES = ("", "requests", "causes", "suggestions", "experiments")
PATIENCE_MS = 60_000


@pytest.fixture(scope="module")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A seeded store of this module alone."""
    url = f"sqlite:///{tmp_path_factory.mktemp('browser') / 'store.db'}"
    seed(url, now=time.time())
    return url


@pytest.fixture(scope="module")
def address(store_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a dashboard that is served as ``kvscope dashboard`` serves it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("dashboard") / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            launch.command(store_url, "127.0.0.1", port), stdout=output, stderr=subprocess.STDOUT
        )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait(lambda: _answers(f"{address}/_stcore/health"), 60.0)
        yield address
    finally:
        server.terminate()
        server.wait(timeout=20)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    """One page of a Chromium that starts with an empty profile."""
    if not CHROMIUM.exists():
        pytest.fail(f"{CHROMIUM} is missing: install it, or leave these out by -m 'not browser'")
    with sync_playwright() as driver:
        context = driver.chromium.launch_persistent_context(
            tmp_path / "profile",
            executable_path=CHROMIUM,
            headless=True,
            args=FLAGS,
            viewport={"width": 1280, "height": 800},
        )
        context.set_default_timeout(PATIENCE_MS)
        yield context.pages[0]
        context.close()


@pytest.fixture
def controller(store_url: str) -> Iterator[Controller]:
    """The agent's controller, stepping on the same store from another thread."""
    store = open_store(store_url)
    running = Controller(
        experiments=store.experiments,
        reader=store.reader,
        advice=store.advice,
        policy=LivePolicy(),
        clock=system_clock,
    )
    stop = threading.Event()

    def step() -> None:
        while not stop.wait(0.2):
            running.step()

    thread = threading.Thread(target=step)
    thread.start()
    yield running
    stop.set()
    thread.join()
    store.close()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _wait(holds: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.1)


def _settled(page: Page) -> None:
    """Wait until the page is drawn: its title is there and the app runs no script."""
    page.locator("h1").first.wait_for()
    page.wait_for_function(
        "() => document.querySelector('[data-testid=stApp]').dataset.testScriptState === 'notRunning'"
    )


@pytest.mark.parametrize("name", PAGES)
def test_every_page_opens_without_an_exception(page: Page, address: str, name: str) -> None:
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.goto(f"{address}/{name}")
    _settled(page)
    assert page.locator("h1").first.inner_text() == (name or "overview").capitalize()
    assert page.locator("[data-testid=stException]").count() == 0
    assert failures == []


def test_a_click_starts_the_experiment_that_the_controller_then_runs(
    page: Page, address: str, store_url: str, controller: Controller
) -> None:
    page.goto(f"{address}/suggestions")
    _settled(page)
    card = page.locator("[class*=st-key-card-sort_tools]")
    card.get_by_role("button", name="Create experiment").click()
    page.get_by_label("Name").fill("clicked-in-a-browser")
    page.get_by_role("button", name="Create draft").click()

    page.get_by_role("heading", name="Experiments", exact=True).wait_for()
    page.get_by_text("A draft: no traffic is changed until it is started.").wait_for()
    store = open_store(store_url)
    created = store.experiments.get("clicked-in-a-browser")
    assert created.state is ExperimentState.DRAFT

    page.get_by_role("button", name="Start").click()
    _wait(lambda: _state(store, created.id) is ExperimentState.RUNNING, 60.0)
    page.get_by_text("Start: started").wait_for()
    page.get_by_text(re.compile(r"Running for \d+ s")).wait_for()
    assert page.locator("[data-testid=stException]").count() == 0

    page.get_by_role("button", name="Stop").click()
    _wait(lambda: _state(store, created.id) is ExperimentState.STOPPED, 60.0)
    page.get_by_text("Stop: stopped").wait_for()
    assert [row.actor for row in store.experiments.history(created.id)][:1] == ["dashboard"]
    store.close()


def test_without_an_agent_a_click_leaves_an_intent(page: Page, address: str, store_url: str) -> None:
    page.goto(f"{address}/experiments")
    _settled(page)
    page.get_by_role("combobox", name=re.compile("Experiment")).click()
    page.get_by_role("option", name="agent-sorted-tools").click()
    page.get_by_role("button", name="Start").click()
    page.get_by_text("Start was asked for: the agent acts on it within seconds.").wait_for()
    store = open_store(store_url)
    (intent,) = store.experiments.pending_intents()
    assert (intent.experiment, intent.action, intent.actor) == ("exp-agent", IntentAction.START, "dashboard")
    assert intent.id is not None
    store.experiments.close_intent(intent.id, "refused: a test")
    page.get_by_text("Start: a test").wait_for()
    store.close()


def _state(store: Store, experiment_id: str) -> ExperimentState:
    return store.experiments.get(experiment_id).state
