"""The entry point: what an operating system refuses is one line, too."""

import contextlib
import errno
import io
import os
import sys
from pathlib import Path

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


def test_a_closed_standard_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)  # as the shell's >&- makes it
    with pytest.raises(SystemExit) as ended:
        entry.main(["size", "llama-3-8b", "--json"])
    assert ended.value.code == 0


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_reader_that_is_gone_is_no_failed_check(
    monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    read, write = os.pipe()
    os.close(read)
    monkeypatch.setattr("sys.stdout", os.fdopen(write, "w", encoding="utf-8"))
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with pytest.raises(SystemExit) as ended:
        entry.main(["size", "llama-3-8b", *options])
    assert ended.value.code == 0
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.close()


def test_a_demo_beneath_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        entry.main(["demo", "-o", str(tmp_path / "file" / "demo-out")])
    assert ended.value.code == 2
    assert "cannot be made a folder: Not a directory; name another by -o\n" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["batch", "plan"], ["export"]])
def test_no_input_is_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    log = tmp_path / "log.jsonl"
    line = '{"timestamp":0,"input_length":9,"output_length":5,"hash_ids":[1]}\n'
    log.write_text(line, encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        entry.main([*command, str(log), "-o", str(log)])
    assert ended.value.code == 2
    assert "is read and would be lost: name another file with -o" in capsys.readouterr().err
    assert log.read_text("utf-8") == line
