"""Loads the agent's settings: flags win over the environment, the environment over the file."""

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from kvscope.config.settings import AgentSettings
from kvscope.errors import ConfigError, UsageError
from kvscope.pipeline.contracts import CollectorFactory
from kvscope.store.urls import locate

_PREFIX = "KVSCOPE_"
_PASSWORD = re.compile(r"//([^/@:\s]*:)[^/@\s]*@")
HASH_SALT = f"{_PREFIX}HASH_SALT"
# read by the plugin and the middleware inside the engine or by commands, not by the agent
_FOREIGN = frozenset(
    {
        "KVSCOPE_OTLP_ENDPOINT",
        "KVSCOPE_PLUGIN",
        "KVSCOPE_MIDDLEWARE",
        "KVSCOPE_MIDDLEWARE_ENDPOINT",
        "KVSCOPE_ENGINE_URL",
        HASH_SALT,
    }
)


def data_directory() -> Path:
    """Return the folder of the default store, after the XDG base directory specification."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "kvscope"


def default_db() -> str:
    """Return the URL of the store when no flag names one: KVSCOPE_DB, else the data directory's."""
    return os.environ.get(f"{_PREFIX}DB") or f"sqlite:///{data_directory() / 'kvscope.db'}"


def environment_with_db(db: str) -> dict[str, str]:
    """Return this process's environment for a child whose store is ``db``."""
    return dict(os.environ) | {f"{_PREFIX}DB": db}


def spool_folder(settings: AgentSettings) -> Path:
    """Return the folder of the spool: the one that is named, else one of this store alone."""
    if settings.spool.folder is not None:
        return settings.spool.folder
    location = locate(settings.db)
    if location.path is not None:
        return location.path.with_name(f"{location.path.name}.spool")
    store = hashlib.blake2b(location.shown.encode(), digest_size=6).hexdigest()
    return data_directory() / f"spool-{store}"


def make_data_directory(db: str) -> None:
    """Make the data directory when ``db`` lies in it; other folders are their owner's to make."""
    if db.startswith(f"sqlite:///{data_directory()}"):
        data_directory().mkdir(parents=True, exist_ok=True)


def check_place(db: str) -> None:
    """Raise ``UsageError`` where no store can be at ``db``; of a server's URL the form alone is looked at."""
    path = locate(db).path
    if path is None:
        return
    folder = path.parent
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file in it, such as sqlite:///{path / 'kvscope.db'}")
    if path.exists() and not os.access(path, os.W_OK):
        raise UsageError(f"{path} may not be written; name another file with --db, or allow it")
    if folder == data_directory():
        while not folder.exists():
            folder = folder.parent
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}; make it, or name another place with --db")
    if not os.access(folder, os.W_OK):  # SQLite writes files beside its own
        raise UsageError(f"the folder {folder} may not be written; name another place with --db, or allow it")


def collector_factories() -> dict[str, CollectorFactory]:
    """Return the installed collectors by name: ours and third parties' alike."""
    points = entry_points(group="kvscope.collectors")
    return {point.name: point.load() for point in sorted(points, key=lambda point: point.name)}


def settings_class(factories: Iterable[CollectorFactory]) -> type[BaseModel]:
    """Return ``AgentSettings`` with one section per collector under ``collectors``."""
    sections: dict[str, Any] = {
        factory.name: (factory.settings, Field(default_factory=factory.settings)) for factory in factories
    }
    closed = ConfigDict(extra="forbid", frozen=True)
    collectors = create_model("CollectorsSettings", __config__=closed, **sections)
    return create_model(
        "Settings",
        __base__=AgentSettings,
        collectors=(collectors, Field(default_factory=collectors, description="The ways in.")),
    )


def load_settings(
    file: Path | None,
    flags: Mapping[str, Any],
    factories: Iterable[CollectorFactory],
    environment: Mapping[str, str] | None = None,
) -> Any:
    """Return the validated settings; raises ``ConfigError`` with one line per mistake found first.

    ``flags`` is nested as the file is; values that are None do not count.
    """
    values: dict[str, Any] = {"db": f"sqlite:///{data_directory() / 'kvscope.db'}"}
    for layer in (_from_file(file), _from_environment(environment), flags):
        _overlay(values, layer)
    cls = settings_class(factories)
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_explain(error, cls)) from error


def _from_file(file: Path | None) -> Mapping[str, Any]:
    if file is None:
        return {}
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not YAML: {' '.join(str(error).split())}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{file} must hold keys and values, not a {type(values).__name__}")
    return values


def _from_environment(environment: Mapping[str, str] | None) -> Mapping[str, Any]:
    """Read KVSCOPE_A__B=value as {a: {b: value}}; values are written as in YAML."""
    found: dict[str, Any] = {}
    for name, text in (os.environ if environment is None else environment).items():
        if not name.startswith(_PREFIX) or name in _FOREIGN:
            continue
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"{name}={text!r} is not a value as YAML writes it") from error
        for key in reversed(name.removeprefix(_PREFIX).lower().split("__")):
            value = {key: value}
        _overlay(found, value)
    return found


def _overlay(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    """Lay ``above`` over ``below``, key by key; None above says nothing."""
    for key, value in above.items():
        if isinstance(value, Mapping) and isinstance(below.get(key), dict):
            _overlay(below[key], value)
        elif isinstance(value, Mapping):
            below[key] = {}
            _overlay(below[key], value)
        elif value is not None:
            below[key] = value


def _explain(error: ValidationError, cls: type[BaseModel]) -> str:
    """Say in one line which key is wrong, what came and what is allowed."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        allowed = ", ".join(sorted(_keys_at(cls, first["loc"][:-1])))
        return f"unknown key {where!r}; allowed there: {allowed}"
    message = first["msg"].removeprefix("Value error, ")
    line = f"{where}: {message[:1].lower()}{message[1:]} (got {first['input']!r})"
    return _PASSWORD.sub(r"//\1***@", line)


def _keys_at(cls: type[BaseModel], path: Iterable[Any]) -> Iterable[str]:
    for key in path:
        field = cls.model_fields.get(str(key))
        annotation = field.annotation if field else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return ()
        cls = annotation
    return cls.model_fields.keys()
