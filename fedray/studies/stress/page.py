"""Stress tests as tables, figures and a page."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fedray.audit.assumptions import OF_EVERY_AUDIT
from fedray.base.rounding import counted, given, significant, up
from fedray.mechanisms.loss import LOSS_NAMES
from fedray.report.figure import Axis, Figure, Mark, Series, file_name, needs_log
from fedray.report.page import render_study
from fedray.report.subject import Subject, condition_of
from fedray.report.table import CONDITIONS, NOT_PUBLISHED, RECOMMENDED, Table
from fedray.report.works import of_kind
from fedray.studies.compare import Comparison
from fedray.studies.stress.condition import ALONE, Condition, unjudged
from fedray.studies.stress.judged import StressRow, design_of
from fedray.studies.stress.outcome import (
    ERRORS,
    MOST_EXCEEDING,
    Outcome,
    beyond,
    case_of,
    chance_text,
    estimate_of,
    grouped,
    known,
    share,
    span,
)
from fedray.studies.stress.result import StressResult

MOST_PAIRS = 8
"""Pairs of estimate and truth up to which a figure names them."""
FILES = {
    **{"epsilon": "epsilon", "error": "error", "noise_factor": "noise-factor"},
    "regret": "cost-at-equal-epsilon",
}
"""Name of a figure's files, by the field that it shows."""


def stress_page(result: StressResult) -> str:
    """Returns the page of a stress test: the verdict, figures, tables."""
    return render_study(
        f"Misestimated min-sep{f', {result.subject}' if result.subject else ''}",
        result.verdict,
        [*result.figures(), *(each.under(result.of) for each in _of_each_condition(result))],
        result.tables(),
        result.to_json(),
        OF_EVERY_AUDIT,
        None if result.scenario is None else result.scenario.to_toml(),
        warnings=result.doubts,
    )


def stress_subject(result: StressResult) -> Subject:
    """Returns the subject of a stress test: its one condition, or all together; the trace or
    settings by name."""
    if not result.conditions:
        of = result.trace or Subject(result.subject or "given settings")
        return replace(of, loss=LOSS_NAMES[result.loss])
    return (result.robust or result.conditions[0]).of


def stress_tables(result: StressResult) -> list[Table]:
    """The rows of each truth; of simulated runs a table for each condition, the recommendation of
    each, and all of them together; then trained models."""
    # The other tables of a comparison are those of `fedray compare`.
    trained = [] if result.comparison is None else [_trained_table(result.comparison)]
    if not result.conditions:
        return [_rows_table(result), *trained]
    base, *others = result.conditions
    own = [_outcome_table(result, base, _recommended_note(base))]
    own += [_outcome_table(result, each, (each.answer,)) for each in others]
    if result.robust is not None:
        said = "; ".join(each.of.named for each in result.conditions)
        own += [
            _conditions_table(result, result.robust),
            _outcome_table(result, result.robust, (f"{CONDITIONS} {said}.",)),
        ]
    return [*own, *trained]


def _trained_table(comparison: Comparison) -> Table:
    """The means of a training, with the mechanism and its estimate in columns of their own, so that
    a column of a paper has room for them."""
    table = comparison.tables()[0]
    place = table.place_of("setting")
    difference = f"difference from {comparison.ranked[0].label}"
    if place is None or comparison.axes:
        return table
    heads = ("mechanism", "estimate", "k")
    rows = tuple((*design_of(row[place]), *row[:place], *row[place + 1 :]) for row in table.rows)
    columns = (*heads, *table.columns[:place], *table.columns[place + 1 :])
    of_rows = [dict(zip(heads, row, strict=False)) for row in rows]
    named = [" and ".join(f"{head}={text}" for head, text in own.items()) for own in of_rows]
    subjects = zip(table.row_subjects, named, strict=True)
    shown = tuple("difference from best" if each == difference else each for each in columns)
    short = tuple(tuple(c.replace(", too few to tell", " ?") for c in row) for row in rows)
    kind, estimate, k = design_of(comparison.ranked[0].label)
    best = f"from {kind}{f' for {estimate}, k {k}' if k else ''}"
    more = [("difference from best", best), ("?", "too few seeds to tell")]
    legend = (*more, *(each for each in table.legend if each[0] != difference))
    of = tuple(replace(each, condition=condition_of([name])) for each, name in subjects)
    return replace(table, columns=shown, rows=short, legend=legend, row_subjects=of)


