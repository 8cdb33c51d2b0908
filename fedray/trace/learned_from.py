"""Trained runs and the traces that they were learned from, found by paths."""

from pathlib import Path

from fedray.base.errors import InputError, TraceError
from fedray.trace.reader import Trace, read_document
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
        path: output of `train` or of `run_scenario`.
        verify: whether digests are checked.

    Raises:
        TraceError: it holds no trained run, or one trained on another trace than its own, or files
            of both.
    """
    directory = Path(path)
    # Without run.json it is not a trace, but may be the run itself.
    if (directory / TRAINING_FILE).exists() or not (directory / RUN_FILE).exists():
        return TrainedRun.open(directory, verify)
    if not (directory / TRAINING).exists():
        raise TraceError(
            f"trace {str(directory)!r} has no trained run; give the directory of one, or train on "
            "this trace"
        )
    trained = Trace.open(directory, verify).trained
    assert trained is not None
    return trained


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
        # The surrounding directory may be another run or an import, and so not a trace of this run.
        is_its_own = read_document(around).get("digest") == trained.trace_digest
        return Trace.open(around) if is_its_own else None
    trace = given if isinstance(given, Trace) else Trace.open(given)
    if trace.digest != trained.trace_digest:
        raise InputError.of(
            "trace",
            str(trace.path),
            f"has digest {trace.digest[:12]}, but {str(trained.path)!r} was trained on "
            f"{trained.trace_digest[:12]}",
            "give that trace",
        )
    return trace
