"""`fedray compare`: compare trained runs of one trace."""

from pathlib import Path

import typer

from fedray.commands.output import print_files, print_result, write_shown


def compare(
    runs: list[Path],
    *,
    trace: Path | None = None,
    delta: float | None = None,
    page: Path | None = None,
    figures: Path | None = None,
    as_json: bool = False,
) -> None:
    """Compare trained runs of one trace: settings, metrics, privacy, costs, paired differences.

    Runs that differ only in training.seed are a group, with a mean over its seeds. Groups are
    compared by the differences of runs with the same seed.

    Args:
        runs (RUN): directories of `fedray train`, or traces with a trained run
        trace (TRACE): trace of the trainings; default: the one that contains a run
        delta (D): delta of every epsilon; default: that of the first run
    """
    from fedray.studies.compare import compare_runs

    result = compare_runs(runs, trace, delta)
    # Files are written before anything is printed, because the JSON names them.
    written = write_shown(result, page, figures)
    print_result(result, as_json, **written)
    if as_json:
        return
    # Without the trace, the participations that epsilon follows from are unknown.
    if not result.assumptions:
        typer.echo("Epsilon is not known without the trace; give it by --trace.")
    print_files(written)
