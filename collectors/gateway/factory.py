"""Entry point of the gateway, and its life from start to stop."""

from collectors.gateway.app import GatewayApp
from collectors.gateway.settings import GatewaySettings
from collectors.gateway.upstream import Upstreams
from kvscope.errors import ConfigError
from kvscope.pipeline.contracts import CollectorContext, CollectorFactory
from kvscope.pipeline.listen import AsgiListener, bind


class Gateway:
    """The gateway as a collector; port 0 turns it off."""

    def __init__(self, settings: GatewaySettings, context: CollectorContext) -> None:
        self._settings = settings
        self._upstreams = Upstreams(
            context.upstreams,
            connect_seconds=settings.connect_timeout_seconds,
            read_seconds=settings.read_timeout_seconds,
        )
        self._app = GatewayApp(settings, context, self._upstreams)
        self._listener: AsgiListener | None = None

    async def start(self) -> None:
        """Accept connections; raises ``ConfigError`` when the port is taken or there is no server."""
        settings = self._settings
        if settings.port == 0:
            return
        if not self._upstreams.urls:
            raise ConfigError("the gateway needs a server to pass requests to; name one with --upstream URL")
        listener = bind(settings.host, settings.port, setting="--gateway-port")
        await self._app.layouts.start()
        await self._upstreams.open()
        self._listener = AsgiListener(
            self._app,
            listener,
            drain_seconds=settings.drain_seconds,
            keep_alive_seconds=settings.keep_alive_seconds,
        )
        await self._listener.start()

    async def stop(self) -> None:
        """Refuse new connections, let running answers finish within the drain time, close."""
        if self._listener is not None:
            await self._listener.stop()
            self._listener = None
        await self._app.layouts.stop()
        await self._upstreams.close()

    def health(self) -> tuple[bool, str]:
        """Return whether it listens, where, and how much passes through it."""
        if self._settings.port == 0:
            return True, "off"
        if self._listener is None:
            return False, "not started"
        where = f"{self._settings.host}:{self._listener.port}"
        silent = self._upstreams.silent()
        away = f"; without an answer from {', '.join(silent)}" if silent else ""
        told = f"listens on {where}, {self._app.metrics.in_flight} requests inside"
        return True, told + away + self._app.layouts.health()


FACTORY = CollectorFactory(name="gateway", settings=GatewaySettings, create=Gateway)
