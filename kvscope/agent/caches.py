"""What each engine's cache looks like, kept up to date from the scraped samples."""

from kvscope.model.cache_config import CacheConfig, cache_configs
from kvscope.pipeline.contracts import Batch


class CacheConfigs:
    """The newest cache configuration of each engine; written by the writer's thread, read by any."""

    def __init__(self) -> None:
        self._by_engine: dict[str, CacheConfig] = {}

    def on_committed(self, batch: Batch) -> None:
        """Take over configurations from committed samples."""
        if batch.samples:
            self._by_engine |= {config.engine: config for config in cache_configs(batch.samples)}

    def get(self, engine: str) -> CacheConfig | None:
        """Return the engine's configuration, or None while no scrape has told it."""
        return self._by_engine.get(engine)

    def only(self) -> CacheConfig | None:
        """Return the configuration of the first engine that is known."""
        return next(iter(self._by_engine.values()), None)
