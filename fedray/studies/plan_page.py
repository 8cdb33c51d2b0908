"""Plans as sentences, tables, a figure, a page and the files of a directory."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tomli_w

from fedray.audit.assumptions import OF_EVERY_AUDIT
from fedray.base.rounding import counted, given, shown_min_sep, shown_noise, significant, up
from fedray.report.figure import Axis, Figure, Mark, Series, Shown, needs_log
from fedray.report.page import render_study
from fedray.report.table import Table
from fedray.studies.plan import Candidate, Plan, PlannedTimer, planned_scenario
from fedray.trace.provenance import package_versions

SHOWN = 3.0
"""Largest epsilon in the plot, as a multiple of the target."""
SCENARIO_FILE, MECHANISM_FILE, CLAIM_FILE = "scenario.toml", "mechanism.json", "claim.toml"


def plan_files(plan: Plan, command: str) -> dict[str, bytes]:
    """Returns the files of a plan's directory by name: page and JSON, and for a plan that was found
    its scenario, mechanism and claim. The page shows the command line."""
    files = {
        "report.html": plan_page(plan, command).encode(),
        "plan.json": (json.dumps({**plan.to_json(), "command": command}, indent=1) + "\n").encode(),
    }
    if plan.best is None:
        return files
    best = plan.best
    scenario, strategy = planned_scenario(plan.scenario, best, plan.has_cache)
    # The claim has the limits that the scenario enforces, so that an audit can confirm it.
    participation = scenario.participation
    claim = {
        "mechanism": MECHANISM_FILE,
        "noise_multiplier": best.noise_multiplier,
        "rounds": scenario.rounds.count,
        "max_participations": best.planned_max_participations,
        "rho": best.rho,
        "epsilon": best.epsilon,
        "delta": plan.target.delta,
    }
    # Without a device that takes part twice, no min-sep can be claimed.
    if best.planned_min_sep is not None:
        claim["min_sep"] = best.planned_min_sep
    # A claimed timer must hold for every device, and each of these keys breaks it for some.
    keeps_timer = (
        participation.timer_violators == 0.0
        and participation.clock_skew_hours == 0.0
        and participation.history_loss_per_day is None
        and participation.clock_changes_per_day is None
    )
    # Only a timer that starts at the report keeps a report and the next check-in so far apart.
    if keeps_timer and participation.timer_resets_on in ("accepted", "reported"):
        claim["timer_hours"] = best.timer_hours
    # A scenario finds its content files by their digests.
    for table in scenario.content_files:
        files[table.content_name] = table.content
    files[SCENARIO_FILE] = scenario.to_toml().encode()
    files[MECHANISM_FILE] = (json.dumps(strategy.model_dump(mode="json"), indent=1) + "\n").encode()
    files[CLAIM_FILE] = tomli_w.dumps(claim).encode()
    return files


def _nothing_found(plan: Plan) -> str:
    target = plan.target
    known = [(each.epsilon, each) for each in plan.candidates if each.epsilon is not None]
    closest = ""
    if known:
        epsilon, least = min(known, key=lambda pair: pair[0])
        closest = (
            f"The least was {up(epsilon)}, at report goal {least.report_goal:,} with a timer "
            f"of {least.timer_hours:g} h. "
        )
    return (
        f"No report goal and timer that were tried meet epsilon {given(target.epsilon)} at delta "
        f"{given(target.delta)}. {closest}Epsilon falls with more noise per report, fewer rounds, "
        "a larger population, and a larger report goal as long as rounds do not starve."
    )


def plan_sentences(plan: Plan) -> list[str]:
    """The answer of a plan, a short paragraph each: goal, timer, noise and epsilon; cost of the run
    at full size; the rules that epsilon rests on. Or that nothing meets the target."""
    best = plan.best
    rounds = plan.scenario.rounds
    if best is None:
        return [_nothing_found(plan)]
    # The best candidate met the target, so its figures are known.
    assert best.epsilon is not None
    assert best.planned_max_participations is not None
    assert best.days is not None
    seen = " and ".join(dict.fromkeys(shown_min_sep(each) for each in best.min_seps))
    limits = "one participation of each device"
    if best.planned_min_sep is not None:
        most = counted(best.planned_max_participations, "participation")
        limits = f"min-sep {best.planned_min_sep:,} and at most {most}"
    return [
        f"Report goal {best.report_goal:,}, timer {best.timer_hours:g} h, noise multiplier "
        f"{given(best.noise_multiplier)}: epsilon {up(best.epsilon)} at delta "
        f"{given(plan.target.delta)}, planned for {limits}.",
        f"The run at full size had min-sep {seen}; population / report goal is "
        f"{best.population_over_goal:,}. It takes {best.updates:,} device updates in "
        f"{best.days:.1f} days, {rounds.count / best.days:.1f} rounds a day. A run like it takes "
        "about as long; nothing guarantees it.",
        _pace_words(rounds.min_minutes_between),
        _rules_words(best),
    ]


def _rules_words(best: Candidate) -> str:
    keys = f"participation.max_participations = {best.planned_max_participations}"
    if best.planned_min_sep is not None:
        keys = f"participation.round_separation = {best.planned_min_sep} and {keys}"
    said = f"Epsilon rests on rules that devices keep: the scenario has {keys}."
    if best.enforced_days is None:
        return said
    return (
        f"{said} With these rules the run at full size takes {best.enforced_days:.1f} days and "
        f"has min-sep {shown_min_sep(best.enforced_min_sep)}."
    )


def _pace_words(minutes: float | None) -> str:
    if minutes is not None:
        return f"A round starts at least {minutes:g} minutes after the one before."
    return (
        "Rounds follow one another as fast as devices come. If yours are slower, a timer spans "
        "fewer rounds and min-sep is smaller: set rounds.min_minutes_between."
    )


def plan_page(plan: Plan, command: str = "") -> str:
    """Returns the page of a plan, which shows the command line that made it, if one did."""
    target = plan.target
    scenario = plan.scenario
    # The answer stands at the top of the page.
    *tables, answer = plan_tables(plan)
    note = (
        f"{scenario.population.devices:,} devices, {scenario.rounds.count:,} rounds, epsilon at "
        f"most {given(target.epsilon)} at delta "
        f"{given(target.delta)}, {shown_noise(target.noise_per_report, 6)} of noise multiplier per "
        f"report. {' '.join(answer.notes)}"
    )
    called = [("command", command)] if command else []
    made = [*called, ("fedray", package_versions().get("fedray", "unknown"))]
    tables = [*tables, Table.facts("How this page was made", made)]
    title = f"A plan for epsilon {given(target.epsilon)}"
    return render_study(title, note, plan_figures(plan), tables, plan.to_json(), OF_EVERY_AUDIT)


def plan_tables(plan: Plan) -> list[Table]:
    """Candidates, least goals by timer, and the answer, which has only notes."""
    how = (
        f"{plan.seeds} seeds each. Planned: with a margin below the seeds' min-seps, from their "
        "spread, that one more run falls short of once in twenty times. Size 1 is the whole "
        "population. If cycled: epsilon if min-sep were population / goal."
    )
    cells = {
        "verdict": lambda each: _verdict(plan, each),
        "timer": lambda each: f"{each.timer_hours:g} h",
        "report goal": lambda each: f"{each.report_goal:,}",
        "z": lambda each: shown_noise(each.noise_multiplier),
        "size": lambda each: f"{each.scale:.2g}",
        "min-sep, seeds": lambda each: _min_seps_of_seeds(each.min_seps),
        "planned": _planned_min_sep,
        "population / goal": lambda each: f"{each.population_over_goal:,}",
        "k": lambda each: _or_dash(str, each.planned_max_participations),
        "days": lambda each: _or_dash("{:.1f}".format, each.days),
        "epsilon": lambda each: significant(each.epsilon),
        "if cycled": lambda each: significant(each.guessed_epsilon),
    }
    candidates = Table.of(
        "Candidates",
        plan.candidates,
        cells,
        how,
        row_styles=["marked" if each == plan.best else "" for each in plan.candidates],
        # They follow from the other columns.
        details=("z", "population / goal", "if cycled"),
    )
    warnings = (f"WARNING: {each}" for each in plan.warnings)
    answer = Table.facts("", [], *plan_sentences(plan), *warnings)
    return [candidates, _timers_table(plan), answer]


def _timers_table(plan: Plan) -> Table:
    def cell(text: Callable[[Candidate], str]) -> Callable[[PlannedTimer], str]:
        return lambda row: _or_dash(text, row.least)

    cells = {
        "timer": lambda row: f"{row.timer_hours:g} h",
        "least report goal": lambda row: (
            "none" if row.least is None else f"{row.least.report_goal:,}"
        ),
        "device updates": cell(lambda each: f"{each.updates:,}"),
        "min-sep, planned": cell(lambda each: shown_min_sep(each.planned_min_sep)),
        "days": cell(lambda each: f"{each.days:.1f}"),
        "rounds a day": cell(lambda each: f"{each.rounds / (each.days or 1.0):.1f}"),
        "epsilon": cell(lambda each: significant(each.epsilon)),
        "simulated at": cell(
            lambda each: "full size" if each.is_full_size else f"{each.scale:.2g} of the size"
        ),
    }
    return Table.of(
        "What a longer timer costs",
        plan.timers,
        cells,
        "A longer timer raises min-sep, so that a smaller goal will do, and slows the rounds down.",
    )


def _verdict(plan: Plan, candidate: Candidate) -> str:
    # The best candidate meets the target as well, so it is asked for first.
    if candidate == plan.best:
        return "plan"
    if candidate.starves:
        return "starves"
    return "meets it" if candidate.meets_target else "misses it"


def _planned_min_sep(candidate: Candidate) -> str:
    if candidate.planned_max_participations is None:
        return "-"
    return shown_min_sep(candidate.planned_min_sep)


def _min_seps_of_seeds(min_seps: Sequence[int | None]) -> str:
    """From the least to the largest; a min-sep that does not exist is larger than any number."""
    if not min_seps:
        return "-"
    # Without a second participation the gap is longer than the run.
    found = sorted(min_seps, key=lambda each: math.inf if each is None else each)
    # Equal ends are shown once.
    return " to ".join(dict.fromkeys(map(shown_min_sep, (found[0], found[-1]))))


def _or_dash(text: Callable[[Any], str], value: Any) -> str:
    return "-" if value is None else text(value)


def plan_figures(plan: Plan) -> list[Shown]:
    """Epsilon of the candidates over report goal, with the target, the plan, and the goals at which
    its timer misses the target or starves."""
    most = SHOWN * plan.target.epsilon
    series = []
    for hours in dict.fromkeys(each.timer_hours for each in plan.candidates):
        for is_full_size, size in ((False, "smaller simulations"), (True, "full size")):
            points = [
                (each.report_goal, each.epsilon)
                for each in plan.candidates
                if (each.timer_hours, each.is_full_size) == (hours, is_full_size)
            ]
            series += _series(f"timer {hours:g} h, {size}", "points", points, most)
    # The guess depends on the goal only, so one line does for all timers.
    guesses = {each.report_goal: each.guessed_epsilon for each in plan.candidates}
    series += _series("if min-sep were population / goal", "line", sorted(guesses.items()), most)
    # Without points the axes still need values, and the target is one.
    goals = [goal for each in series for goal in each.x.tolist()] or [1.0]
    epsilons = [float(epsilon) for each in series for epsilon in each.y] or [plan.target.epsilon]
    figure = Figure(
        name="lines",
        title="Epsilon over report goal",
        note=f"Points are simulations, at the planned limits; epsilons above {most:g} are in the "
        "table only.",
        x=Axis("report goal", is_log=needs_log(goals), starts_at_zero=False),
        y=Axis(
            "epsilon",
            is_log=needs_log([*epsilons, plan.target.epsilon]),
            starts_at_zero=False,
            decimals=3,
        ),
        series=tuple(series),
        marks=(
            Mark(plan.target.epsilon, f"target {given(plan.target.epsilon)}", "y"),
            *_zones(plan, min(goals), max(goals)),
        ),
    )
    return [figure]


def _zones(plan: Plan, least: float, most: float) -> tuple[Mark, ...]:
    best = plan.best
    if best is None:
        return ()
    same = [each for each in plan.candidates if each.timer_hours == best.timer_hours]
    misses = [each.report_goal for each in same if not each.starves and not each.meets_target]
    starves = [each.report_goal for each in same if each.starves]
    marks = [Mark(best.report_goal, f"plan {best.report_goal:,}")]
    # A zone from the least goal to itself would be a line.
    if misses and max(misses) > least:
        marks.append(Mark(least, "misses the target", until=max(misses)))
    # Larger goals starve too, so the zone continues to the end of the axis.
    if starves:
        marks.append(Mark(min(starves), "starves", until=max(most, *starves)))
    return tuple(marks)


def _series(
    name: str, kind: Any, points: Iterable[tuple[int, float | None]], most: float
) -> list[Series]:
    shown = [(goal, epsilon) for goal, epsilon in points if epsilon is not None and epsilon <= most]
    if not shown:
        return []
    x, y = np.array(shown, np.float64).T
    return [Series(name, kind, x, y)]
