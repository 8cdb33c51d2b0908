"""Sweeps as tables, figures and a page."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from fedray.audit.assumptions import OF_EVERY_AUDIT
from fedray.base.rounding import (
    as_set,
    counted,
    decimals_of,
    down,
    needed_noise,
    shown_min_sep,
    significant,
    up,
)
from fedray.mechanisms.comparison import NOT_COMPARABLE
from fedray.report.figure import Axis, Figure, Mark, Series, file_name, needs_log
from fedray.report.page import render_study
from fedray.report.subject import Subject, condition_of
from fedray.report.table import NOT_PUBLISHED, Table
from fedray.studies.paired import mean_interval
from fedray.studies.sweep.cells import Row
from fedray.studies.sweep.run import Crossing, SweepResult
from fedray.studies.sweep.sweep import ESTIMATED, Cell, Sweep

_Line = dict[float, list[tuple[float, Row]]]

COLUMNS = {
    "rounds": "n",
    "min_sep": "b",
    "max_participations": "k",
    "rms_loss": "RmsLoss",
    "max_loss": "MaxLoss",
    "common_rho": "common rho",
    "needed_noise_multiplier": "z",
    "rms_prefix_error": "RMS error",
    "max_prefix_error": "max error",
    "rms_error": "RMS error",
    "regret": "loss above the cell's best",
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
"""Headings of the figures of a sweep; `_headings` adds what errors are of, and at which rho."""
OF_RIVALS = ("common_rho", "needed_noise_multiplier", "regret")
"""Figures that compare mechanisms of a cell."""
BOUNDS = ("sensitivity", "participation_sensitivity", "noise_multiplier")
"""Figures that may be upper bounds; KEY_is_exact says so."""
_BRIEF = (
    "min_sep",
    "max_participations",
    "rms_loss",
    "max_loss",
    "common_rho",
    "rms_prefix_error",
    "noise_multiplier",
    "epsilon",
    "person_epsilon",
    "note",
)
"""Columns that terminals have room for."""
OBSERVED = ("common_rho", "rho", "epsilon", "person_epsilon")
"""Figures of the participations of a simulated run, on which no guarantee may rest."""
UNENFORCED = f"{NOT_PUBLISHED} observed epsilons and rhos; a stress test has the enforced ones."
MOST_NAMED = 3
"""Mechanisms that the verdict names."""
_BRIEF_AT_A_TARGET = ("min_sep", "noise_multiplier", "epsilon", "rms_error")
"""The same where each mechanism has noise of its own."""
_TITLES = {
    "min_sep": "min-sep",
    "max_participations": "max participations",
    "noise_multiplier": "noise multiplier",
    "rho": "rho",
    "epsilon": "epsilon",
}
"""Names of figures in titles, if other than the headings."""


def _rho_of_errors(result: SweepResult) -> str:
    """Returns the rho of errors that compare mechanisms; empty if cells have one mechanism."""
    if not result.has_rivals:
        return ""
    return "common rho" if result.has_one_rho else "the cell's rho"


def _headings(result: SweepResult) -> dict[str, str]:
    """Returns the headings of all figures by their keys."""
    sweep, rho = result.sweep, _rho_of_errors(result)
    of = " of the mean" if sweep.has_goals else f" of {sweep.parsed_workload.rows}"
    at = f" at {rho}" if rho else ""
    ends = {"rms_prefix_error": of + at, "max_prefix_error": of + at, "rms_error": of}
    ends["needed_noise_multiplier"] = at
    heads = {name: head + ends.get(name, "") for name, head in COLUMNS.items()}
    return heads if result.has_one_rho else heads | {"common_rho": "rho of the cell"}


def _left_out(result: SweepResult) -> tuple[str, ...]:
    """Returns the figures that say nothing of cells with one mechanism."""
    if result.has_rivals:
        return ()
    # One mechanism has one noise, so both errors are the same.
    return OF_RIVALS if result.sweep.target_epsilon is None else (*OF_RIVALS, "rms_prefix_error")


def _observed(sweep: Sweep, name: str) -> str:
    return "observed " if name in OBSERVED and sweep.scenario is not None else ""


def _title(result: SweepResult) -> str:
    """Returns the name of the plotted figure."""
    sweep, y = result.sweep, result.sweep.y
    title = _observed(sweep, y) + (_headings(result) | _TITLES)[y]
    is_spent = y == "epsilon" and sweep.target_epsilon is not None
    return f"{title} spent" if is_spent else title


def _short(result: SweepResult) -> dict[str, str]:
    """Returns mechanisms by their full names, without a loss and a purpose that all share."""
    full = list(dict.fromkeys(row.mechanism for each in result.cells for row in each.rows))
    short = full
    for said in (r", least (\w+)", r"(?:, noise)? for the (\w+)"):
        is_same = len({each for name in full for each in re.findall(said, name)}) == 1
        shorter = [re.sub(said, "", name) for name in short]
        if is_same and len(set(shorter)) == len(full):
            short = shorter
    return dict(zip(full, short, strict=True))


def sweep_notes(result: SweepResult) -> tuple[list[str], list[str]]:
    """Returns notes for a reader of the result, and those on its method, a sentence each."""
    rows = [row for each in result.cells for row in each.rows]
    kinds = {row.sensitivity_of for row in rows if row.sensitivity_of is not None}
    rests = {"trace": "that of the simulated trace", "(b, k)": "that of the cell's (b, k)"}
    notes = []
    if kinds:
        named = " or ".join(rests[kind] for kind in sorted(kinds))
        notes.append(f"Losses, rho and epsilon of a row rest on one sensitivity, {named}.")
    of, rho = result.sweep.parsed_workload.rows, _rho_of_errors(result)
    notes.append(f"RmsLoss and MaxLoss are errors of {of} at mu = 1.")
    if result.sweep.has_goals:
        notes.append(f"An error of the mean is that of {of} over the report goal, at clip norm 1.")
    if rho:
        notes.append(
            f"For errors at {rho}, all mechanisms of a cell have the rho of the sweep's first "
            "mechanism; the least error comes first."
        )
        notes.append(NOT_COMPARABLE)
    if result.sweep.target_epsilon is not None:
        estimate = result.sweep.estimate
        goal = None if estimate is None else estimate.report_goal
        scaled = f" at report goal {goal:,}, and in proportion at others" if goal else ""
        notes.append(
            f"Each mechanism has the least noise for the target under its estimate{scaled}, or "
            "under the truth if it is made for that; epsilon is what was spent."
        )
    names, needed = _short(result), []
    if any(full != short for full, short in names.items()):
        needed.append(f"Mechanisms in full: {'; '.join(names)}.")
    if "trace" in kinds:
        needed.append(UNENFORCED)
    if any(row.is_starved for row in rows):
        needed.append(
            "A cell whose run starved has no figures, because its first rounds say nothing of the "
            "whole run; its note has the cause."
        )
    if rho and not result.has_one_rho:
        needed.append("Rho differs between cells, so compare errors only within a cell.")
    if any(_is_bound(row, name) for row in result.table() for name in BOUNDS):
        needed.append(
            "A sensitivity or z with <= is an upper bound, because no exact sensitivity is known."
        )
    return needed, notes


def sweep_page(result: SweepResult) -> str:
    """Returns the page of a sweep: figures, changes of the better mechanism, and all cells."""
    return render_study(
        result.sweep.name,
        result.sweep.description,
        result.figures(),
        result.tables(),
        result.to_json(),
        OF_EVERY_AUDIT,
        verdict=result.headline,
        warnings=result.warnings,
    )


def sweep_subject(result: SweepResult) -> Subject:
    """Returns the subject of a sweep: its cells, each a run of a scenario or a setting."""
    sweep, cells = result.sweep, counted(len(result.cells), "cell")
    if sweep.scenario is None:
        return Subject(f"sweep {sweep.name} ({cells})")
    has_persons = any(row.person_epsilon for each in result.cells for row in each.rows)
    of = f"sweep {sweep.name} of {Path(sweep.scenario).name} ({cells})"
    return Subject(of, runs="one run each", unit="" if has_persons else "device")


def _subject(result: SweepResult, values: Iterable[tuple[str, Any]]) -> Subject:
    """Returns the subject of a row: the values of its cell, by keys that have several."""
    names = result.sweep.names
    said = [f"{names[key]}={as_set(value)}" for key, value in values if key in names]
    return Subject(condition=condition_of(said) if said else "")


def sweep_verdict(result: SweepResult) -> str:
    """Returns the mechanisms that are the best in most cells; of a figure that mechanisms share, or
    that they were calibrated to, its range."""
    sweep = result.sweep
    starved = sum(any(row.is_starved for row in each.rows) for each in result.cells)
    end = f"; {starved:,} of {counted(len(result.cells), 'cell')} starve." if starved else "."
    best: Counter[str] = Counter()
    is_target = sweep.y == "epsilon" and sweep.target_epsilon is not None
    for each in [] if result.is_of_cell or is_target else result.cells:
        found = [(getattr(row, sweep.y), row.mechanism) for row in each.rows]
        known = [(value, name) for value, name in found if value is not None]
        best.update([min(known)[1]] if len(known) > 1 else [])
    if best:
        names = _short(result)
        said = [f"{names[name]} in {count:,}" for name, count in best.most_common(MOST_NAMED)]
        return f"Least {_title(result)} of {counted(best.total(), 'cell')}: {', '.join(said)}{end}"
    cells = [
        (float(value), ", ".join(_named(sweep, each.cell.values)))
        for each in result.cells
        for row in each.rows
        if (value := result.figure(each.cell, row, sweep.y)) is not None
    ]
    if not cells:
        return f"No cell has a figure{end}"
    ends = [f"{significant(value)} ({cell})" for value, cell in (min(cells), max(cells))]
    title = _title(result)
    return f"{title[0].upper()}{title[1:]} is from {ends[0]} to {ends[1]}{end}"


def sweep_tables(result: SweepResult) -> list[Table]:
    """The means over seeds, the cells, and the changes of the better mechanism, if any."""
    means = [_means_table(result)] if result.sweep.has_means else []
    crossings = result.crossings()
    crossed = [_crossings_table(result, crossings)] if crossings else []
    return [*means, _cells_table(result), *crossed]


def _means_table(result: SweepResult) -> Table:
    """The plotted figure over the seeds of each cell, and the mean noise multiplier."""
    y, names = result.sweep.y, _short(result)
    groups: dict[tuple[Any, str], list[tuple[Row, float | None]]] = {}
    for each in result.cells:
        others = tuple(result.others_of(each.cell, ()))
        for row in each.rows[: 1 if result.is_of_cell else None]:
            name = "all" if result.is_of_cell else names[row.mechanism]
            found = row, result.figure(each.cell, row, y)
            groups.setdefault((others, name), []).append(found)
    keys = [result.sweep.names[key] for key, _ in result.others_of(result.cells[0].cell, ())]
    shown = _title(result)
    heads = ("mechanism", "z", "runs", f"mean {shown}", "sd", "95 % low", "95 % high")
    rows = []
    for (others, name), own in groups.items():
        values = [float(value) for _, value in own if value is not None]
        # No figure of a sweep is negative.
        found = mean_interval(values).within(0.0, math.inf)
        # A protection is rounded down.
        numbers = [(down if y == "min_sep" else up, found.mean)]
        if found.has_width:
            numbers += [(up, stdev(values)), (down, found.low), (up, found.high)]
        decimals = decimals_of(found.mean)
        texts = [way(value, decimals) if math.isfinite(value) else "-" for way, value in numbers]
        if not found.has_width:
            texts += ["0" if math.isfinite(found.low) else "-", "-", "-"]
        runs = f"{len(values)} of {len(own)}" if len(values) < len(own) else str(len(own))
        noises = [row.noise_multiplier for row, _ in own if row.noise_multiplier is not None]
        is_bound = any(row.noise_multiplier_is_exact is False for row, _ in own)
        z = needed_noise(fmean(noises)) if noises and not result.is_of_cell else "-"
        z = f"<= {z}" if is_bound and z != "-" else z
        rows.append((*(as_set(value) for _, value in others), name, z, runs, *texts))
    notes = (
        "Each interval is Student's, of one mean by itself; runs without a figure are left out.",
    )
    if shown.startswith("observed"):
        notes = (UNENFORCED, *notes)
    runs = counted(len(result.sweep.varied["seed"]), "run")
    return Table(
        f"Mean {shown} over seeds",
        (*keys, *heads),
        tuple(rows),
        notes,
        subject=Subject(runs=f"{runs} each"),
        row_subjects=tuple(_subject(result, others) for others, _ in groups),
    )


def _crossings_table(result: SweepResult, crossings: Sequence[Crossing]) -> Table:
    x, names = _key_title(result.sweep, result.sweep.x), _short(result)
    cells: dict[str, Callable[[Crossing], str]] = {
        result.sweep.names[key]: lambda each, key=key: as_set(each.cell[f"cell.{key}"])
        for key, _ in result.others_of(result.cells[0].cell, (result.sweep.x,))
    }
    cells |= {
        "better before": lambda each: names[each.before],
        "better after": lambda each: names[each.after],
        f"{x} before": lambda each: f"{each.low:g}",
        f"{x} after": lambda each: f"{each.high:g}",
        "interpolated": lambda each: f"{each.at:.1f}",
    }
    note = f"Where the lower {_title(result)} changes from one mechanism to another."

    def subject(each: Crossing) -> Subject:
        return _subject(result, _values_of(each))

    return Table.of("Crossings", crossings, cells, note, subject=subject)


def _values_of(crossing: Crossing) -> list[tuple[str, Any]]:
    return [(key.removeprefix("cell."), value) for key, value in crossing.cell.items()]


def _cells_table(result: SweepResult) -> Table:
    """A row per cell and mechanism, in a cell the least error first."""
    rows, varied, names = result.table(), result.sweep.names, _short(result)
    heads = {name: _observed(result.sweep, name) + e for name, e in _headings(result).items()}
    seen = {name: {_cell(row, name) for row in rows} for name in heads}
    left_out = (*varied, *_left_out(result))
    shown = [name for name in heads if name not in left_out and seen[name] - {"-", ""}]
    cells: dict[str, Callable[[dict[str, Any]], str]] = {
        head: lambda row, key=key: as_set(row[f"cell.{key}"]) for key, head in varied.items()
    }
    cells["mechanism"] = lambda row: names[row["mechanism"]]
    cells |= {heads[name]: lambda row, name=name: _cell(row, name) for name in shown}
    brief = _BRIEF if result.sweep.target_epsilon is None else _BRIEF_AT_A_TARGET
    if result.sweep.shown_loss == "max":
        brief = tuple(each.replace("rms_prefix", "max_prefix") for each in brief)
    # Means have the answer, and a wide table prints records.
    brief = ("min_sep", "max_participations") if result.sweep.has_means else brief
    brief += (result.sweep.y, "note")
    details = tuple(heads[name] for name in shown if name not in brief)
    notes, method = sweep_notes(result)

    def subject(row: dict[str, Any]) -> Subject:
        return _subject(result, [(key, row[f"cell.{key}"]) for key in varied])

    table = Table.of("Cells", rows, cells, *notes, details=details, method=method, subject=subject)
    return table.varied()


_SHOWN: dict[str, Callable[[Any], str]] = {
    "days": lambda value: f"{value:.5g}",
    "regret": lambda value: f"{up(100.0 * value, 2)} %",
    "noise_multiplier": needed_noise,
}
"""Text of figures that are not rounded up to `DIGITS` digits."""


def _is_bound(row: dict[str, Any], name: str) -> bool:
    # None means that no sensitivity is known, and only False a bound.
    return name in BOUNDS and row.get(f"{name}_is_exact") is False


def _cell(row: dict[str, Any], name: str) -> str:
    # Figures of persons are absent without owners, and errors of means without several goals.
    value = row.get(f"mean_{name}", row.get(name))
    # With one participation of each device no gap exists.
    if name == "min_sep" and row["max_participations"] == 1:
        return shown_min_sep(None)
    shown = _SHOWN.get(name, significant) if value is not None else significant
    text = shown(value)
    return f"<= {text}" if _is_bound(row, name) else text


def sweep_figures(result: SweepResult) -> list[Figure]:
    """One figure, with a line for each mechanism and each combination of the other values."""
    sweep = result.sweep
    x_axis = _key_title(sweep, sweep.x)
    y_title = _title(result)
    lines = _lines(result)
    series = tuple(_series(result, name, rows) for name, rows in lines.items())
    note = "A click on a name hides it. "
    if sweep.has_means:
        note += "Means over seeds; the band is the 95 % interval of the mean (Student's t)."
    elif sweep.scenario is not None:
        note += "Every point is a simulated run; between them nothing was observed."
    elif any(each.kind == "steps" for each in series):
        note += "Participations change in steps, so each value is held until the next computed one."
    marks = [
        Mark(each.at, ", ".join([f"{each.at:.0f}", *_named(sweep, _values_of(each))]))
        for each in result.crossings()
    ]
    marks += _starved(result)
    truths = [row.min_sep for each in result.cells for row in each.rows if row.min_sep is not None]
    is_one = not any(result.others_of(each.cell, (sweep.x,)) for each in result.cells)
    if sweep.x == ESTIMATED and is_one and truths:
        least, most = min(truths), max(truths)
        marks.append(Mark(float(least), "truth", until=float(most) if most > least else None))
    if sweep.y == "epsilon" and sweep.target_epsilon is not None:
        marks.append(Mark(sweep.target_epsilon, "target", "y"))
    # NaN breaks a line, and must not change the axis.
    every_y = [float(y) for each in series for y in each.y if math.isfinite(y)]
    return [
        Figure(
            name=file_name(f"{sweep.y} {x_axis}"),
            title=f"{y_title[0].upper()}{y_title[1:]} over {x_axis}",
            note=note,
            x=Axis(x_axis, starts_at_zero=False, at_points=sweep.x == ESTIMATED),
            y=_axis(y_title, every_y),
            series=series,
            marks=tuple(marks),
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


def _series(result: SweepResult, name: str, rows: _Line) -> Series:
    """A line if k is the same everywhere, else steps; simulated runs are points, and their means
    over seeds a line with a band."""
    every_x = np.array(sorted({float(each.cell.get(result.sweep.x)) for each in result.cells}))
    values = [[value for value, _ in rows.get(x, ())] for x in every_x]
    # A line is broken at NaN: the value was not computed, or has no figure.
    y = np.array([fmean(each) if each else math.nan for each in values])
    seen = np.isfinite(y)
    # The name of a mechanism begins with its kind; all mechanisms share some figures.
    kind = None if result.is_of_cell else re.split("[ ,]", name)[0].rstrip(";")
    if result.sweep.has_means:
        found = [mean_interval(each) for each in values]
        low, high = np.array([(each.low, each.high) for each in found]).T
        return Series(name, "line", every_x, y, low=low, high=high, mechanism=kind)
    if result.sweep.scenario is not None:
        return Series(name, "points", every_x[seen], y[seen], mechanism=kind)
    # k changes in steps; if it is the same everywhere, figures change smoothly.
    most = {rows[x][0][1].max_participations for x in every_x[seen]}
    if len(most) == 1 and result.sweep.y != "min_sep":
        return Series(name, "line", every_x, y, mechanism=kind)
    # A step continues to the next value if that one was computed, and else is a point.
    is_next_seen = np.append(seen[1:], False)
    next_x = np.append(every_x[1:], every_x[-1])
    until = np.where(is_next_seen, next_x, every_x)
    return Series(name, "steps", every_x[seen], y[seen], until[seen], mechanism=kind)


def _lines(result: SweepResult) -> dict[str, _Line]:
    """Plotted values with their rows, by the name of their line (mechanism and other values), then
    by their x."""
    names, title, lines = _short(result), _title(result), dict[str, _Line]()
    for each in result.cells:
        others = _others(result, each.cell, (result.sweep.x,))
        x = float(each.cell.get(result.sweep.x))
        # All mechanisms of a cell share such a figure, so the first row stands for them.
        for row in each.rows[:1] if result.is_of_cell else each.rows:
            value = result.figure(each.cell, row, result.sweep.y)
            if not row.is_starved and value is not None:
                legend = title if result.is_of_cell else names[row.mechanism]
                line = lines.setdefault(", ".join([legend, *others]), {})
                line.setdefault(x, []).append((float(value), row))
    return lines


def _others(result: SweepResult, cell: Cell, axes: tuple[str, ...]) -> list[str]:
    return _named(result.sweep, result.others_of(cell, axes))


def _named(sweep: Sweep, values: Iterable[tuple[str, Any]]) -> list[str]:
    """Returns varied values with their keys, for names and sentences; of one value, without."""
    return [
        f"{_key_title(sweep, key)} {as_set(value)}" for key, value in values if key in sweep.names
    ]


def _key_title(sweep: Sweep, key: str) -> str:
    return sweep.names.get(key, key.split(".")[-1]).replace("_", " ")


def _axis(title: str, values: Sequence[float]) -> Axis:
    """Values are shown rounded up; integers as they are."""
    is_whole = all(float(value).is_integer() for value in values)
    decimals = None if is_whole or not values else decimals_of(max(values))
    return Axis(title, is_log=needs_log(values), starts_at_zero=False, decimals=decimals)
