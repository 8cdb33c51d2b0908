"""The progress bar of a run, on stderr."""

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn

from fedray.messages import RunProgress

BAR, WIDE = 24, 120
"""Characters of the bar itself, and of the least terminal in which it leaves room for what is told."""


@contextlib.contextmanager
def run_progress(is_shown: bool) -> Iterator[Callable[[RunProgress], None]]:
    """Within: gives the listener that moves the bar, or prints lines where there is no terminal, or does nothing if not shown."""
    console = Console(stderr=True)
    if not is_shown:
        yield lambda progress: None
        return
    if not console.is_terminal:
        yield _PlainLines()
        return
    columns: list[ProgressColumn] = [SpinnerColumn(), TextColumn("round"), MofNCompleteColumn()]
    columns += [BarColumn(bar_width=BAR)] if console.width >= WIDE else []
    columns += [TextColumn("{task.description}"), TimeElapsedColumn()]
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("starting Ray and the shards", total=None)

        def show(progress: RunProgress) -> None:
            taken = _width_of_columns(progress, console.width, bar.tasks[0].elapsed or 0.0)
            parts = _fitting(_parts(progress), console.width - taken)
            bar.update(task, completed=progress.committed, total=progress.count, description="  ".join(parts))

        try:
            yield show
        except BaseException:
            bar.live.transient = True  # an error's one line is all that is left to see
            raise


class _PlainLines:
    """A line every fifteen seconds, and one at the end, for logs."""

    SECONDS = 15.0

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, progress: RunProgress) -> None:
        if progress.committed == progress.count or time.monotonic() - self._last >= self.SECONDS:
            self._last = time.monotonic()
            print(f"round {progress.committed}/{progress.count}  {_describe(progress)}", file=sys.stderr)


def _describe(progress: RunProgress) -> str:
    return "  ".join(_parts(progress))


def _parts(progress: RunProgress) -> list[str]:
    """What is told of a run, the most telling first."""
    days, seconds = divmod(progress.simulated_seconds, 86_400)
    parts = [f"day {days:.0f} {seconds // 3600:02.0f}:{seconds % 3600 // 60:02.0f}", f"eligible {progress.eligible_estimate:,}"]
    if progress.metrics is not None:
        parts.append(f"loss {progress.metrics.train_loss:.3f}")
    if progress.evaluation is not None and not math.isnan(progress.evaluation.evaluation_accuracy):
        parts.append(f"accuracy {progress.evaluation.evaluation_accuracy:.3f}")
    return parts


def _width_of_columns(progress: RunProgress, width: int, elapsed_seconds: float) -> int:
    """Characters that the other columns of the bar take, with a space after each."""
    counts, clock = 2 * len(str(progress.count)) + 1, 7 if elapsed_seconds < 86_400 else 16
    return 1 + 1 + len("round") + 1 + counts + 1 + (BAR + 1 if width >= WIDE else 0) + 1 + clock


def _fitting(parts: list[str], width: int) -> list[str]:
    """As many of the first parts as stand whole in the width."""
    while parts and len("  ".join(parts)) > width:
        parts = parts[:-1]
    return parts
