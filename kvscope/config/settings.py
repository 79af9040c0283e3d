"""The settings of the whole agent: each part's own class under one roof."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from kvscope.analysis.live import AnalyserSettings
from kvscope.pipeline.spool import SpoolSettings
from kvscope.pipeline.writer import WriterSettings


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AdminSettings(_Part):
    """Where health, readiness and kvscope's own metrics are served."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8801, ge=0, le=65535, description="Port; 0 turns it off.")


class ControllerSettings(_Part):
    """How often the experiment controller acts."""

    interval_seconds: float = Field(1.0, gt=0, description="Seconds between two steps.")


class AdvisorSettings(_Part):
    """How often the agent looks for suggestions and refits its latency models."""

    interval_seconds: float = Field(60.0, ge=0, description="Seconds between two looks; 0 turns it off.")
    min_requests: int = Field(30, gt=0, description="Requests in the window before the first look.")
    min_gain: float = Field(
        0.02, ge=0, le=1, description="Smallest gain in a route's hit rate that is worth a suggestion."
    )


class RetentionSettings(_Part):
    """How long the agent keeps requests, misses, spans and samples."""

    days: float = Field(30.0, ge=0, le=36_500, description="Days that requests are kept; 0 keeps all.")
    interval_seconds: float = Field(3600.0, gt=0, description="Seconds between two removals of what is old.")


class ExportSettings(_Part):
    """Where finished requests are sent as OTLP spans and metrics with the names of the GenAI conventions."""

    endpoint: str | None = Field(
        None,
        description="OTLP endpoint, such as http://collector:4317 (gRPC) or http://collector:4318 (HTTP); "
        "none: nothing is sent. Headers come from OTEL_EXPORTER_OTLP_HEADERS.",
    )
    wait_seconds: float = Field(
        10.0, ge=0, description="Seconds after its latest part that a request's further parts are waited for."
    )
    open_requests: int = Field(20_000, gt=0, description="Requests whose further parts are waited for.")
    queue_spans: int = Field(10_000, gt=0, description="Spans that may wait to be sent; the oldest go first.")
    timeout_seconds: float = Field(5.0, gt=0, description="Seconds that one call may take.")
    metrics_seconds: float = Field(
        0.0,
        ge=0,
        description="Seconds between two exports of metrics to the endpoint, kvscope's own and those of "
        "requests by model, route and engine; 0 sends spans alone.",
    )

    @field_validator("endpoint")
    @classmethod
    def _url(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError(f"{value!r} is not a URL such as http://127.0.0.1:4317")
        return value


def _server_url(text: str) -> str:
    """Return a server's base URL without a slash at its end; it names the engine everywhere."""
    no_url = f"{text!r} is not a URL such as http://127.0.0.1:8000"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError(no_url) from error
    known = parts.scheme in {"http", "https"} and parts.hostname and port != 0
    if not known or any(letter.isspace() for letter in text):
        raise ValueError(no_url)
    if parts.username is not None:
        raise ValueError("a server's URL may hold no user and password: it is stored and shown")
    if parts.query or parts.fragment:
        raise ValueError("a server's URL ends before any ? and #")
    return f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")


class AgentSettings(_Part):
    """Everything that `kvscope agent` can be told, but for the collectors' own sections."""

    db: str = Field(description="URL of the store: sqlite:///FILE or postgresql://USER@HOST/NAME.")
    upstreams: tuple[str, ...] = Field(
        ("http://127.0.0.1:8000",), min_length=1, description="Base URLs of the vLLM servers."
    )
    tokenizer: Path | None = Field(
        None, description="Folder of the model's tokenizer; without it the server's /tokenize is asked."
    )
    admin: AdminSettings = Field(AdminSettings(), description="Health and own metrics.")
    writer: WriterSettings = Field(WriterSettings(), description="Queue in front of the store.")
    spool: SpoolSettings = Field(SpoolSettings(), description="Disk for what waits while the store is away.")
    analyser: AnalyserSettings = Field(AnalyserSettings(), description="Live analysis of misses.")
    advisor: AdvisorSettings = Field(AdvisorSettings(), description="Suggestions and latency models.")
    controller: ControllerSettings = Field(ControllerSettings(), description="Experiments.")
    export: ExportSettings = Field(ExportSettings(), description="Finished requests to other telemetry.")
    retention: RetentionSettings = Field(RetentionSettings(), description="How long data is kept.")

    @field_validator("upstreams", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("upstreams")
    @classmethod
    def _urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(map(_server_url, value)))
