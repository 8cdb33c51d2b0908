"""`fedray canary`: check the aggregator's noise by experiment."""

from pathlib import Path

import typer

from fedray.commands.frame.auditing import open_checked
from fedray.commands.frame.output import print_result
from fedray.commands.frame.placing import placement_of
from fedray.commands.frame.progress import progress_line


def canary(
    scenario: Path,
    *,
    trace: Path | None = None,
    overrides: list[str] | None = None,
    place: list[str] | None = None,
    trust_code: bool = False,
    as_json: bool = False,
) -> None:
    """Check by experiment that the aggregator adds the claimed noise.

    Devices with known updates (canaries) take part in rounds of the real aggregator. Exit code 1 if
    the noise is not as claimed.

    Args:
        trace (TRACE): trace with the participations; default: a simulated one
    """
    from fedray.scenario import Scenario
    from fedray.studies.canary import run_canary

    # A mistake in the scenario is found before a large trace is opened.
    value = Scenario.from_toml(scenario, overrides or (), trust_code=trust_code)
    opened = open_checked(trace, None) if trace is not None else None
    with progress_line("running canaries") as show:
        result = run_canary(value, opened, on_progress=show, placement=placement_of(place))
    print_result(result, as_json)
    # Scripts see by the exit code that the noise is not as claimed.
    if result.problems:
        raise typer.Exit(1)
