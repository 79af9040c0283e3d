"""Settings of the OTLP receiver."""

from pydantic import BaseModel, ConfigDict, Field

ANY_PORT = -1


class OtlpSettings(BaseModel):
    """Where spans are received and how much of them is taken."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on.")
    grpc_port: int = Field(
        4317,
        ge=ANY_PORT,
        le=65535,
        description="Port of OTLP over gRPC; 0 turns it off, -1 takes a free one.",
    )
    http_port: int = Field(
        4318,
        ge=ANY_PORT,
        le=65535,
        description="Port of OTLP over HTTP; 0 turns it off, -1 takes a free one.",
    )
    max_body_bytes: int = Field(
        16 * 1024 * 1024, gt=0, description="Bytes of one export request as sent; a larger one is refused."
    )
    max_decompressed_bytes: int = Field(
        64 * 1024 * 1024, gt=0, description="Bytes of one export request after decompression (HTTP)."
    )
    max_spans: int = Field(20_000, gt=0, description="Spans of one export request; a larger one is refused.")
    max_attributes: int = Field(
        128, gt=0, description="Attributes kept of one span or resource; more are dropped and counted."
    )
    answer_seconds: float = Field(
        8.0, gt=0, description="Seconds to wait for the commit before the sender is asked to send again."
    )
    drain_seconds: float = Field(
        5.0, ge=0, description="Seconds that shutdown waits for answers that are due."
    )
