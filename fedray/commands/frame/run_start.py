"""Messages at the start of a run: compilation, and the supply of devices."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from fedray.commands.frame.output import IS_QUIET, print_line


def say_compiling() -> None:
    """Prints why the first run of a version of the code starts late."""
    from fedray.clients.availability.habit import is_compiled

    if not is_compiled():
        typer.echo("compiling  once for this version of the code; it takes a minute", err=True)


def read_checked(scenario: Path, overrides: Sequence[str], trust_code: bool) -> Any:
    """Returns the `Preflight` of the scenario of a run."""
    from fedray.runs.preflight import preflight
    from fedray.scenario.several_tasks import read_scenario

    return preflight(read_scenario(scenario, overrides, trust_code=trust_code), say_noise)


def say_noise(line: str) -> None:
    """Prints the noise that a privacy target needs, unless the command is quiet."""
    if not IS_QUIET.get():
        print_line(f"noise   {line}", err=True)


def say_supply(scenario: Any) -> None:
    """Prints how many devices are eligible at once, and how many the rounds want at once.

    Args:
        scenario: a scenario of one task or several.
    """
    from fedray.clients.availability.supply import eligible_at_once
    from fedray.runs.sustainable import why_tight
    from fedray.scenario.several_tasks import tasks_of

    tasks = [task.scenario for task in tasks_of(scenario)]
    # Population and availability are common to all tasks.
    first = tasks[0]
    supply = eligible_at_once(first)
    target = sum(task.rounds.wanted_at_once for task in tasks)
    # Tasks compete for the same devices, so their demands add up.
    uploads = first.rounds.uploads
    if len(tasks) > 1:
        demand = f"{len(tasks)} tasks together want {target:,} at once"
    elif uploads is not None:
        # Whoever comes within a window uploads, so that none must wait for others.
        demand = (
            f"a window of {uploads.window_hours:g} hours stores the uploads of all that come in "
            f"it, and a round needs {target:,}"
        )
    elif first.rounds.buffer is None:
        demand = f"a round selects {target:,}"
    else:
        demand = f"at most {target:,} train at once"
    line = (
        f"supply  {supply.mean:,} of {first.population.devices:,} devices are eligible at once, "
        f"{supply.least:,} to {supply.most:,} over the first week, if no timer runs; {demand}"
    )
    if supply.most < target and (uploads is None or len(tasks) > 1):
        line += "; that many are never there at once"
    print_line(line, err=True)
    for each in filter(None, map(why_tight, tasks)):
        print_line(f"fedray: warning: later rounds may starve: {each}", err=True)
