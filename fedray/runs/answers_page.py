"""Tables, figure and page of the answers to a question."""

import math

import numpy as np
import tomli_w

from fedray.audit.audit import Audit
from fedray.audit.several_tasks import TasksAudit
from fedray.base.rounding import counted
from fedray.report.audits import answers_table
from fedray.report.figure import Axis, Figure, Series
from fedray.report.page import render_study, write_own_page
from fedray.report.subject import Subject
from fedray.report.subjects import trace_subject
from fedray.report.table import Table
from fedray.runs.answers import KNOWN_HERE, Answers, WindowAnswer, answers_of

NAMED = 3
"""Rows of an answer that the headline names."""


def written_answers(audit: Audit) -> Answers:
    """Answers the question of a run that has just ended, whose code is trusted, and writes the
    answers and their page to its directory."""
    answers = answers_of(audit, trust_code=True)
    answers.write()
    write_own_page(answers.page(), audit.path / "answer.html")
    return answers


def written_evaluations(composition: TasksAudit) -> tuple[dict[str, Answers], list[str]]:
    """Returns the answers of a run's evaluations by task, written to their traces, and a sentence
    for each that has none."""
    audits = composition.audits
    found, unanswered = {}, []
    for name, audit in audits.items():
        if audit.scenario is None or (evaluation := audit.scenario.evaluation) is None:
            continue
        # A model without a round is not trained, so no device evaluated it.
        if evaluation.of in audits:
            found[name] = written_answers(audit)
        else:
            unanswered.append(f"Task {name}: no answer, as task {evaluation.of} committed no round")
    return found, unanswered


def answers_page(found: Answers) -> str:
    """Returns the page of the answers."""
    asked = found.analytics
    note = (
        f"The question {asked.question.kind}, answered in {counted(len(found.windows), 'window')} "
        f"at epsilon {asked.epsilon:g}, delta {asked.delta:g} per device and window. {KNOWN_HERE}"
    )
    return render_study(
        "Answers to a question",
        note,
        found.figures(),
        found.tables(),
        found.to_json(),
        scenario_toml=tomli_w.dumps(found.trace.scenario),
        verdict=found.headline,
    )


def answers_subject(found: Answers) -> Subject:
    """Returns the subject of answers: their trace."""
    return trace_subject(found.trace)


def answers_headline(found: Answers) -> str:
    """Returns the answer of the last window by the first trust model, the error that dominates it,
    and who had come."""
    window = found.windows[-1]
    first, everybody = window.answers[0], window.coverage[0]
    shown = [
        f"{row.label + ' ' if window.of_all is None else ''}{_number(row.estimate)} "
        f"({_number(row.low)} to {_number(row.high)})"
        for row in first.rows[:NAMED]
    ]
    rows = "" if window.of_all is not None else f"{counted(first.released, 'row')}, largest "
    noise = first.stated_error if math.isnan(first.error) else first.error
    errors = {"noise": noise, "bounding": window.bounding_bias, "coverage": window.coverage_bias}
    known = [(abs(each), name) for name, each in errors.items() if math.isfinite(each)]
    (_, most), *others = sorted(known, reverse=True) or [(0.0, "")]
    beside = " and ".join(f"{name} {_number(each)}" for each, name in others)
    error = f" Its largest error is {most}, {_number(abs(errors[most]))}, against {beside}."
    least = min(window.coverage[1:], key=lambda each: each.share, default=None)
    fewest = (
        "" if least is None else f"; fewest of {least.by} {least.label}: {_percent(least.share)}"
    )
    return (
        f"By {first.trust}, {_window(window)}: {rows}{', '.join(shown) or 'nothing'}."
        f"{error if most else ''} {everybody.came:,} of {counted(everybody.devices, 'device')} "
        f"({_percent(everybody.share)}) came{fewest}."
    )


def answers_tables(found: Answers) -> list[Table]:
    """The largest rows, answers by window and trust model, biases, and privacy."""
    return [*tables_without_privacy(found), answers_table(found.privacy, found.is_instead)]


def tables_without_privacy(found: Answers) -> list[Table]:
    """The tables for beside an audit, which has that of privacy."""
    last = found.windows[-1]
    rows = [] if last.of_all is not None else [_rows_table(last, found.top)]
    return [*rows, _answers_table(found), _bias_table(found)]


def _answers_table(found: Answers) -> Table:
    rows = [(window, each) for window in found.windows for each in window.answers]
    is_single = all(len(each.rows) == 1 for _, each in rows)
    confidence = f"{100 * rows[0][1].confidence:g} %"
    own = {
        "estimate": lambda row: _number(row[1].rows[0].estimate),
        f"{confidence} low": lambda row: _number(row[1].rows[0].low),
        f"{confidence} high": lambda row: _number(row[1].rows[0].high),
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
    note = (
        ("" if is_single else several)
        + "Error: distance (root mean square over rows) from the exact answer of the devices that "
        "came, with their contributions bounded; stated: the mechanism's own error."
    )
    title = f"Answers to the question {found.analytics.question.kind}"
    return Table.of(title, rows, cells, details=("mechanism",), method=[note]).varied()


def _rows_table(window: WindowAnswer, top: int) -> Table:
    """The largest rows of the first trust model, with the exact answers."""
    first = window.answers[0]
    cells = {
        "row": lambda row: row.label,
        "all devices": lambda row: _number(row.of_all),
        "came": lambda row: _number(row.of_came),
        "estimate": lambda row: _number(row.estimate),
        f"{100 * first.confidence:g} % low": lambda row: _number(row.low),
        f"{100 * first.confidence:g} % high": lambda row: _number(row.high),
    }
    title = f"The largest rows of {_window(window)}, trust model {first.trust}"
    return Table.of(title, first.rows[:top], cells)


def _bias_table(found: Answers) -> Table:
    cells = {
        "window": _window,
        "devices": lambda window: f"{window.devices:,}",
        "came": lambda window: f"{window.came:,}",
        "of those": lambda window: _number(window.of_came),
        "of all": lambda window: _number(window.of_all),
        "scale": lambda window: _number(window.scale),
        "coverage bias": lambda window: _number(window.coverage_bias),
        "bounding": lambda window: _number(window.bounding_bias),
    }
    note = (
        "Coverage bias: the exact answer of those that came, times scale, minus that of all "
        "devices. Bounding: the change by bounding what a device contributes. Both are root mean "
        "squares over several rows, known in a simulation only, and in no interval."
    )
    title = "Exact answers, and what the devices that did not come change"
    return Table.of(title, found.windows, cells, method=[note]).varied()


def answers_figures(found: Answers) -> list[Figure]:
    """The share of each group of devices that had come by the end of the last window."""
    window = found.windows[-1]
    shares = np.array([100 * each.share for each in window.coverage], np.float64)
    labels = tuple(f"{each.by} {each.label}" for each in window.coverage[1:])
    coverage = Series(
        "share",
        "rows",
        shares,
        -np.arange(shares.size, dtype=np.float64),
        labels=("all", *labels),
    )
    figure = Figure(
        "coverage",
        f"Who had come, {_window(window)}",
        "Habit: quarters of the devices by their propensity to be eligible, from the least.",
        Axis("Devices that came (%)", starts_at_zero=False),
        Axis("Group", starts_at_zero=False),
        (coverage,),
    )
    return [figure]


def _window(window: WindowAnswer) -> str:
    return f"{round(window.start_hours, 2):g} to {round(window.end_hours, 2):g} h"


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f} %"
