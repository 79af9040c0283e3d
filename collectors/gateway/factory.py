"""Entry point of the gateway, and its life from start to stop."""

from collectors.gateway.gateway import GatewayServer
from collectors.gateway.layouts import Layouts
from collectors.gateway.metrics import GatewayMetrics
from collectors.gateway.settings import GatewaySettings
from kvscope.errors import ConfigError
from kvscope.pipeline.contracts import CollectorContext, CollectorFactory
from kvscope.pipeline.listen import bind


class Gateway:
    """The gateway as a collector; port 0 turns it off."""

    def __init__(self, settings: GatewaySettings, context: CollectorContext) -> None:
        self._settings = settings
        self._context = context
        self._metrics = GatewayMetrics(context.registry)
        self._layouts = Layouts(settings.layouts, settings.layouts_poll_seconds, context.registry)
        self._server: GatewayServer | None = None

    async def start(self) -> None:
        """Accept connections; raises ``ConfigError`` when the port is taken or there is no server."""
        settings = self._settings
        if settings.port == 0:
            return
        if not self._context.upstreams:
            raise ConfigError("the gateway needs a server to pass requests to; name one with --upstream URL")
        listener = bind(settings.host, settings.port, setting="--gateway-port")
        self._server = GatewayServer(settings, self._context, self._metrics, self._layouts, listener)
        await self._server.start()

    async def stop(self) -> None:
        """Refuse new connections, let running answers finish within the drain time, close."""
        if self._server is not None:
            await self._server.stop()
            self._server = None

    def health(self) -> tuple[bool, str]:
        """Return whether it listens, where, and how much passes through it."""
        if self._settings.port == 0:
            return True, "off"
        if self._server is None:
            return False, "not started"
        where = f"{self._settings.host}:{self._server.port}"
        silent = self._server.upstreams.silent()
        away = f"; without an answer from {', '.join(silent)}" if silent else ""
        told = f"listens on {where}, {self._metrics.in_flight} requests inside"
        return True, told + away + self._layouts.health()


FACTORY = CollectorFactory(name="gateway", settings=GatewaySettings, create=Gateway)
