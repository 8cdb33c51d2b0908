"""Sweeps as tables, figures and a page."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fedray.audit.assumptions import OF_EVERY_AUDIT
from fedray.base.rounding import decimals_of, shown_min_sep, shown_noise, significant
from fedray.mechanisms.comparison import NOT_COMPARABLE
from fedray.report.figure import Axis, Figure, Mark, Plane, Series, Shown, file_names, needs_log
from fedray.report.page import render_study
from fedray.report.table import Table
from fedray.studies.sweep.cells import Row
from fedray.studies.sweep.run import OF_THE_CELL, Crossing, SweepResult
from fedray.studies.sweep.sweep import Cell, Sweep

COLUMNS = {
    "rounds": "n",
    "min_sep": "b",
    "max_participations": "k",
    "rms_loss": "RmsLoss",
    "max_loss": "MaxLoss",
    "common_rho": "rho of all",
    "needed_noise_multiplier": "z at common rho",
    "rms_prefix_error": "RMS error at common rho",
    "max_prefix_error": "max error at common rho",
    "regret": "regret",
    "sensitivity": "sensitivity",
    "sensitivity_of": "sensitivity of",
    "participation_sensitivity": "sensitivity of (b, k)",
    "noise_multiplier": "z",
    "rho": "rho at z",
    "epsilon": "epsilon at z",
    "person_sensitivity": "sensitivity of a person",
    "person_epsilon": "epsilon of a person",
    "days": "days",
    "note": "note",
}
"""Headings of the figures of a sweep."""
BOUNDS = ("sensitivity", "participation_sensitivity")
"""Figures that may be upper bounds; KEY_is_exact says so."""
_BRIEF = (
    "min_sep",
    "max_participations",
    "rms_loss",
    "max_loss",
    "needed_noise_multiplier",
    "rms_prefix_error",
    "epsilon",
    "person_epsilon",
    "note",
)
"""Columns that terminals have room for."""
_TITLES = {
    **COLUMNS,
    "min_sep": "min-sep",
    "max_participations": "max participations",
    "rms_prefix_error": "rms error of prefix sums",
    "max_prefix_error": "largest error of prefix sums",
    "noise_multiplier": "noise multiplier",
    "rho": "rho",
    "epsilon": "epsilon",
}


def _title(sweep: Sweep) -> str:
    return _TITLES[sweep.y].replace("prefix sums", sweep.parsed_workload.rows)


def sweep_notes(result: SweepResult) -> list[str]:
    """Notes for a reader of the result, a sentence each."""
    rows = [row for each in result.cells for row in each.rows]
    kinds = {row.sensitivity_of for row in rows if row.sensitivity_of is not None}
    rests = {"trace": "that of the simulated trace", "(b, k)": "that of the cell's (b, k)"}
    notes = []
    if kinds:
        named = " or ".join(rests[kind] for kind in sorted(kinds))
        notes.append(f"Losses, rho and epsilon of a row rest on one sensitivity, {named}.")
    notes.append(
        f"RmsLoss and MaxLoss are errors of {result.sweep.parsed_workload.rows} at mu = 1. For the "
        "last errors, all "
        "mechanisms of a cell have the same rho, that of the sweep's first mechanism; the least "
        "comes first."
    )
    notes.append(NOT_COMPARABLE)
    if any(row.is_starved for row in rows):
        notes.append(
            "A cell whose run starved has no figures, because its first rounds say nothing of the "
            "whole run; its note has the cause."
        )
    # None means that no sensitivity is known, and only False a bound.
    has_bounds = any(row[f"{name}_is_exact"] is False for row in result.table() for name in BOUNDS)
    if has_bounds:
        notes.append("A sensitivity with <= is an upper bound, because no exact one is known.")
    return notes


def sweep_page(result: SweepResult) -> str:
    """Returns the page of a sweep: figures, changes of the better mechanism, and all cells."""
    return render_study(
        result.sweep.name,
        result.sweep.description,
        sweep_figures(result),
        sweep_tables(result),
        result.to_json(),
        OF_EVERY_AUDIT,
    )


def sweep_tables(result: SweepResult) -> list[Table]:
    """The changes of the better mechanism, if any, and the cells."""
    crossings = result.crossings()
    crossed = [_crossings_table(result, crossings)] if crossings else []
    return [*crossed, _cells_table(result)]


def _crossings_table(result: SweepResult, crossings: Sequence[Crossing]) -> Table:
    cells = {
        "better before": lambda each: each.before,
        "better after": lambda each: each.after,
        f"between {result.sweep.x}": lambda each: f"{each.low:g}",
        "and": lambda each: f"{each.high:g}",
        "interpolated": lambda each: f"{each.at:.1f}",
    }
    note = f"Where the lower {_title(result.sweep)} changes from one mechanism to another."
    return Table.of("Crossings", crossings, cells, note)


def _cells_table(result: SweepResult) -> Table:
    """A row per cell and mechanism, in a cell the least error first. A column whose cells are all
    equal is a note instead."""
    rows = result.table()
    varied = [key for key, values in result.sweep.vary.items() if len(values) > 1]
    seen = {name: {_cell(row, name) for row in rows} for name in COLUMNS}
    # Every column of a single row would be the same in all rows, and none would be left.
    is_single = len(rows) == 1
    shown = [
        name
        for name in COLUMNS
        if (seen[name] - {"-", ""} if is_single else len(seen[name]) > 1 and name not in varied)
    ]
    cells: dict[str, Callable[[dict[str, Any]], str]] = {
        key.split(".")[-1]: lambda row, key=key: str(row[f"cell.{key}"]) for key in varied
    }
    cells["mechanism"] = lambda row: row["mechanism"]
    cells |= {COLUMNS[name]: lambda row, name=name: _cell(row, name) for name in shown}
    equal = {} if is_single else {name: each for name, each in seen.items() if len(each) == 1}
    said = [f"{COLUMNS[name]} {text}" for name, (text,) in equal.items() if text not in ("-", "")]
    constants = f"In all rows: {'; '.join(said)}." if said else ""
    details = tuple(COLUMNS[name] for name in shown if name not in _BRIEF)
    notes = (constants, *sweep_notes(result))
    return Table.of(result.sweep.name, rows, cells, *notes, details=details)


def _cell(row: dict[str, Any], name: str) -> str:
    # Figures of persons are absent without owners.
    value = row.get(name)
    # With one participation of each device no gap exists.
    if name == "min_sep" and row["max_participations"] == 1:
        return shown_min_sep(None)
    if name == "noise_multiplier":
        return shown_noise(row[name])
    if name == "days" and value is not None:
        return f"{value:.5g}"
    is_bound = name in BOUNDS and row[f"{name}_is_exact"] is False
    return f"{'<= ' if is_bound else ''}{significant(value)}"


def sweep_figures(result: SweepResult) -> list[Shown]:
    """A plane per mechanism and other values, or one figure with a line for each."""
    sweep = result.sweep
    x_axis = _key_title(sweep.x)
    y_title = _title(sweep)
    lines = _lines(result)
    if sweep.plane is not None:
        planes = _planes(result)
        files = file_names(sweep.y, planes)
        return [
            Plane(
                name=files[name],
                title=name,
                note=f"{y_title}; a blank was not computed, or has none.",
                x=Axis(x_axis),
                y=Axis(_key_title(sweep.plane)),
                z=_axis(y_title, list(values.values())),
                values=values,
                marks=marks,
            )
            for name, (values, marks) in planes.items()
        ]
    series = tuple(_series(result, name, rows) for name, rows in lines.items())
    note = "A click on a name hides it. "
    if sweep.scenario is not None:
        note += "Every point is a simulated run; between them nothing was observed."
    elif any(each.kind == "steps" for each in series):
        note += "Participations change in steps, so each value is held until the next computed one."
    # NaN breaks a line, and must not change the axis.
    every_y = [float(y) for each in series for y in each.y if math.isfinite(y)]
    return [
        Figure(
            name=file_names(sweep.y, [x_axis])[x_axis],
            title=f"{y_title} over {x_axis}",
            note=note,
            x=Axis(x_axis, starts_at_zero=False),
            y=_axis(y_title, every_y),
            series=series,
            marks=(
                *(Mark(each.at, f"{each.at:.0f}") for each in result.crossings()),
                *_starved(result),
            ),
        )
    ]


def _starved(result: SweepResult) -> list[Mark]:
    """A mark for each cell whose run starved, which therefore has no point."""
    x = result.sweep.x
    marks = [
        Mark(float(each.cell.get(x)), ", ".join(["starves", *_others(result, each.cell, (x,))]))
        for each in result.cells
        if any(row.is_starved for row in each.rows)
    ]
    return list(dict.fromkeys(marks))


def _series(result: SweepResult, name: str, rows: dict[float, Row]) -> Series:
    """A line if k is the same everywhere, else steps; simulated runs are points."""
    every_x = np.array(sorted({float(each.cell.get(result.sweep.x)) for each in result.cells}))
    # A line is broken at NaN: the value was not computed, or has no figure.
    values = [getattr(rows[x], result.sweep.y) if x in rows else None for x in every_x]
    y = np.array([math.nan if value is None else float(value) for value in values])
    seen = np.isfinite(y)
    # The name of a mechanism begins with its kind; all mechanisms share some figures.
    kind = None if result.sweep.y in OF_THE_CELL else re.split("[ ,]", name)[0].rstrip(";")
    if result.sweep.scenario is not None:
        return Series(name, "points", every_x[seen], y[seen], mechanism=kind)
    # k changes in steps; if it is the same everywhere, figures change smoothly.
    most = {rows[x].max_participations for x in every_x[seen]}
    if len(most) == 1 and result.sweep.y != "min_sep":
        return Series(name, "line", every_x, y, mechanism=kind)
    # A step continues to the next value if that one was computed, and else is a point.
    is_next_seen = np.append(seen[1:], False)
    next_x = np.append(every_x[1:], every_x[-1])
    until = np.where(is_next_seen, next_x, every_x)
    return Series(name, "steps", every_x[seen], y[seen], until[seen], mechanism=kind)


def _lines(result: SweepResult) -> dict[str, dict[float, Row]]:
    """Rows that have a value to plot, by the name of their line, then by their x."""
    lines = {}
    for name, (x,), row in _placed(result, (result.sweep.x,)):
        if not row.is_starved and getattr(row, result.sweep.y) is not None:
            lines.setdefault(name, {})[x] = row
    return lines


def _placed(
    result: SweepResult, axes: tuple[str, ...]
) -> Iterator[tuple[str, tuple[float, ...], Row]]:
    """Rows with their names (mechanism and other values) and their places on the axes."""
    y = result.sweep.y
    for each in result.cells:
        others = _others(result, each.cell, axes)
        place = tuple(float(each.cell.get(axis)) for axis in axes)
        # All mechanisms of a cell share such a figure, so the first row stands for them.
        for row in each.rows[:1] if y in OF_THE_CELL else each.rows:
            yield ", ".join([_legend(y, row), *others]), place, row


def _legend(y: str, row: Row) -> str:
    if y in OF_THE_CELL:
        return _TITLES[y]
    # Only simulated runs starve, and the figures of the others are those of their traces.
    subject = "the trace" if row.sensitivity_of == "trace" or row.is_starved else "(b, k)"
    return f"{row.mechanism}; sensitivity of {subject}"


def _planes(
    result: SweepResult,
) -> dict[str, tuple[dict[tuple[float, float], float], dict[tuple[float, float], str]]]:
    """Values, and marks of cells that starved, by the name of their plane."""
    sweep = result.sweep
    planes = {}
    assert sweep.plane is not None
    for name, (x, y), row in _placed(result, (sweep.x, sweep.plane)):
        value = getattr(row, sweep.y)
        if row.is_starved:
            planes.setdefault(name, ({}, {}))[1][x, y] = "starves"
        elif value is not None:
            planes.setdefault(name, ({}, {}))[0][x, y] = float(value)
    return planes


def _others(result: SweepResult, cell: Cell, axes: tuple[str, ...]) -> list[str]:
    return [f"{_key_title(key)} {value}" for key, value in result.others_of(cell, axes)]


def _key_title(key: str) -> str:
    return key.split(".")[-1].replace("_", " ")


def _axis(title: str, values: Sequence[float]) -> Axis:
    """Values are shown rounded up; integers as they are."""
    is_whole = all(float(value).is_integer() for value in values)
    decimals = None if is_whole or not values else decimals_of(max(values))
    return Axis(title, is_log=needs_log(values), starts_at_zero=False, decimals=decimals)
