"""`fedray verify`: simulate a run again, and compare digests."""

import contextlib
import sys
from pathlib import Path

import typer

from fedray.base.storage import fetched
from fedray.commands.frame.output import print_line, print_result
from fedray.commands.frame.placing import placement_of
from fedray.commands.frame.progress import IS_QUIET


def verify(
    directory: Path,
    *,
    trace: Path | None = None,
    place: list[str] | None = None,
    trust_code: bool = False,
    as_json: bool = False,
) -> None:
    """Simulate a run again from its run.json, and compare the digests of all columns.

    The exit code is 1 if a column differs, and the first one is named. A directory of `fedray
    train` is trained again; its numbers also depend on the machine.

    Args:
        directory (DIR|URI): trace of `fedray run`, or model of `fedray train`
        trace (DIR): trace of a model, if it is not around it
    """
    from fedray.report.progress import run_progress
    from fedray.runs.verified import verify_run

    placement = placement_of(place)
    with (
        run_progress(is_shown=not IS_QUIET.get()) as listen,
        contextlib.redirect_stdout(sys.stderr),  # Ray prints reports about dead workers
    ):
        found = verify_run(
            fetched(directory), placement, listen, trace=trace, trust_code=trust_code
        )
    print_result(found, as_json)
    if not found.is_equal:
        print_line(f"fedray: not verified: {found.difference}: {found.reason}", err=True)
        raise typer.Exit(1)
