"""Progress of a run or a study, on stderr."""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from fedray.base.escaped import printable
from fedray.base.pace import Pace
from fedray.base.part_done import Announcement, PartDone
from fedray.base.rounding import number_text
from fedray.wire.messages import (
    DataProgress,
    ProgressListener,
    RunProgress,
    TrainingEstimate,
    TrainingProgress,
)
from fedray.wire.messages import Progress as HowFar

BAR, WIDE = 24, 120
"""Number of characters of the bar, and of the narrowest terminal in which it leaves room for the
text."""


SECONDS_BETWEEN_LINES = 15.0
"""Seconds between lines without a terminal."""

Spent = Callable[[RunProgress], str]
"""Returns a text on the privacy that a run has spent so far; empty for nothing."""


@contextlib.contextmanager
def run_progress(is_shown: bool, spent: Spent = lambda progress: "") -> Iterator[ProgressListener]:
    """Yields the listener of a run.

    It moves a bar or, without a terminal, prints lines; if not `is_shown`, it does nothing. The
    function `spent` returns a text on the privacy spent; it is called for every line with the last
    report of the simulation.
    """
    console = Console(stderr=True)
    if not is_shown:
        yield lambda progress: None
        return
    if not console.is_terminal:
        with _log_shown(lambda line: print(printable(line), file=sys.stderr)):
            yield _Lines(spent=spent)
        return
    state = _State(spent)
    columns: list[ProgressColumn] = [SpinnerColumn(), TextColumn("round"), MofNCompleteColumn()]
    # On a narrow terminal the figures need the room of the bar.
    columns += [BarColumn(bar_width=BAR)] if console.width >= WIDE else []
    columns += [TextColumn("{task.description}", markup=False), TimeElapsedColumn()]
    with (
        Progress(*columns, console=console) as bar,
        _log_shown(lambda line: bar.console.print(printable(line), highlight=False, markup=False)),
    ):
        # The first report has the number of rounds.
        task = bar.add_task("starting", total=None)

        def show(progress: HowFar) -> None:
            if isinstance(progress, DataProgress):
                bar.update(task, description=data_text(progress))
                return
            if text := state.take(progress):
                bar.console.print(text, highlight=False, markup=False)
            if isinstance(progress, TrainingEstimate):
                return
            # rich would cut the description in the middle of a figure.
            taken = _width_of_columns(state, console.width, bar.tasks[0].elapsed or 0.0)
            parts = _fitting(state.parts(), console.width - taken)
            description = printable("  ".join(parts))
            bar.update(task, completed=state.done, total=state.count, description=description)

        try:
            yield show
        except BaseException:
            # After an error, only its one line is left on the terminal.
            bar.live.transient = True
            raise


@contextlib.contextmanager
def _log_shown(show: Callable[[str], None]) -> Iterator[None]:
    """Within: lines of fedray's log, such as where a run's workers are, are shown."""
    logger, handler = logging.getLogger("fedray"), logging.Handler()
    handler.emit = lambda record: show(record.getMessage())
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)


@contextlib.contextmanager
def study_progress(title: str, is_shown: bool) -> Iterator[Callable[[str], None]]:
    """Yields the listener of a study, which takes lines.

    In a terminal, the last line stands beside the elapsed time, and disappears at the end.
    Elsewhere a line is printed every fifteen seconds. Lines that are a `PartDone` show the time
    left. If not `is_shown`, it does nothing.
    """
    console = Console(stderr=True)
    if not is_shown:
        yield lambda text: None
        return
    if not console.is_terminal:
        yield _Lines(title)
        return
    pace = _Pace()
    # Brackets in paths and names are not markup.
    columns = [SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()]
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None)

        def show(text: str) -> None:
            if isinstance(text, Announcement):
                bar.console.print(printable(text), highlight=False, markup=False)
            else:
                bar.update(task, description=printable(f"{title}: {pace.told(text)}"))

        yield show


