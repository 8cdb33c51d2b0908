"""Finds trained runs, the traces that they were trained on, and their scenarios."""

import os
from pathlib import Path

from fedray.base.errors import InputError, ScenarioError, TraceError
from fedray.scenario import Scenario
from fedray.trace.files import check_scenario_digest
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
        given: the trace or its path; None looks for it where it was when the run was trained,
            relative to the run.

    Returns:
        The trace, or None if it was not given and is not there.

    Raises:
        InputError: the run was not trained on the given trace.
    """
    if given is None:
        place = trained.trace_path
        if not (place / RUN_FILE).exists():
            return None
        # Another trace, a run or an import may have taken its place since.
        is_its_own = read_document(place).get("digest") == trained.trace_digest
        return Trace.open(place) if is_its_own else None
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


def given_trace_of(trained: TrainedRun) -> Trace | None:
    """Returns the trace of all rounds of a training that stopped (`given` in training.json); None
    if none was recorded, or if it is not where it was."""
    given = trained.document.get("given")
    if given is None:
        return None
    place = Path(os.path.normpath(trained.path.resolve() / given["trace"]))
    if not (place / RUN_FILE).exists() or read_document(place).get("digest") != given["digest"]:
        return None
    return Trace.open(place)


def scenario_of_trained(trained: TrainedRun, trace: Trace) -> Scenario:
    """Returns the scenario of a trained run on a trace. Raises ScenarioError if this release does
    not read it."""
    tables = trained.document["scenario"]
    # A run has the files of its data and task, and the matrix of a mechanism of its own; the matrix
    # of the trace's mechanism may only be in the trace.
    digest = tables["privacy"]["mechanism"].get("sha256", "")
    has_matrix = bool(digest) and (trace.path / f"{digest}.npy").exists()
    directory: Path = trace.path if has_matrix else trained.path
    try:
        # A recorded scenario is read without its data, which need not be at hand.
        scenario = Scenario.from_tables(
            tables, source=str(trained.path), directory=directory, is_recorded=True
        )
    except ScenarioError as error:
        raise ScenarioError(f"{error}; train again with this release") from None
    check_scenario_digest(scenario.digest, trained.document, trained.path)
    return scenario


def opened_training(
    trained: TrainedRun | str | Path, trace: Trace | str | Path | None = None
) -> tuple[TrainedRun, Trace, Scenario]:
    """Returns a trained run, its trace (see `trace_of`) and its scenario. Raises InputError if the
    trace is missing or another."""
    run = trained if isinstance(trained, TrainedRun) else open_trained(trained)
    found = trace_of(run, trace)
    if found is None:
        raise InputError(
            f"{str(run.path)!r} was trained on the trace of digest {run.trace_digest[:12]}, which "
            f"is not at {str(run.trace_path)!r}; move it there, or give it as `trace` to a command "
            "that takes one"
        )
    return run, found, scenario_of_trained(run, found)