def _title(result: StressResult, rows: Iterable[StressRow]) -> str:
    kinds = {row.is_enforced for row in rows if row.is_enforced is not None}
    source = ""
    if len(kinds) == 1:
        source = f"; the truth is what {'rules enforce' if True in kinds else 'was observed'}"
    target = f"epsilon {given(result.epsilon)} at delta {given(result.delta)}"
    return f"Cost of each estimate, with the least noise for {target} under it{source}"


def _legend(
    result: StressResult, runs: str = "", condition: str = "", all_runs: str = ""
) -> tuple[tuple[str, str], ...]:
    """Returns the meaning of the columns and marks of all tables.

    Args:
        result: the stress test.
        runs: statistic over the runs of a condition; empty without runs.
        condition: condition of figures of the worst one; empty for one condition.
        all_runs: statistic over the runs of all conditions.
    """
    target, error = given(result.epsilon), ERRORS[result.loss]
    of_runs = f"{runs}{condition}"
    of_cost = f"{runs}{', the largest of a condition' if condition else ''}"
    return (
        (f"runs above {target}", "runs that spend more than the target"),
        ("z", "noise multiplier, the least for the target under the estimate"),
        ("epsilon", f"what z spends under the truth{of_runs}"),
        ("worst condition", "the one in which z spends most"),
        (f"z for epsilon {target}", f"the least that keeps it under the truth{of_runs}"),
        (error, "of prefix sums at z and clip norm 1"),
        (f"{error} at z for epsilon {target}", "of prefix sums at clip norm 1"),
        (
            "extra error at z",
            f"{error} over the least of a mechanism of the same kind with the least z for it, "
            f"minus 1; unknown if the target is exceeded{all_runs}",
        ),
        (
            "cost at equal epsilon",
            f"error at z for epsilon {target} over the least of a mechanism of the same kind, "
            f"minus 1{of_cost}",
        ),
        ("†", f"with more noise than z, which exceeds epsilon {target}"),
        ("<=", "from an upper bound of the sensitivity"),
        ("-", "unknown"),
        ("*", "recommended"),
    )


def _rows_table(result: StressResult) -> Table:
    needed = f"z for epsilon {given(result.epsilon)}"
    cells: dict[str, Callable[[StressRow], str]] = {
        "mechanism": lambda row: row.mechanism,
        "rounds": lambda row: f"{row.rounds:,}",
        "estimate b, k": lambda row: _pair(*estimate_of(row)),
        "truth b, k": lambda row: (
            f"{'none' if row.max_participations == 1 else format(row.min_sep or 0, ',')}, "
            f"{row.max_participations or '-'}"
        ),
        "z": lambda row: significant(row.noise_multiplier),
        "epsilon": lambda row: _bounded(row, row.epsilon, 4),
        "observed epsilon": lambda row: _bounded(row, row.observed_epsilon, 4),
        needed: lambda row: _at_needed(row, row.noise_multiplier),
        f"{ERRORS[result.loss]} at z for epsilon {given(result.epsilon)}": lambda row: _at_needed(
            row, row.error
        ),
        "MaxLoss": lambda row: significant(row.max_loss),
        "RmsLoss": lambda row: significant(row.rms_loss),
        "max error": lambda row: significant(row.max_error),
        "RMS error": lambda row: significant(row.rms_error),
        "extra error at z": lambda row: share(None if row.exceeds else row.excess),
        "cost at equal epsilon": lambda row: _cost(row, row.regret, row.exceeds),
    }
    if not any(row.is_enforced for row in result.rows):
        del cells["observed epsilon"]
    notes = (_rests_on(result.rows),)
    reasons = {f"{row.mechanism}: {row.note}.": None for row in result.rows if row.note}
    reasons = (*_of_files(result.rows), *reasons)
    details = ("MaxLoss", "RmsLoss", "max error", "RMS error", "extra error at z")
    told = {"details": details, "method": ("Losses are errors at mu = 1.",)}
    told["legend"] = _legend(result)
    title = _title(result, result.rows)
    table = Table.of(title, result.rows, cells, *notes, *reasons, **told)
    return table.varied("rounds", "estimate b, k", "truth b, k")


