"""Bad input to the commands: one clear line, the right exit code, nothing half-done."""

import json
import os
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from kvscope.store import migrate

RUN = "from kvscope.cli.main import main; main()"


def kvscope(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("KVSCOPE_")}
    return subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        capture_output=True, text=True, check=False, timeout=60, cwd=folder,
        env=environment | {"XDG_DATA_HOME": str(folder / "data")} | more,
    )  # fmt: skip


def one_line(text: str) -> str:
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    return lines[0]


@pytest.fixture
def db(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'k.db'}"
    migrate.upgrade(url)
    return url


def test_no_store_yet(tmp_path: Path) -> None:
    done = kvscope(tmp_path, "hits")
    assert done.returncode == 2
    assert "start `kvscope agent`" in one_line(done.stderr)
    assert not (tmp_path / "data").exists()


def test_an_unknown_key_in_the_config(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("collectors: {gateway: {prot: 1}}\n", encoding="utf-8")
    done = kvscope(tmp_path, "agent", "--check", "--config", "c.yaml")
    assert done.returncode == 2
    assert "unknown key 'collectors.gateway.prot'; allowed there:" in one_line(done.stderr)


def test_a_wrong_url(tmp_path: Path) -> None:
    done = kvscope(tmp_path, "agent", "--check", "--upstream", "vllm:8000")
    assert done.returncode == 2
    assert "'vllm:8000' is not a URL such as http://127.0.0.1:8000" in one_line(done.stderr)


def test_an_upstream_without_a_host(tmp_path: Path) -> None:
    done = kvscope(tmp_path, "agent", "--check", "--upstream", "http://")
    assert done.returncode == 2
    assert "'http://' is not a URL such as" in one_line(done.stderr)


def test_a_store_that_is_no_url(tmp_path: Path) -> None:
    done = kvscope(tmp_path, "agent", "--check", "--db", "foo.db")
    assert done.returncode == 2
    assert "write sqlite:///FILE or postgresql://USER@HOST/DATABASE" in one_line(done.stderr)


@pytest.mark.parametrize("url", ["http://", "http://h:99999/metrics", "h:8000/metrics", "http://h:0/"])
def test_a_metrics_page_that_is_no_url(tmp_path: Path, url: str) -> None:
    done = kvscope(tmp_path, "agent", "--check", "--metrics-url", url)
    assert done.returncode == 2
    assert f"{url!r} is not a URL such as http://127.0.0.1:8000/metrics" in one_line(done.stderr)


@pytest.mark.parametrize(
    ("db", "said"),
    [
        ("sqlite:///absent/k.db", "there is no folder absent; make it, or name another place with --db"),
        ("sqlite:///there", "there is a folder; name a file in it, such as sqlite:///there/kvscope.db"),
    ],
)
def test_a_store_that_cannot_be_where_it_should(tmp_path: Path, db: str, said: str) -> None:
    (tmp_path / "there").mkdir()
    done = kvscope(tmp_path, "agent", "--check", "--db", db)
    assert done.returncode == 2
    assert said in one_line(done.stderr)


def test_a_tokenizer_that_is_not_there(tmp_path: Path) -> None:
    done = kvscope(tmp_path, "agent", "--check", "--tokenizer", "there")
    assert done.returncode == 2
    assert "no tokenizer at there: name a folder with tokenizer.json in it" in one_line(done.stderr)


def test_a_valid_config_is_only_checked(tmp_path: Path) -> None:
    done = kvscope(tmp_path, "agent", "--check", "--upstream", "http://127.0.0.1:9")
    assert (done.returncode, done.stdout.strip()) == (0, "the configuration is valid")
    assert list(tmp_path.iterdir()) == []


def test_the_example_is_valid(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "agent.yaml"
    done = kvscope(tmp_path, "agent", "--check", "--config", str(example))
    assert (done.returncode, done.stderr) == (0, "")


PORTS = ("--gateway-port", "--otlp-grpc-port", "--otlp-http-port", "--middleware-port")


@pytest.mark.parametrize("option", PORTS)
def test_a_port_in_use(tmp_path: Path, db: str, option: str) -> None:
    off = dict.fromkeys((*PORTS, "--admin-port"), "0")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ports = [word for each in (off | {option: str(port)}).items() for word in each]
        done = kvscope(tmp_path, "agent", "--db", db, *ports)
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if line.startswith("kvscope: ")]
    assert len(said) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in said[0]
    assert option in said[0]
    assert "Traceback" not in done.stderr
    assert "add_port" not in done.stderr  # gRPC's own complaint


@pytest.mark.parametrize("command", [("hits",), ("agent",), ("doctor",), ("report",)])
def test_a_newer_schema(tmp_path: Path, db: str, command: tuple[str, ...]) -> None:
    with sqlite3.connect(tmp_path / "k.db") as connection:
        connection.execute(f"UPDATE {migrate.VERSION_TABLE} SET version_num = '9999'")
    done = kvscope(tmp_path, *command, "--db", db)
    assert done.returncode == 3
    assert "9999" in one_line(done.stderr)


def test_db_check_of_a_newer_schema_asks_for_a_newer_kvscope(tmp_path: Path, db: str) -> None:
    with sqlite3.connect(tmp_path / "k.db") as connection:
        connection.execute(f"UPDATE {migrate.VERSION_TABLE} SET version_num = '9999'")
    done = kvscope(tmp_path, "db", "check", "--db", db)
    assert done.returncode == 1
    assert "9999" in one_line(done.stdout)
    assert "run `pip install --upgrade kvscope`" in done.stdout
    assert "db upgrade" not in done.stdout


def test_db_check_tells_by_its_exit_code(tmp_path: Path, db: str) -> None:
    done = kvscope(tmp_path, "db", "check", "--db", db, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["ok"] is True
    done = kvscope(tmp_path, "db", "check", "--db", f"sqlite:///{tmp_path / 'other.db'}", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["ok"] is False


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("hits", "--since", "yesterday"), 2, "write a number and a unit"),
        (("hits", "--by", "colour"), 2, "route"),
        (("experiment", "status", "nothing"), 2, "nothing"),
        (("experiment", "create", "e"), 2, "there is no suggestion yet"),
        (("experiment", "create", "e", "--share", "1.5"), 2, "--share"),
        (("predict", "--prompt-tokens", "10", "--cached-tokens", "10"), 2, "always computed"),
        (("predict", "--prompt-tokens", "10"), 2, "run `kvscope fit`"),
        (("requests", "--last", "0"), 2, "--last"),
        (("nonsense",), 2, "nonsense"),
        (("suggest", "nowhere.jsonl", "--tokenizer", "nowhere"), 2, "nowhere"),
    ],
)
def test_wrong_usage(tmp_path: Path, db: str, arguments: tuple[str, ...], code: int, said: str) -> None:
    place = () if arguments[0] == "nonsense" else ("--db", db)
    done = kvscope(tmp_path, *arguments, *place)
    assert done.returncode == code, done.stderr
    assert said in one_line(done.stderr)


