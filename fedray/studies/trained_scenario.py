"""The scenario of a trained run, read back with the files that travel with it."""

from pathlib import Path

from fedray.base.errors import ScenarioError
from fedray.scenario import Scenario
from fedray.trace.reader import Trace
from fedray.trace.trained import TrainedRun


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
