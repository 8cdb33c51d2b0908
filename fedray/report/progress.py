"""The progress bar of a run, on stderr."""

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from fedray.messages import RunProgress


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
    columns = (
        SpinnerColumn(),
        TextColumn("round"),
        MofNCompleteColumn(),
        BarColumn(bar_width=24),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("starting Ray and the shards", total=None)
        try:
            yield lambda progress: bar.update(
                task, completed=progress.committed, total=progress.count, description=_describe(progress)
            )
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
    days, seconds = divmod(progress.simulated_seconds, 86_400)
    text = f"day {days:.0f} {seconds // 3600:02.0f}:{seconds % 3600 // 60:02.0f}  eligible {progress.eligible_estimate:,}"
    if progress.metrics is not None:
        text += f"  loss {progress.metrics.train_loss:.3f}"
    if progress.evaluation is not None and not math.isnan(progress.evaluation.evaluation_accuracy):
        text += f"  accuracy {progress.evaluation.evaluation_accuracy:.3f}"
    return text
