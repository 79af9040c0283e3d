"""Runs the gateway alone: `_gateway_alone.py PORT UPSTREAM_PORT`; what it hands on is dropped."""

import asyncio
import sys
import time
from concurrent.futures import Future

import uvloop
from prometheus_client import CollectorRegistry

from collectors.gateway.factory import FACTORY
from kvscope.experiments.policy import LivePolicy
from kvscope.model.prompt import Prompt
from kvscope.model.telemetry import CacheEventBatch
from kvscope.pipeline.contracts import Batch, CollectorContext, Receipt


class _Nobody:
    def offer(self, batch: Batch) -> Receipt:
        del batch
        receipt: Receipt = Future()
        receipt.set_result(0)
        return receipt

    def arrived(self, prompt: Prompt) -> None:
        del prompt

    def on_events(self, batch: CacheEventBatch) -> None:
        del batch


async def _run(port: int, upstream: int) -> None:
    nobody = _Nobody()
    context = CollectorContext(
        sink=nobody,
        clock=time.time,
        registry=CollectorRegistry(),
        upstreams=(f"http://127.0.0.1:{upstream}",),
        policy=LivePolicy(),
        prompts=nobody,
        cache_events=nobody,
    )
    gateway = FACTORY.create(FACTORY.settings(port=port), context)
    await gateway.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_run(int(sys.argv[1]), int(sys.argv[2])))
