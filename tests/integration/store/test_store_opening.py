"""A store that cannot be opened says so in one line, without a password, and leaves no file behind."""

import socket
from pathlib import Path

import pytest

from kvscope.errors import KvscopeError, SchemaError, UnreachableError, UsageError
from kvscope.store.database import open_store
from kvscope.store.urls import locate


def refused(url: str, *, upgrade: bool = False) -> KvscopeError:
    with pytest.raises(KvscopeError) as raised:
        open_store(url, upgrade=upgrade)
    assert "\n" not in str(raised.value)
    return raised.value


@pytest.fixture(params=[False, True], ids=["open", "upgrade"])
def upgrade(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize(
    "url", ["", "kvscope.db", "sqlite+aiosqlite:///x.db", "mysql://u:secret@h/d", "u:secret@h"]
)
def test_a_url_of_no_store(url: str, *, upgrade: bool) -> None:
    error = refused(url, upgrade=upgrade)
    assert isinstance(error, UsageError)
    assert str(error).endswith("write sqlite:///FILE or postgresql://USER@HOST/DATABASE")
    assert "secret" not in str(error)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true"])
def test_a_store_in_memory_cannot_be_shared(url: str, *, upgrade: bool) -> None:
    error = refused(url, upgrade=upgrade)
    assert isinstance(error, UsageError)
    assert "needs a file" in str(error)


def test_a_missing_folder(tmp_path: Path, *, upgrade: bool) -> None:
    error = refused(f"sqlite:///{tmp_path}/none/kvscope.db", upgrade=upgrade)
    assert isinstance(error, UsageError)
    assert (
        str(error)
        == f"the store's folder {tmp_path}/none does not exist; create it or name another with --db"
    )


def test_a_folder_in_place_of_a_file(tmp_path: Path, *, upgrade: bool) -> None:
    error = refused(f"sqlite:///{tmp_path}", upgrade=upgrade)
    assert isinstance(error, UsageError)
    assert "is a folder; name a file" in str(error)


def test_a_file_that_is_no_database(tmp_path: Path, *, upgrade: bool) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("some notes, long enough to be mistaken for pages\n" * 100)
    before = file.read_bytes()
    error = refused(f"sqlite:///{file}", upgrade=upgrade)
    assert isinstance(error, UnreachableError)
    assert str(error) == f"the store sqlite:///{file} cannot be used: file is not a database"
    assert file.read_bytes() == before


def test_a_file_that_does_not_exist_is_not_made_by_opening(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/kvscope.db"
    error = refused(url)
    assert isinstance(error, SchemaError)
    assert str(error) == (
        f"the store {url} does not exist yet: run `kvscope db upgrade --db {url}` or start the agent"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_not_there(*, upgrade: bool) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"postgresql://user:secret@127.0.0.1:{unused.getsockname()[1]}/kvscope"
        error = refused(url, upgrade=upgrade)
    assert isinstance(error, UnreachableError)
    assert "postgresql://user:***@127.0.0.1" in str(error)
    assert "Connection refused" in str(error)
    assert "secret" not in str(error)


@pytest.mark.postgres
def test_a_database_that_is_not_there(postgresql_server: str, *, upgrade: bool) -> None:
    error = refused(postgresql_server.replace("/postgres?", "/nowhere?"), upgrade=upgrade)
    assert isinstance(error, UnreachableError)
    assert str(error).endswith('database "nowhere" does not exist')


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///kvscope.db", "sqlite:///kvscope.db"),
        ("sqlite+pysqlite:////data/kvscope.db", "sqlite:////data/kvscope.db"),
        ("postgresql://u:p%40ss@h:5433/d", "postgresql://u:***@h:5433/d"),
        ("postgres://u@h/d", "postgresql://u@h/d"),
        ("postgresql+psycopg://u:p@h/d?sslmode=require", "postgresql://u:***@h/d?sslmode=require"),
        ("postgresql://u@h/d?password=secret", "postgresql://u@h/d?password=%2A%2A%2A"),
    ],
)
def test_urls_are_shown_as_written_without_a_password(url: str, shown: str) -> None:
    assert locate(url).shown == shown