def _of_files(rows: Iterable[StressRow]) -> list[str]:
    """Returns the kind of each mechanism with a name of its own, and a note if it was made for
    another loss or workload."""
    found: dict[str, None] = {}
    for row in rows:
        made_for = f"{row.mechanism} was made for {row.made_for}." if row.made_for else ""
        found |= dict.fromkeys((of_kind(row.mechanism, row.kind), made_for))
    return [note for note in found if note]


def _rests_on(rows: Sequence[StressRow]) -> str:
    """Returns what truths of runs are, and whether a guarantee may rest on them."""
    kinds = {row.is_enforced for row in rows if row.is_enforced is not None}
    if not kinds:
        return ""
    alone = f" {ALONE}" if any(row.max_participations == 1 for row in rows) else ""
    if kinds == {False}:
        return f"{NOT_PUBLISHED} the truth, which is what was observed.{alone}"
    rest = (
        f"{NOT_PUBLISHED} observed epsilons; the truth is what rules enforce at the recorded times"
    )
    return f"{rest}{', or what was observed if they enforce nothing' if False in kinds else ''}."


def _pair(n: int, b: int, k: int) -> str:
    """Returns b and k of an estimate, and n if b is beyond it."""
    beyond = f" (> {n:,} rounds)" if b > n else ""
    return f"{b:,}, {k:,}{beyond}"


def _bounded(row: StressRow | Outcome, value: float | None, decimals: int) -> str:
    if value is None:
        return "-"
    return f"{'<= ' if row.is_exact is False else ''}{up(value, decimals)}"


def _at_needed(row: StressRow, value: float | None) -> str:
    """Returns a figure in proportion to the noise, at the noise that keeps the target."""
    factor = row.noise_factor
    return _bound(row, None if factor is None or value is None else factor * value)


def _bound(row: StressRow | Outcome, value: float | None) -> str:
    """Returns a figure, marked if it is from a bound of the sensitivity."""
    return f"{'<= ' if row.is_exact is False else ''}{significant(value)}"


def _cost(row: StressRow | Outcome, value: float | None, is_beyond: bool) -> str:
    """Returns a cost at equal epsilon, marked if that takes more noise than was chosen."""
    mark = "† " if is_beyond and value is not None else ""
    if row.is_exact is False and value is not None:
        # A bound stays one only if it is rounded up.
        return f"{mark}<= {float(up(100.0 * value, 1)):+.1f} %"
    return f"{mark}{share(value)}"


def _shown(condition: Condition) -> list[Outcome]:
    """Returns each mechanism made for every estimate that is given or recommended for one."""
    best = {estimate_of(each) for each in condition.recommended}
    return sorted(
        (e for e in condition.outcomes if condition.is_given(e) or estimate_of(e) in best),
        key=estimate_of,
    )


def _recommended_note(base: Condition) -> tuple[str, ...]:
    """Returns the note on recommendations, which stands below the first table."""
    runs = max((each.runs for each in _shown(base)), default=0)
    return (
        f"{RECOMMENDED} the least extra error of the estimates with which at most "
        f"{100 * MOST_EXCEEDING:g} % of the runs exceed the target; never one above the least "
        "min-sep that the rules enforced, nor above that of every run. If no run of "
        f"{runs:,} exceeds it, the chance is below {chance_text(runs)} at 95 % confidence "
        "(Clopper and Pearson).",
    )


