"""Where pure functions run: one after the other in this process, or on the workers of a Ray cluster."""

import dataclasses
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any, Protocol, TypeVar

from kvscope.errors import UnreachableError, UsageError

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_RETRIES = 5  # of a task whose worker was lost
ENGINES = ("local", "ray")


class Engine(Protocol):
    """Maps a pure function over items; results are in their order."""

    def map(
        self, function: Callable[[Any, _Item], _Result], items: Sequence[_Item], shared: Any = None
    ) -> Iterator[_Result]:
        """Yield ``function(shared, item)`` of each item; raises what it raises.

        The function is one of a module's, which a worker imports; it may run again where a worker was lost.
        """
        ...


class LocalEngine:
    """One item after the other."""

    def map(
        self, function: Callable[[Any, _Item], _Result], items: Sequence[_Item], shared: Any = None
    ) -> Iterator[_Result]:
        """Yield the results as they are made."""
        for item in items:
            yield function(shared, item)


@dataclasses.dataclass(frozen=True, slots=True)
class RayEngine:
    """The workers of the cluster that this process is connected to; what is shared goes there once."""

    ray: Any

    def map(
        self, function: Callable[[Any, _Item], _Result], items: Sequence[_Item], shared: Any = None
    ) -> Iterator[_Result]:
        """Yield the results in order; raises ``UnreachableError`` where workers are lost again and again."""
        ray = self.ray
        remote = ray.remote(max_retries=_RETRIES)(function)
        place = ray.put(shared)
        waiting = [remote.remote(place, item) for item in items]
        try:
            for reference in waiting:
                result: _Result = ray.get(reference)
                yield result
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except ray.exceptions.RayError as error:
            reason = str(error).strip().partition("\n")[0]
            raise UnreachableError(f"the Ray cluster did not finish: {reason}") from error


@contextmanager
def engine_of(name: str, address: str | None = None) -> Iterator[Engine]:
    """Give the engine ``name`` and end it after.

    ``address`` is that of a Ray cluster (``ray://HOST:PORT``, ``HOST:PORT``, ``auto``); None starts one on
    this machine, unless this process is connected already. Raises ``UsageError`` where Ray is not installed
    or an address is given without it, and ``UnreachableError`` for a cluster that does not answer.
    """
    if name != "ray":
        if address is not None:
            raise UsageError("an address is that of a Ray cluster: add --engine ray")
        yield LocalEngine()
        return
    try:
        import ray
    except ImportError as error:
        raise UsageError("Ray is not installed: pip install 'kvscope[ray]'") from error
    # Ray tells of lost workers on standard output, where a command's own document goes
    with redirect_stdout(sys.stderr):
        if ray.is_initialized():
            yield RayEngine(ray)
            return
        try:
            with warnings.catch_warnings(action="ignore"):  # what it warns of is said below
                ray.init(**_settings(address))
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise UnreachableError(f"no Ray cluster at {address or 'this machine'}: {reason}") from error
        try:
            yield RayEngine(ray)
        finally:
            ray.shutdown()


def _settings(address: str | None) -> dict[str, Any]:
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is not None:
        return {"address": address, **quiet}
    return {"address": "local", "include_dashboard": False, **quiet}
