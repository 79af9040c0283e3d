"""Health, readiness and kvscope's own metrics over HTTP."""

import dataclasses
from collections.abc import Awaitable, Callable, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kvscope.agent.asking import LastLook
from kvscope.prompts.mining.live import LiveRoute

Health = Callable[[], dict[str, tuple[bool, str]]]
"""Returns for each part whether it works and one line that says how."""

Mined = Callable[[], Awaitable[Sequence[LiveRoute]]]


def admin_app(
    health: Health, registry: CollectorRegistry, mined: Mined, looked: Callable[[], LastLook]
) -> Starlette:
    """Return the admin application.

    ``/healthz`` (alive), ``/readyz`` (all parts work), ``/metrics``, ``/routes``: what the prompts of each
    route share and where they vary, without their text, and ``/advice``: why routes get no suggestion.
    """

    def report() -> dict[str, dict[str, object]]:
        return {name: {"ok": ok, "detail": detail} for name, (ok, detail) in health().items()}

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "alive", "parts": report()})

    async def readyz(_: Request) -> Response:
        parts = report()
        ready = all(part["ok"] for part in parts.values())
        return JSONResponse({"ready": ready, "parts": parts}, status_code=200 if ready else 503)

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    async def routes(_: Request) -> Response:
        return JSONResponse({"routes": [route.as_json() for route in await mined()]})

    async def advice(_: Request) -> Response:
        return JSONResponse(dataclasses.asdict(looked()))

    served = {
        "/healthz": healthz,
        "/readyz": readyz,
        "/metrics": metrics,
        "/routes": routes,
        "/advice": advice,
    }
    return Starlette(routes=[Route(path, answer) for path, answer in served.items()])
