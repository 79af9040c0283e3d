"""Prompt layouts on the way through the gateway: rendered, refused, reloaded under load."""

import asyncio
import functools
import json
from pathlib import Path
from typing import Any

import pytest

from kvscope.pipeline.contracts import Decision
from kvscope.prompts.transforms.variant import use_variant
from tests.support.gateway import COMPLETIONS, FixedPolicy, fake_server, recording, running_gateway, saying
from tests.support.telemetry import eventually

LAYOUT = """
variables: {who: {max_chars: 9}}
segments:
  - {name: rules, role: system, text: Be brief.}
  - {name: who, role: system, text: "For {{ who }}."}
variants: {short: {without: [rules]}}
"""
ASKED = {"layout": "support", "variables": {"who": "Ann"}}
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "q"}]}
SYSTEM = {"role": "system", "content": "Be brief.\n\nFor Ann."}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "support.yaml").write_text(LAYOUT)
    return tmp_path


def settings(folder: Path) -> dict[str, Any]:
    return {"layouts": str(folder), "layouts_poll_seconds": 0.01, "ask_usage": False}


async def test_the_engine_reads_the_rendered_prompt_and_nothing_of_kvscope(folder: Path) -> None:
    async with (
        fake_server(saying(recording("chat"))) as server,
        running_gateway(server.url, settings=settings(folder)) as gateway,
    ):
        answer = await gateway.ask({**BODY, "kvscope": ASKED, "cache_salt": "s"})
        record = gateway.records[0]
    assert answer.status == 200
    assert server.heard[0].json == {**BODY, "cache_salt": "s", "messages": [SYSTEM, *BODY["messages"]]}
    assert b"kvscope" not in server.heard[0].body
    assert answer.header("x-kvscope-layout") == "support"
    assert (record["route"], record["prompt_layout"]) == ("support", "support")
    assert gateway.prompts.prompts[0].body["messages"][0] == SYSTEM


async def test_an_arm_may_be_a_variant_and_have_its_own_salt(folder: Path) -> None:
    decision = Decision(
        transforms=(use_variant("short"),), experiment="e1", arm="treatment", salt="kvscope:e1:treatment"
    )
    async with (
        fake_server(saying(recording("chat"))) as server,
        running_gateway(server.url, settings=settings(folder), policy=FixedPolicy(decision)) as gateway,
    ):
        answer = await gateway.ask(
            {**BODY, "kvscope": ASKED, "cache_salt": "mine"}, headers=[("X-Tenant-Id", "t")]
        )
        await gateway.ask({**BODY, "kvscope": {**ASKED, "variant": "default"}})
        asked = gateway.policy.asked
    first, second = (heard.json for heard in server.heard)
    assert first["messages"][0]["content"] == "For Ann."
    assert first["cache_salt"] == "kvscope:e1:treatment:mine"
    assert second["messages"][0] == SYSTEM  # what the client asks for by name it gets
    assert second["cache_salt"] == "kvscope:e1:treatment"
    assert answer.header("x-kvscope-arm") == "treatment"
    assert answer.header("x-kvscope-experiment") == "e1"
    assert answer.header("x-kvscope-layout") == "support/short"
    assert (asked[0]["route"], asked[0]["tenant"]) == ("support", "t")


@pytest.mark.parametrize(
    ("asked", "param", "told"),
    [
        ({**ASKED, "variables": {}}, "kvscope.variables.who", "missing variable: who"),
        ({**ASKED, "variables": {"who": "Ann", "x": 1}}, "kvscope.variables.x", 'unknown variable "x"'),
        ({**ASKED, "variables": {"who": "Bartholomew"}}, "kvscope.variables.who", "9 characters at most"),
        ({**ASKED, "variables": []}, "kvscope.variables", "must be an object"),
        ({**ASKED, "variant": "z"}, "kvscope.variant", "known: default, short"),
        ({**ASKED, "variant": ["z"]}, "kvscope.variant", "known: default, short"),
        ({**ASKED, "layout": "z"}, "kvscope.layout", "unknown layout 'z'; known: support"),
        ({**ASKED, "extra": 1}, "kvscope", "not extra"),
        ("support", "kvscope", "must be an object"),
        (None, "kvscope", "must be an object"),
    ],
)
async def test_what_cannot_be_rendered_is_refused_and_never_sent(
    folder: Path, asked: object, param: str, told: str
) -> None:
    async with (
        fake_server() as server,
        running_gateway(server.url, settings=settings(folder)) as gateway,
    ):
        answer = await gateway.ask({**BODY, "kvscope": asked})
        record = gateway.records[0]
        refused = gateway.metric("kvscope_gateway_layout_refused_total")
    assert answer.status == 400
    error = answer.json["error"]
    assert (error["type"], error["param"], error["code"]) == ("BadRequestError", param, 400)
    assert told in error["message"]
    assert server.heard == []
    assert (record["status"], refused) == ("rejected", 1)


async def test_without_layouts_and_elsewhere_a_request_for_one_is_refused(folder: Path) -> None:
    async with fake_server() as server, running_gateway(server.url) as gateway:
        answer = await gateway.ask({**BODY, "kvscope": ASKED})
        assert answer.json["error"]["message"] == "unknown layout 'support'; known: none"
    async with fake_server() as server, running_gateway(server.url, settings=settings(folder)) as gateway:
        answer = await gateway.ask({"model": "tiny", "prompt": "x", "kvscope": ASKED}, target=COMPLETIONS)
        assert (answer.status, answer.json["error"]["param"]) == (400, "kvscope")
        assert server.heard == []


async def test_a_reload_under_load_fails_no_request(folder: Path) -> None:
    path = folder / "support.yaml"
    texts = [LAYOUT.replace("Be brief.", f"Version {number}.") for number in range(3)]
    async with (
        fake_server(saying(recording("chat"))) as server,
        running_gateway(server.url, settings=settings(folder)) as gateway,
    ):
        done = asyncio.Event()
        statuses: list[int] = []

        async def load() -> None:
            while not done.is_set():
                statuses.append((await gateway.ask({**BODY, "kvscope": ASKED})).status)

        def last_holds(text: bytes) -> bool:
            return text in server.heard[-1].body

        clients = [asyncio.create_task(load()) for _ in range(3)]
        async with asyncio.timeout(60):
            await eventually(lambda: bool(server.heard))
            for number, text in enumerate(texts):
                path.write_text("segments: [half")
                await asyncio.sleep(0.05)
                path.unlink()
                path.write_text(text)
                version = f"Version {number}.".encode()
                await eventually(functools.partial(last_holds, version))
            path.write_text("segments: [broken for good")
            await eventually(lambda: gateway.metric("kvscope_gateway_layout_faults") == 1)
            health = gateway.server.layouts.health()
            count = len(statuses)
            await eventually(lambda: len(statuses) >= count + 10)
            done.set()
            await asyncio.gather(*clients)
        wrong = gateway.metric("kvscope_gateway_layout_reloads_total", result="wrong")
    assert set(statuses) == {200}
    assert "1 files wrong (support.yaml: not YAML" in health
    assert wrong >= 1
    assert b"Version 2." in server.heard[-1].body  # the broken file left the old one in force
    texts_sent = {json.loads(heard.body)["messages"][0]["content"] for heard in server.heard}
    assert texts_sent <= {SYSTEM["content"], *(f"Version {number}.\n\nFor Ann." for number in range(3))}
