"""Progress of commands on standard error, which `--quiet` turns off."""

import contextlib
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedray.commands.frame.output import IS_QUIET, print_line

SECONDS_BETWEEN = 2.0
"""Shortest time between two bounds on the privacy that a run has spent."""
MOST_SHARE = 0.05
"""Largest share of the time that bounds may take, since some mechanisms take long."""


@contextlib.contextmanager
def progress_line(title: str) -> Iterator[Callable[[str], None]]:
    """Within: yields a listener that shows the progress of a long computation."""
    from fedray.report.progress import study_progress

    with study_progress(title, is_shown=not IS_QUIET.get()) as show:
        yield show


@contextlib.contextmanager
def progress_of_run(
    directory: Path | None,
    name: str,
    command: str,
    tensorboard: Path | None,
    uri: str | None = None,
) -> Iterator[tuple[Path, Callable[[Any], None]]]:
    """Within: yields the directory of a run, and a listener that shows and records its progress.

    When the run begins, it prints how to continue it, because the process may vanish later without
    a message: Ray ends it if one of its own processes dies, and the system if memory runs out.

    Args:
        directory: output directory; None for a new one under runs/.
        name: beginning of the new directory's name.
        command: command that continues the run, without the directory.
        tensorboard: folder of event files; None for none.
        uri: URI that continues the run; None for the directory.
    """
    from fedray.report.event_files import event_files
    from fedray.report.progress import both, run_progress
    from fedray.trace.partial import new_directory, partial_directory

    where = directory or new_directory(name)
    is_quiet = IS_QUIET.get()
    hint = f"resume  if this run is cut off: {command} {shlex.quote(uri or str(where))}"
    with run_progress(not is_quiet, _SpentSoFar()) as show, event_files(tensorboard) as write:
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


class _SpentSoFar:
    """Upper bounds on the privacy that a run has spent, as text.

    The text names the round, which may be an earlier one. A run of several tasks has none.
    """

    def __init__(self) -> None:
        self._text, self._next, self._after = "", 0.0, 0

    def __call__(self, progress: Any) -> str:
        """Returns the latest known bounds; empty before the first."""
        begun = time.monotonic()
        # The last line has the bound after all rounds, whenever the one before was.
        is_last = self._after < progress.committed == progress.count
        if (begun >= self._next or is_last) and progress.committed and progress.so_far is not None:
            self._text = _bound_text(*progress.so_far())
            self._after, ended = progress.committed, time.monotonic()
            self._next = begun + max(SECONDS_BETWEEN, (ended - begun) / MOST_SHARE)
        return self._text


def _bound_text(scenario: Any, rounds: Mapping[str, Sequence[float]]) -> str:
    from fedray.audit.so_far import RoundsSoFar, bound_so_far
    from fedray.base.parsing import finite_or_none
    from fedray.base.rounding import counted, fine, up
    from fedray.runtime.reservation import show

    try:
        bound = bound_so_far(scenario, RoundsSoFar.of(rounds))
        epsilon, rho = finite_or_none(bound.epsilon), finite_or_none(bound.rho)
        if epsilon is None:
            return ""
        show(epsilon=epsilon)
    # A line of progress must not end a run; without a bound, the audit will say why.
    except Exception:
        return ""
    after = f"after {counted(len(rounds['opened']), 'round')}"
    of_rho = "" if rho is None else f", rho {fine(rho)}"
    return f"at most epsilon {up(epsilon)}{of_rho} {after}"
