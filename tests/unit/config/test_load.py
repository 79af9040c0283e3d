"""Settings: precedence of flags, environment and file, and what is said about mistakes."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from kvscope.config.load import load_settings
from kvscope.errors import ConfigError
from kvscope.pipeline.contracts import CollectorFactory


class DoorSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    port: int = Field(7000, description="Port.")
    endpoints: tuple[str, ...] = Field((), description="Endpoints.")


def _never(settings: Any, context: Any) -> Any:
    raise AssertionError("settings are loaded, no collector is made")


FACTORIES = [CollectorFactory(name="door", settings=DoorSettings, create=_never)]


def load(
    tmp_path: Path, text: str | None = None, environment: dict[str, str] | None = None, **flags: Any
) -> Any:
    file = None
    if text is not None:
        file = tmp_path / "kvscope.yaml"
        file.write_text(text, encoding="utf-8")
    return load_settings(file, flags, FACTORIES, environment or {})


def test_defaults_stand_where_nothing_is_said(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert settings.upstreams == ("http://127.0.0.1:8000",)
    assert settings.admin.port == 8801
    assert settings.collectors.door.port == 7000


def test_flags_win_over_environment_over_file(tmp_path: Path) -> None:
    text = "collectors: {door: {port: 1}}\nadmin: {port: 2, host: 10.0.0.1}\nwriter: {queue_items: 3}\n"
    environment = {"KVSCOPE_COLLECTORS__DOOR__PORT": "11", "KVSCOPE_ADMIN__PORT": "12", "OTHER": "x"}
    settings = load(tmp_path, text, environment, collectors={"door": {"port": 21}}, admin={"port": None})
    assert settings.collectors.door.port == 21
    assert (settings.admin.port, settings.admin.host) == (12, "10.0.0.1")
    assert settings.writer.queue_items == 3


def test_one_upstream_may_be_written_without_a_list(tmp_path: Path) -> None:
    assert load(tmp_path, "upstreams: http://a:8000/\n").upstreams == ("http://a:8000",)
    assert load(tmp_path, None, {"KVSCOPE_UPSTREAMS": "[http://a:1, http://b:2]"}).upstreams == (
        "http://a:1",
        "http://b:2",
    )


def test_upstreams_are_base_urls_once_each(tmp_path: Path) -> None:
    text = "upstreams: ['http://h:1/', 'http://h:1', 'HTTP://h:2/v/', 'http://[::1]:3']\n"
    assert load(tmp_path, text).upstreams == ("http://h:1", "http://h:2/v", "http://[::1]:3")


def test_the_plugin_s_own_variables_are_not_the_agent_s(tmp_path: Path) -> None:
    settings = load(
        tmp_path, None, {"KVSCOPE_OTLP_ENDPOINT": "http://h:1/v1/traces", "KVSCOPE_PLUGIN": "off"}
    )
    assert settings.admin.port == 8801


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gatway: {}\n", r"unknown key 'gatway'; allowed there: admin, advisor, .*upstreams"),
        (
            "collectors: {door: {prot: 1}}\n",
            r"unknown key 'collectors.door.prot'; allowed there: endpoints, port",
        ),
        ("collectors: {window: {}}\n", r"unknown key 'collectors.window'; allowed there: door"),
        ("upstreams: [vllm:8000]\n", r"upstreams: 'vllm:8000' is not a URL such as http://127.0.0.1:8000"),
        ("upstreams: http://\n", r"upstreams: 'http://' is not a URL such as"),
        ("upstreams: http://h:99999\n", r"upstreams: 'http://h:99999' is not a URL such as"),
        ("upstreams: 'http://a b'\n", r"upstreams: 'http://a b' is not a URL such as"),
        ("upstreams: http://h/?a=1\n", r"a server's URL ends before any \? and #"),
        ("upstreams: http://me:secret@h\n", r"no user and password: .*got \(?'http://me:\*\*\*@h'"),
        ("admin: {port: 99999}\n", r"admin.port: .*65535.*99999"),
        ("admin: {port: many}\n", r"admin.port: .*integer.*'many'"),
        ("- a\n- b\n", r"must hold keys and values, not a list"),
        ("a: [\n", r"is not YAML"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere.yaml: No such file"):
        load_settings(tmp_path / "nowhere.yaml", {}, FACTORIES, {})


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    assert load(tmp_path, "# nothing yet\n").admin.port == 8801
