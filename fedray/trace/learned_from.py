"""Trained runs and the traces that they were learned from, found by paths."""

from pathlib import Path

from fedray.errors import InputError, TraceError
from fedray.trace.reader import Trace
from fedray.trace.schema import RUN_FILE
from fedray.trace.trained import TRAINING, TRAINING_FILE, TrainedRun


def is_trained_run(path: str | Path) -> bool:
    """Whether the directory `path` is a trained run by itself, and not a trace, which may hold one
    too."""
    directory = Path(path)
    is_trace = (directory / RUN_FILE).exists()
    return (directory / TRAINING_FILE).exists() and not is_trace


def open_trained(path: str | Path, verify: bool = True) -> TrainedRun:
    """Opens a trained run: its own directory, or the trace in which it lies.

    Args:
        path: what `train` wrote, or what `run_scenario` wrote.
        verify: whether digests are checked.

    Raises:
        TraceError: there is none.
    """
    directory = Path(path)
    # Without run.json it is no trace, and so the run itself if anything.
    if not (directory / RUN_FILE).exists():
        return TrainedRun.open(directory, verify)
    if not (directory / TRAINING).exists():
        raise TraceError(
            f"trace {str(directory)!r} has no trained run; give the directory of one, or train on "
            "this trace"
        )
    return TrainedRun.open(directory / TRAINING, verify)


def trace_of(trained: TrainedRun, given: Trace | str | Path | None = None) -> Trace | None:
    """The trace of a trained run.

    Args:
        trained: the run.
        given: the trace, or where it is; None looks for it where `run_scenario` puts it, which is
            around the run.

    Returns:
        The trace, or None if it was not given and the run lies in none.

    Raises:
        InputError: the trace that is given is another one.
    """
    if given is None:
        around = trained.path.resolve().parent
        if not (around / RUN_FILE).exists():
            return None
        # A run may have been moved into another trace by hand, which is then not its own.
        found = Trace.open(around)
        return found if found.digest == trained.trace_digest else None
    trace = given if isinstance(given, Trace) else Trace.open(given)
    if trace.digest != trained.trace_digest:
        raise InputError(
            f"trace={str(trace.path)!r} has digest {trace.digest[:12]}, but {str(trained.path)!r} "
            f"was trained on {trained.trace_digest[:12]}; give that trace"
        )
    return trace
