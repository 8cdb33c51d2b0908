"""Finds trained runs, and the traces that they were trained on, by path."""

from pathlib import Path

from fedray.base.errors import InputError, TraceError
from fedray.trace.reader import Trace, read_document
from fedray.trace.schema import RUN_FILE
from fedray.trace.trained import TRAINING, TRAINING_FILE, TrainedRun


def is_trained_run(path: str | Path) -> bool:
    """Whether the directory `path` is a trained run, and not a trace that may contain one."""
    directory = Path(path)
    is_trace = (directory / RUN_FILE).exists()
    return (directory / TRAINING_FILE).exists() and not is_trace


def open_trained(path: str | Path, verify: bool = True) -> TrainedRun:
    """Opens a trained run, given its own directory or the trace that contains it.

    Args:
        path: output of `train` or of `run_scenario`.
        verify: whether digests are checked.

    Raises:
        TraceError: the directory has no trained run, or one that was trained on another trace, or
        files of both.
    """
    directory = Path(path)
    # Without run.json it is not a trace, but may be the run itself.
    if (directory / TRAINING_FILE).exists() or not (directory / RUN_FILE).exists():
        return TrainedRun.open(directory, verify)
    if not (directory / TRAINING).exists():
        raise TraceError(
            f"trace {str(directory)!r} has no trained run; give the directory of a trained run, or "
            "train on this trace"
        )
    trained = Trace.open(directory, verify).trained
    assert trained is not None
    return trained


def trace_of(trained: TrainedRun, given: Trace | str | Path | None = None) -> Trace | None:
    """Finds the trace of a trained run.

    Args:
        trained: the run.
        given: the trace or its path; None looks for it around the run, where `run_scenario` puts
            it.

    Returns:
        The trace, or None if it was not given and the run is not inside a trace.

    Raises:
        InputError: the run was not trained on the given trace.
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
