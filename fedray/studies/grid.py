"""Training grids: every cell of a sweep with a trace trains on it, with every seed.

    OUT/
      sweep.json                           the sweep
      runs/CELL-SEED/                      a trained run
      results.json results.parquet report.html

An interrupted grid continues from the runs that are there. Cells of one seed share cohorts, data,
initial model and noise, so they are compared seed by seed.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from pydantic import ValidationError

from fedray.audit.tuning import Tuning
from fedray.base.atomic import write_whole
from fedray.base.errors import InputError
from fedray.base.regular_file import read_regular_file
from fedray.base.storage import local_path
from fedray.runs.calibrated import calibrated
from fedray.runs.learning import is_trained, scenario_of, scenario_to_train, train_many
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.studies.compare import Comparison, audits_of, comparison_of
from fedray.studies.sweep.run import result_files
from fedray.studies.sweep.sweep import SEEDS, Sweep
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
        The cells, the best by the answer's metric first, with their cost in privacy.

    Raises:
        InputError: a cell is impossible, code is not trusted, the random number of trainings is 0,
            or `out` holds something else.
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
    found = comparison_of(
        [*train_many(trace, wanted, placement, on_progress).values()], trace, None
    )
    # Of random trainings the best one counts.
    judged = min if sweep.runs else fmean
    groups = tuple(sorted(found.groups, key=lambda group: judged(found.badness(group))))
    tuning = _tuning(sweep, cells, trace)
    axes = sweep.x, sweep.plane or ""
    axes += tuple(key for key in sweep.vary if key not in axes)
    found = replace(found, groups=groups, axes=axes, tuning=tuning)
    for name, content in result_files(found, found.page()).items():
        write_whole(directory / name, content, name, InputError)
    return found


def read_tuning(out: str | Path, trace: Trace) -> Tuning:
    """Returns the cost in privacy of the trainings of a grid.

    Args:
        out: directory of a finished grid.
        trace: trace that it must have been trained on.

    Raises:
        InputError: the directory has no finished grid of this trace.
    """
    directory = Path(os.path.abspath(local_path(out)))
    try:
        sweep = Sweep.model_validate_json(read_regular_file(directory / SWEEP_FILE))
    except (OSError, ValidationError):
        reason = f"has no {SWEEP_FILE} that can be read"
        raise InputError.of("tuning", str(out), reason, "name the output of a grid") from None
    cells, wanted = _trainings(sweep, trace, directory)
    if not all(is_trained(trace, *each) for each in wanted.values()):
        raise InputError.of("tuning", str(out), "lacks trainings", "finish the grid first")
    return _tuning(sweep, cells, trace)


def _tuning(sweep: Sweep, cells: list[Scenario], trace: Trace) -> Tuning:
    delta = cells[0].privacy.delta
    return Tuning(
        trace.digest, delta, audits_of(cells, trace, delta), sweep.seeds or SEEDS, sweep.runs
    )


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
    if not wanted:
        raise InputError(
            "runs: the number drawn is 0, so nothing is trained; another draw would void the "
            "guarantee, so give `seeds`, whose trainings compose"
        )
    is_other = directory.exists() and not (directory / SWEEP_FILE).exists()
    found = {each for each in (directory / "runs").glob("*") if each.suffix != ".partial"}
    # Another training would use the same devices, and not be counted.
    if is_other or found - {out for _, out in wanted.values()}:
        reason = "holds something else than trainings of this sweep"
        raise InputError.of("out", str(directory), reason, "name a new directory")
    return cells, wanted
