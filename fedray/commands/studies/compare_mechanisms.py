"""`fedray compare-mechanisms`: train mechanisms on a trace at one epsilon."""

import contextlib
import shlex
import sys
from pathlib import Path
from typing import Any, cast

from fedray.base.errors import demanded
from fedray.commands.frame.output import print_line
from fedray.commands.frame.placing import placement_of
from fedray.commands.frame.progress import progress_line
from fedray.commands.studies.compare import print_comparison


def compare_mechanisms(
    trace: Path,
    *,
    mechanisms: str | None = None,
    epsilon: float | None = None,
    rho: float | None = None,
    delta: float | None = None,
    seeds: int = 3,
    loss: str = "rms",
    overrides: list[str] | None = None,
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
        loss (max|rms): loss that kinds are made for
        out (DIR): directory of mechanisms and runs, which an interrupted comparison continues;
            default: a new one under runs/
    """
    from fedray.runs.learning import scenario_of
    from fedray.studies.equal_privacy import compare_mechanisms as compare_at
    from fedray.trace.imported import open_trace

    named = demanded("mechanisms", mechanisms, "must be given, such as blt,tree,banded")
    opened = open_trace(trace)
    # Ray prints reports about dead workers.
    with progress_line("comparing") as show, contextlib.redirect_stdout(sys.stderr):
        result = compare_at(
            opened,
            [each.strip() for each in named.split(",")],
            out,
            epsilon=epsilon,
            rho=rho,
            delta=delta,
            seeds=seeds,
            loss=cast(Any, loss),
            scenario=scenario_of(opened).with_overrides(*(overrides or ())),
            placement=placement_of(place),
            on_progress=show,
            trust_code=trust_code,
        )
    print_comparison(result, page, figures, as_json)
    if not as_json:
        one = next(iter(result.groups[0].runs.values())).path
        print_line(f"runs     {one.parent}", f"report   fedray report {shlex.quote(str(one))}")
