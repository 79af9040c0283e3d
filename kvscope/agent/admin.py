"""Health, readiness and kvscope's own metrics over HTTP."""

from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

Health = Callable[[], dict[str, tuple[bool, str]]]
"""Returns for each part whether it works and one line that says how."""


def admin_app(health: Health, registry: CollectorRegistry) -> Starlette:
    """Return the admin application: ``/healthz`` (alive), ``/readyz`` (all parts work), ``/metrics``."""

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

    return Starlette(
        routes=[Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", metrics)]
    )
