"""Stress tests as tables, figures and a page."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedray.audit.assumptions import OF_EVERY_AUDIT
from fedray.base.rounding import counted, given, significant, up
from fedray.mechanisms.loss import LOSS_NAMES
from fedray.report.figure import Axis, Figure, Mark, Series, needs_log
from fedray.report.page import render_study
from fedray.report.subject import Subject
from fedray.report.subjects import scenario_subject
from fedray.report.table import COLUMNS, NO_GUARANTEE, Table
from fedray.studies.compare_page import comparison_figures, comparison_tables
from fedray.studies.stress.judged import StressRow
from fedray.studies.stress.result import (
    ALONE,
    PUBLISHED,
    Outcome,
    StressResult,
    beyond,
    case_of,
    estimate_of,
    grouped,
    risk,
    share,
    true_limits,
)

MOST_PAIRS = 8
"""Pairs of estimate and truth up to which a figure names them."""
EXCESS = "Excess: error over the least of the kind with its own z, minus 1, if the target is kept."
LEGEND = (
    "z, noise multiplier; needed z, the least that keeps the target under the truth; error of "
    "prefix sums, at clip norm 1; regret, that at needed z over the least of the kind, minus 1; "
    "<=, from an upper bound of the sensitivity; -, unknown"
)
ERRORS = {"rms": "RMS error", "max": "max error"}
"""Heading of the error, by the loss."""


def stress_page(result: StressResult) -> str:
    """Returns the page of a stress test: the verdict, figures, tables."""
    return render_study(
        f"Misestimated min-sep{f', {result.subject}' if result.subject else ''}",
        result.verdict,
        result.figures(),
        result.tables(),
        result.to_json(),
        OF_EVERY_AUDIT,
        None if result.scenario is None else result.scenario.to_toml(),
    )


def stress_subject(result: StressResult) -> Subject:
    """Returns the subject of a stress test: the scenario, or the trace or settings by name."""
    if result.scenario is None:
        return Subject(result.subject)
    runs = len({(row.seed, row.what_if) for row in result.rows})
    return scenario_subject(result.scenario, *result.overrides or (), runs=counted(runs, "run"))


def stress_tables(result: StressResult) -> list[Table]:
    """The rows of each truth, or their distribution over simulated runs; then trained models."""
    # The other tables of a comparison are those of `fedray compare`.
    trained = [] if result.comparison is None else comparison_tables(result.comparison)[:1]
    own = _outcome_tables(result) if _is_simulated(result) else [_rows_table(result)]
    return [*own, *trained]


def _is_simulated(result: StressResult) -> bool:
    return any(row.seed is not None for row in result.rows)


def _title(result: StressResult) -> str:
    kinds = {row.is_enforced for row in result.rows if row.is_enforced is not None}
    source = f"; {PUBLISHED}" if result.subject == PUBLISHED else ""
    if len(kinds) == 1:
        source = "; truth as enforced" if True in kinds else "; truth as observed"
    if seeds := [row.seed for row in result.rows if row.seed is not None]:
        changed = " (changed)" if result.overrides else ""
        subject = f"{result.subject}{changed}: {result.setting}"
        which = f"seeds {min(seeds)} to {max(seeds)}" if len({*seeds}) > 1 else f"seed {seeds[0]}"
        source += f", {true_limits(result.rows)}; {which} of {subject}"
    target = f"epsilon {given(result.epsilon)} at delta {given(result.delta)}"
    return f"Made for the estimate, with the noise for {target} under it{source}"


def _rows_table(result: StressResult) -> Table:
    cells: dict[str, Callable[[StressRow], str]] = {
        "mechanism": lambda row: row.mechanism,
        "rounds": lambda row: f"{row.rounds:,}",
        "estimate b, k": lambda row: _made_for(*estimate_of(row)),
        "truth b, k": lambda row: (
            f"{'none' if row.max_participations == 1 else format(row.min_sep or 0, ',')}, "
            f"{row.max_participations or '-'}"
        ),
        "z": lambda row: "-" if row.noise_multiplier is None else up(row.noise_multiplier),
        "epsilon": lambda row: _bounded(row, row.epsilon, 4),
        "observed epsilon": lambda row: _bounded(row, row.observed_epsilon, 4),
        "needed z": lambda row: _at_needed(row, row.noise_multiplier),
        f"{ERRORS[result.loss]} at needed z": lambda row: _at_needed(row, row.error),
        "MaxLoss": lambda row: significant(row.max_loss),
        "RmsLoss": lambda row: significant(row.rms_loss),
        "max error": lambda row: significant(row.max_error),
        "RMS error": lambda row: significant(row.rms_error),
        "excess": lambda row: share(row.excess if (row.noise_factor or 0.0) <= 1.0 else None),
        "regret": lambda row: _regret(row, row.regret),
    }
    if not any(row.is_enforced for row in result.rows):
        del cells["observed epsilon"]
    notes = (_rests_on(result), f"{COLUMNS} {LEGEND}.")
    reasons = {f"{row.mechanism}: {row.note}.": None for row in result.rows if row.note}
    reasons = (*_made_for_others(result), *reasons)
    details = ("MaxLoss", "RmsLoss", "max error", "RMS error", "excess")
    told = {"details": details, "method": (EXCESS, "Losses are errors at mu = 1.")}
    table = Table.of(_title(result), result.rows, cells, *notes, *reasons, **told)
    return table.varied("rounds", "estimate b, k", "truth b, k")


def _made_for_others(result: StressResult) -> list[str]:
    """Returns a note for each mechanism that was made for another loss or workload."""
    found = {f"{row.mechanism} was made for {row.made_for}.": row.made_for for row in result.rows}
    return [note for note, made_for in found.items() if made_for]


def _rests_on(result: StressResult) -> str:
    """Returns what truths of runs are, and whether a guarantee may rest on them."""
    kinds = {row.is_enforced for row in result.rows if row.is_enforced is not None}
    if not kinds:
        return ""
    alone = f" {ALONE}" if any(row.max_participations == 1 for row in result.rows) else ""
    if kinds == {False}:
        return f"{NO_GUARANTEE} the truth, which is what was observed.{alone}"
    rest = (
        f"{NO_GUARANTEE} observed epsilons; the truth is what rules enforce at the recorded times"
    )
    return f"{rest}{', or what was observed if they enforce nothing' if False in kinds else ''}."


def _made_for(n: int, b: int, k: int) -> str:
    """Returns b and k of an estimate, and n if b is beyond it."""
    beyond = f" (> {n:,} rounds)" if b > n else ""
    return f"{b:,}, {k:,}{beyond}"


def _bounded(row: StressRow | Outcome, value: float | None, decimals: int) -> str:
    if value is None:
        return "-"
    return f"{'<= ' if row.is_exact is False else ''}{up(value, decimals)}"


def _at_needed(row: StressRow | Outcome, value: float | None) -> str:
    """Returns a figure in proportion to the noise, at the noise that keeps the target."""
    factor = row.noise_factors[1] if isinstance(row, Outcome) else row.noise_factor
    found = None if factor is None or value is None else factor * value
    return f"{'<= ' if row.is_exact is False else ''}{significant(found)}"


def _regret(row: StressRow | Outcome, value: float | None) -> str:
    if row.is_exact is False and value is not None:
        # A bound stays one only if it is rounded up.
        return f"<= {float(up(100.0 * value, 1)):+.1f} %"
    return share(value)


def _shown(result: StressResult) -> list[Outcome]:
    """Returns each mechanism made for every estimate that is given or recommended for one."""
    best = {estimate_of(each) for each in result.recommended}
    known = [each for each in result.outcomes if result.is_given(each) or estimate_of(each) in best]
    return sorted(known, key=estimate_of)


def _outcome_tables(result: StressResult) -> list[Table]:
    """A row for each mechanism and estimate that is given or recommended, over all runs; then for
    the given estimates over the runs of each what-if."""
    best, shown, error = result.recommended, _shown(result), ERRORS[result.loss]
    cells: dict[str, Callable[[Outcome], str]] = {
        "made for b, k": lambda each: _made_for(*estimate_of(each)),
        "mechanism": lambda each: f"{each.mechanism}{' *' if each in best else ''}",
        "exceed": beyond,
        "z": lambda each: up(each.noise_multiplier),
        "epsilon": lambda each: _bounded(each, each.epsilons[1], 4),
        "epsilon 95 %": lambda each: _bounded(each, each.epsilons[2], 4),
        "observed epsilon": lambda each: _bounded(each, each.observed_epsilon, 4),
        "needed z": lambda each: _at_needed(each, each.noise_multiplier),
        f"{error} at needed z": lambda each: _at_needed(each, each.error),
        error: lambda each: significant(each.error),
        "excess": lambda each: share(None if risk(each) else each.mean_excess),
        "regret": lambda each: _regret(each, each.mean_regret),
        "regret 95 %": lambda each: _regret(each, each.regrets[2] if each.regrets else None),
    }
    if not any(row.is_enforced for row in result.rows):
        del cells["observed epsilon"]
    starved = {(row.seed, row.what_if) for row in result.rows if row.max_participations is None}
    runs = max((each.runs for each in shown), default=0)
    notes = (
        f"Set: {', '.join(result.overrides)}." if result.overrides else "",
        _rests_on(result),
        f"{COLUMNS} exceed, runs that spend more than the target; {LEGEND}; *, recommended. "
        "Epsilons and needed z are medians over the runs, excess and regret means.",
        "* recommended: the least excess of the estimates with which at most 5 % of the runs "
        "exceed the target; never one above the least min-sep that the rules enforced, nor above "
        f"that of every run. If no run of {runs:,} exceeds it, the chance is below "
        f"{100 - 100 * 0.05 ** (1 / max(runs, 1)):.1f} % at 95 % confidence (Clopper and Pearson).",
        ""
        if result.scenario and result.scenario.participation.max_participations
        else "A k below ceil(n / b) rests on the simulated times; "
        "participation.max_participations secures it.",
        f"{counted(len(starved), 'run')} starved, and do not count." if starved else "",
        *_made_for_others(result),
        *(f"{name}: {reason}." for name, reason in result.unjudged.items()),
    )
    details = ("epsilon 95 %", error, "excess", "regret 95 %")
    method = (EXCESS, "95 %: the 0.95 quantile over the runs.")
    tables = [Table.of(_title(result), shown, cells, *notes, details=details, method=method)]
    # A mechanism that cannot run in every truth is a row too.
    known = {(each.mechanism, estimate_of(each)) for each in shown}
    estimates = [(each.rounds, each.min_sep, each.max_participations) for each in result.estimates]
    estimates = dict.fromkeys((*estimates, *map(estimate_of, best)))
    without = [
        (_made_for(n, b, k), name, "see below", *"-" * (len(cells) - 3))
        for name in dict.fromkeys(row.mechanism for row in result.rows)
        for n, b, k in estimates
        if (name, (n, b, k)) not in known
    ]
    tables[0] = replace(tables[0], rows=(*tables[0].rows, *without))
    for name in dict.fromkeys(each.what_if for each in result.outcomes_by_what_if):
        of_name = [each for each in result.outcomes_by_what_if if each.what_if == name]
        tables.append(Table.of(f"If {name}", of_name, cells, details=details))
    return tables


def stress_figures(result: StressResult) -> list[Figure]:
    """Epsilon spent, noise factor and regret of each mechanism, over the truth or, if truths are
    simulated, over the estimate; then trained models."""
    figures = (
        ("epsilon", f"Epsilon spent, delta {given(result.delta)}", result.epsilon),
        ("noise_factor", f"Noise factor, to keep epsilon {given(result.epsilon)}", 1.0),
        ("regret", f"Regret of {LOSS_NAMES[result.loss]} (%), at equal epsilon", 0.0),
    )
    trained = [] if result.comparison is None else comparison_figures(result.comparison)
    return [*(_figure(result, *figure) for figure in figures), *trained]


def _figure(result: StressResult, key: str, title: str, target: float) -> Figure:
    is_simulated = _is_simulated(result)
    is_single = len({estimate_of(row) for row in result.rows}) == 1
    is_one_truth = is_simulated or len({case_of(row)[3:] for row in result.rows}) == 1

    def x_of(row: Any) -> float:
        if is_one_truth:
            return float(row.estimated_min_sep)
        return float(row.min_sep or 0) / (1 if is_single else row.estimated_min_sep)

    def y_of(row: Any) -> Any:
        return getattr(row, f"{key}s" if is_simulated else key)

    kinds = {row.mechanism: row.kind for row in result.rows}
    every: Sequence[Any] = _shown(result) if is_simulated else result.rows
    drawn = [row for row in every if y_of(row) is not None]
    series = []
    # The exact points of a mechanism come first, so that bounds have its filled marker.
    ordered = sorted(sorted(drawn, key=x_of), key=lambda row: not row.is_exact)
    for own in grouped(ordered, lambda row: (row.mechanism, row.is_exact)):
        y = np.array(list(map(y_of, own)), np.float64) * (100.0 if key == "regret" else 1.0)
        low, y, high = y.T if is_simulated else (None, y, None)
        name = f"{own[0].mechanism}{'' if own[0].is_exact else ' (upper bound)'}"
        ends = {"low": low, "high": high, "mechanism": kinds[own[0].mechanism]}
        series.append(Series(name, "points", np.array(list(map(x_of, own))), y, **ends))
    marks = [Mark(target, "target" if key == "epsilon" else "", "y")]
    if is_one_truth:
        true = sorted({float(row.min_sep) for row in result.rows if row.min_sep})
        if true and all(row.max_participations != 1 for row in result.rows):
            marks.append(Mark(true[0], "truth", until=true[-1] if true[1:] else None))
    elif is_single:
        marks.append(Mark(float(result.rows[0].estimated_min_sep), "estimate"))
    elif len(cases := {case_of(row): row for row in result.rows if row.min_sep}) <= MOST_PAIRS:
        names = {f"{row.estimated_min_sep:,} to {row.min_sep:,}": row for row in cases.values()}
        marks += [Mark(x_of(row), name) for name, row in names.items()]
    x_title = "true min-sep" if is_single else "true over estimated min-sep"
    x_title = "estimated min-sep" if is_one_truth else x_title
    note = "Each point is a mechanism made for the estimate, with the noise for the target."
    if is_simulated:
        note = "Medians over the simulated runs; bars from the 5 % to the 95 % quantile."
    return Figure(
        f"stress-{key.replace('_', '-')}",
        title,
        note,
        Axis(x_title, needs_log(each.x for each in series), False, None, is_single or is_one_truth),
        Axis(title.partition(",")[0], starts_at_zero=False),
        tuple(series),
        tuple(marks),
    )
