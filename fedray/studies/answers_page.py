"""Tables, figures and page of the answers to a question."""

import math
from collections.abc import Iterator

import numpy as np
import tomli_w

from fedray.base.rounding import counted
from fedray.report.audits import answers_table
from fedray.report.figure import Axis, Figure, Series, Shown
from fedray.report.page import render_study
from fedray.report.table import Table
from fedray.studies.answers import KNOWN_HERE, Answers, Row, TrustAnswer, WindowAnswer

MOST_SHOWN = 12
"""Most rows of an answer, and windows of the coverage, in a table; the document has all."""


def answers_page(found: Answers) -> str:
    """Returns the page of the answers."""
    question = found.analytics.question
    kinds = ", ".join(each.kind for each in found.analytics.trust)
    note = (
        f"The question {question.kind}, answered in {counted(len(found.windows), 'window')} at "
        f"epsilon {found.analytics.epsilon:g}, delta {found.analytics.delta:g} per device and "
        f"window, under the trust models {kinds}. {KNOWN_HERE}"
    )
    return render_study(
        "Answers to a question",
        note,
        answers_figures(found),
        answers_tables(found),
        found.to_json(),
        scenario_toml=tomli_w.dumps(found.trace.scenario),
    )


def answers_tables(found: Answers) -> list[Table]:
    """Answers by window and trust model, the largest rows, coverage, and privacy."""
    last = found.windows[-1]
    tables = [_answers_table(found)]
    if last.of_all is None:
        tables.append(_rows_table(last))
    return [*tables, _bias_table(found), _coverage_table(found), answers_table(found.privacy)]


def _answers_table(found: Answers) -> Table:
    rows = [(window, each) for window in found.windows for each in window.answers]
    is_single = all(len(each.rows) == 1 for _, each in rows)
    confidence = f"{100 * rows[0][1].confidence:g} %"
    own = {
        "estimate": lambda row: _number(row[1].rows[0].estimate),
        f"{confidence} from": lambda row: _number(row[1].rows[0].low),
        "to": lambda row: _number(row[1].rows[0].high),
    }
    of_several = {
        "rows": lambda row: f"{row[1].released:,}",
        "share of all": lambda row: _percent(row[1].share),
        "inside": lambda row: _percent(row[1].inside),
    }
    cells = {
        "window": lambda row: _window(row[0]),
        "came": lambda row: f"{row[0].came:,}",
        "trust": lambda row: row[1].trust,
        **(own if is_single else of_several),
        "error": lambda row: _number(row[1].error),
        "stated": lambda row: _number(row[1].stated_error),
        "is": lambda row: row[1].error_claim,
        "mechanism": lambda row: row[1].mechanism,
    }
    several = (
        "Rows: rows released. Share of all: exact answers of all devices at these rows, over that "
        f"of all rows. Inside: rows whose {confidence} interval holds the exact answer of the "
        "devices that came. "
    )
    return Table.of(
        f"Answers to the question {found.analytics.question.kind}",
        rows,
        cells,
        ("" if is_single else several)
        + "Error: distance (root mean square over rows) from the exact answer of the devices that "
        "came, with their contributions bounded; stated: what the mechanism promises.",
        details=("mechanism",),
    )


def _rows_table(window: WindowAnswer) -> Table:
    """The largest rows of a window, with the estimates of all trust models."""
    estimates = [{row.label: row for row in each.rows} for each in window.answers]
    merged: dict[str, Row] = {}
    for each in estimates:
        merged = {**each, **merged}
    largest = sorted(merged.values(), key=lambda row: -row.of_all)[:MOST_SHOWN]

    def estimate(place: int, label: str) -> str:
        row = estimates[place].get(label)
        return "-" if row is None else _number(row.estimate)

    head = ["row", "all devices", "came", *(each.trust for each in window.answers)]
    rows = [
        [
            row.label,
            _number(row.of_all),
            _number(row.of_came),
            *(estimate(place, row.label) for place in range(len(estimates))),
        ]
        for row in largest
    ]
    return Table.headed(
        f"The largest rows of the window {_window(window)}",
        [head, *rows],
        "Came: the exact answer of the devices that came, which the trust models estimate.",
    )


