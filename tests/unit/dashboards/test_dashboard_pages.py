"""Each page runs on a seeded store, shows what it should, and writes what it was asked to."""

import time
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvscope.model.advice import ExperimentState, IntentAction
from kvscope.model.request import RequestPart, Source
from kvscope.pipeline.contracts import Batch
from kvscope.store.database import open_store
from tests.unit.dashboards.conftest import RunPage

PAGES = ("overview", "requests", "causes", "suggestions", "experiments")
SUGGESTION = "move_volatile-support-1a2b3c4d"


def texts(app: AppTest) -> str:
    """Return all text of a page."""
    parts = [*app.markdown, *app.caption, *app.subheader, *app.info, *app.error, *app.success, *app.warning]
    return "\n".join(str(part.value) for part in parts)


@pytest.mark.parametrize("page", PAGES)
def test_every_page_runs_without_an_exception(store_url: str, run_page: RunPage, page: str) -> None:
    app = run_page(store_url, page)
    assert not app.exception
    assert app.title[0].value == page.capitalize()


def test_the_overview_shows_the_stores_figures(store_url: str, run_page: RunPage) -> None:
    store = open_store(store_url)
    total = store.reader.hits("total")[0]
    store.close()
    app = run_page(store_url, "overview")
    shown = {metric.label: metric.value for metric in app.metric}
    assert total.hit_rate is not None
    assert shown["Hit rate"] == f"{total.hit_rate * 100:.1f} %"
    assert shown["Requests"] == "480"
    assert "and so do the records" in texts(app)


def test_the_built_in_engine_is_never_taken_for_vllm(tmp_path: Path, run_page: RunPage) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    store = open_store(url, upgrade=True)
    told = {"arrived_at": time.time() - 5, "route": "a", "model": "tiny-builtin", "engine": "http://e"}
    part = RequestPart(request_id="r1", source=Source.GATEWAY, values=told)
    store.batches.write([Batch(parts=[part])])
    store.close()
    app = run_page(url, "overview")
    assert not app.exception
    assert "it is not vLLM" in texts(app)
    assert {metric.label: metric.value for metric in app.metric}["Hit rate"] == "unknown"


def test_requests_can_be_narrowed_down(store_url: str, run_page: RunPage) -> None:
    app = run_page(store_url, "requests")
    app.selectbox(key="requests-route").set_value("agent").run()
    frame = app.dataframe[0].value
    assert set(frame["route"]) == {"agent"}
    app.text_input(key="requests-text").set_value("no such request").run()
    assert "No request matches" in texts(app)
    assert not app.exception


def test_causes_name_the_place_that_breaks_the_prefix(store_url: str, run_page: RunPage) -> None:
    app = run_page(store_url, "causes")
    places = app.dataframe[0].value
    assert list(places["route"]) == ["agent", "support"]
    assert list(places["kind"]) == ["tool order", "timestamp"]


def test_a_dismissed_suggestion_is_gone(store_url: str, run_page: RunPage) -> None:
    app = run_page(store_url, "suggestions")
    assert len(app.subheader) == 3
    app.button(key=f"dismiss-{SUGGESTION}").click().run()
    assert len(app.subheader) == 2
    store = open_store(store_url)
    assert SUGGESTION not in {suggestion.id for suggestion in store.advice.suggestions()}
    store.close()


def test_a_change_that_is_not_safe_needs_a_yes(store_url: str, run_page: RunPage) -> None:
    app = run_page(store_url, "suggestions")
    _submit(app, SUGGESTION)
    assert "needs a person's yes" in texts(app)
    app.checkbox(key=f"approve-{SUGGESTION}").check()
    _submit(app, SUGGESTION)
    assert not app.exception
    store = open_store(store_url)
    created = store.experiments.get("support-move-volatile")
    store.close()
    assert (created.state, created.suggestion_id) == (ExperimentState.DRAFT, SUGGESTION)
    assert created.treatment.share == 0.5


def test_a_start_is_an_intent_and_its_outcome_is_shown(store_url: str, run_page: RunPage) -> None:
    app = run_page(store_url, "experiments")
    assert app.selectbox(key="experiment-choice").value == "agent-sorted-tools"
    app.button(key="start").click().run()
    store = open_store(store_url)
    (intent,) = store.experiments.pending_intents()
    assert (intent.experiment, intent.action, intent.actor) == ("exp-agent", IntentAction.START, "dashboard")
    assert "the agent acts on it" in texts(app)
    assert app.button(key="start").disabled
    assert intent.id is not None
    store.experiments.close_intent(intent.id, "refused: route agent already runs another")
    store.close()
    app.run()
    assert "route agent already runs another" in texts(app)


def test_a_promoted_experiment_can_be_undone(store_url: str, run_page: RunPage) -> None:
    app = run_page(store_url, "experiments")
    app.selectbox(key="experiment-choice").set_value("support-clock-last").run()
    assert app.button(key="stop").label == "Undo the promotion"
    app.button(key="stop").click().run()
    store = open_store(store_url)
    (intent,) = store.experiments.pending_intents()
    store.close()
    assert (intent.experiment, intent.action) == ("exp-support", IntentAction.STOP)


def test_promotion_against_the_verdict_needs_a_yes(store_url: str, run_page: RunPage) -> None:
    store = open_store(store_url)
    from kvscope.model.advice import Transition

    store.experiments.transition(
        Transition(
            experiment="exp-agent", at=1.0, state=ExperimentState.STOPPED, actor="test", reason="a test"
        )
    )
    app = run_page(store_url, "experiments")
    assert app.button(key="promote").disabled
    app.checkbox(key="override-exp-agent").check().run()
    app.button(key="promote").click().run()
    (intent,) = store.experiments.pending_intents()
    store.close()
    assert intent.action is IntentAction.PROMOTE
    assert dict(intent.params) == {"override": True}


@pytest.mark.parametrize("page", PAGES)
def test_an_empty_store_is_explained(tmp_path: Path, run_page: RunPage, page: str) -> None:
    url = f"sqlite:///{tmp_path / 'empty.db'}"
    open_store(url, upgrade=True).close()
    app = run_page(url, page)
    assert not app.exception
    assert "**No " in texts(app)


@pytest.mark.parametrize("page", PAGES)
def test_a_missing_store_is_explained(tmp_path: Path, run_page: RunPage, page: str) -> None:
    app = run_page(f"sqlite:///{tmp_path / 'nowhere.db'}", page)
    assert not app.exception
    assert app.button(key="try-again").label == "Try again"
    assert "nowhere" in texts(app)


def test_an_old_store_says_how_to_upgrade_it(tmp_path: Path, run_page: RunPage) -> None:
    import sqlite3

    path = tmp_path / "newer.db"
    open_store(f"sqlite:///{path}", upgrade=True).close()
    with sqlite3.connect(path) as connection:
        connection.execute("update kvscope_version set version_num = '9999'")
    connection.close()
    app = run_page(f"sqlite:///{path}", "overview")
    assert not app.exception
    assert "9999" in texts(app)


def _submit(app: AppTest, suggestion: str) -> None:
    """Press the form's button of one suggestion."""
    button = next(b for b in app.button if b.label == "Create draft" and suggestion in str(b.form_id))
    button.click().run()