def _outcome_table(
    result: StressResult, condition: Condition, legend: tuple[str, ...] = ()
) -> Table:
    """A row for each mechanism and estimate that is given or recommended, over the runs of a
    condition."""
    best, shown = condition.recommended, _shown(condition)
    target, error = given(result.epsilon), ERRORS[result.loss]
    at_needed = f"{error} at z for epsilon {target}"
    is_robust = bool(condition.parts)

    def worst(each: Outcome) -> Outcome:
        return condition.worst(each)[1]

    def cost(each: Outcome, value: Callable[[Outcome], float | None]) -> str:
        """The largest cost of a condition."""
        of_parts = [own for _, own in condition.outcomes_in(each)]
        largest = max(of_parts, key=lambda own: -math.inf if (v := value(own)) is None else v)
        found = None if any(value(own) is None for own in of_parts) else value(largest)
        return _cost(largest, found, is_beyond=condition.risk(each) > 0)

    cells: dict[str, Callable[[Outcome], str]] = {
        "estimate b, k": lambda each: _pair(*estimate_of(each)),
        "mechanism": lambda each: f"{each.mechanism}{' *' if each in best else ''}",
        f"runs above {target}": beyond,
        "z": lambda each: significant(each.noise_multiplier),
        "epsilon": lambda each: _bounded(worst(each), worst(each).epsilons[1], 4),
        "worst condition": lambda each: condition.worst(each)[0].of.named,
        "epsilon 95 %": lambda each: _bounded(worst(each), worst(each).epsilons[2], 4),
        "observed epsilon": lambda each: _bounded(worst(each), worst(each).observed_epsilon, 4),
        error: lambda each: significant(each.error),
        "extra error at z": lambda each: share(None if condition.risk(each) else each.mean_excess),
        f"z for epsilon {target}": lambda each: _bound(
            worst(each), worst(each).noise_factors[1] * each.noise_multiplier
        ),
        at_needed: lambda each: _bound(worst(each), worst(each).needed_error),
        "cost at equal epsilon": lambda each: cost(
            each, lambda own: own.regrets[1] if own.regrets else None
        ),
        "cost 95 %": lambda each: cost(each, lambda own: own.regrets[2] if own.regrets else None),
    }
    if not is_robust:
        del cells["worst condition"]
    # The title says which truth it is, and a terminal has no room for observed epsilons.
    is_enforced = {row.is_enforced for row in condition.rows} <= {True, None}
    rests_on = _rests_on(condition.rows)
    if not any(row.is_enforced for row in condition.rows):
        del cells["observed epsilon"]
    lacking = unjudged(condition.rows)
    notes = (
        "" if is_enforced else rests_on,
        *legend,
        *_of_files(condition.rows),
        f"{counted(condition.starved, 'run')} starved, and do not count."
        if condition.starved
        else "",
        *(f"{name}: {reason}." for name, reason in lacking.items()),
    )
    table = Table.of(
        _title(result, condition.rows),
        shown,
        cells,
        *notes,
        details=("epsilon 95 %", "observed epsilon", "cost 95 %"),
        method=(rests_on if is_enforced else "", "95 %: the 0.95 quantile over the runs."),
        subject=condition.of,
        legend=_legend(
            result,
            ", median over the runs",
            " of the worst condition" if is_robust else "",
            f"; mean over the runs{' of all conditions' if is_robust else ''}",
        ),
    )
    table = table.varied("worst condition") if is_robust else table
    # A mechanism that cannot run in every truth is a row too.
    with_figures = {(each.mechanism, estimate_of(each)) for each in shown}
    wanted = {estimate_of(row): None for row in condition.rows if condition.is_given(row)}
    without = [
        (_pair(n, b, k), name, "see below", *"-" * (len(cells) - 3))
        for name in dict.fromkeys(row.mechanism for row in condition.rows)
        for n, b, k in dict.fromkeys((*wanted, *map(estimate_of, best)))
        if (name, (n, b, k)) not in with_figures
    ]
    return replace(table, rows=(*table.rows, *without))


def _conditions_table(result: StressResult, robust: Condition) -> Table:
    """A row for each condition: what rules enforce, which estimate to design for, and whether the
    given ones keep the target; then all conditions together."""
    target = given(result.epsilon)

    def of_best(text: Callable[[Outcome], str]) -> Callable[[Condition], str]:
        return lambda each: "-" if each.best is None else text(each.best)

    cells: dict[str, Callable[[Condition], str]] = {
        "condition": lambda each: each.of.condition,
        "true b": partial(_true, "min_sep"),
        "true k": partial(_true, "max_participations"),
        "design for b, k": of_best(lambda best: _pair(*estimate_of(best))),
        "best kind": of_best(lambda best: best.mechanism),
        "z": of_best(lambda best: significant(best.noise_multiplier)),
        ERRORS[result.loss]: of_best(lambda best: significant(best.error)),
        "other kinds": lambda each: (
            ", ".join(f"{other.mechanism} {share(more)}" for other, more in each.others) or "-"
        ),
        f"runs above {target}": of_best(beyond),
        f"given b that keep {target}": _keeping,
        "key": lambda each: each.what_if or "-",
        "largest epsilon with given b": _largest,
    }
    table = Table.of(
        f"Design for epsilon {target} at delta {given(result.delta)}, by condition",
        [*result.conditions, robust],
        cells,
        details=("true k", f"runs above {target}", "key", "largest epsilon with given b"),
        method=("Largest epsilon: of a mechanism, the 0.95 quantile over the runs.",),
        subject=lambda each: replace(
            each.of, population=result.population, runs="", setting=robust.of.setting
        ),
        legend=(
            ("true b", "what the rules enforce in the runs, or what was observed without rules"),
            ("z", "noise multiplier, the least for the target under the design's b and k"),
            (ERRORS[result.loss], "of prefix sums at z and clip norm 1"),
            (
                "other kinds",
                f"each with the estimate that is recommended for it: {ERRORS[result.loss]} over "
                "that of the best kind, minus 1",
            ),
            (
                f"given b that keep {target}",
                "with every mechanism, or with the mechanisms that stand behind b",
            ),
            ("-", "unknown"),
        ),
    )
    runs = f"{result.conditions[0].of.runs} of each condition"
    return replace(table, subject=replace(table.subject, runs=runs))


