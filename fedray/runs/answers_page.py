"""Tables, figure and page of the answers to a question."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import tomli_w

from fedray.audit.audit import Audit
from fedray.audit.questions import AnswerPrivacy
from fedray.audit.several_tasks import TasksAudit
from fedray.base.arrays import Float64Array
from fedray.base.rounding import counted, up
from fedray.report.audits import answers_table
from fedray.report.figure import Axis, Figure, Series
from fedray.report.page import render_study, write_own_page
from fedray.report.subject import Subject
from fedray.report.subjects import trace_subject
from fedray.report.table import Table
from fedray.runs.answers import BY_KEY, KNOWN_HERE, Answers, answers_of
from fedray.runs.coverage import HABITS
from fedray.runs.window_answers import (
    ADDITIVE,
    ALL,
    JOINT,
    Row,
    TrustAnswer,
    WindowAnswer,
    interval_kind,
)
from fedray.trace.schema import REPORT_FILE

NAMED = 3
"""Rows of an answer that the headline names."""
SHARE = "share of answers"
"""Heading of the estimate over the number of answers."""
ROW_HEIGHT = 0.6
"""Part of the height of a figure's row over which the trust models are spread."""
POOLED = {
    "sum": "a device counts once in each window in which it came, so figures are numbers of "
    "answers. A device-window is one device of the population in one window. Intervals are of a "
    "normal law.",
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
    beside = {"The report of the run": REPORT_FILE}
    write_own_page(answers.page(), audit.path / "answer.html", beside=beside)
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
    if found.ensured is not None:
        note += f" The claim {found.ensured[:12]} had to be ensured."
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
    whole = found.whole
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
    bounds = " and ".join(f"{key} {value:g}" for key, value in found.bounds.items())
    asked = found.analytics
    said += [
        f"Asked at epsilon {asked.epsilon:g}, delta {asked.delta:g} per device and window"
        f"{', with ' if bounds else ''}{bounds}.",
        _on_coverage(found),
        _on_least_group(whole),
        _on_repeated_windows(found),
    ]
    return " ".join(filter(None, said))


def _on_coverage(found: Answers) -> str:
    """Returns who answered, with the denominator of the answers."""
    whole, everybody = found.whole, found.whole.coverage[0]
    came, devices = (round(each / whole.windows) for each in (everybody.came, everybody.devices))
    share = _percent(everybody.share)
    if whole.windows == 1:
        return f"{came:,} of {counted(devices, 'device')} ({share}) came."
    return (
        f"{everybody.came:,} answers of {counted(found.devices, 'device')} in {whole.windows} "
        f"windows; in a window {came:,} of {counted(devices, 'device')} ({share}) came on average."
    )


def _on_least_group(whole: WindowAnswer) -> str:
    """Returns the group of which fewest came; empty if chance explains it. Devices that are never
    eligible cannot come, so their group is left out."""
    everybody, *groups = whole.coverage
    named = [each for each in groups if each.by != "use"]
    least = min(named, key=lambda each: each.share, default=everybody)
    deviation = math.sqrt(everybody.share * (1 - everybody.share) * whole.windows / least.devices)
    if everybody.share - least.share <= 3 * deviation:
        return ""
    of = f"{least.by} {least.label}"
    if (least.by, least.label) == ("habit", HABITS[0]):
        of = f"the quarter that is least often eligible ({of})"
    return f"Fewest came of {of}: {_percent(least.share)}."


def _on_repeated_windows(found: Answers) -> str:
    """Returns the cost of all windows and of a single one, if devices hold the same in all; else
    empty."""
    own = [each for each in found.privacy if each.unit == "device"]
    one, all_of = ([e for e in own if e.basis == basis] for basis in ("window", "enforced"))
    windows = {each.windows for each in all_of}
    is_same = found.analytics.values.kind != "evaluation"
    if not is_same or len(found.windows) < 2 or windows <= {1, None}:
        return ""

    def epsilons(rows: list[AnswerPrivacy]) -> str:
        known = [f"{up(each.epsilon)} ({each.trust})" for each in rows if each.epsilon is not None]
        return ", ".join(known)

    start, end = found.windows[0].start_hours, found.windows[-1].end_hours
    together, of_one = epsilons(all_of), epsilons(one)
    return (
        f"A device holds the same in every window here, so the {len(found.windows)} windows ask "
        f"the same thing, at epsilon {together} together. One window of {end - start:g} hours "
        f"would cost {of_one}: {counted(found.devices, 'device')} came in these hours."
    )


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
    """Returns the cells of a row: exact, after bounding, and estimated, with its interval and the
    share of the devices that came."""

    def cell(name: str) -> Callable[[_Shown], str]:
        return lambda each: _number(getattr(each.row, name, None))

    def share(each: _Shown) -> str:
        return "-" if each.row is None else _percent(each.row.estimate / each.window.came)

    names, is_held = found.column_names, found.analytics.question.kind in BY_KEY
    if found.pooled and found.pooled.pooling == "sum":
        names = {**names, "of_all": f"{names['of_all']} (device-windows)"}
    return {
        **{head: cell(name) for name, head in names.items()},
        **({SHARE: share} if is_held else {}),
        "interval": lambda each: interval_kind(
            found.analytics.question.kind, each.window, each.answer
        ),
    }


def _notes(found: Answers) -> list[str]:
    """Returns the meaning of the columns of `_figure_cells`."""
    names, kind = found.column_names, found.analytics.question.kind
    shown = [each for window in (*found.windows, found.whole) for each in window.answers]
    said = [
        f"{names['of_all'].capitalize()}, {names['of_came']}: exact, as only a simulation knows. "
        "After bounding: of what devices that came contribute within the bounds, which the "
        "estimate and its interval are of.",
        "Share of answers: the estimate over the answers, "
        f"{found.whole.came:,} of {counted(found.devices, 'device')}."
        if kind in BY_KEY
        else "",
        "Each row: an interval holds with its probability for one row. All rows: for all at once."
        if kind in JOINT
        else "",
        "After bounding only: bounding moves the answer more than noise does, so such an interval "
        "says little about what devices hold."
        if any(each.is_mostly_bounded for each in shown)
        else "",
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
    table = Table.of(
        f"Answers to the question {found.analytics.question.kind}, the largest rows",
        rows,
        cells,
        *_notes(found),
        subject=lambda each: each.subject,
    )
    return table.varied("interval")


def _windows_table(found: Answers) -> Table:
    """A line for each window and trust model, and for all windows together: of the largest row, if
    there are several."""
    title = f"Answers to the question {found.analytics.question.kind}"
    label, notes, has_rows = None, _notes(found), _has_rows(found)
    if has_rows:
        label, notes = next(iter(found.whole.answers[0].labels), ""), []
        title = f"{title}, the row {label} by window"
    figures = {
        head: cell
        for head, cell in _figure_cells(found).items()
        # The first table has it, and a narrow terminal no room for it.
        if not (has_rows and head == SHARE)
    }
    cells = {
        "window": lambda each: _window(each.window),
        **_trust_cell(found),
        **figures,
    }
    rows = _by_window(found, label)
    table = Table.of(title, rows, cells, *notes, subject=lambda each: each.subject)
    return table.varied("interval")


def _errors_table(found: Answers) -> Table:
    claims = {"exact": "", "bound": "<= ", "estimate": "about "}
    # A closed domain releases every row.
    is_open = found.analytics.question.kind in BY_KEY[1:]
    of_several = {
        "rows": lambda each: f"{each.answer.released:,}",
        **({"share of all": lambda each: _percent(each.answer.share)} if is_open else {}),
        "inside": lambda each: _percent(each.answer.inside),
    }
    cells = {
        "window": lambda each: _window(each.window),
        **_trust_cell(found),
        **(of_several if _has_rows(found) else {}),
        "by noise": lambda each: _number(each.answer.error),
        "noise as stated": lambda each: (
            "-"
            if math.isnan(each.answer.stated_error)
            else f"{claims[each.answer.error_claim]}{_number(each.answer.stated_error)}"
        ),
        "by bounding": lambda each: _number(each.answer.bounding),
        "by absent devices": lambda each: _number(each.answer.coverage),
        "mechanism": lambda each: each.answer.mechanism,
    }
    notes = [
        f"Errors have the unit of the answer{', root mean squares over rows' * _has_rows(found)}. "
        "By noise: the estimate less the answer after bounding; as stated: the mechanism's own "
        "standard error.",
        "By bounding: the change of the exact answer of the devices that came. By absent devices: "
        "that exact answer, scaled to all devices, less the exact answer of all. Only a simulation "
        "knows both, and no interval contains them.",
        _on_inside(found) if _has_rows(found) else "",
        "Share of all: of all that devices hold, the part at the released rows." if is_open else "",
    ]
    table = Table.of(
        "Errors of the answers",
        _by_window(found),
        cells,
        *notes,
        details=("mechanism",),
        method=["<= stands before a stated bound, about before an estimate."],
        subject=lambda each: each.subject,
    )
    return table.varied()


def _on_inside(found: Answers) -> str:
    """Returns the meaning of the column "inside", and how far it strays by chance."""
    from scipy.stats import binom

    first = found.whole.answers[0]
    meaning = "Inside: rows whose interval holds the answer after bounding"
    rows, kind = first.released, found.analytics.question.kind
    if not rows or interval_kind(kind, found.whole, first).startswith(ALL):
        return f"{meaning}."
    least = float(binom.ppf(1e-3, rows, first.confidence)) / rows
    return (
        f"{meaning}. Of {counted(rows, 'row')} at {100 * first.confidence:g} %, chance leaves "
        f"{_percent(least)} or more inside in 999 of 1,000 tables."
    )


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
    """The largest rows, or windows, with intervals per trust model; and the share of each group of
    devices that had come by the end of a window."""
    return [*_answer_figures(found), _coverage_figure(found)]


def _answer_figures(found: Answers) -> list[Figure]:
    """Returns the figure of the answers, as a list; empty without a row."""
    names, whole, is_held = found.column_names, found.whole, _has_rows(found)
    trusts, first = _trusts(found), whole.answers[0]
    if is_held:
        labels = first.labels[: found.top]
        by_label = [{row.label: row for row in each.rows} for each in whole.answers]
        rows = [[each.get(label) for label in labels] for each in by_label]
    else:
        labels = tuple(_hours(each) for each in found.windows)
        windows = [[e.rows[0] if e.rows else None for e in w.answers] for w in found.windows]
        rows = [list(each) for each in zip(*windows, strict=True)]
    if not any(row is not None for each in rows for row in each):
        return []
    step = ROW_HEIGHT / len(trusts)
    series = []
    for place, (trust, own) in enumerate(zip(trusts, rows, strict=True)):
        answers = [whole.answers[place]] if is_held else [w.answers[place] for w in found.windows]
        # An interval of bounded contributions would be read as an interval of all that they hold.
        has_interval = not any(each.is_mostly_bounded for each in answers)
        low, high = (_column(own, name) if has_interval else None for name in ("low", "high"))
        series.append(
            Series(
                f"estimate, {trust}",
                "rows",
                _column(own, "estimate"),
                _places(len(labels), ROW_HEIGHT / 2 - step * place),
                labels=labels,
                low=low,
                high=high,
            )
        )
    exact = _column(rows[0], "of_came")
    y = _places(len(labels), -ROW_HEIGHT / 2)
    series.append(Series(f"exact, {names['of_came']}", "rows", exact, y, labels=labels))
    withheld = any(each.low is None for each in series[:-1])
    note = (
        f"{'The largest rows' if is_held else 'Windows'}, under each trust model, with "
        f"{100 * first.confidence:g} % intervals, which a point hides if they are narrower. Only a "
        "simulation knows the exact answer."
    )
    if withheld:
        note += " An estimate without an interval is moved by bounding more than by noise."
    unit = "Answers that hold it" if found.analytics.question.kind in BY_KEY else "Answer"
    return [
        Figure(
            "answers",
            f"Answers to the question {found.analytics.question.kind}",
            note,
            Axis(unit, starts_at_zero=found.analytics.question.kind in ADDITIVE),
            Axis("Row" if is_held else "Window", starts_at_zero=False),
            tuple(series),
            subject=Subject(sample=_window(whole) if is_held else ""),
        )
    ]


def _column(rows: Sequence[Row | None], name: str) -> Float64Array:
    return np.array([getattr(row, name, math.nan) for row in rows], np.float64)


def _places(rows: int, above: float) -> Float64Array:
    """Returns the y of a number of rows, moved up by a part of a row."""
    return (above - np.arange(rows)).astype(np.float64)


def _coverage_figure(found: Answers) -> Figure:
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
    return Figure(
        "coverage",
        "Who had come",
        HABIT + (f" Means of the {whole.windows} windows." if whole.windows > 1 else ""),
        Axis("Devices that came (%)", starts_at_zero=False),
        Axis("Group", starts_at_zero=False),
        (coverage,),
        subject=Subject(estimand="exact", sample=_window(whole)),
    )


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
