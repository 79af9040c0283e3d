"""The running OTLP receiver: one intake behind a gRPC and an HTTP listener."""

from collectors.otlp.decode import Limits
from collectors.otlp.grpc_server import GrpcServer
from collectors.otlp.http_app import HttpApp
from collectors.otlp.ingest import Ingest
from collectors.otlp.settings import ANY_PORT, OtlpSettings
from kvscope.pipeline.contracts import CollectorContext
from kvscope.pipeline.listen import AsgiListener, bind


class OtlpReceiver:
    """Collects spans; each of its two listeners can be turned off."""

    def __init__(self, settings: OtlpSettings, context: CollectorContext) -> None:
        self._settings = settings
        self._ingest = Ingest(
            context.sink,
            context.registry,
            Limits(attributes=settings.max_attributes, spans=settings.max_spans),
            answer_seconds=settings.answer_seconds,
        )
        self._grpc: GrpcServer | None = None
        self._http: AsgiListener | None = None

    @property
    def grpc_port(self) -> int | None:
        """The port that gRPC listens on, or None while it does not."""
        return self._grpc.port if self._grpc else None

    @property
    def http_port(self) -> int | None:
        """The port that HTTP listens on, or None while it does not."""
        return self._http.port if self._http else None

    async def start(self) -> None:
        """Listen on both; raises ``ConfigError`` when an address cannot be had, and then holds none."""
        settings = self._settings
        if settings.http_port:
            listener = bind(settings.host, _wanted(settings.http_port), setting="--otlp-http-port")
            app = HttpApp(
                self._ingest,
                max_body_bytes=settings.max_body_bytes,
                max_decompressed_bytes=settings.max_decompressed_bytes,
            )
            self._http = AsgiListener(app, listener, drain_seconds=settings.drain_seconds)
        if settings.grpc_port:
            self._grpc = GrpcServer(
                self._ingest,
                settings.host,
                _wanted(settings.grpc_port),
                max_body_bytes=settings.max_body_bytes,
                max_decompressed_bytes=settings.max_decompressed_bytes,
            )
        try:
            if self._grpc:
                await self._grpc.start()
            if self._http:
                await self._http.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop listening; answers that wait for their commit are still given within the drain time."""
        if self._grpc:
            await self._grpc.stop(drain_seconds=self._settings.drain_seconds)
            self._grpc = None
        if self._http:
            await self._http.stop()
            self._http = None

    def health(self) -> tuple[bool, str]:
        """Return whether it listens wherever it should, and where."""
        wanted = {"gRPC": self._settings.grpc_port, "HTTP": self._settings.http_port}
        bound = {"gRPC": self.grpc_port, "HTTP": self.http_port}
        if not any(wanted.values()):
            return True, "turned off"
        places = [f"{name} on {self._settings.host}:{port}" for name, port in bound.items() if port]
        ok = all(bound[name] for name, port in wanted.items() if port)
        where = " and ".join(places) or "not listening"
        return ok, f"{where}; {self._ingest.accepted_spans} spans taken in"


def _wanted(port: int) -> int:
    return 0 if port == ANY_PORT else port