def _true(name: str, condition: Condition) -> str:
    values = known(condition.runs, name)
    return span(values, "{:,}".format) if values else "-"


def _of_given(condition: Condition) -> list[list[Outcome]]:
    return grouped(filter(condition.is_given, condition.outcomes), estimate_of)


def _keeping(condition: Condition) -> str:
    """Returns the given min-seps with which the target is kept, and with which mechanisms."""
    said = []
    for own in _of_given(condition):
        safe = [each.mechanism for each in own if not condition.risk(each)]
        only = "" if len(safe) == len(own) else f" ({', '.join(safe)})"
        said += [f"{own[0].estimated_min_sep:,}{only}"] if safe else []
    return ", ".join(said) or "none"


def _largest(condition: Condition) -> str:
    """Returns each given min-sep with the largest epsilon that it spends."""
    worst = [
        max(
            (found for each in own for _, found in condition.outcomes_in(each)),
            key=lambda each: each.epsilons[2],
        )
        for own in _of_given(condition)
    ]
    said = (f"{e.estimated_min_sep:,}: {_bounded(e, e.epsilons[2], 4)}" for e in worst)
    return "; ".join(said) or "-"


def stress_figures(result: StressResult) -> list[Figure]:
    """Error at equal epsilon and epsilon spent, noise factor and cost of each mechanism, over the
    truth or, of simulated runs, over the estimate; then trained models. Of several conditions the
    first two have a panel for each."""
    trained = [] if result.comparison is None else result.comparison.figures()
    if result.robust is not None:
        return [_of_all_conditions(result, each) for each in ("error", "epsilon")]
    of = result.conditions[0] if result.conditions else None
    own = {each: _figure(result, of, each) for each in FILES}
    # Errors of some mechanisms are unknown, though their epsilons are known.
    return [*(each for key, each in own.items() if each.series or key != "error"), *trained]


def _of_each_condition(result: StressResult) -> list[Figure]:
    """Figures of each of several conditions that have no panels; only pages have room for them."""
    of = result.conditions if result.robust is not None else ()
    return [_figure(result, each, key) for each in of for key in ("noise_factor", "regret")]


def _of_all_conditions(result: StressResult, key: str) -> Figure:
    """A figure with a panel for each condition, and a line for each mechanism."""
    panels = []
    for place, each in enumerate(result.conditions):
        own = _figure(result, each, key)
        lines = tuple(replace(series, kind="line") for series in own.series)
        # The note says once what the marks of all panels are.
        marks = tuple(replace(mark, text="") for mark in own.marks)
        name = f"stress-{FILES[key]}-{place + 1}"
        panels.append(replace(own, name=name, title=each.of.condition, series=lines, marks=marks))
    drawn = [each for each in panels if each.series]
    of = replace(stress_subject(result), condition=f"{len(drawn)} conditions")
    found = Figure.of_panels(f"stress-{FILES[key]}", _figure_title(result, key), drawn, of)
    note = "Medians over the simulated runs; bands from the 5 % to the 95 % quantile."
    if key == "epsilon":
        note += f" The dotted line is the target, {given(result.epsilon)}."
    note += " The grey line or area is the true min-sep."
    return replace(found, note=note)


