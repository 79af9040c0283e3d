"""Child processes: started with a log, stopped as a group."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvscope.demo.process import ChildProcess
from kvscope.errors import UnreachableError

_PARENT_OF_ONE = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, os.environ["GIVEN"], flush=True)
time.sleep(60)
"""


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _eventually(condition: Callable[[], object], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(condition())


def test_stop_ends_the_whole_group_even_when_it_will_not(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = ChildProcess("it", [sys.executable, "-c", _PARENT_OF_ONE], log, env={"GIVEN": "a value"})
    assert _eventually(lambda: process.tail().endswith("a value"))
    child = int(process.tail().split()[0])
    assert process.running()
    assert _alive(child)
    process.stop(grace_seconds=0.2)
    assert not process.running()
    assert _eventually(lambda: not _alive(child))
    process.stop()
    assert os.getpgid(0) != process.pid


def test_one_that_dies_while_starting_shows_the_end_of_its_log(tmp_path: Path) -> None:
    code = "print('first line'); raise SystemExit('the port is taken')"
    process = ChildProcess("the engine", [sys.executable, "-c", code], tmp_path / "log")
    with pytest.raises(UnreachableError, match=r"(?s)the engine stopped while starting.*the port is taken"):
        process.ready_or_stop(lambda: False, deadline_seconds=20)


def test_one_that_is_late_is_stopped(tmp_path: Path) -> None:
    process = ChildProcess("it", [sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "log")
    seen: list[float] = []
    with pytest.raises(UnreachableError, match="was not ready after 0 s"):
        process.ready_or_stop(lambda: False, deadline_seconds=0.3, progress=seen.append)
    assert not process.running()
    assert seen


_STARTER = """
import sys, time
from pathlib import Path
from kvscope.demo.process import ChildProcess
code = "import subprocess, sys, time; "
code += "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid, flush=True); "
code += "time.sleep(60)"
process = ChildProcess("it", [sys.executable, "-c", code], Path(sys.argv[1]))
while not process.tail():
    time.sleep(0.05)
print(process.pid, process.tail(), flush=True)
time.sleep(60)
"""


def test_a_killed_starter_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _STARTER, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as starter:
        assert starter.stdout is not None
        child, grandchild = map(int, starter.stdout.readline().split())
        assert _alive(child)
        assert _alive(grandchild)
        starter.send_signal(signal.SIGKILL)
    assert _eventually(lambda: not _alive(child) and not _alive(grandchild), seconds=30)
