"""Settings of the metrics scraper."""

from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator


class PrometheusSettings(BaseModel):
    """Which pages are read, and how often."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    urls: tuple[str, ...] = Field(
        (),
        description="Metrics pages, one for each upstream in its order; default: each upstream's /metrics.",
    )
    interval_seconds: float = Field(
        5.0, ge=0, description="Seconds between two reads of a page; 0 turns the scraper off."
    )
    buckets_seconds: float = Field(
        60.0,
        ge=0,
        description="Seconds between two reads that keep latency histograms' buckets; 0 keeps none.",
    )
    timeout_seconds: float = Field(5.0, gt=0, description="Seconds that a page may take.")
    max_page_bytes: int = Field(
        8 * 1024 * 1024, gt=0, description="Bytes of a page; a larger one is refused."
    )

    @field_validator("urls", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("urls")
    @classmethod
    def _are_urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for url in value:
            if not _is_page(url):
                raise ValueError(f"{url!r} is not a URL such as http://127.0.0.1:8000/metrics")
        if len(set(value)) < len(value):
            raise ValueError("a page is named twice; name each engine's page once")
        return value


def _is_page(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        return False
