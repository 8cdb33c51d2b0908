"""Sweeps and plans as tables and pages."""

from typing import Any

from fedray.audit.assumptions import OF_EVERY_AUDIT as ASSUMPTIONS
from fedray.report.page import PageTable, render_lines
from fedray.stress.plan import Candidate, Plan
from fedray.stress.run import SweepResult

SHOWN = 3.0
"""Times the target: epsilons beyond are in the table, not in the plot."""
_FIGURES = {
    "rounds": "n",
    "min_sep": "b",
    "max_participations": "k",
    "noise_multiplier": "z",
    "sensitivity": "sensitivity, (b, k)",
    "trace_sensitivity": "sensitivity, trace",
    "rms_loss": "RmsLoss",
    "max_loss": "MaxLoss",
    "regret": "regret",
    "rho": "rho",
    "epsilon": "epsilon",
    "days": "days",
    "note": "note",
}
_TITLES = {**_FIGURES, "min_sep": "min-sep", "sensitivity": "sensitivity", "noise_multiplier": "noise multiplier"}


def sweep_rows(result: SweepResult) -> list[list[str]]:
    """What is printed: a heading, then a row per cell and mechanism; sensitivities that are upper bounds are marked."""
    table = result.table()
    varied = [key for key, values in result.sweep.vary.items() if len(values) > 1]
    shown = [name for name in _FIGURES if any(row[name] not in (None, "") for row in table)]
    heading = [*(key.split(".")[-1] for key in varied), "mechanism", *(_FIGURES[name] for name in shown)]
    return [heading, *([*(_text(row[f"cell.{key}"]) for key in varied), row["mechanism"], *_cells(row, shown)] for row in table)]


def crossing_rows(result: SweepResult) -> list[list[str]]:
    """Where the better of two mechanisms changes."""
    rows = [["better before", "better after", f"between {result.sweep.x}", "and", "interpolated"]]
    return rows + [[c.before, c.after, f"{c.low:g}", f"{c.high:g}", f"{c.at:.1f}"] for c in result.crossings()]


def sweep_page(result: SweepResult) -> str:
    """The page of a sweep."""
    sweep = result.sweep
    tables = []
    crossings = crossing_rows(result)
    if len(crossings) > 1:
        tables.append(
            PageTable("Crossings", crossings, f"Where the lower {_TITLES[sweep.y]} changes from one mechanism to another.")
        )
    note = "Losses are at equal privacy (mu = 1). A sensitivity with <= is an upper bound: no exact one is known of that (b, k)."
    tables.append(PageTable("Cells", sweep_rows(result), note))
    marks = [(c.at, f"{c.at:.0f}") for c in result.crossings()]
    x = sweep.x.split(".")[-1].replace("_", " ")
    plane = (sweep.plane.split(".")[-1], _planes(result)) if sweep.plane is not None else None
    return render_lines(
        sweep.name, sweep.description, (x, _TITLES[sweep.y]), result.lines(), marks, tables, result.to_json(), ASSUMPTIONS, plane
    )


def plan_rows(plan: Plan) -> list[list[str]]:
    """What is printed: a heading, then a row per candidate."""
    heading = ["timer", "report goal", "z", "min-sep, seeds", "population / goal", "max part.", "days", "rho", "epsilon"]
    heading += ["if optimistic", ""]
    return [heading, *(_plan_cells(plan, each) for each in plan.candidates)]


def plan_page(plan: Plan) -> str:
    """The page of a plan."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for each in plan.candidates:
        for name, epsilon in (("", each.epsilon), (", if min-sep were population / goal", each.optimistic_epsilon)):
            if epsilon is not None and epsilon <= SHOWN * plan.target.epsilon:
                lines.setdefault(f"timer {each.timer_hours:g} h{name}", []).append((each.report_goal, epsilon))
    target, scenario = plan.target, plan.scenario
    note = (
        f"{scenario.population.devices:,} devices, {scenario.rounds.count:,} rounds, epsilon at most {target.epsilon:g} at delta "
        f"{target.delta:g}, {target.noise_per_report:.3g} of noise multiplier per report. {plan_sentence(plan)}"
    )
    title = f"A plan for epsilon {plan.target.epsilon:g}"
    tables = [PageTable("Candidates", plan_rows(plan), f"{plan.seeds} seeds each, simulated at {plan.scale:g} of the size.")]
    return render_lines(title, note, ("report goal", "epsilon"), lines, [], tables, plan.to_json(), ASSUMPTIONS)


def plan_sentence(plan: Plan) -> str:
    """The plan in words."""
    best = plan.best
    if best is None:
        return "No report goal and timer that were tried meet the target."
    return (
        f"An estimate from simulations, no guarantee: report goal {best.report_goal:,}, timer {best.timer_hours:g} h, noise "
        f"multiplier {best.noise_multiplier:.4g}: epsilon {best.epsilon:.3f} at min-sep {min(best.min_seps)} (population / report "
        f"goal would be {best.optimistic_min_sep}), "
        f"{best.updates(plan.scenario.rounds.count):,} device updates in {best.days:.1f} days."
    )


def _plan_cells(plan: Plan, each: Candidate) -> list[str]:
    rho, epsilon, days = (_text(value) for value in (each.rho, each.epsilon, each.days))
    seeds = f"{min(each.min_seps)} to {max(each.min_seps)}" if each.min_seps else "-"
    most = str(max(each.max_participations)) if each.max_participations else "-"
    verdict = "plan" if each == plan.best else "meets it" if each.meets(plan.target) else "starves" if each.starves else ""
    return [
        f"{each.timer_hours:g} h",
        f"{each.report_goal:,}",
        f"{each.noise_multiplier:.4g}",
        seeds,
        str(each.optimistic_min_sep),
        most,
        days,
        rho,
        epsilon,
        _text(each.optimistic_epsilon),
        verdict,
    ]


def _planes(result: SweepResult) -> dict[str, list[tuple[float, float, float]]]:
    """Points by mechanism and by the values that are on neither axis."""
    sweep, planes = result.sweep, {}
    assert sweep.plane is not None
    for each in result.cells:
        others = [
            f"{k.split('.')[-1]} {v}" for k, v in each.cell.values if k not in (sweep.x, sweep.plane) and len(sweep.vary[k]) > 1
        ]
        for row in each.rows:
            value = getattr(row, sweep.y)
            if value is not None:
                name = ", ".join([row.mechanism, *others])
                planes.setdefault(name, []).append((each.cell.get(sweep.x), each.cell.get(sweep.plane), value))
    return planes


def _cells(row: dict[str, Any], shown: list[str]) -> list[str]:
    bounds = {"sensitivity": "sensitivity_is_exact", "trace_sensitivity": "trace_is_exact"}
    return [("<= " if row.get(bounds.get(name, "")) is False else "") + _text(row[name]) for name in shown]


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.5g}" if isinstance(value, float) else str(value)