class _Pace:
    """Predicts the remaining time of a study from the time of its finished parts."""

    def __init__(self) -> None:
        self._pace = Pace()
        self._last = 0.0

    def told(self, text: str) -> str:
        """Returns a line, with the time left if it is known."""
        if not isinstance(text, PartDone):
            return text
        if text.share < self._last:  # another part has begun
            self._pace = Pace()
        self._last = text.share
        seconds = self._pace.seconds_left(time.monotonic(), text.share, 1.0)
        if seconds is None or text.share >= 1.0:
            return text
        about = "at most" if text.is_least else "about"
        return f"{text}  {about} {duration(seconds)} left"


SECONDS_BETWEEN_UPDATES = 0.25
"""Seconds between updates in a notebook."""


def show_progress(title: str = "") -> Callable[[HowFar | str], None]:
    """Returns a listener for `on_progress` that shows the progress of a run or a study.

    In a notebook one line below the cell is updated; elsewhere a line is printed to stderr every
    fifteen seconds.

    Args:
        title: text before the line.

    Returns:
        A listener for one call of a function of fedray.
    """
    return _Lines(title)


class _Lines:
    """A listener of runs and of studies: updates one line in a notebook's cell; elsewhere prints a
    line every fifteen seconds and one at the beginning and end, for logs."""

    def __init__(self, title: str = "", spent: Spent = lambda progress: "") -> None:
        self._title = title
        self._state, self._pace = _State(spent), _Pace()
        self._display = _notebook_display()
        self._seconds = SECONDS_BETWEEN_UPDATES if self._display else SECONDS_BETWEEN_LINES
        self._last = time.monotonic()
        self._handle: Any = None

    def __call__(self, progress: HowFar | str) -> None:
        text, must_be_seen = self._told(progress)
        # A notebook's line appears at once, so that the cell shows activity.
        is_first = self._display is not None and self._handle is None
        if not (is_first or must_be_seen or time.monotonic() - self._last >= self._seconds):
            return
        # Reports before a training begins do not delay its first line.
        if not isinstance(progress, TrainingEstimate):
            self._last = time.monotonic()
        line = f"{self._title}: {text}" if self._title else text
        if self._display is None:
            print(printable(line), file=sys.stderr)
        elif self._handle is None:
            self._handle = self._display({"text/plain": line}, raw=True, display_id=True)
        else:
            self._handle.update({"text/plain": line}, raw=True)

    def _told(self, progress: HowFar | str) -> tuple[str, bool]:
        """Returns the line, and whether it must be shown, like the last one."""
        if isinstance(progress, str):
            is_end = isinstance(progress, PartDone) and progress.share in (0.0, 1.0)
            return self._pace.told(progress), is_end or isinstance(progress, Announcement)
        if isinstance(progress, DataProgress):
            return data_text(progress), False
        if text := self._state.take(progress):
            return text, True
        parts = "  ".join(self._state.parts())
        line = f"round {self._state.done}/{self._state.count}  {parts}"
        return line, self._state.is_over


def _notebook_display() -> Callable[..., Any] | None:
    """Returns IPython's `display` if this process is the kernel of a notebook."""
    # A notebook has loaded IPython already; others need not have it installed.
    ipython: Any = sys.modules.get("IPython")
    if ipython is None or not hasattr(ipython.get_ipython(), "kernel"):
        return None
    return ipython.display.display


def both(first: ProgressListener, second: ProgressListener) -> ProgressListener:
    """Returns a listener that passes everything to the `first`, then to the `second`."""

    def tell(progress: HowFar) -> None:
        first(progress)
        second(progress)

    return tell


