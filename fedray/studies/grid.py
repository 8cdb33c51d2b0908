"""Training grids: every cell of a sweep with a trace trains on it, with every seed.

    OUT/
      sweep.json                           the sweep
      runs/CELL-SEED/                      a trained run
      results.json results.parquet report.html

An interrupted grid continues from the runs that are there. Cells of one seed share cohorts, data,
initial model and noise, so they are compared seed by seed.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from fedray.base.atomic import write_whole
from fedray.base.errors import InputError
from fedray.base.storage import local_path
from fedray.runs.calibrated import calibrated
from fedray.runs.learning import scenario_of, scenario_to_train, train_many
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.studies.compare import Comparison, Group, comparison_of
from fedray.studies.sweep.run import result_files
from fedray.studies.sweep.sweep import Sweep
from fedray.trace.reader import Trace

SWEEP_FILE = "sweep.json"


def run_grid(
    sweep: Sweep,
    out: str | Path,
    placement: Placement | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
    *,
    trust_code: bool = False,
) -> Comparison:
    """Trains a model for every cell and seed of a sweep with a trace, and compares them.

    Args:
        sweep: trace and varied keys.
        out: directory of the results; trainings that are there are not repeated.
        placement: where the trainings run, each a task in one process.
        on_progress: called with the number of trained models.
        trust_code: whether the code of a custom task that came with the trace may be run.

    Returns:
        The cells, the best by the answer's metric first.

    Raises:
        InputError: a cell is impossible, code is not trusted, or `out` holds something else.
    """
    if sweep.trace is None:
        raise InputError.of("sweep", sweep.name, "has no trace to train on", "give it one")
    trace, directory = Trace.open(sweep.trace), Path(os.path.abspath(local_path(out)))
    cells, wanted = _trainings(sweep, trace, directory)
    for each in () if trust_code else cells:
        each.demand_trust_of_training()
    (directory / "runs").mkdir(parents=True, exist_ok=True)
    document = sweep.model_dump_json(exclude_unset=True).encode()
    write_whole(directory / SWEEP_FILE, document, SWEEP_FILE, InputError)
    runs = train_many(trace, wanted, placement, on_progress)
    found = comparison_of([*runs.values()], trace, None)
    # A key with one value is a setting of all cells.
    axes = sweep.x, *(key for key in sweep.names if key != sweep.x)
    varied = [{key: each.get(key) for key in axes} for each in sweep.cells()]
    values = {run.path: varied[cell] for (cell, _), run in runs.items()}
    groups = (
        _of_cell(each, values[each.first.path], found.differing_keys) for each in found.groups
    )
    groups = tuple(sorted(groups, key=lambda group: fmean(found.badness(group))))
    found = replace(found, groups=groups, axes=axes)
    for name, content in result_files(found, found.page()).items():
        write_whole(directory / name, content, name, InputError)
    return found


def _of_cell(group: Group, cell: Mapping[str, Any], differing: Sequence[str]) -> Group:
    # A scenario leaves some keys out at their default, such as nesterov = false.
    given = {key: value for key, value in cell.items() if key in differing}
    return replace(group, cell=cell, settings={**given, **group.settings})


def _trainings(
    sweep: Sweep, trace: Trace, directory: Path
) -> tuple[list[Scenario], dict[tuple[int, int], tuple[Scenario, Path]]]:
    """Returns the scenarios of the cells, and scenario and directory of each training."""
    own = scenario_of(trace)
    cells = [
        calibrated(scenario_to_train(trace, cell.scenario_of(own)), trace) for cell in sweep.cells()
    ]
    wanted = {}
    for cell, seed in sweep.draws():
        training = cells[cell].training.model_copy(update={"seed": seed})
        scenario = cells[cell].model_copy(update={"training": training})
        wanted[cell, seed] = scenario, directory / "runs" / f"{cell + 1}-{seed}"
    is_other = directory.exists() and not (directory / SWEEP_FILE).exists()
    found = {each for each in (directory / "runs").glob("*") if each.suffix != ".partial"}
    if is_other or found - {out for _, out in wanted.values()}:
        reason = "holds something else than trainings of this sweep"
        raise InputError.of("out", str(directory), reason, "name a new directory")
    return cells, wanted
