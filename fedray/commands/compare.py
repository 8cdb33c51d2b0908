"""`fedray compare` and `fedray compare-mechanisms`: trained runs of one trace side by side."""

import contextlib
import sys
from pathlib import Path
from typing import Any

import typer

from fedray.base.errors import demanded
from fedray.commands.output import print_files, print_pieces, print_result, write_shown
from fedray.commands.placing import placement_of
from fedray.commands.progress import progress_line


def compare(
    runs: list[Path],
    *,
    trace: Path | None = None,
    delta: float | None = None,
    page: Path | None = None,
    figures: Path | None = None,
    as_json: bool = False,
) -> None:
    """Compare trained runs of one trace: metrics, paired differences, privacy and costs.

    The first line is the answer. Runs that differ only in training.seed are a group, with a mean
    over its seeds. Groups are compared by the differences of runs with the same seed.

    Args:
        runs (RUN): directories of `fedray train`, or traces with a trained run
        trace (TRACE): trace of the trainings; default: the one that contains a run
        delta (D): delta of every epsilon; default: that of the first run
    """
    from fedray.studies.compare import compare_runs

    result = compare_runs(runs, trace, delta)
    _print_comparison(result, page, figures, as_json)
    # Without the trace, the participations that epsilon follows from are unknown.
    if not result.assumptions and not as_json:
        typer.echo("Epsilon is not known without the trace; give it by --trace.")


def compare_mechanisms(
    trace: Path,
    *,
    mechanisms: str | None = None,
    epsilon: float | None = None,
    rho: float | None = None,
    delta: float | None = None,
    seeds: int = 3,
    out: Path | None = None,
    place: list[str] | None = None,
    trust_code: bool = False,
    page: Path | None = None,
    figures: Path | None = None,
    as_json: bool = False,
) -> None:
    """Train mechanisms on a trace at one epsilon, and compare them.

    Each mechanism gets the least noise with which the rules of the trace ensure the epsilon or, if
    they ensure nothing, the recorded participations spend it. --mechanisms is required, and
    --epsilon or --rho.

    Args:
        mechanisms (A,B): mechanisms, joined by commas: kinds of `fedray optimize`, files, or none
            for a training without noise
        epsilon (E): epsilon of every mechanism
        rho (R): rho (zCDP) of every mechanism, instead of epsilon
        delta (D): delta of epsilon; default: that of the trace
        seeds (S): trainings of each mechanism, with training.seed from 1 on
        out (DIR): directory of mechanisms and runs, which an interrupted comparison continues;
            default: a new one under runs/
    """
    from fedray.studies.equal_privacy import compare_mechanisms as compare_at

    named = demanded("mechanisms", mechanisms, "must be given, such as blt,tree,banded")
    # Ray prints reports about dead workers.
    with progress_line("comparing") as show, contextlib.redirect_stdout(sys.stderr):
        result = compare_at(
            trace,
            [each.strip() for each in named.split(",")],
            out,
            epsilon=epsilon,
            rho=rho,
            delta=delta,
            seeds=seeds,
            placement=placement_of(place),
            on_progress=show,
            trust_code=trust_code,
        )
    _print_comparison(result, page, figures, as_json)
    if not as_json:
        first = next(iter(result.groups[0].runs.values()))
        typer.echo(f"runs     {first.path.parent}")


def _print_comparison(result: Any, page: Path | None, figures: Path | None, as_json: bool) -> None:
    # Files are written before anything is printed, because the JSON names them.
    from fedray.report.table import Paragraph

    written = write_shown(result, page, figures)
    if not as_json:
        warnings = (Paragraph("WARNING: ", each) for each in result.warnings)
        print_pieces([Paragraph("", result.answer), *warnings, ""])
    print_result(result, as_json, **written)
    if not as_json:
        print_files(written)
