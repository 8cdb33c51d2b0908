"""Tables, figure and page of the answers to a question."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

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
from fedray.runs.answers import BY_KEY, KNOWN_HERE, Answers, answers_of
from fedray.runs.window_answers import Row, TrustAnswer, WindowAnswer

NAMED = 3
"""Rows of an answer that the headline names."""
POOLED = {
    "sum": "a device counts once in each window in which it came; intervals are of a normal law.",
    "mean": "windows are weighted by the devices that came; intervals are of a normal law.",
}
"""Meaning of the answer of several windows together, by `WindowAnswer.pooling`."""
HABIT = "Habit: quarters of the devices by their propensity to be eligible, from the least."
"""Meaning of the groups by habit."""


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
    """Returns the subject of answers: their trace, and the devices whose privacy is protected."""
    return replace(trace_subject(found.trace), unit="device")


def answers_headline(found: Answers) -> str:
    """Returns the answer of all windows together, or else of the last one, by the first trust
    model; its errors, the largest first; the bound that hides most of it; and who had come."""
    whole, everybody = found.whole, found.whole.coverage[0]
    first, has_rows = whole.answers[0], _has_rows(found)
    shown = [f"{row.label + ' ' if has_rows else ''}{_stated(row, first)}" for row in first.rows]
    rows = f"{counted(first.released, 'row')}, largest " if has_rows else ""
    errors = {
        "noise": first.noise if math.isnan(first.error) else first.error,
        "bounding what a device contributes": first.bounding,
        "devices that did not come": first.coverage,
    }
    known = [(abs(each), name) for name, each in errors.items() if math.isfinite(each)]
    listed = [f"by {name} {_number(each)}" for each, name in sorted(known, reverse=True)]
    over = " (root mean squares over rows)" if has_rows else ""
    of = _hours(whole)
    if found.pooled:
        of = f"{_window(whole)} in {of}"
    elif found.windows[1:]:
        of = f"{of}, the last of {len(found.windows)} windows"
    said = [
        f"By {_trusts(found)[0]}, {of}: {rows}{', '.join(shown[:NAMED]) or 'nothing'}.",
        f"Error {', '.join(listed)}{over}." if listed else "",
        _on_bounding(found) if first.is_mostly_bounded else "",
    ]
    least = min(whole.coverage[1:], key=lambda each: each.share, default=None)
    fewest = (
        "" if least is None else f"; fewest of {least.by} {least.label}: {_percent(least.share)}"
    )
    came, devices = (round(each / whole.windows) for each in (everybody.came, everybody.devices))
    share = f"{_percent(everybody.share)}{', mean of windows' if whole.windows > 1 else ''}"
    said.append(f"{came:,} of {counted(devices, 'device')} ({share}) came{fewest}.")
    return " ".join(filter(None, said))


def _stated(row: Row, answer: TrustAnswer) -> str:
    """Returns an estimate with its interval. Where bounding changes it more than noise does, an
    interval of bounded contributions would be read as one of what devices hold."""
    if answer.is_mostly_bounded:
        return f"{_number(row.estimate)} after bounding ({_number(row.of_came)} before)"
    return f"{_number(row.estimate)} ({_number(row.low)} to {_number(row.high)})"


def _on_bounding(found: Answers) -> str:
    keys = " and ".join(f"analytics.question.{each}" for each in found.remedy.split(" and "))
    remedy = f": {keys} would change it no more than noise does" if found.remedy else ""
    return f"Bounding changes the answer more than noise, so no interval is given{remedy}."


def answers_tables(found: Answers) -> list[Table]:
    """The largest rows, answers by window and trust model, errors, coverage, and privacy."""
    return [*tables_without_privacy(found), answers_table(found.privacy, found.is_instead)]


def tables_without_privacy(found: Answers) -> list[Table]:
    """The tables for beside an audit, which has that of privacy."""
    has_rows, together = _has_rows(found), found.pooled
    # One window has its largest row among the rows.
    has_windows = together is not None and together.answers[0].released > 0
    return [
        *([_rows_table(found)] if has_rows else ()),
        *([_windows_table(found)] if has_windows or not has_rows else ()),
        _errors_table(found),
        _coverage_table(found),
    ]


def _has_rows(found: Answers) -> bool:
    """Whether answers have several rows, or rows of keys that have names."""
    answers = (answer for window in found.windows for answer in window.answers)
    return found.analytics.question.kind in BY_KEY or any(each.released > 1 for each in answers)


def _trusts(found: Answers) -> list[str]:
    """Returns a name of each trust model; of two of a kind with their least number of devices."""
    trusts = found.analytics.trust
    kinds = [each.kind for each in trusts]
    return [
        f"{kind} of {counted(least, 'device')}"
        if kinds.count(kind) > 1 and (least := getattr(each, "least_devices", 0))
        else kind
        for each, kind in zip(trusts, kinds, strict=True)
    ]


class _Shown(NamedTuple):
    """An answer, and one of its rows, as a line of a table."""

    trust: str
    window: WindowAnswer
    answer: TrustAnswer
    row: Row | None

    @property
    def subject(self) -> Subject:
        return Subject(condition=self.trust, sample=_window(self.window))


def _by_window(found: Answers, label: str | None = None) -> list[_Shown]:
    """Returns the answers of each window by each trust model, and then all windows together, with
    the row of a name, or else the first one."""
    windows = [*found.windows, *([found.pooled] if found.pooled else ())]

    def row_of(answer: TrustAnswer) -> Row | None:
        return next((each for each in answer.rows if label in (None, each.label)), None)

    return [
        _Shown(trust, window, answer, row_of(answer))
        for window in windows
        for trust, answer in zip(_trusts(found), window.answers, strict=True)
    ]


def _trust_cell(found: Answers) -> dict[str, Callable[[_Shown], str]]:
    # The caption names an only trust model.
    return {"trust": lambda each: each.trust} if len(found.analytics.trust) > 1 else {}


def _figure_cells(found: Answers) -> dict[str, Callable[[_Shown], str]]:
    """Returns the cells of a row: exact, after bounding, and estimated."""

    def cell(name: str) -> Callable[[_Shown], str]:
        return lambda each: _number(getattr(each.row, name, None))

    is_held = found.analytics.question.kind in BY_KEY
    of_all, of_came = ("hold it", "hold it and came") if is_held else ("all devices", "came")
    confidence = f"{100 * found.whole.answers[0].confidence:g} %"
    return {
        of_all: cell("of_all"),
        of_came: cell("of_came"),
        "after bounding": cell("bounded"),
        "estimate": cell("estimate"),
        f"{confidence} low": cell("low"),
        f"{confidence} high": cell("high"),
    }


def _notes(found: Answers) -> list[str]:
    """Returns the meaning of the columns of `_figure_cells`."""
    of_all, of_came, *_ = _figure_cells(found)
    said = [
        f"{of_all.capitalize()}, {of_came}: exact, as only a simulation knows. After bounding: of "
        "what devices that came contribute within the bounds, which the estimate and its interval "
        "are of."
    ]
    if found.pooled:
        said.append(
            f"{found.pooled.pooling.capitalize()} of windows: {POOLED[found.pooled.pooling]}"
        )
    return said


def _rows_table(found: Answers) -> Table:
    """The largest rows by each trust model."""
    whole = found.whole
    rows = [
        _Shown(trust, whole, answer, row)
        for trust, answer in zip(_trusts(found), whole.answers, strict=True)
        for row in answer.rows[: found.top]
    ]
    cells = {
        "row": lambda each: getattr(each.row, "label", "-"),
        **_trust_cell(found),
        **_figure_cells(found),
    }
    return Table.of(
        f"Answers to the question {found.analytics.question.kind}, the largest rows",
        rows,
        cells,
        *_notes(found),
        subject=lambda each: each.subject,
    )


def _windows_table(found: Answers) -> Table:
    """A line for each window and trust model, and for all windows together: of the largest row, if
    there are several."""
    title = f"Answers to the question {found.analytics.question.kind}"
    label, notes = None, _notes(found)
    if _has_rows(found):
        label, notes = next(iter(found.whole.answers[0].labels), ""), []
        title = f"{title}, the row {label} by window"
    cells = {
        "window": lambda each: _window(each.window),
        **_trust_cell(found),
        **_figure_cells(found),
    }
    return Table.of(
        title, _by_window(found, label), cells, *notes, subject=lambda each: each.subject
    )


def _errors_table(found: Answers) -> Table:
    claims = {"exact": "", "bound": "<= ", "estimate": "about "}
    of_several = {
        "rows": lambda each: f"{each.answer.released:,}",
        "share of all": lambda each: _percent(each.answer.share),
        "inside": lambda each: _percent(each.answer.inside),
    }
    cells = {
        "window": lambda each: _window(each.window),
        **_trust_cell(found),
        **(of_several if _has_rows(found) else {}),
        "noise": lambda each: _number(each.answer.error),
        "noise as stated": lambda each: (
            "-"
            if math.isnan(each.answer.stated_error)
            else f"{claims[each.answer.error_claim]}{_number(each.answer.stated_error)}"
        ),
        "bounding": lambda each: _number(each.answer.bounding),
        "absent devices": lambda each: _number(each.answer.coverage),
        "mechanism": lambda each: each.answer.mechanism,
    }
    several = (
        "Root mean squares over rows. Share of all: exact answers of all devices at the released "
        "rows, over those at all. Inside: rows whose interval holds the answer after bounding. "
        if _has_rows(found)
        else ""
    )
    note = (
        f"{several}Noise: distance of the estimate from the answer after bounding; as stated: the "
        "mechanism's own standard error, <= a bound, about an estimate. Bounding: change of the "
        "exact answer of the devices that came. Absent devices: exact answer of the devices that "
        "came, at the number of all devices, minus that of all devices. No interval contains the "
        "last two, and only a simulation knows them."
    )
    table = Table.of(
        "Errors of the answers",
        _by_window(found),
        cells,
        details=("mechanism",),
        method=[note],
        subject=lambda each: each.subject,
    )
    return table.varied()


def _coverage_table(found: Answers) -> Table:
    """Devices that had come by group: on average, over several windows."""
    whole = found.whole

    def mean(number: int) -> str:
        return _number(round(number / whole.windows, 1))

    cells = {
        "group": lambda each: each.label if each.by == "all" else f"{each.by} {each.label}",
        "devices": lambda each: mean(each.devices),
        "came": lambda each: mean(each.came),
        "share": lambda each: _percent(each.share),
    }
    of = Subject(estimand="exact", sample=_window(whole))
    note = f"Means of the {whole.windows} windows." if whole.windows > 1 else ""
    return Table.of("Who had come", whole.coverage, cells, note, method=[HABIT], subject=of)


def answers_figures(found: Answers) -> list[Figure]:
    """The share of each group of devices that had come by the end of a window."""
    whole = found.whole
    shares = np.array([100 * each.share for each in whole.coverage], np.float64)
    labels = tuple(f"{each.by} {each.label}" for each in whole.coverage[1:])
    coverage = Series(
        "share",
        "rows",
        shares,
        -np.arange(shares.size, dtype=np.float64),
        labels=("all", *labels),
    )
    figure = Figure(
        "coverage",
        "Who had come",
        HABIT + (f" Means of the {whole.windows} windows." if whole.windows > 1 else ""),
        Axis("Devices that came (%)", starts_at_zero=False),
        Axis("Group", starts_at_zero=False),
        (coverage,),
        subject=Subject(estimand="exact", sample=_window(whole)),
    )
    return [figure]


def _window(window: WindowAnswer) -> str:
    """Returns the hours of a window, or the kind of pooling of several."""
    if window.pooling:
        return f"the {window.pooling} of {window.windows} windows"
    return _hours(window)


def _hours(window: WindowAnswer) -> str:
    return f"hours {round(window.start_hours, 2):g} to {round(window.end_hours, 2):g}"


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f} %"
