"""`fedray stress`: the cost of a misestimated min-sep."""

import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from fedray.base.errors import InputError
from fedray.commands.frame.numbers import whole_number_rule
from fedray.commands.frame.output import (
    print_files,
    print_json,
    print_line,
    print_pieces,
    write_shown,
)
from fedray.commands.frame.placing import placement_of
from fedray.commands.frame.progress import progress_line

DEFAULT = "blt,banded-toeplitz,tree"
MORE = f"For BandMF (a minute at 600 rounds, an hour at 2,500): --mechanisms {DEFAULT},banded"


def stress(
    truth: str | None = None,
    *,
    overrides: list[str] | None = None,
    rounds: int | None = None,
    estimated: str | None = None,
    actual: str | None = None,
    epsilon: float = 6.0,
    delta: float | None = None,
    mechanisms: str = DEFAULT,
    loss: str = "rms",
    seeds: int | None = None,
    what_if: list[str] | None = None,
    forecast: bool = False,
    claim: Path | None = None,
    train: bool = False,
    out: Path | None = None,
    place: list[str] | None = None,
    page: Path | None = None,
    figures: Path | None = None,
    trust_code: bool = False,
    as_json: bool = False,
) -> None:
    """Show the cost of a wrong min-sep: privacy, noise and error, mechanism by mechanism.

    Every mechanism is made for the estimate, with the least noise for --epsilon under it. The truth
    is --actual at --rounds, a trace, or runs of a scenario, which recommend an estimate too.
    Without arguments: four published pairs. `fedray sweep` runs sweeps of parameters.

    Args:
        truth: trace, for what its rules enforce; or scenario to simulate; default: --actual
        rounds (N): rounds n; of a trace, the planned rounds
        estimated (B,B): estimated min-seps; for a scenario also "planned", the default
        actual (B,B): true min-seps
        epsilon (E): target of the noise
        mechanisms (A,B): kinds of `fedray optimize`, files, or names such as blt-400
        loss (max|rms): loss that kinds are made for, and of errors and regrets
        seeds (S): runs of a scenario, by default 20; or trainings with --train, by default 3
        what_if (KEY=VALUE): key of the scenario to change, with as many runs; repeatable
        forecast: take the forecast of a trace at --rounds as the truth (`fedray forecast`)
        claim (CLAIM): claim with the timer of the forecast of a log
        train: train on a trace at equal epsilon, with mechanisms for each estimate and the truth;
            --set changes training.KEY and data.KEY
        out (DIR): directory of the trained runs; default: a new one under runs/
    """
    from fedray.audit.claims import read_claim
    from fedray.report.table import Paragraph
    from fedray.scenario import Scenario
    from fedray.studies.stress.run import opened_subject
    from fedray.studies.stress.run import stress as stressed

    subject: Any = opened_subject(truth)
    if isinstance(subject, Scenario):
        if rounds is not None:
            remedy = f"give --set rounds.count={rounds}"
            raise InputError.of("rounds", rounds, "does not apply to a scenario", remedy)
        subject = subject.with_overrides(*overrides or ())
    of_trainings = () if isinstance(subject, Scenario) else overrides or ()
    with progress_line("stressing") as show, contextlib.redirect_stdout(sys.stderr):
        result = stressed(
            subject,
            rounds=rounds,
            estimated=_numbers("estimated", estimated, "planned"),
            actual=_numbers("actual", actual),
            epsilon=epsilon,
            delta=delta,
            mechanisms=[each.strip() for each in mechanisms.split(",")],
            loss=cast(Any, loss),
            seeds=seeds,
            what_ifs=what_if or (),
            forecast=forecast,
            claim=None if claim is None else read_claim(claim),
            train=train,
            overrides=of_trainings,
            out=out,
            placement=placement_of(place) if place else None,
            trust_code=trust_code,
            on_progress=show,
        )
    if isinstance(subject, Scenario) and overrides:
        result = replace(result, overrides=tuple(overrides))
    for warning in (*result.warnings, *result.doubts):
        print_line(f"fedray: warning: {warning}", err=True)
    written = write_shown(result, page, figures)
    if as_json:
        print_json({**result.to_json(), **written})
    else:
        more = [MORE] if mechanisms == DEFAULT else []
        print_pieces([Paragraph("", result.verdict), "", *result.tables(), *more])
        print_files(written)


def _numbers(name: str, text: str | None, *words: str) -> list[Any]:
    """Reads whole numbers, and permitted words, with commas between."""
    try:
        parts = [each.strip() for each in (text or "").split(",") if text]
        return [each if each in words else int(each) for each in parts]
    except ValueError:
        rule = f"must be whole numbers with commas between, each {whole_number_rule('')}"
        raise InputError.of(name, text, rule) from None
