"""`fedray reproduce gboard --predict` and `--sensitivity`."""

import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from fedray.commands.output import (
    print_json,
    print_pieces,
    progress_line,
    refuse_existing,
    tell_results,
)
from fedray.runtime.placement import Placement

_SCALE, _SEEDS = 0.01, 2


def predict_published(
    rows: str | None,
    overrides: Sequence[str],
    scale: float | None,
    seeds: int | None,
    out: Path | None,
    placement: Placement,
    quiet: bool,
    as_json: bool,
) -> None:
    """Predicts runs, prints predictions and scores, and writes them with a page.

    Args:
        rows: a list of rows, or a CSV file; None for all published runs.
        overrides: of every scenario.
        scale: of the simulations; None for 0.01.
        seeds: runs of each case; None for 2.
        out: new directory for results.json and report.html; None writes nothing.
        placement: where the simulations run.
        quiet: whether to show no progress.
        as_json: whether to print JSON.
    """
    from fedray.report.text.predictions import (
        prediction_notes,
        prediction_pieces,
        prediction_tables,
    )
    from fedray.studies.predict import predict_gboard

    refuse_existing(out)
    with progress_line("simulating", quiet) as on_status, contextlib.redirect_stdout(sys.stderr):
        study = predict_gboard(
            rows,
            overrides,
            _SCALE if scale is None else scale,
            _SEEDS if seeds is None else seeds,
            placement,
            lambda done, total: on_status(f"{done} of {total} runs simulated"),
        )
    document = study.to_json()
    if out is not None:
        notes = " ".join(prediction_notes(document))
        _write(out, "Gboard runs, predicted", notes, prediction_tables(document), document)
    if as_json:
        print_json(document)
        return
    print_pieces(prediction_pieces(document))
    tell_results(out)


def vary_published(
    rows: str | None,
    overrides: Sequence[str],
    scale: float | None,
    out: Path | None,
    placement: Placement,
    quiet: bool,
    as_json: bool,
) -> None:
    """Varies rules and habits of runs, prints what moves, and writes it with a page.

    Args:
        rows: a list of rows, or a CSV file; None for two published runs.
        overrides: of every scenario.
        scale: of the simulations; None for 0.01.
        out: new directory for results.json and report.html; None writes nothing.
        placement: where the simulations run.
        quiet: whether to show no progress.
        as_json: whether to print JSON.
    """
    from fedray.report.text.predictions import sensitivity_tables
    from fedray.studies.sensitivity import vary_gboard

    refuse_existing(out)
    size = _SCALE if scale is None else scale
    with progress_line("simulating", quiet) as on_status, contextlib.redirect_stdout(sys.stderr):
        moved = vary_gboard(
            rows,
            overrides,
            size,
            placement,
            lambda done, total: on_status(f"{done} of {total} runs simulated"),
        )
    document = {"scale": size, "settings": [each.to_json() for each in moved]}
    tables = sensitivity_tables(document["settings"])
    note = (
        f"One thing differs from the row's scenario at a time. Simulated at {size:g} of population "
        "and report goal, one seed each: differences of a per cent or two are its spread."
    )
    if out is not None:
        _write(out, "What moves the figures of Gboard runs", note, tables, document)
    if as_json:
        print_json(document)
        return
    print_pieces(tables)
    typer.echo(note)
    tell_results(out)


def _write(out: Path, title: str, note: str, tables: Sequence[Any], document: Any) -> None:
    from fedray.report.page import render_study, write_page

    # Nothing was there when the command began, as `refuse_existing` has seen to.
    out.mkdir(parents=True)
    write_page(render_study(title, note, [], tables, document), out / "report.html")
    write_page(json.dumps(document, indent=2) + "\n", out / "results.json")
