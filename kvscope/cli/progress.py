"""How far long work is, on a terminal."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def reading(files: Sequence[Path], after: str) -> Iterator[Callable[[int], None] | None]:
    """Show a bar while ``files`` are read, then the word ``after``; give what is to hear of the bytes read.

    None where standard error is no terminal: nothing is shown there.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    total = sum(file.stat().st_size for path in files for file in _within(path))
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("reading", total=total or None)
        read = 0

        def watch(count: int) -> None:
            nonlocal read
            read += count
            progress.update(task, advance=count, description=after if read >= total else "reading")

        yield watch


@contextmanager
def steps(words: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on a terminal; give what is to hear how many steps are over, of how many."""
    if not sys.stderr.isatty():
        yield lambda _over, _all: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(words, total=None)
        yield lambda over, total: progress.update(task, completed=over, total=total)


def _within(path: Path) -> list[Path]:
    """Return the files whose bytes are read, as far as that can be told before."""
    if path.is_dir():
        return [each for each in path.iterdir() if each.is_file()]
    return [path] if path.is_file() else []
