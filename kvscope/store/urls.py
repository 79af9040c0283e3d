"""Store URLs: which are allowed, what they mean, and how they are shown without a password."""

import dataclasses
import importlib.util
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from kvscope.errors import UsageError

_ALLOWED = "sqlite:///FILE or postgresql://USER@HOST/DATABASE"
_SQLITE = frozenset({"sqlite", "sqlite+pysqlite"})
_POSTGRESQL = frozenset({"postgres", "postgresql", "postgresql+psycopg"})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A store's place: a SQLite file (``path`` is set) or a PostgreSQL database."""

    url: URL
    path: Path | None

    @property
    def shown(self) -> str:
        """The URL for messages and logs, as a user would write it; a password is replaced by ``***``."""
        url = self.url.set(drivername=self.url.get_backend_name())
        if "password" in url.query:
            url = url.update_query_dict({"password": "***"})
        return url.render_as_string(hide_password=True)


def locate(url: str) -> Location:
    """Return what ``url`` names; raises ``UsageError`` when no store can be there."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        given = "" if "@" in url else f" {url!r}"  # before an @ there may be a password
        raise UsageError(f"the store's URL{given} cannot be read; write {_ALLOWED}") from error
    if parsed.drivername in _SQLITE:
        return _sqlite(parsed)
    if parsed.drivername in _POSTGRESQL:
        return _postgresql(parsed)
    raise UsageError(f"no store speaks {parsed.drivername!r}; write {_ALLOWED}")


def _sqlite(url: URL) -> Location:
    name = url.database or ""
    if not name or name == ":memory:" or name.startswith("file:"):
        raise UsageError(f"the store needs a file that several connections can open; write {_ALLOWED}")
    return Location(url=url.set(drivername="sqlite"), path=Path(name))


def _postgresql(url: URL) -> Location:
    if importlib.util.find_spec("psycopg") is None:
        raise UsageError("PostgreSQL needs psycopg; run `pip install 'kvscope[postgres]'`")
    return Location(url=url.set(drivername="postgresql+psycopg"), path=None)
