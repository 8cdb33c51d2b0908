"""The scenario of a trained run, read back with the files that travel with it."""

from pathlib import Path

from fedray.base.errors import InputError, ScenarioError
from fedray.scenario import Scenario
from fedray.trace.learned_from import open_trained, trace_of
from fedray.trace.reader import Trace
from fedray.trace.trained import TrainedRun


def opened_training(
    trained: TrainedRun | str | Path, trace: Trace | str | Path | None, trust_code: bool
) -> tuple[TrainedRun, Trace, Scenario]:
    """Returns a trained run, its trace (None: the one around it) and its scenario. Raises
    InputError if the trace is missing or another, or code of the run is not trusted."""
    run = trained if isinstance(trained, TrainedRun) else open_trained(trained)
    found = trace_of(run, trace)
    if found is None:
        raise InputError(
            f"{str(run.path)!r} lies in no trace; give the trace that it was trained on"
        )
    scenario = scenario_of_trained(run, found)
    if not trust_code:
        scenario.demand_trust_of_training()
    return run, found, scenario


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
        return Scenario.from_tables(
            tables, source=str(trained.path), directory=directory, is_recorded=True
        )
    except ScenarioError as error:
        raise ScenarioError(f"{error}; train again with this release") from None
