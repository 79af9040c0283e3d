"""The gateway as a whole: listens, tells inference requests from all others and hands them on."""

import socket

from collectors.gateway.dialects import PATHS
from collectors.gateway.incoming import Exchange
from collectors.gateway.inference import Inference
from collectors.gateway.layouts import Layouts
from collectors.gateway.metrics import GatewayMetrics
from collectors.gateway.passing import pass_through
from collectors.gateway.record import Recorder
from collectors.gateway.routing import Routable
from collectors.gateway.serving import ClientConnection, HttpServer
from collectors.gateway.settings import GatewaySettings
from collectors.gateway.tunnel import splice
from collectors.gateway.upstream import Upstreams
from kvscope.pipeline.contracts import CollectorContext


class GatewayServer:
    """Serves HTTP on a bound socket; every answer is an inference server's, but for errors on the way."""

    def __init__(
        self,
        settings: GatewaySettings,
        context: CollectorContext,
        metrics: GatewayMetrics,
        layouts: Layouts,
        listener: socket.socket,
    ) -> None:
        self.metrics = metrics
        self.upstreams = Upstreams(context.upstreams, settings, context.prefixes)
        self.layouts = layouts
        self._inference = Inference(
            settings, context, self.upstreams, metrics, Recorder(context.sink, metrics), layouts
        )
        self._server = HttpServer(
            self._answer,
            listener,
            drain_seconds=settings.drain_seconds,
            keep_alive_seconds=settings.keep_alive_seconds,
        )

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._server.port

    async def start(self) -> None:
        """Accept connections."""
        await self.layouts.start()
        await self.upstreams.open()
        await self._server.start()

    async def stop(self) -> None:
        """Refuse new connections, let running answers finish within the drain time, close."""
        await self._server.stop()
        await self.upstreams.close()
        await self.layouts.stop()

    async def _answer(self, exchange: Exchange, connection: ClientConnection) -> None:
        if exchange.tunnel:
            place = self.upstreams.choose(Routable(key=exchange.path))[0]
            await splice(exchange, connection, place)
            return
        api = PATHS.get(exchange.path) if exchange.method == b"POST" else None
        if api is None:
            await pass_through(exchange, self.upstreams)
        else:
            await self._inference.handle(api, exchange)
