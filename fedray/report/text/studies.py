"""Studies in the terminal and on their pages: sweeps, plans, fits, published runs, canaries."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedray.base.rounding import given, shown_min_sep, shown_noise, up

Document = Mapping[str, Any]
DIGITS = 5
"""Significant digits of figures in tables."""
COLUMNS = {
    "rounds": "n",
    "min_sep": "b",
    "max_participations": "k",
    "rms_loss": "RmsLoss",
    "max_loss": "MaxLoss",
    "common_rho": "rho of all",
    "needed_noise_multiplier": "z for that rho",
    "rms_prefix_error": "rms error there",
    "max_prefix_error": "max error there",
    "regret": "regret",
    "sensitivity": "sensitivity",
    "sensitivity_of": "sensitivity of",
    "participation_sensitivity": "sensitivity of (b, k)",
    "noise_multiplier": "z",
    "rho": "rho at z",
    "epsilon": "epsilon at z",
    "days": "days",
    "note": "note",
}
"""Headings of the figures of a sweep."""
BOUNDS = {
    "sensitivity": "sensitivity_is_exact",
    "participation_sensitivity": "participation_sensitivity_is_exact",
}
"""Figures that may be upper bounds, and what says so."""
_BRIEF = (
    "min_sep",
    "max_participations",
    "rms_loss",
    "max_loss",
    "needed_noise_multiplier",
    "rms_prefix_error",
    "epsilon",
    "note",
)
"""Columns of the terminal: a page, a table or JSON has all."""
_PLAN_HEADING = [
    "verdict",
    "timer",
    "report goal",
    "z",
    "size",
    "min-sep, seeds",
    "planned",
    "population / goal",
    "k",
    "days",
    "epsilon",
    "if cycled",
]
_FOLLOWS = ("z", "population / goal", "if cycled")
"""Columns of a plan that follow from the others, so that the terminal does without."""


def significant(value: Any) -> str:
    """A figure in a table: losses, errors and the noise that is needed are rounded up to `DIGITS`
    significant digits; "-" for None."""
    if value is None:
        return "-"
    return up(value, decimals_of(value)) if isinstance(value, float) else str(value)


def decimals_of(value: float) -> int:
    """How many digits after the point a `value` needs to be shown with `DIGITS` significant ones;
    none below zero."""
    # Neither infinity nor zero has a logarithm.
    if not math.isfinite(value) or value == 0.0:
        return 0
    return max(0, DIGITS - 1 - math.floor(math.log10(abs(value))))


def sweep_rows(sweep: Document, is_brief: bool = False) -> list[list[str]]:
    """A heading, then a row per cell and mechanism, in a cell the least error first. Columns that
    say the same in all rows are left out; `sweep_constants` has them.

    Args:
        sweep: as `SweepResult.to_json` gives it.
        is_brief: whether only the columns of the terminal are wanted.
    """
    varied = _varied(sweep)
    shown = [name for name in _telling(sweep, varied) if not is_brief or name in _BRIEF]
    heading = [key.split(".")[-1] for key in varied]
    rows = [
        [
            *(str(row[f"cell.{key}"]) for key in varied),
            row["mechanism"],
            *(_sweep_cell(row, name) for name in shown),
        ]
        for row in sweep["rows"]
    ]
    return [[*heading, "mechanism", *(COLUMNS[name] for name in shown)], *rows]


def sweep_constants(sweep: Document) -> str:
    """What is the same in all rows of a sweep, as a sentence; empty if nothing is."""
    rows = sweep["rows"]
    # A single row has all of its columns in the table.
    if len(rows) < 2:
        return ""
    said = [
        f"{COLUMNS[name]} {_sweep_cell(rows[0], name)}"
        for name in COLUMNS
        if len(_values_shown(rows, name)) == 1 and _sweep_cell(rows[0], name) not in ("-", "")
    ]
    return f"In all rows: {'; '.join(said)}." if said else ""


def crossing_rows(sweep: Document) -> list[list[str]]:
    """A heading, then a row for each place where the better of two mechanisms changes.

    Args:
        sweep: as `SweepResult.to_json` gives it.
    """
    x = sweep["sweep"]["x"]
    heading = ["better before", "better after", f"between {x}", "and", "interpolated"]
    rows = [
        [
            each["before"],
            each["after"],
            f"{each['low']:g}",
            f"{each['high']:g}",
            f"{each['at']:.1f}",
        ]
        for each in sweep["crossings"]
    ]
    return [heading, *rows]


def plan_rows(plan: Document, is_brief: bool = False) -> list[list[str]]:
    """A heading, then a row per candidate.

    Args:
        plan: as `Plan.to_json` gives it.
        is_brief: whether to leave out what follows from the other columns.
    """
    rows = [_PLAN_HEADING, *(_candidate_cells(plan, each) for each in plan["candidates"])]
    left_out = _FOLLOWS if is_brief else ()
    places = [place for place, name in enumerate(_PLAN_HEADING) if name not in left_out]
    return [[row[place] for place in places] for row in rows]


def timer_rows(plan: Document) -> list[list[str]]:
    """What a longer timer costs, and saves: a heading, then the least goal of each timer that meets
    the target.

    Args:
        plan: as `Plan.to_json` gives it.
    """
    heading = [
        "timer",
        "least report goal",
        "device updates",
        "min-sep, planned",
        "days",
        "rounds a day",
        "epsilon",
        "simulated at",
    ]
    timers = sorted(plan["timers"], key=lambda each: each["timer_hours"])
    return [heading, *(_timer_cells(plan, each) for each in timers)]


def fit_rows(fit: Document) -> list[list[str]]:
    """A heading, then a row for each run of the search.

    Args:
        fit: as `Fit.to_json` gives it.
    """
    rows = [
        [f"{run['value']:g}", fitted_min_sep(run), str(run["max_participations"] or "-")]
        for run in fit["runs"]
    ]
    return [[fit["key"], "min-sep (gap)", "max part."], *rows]


def fitted_min_sep(run: Document) -> str:
    """The min-sep of one run of a fit, or that it starved.

    Args:
        run: as `FittedRun.to_json` gives it.
    """
    return shown_min_sep(run["min_sep"]) if run["max_participations"] else "starved"


def canary_lines(canary: Document) -> Iterator[str]:
    """What canaries found, line by line: mechanism, pattern, mu, signal and noise, p-values, and
    what is wrong.

    Args:
        canary: as `CanaryResult.to_json` gives it.
    """
    yield (
        f"mechanism  {canary['mechanism']}, noise multiplier {given(canary['noise_multiplier'])}, "
        f"{canary['rounds']:,} rounds"
    )
    yield f"pattern    rounds {', '.join(map(str, canary['pattern']))}"
    yield (
        f"mu         claimed {up(canary['claimed_mu'])}, expected of the released rounds "
        f"{canary['expected_mu']:.4f}"
    )
    yield (
        f"           measured {canary['mu']:.4f} [{canary['mu_low']:.4f}, "
        f"{canary['mu_high']:.4f}] ({100 * canary['confidence']:g} %)"
    )
    yield f"signal     {canary['signal']:.4f} of what it should be; noise {canary['noise']:.4f}"
    p_values = [f"{test['name']} {test['p']:.3g}" for test in canary["tests"]]
    yield f"p-values   {', '.join(p_values)}"
    counts = canary["counts"]
    if counts is not None:
        yield (
            f"counts     noise multiplier {given(counts['noise_multiplier'])}, mu claimed "
            f"{up(counts['claimed_mu'])}, expected {counts['expected_mu']:.4f}, measured "
            f"{counts['mu']:.4f} [{counts['mu_low']:.4f}, {counts['mu_high']:.4f}]; noise "
            f"{counts['noise']:.4f} of what it should be"
        )
    for problem in canary["problems"]:
        yield f"WRONG      {problem}"


def _varied(sweep: Document) -> list[str]:
    return [key for key, values in sweep["sweep"]["vary"].items() if len(values) > 1]


def _telling(sweep: Document, varied: Sequence[str]) -> list[str]:
    """Columns that tell rows apart, and are not among what is varied."""
    # Of a single row every column would be the same in all rows, and none would be left.
    rows = sweep["rows"]
    if len(rows) <= 1:
        return [name for name in COLUMNS if _values_shown(rows, name) - {"-", ""}]
    return [name for name in COLUMNS if name not in varied and len(_values_shown(rows, name)) > 1]


def _values_shown(rows: Sequence[Document], name: str) -> set[str]:
    return {_sweep_cell(row, name) for row in rows}


def _sweep_cell(row: Document, name: str) -> str:
    value = row[name]
    # With one participation of a device there is no gap that could be told.
    if name == "min_sep" and row["max_participations"] == 1:
        return shown_min_sep(None)
    if name == "noise_multiplier":
        return shown_noise(value)
    if name == "days" and value is not None:
        return f"{value:.5g}"
    is_bound = name in BOUNDS and row[BOUNDS[name]] is False
    return f"{'<= ' if is_bound else ''}{significant(value)}"


def _candidate_cells(plan: Document, candidate: Document) -> list[str]:
    most = candidate["planned_max_participations"]
    planned = "-" if most is None else shown_min_sep(candidate["planned_min_sep"])
    days = candidate["days"]
    return [
        _verdict(plan, candidate),
        f"{candidate['timer_hours']:g} h",
        f"{candidate['report_goal']:,}",
        shown_noise(candidate["noise_multiplier"]),
        f"{candidate['scale']:.2g}",
        _min_seps_of_seeds(candidate["min_seps"]),
        planned,
        f"{candidate['population_over_goal']:,}",
        "-" if most is None else str(most),
        "-" if days is None else f"{days:.1f}",
        significant(candidate["epsilon"]),
        significant(candidate["guessed_epsilon"]),
    ]


def _verdict(plan: Document, candidate: Document) -> str:
    # The best candidate meets the target as well, so it is asked for first.
    if candidate == plan["best"]:
        return "plan"
    if candidate["note"]:
        return "starves"
    return "meets it" if candidate["meets_target"] else "misses it"


def _min_seps_of_seeds(min_seps: Sequence[int | None]) -> str:
    """From the least to the largest; one that does not exist is larger than any number."""
    if not min_seps:
        return "-"
    # Without a second participation the gap is longer than the run.
    found = sorted(math.inf if value is None else value for value in min_seps)
    ends = [None if value == math.inf else value for value in (found[0], found[-1])]
    # Equal ends are told once.
    return " to ".join(dict.fromkeys(map(shown_min_sep, ends)))


def _timer_cells(plan: Document, timer: Document) -> list[str]:
    hours = f"{timer['timer_hours']:g} h"
    least = timer["least"]
    if least is None or least["days"] is None:
        return [hours, "none", *(["-"] * 6)]
    is_full_size = least["scale"] == 1.0
    return [
        hours,
        f"{least['report_goal']:,}",
        f"{least['updates']:,}",
        shown_min_sep(least["planned_min_sep"]),
        f"{least['days']:.1f}",
        f"{plan['rounds'] / least['days']:.1f}",
        significant(least["epsilon"]),
        "full size" if is_full_size else f"{least['scale']:.2g} of the size",
    ]
