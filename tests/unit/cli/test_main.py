"""The entry point: what an operating system refuses is one line, too."""

import errno
import os

import click
import pytest

from kvscope.cli import main as entry


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_place_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    @click.command()
    def failing() -> None:
        raise OSError(number, os.strerror(number), "/read/only")

    monkeypatch.setattr(entry._LazyGroup, "get_command", lambda *_: failing)
    with pytest.raises(SystemExit) as ended:
        entry.main(["demo"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        f"kvscope: cannot write /read/only: {os.strerror(number)};"
        " make that place writable, or name another one\n"
    )


def test_other_faults_of_the_system_are_bugs(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def failing() -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(entry._LazyGroup, "get_command", lambda *_: failing)
    with pytest.raises(OSError, match="Input/output error"):
        entry.main(["demo"])