class _State:
    """State of a run: the latest reports of its simulation and of its training."""

    def __init__(self, spent: Spent = lambda progress: "") -> None:
        self._spent = spent
        self._run: RunProgress | None = None
        self._training: TrainingProgress | None = None
        self._paces: dict[type, Pace] = {}
        self._seconds_left: dict[type, float] = {}
        self._to_train = 0
        """Number of rounds of a training that has not reported a round yet."""
        self._has_starved = False

    def take(self, progress: RunProgress | TrainingProgress | TrainingEstimate) -> str:
        """Takes progress, and returns what deserves its own line; empty for nothing."""
        if isinstance(progress, TrainingEstimate):
            self._training, self._to_train = None, progress.count
            return estimate_text(progress)
        if isinstance(progress, TrainingProgress):
            self._training, self._to_train = progress, 0
            self._keep_pace(progress, progress.trained)
            return ""
        self._run = progress
        self._keep_pace(progress, progress.committed)
        # A run that has a round a day would print the same line every day.
        if not progress.starving or self._has_starved:
            return ""
        self._has_starved = True
        return f"starving, {progress.starving}"

    def _keep_pace(self, progress: RunProgress | TrainingProgress, done: int) -> None:
        # Simulation and training each have their own pace.
        pace = self._paces.setdefault(type(progress), Pace())
        left = pace.seconds_left(time.monotonic(), done, progress.count)
        self._seconds_left[type(progress)] = left or 0.0

    @property
    def _slower(self) -> tuple[int, int]:
        """Returns the rounds done, and the rounds in total, of the slower of simulation and
        training."""
        parts = [] if self._run is None else [(self._run.committed, self._run.count)]
        if self._training is not None:
            parts.append((self._training.trained, self._training.count))
        elif self._to_train:
            parts.append((0, self._to_train))
        # Each training of several tasks has fewer rounds than their simulation, so shares are
        # compared.
        return min(parts, key=lambda part: part[0] / part[1], default=(0, 0))

    @property
    def count(self) -> int:
        return self._slower[1]

    @property
    def done(self) -> int:
        return self._slower[0]

    @property
    def is_over(self) -> bool:
        return self.done == self.count

    def parts(self) -> list[str]:
        """Returns texts about a run, the most informative first."""
        parts: list[str] = []
        # Simulation and training run side by side, so the slower one decides.
        seconds_left = max(self._seconds_left.values(), default=0.0)
        run = self._run
        training = self._training
        # Of rounds that hardly come, no pace says when the last one will.
        if seconds_left and not (run and run.starving):
            parts.append(f"{duration(seconds_left)} left")
        if run is not None:
            days, seconds = divmod(run.simulated_seconds, 86_400)
            # A narrow terminal shows only the first parts.
            if run.starving:
                parts.append("starving")
            if (run.committed, run.count) != self._slower:
                parts.append(f"simulated {run.committed}")
            parts.append(f"day {days:.0f} {seconds // 3600:02.0f}:{seconds % 3600 // 60:02.0f}")
            if spent := self._spent(run):
                parts.append(spent)
            # Timers and budgets hold the others back.
            free = "" if run.may_come is None else f", {run.may_come:,} free to take part"
            parts.append(f"eligible {run.eligible_estimate:,}{free}")
        if training is not None:
            parts.append(f"train loss {number_text(training.metrics.train_loss, 3)}")
            if training.evaluation is not None:
                measures = training.evaluation.metrics.items()
                parts += [f"{name} {number_text(each.value, 3)}" for name, each in measures]
        return parts


def data_text(progress: DataProgress) -> str:
    """Returns the progress of reading all data, as a phrase."""
    return f"reading the data: {progress.clients:,} of {progress.count:,} clients"


def estimate_text(estimate: TrainingEstimate) -> str:
    """Returns the predicted time of a training as a sentence; if a sample of each round trains,
    also the time with whole rounds."""
    text = (
        f"training: {estimate.count:,} rounds of {estimate.devices:,} devices take about "
        f"{duration(estimate.sample_seconds)} on an idle machine"
    )
    if estimate.devices == estimate.accepted:
        return text
    return (
        f"{text}; with all {estimate.accepted:,} devices of a round it would be about "
        f"{duration(estimate.full_seconds)}"
    )


def duration(seconds: float) -> str:
    """Returns a length of time in a suitable unit."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        # A unit is used only from two of it on: "90 min" says more than "2 h".
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(1.0, seconds):.0f} s"


def _width_of_columns(state: _State, width: int, elapsed_seconds: float) -> int:
    """Returns the characters that the bar's other columns take, with a space after each."""
    spinner = 1
    counts = 2 * len(str(state.count)) + 1
    # From one day on, the elapsed time is written with days.
    clock = 7 if elapsed_seconds < 86_400 else 16
    bar = BAR + 1 if width >= WIDE else 0
    return spinner + 1 + len("round") + 1 + counts + 1 + bar + 1 + clock


def _fitting(parts: list[str], width: int) -> list[str]:
    """Returns the first parts that fit whole in the width."""
    while parts and len("  ".join(parts)) > width:
        parts = parts[:-1]
    return parts
