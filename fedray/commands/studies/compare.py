"""`fedray compare`: compare trained runs of one trace, or plans."""

from pathlib import Path
from typing import Any

import typer

from fedray.base.errors import InputError
from fedray.commands.frame.output import print_files, print_result, write_shown


def compare(
    runs: list[Path],
    *,
    trace: Path | None = None,
    reach: float | None = None,
    page: Path | None = None,
    figures: Path | None = None,
    as_json: bool = False,
) -> None:
    """Compare trained runs of one trace: metrics, paired differences, privacy and costs. Or plans:
    their answers side by side, which is the least in what, and the settings in which they differ.

    The first line is the answer. Runs that differ only in training.seed are a group, with a mean
    over its seeds. Groups are compared by the differences of runs with the same seed. Plans are
    directories of `fedray plan --out`, or files of `fedray plan --json`.

    Args:
        runs (RUN): directories of `fedray train`, traces with a trained run, or plans
        trace (TRACE): trace of the trainings; default: where it was when a run was trained
        reach (VALUE): accuracy, or else first metric, such as 0.40: says in which round each run
            was first as good, and what it had spent by then
    """
    from fedray.studies.plans_compared import is_plan

    if all(map(is_plan, runs)):
        from fedray.studies.plans_compared import compare_plans

        for name, value in {"trace": trace, "reach": reach}.items():
            if value is not None:
                rule = "is for trained runs, not plans"
                raise InputError.of(name, str(value), rule, "leave it out")
        print_comparison(compare_plans(runs), page, figures, as_json)
        return
    from fedray.studies.compare import compare_runs

    result = compare_runs(runs, trace, reach=reach)
    print_comparison(result, page, figures, as_json)
    # Without the trace, the participations that epsilon follows from are unknown.
    if not result.assumptions and not as_json:
        typer.echo("Epsilon is not known: the trace is not where it was; give it by --trace.")


def print_comparison(result: Any, page: Path | None, figures: Path | None, as_json: bool) -> None:
    """Writes the page and figures of a comparison, and prints its answer, warnings and tables."""
    # Files are written before anything is printed, because the JSON names them.
    written = write_shown(result, page, figures)
    print_result(result, as_json, **written)
    if not as_json:
        print_files(written)