def _figure_title(result: StressResult, key: str) -> str:
    return {
        "error": f"{ERRORS[result.loss]} at equal epsilon {given(result.epsilon)}",
        "epsilon": f"Epsilon spent, delta {given(result.delta)}",
        "noise_factor": f"z for epsilon {given(result.epsilon)} over z",
        "regret": "Cost over the best of its kind (%)",
    }[key]


def _figure(result: StressResult, condition: Condition | None, key: str) -> Figure:
    """A figure of the runs of a condition; of given settings or a trace without one."""
    title = _figure_title(result, key)
    target = {"error": None, "epsilon": result.epsilon, "noise_factor": 1.0, "regret": 0.0}[key]
    field = {"error": "needed_error"}.get(key, key)
    rows = result.rows if condition is None else condition.rows
    is_single = len({estimate_of(row) for row in rows}) == 1
    truths = {(row.min_sep, row.max_participations) for row in rows}
    is_one_truth = condition is not None or len(truths) == 1

    def x_of(row: Any) -> float:
        if is_one_truth:
            return float(row.estimated_min_sep)
        return float(row.min_sep or 0) / (1 if is_single else row.estimated_min_sep)

    def y_of(row: Any) -> Any:
        return getattr(row, field if condition is None else f"{field}s")

    kinds = {row.mechanism: row.kind for row in rows}
    every: Sequence[Any] = rows if condition is None else _shown(condition)
    drawn = [row for row in every if y_of(row) is not None]
    series = []
    # The exact points of a mechanism come first, so that bounds have its filled marker.
    ordered = sorted(sorted(drawn, key=x_of), key=lambda row: not row.is_exact)
    for own in grouped(ordered, lambda row: (row.mechanism, row.is_exact)):
        y = np.array(list(map(y_of, own)), np.float64) * (100.0 if key == "regret" else 1.0)
        low, y, high = (None, y, None) if condition is None else y.T
        name = f"{own[0].mechanism}{'' if own[0].is_exact else ' (upper bound)'}"
        ends = {"low": low, "high": high, "mechanism": kinds[own[0].mechanism]}
        series.append(Series(name, "points", np.array(list(map(x_of, own))), y, **ends))
    text = "target" if key == "epsilon" else ""
    marks = [] if target is None else [Mark(target, text, "y")]
    if is_one_truth:
        true = sorted({float(row.min_sep) for row in rows if row.min_sep})
        if true and all(row.max_participations != 1 for row in rows):
            marks.append(Mark(true[0], "truth", until=true[-1] if true[1:] else None))
    elif is_single:
        marks.append(Mark(float(rows[0].estimated_min_sep), "estimate"))
    elif len(cases := {case_of(row): row for row in rows if row.min_sep}) <= MOST_PAIRS:
        names = {f"{row.estimated_min_sep:,} to {row.min_sep:,}": row for row in cases.values()}
        marks += [Mark(x_of(row), name) for name, row in names.items()]
    x_title = "true min-sep" if is_single else "true over estimated min-sep"
    x_title = "estimated min-sep" if is_one_truth else x_title
    aim = given(result.epsilon)
    note = "Each point is a mechanism made for the estimate, with the noise for the target."
    if condition is not None:
        note = "Medians over the simulated runs; bars from the 5 % to the 95 % quantile."
    if key == "regret":
        note += (
            f" The cost is the {ERRORS[result.loss]} at equal epsilon over the least of a "
            "mechanism of the same kind, minus 1."
        )
    elif key == "error":
        note += f" The error is that of prefix sums at clip norm 1 and z for epsilon {aim}."
    elif key == "noise_factor":
        note += (
            " z is the noise multiplier that was chosen; above 1 it spends more than the target."
        )
    statistic = "" if condition is None else ", median"
    y_title = title.partition(",")[0]
    what_if = None if condition is None else condition.what_if
    figure_name = f"stress-{FILES[key]}"
    return Figure(
        f"{figure_name}-{file_name(f'if {what_if}')}" if what_if else figure_name,
        title,
        note,
        Axis(x_title, needs_log(each.x for each in series), False, None, is_single or is_one_truth),
        Axis(
            f"{y_title}{statistic}",
            key == "error" and needs_log(each.y for each in series),
            starts_at_zero=False,
        ),
        tuple(series),
        tuple(marks),
        *([] if condition is None else [condition.of]),
        ends=("5 % quantile", "95 % quantile"),
    )
