"""Prompt layouts in the gateway: watched files, and what becomes of chat bodies that name one."""

import asyncio
import dataclasses
import logging
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

from kvscope.errors import ConfigError, UsageError
from kvscope.prompts.layouts.book import LayoutBook
from kvscope.prompts.layouts.plan import REQUEST_KEY, Plan
from kvscope.prompts.layouts.schema import DEFAULT_VARIANT
from kvscope.prompts.layouts.variables import VariableError
from kvscope.prompts.segments import CHAT

_LOG = logging.getLogger(__name__)


class LayoutRefusedError(Exception):
    """Raised when a request's layout cannot be rendered; the client gets the reason, the engine nothing.

    ``param`` names the key of the body that is at fault.
    """

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


@dataclasses.dataclass(frozen=True, slots=True)
class AskedLayout:
    """What a request asks for, found but not yet rendered: the policy may choose the variant."""

    plan: Plan
    variables: dict[str, Any]
    variant: str | None

    def render(self, body: dict[str, Any], variant: str | None) -> tuple[dict[str, Any], str]:
        """Return the body for the engine and the name of the layout; raises ``LayoutRefusedError``."""
        chosen = self.variant or (variant if variant in self.plan.variants else None) or DEFAULT_VARIANT
        try:
            rendered = self.plan.render(body, self.variables, chosen)
        except VariableError as error:
            name = f".{error.variable}" if error.variable is not None else ""
            raise LayoutRefusedError(str(error), f"{REQUEST_KEY}.variables{name}") from error
        except UsageError as error:
            raise LayoutRefusedError(str(error), f"{REQUEST_KEY}.layout") from error
        return rendered, self.plan.name if chosen == DEFAULT_VARIANT else f"{self.plan.name}/{chosen}"


class Layouts:
    """The layouts in force. Without a folder there are none, and a request that asks for one is refused."""

    def __init__(self, folder: Path | None, poll_seconds: float, registry: CollectorRegistry) -> None:
        self._book = None if folder is None else LayoutBook(folder)
        self._poll_seconds = poll_seconds
        self._task: asyncio.Task[None] | None = None
        self._reloads = Counter(
            "kvscope_gateway_layout_reloads",
            "Layout files taken in after a change, by result: ok, or wrong (the one from before stays).",
            ["result"],
            registry=registry,
        )
        self.refused = Counter(
            "kvscope_gateway_layout_refused",
            "Requests answered 400 because their layout or variables were wrong.",
            registry=registry,
        )
        wrong = Gauge(
            "kvscope_gateway_layout_faults", "Layout files that are wrong at present.", registry=registry
        )
        wrong.set_function(lambda: len(self._book.faults) if self._book is not None else 0)

    async def start(self) -> None:
        """Read the folder and begin to watch it; raises ``ConfigError`` where there is no such folder."""
        if self._book is None:
            return
        try:
            await asyncio.to_thread(self._book.load)
        except UsageError as error:
            raise ConfigError(f"collectors.gateway.layouts: {error}") from error
        self._task = asyncio.create_task(self._watch(self._book), name="layouts")

    async def stop(self) -> None:
        """End watching; safe without start and twice."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def health(self) -> str:
        """Return one clause on the layouts, empty where there are none."""
        if self._book is None:
            return ""
        faults = self._book.faults
        wrong = f", {len(faults)} files wrong ({faults[0]})" if faults else ""
        return f"; {len(self._book.plans)} layouts in force{wrong}"

    def asked(self, api: str, body: dict[str, Any]) -> AskedLayout | None:
        """Return the layout that ``body`` asks for, or None; raises ``LayoutRefusedError``."""
        if REQUEST_KEY not in body:
            return None
        asked = body[REQUEST_KEY]
        if api != CHAT:
            raise LayoutRefusedError("prompt layouts are for /v1/chat/completions", REQUEST_KEY)
        if not isinstance(asked, dict) or not isinstance(name := asked.get("layout"), str):
            raise LayoutRefusedError(
                f'{REQUEST_KEY} must be an object such as {{"layout": "name", "variables": {{}}}}',
                REQUEST_KEY,
            )
        if unknown := asked.keys() - {"layout", "variables", "variant"}:
            raise LayoutRefusedError(
                f"{REQUEST_KEY} takes layout, variables and variant, not {', '.join(sorted(unknown))}",
                REQUEST_KEY,
            )
        plans = {} if self._book is None else self._book.plans
        if (plan := plans.get(name)) is None:
            known = ", ".join(sorted(plans)) or "none"
            raise LayoutRefusedError(f"unknown layout {name!r}; known: {known}", f"{REQUEST_KEY}.layout")
        variables, variant = asked.get("variables", {}), asked.get("variant")
        if not isinstance(variables, dict):
            raise LayoutRefusedError("variables must be an object", f"{REQUEST_KEY}.variables")
        if variant is not None and not (isinstance(variant, str) and variant in plan.variants):
            raise LayoutRefusedError(
                f"layout {name} has no such variant; known: {', '.join(plan.variants)}",
                f"{REQUEST_KEY}.variant",
            )
        return AskedLayout(plan, variables, variant)

    async def _watch(self, book: LayoutBook) -> None:
        while True:
            await asyncio.sleep(self._poll_seconds)
            try:
                taken, wrong = await asyncio.to_thread(book.refresh)
            except Exception:  # noqa: BLE001 - the watcher outlives whatever a file holds; what is in force stays
                _LOG.exception("looking for changed layouts failed; what is in force stays")
                taken, wrong = 0, 1
            self._reloads.labels("ok").inc(taken)
            self._reloads.labels("wrong").inc(wrong)
