"""OTLP over gRPC: the trace service, on bytes, so that an undecodable request is the sender's error."""

from typing import Any, NoReturn

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2, error_details_pb2, status_pb2  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from collectors.otlp.ingest import Ingest
from kvscope.errors import ConfigError, PermanentIngestError, RetryableIngestError
from kvscope.pipeline.listen import bind

_SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"
_SETTING = "--otlp-grpc-port"


class GrpcServer:
    """The trace service on one address."""

    def __init__(
        self, ingest: Ingest, host: str, port: int, *, max_body_bytes: int, max_decompressed_bytes: int
    ) -> None:
        self._ingest = ingest
        self._host = host
        self._wanted_port = port
        self._max_body_bytes = max_body_bytes
        self._max_received_bytes = max(max_body_bytes, max_decompressed_bytes)
        self._server: grpc.aio.Server | None = None
        self.port: int | None = None

    async def start(self) -> None:
        """Listen; raises ``ConfigError`` when the address cannot be had."""
        # asked first, because gRPC writes lines of its own to standard error where it cannot have the port
        bind(self._host, self._wanted_port, setting=_SETTING).close()
        server = grpc.aio.server(
            options=[
                # what gRPC itself refuses reaches no code of ours and cannot be counted: let it take more
                ("grpc.max_receive_message_length", self._max_received_bytes),
                ("grpc.so_reuseport", 0),  # two agents on one port would each get half of the spans
            ]
        )
        method = grpc.unary_unary_rpc_method_handler(self._export)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {"Export": method}),))
        host = f"[{self._host}]" if ":" in self._host else self._host
        try:
            self.port = server.add_insecure_port(f"{host}:{self._wanted_port}")
        except RuntimeError as error:
            raise ConfigError(
                f"cannot listen on {host}:{self._wanted_port}; choose another with {_SETTING}"
            ) from error
        await server.start()
        self._server = server

    async def stop(self, *, drain_seconds: float) -> None:
        """Refuse new calls, let running ones be answered within the drain time, close."""
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(drain_seconds)

    async def _export(self, body: bytes, context: "grpc.aio.ServicerContext[Any, Any]") -> bytes:
        if len(body) > self._max_body_bytes:
            self._ingest.refused()
            message = f"the body is larger than {self._max_body_bytes} bytes; send smaller batches"
            await _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, message)
        try:
            outcome = await self._ingest.protobuf(body)
        except PermanentIngestError as error:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except RetryableIngestError as error:
            await _abort(context, grpc.StatusCode.UNAVAILABLE, str(error), error.retry_after_seconds)
        response = ExportTraceServiceResponse()
        if outcome.rejected:
            response.partial_success.rejected_spans = outcome.rejected
            response.partial_success.error_message = outcome.message
        return response.SerializeToString()


async def _abort(
    context: "grpc.aio.ServicerContext[Any, Any]",
    code: grpc.StatusCode,
    message: str,
    retry_after_seconds: float | None = None,
) -> NoReturn:
    """End the call; a delay goes along as ``RetryInfo``, which OTLP senders obey."""
    metadata: tuple[tuple[str, bytes], ...] = ()
    if retry_after_seconds is not None:
        delay = Duration()
        delay.FromNanoseconds(int(retry_after_seconds * 1e9))
        detail = AnyMessage()
        detail.Pack(error_details_pb2.RetryInfo(retry_delay=delay))
        status = status_pb2.Status(code=code_pb2.UNAVAILABLE, message=message, details=[detail])
        metadata = (("grpc-status-details-bin", status.SerializeToString()),)
    await context.abort(code, message, metadata)
    raise AssertionError  # abort always raises; this tells the type checker
