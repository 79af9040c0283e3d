"""The class that vLLM finds through the entry point group ``vllm.stat_logger_plugins``.

vLLM (0.20 to 0.33) takes only subclasses of its own ``StatLoggerBase``. So that this module can be
imported without vLLM, the class is made when ``KvscopeStatLogger`` is first asked for.
"""

import functools
import os
import time
from typing import Any

from collectors.vllm_plugin.finished import UnknownShapeError, finished_request
from collectors.vllm_plugin.reporter import LOG, Reporter, Sender, settings


def __getattr__(name: str) -> Any:
    """Make the class on first use; raises ``ImportError`` where there is no vLLM."""
    if name != "KvscopeStatLogger":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _vllm_class()


@functools.cache
def _vllm_class() -> type:
    from vllm.v1.metrics.loggers import StatLoggerBase

    return stat_logger_class(StatLoggerBase)


@functools.cache
def shared_reporter() -> Reporter | None:
    """Return the process's one reporter, running, or None when ``KVSCOPE_PLUGIN`` turns it off."""
    on, endpoint = settings(os.environ)
    if not on:
        LOG.info("kvscope: the plugin is off (KVSCOPE_PLUGIN)")
        return None
    reporter = Reporter(functools.partial(_connect, endpoint), target=endpoint)
    reporter.start()
    LOG.info("kvscope: finished requests are reported to %s", endpoint)
    return reporter


def _connect(endpoint: str) -> Sender:
    """Import OpenTelemetry in the reporter's thread: it is not the engine that waits for it."""
    from collectors.vllm_plugin.otlp import OtlpSender

    return OtlpSender(endpoint)


class RequestReports:
    """What the stat logger does, apart from vLLM's class; after a fault it does nothing more."""

    def __init__(self, vllm_config: Any = None, engine_index: int = 0) -> None:
        self._engine_index = engine_index
        self._model: str | None = None
        self._reporter: Reporter | None = None
        try:
            self._model = _model_name(vllm_config)
            self._reporter = shared_reporter()
        except Exception as error:  # noqa: BLE001 - in the engine's process nothing may escape
            self._step_aside(error)

    def record(self, iteration_stats: Any, engine_index: int | None = None) -> None:
        """Report the requests that finished in one iteration of the engine."""
        if self._reporter is None or iteration_stats is None:
            return
        try:
            self._report(self._reporter, iteration_stats, engine_index)
        except Exception as error:  # noqa: BLE001 - see above
            self._step_aside(error)

    def _report(self, reporter: Reporter, iteration_stats: Any, engine_index: int | None) -> None:
        try:
            finished = iteration_stats.finished_requests
        except AttributeError as error:
            raise UnknownShapeError(str(error)) from error
        if not finished:
            return
        at = getattr(iteration_stats, "iteration_timestamp", None)
        for stats in finished:
            request = finished_request(
                stats,
                finished_at=at if isinstance(at, float) else time.time(),
                engine_index=self._engine_index if engine_index is None else engine_index,
                model=self._model,
            )
            if request is not None:
                reporter.offer(request)

    def _step_aside(self, error: Exception) -> None:
        self._reporter = None
        LOG.warning(
            "kvscope: this vLLM's statistics are not as expected (%s: %s); the plugin steps aside",
            type(error).__name__,
            error,
        )


def stat_logger_class(base: type) -> type:
    """Return a subclass of vLLM's ``base`` that reports finished requests and can always be instantiated."""

    def init(self: Any, vllm_config: Any = None, engine_index: int = 0, *_: Any, **__: Any) -> None:
        self.reports = RequestReports(vllm_config, engine_index)

    def record(
        self: Any,
        scheduler_stats: Any = None,
        iteration_stats: Any = None,
        mm_cache_stats: Any = None,
        engine_idx: int | None = None,
        *_: Any,
        **__: Any,
    ) -> None:
        del scheduler_stats, mm_cache_stats
        self.reports.record(iteration_stats, engine_idx)

    def nothing(self: Any, *_: Any, **__: Any) -> None:
        del self

    # a later vLLM may ask for more methods; one that is missing would stop the engine from starting
    methods = dict.fromkeys(getattr(base, "__abstractmethods__", ()), nothing)
    methods |= {"__init__": init, "record": record, "log_engine_initialized": nothing}
    return type("KvscopeStatLogger", (base,), {**methods, "__module__": __name__, "__doc__": __doc__})


def _model_name(vllm_config: Any) -> str | None:
    """Return the name under which the model is served, which vLLM holds as text or as a list."""
    served = getattr(getattr(vllm_config, "model_config", None), "served_model_name", None)
    first = served[0] if isinstance(served, list | tuple) and served else served
    return first if isinstance(first, str) else None
