"""Progress of commands on standard error, which `fedray --quiet` turns off."""

import contextlib
import shlex
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from fedray.commands.frame.output import print_line

# Every command may show progress, so the option stands before the command, and functions of
# commands need no parameter for it.
IS_QUIET: ContextVar[bool] = ContextVar("is_quiet", default=False)
"""Whether progress is hidden; set once, when the command line is read."""


@contextlib.contextmanager
def progress_line(title: str) -> Iterator[Callable[[str], None]]:
    """Within: yields a listener that shows the progress of a long computation."""
    from fedray.report.progress import study_progress

    with study_progress(title, is_shown=not IS_QUIET.get()) as show:
        yield show


@contextlib.contextmanager
def progress_of_run(
    directory: Path | None, name: str, command: str, tensorboard: Path | None
) -> Iterator[tuple[Path, Callable[[Any], None]]]:
    """Within: yields the directory of a run, and a listener that shows and records its progress.

    When the run begins, it prints how to continue it, because the process may vanish later without
    a message: Ray ends it if one of its own processes dies, and the system if memory runs out.

    Args:
        directory: output directory; None for a new one under runs/.
        name: beginning of the new directory's name.
        command: command that continues the run, without the directory.
        tensorboard: folder of event files; None for none.
    """
    from fedray.report.event_files import event_files
    from fedray.report.progress import both, run_progress
    from fedray.trace.partial import new_directory, partial_directory
    from fedray.watch.spent import SpentSoFar

    where = directory or new_directory(name)
    is_quiet = IS_QUIET.get()
    hint = f"resume  if this run is cut off: {command} {shlex.quote(str(where))}"
    spent = SpentSoFar(where)
    with run_progress(not is_quiet, spent) as show, event_files(tensorboard) as write:
        say = (lambda progress: None) if is_quiet else _Once(hint)
        try:
            yield where, both(say, both(show, write))
        finally:
            # The new directory is still empty if the run ended before it began; runs/ may be too.
            if directory is None:
                with contextlib.suppress(OSError):
                    partial_directory(where).rmdir()
                    where.parent.rmdir()


class _Once:
    """Listener that prints a line at the first progress after the data was read."""

    def __init__(self, line: str) -> None:
        self._line = line

    def __call__(self, progress: Any) -> None:
        from fedray.wire.messages import DataProgress

        if self._line and not isinstance(progress, DataProgress):
            print_line(self._line, err=True)
            self._line = ""
