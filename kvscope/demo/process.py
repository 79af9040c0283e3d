"""A child process in a process group of its own: started with a log file, stopped as a whole group.

It ends with us, even where we are killed: a process of its own watches for that.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kvscope.errors import UnreachableError

_POLL_SECONDS = 0.1
_LOG_LINES = 12
# ends a program whose starter has ended without ending it: its input closes then, however that came about
_WATCHDOG = """
read -r _
kill -s TERM "$1"
tries=50
while [ $tries -gt 0 ] && kill -0 "$1"; do sleep 0.1; tries=$((tries - 1)); done
kill -s KILL -- "-$1"
"""


class ChildProcess:
    """One program and all that it starts; ``stop`` ends that group and nothing else."""

    def __init__(
        self, name: str, argv: Sequence[str], log: Path, *, env: Mapping[str, str] | None = None
    ) -> None:
        """Start ``argv`` with ``env`` added to our own environment; both its outputs go to ``log``."""
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        # env(1) adds to the environment, so that nothing here has to read ours
        command = ["env", *(f"{key}={value}" for key, value in (env or {}).items()), *argv]
        with log.open("ab") as out:
            self._process = subprocess.Popen(  # noqa: S603 - our own command line, no shell
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._watchdog = subprocess.Popen(  # noqa: S603 - our own command line
            ["/bin/sh", "-c", _WATCHDOG, "watchdog", str(self.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The process id, which is the id of the group as well."""
        return self._process.pid

    def running(self) -> bool:
        """Return whether the program itself runs; a dead one stays unreaped, which keeps its id ours."""
        if self._process.returncode is not None:
            return False
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def tail(self, lines: int = _LOG_LINES) -> str:
        """Return the last lines of the log, or nothing where there is none."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text("utf-8", errors="replace").splitlines()[-lines:])
        return ""

    def ready_or_stop(
        self,
        ready: Callable[[], bool],
        *,
        deadline_seconds: float,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        """Return once ``ready()``; if it dies or is late, stop the group and raise ``UnreachableError``."""
        try:
            self._wait(ready, deadline_seconds, progress)
        except BaseException:
            self.stop(grace_seconds=2.0)
            raise

    def _wait(
        self, ready: Callable[[], bool], deadline_seconds: float, progress: Callable[[float], None] | None
    ) -> None:
        started = time.monotonic()
        while not ready():
            waited = time.monotonic() - started
            if not self.running():
                raise UnreachableError(
                    f"{self.name} stopped while starting; its log {self.log} ends:\n{self.tail()}"
                )
            if waited > deadline_seconds:
                raise UnreachableError(
                    f"{self.name} was not ready after {deadline_seconds:.0f} s; "
                    f"its log {self.log} ends:\n{self.tail()}"
                )
            if progress is not None:
                progress(waited)
            time.sleep(_POLL_SECONDS)

    def stop(self, *, grace_seconds: float = 10.0) -> None:
        """End the program, then whatever is left of its group after the grace time; safe twice."""
        if self._process.returncode is not None:
            return
        # The program comes first, for it may have children to end in its own way. It is reaped last: until
        # then no other group can get its id.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        deadline = time.monotonic() + grace_seconds
        while self.running() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._watchdog.kill()
        self._watchdog.communicate()
        self._process.wait()
