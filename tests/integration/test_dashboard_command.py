"""``kvscope dashboard`` as a process: it ends with its signal and says when a port is taken."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvscope.store import migrate

RUN = "from kvscope.cli.main import main; main()"
STARTS_WITHIN_SECONDS = 90.0


@pytest.fixture
def db(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'k.db'}"
    migrate.upgrade(url)
    return url


def argv(db: str, port: int) -> list[str]:
    return [sys.executable, "-c", RUN, "dashboard", "--db", db, "--port", str(port)]


def answers(port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_sigterm_ends_the_dashboard_and_frees_its_port(db: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(argv(db, port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + STARTS_WITHIN_SECONDS
        while not answers(port):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        os.kill(process.pid, signal.SIGTERM)
        process.wait(timeout=20)
        assert not answers(port)
    finally:
        process.kill()
        process.wait()


def test_a_port_in_use_is_one_line(db: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(argv(db, port), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"kvscope: cannot listen on 127.0.0.1:{port} (")
    assert lines[0].endswith("choose another with --port")