def _bias_table(found: Answers) -> Table:
    cells = {
        "window": _window,
        "devices": lambda window: f"{window.devices:,}",
        "came": lambda window: f"{window.came:,}",
        "share": lambda window: _percent(window.came / window.devices),
        "of those": lambda window: _number(window.of_came),
        "of all": lambda window: _number(window.of_all),
        "scale": lambda window: _number(window.scale),
        "coverage bias": lambda window: _number(window.coverage_bias),
        "bounding": lambda window: _number(window.bounding_bias),
    }
    is_single = all(window.of_all is not None for window in found.windows)
    kind = "the difference" if is_single else "the root mean square over rows"
    return Table.of(
        "Exact answers, and what the devices that did not come change",
        found.windows,
        cells,
        f"Coverage bias ({kind}): the exact answer of those that came, times scale, minus that of "
        "all devices. Bounding: the change by bounding what a device contributes. Both are known "
        "in a simulation only, and no interval contains them.",
    )


def _coverage_table(found: Answers) -> Table:
    rows = [(window, each) for window in found.windows[:MOST_SHOWN] for each in window.coverage]
    cells = {
        "window": lambda row: _window(row[0]),
        "by": lambda row: row[1].by,
        "group": lambda row: row[1].label,
        "devices": lambda row: f"{row[1].devices:,}",
        "came": lambda row: f"{row[1].came:,}",
        "missing": lambda row: f"{row[1].devices - row[1].came:,}",
        "share": lambda row: _percent(row[1].share),
    }
    return Table.of(
        "Coverage: who had come by the end of the window",
        rows,
        cells,
        "Habit: quarters of the devices by their propensity to be eligible, from the least.",
    )


def answers_figures(found: Answers) -> list[Shown]:
    """Answers and their errors by window, or the rows of the last window."""
    if found.windows[-1].of_all is not None:
        return [_by_window(found), _errors_by_window(found)]
    return [_by_row(found.windows[-1])]


def _by_window(found: Answers) -> Figure:
    x = np.array([window.end_hours for window in found.windows])
    exact = [
        Series("exact, devices that came", "line", x, _column(found, "of_came")),
        Series("exact, all devices", "line", x, _column(found, "of_all")),
    ]
    private = []
    for place, trust in enumerate(found.analytics.trust):
        rows = [window.answers[place].rows[0] for window in found.windows]
        y, low, high = np.array([(row.estimate, row.low, row.high) for row in rows]).T
        private.append(Series(trust.kind, "points", x, y, low=low, high=high))
    confidence = 100 * found.windows[0].answers[0].confidence
    return Figure(
        "answers",
        "Answers by window",
        f"Bars are the {confidence:g} % intervals of the private answers, which hold the exact "
        "answer of the devices that came, not that of all devices.",
        Axis("End of the window (hours)"),
        Axis(f"Answer ({found.analytics.question.kind})", starts_at_zero=False),
        (*exact, *private),
    )


def _errors_by_window(found: Answers) -> Figure:
    x = np.array([window.end_hours for window in found.windows])
    bias = Series("coverage bias", "line", x, np.abs(_column(found, "coverage_bias")))
    halves = []
    for place, trust in enumerate(found.analytics.trust):
        rows = [window.answers[place].rows[0] for window in found.windows]
        half = np.array([(row.high - row.low) / 2 for row in rows])
        halves.append(Series(f"half interval, {trust.kind}", "line", x, half))
    # A logarithmic axis has no place for an error of zero, such as at a coverage of all devices.
    both = [each for each in (bias, *halves) if (each.y > 0).all()]
    return Figure(
        "errors",
        "What waiting changes: coverage bias and intervals",
        "Where the bias is above the half interval of a trust model, its interval misleads about "
        "all devices. The bias is an absolute value.",
        Axis("End of the window (hours)"),
        Axis(f"Error ({found.analytics.question.kind})", is_log=True),
        tuple(both),
    )


def _column(found: Answers, name: str) -> np.ndarray:
    values = [getattr(window, name) for window in found.windows]
    return np.array([math.nan if each is None else each for each in values])


def _by_row(window: WindowAnswer) -> Figure:
    return Figure(
        "answers",
        f"Errors by row, window {_window(window)}",
        "Of the rows with the largest estimates: the exact answer of the devices that came across, "
        "the private answer up.",
        Axis("Exact answer of the devices that came", is_log=True),
        Axis("Private answer", is_log=True),
        tuple(_scattered(window.answers)),
    )


def _scattered(answers: tuple[TrustAnswer, ...]) -> Iterator[Series]:
    for each in answers:
        rows = [row for row in each.rows[:500] if row.of_came > 0 and row.estimate > 0]
        x = np.array([row.of_came for row in rows])
        yield Series(each.trust, "points", x, np.array([row.estimate for row in rows]))


def _window(window: WindowAnswer) -> str:
    return f"{window.start_hours:g} to {window.end_hours:g} h"


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f} %"
