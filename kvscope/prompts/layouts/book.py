"""The layouts in force: a folder of files, watched, and replaced as a whole where one changes."""

import contextlib
import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path

from kvscope.errors import UsageError
from kvscope.prompts.layouts.plan import Plan, compile_layout
from kvscope.prompts.layouts.schema import read_layout

_LOG = logging.getLogger(__name__)
_SUFFIXES = frozenset({".yaml", ".yml"})

Signature = tuple[int, int, int]  # inode, size, time of change


@dataclasses.dataclass(frozen=True, slots=True)
class _File:
    """A file as it was last taken in: its plan, or what is wrong with it while an older plan is in force."""

    signature: Signature
    plan: Plan | None
    fault: str | None


class LayoutBook:
    """Plans by name, from the files of a folder. ``plan`` takes no lock and may run beside ``refresh``.

    A change is taken in once two looks in a row have found the same file, so that one that is half written,
    or away for a moment, changes nothing. Of a file that is wrong the plan from before stays in force.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[Path, _File] = {}
        self._seen: dict[Path, Signature] = {}
        self._plans: Mapping[str, Plan] = {}
        self._faults: tuple[str, ...] = ()

    def load(self) -> None:
        """Take in all files at once, at the start; raises ``UsageError`` where the folder cannot be read."""
        if not self._folder.is_dir():
            raise UsageError(f"{self._folder} is not a folder of prompt layouts")
        self._seen = _look(self._folder)
        self._take(self._seen)

    def refresh(self) -> tuple[int, int]:
        """Look at the folder again; return how many files were taken in anew, and how many were wrong."""
        before, now = self._seen, _look(self._folder)
        self._seen = now
        settled: dict[Path, Signature] = {}
        for path in self._files.keys() | now.keys():
            if path in now and before.get(path) == now[path]:
                settled[path] = now[path]
            elif path in self._files and (path in now or path in before):
                settled[path] = self._files[path].signature  # it is changing, or away since one look
        changed = [path for path, found in settled.items() if _signature_of(self._files.get(path)) != found]
        if not changed and settled.keys() == self._files.keys():
            return 0, 0
        for path in self._files.keys() - settled.keys():
            _LOG.warning("layout file %s is gone; its layout is no longer in force", path.name)
        self._take(settled)
        wrong = sum(self._files[path].fault is not None for path in changed)
        return len(changed) - wrong, wrong

    @property
    def plans(self) -> Mapping[str, Plan]:
        """The plans in force by layout; the mapping itself never changes."""
        return self._plans

    @property
    def faults(self) -> tuple[str, ...]:
        """What is wrong with files, a line each."""
        return self._faults

    def _take(self, signatures: Mapping[Path, Signature]) -> None:
        files = {path: self._file(path, signature) for path, signature in signatures.items()}
        plans: dict[str, Plan] = {}
        faults: list[str] = []
        for path, file in sorted(files.items()):
            if file.fault is not None:
                faults.append(file.fault)
            if file.plan is not None and plans.setdefault(file.plan.name, file.plan) is not file.plan:
                faults.append(f"{path.name}: layout {file.plan.name} is in another file already; rename one")
        self._files = files
        self._faults = tuple(faults)
        self._plans = plans  # one assignment: a request sees the old ones or the new ones

    def _file(self, path: Path, signature: Signature) -> _File:
        known = self._files.get(path)
        if known is not None and known.signature == signature:
            return known
        try:
            plan = compile_layout(read_layout(path))
        except UsageError as error:
            kept = known.plan if known is not None else None
            told = str(error).replace(str(path), path.name)
            old = "the one from before stays in force" if kept is not None else "it is not in force"
            _LOG.warning("layout file %s; %s", told, old)
            return _File(signature, kept, told)
        _LOG.info("layout %s is in force (%s)", plan.name, path.name)
        return _File(signature, plan, None)


def _signature_of(file: _File | None) -> Signature | None:
    return None if file is None else file.signature


def _look(folder: Path) -> dict[Path, Signature]:
    """Return the folder's layout files; none while the folder cannot be read."""
    found: dict[Path, Signature] = {}
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.suffix in _SUFFIXES and not path.name.startswith("."):
                with contextlib.suppress(OSError):  # gone between two calls
                    stat = path.stat()
                    found[path] = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
    return found