@pytest.mark.parametrize("command", ["hits", "agent"])
def test_a_database_that_is_away(tmp_path: Path, command: str) -> None:
    done = kvscope(tmp_path, command, "--db", "postgresql://user:secret@127.0.0.1:9/none")
    assert done.returncode == 3
    assert "secret" not in done.stderr
    assert "127.0.0.1:9" in one_line(done.stderr)


def test_empty_answers_are_valid_json(tmp_path: Path, db: str) -> None:
    for command, key in (
        (("hits",), "rows"), (("suggest",), "suggestions"), (("experiment", "list"), "experiments"),
    ):  # fmt: skip
        done = kvscope(tmp_path, *command, "--db", db, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)[key] == []
    assert json.loads(kvscope(tmp_path, "requests", "--db", db, "--json").stdout) == []
    assert json.loads(kvscope(tmp_path, "fit", "--db", db, "--json").stdout)["models"] == []


def test_an_intent_that_no_agent_hears(tmp_path: Path, db: str) -> None:
    from kvscope.model.advice import Arm, Experiment
    from kvscope.model.prompt import TransformSpec
    from kvscope.store.database import open_store

    store = open_store(db)
    treatment = Arm(name="b", baseline=False, share=0.5, transforms=(TransformSpec(kind="sort_tools"),))
    arms = (Arm(name="a", baseline=True, share=0.5), treatment)
    store.experiments.create(Experiment(id="x1", name="mine", route="r", arms=arms))
    store.close()
    done = kvscope(tmp_path, "experiment", "start", "mine", "--db", db, "--wait", "0.3")
    assert done.returncode == 3
    assert "is `kvscope agent` running on this store?" in one_line(done.stderr)


def test_names_from_clients_are_text_in_any_locale(tmp_path: Path, db: str) -> None:
    from kvscope.model.request import RequestPart, Source
    from kvscope.pipeline.contracts import Batch
    from kvscope.store.database import open_store

    values = {
        "route": "[/bold]ü", "tenant": "[link]", "arrived_at": 1_795_966_295.5,
        "prompt_tokens": 9, "cached_tokens": 4,
    }  # fmt: skip
    store = open_store(db)
    store.batches.write([Batch(parts=[RequestPart(request_id="[/]", source=Source.GATEWAY, values=values)])])
    store.close()
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    for command in (("requests",), ("hits",), ("hits", "--by", "tenant")):
        done = kvscope(tmp_path, *command, "--db", db, **ascii_only)
        assert done.returncode == 0, done.stderr
        assert "[/" in done.stdout or "[link]" in done.stdout
    told = json.loads(kvscope(tmp_path, "requests", "--db", db, "--json", **ascii_only).stdout)
    assert (told[0]["request_id"], told[0]["route"]) == ("[/]", "[/bold]ü")
