"""`fedray train`: train a model on a trace."""

import contextlib
import sys
from pathlib import Path
from typing import Any

from fedray.base.errors import InputError
from fedray.commands.frame.output import print_json, print_line, print_pieces
from fedray.commands.frame.placing import placement_of
from fedray.commands.frame.progress import progress_of_run
from fedray.commands.frame.run_start import say_noise


def train(
    trace: Path | None = None,
    scenario: Path | None = None,
    *,
    overrides: list[str] | None = None,
    out: Path | None = None,
    resume: Path | None = None,
    place: list[str] | None = None,
    trust_code: bool = False,
    ensure: Path | None = None,
    tensorboard: Path | None = None,
    as_json: bool = False,
) -> None:
    """Train a model on a trace: another mechanism, task or seed, with the same participations.

    Two trainings on one trace are paired: they differ only in the keys that were set. An
    interrupted training that continues knows its trace and scenario.

    Args:
        scenario: scenario with the tables data, training and privacy; default: that of the trace
        out (DIR): new directory for the model; default: one under runs/
        resume (DIR): directory of an interrupted training to continue
    """
    from fedray.audit.claims import read_claim
    from fedray.runs.calibrated import calibrated
    from fedray.runs.learning import scenario_of, scenario_to_train, unfinished_training
    from fedray.runs.pipeline import train as train_on
    from fedray.scenario import Scenario
    from fedray.trace.imported import open_trace
    from fedray.trace.learned_from import trace_of

    if resume is not None and (out is not None or scenario is not None or overrides):
        raise InputError(
            "--resume continues a training as it was started; leave out SCENARIO, --set and --out"
        )
    placement = placement_of(place)
    value = None
    claim = None if ensure is None else read_claim(ensure)
    if resume is not None:
        recorded, value = unfinished_training(resume)
        trace = trace or recorded
    if trace is None:
        raise InputError("TRACE is missing; name a directory of `fedray run`")
    opened = open_trace(trace)
    # A file that is named in the command is trusted; code that came with the trace is not.
    if scenario is not None:
        value = Scenario.from_toml(scenario, overrides or (), trust_code=True)
    elif value is None:
        value = scenario_of(opened).with_overrides(*(overrides or ()))
    value = calibrated(scenario_to_train(opened, value), opened, say_noise)
    name, command = f"{value.name}-training", "fedray train --resume"
    with (
        progress_of_run(resume or out, name, command, tensorboard) as (directory, listen),
        contextlib.redirect_stdout(sys.stderr),  # Ray prints reports about dead workers
    ):
        trained = train_on(
            opened,
            value,
            placement,
            directory,
            listen,
            is_resumed=resume is not None,
            trust_code=trust_code,
            ensure=claim,
        )
    # A training that stopped has a shorter trace of its own.
    _print_trained(trace_of(trained) or opened, value, trained, as_json)


def _print_trained(trace: Any, scenario: Any, trained: Any, as_json: bool) -> None:
    from fedray.audit.auditing import audit_trace
    from fedray.report.audits import guarantees_table
    from fedray.report.page import write_own_page
    from fedray.report.table import Paragraph
    from fedray.report.terminal import end_of_run, training_text
    from fedray.report.trained_page import trained_page, trained_verdict
    from fedray.trace.schema import REPORT_FILE

    audit = audit_trace(trace, scenario=scenario, trained=trained)
    # The page takes longer than the rest, so it comes last.
    if not as_json:
        title = f"Trained on {trace.path}"
        verdict = Paragraph("", trained_verdict(trained, audit))
        own = (verdict, *training_text(title, trained), *end_of_run(audit))
        guarantees = guarantees_table(audit).under(audit.of)
        print_pieces([*own, guarantees], trained.of)
        print_line(f"`fedray audit {trained.path} --verbose` lists the assumptions behind them.")
        print_line(f"model   {trained.path}")
    page = trained_page(trained, audit=audit)
    report = str(write_own_page(page, trained.path / REPORT_FILE))
    if as_json:
        print_json({**trained.to_json(), "audit": audit.to_json(), "report": report})
    else:
        print_line(f"report  {report}")
