"""Forecasts as tables, figures and a page."""

from datetime import UTC, datetime

import numpy as np

from fedray.base.rounding import counted
from fedray.report.figure import Axis, Figure, Series
from fedray.report.page import render_study
from fedray.report.subject import Subject
from fedray.report.table import Table
from fedray.studies.forecast.forecast import BROKEN, LEVEL, Break, Forecast
from fedray.studies.forecast.history import DAY

MADE = (
    "Estimates. Devices take part by their fitted activity, and rounds start at the fitted pace by "
    "hour, weekend and drift. Doubt about both is in the intervals. Rho and epsilon are those of "
    "the rounds of each continuation, as an audit after its last round would find them."
)


def forecast_subject(found: Forecast) -> Subject:
    """Returns the subject of a forecast: its trace, and the number of continuations."""
    runs = counted(found.seeds, "continuation")
    sample = f"{found.observed_rounds:,} of {found.planned_rounds:,} rounds"
    return Subject(found.trace.population, runs=runs, estimand="estimates", sample=sample)


def forecast_headline(found: Forecast) -> str:
    """Returns min-sep and participations of the end, which claimed limits break, and what the
    backtest missed."""
    return " ".join(filter(None, (_said(found), _missed(found))))


def _said(found: Forecast) -> str:
    b, k = found.row("min-sep").end, found.row("max participations").end
    said = (
        f"After {found.planned_rounds:,} rounds min-sep will be {b.low:,.0f} to {b.high:,.0f} and "
        f"the most participations {k.low:,.0f} to {k.high:,.0f} ({100 * LEVEL:g} % intervals)."
    )
    for each in found.breaks:
        if each.claimed.endswith(BROKEN):
            said += f" The claim {each.claimed.removesuffix(BROKEN)} is broken already."
            continue
        when = f", and then about {_when(each)}" if each.probability else ""
        said += f" The claim {each.claimed} breaks with probability {each.probability:.2f}{when}."
    return said


def _when(found: Break) -> str:
    """Returns when a limit breaks, in words."""
    assert found.day is not None
    assert found.rounds is not None, "it breaks in some continuation"
    at = f"day {found.day.median:.0f}, after {found.rounds.median:,.0f} rounds"
    return at if found.time is None else f"{at} ({_date(found.time)})"


def _date(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).date().isoformat()


def _missed(found: Forecast) -> str:
    """Returns a warning if the backtest missed min-sep or participations."""
    judged = [each for each in found.backtests if each.name != "days"]
    missed = [
        f"{each.name} was {each.happened:,.0f}, forecast from {each.rounds:,} rounds as "
        f"{each.forecast.low:,.0f} to {each.forecast.high:,.0f}"
        for each in judged
        if not each.is_inside
    ]
    if not missed:
        return ""
    shown = "; ".join(missed)
    return f"Warning: the backtest missed {len(missed)} of {len(judged)} figures ({shown})."


def forecast_tables(found: Forecast) -> list[Table]:
    """The end, claimed limits, and backtests."""
    ends = {
        "figure": lambda each: each.name,
        "now": lambda each: "-" if each.now is None else f"{each.now:,.4g}",
        "at the end": lambda each: f"{each.end.median:,.4g}",
        "90 % low": lambda each: f"{each.end.low:,.4g}",
        "90 % high": lambda each: f"{each.end.high:,.4g}",
    }
    how = (
        f"{found.timer.capitalize()}. Devices that have not come yet: from "
        f"{found.population_source}. Pace: {found.drift}."
        + (f" In force from now on: {found.in_force}." if found.in_force else "")
    )
    tables = [Table.of("Forecast", found.rows, ends, MADE, how)]
    if found.breaks:
        broken = {
            "claimed": lambda each: each.claimed,
            "probability": lambda each: f"{each.probability:.2f}",
            "day": lambda each: "-" if each.day is None else each.day.text,
            "after rounds": lambda each: "-" if each.rounds is None else each.rounds.text,
            "date (UTC)": lambda each: "-" if each.time is None else _date(each.time),
        }
        tables.append(Table.of("Claimed limits that break by the end", found.breaks, broken))
    if found.backtests:
        tested = {
            "figure": lambda each: each.name,
            "known rounds": lambda each: f"{each.rounds:,}",
            "forecast": lambda each: f"{each.forecast.median:,.4g}",
            "90 % low": lambda each: f"{each.forecast.low:,.4g}",
            "90 % high": lambda each: f"{each.forecast.high:,.4g}",
            "happened": lambda each: f"{each.happened:,.4g}",
            "inside": lambda each: "yes" if each.is_inside else "no",
        }
        note = f"Forecasts of the {found.observed_rounds:,} observed rounds from the first ones."
        of = Subject(sample=f"the {found.observed_rounds:,} observed rounds")
        tables.append(Table.of("Backtest", found.backtests, tested, note, subject=of))
    return tables


def forecast_figures(found: Forecast) -> list[Figure]:
    """Most participations and min-sep over the days, observed and continued."""
    begin = found.history.starts[0]
    rounds = np.arange(found.observed_rounds + 1, found.planned_rounds + 1, dtype=np.float64)
    days = np.array([each.starts for each in found.paths])
    median = (np.median(days, axis=0) - begin) / DAY
    figures = []
    for name, title, values in (
        ("min-sep", "Min-sep", [each.min_seps for each in found.paths]),
        ("participations", "Most participations", [each.most for each in found.paths]),
    ):
        low, middle, high = np.quantile(np.array(values, np.float64), (0.05, 0.5, 0.95), axis=0)
        series = Series("forecast", "line", rounds, middle, low=low, high=high)
        note = "Median and 90 % intervals of the continuations."
        axes = Axis("rounds", starts_at_zero=False), Axis(title)
        figures.append(Figure(name, f"{title} after each round", note, *axes, (series,)))
    low, high = (np.quantile((days - begin) / DAY, each, axis=0) for each in (0.05, 0.95))
    series = Series("forecast", "line", rounds, median, low=low, high=high)
    axes = Axis("rounds", starts_at_zero=False), Axis("day")
    figures.append(Figure("days", "Day of each round", "", *axes, (series,)))
    return figures


def forecast_page(found: Forecast) -> str:
    """Returns the page of a forecast."""
    most = max((each.probability for each in found.breaks), default=0.0)
    answer = "Likely to break" if most >= 0.5 else "May break" if most > 0.0 else "Likely to hold"
    return render_study(
        "Forecast",
        MADE,
        found.figures(),
        found.tables(),
        found.to_json(),
        verdict=_said(found),
        warnings=[each for each in (_missed(found), *found.notes) if each],
        standing="broken" if most >= 0.5 else "",
        answer=answer if found.breaks else "",
        is_open=(2, 2),
    )
