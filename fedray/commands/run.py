"""`fedray run`: simulate a scenario, train its model, audit its trace."""

import contextlib
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fedray.base.errors import FedrayError, InputError, RunFailed
from fedray.commands.budget import day_of, say_if_same
from fedray.commands.placing import placement_of
from fedray.commands.progress import IS_QUIET, progress_of_run
from fedray.commands.run_results import print_run, print_run_of_tasks
from fedray.commands.run_start import read_calibrated, say_compiling, say_supply


def run(
    scenario: Path | None = None,
    *,
    out: Path | None = None,
    overrides: list[str] | None = None,
    resume: Path | None = None,
    place: list[str] | None = None,
    trust_code: bool = False,
    tensorboard: Path | None = None,
    ledger: Path | None = None,
    start: str | None = None,
    as_json: bool = False,
) -> None:
    """Simulate a scenario, train its model, write its trace, and audit it.

    An interrupted run that continues knows its scenario.

    Args:
        out (DIR): new directory for the trace; default: one under runs/
        ledger (LEDGER): budget of devices over runs, which the run may not exceed
        start (DAY): day on which the run starts in the ledger (UTC); default: today
    """
    # Imports are inside the commands, so that those without Ray and torch start at once.
    from fedray.runs.budgeted import charge_run, reserved
    from fedray.runs.pipeline import recorded_scenario
    from fedray.scenario import SeveralTasks
    from fedray.trace.several_tasks import TasksRun

    day = day_of(start)
    placement = placement_of(place)
    value = None
    if scenario is not None:
        value = read_calibrated(scenario, overrides or (), trust_code)
    if tensorboard is not None and isinstance(value, SeveralTasks):
        raise InputError(
            "--tensorboard would write the curves of several tasks over one another; leave it out, "
            "and write those of one task by `fedray train DIR/NAME --tensorboard`"
        )
    if resume is not None and (out is not None or (value is None and overrides)):
        raise InputError(
            "--resume continues a run as it was started; leave out --out, and --set unless "
            "SCENARIO is given too"
        )
    name = value.name if value is not None else ""
    charged = [] if ledger is None else ["--ledger", str(ledger)]
    command = shlex.join(["fedray", "run", *charged, "--resume"])
    with (
        progress_of_run(resume or out, name, command, tensorboard) as (directory, listen),
        contextlib.redirect_stdout(sys.stderr),  # Ray prints reports about dead workers
    ):
        reserve: Any = partial(reserved, ledger, start=day, placement=placement)
        if resume is not None:
            kept = None if ledger is None else recorded_scenario(resume)
            held = reserve(kept, is_resumed=True)
            trace = _continued(resume, placement, value, listen, trust_code, held)
        else:
            trace = _started(value, placement, directory, listen, reserve)
        problem = ""
        try:
            if ledger is not None:
                say_if_same(charge_run(ledger, trace, day))
        except FedrayError as error:
            again = ["fedray", "budget", str(ledger), "--add", str(trace.path)]
            again += [] if start is None else ["--start", start]
            problem = (
                f"the run is complete but not charged: {error}; charge it by `{shlex.join(again)}`"
            )
    show = print_run_of_tasks if isinstance(trace, TasksRun) else print_run
    try:
        show(trace, as_json)
    finally:
        # After the results, so that a charge that failed loses none of them.
        if problem:
            raise RunFailed(problem)


def _started(
    value: Any, placement: Any, directory: Path, listen: Callable[[Any], None], reserve: Any
) -> Any:
    from fedray.runs.pipeline import run_scenario
    from fedray.runs.sustainable import check_sustainable

    if value is None:
        raise InputError("SCENARIO is missing; name a file or a scenario of `fedray init --list`")
    # A run that cannot finish is refused before any message about compiling.
    check_sustainable(value)
    if not IS_QUIET.get():
        say_compiling()
    # A run that might exceed the budget is refused here, before anything starts.
    with reserve(value) as begun:

        def on_start() -> None:
            begun()
            # A user who reads that the population is too small can end the run early.
            if not IS_QUIET.get():
                say_supply(value)

        return run_scenario(value, placement, directory, listen, on_start)


def _continued(
    directory: Path,
    placement: Any,
    value: Any,
    listen: Callable[[Any], None],
    trust_code: bool,
    held: Any,
) -> Any:
    from fedray.runs.pipeline import resume_run

    with held as begun:

        def heard(progress: Any) -> None:
            begun()
            listen(progress)

        return resume_run(directory, placement, value, heard, trust_code=trust_code)
