"""Plans as sentences, tables, a figure, a page and the files of a directory."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tomli_w

from fedray.audit.assumptions import OF_EVERY_AUDIT
from fedray.base.rounding import counted, given, needed_noise, or_dash, shown_min_sep, up
from fedray.mechanisms.named import name_of
from fedray.report.figure import Axis, Figure, Mark, Series, needs_log
from fedray.report.page import render_study
from fedray.report.subject import Subject
from fedray.report.subjects import scenario_subject
from fedray.report.table import Table
from fedray.studies.plan import (
    LATE,
    PUBLISHED,
    Candidate,
    Plan,
    PlannedTimer,
    days_of_pace,
    planned_scenario,
    scale_of,
)
from fedray.studies.remedies import HALF_TRADE, NEARLY_ALL, NOISE, ONCE, PERSON, TRADE, Remedy
from fedray.studies.what_ifs import WhatIf, epsilon_at, most_mu
from fedray.trace.provenance import package_versions

ACCURACY = (
    "A plan trains nothing: a small run with the same noise on the mean shows what more noise or "
    "fewer rounds cost in accuracy (docs/timer.md)."
)
OFF_PACE = 0.05
"""Relative difference from the pace from which on a plan names its rounds a day."""
SCENARIO_FILE, MECHANISM_FILE, CLAIM_FILE = "scenario.toml", "mechanism.json", "claim.toml"


def plan_files(plan: Plan, command: str, again: Sequence[str] = ()) -> dict[str, bytes]:
    """Returns the files of a plan's directory by name: page and JSON, and for a plan that was found
    its scenario, mechanism and claim. The page shows the command lines, as `plan_page` does."""
    files = {
        "report.html": plan_page(plan, command, again).encode(),
        "plan.json": (json.dumps({**plan.to_json(), "command": command}, indent=1) + "\n").encode(),
    }
    if plan.best is None:
        return files
    best = plan.best
    # The best candidate met the target, so its figures are known.
    assert best.rho is not None
    assert best.epsilon is not None
    scenario, strategy = planned_scenario(plan.scenario, best)
    # The claim has the limits that the scenario enforces, so that an audit can confirm it.
    claim = {
        "mechanism": MECHANISM_FILE,
        "noise_multiplier": best.noise_multiplier,
        "rounds": scenario.rounds.count,
        "max_participations": best.planned_max_participations,
        # Rounded up, as figures for readers are.
        "rho": float(up(best.rho, 6)),
        "epsilon": float(up(best.epsilon)),
        "delta": plan.target.delta,
    }
    # Without a device that takes part twice, no min-sep can be claimed.
    if best.planned_min_sep is not None:
        claim["min_sep"] = best.planned_min_sep
    # A scenario finds its content files by their digests.
    for table in scenario.content_files:
        files[table.content_name] = table.content
    files[SCENARIO_FILE] = scenario.to_toml().encode()
    files[MECHANISM_FILE] = (json.dumps(strategy.model_dump(mode="json"), indent=1) + "\n").encode()
    files[CLAIM_FILE] = tomli_w.dumps(claim).encode()
    return files


def _nothing_found(plan: Plan) -> list[str]:
    """Returns the miss in a short sentence, then what would do, then how it came about."""
    target, near = plan.target, plan.nearest
    said = f"{_no_slack(plan)}Epsilon {given(target.epsilon)} of a {plan.judged_unit} is not met "
    said += "at delta "
    said += given(target.delta)
    if (kept := target.report_goal) is not None:
        noise = needed_noise(target.noise_per_report * kept)
        said += f" with report goal {kept:,} and noise multiplier {noise}"
        if target.noise_per_report == PUBLISHED:
            said += " (7/6500 of the goal, as published)"
    if near is None or near.judged_epsilon is None:
        return [f"{said}, whichever was tried.", *_own_words(plan), *_starved_at_full_size(plan)]
    goal = f"goal {near.report_goal:,} with " if kept is None else ""
    if near == plan.fallback:
        rounds = "" if _is_of_all(plan, near) else f"{counted(near.rounds, 'round')} of "
        said += f": every candidate starves. What does not is {rounds}{goal}timer "
        said += f"{near.timer_hours:g} h, which has {up(near.judged_epsilon)}"
    else:
        said += f": {goal}timer {near.timer_hours:g} h has {up(near.judged_epsilon)}"
    missed = (each for each in plan.candidates if not each.meets_target)
    known = (epsilon for each in missed if (epsilon := each.judged_epsilon))
    least = min(known, default=near.judged_epsilon)
    said += f", and none tried has less than {up(least)}." if least < near.judged_epsilon else "."
    found = {each.key: each for each in plan.found}
    if more := found.get(NOISE):
        said += f" It would be met with {_times_the_noise(near, more)} times the noise on the mean"
        said += _in_days(plan, more)
        trade = found.get(TRADE)
        same = "" if trade is None else f"{_remedy_words(plan, trade)}{_in_days(plan, trade)}"
        said += f"; or with the same noise: {same}." if same else "."
    elif near.meets_target:
        said += " That meets it."
    said += _of_person(plan)
    return [said, *_own_words(plan), *_starved_at_full_size(plan)]


def _no_slack(plan: Plan) -> str:
    """Returns the reason why no plan has the days that were asked for, if that is the pace."""
    if plan.stated_max_days is None:
        return ""
    return (
        f"{_pace_takes(plan)}: no slack in rounds.max_days={plan.stated_max_days:g}, whatever goal "
        f"and timer. The rest is planned with rounds.max_days={plan.scenario.rounds.max_days:g}. "
    )


def _of_person(plan: Plan) -> str:
    """Returns the epsilon of a person beside that of a device, or the other way round, as a
    sentence; empty without owners."""
    if plan.devices_of_person == 1:
        return ""
    if plan.target.unit == "person":
        of_device = None if plan.shown is None else plan.shown.epsilon
        return "" if of_device is None else f" A device has {up(of_device)}."
    found = plan.epsilon_of_person
    person = f"person with {plan.devices_of_person} devices"
    if found is None:
        return f" The epsilon of a {person} is not known."
    misses = "misses" if plan.misses_for_person else "meets"
    return f" A {person} has {up(found)}, which {misses} {given(plan.target.epsilon)}."


def _is_of_all(plan: Plan, candidate: Candidate) -> bool:
    """Whether a candidate has all rounds of the plan."""
    return candidate.rounds == plan.scenario.rounds.count


def _in_days(plan: Plan, remedy: Remedy) -> str:
    return "" if remedy.days is None else f" in {_days_words(plan, remedy.days)} days"


def _times_the_noise(near: Candidate, remedy: Remedy) -> str:
    z, goal = remedy.noise_multiplier or near.noise_multiplier, remedy.report_goal
    times = z / (goal or near.report_goal) / near.target.noise_per_report
    # The same noise is 1.00, whatever the last digits.
    return up(round(times, 6), 2)


def _remedies_table(plan: Plan, near: Candidate) -> Table:
    """Changes that would meet the target, a row each, and a note on the others. Of an answer: the
    noise with which a person meets it too."""
    people, is_of_person = plan.devices_of_person, plan.target.unit == "person"
    cells = {
        "change": lambda each: _remedy_words(plan, each),
        "epsilon of a device": lambda each: or_dash(
            up, _times_the_devices(plan, each.epsilon, 1 / people) if is_of_person else each.epsilon
        ),
        f"of a person with {people} devices": lambda each: or_dash(
            up, each.epsilon if is_of_person else _times_the_devices(plan, each.epsilon, people)
        ),
        "device updates": lambda each: (
            f"{(each.rounds or near.rounds) * (each.report_goal or near.report_goal):,}"
        ),
        "days": lambda each: or_dash(lambda days: _days_words(plan, days), each.days),
        "noise multiplier": lambda each: up(each.noise_multiplier or near.noise_multiplier),
        **_runs_column(plan.found, lambda each: _remedy_runs(plan, near, each)),
        "times the noise on the mean": lambda each: _times_the_noise(near, each),
    }
    if people == 1:
        del cells[f"of a person with {people} devices"]
    estimates = (
        f"Estimates from {min(each.scale for each in plan.remedies):.2g} of the size or more, with "
        f"a BLT of their own, timer {near.timer_hours:g} h unless a row has another; days of "
        f"fewer rounds at the same goal are in proportion. {ACCURACY}"
    )
    relaxed = f"All rows have rounds.max_days={plan.scenario.rounds.max_days:g}."
    is_failed = plan.best is None
    return Table.of(
        _remedies_title(plan, is_failed),
        plan.found,
        cells,
        *_would_not_do(plan),
        *_once_words(plan, near),
        estimates if is_failed else ACCURACY,
        relaxed if plan.stated_max_days is not None else "",
        subject=lambda each: Subject(
            condition=_remedy_words(plan, each) if is_failed else "",
            runs=_remedy_runs(plan, near, each),
            unit="" if people > 1 else "device",
        ),
    )


def _remedies_title(plan: Plan, is_failed: bool) -> str:
    if not is_failed:
        return "What would do for a person"
    # A row may change several things, which do only together.
    is_single = all(len(_remedy_words(plan, each).split(", ")) == 1 for each in plan.found)
    return "What would do, each by itself" if is_single else "What would do"


def _once_words(plan: Plan, near: Candidate) -> Iterable[str]:
    """Yields why the rounds in which each device comes once are as many as they are."""
    for each in plan.found:
        if each.key != ONCE or not each.rounds:
            continue
        share = each.rounds * near.report_goal / plan.scenario.population.devices
        # Rounded down, so that the shown share is not above the rule.
        said = f"Each device once: {each.rounds:,} rounds take {math.floor(100 * share)} % of the "
        said += "devices"
        if each.rounds < near.rounds:
            said += f", and {near.rounds:,} would take more than {100 * NEARLY_ALL:g} %, which is "
            said += "the most a plan counts on, or starve"
        if share > 1 - 2 * (1 - NEARLY_ALL):
            said += "; with 10 % fewer devices the run may starve"
        yield f"{said}."


def _times_the_devices(plan: Plan, epsilon: float | None, devices: float) -> float | None:
    """Returns epsilon of so many times the devices, or of a share of them: mu grows by it."""
    if not epsilon:
        return None
    delta, by_zcdp = plan.target.delta, plan.scenario.privacy.sent.adds_noise
    mu = devices * most_mu(epsilon, delta, by_zcdp=by_zcdp)
    return epsilon_at(mu, delta, by_zcdp=by_zcdp)


def _steps_table(plan: Plan) -> Table | None:
    """From the user's own settings to the answer or nearest miss, a step a row: mechanism first,
    then goal, timer and noise. None without own settings that end."""
    own, made, last = plan.own, plan.made, plan.shown
    if own is None or made is None or last is None or own.epsilon is None:
        return None
    rows = [
        (f"your settings, mechanism {_mechanism_words(plan)}", own),
        ("mechanism: a BLT made for them", made),
    ]
    settings = {
        "rounds": lambda each: f"{each.rounds:,}",
        "timer": lambda each: f"{each.timer_hours:g} h",
        "goal": lambda each: f"{each.report_goal:,}",
        "noise multiplier": lambda each: needed_noise(each.noise_multiplier),
    }
    changed = [f"{name} {of(last)}" for name, of in settings.items() if of(last) != of(made)]
    if changed:
        named = "the plan" if plan.best is not None else "the nearest miss"
        rows.append((f"then {', '.join(changed)}: {named}", last))
    return Table.of(
        "From your settings to " + ("the plan" if plan.best is not None else "the nearest miss"),
        rows,
        {
            "step": lambda row: row[0],
            "min-sep, planned": lambda row: shown_min_sep(row[1].planned_min_sep),
            "epsilon": lambda row: or_dash(up, row[1].judged_epsilon),
            **_runs_column(rows, lambda row: _runs_of(row[1])),
        },
        subject=lambda row: Subject(condition=row[0], runs=_runs_of(row[1]), unit=plan.target.unit),
    )


def _mechanism_words(plan: Plan) -> str:
    """Kind or name of the user's own mechanism, and whether the scenario states it."""
    privacy = plan.scenario.privacy
    name = privacy.mechanism.kind if privacy.strategy is None else name_of(privacy.strategy)
    # An override states all keys, so the value decides.
    is_default = privacy.mechanism == type(privacy).model_fields["mechanism"].default
    return f"{name}, {'the default' if is_default else 'as privacy.mechanism says'}"


def _remedy_runs(plan: Plan, near: Candidate, remedy: Remedy) -> str:
    """The runs from which a remedy was found; noise and rounds follow from those of the miss."""
    is_computed = remedy.key in (NOISE, PERSON, "rounds.count")
    return _runs_at(len(near.min_seps) if is_computed else plan.seeds, remedy.scale)


def _runs_column(
    rows: Sequence[Any], runs: Callable[[Any], str]
) -> dict[str, Callable[[Any], str]]:
    """Returns the column of the runs behind each row, unless the caption has those of all."""
    return {"runs": runs} if len(set(map(runs, rows))) > 1 else {}


def _runs_at(count: int, scale: float) -> str:
    size = "full size" if scale == 1.0 else f"{scale:.2g} size"
    return f"{counted(count, 'run')} at {size}"


def _runs_of(candidate: Candidate) -> str:
    """The runs of a candidate, with their size."""
    if not candidate.is_possible:
        return "not simulated"
    if candidate.starves:
        return f"starved{_runs_at(1, candidate.scale).removeprefix('1 run')}"
    return _runs_at(len(candidate.min_seps), candidate.scale)


def _would_not_do(plan: Plan) -> Iterable[str]:
    """Yields the changes by which no settings were found, and why."""
    names = {
        TRADE: "fewer, larger rounds with these reports in all",
        "participation.timer_hours": "a longer timer",
        "rounds.report_goal": "a larger goal with more devices",
        "population.devices": "more devices at this goal",
    }
    none = [each for each in plan.remedies if not each.is_found]
    whose = "a device" if plan.target.unit == "device" else f"each device of a {plan.judged_unit}"
    for one in sorted({each.epsilon for each in none if each.epsilon is not None}):
        changes = " and ".join(names[each.key] for each in none if each.epsilon == one)
        yield (
            f"Changes that are not enough: {changes}. At this noise one participation of {whose} "
            f"has epsilon {up(one)} with a BLT."
        )
    # Others might do.
    failed = [names[each.key] for each in none if each.epsilon is None]
    if failed:
        yield f"Not found: {', '.join(failed)}."


def _remedy_words(plan: Plan, remedy: Remedy) -> str:
    """The settings that differ from the answer or nearest miss, and its rounds if they are not
    those of the plan."""
    near = plan.shown
    rounds = None if near is None or _is_of_all(plan, near) else near.rounds
    rounds = remedy.rounds or rounds
    words = [counted(rounds, "round")] if rounds else []
    if remedy.devices:
        times = remedy.devices / plan.scenario.population.devices
        words.append(f"{times:.3g} times the devices ({remedy.devices:,})")
    words += [f"goal {remedy.report_goal:,}"] if remedy.report_goal else []
    words += [f"timer {remedy.timer_hours:g} h"] if remedy.timer_hours else []
    words += ["each device once"] if remedy.key == ONCE else []
    if remedy.key in (NOISE, PERSON):
        words.append(f"noise multiplier {up(remedy.noise_multiplier or 0.0)}")
    elif NOISE in remedy.key or _once_with_noise(plan, remedy):
        words.append("more noise")
    return ", ".join(words) + (", for a person" if remedy.key == PERSON else "")


def _once_with_noise(plan: Plan, remedy: Remedy) -> bool:
    """Whether a remedy in which each device comes once has more noise too."""
    z = 0.0 if plan.shown is None else plan.shown.noise_multiplier
    return remedy.key == ONCE and (remedy.noise_multiplier or 0.0) > z


def _days_words(plan: Plan, days: float) -> str:
    """The days of a run, with those it may take if few are left."""
    most = plan.scenario.rounds.max_days
    return f"{days:.1f} of {most:g}" if days >= LATE * most else f"{days:.1f}"


def _starved_at_full_size(plan: Plan) -> list[str]:
    """Returns the reason why the least goal that starved at full size did, if one did."""
    full = [each for each in plan.candidates if each.is_full_size and each.is_possible]
    starved = sorted((each for each in full if each.starves), key=lambda each: each.report_goal)
    return [
        f"Goal {each.report_goal:,} with a timer of {each.timer_hours:g} h starves at full size: "
        f"{each.note}."
        for each in starved[:1]
    ]


def plan_verdict(plan: Plan) -> str:
    """Returns the goal, timer, noise and epsilon of a plan; or its nearest miss."""
    return plan_sentences(plan)[0] if plan.best else " ".join(_nothing_found(plan))


def plan_sentences(plan: Plan) -> list[str]:
    """The answer of a plan, a short paragraph each: goal, timer, noise and epsilon; cost of the run
    at full size; the rules that epsilon rests on. Or that nothing meets the target."""
    best = plan.best
    rounds = plan.scenario.rounds
    if best is None:
        return _nothing_found(plan)
    # The best candidate met the target, so its figures are known.
    assert best.judged_epsilon is not None
    assert best.planned_max_participations is not None
    assert best.days is not None
    seen = " and ".join(dict.fromkeys(shown_min_sep(each) for each in best.min_seps))
    # All at this timer, as min-sep depends on it; candidates are in order of goal.
    below = [
        f" Goal {each.report_goal:,} with a timer of {each.timer_hours:g} h misses the target."
        for each in plan.candidates
        if each.timer_hours == best.timer_hours
        and each.report_goal < best.report_goal
        and not each.meets_target
    ]
    is_met = f"Epsilon {given(plan.target.epsilon)} of a {plan.judged_unit} can be met"
    if plan.misses_for_person:
        found, people = plan.epsilon_of_person, f"a person with {plan.devices_of_person} devices"
        is_met = f"A device meets epsilon {given(plan.target.epsilon)}, and "
        is_met += f"{people} misses it ({up(found)})" if found else f"that of {people} is not known"
    person = "" if plan.misses_for_person else _of_person(plan)
    pace = _pace_words(plan, best)
    return [
        f"{_no_slack(plan)}{is_met}: {counted(best.rounds, 'round')} of "
        f"{best.report_goal:,} reports, timer {best.timer_hours:g} h and noise multiplier "
        f"{needed_noise(best.noise_multiplier)} give {up(best.judged_epsilon)} at delta "
        f"{given(plan.target.delta)}, planned for {_limits_words(best)}.{person}"
        + "".join([*below[-1:], *(f" {each}" for each in (*pace, *_own_words(plan)))]),
        f"The run at full size had min-sep {seen}; population / report goal is "
        f"{best.population_over_goal:,}. It takes {best.updates:,} device updates in "
        f"{best.days:.1f} days, {rounds.count / best.days:.1f} rounds a day. A run like it takes "
        f"about as long; nothing guarantees it. {ACCURACY}",
        NO_PACE if rounds.min_minutes_between is None else "",
        _rules_words(best),
    ]


def _limits_words(candidate: Candidate) -> str:
    if candidate.planned_min_sep is None:
        return "one participation of each device"
    most = counted(candidate.planned_max_participations or 1, "participation")
    return f"min-sep {candidate.planned_min_sep:,} and at most {most}"


def _own_words(plan: Plan) -> list[str]:
    """Returns whether the user's own settings meet the target, if the plan tried them, and how
    their noise differs from that of the plan."""
    if (own := plan.own) is None:
        return []
    but = "But the" if own.meets_target and plan.best is None else "The"
    said = f"{but} scenario's own settings, {counted(own.rounds, 'round')} of "
    said += f"{own.report_goal:,} reports, timer {own.timer_hours:g} h and noise multiplier "
    said += f"{needed_noise(own.noise_multiplier)}, "
    if own.starves:
        return [f"{said}{'starve.' if own.is_possible else f'have no epsilon: {own.note}.'}"]
    found = own.judged_epsilon
    epsilon = "no known epsilon" if found is None else f"epsilon {up(found)}"
    said += (
        f"{'meet' if own.meets_target else 'miss'} the target: {epsilon} in "
        f"{own.days or 0.0:.1f} days with their own mechanism ({_mechanism_words(plan)}), "
    )
    if plan.made is not None and plan.made.judged_epsilon is not None:
        said += f"{up(plan.made.judged_epsilon)} with a BLT made for them, "
    said += f"in runs at {own.scale:.2g} of the size."
    if plan.best is not None:
        times = plan.target.noise_per_report / own.target.noise_per_report
        noise = "their" if math.isclose(times, 1.0) else f"{times:.3g} times their"
        said += f" The plan has {noise} noise on the mean."
    return [said]


def _rules_words(best: Candidate) -> str:
    rules = {"round_separation": best.planned_min_sep, "max_participations": best.cap}
    keys = " and ".join(f"participation.{name} = {each}" for name, each in rules.items() if each)
    said = f"Epsilon rests on rules that devices keep: the scenario has {keys}."
    if best.enforced_days is None:
        return said
    apart = (best.enforced_min_sep or best.rounds) - (best.planned_min_sep or best.rounds)
    more = (
        f", {apart:,} more than the rule: the timer and the supply of devices keep rounds apart "
        "too, and an audit counts the timer"
    )
    return (
        f"{said} Publish it once an audit of the real run confirms the claim. With these rules the "
        f"run at full size takes {best.enforced_days:.1f} days and has min-sep "
        f"{shown_min_sep(best.enforced_min_sep)}{more if apart > 0 else ''}."
    )


NO_PACE = (
    "Rounds follow one another as fast as devices come. If yours are slower, a timer spans fewer "
    "rounds and min-sep is smaller: set rounds.min_minutes_between."
)
"""Caveat of a plan without a pace."""


def _pace_words(plan: Plan, candidate: Candidate) -> list[str]:
    """Returns the rounds a day and the waits against the pace of the scenario, if they differ."""
    minutes, days = plan.scenario.rounds.min_minutes_between, _days(candidate)
    longest, median = candidate.longest_gap_minutes, candidate.median_gap_minutes
    if minutes is None or not days:
        return []
    a_day, wanted = candidate.rounds / days, 1440.0 / minutes
    is_kept = a_day >= (1 - OFF_PACE) * wanted
    if longest is None or median is None or (is_kept and longest < 2 * minutes):
        return []
    of_days = f"{a_day:.1f} rounds a day" + ("" if is_kept else f" in place of {wanted:.3g}")
    return [
        f"The pace of a round every {minutes:g} minutes is not kept: {of_days}, a median of "
        f"{median:.0f} minutes from one to the next, and {longest:,.0f} at the longest."
    ]


def plan_page(plan: Plan, command: str = "", again: Sequence[str] = ()) -> str:
    """Returns the page of a plan, which shows the command line that made it, if one did, and those
    that plan each remedy that was found, in order."""
    target = plan.target
    scenario = plan.scenario
    note = (
        f"{scenario.population.devices:,} devices, {scenario.rounds.count:,} rounds, epsilon of a "
        f"{plan.judged_unit} at most {given(target.epsilon)} at delta "
        f"{given(target.delta)}, noise_per_report {needed_noise(target.noise_per_report, 6)} "
        f"(noise multiplier over report goal); the answer has the least {plan.least}."
    )
    made = f"Made by fedray {package_versions().get('fedray', 'unknown')}"
    note += f" {made}{f': {command}' if command else ''}."
    tables = plan.tables()[plan.best is not None :]
    if again:
        words = [f"{_remedy_words(plan, each)}{_in_days(plan, each)}" for each in plan.found]
        rows = list(zip(words, again, strict=True))
        commands = Table.facts("Commands that plan these changes", rows)
        tables.insert(1, commands.under(plan.of))
    near, unit = plan.shown, target.unit
    title = f"A plan for epsilon {given(target.epsilon)} of a {plan.judged_unit}"
    epsilon = "unknown" if near is None else or_dash(up, near.judged_epsilon)
    standing = "holds"
    if plan.best is None:
        title, standing = f"{title}: not met", "broken"
        answer = f"Epsilon {epsilon} of a {unit}, not {given(target.epsilon)}: not met"
    else:
        answer = f"Met: epsilon {epsilon} of a {unit}, {_days(plan.best) or 0.0:.1f} days"
        if plan.misses_for_person:
            standing = "open"
            answer = f"Epsilon {epsilon} of a device, {or_dash(up, plan.epsilon_of_person)} of "
            answer += f"a person: met only for a device, {_days(plan.best) or 0.0:.1f} days"
        if plan.stated_max_days is not None:
            standing, answer = "broken", f"Not in {plan.stated_max_days:g} days. {answer}"
    figures = plan.figures()
    results = plan.to_json()
    return render_study(
        *(title, note, figures, tables, results, OF_EVERY_AUDIT),
        tiles=_answer(plan, near) if near else None,
        verdict=plan.headline,
        warnings=plan.warnings,
        standing=standing,
        answer=answer,
    )


def plan_subject(plan: Plan) -> Subject:
    """Returns the subject of a plan: its population, in the runs of the answer or nearest miss, and
    the target if it is that of a person."""
    shown = plan.shown
    runs = "" if shown is None else _runs_of(shown)
    # A plan changes goal, timer and noise itself, so no condition is as written.
    of = replace(scenario_subject(plan.scenario, runs=runs), condition="")
    if plan.target.unit == "device":
        return of
    target = f"for epsilon {given(plan.target.epsilon)} of a {plan.judged_unit}"
    return replace(of, setting=target)


def plan_tables(plan: Plan) -> list[Table]:
    """The answer, least goals by timer, what-ifs, candidates, and caveats, which have only notes;
    if nothing meets the target, the candidates, the nearest miss first."""
    # One timer has nothing beside it.
    timers = [_timers_table(plan)] if sum(each.is_known for each in plan.timers) > 1 else []
    tables = [*timers, _what_ifs_table(plan), _candidates_table(plan)]
    # A table without rows says nothing.
    tables = [each for each in tables if each.rows]
    steps = [each for each in [_steps_table(plan)] if each is not None]
    near = plan.shown
    remedies = [_remedies_table(plan, near)] if plan.remedies and near is not None else []
    if plan.best is None:
        return [*remedies, *steps, *tables[::-1]]
    return [
        _answer(plan, plan.best),
        *remedies,
        *steps,
        *tables,
        Table.facts("Caveats", [], *filter(None, plan_sentences(plan)[1:])),
    ]


def _answer(plan: Plan, near: Candidate) -> Table:
    """The plan, or else the nearest miss."""
    days, people, minutes = _days(near), plan.devices_of_person, near.median_gap_minutes
    person = f"epsilon of a person with {people} devices"
    of_person = {person: or_dash(up, plan.epsilon_of_person)}
    of_person = of_person if people > 1 else {}
    between = "-" if minutes is None else f"{minutes:.0f}, at most {near.longest_gap_minutes:,.0f}"
    cells = {
        "devices": f"{plan.scenario.population.devices:,}",
        "rounds": f"{near.rounds:,}",
        "report goal": f"{near.report_goal:,}",
        "timer": f"{near.timer_hours:g} h",
        "noise multiplier z": needed_noise(near.noise_multiplier),
        "epsilon of a device": or_dash(up, near.epsilon),
        **of_person,
        f"days, at most {plan.scenario.rounds.max_days:g}": or_dash("{:.1f}".format, days),
        "rounds a day": "-" if not days else f"{near.rounds / days:.1f}",
        "minutes between rounds, median": between,
    }
    model = plan.scenario.availability.model
    loud = (
        f"Days and min-sep are simulated and rest on the availability model {model!r}: check it "
        "against your own devices before you rely on them."
    )
    title = "" if plan.best else "The nearest miss"
    subject = Subject(runs=_runs_of(near), unit="" if people > 1 else "device")
    return Table(title, tuple(cells), (tuple(cells.values()),), (loud,), subject=subject)


def _days(candidate: Candidate) -> float | None:
    """Days with the planned limits as rules, as the plan is run, else without."""
    return candidate.days if candidate.enforced_days is None else candidate.enforced_days


def _what_ifs_table(plan: Plan) -> Table:
    cells = {
        "what if": lambda each: each.name,
        "days": lambda each: or_dash("{:.2f}".format, each.days),
        "min-sep": _what_if_min_sep,
        "k": lambda each: or_dash(str, each.max_participations),
        "epsilon": lambda each: (
            "-" if each.epsilon is None else ("" if each.is_exact else "<= ") + up(each.epsilon)
        ),
        "would do with fewer devices": lambda each: _would_do(plan, each),
    }
    is_of_person = plan.target.unit == "person"
    goal = 1 if plan.best is None else plan.best.report_goal
    is_once = plan.best is not None and plan.best.planned_max_participations == 1
    once = " While no device takes part twice (k = 1), only the days can differ." if is_once else ""
    return Table.of(
        "What if",
        plan.what_ifs,
        cells,
        f"One run each at {scale_of(goal, plan.scale):.2g} of the size, with the plan's mechanism, "
        "noise and, unless the row says otherwise, rules. Epsilon is that of the simulated trace, "
        f"by its exact sensitivity unless it says <=; only the plan's rules are a guarantee.{once}",
        "k: most participations of a device in the run. Epsilon is that of the worst device"
        + (f" times {plan.devices_of_person}, by group privacy." if is_of_person else ".")
        + CROWDED * _is_less_with_more(plan),
        "Noise multiplier: in place of the plan's, with a BLT for the row's min-sep less the "
        "plan's margin and rules made of it. rounds.count: in place of the plan's, with its rules.",
        *(f"{each.name}: {each.note}." for each in plan.what_ifs if each.note),
        subject=lambda each: Subject(
            condition=each.name, runs=_runs_at(1, scale_of(goal, plan.scale)), unit=plan.target.unit
        ),
    )


CROWDED = (
    " If fewer devices ignore the timer, fewer compete for the places of a round, so one of them "
    "may come more often, and its epsilon be larger."
)


def _is_less_with_more(plan: Plan) -> bool:
    """Whether epsilon is smaller though more devices ignore the timer."""
    of = {each.name: each.epsilon or 0.0 for each in plan.what_ifs}
    names = [name for name in of if name.startswith("1 %")]
    return any(of[name] > of.get(f"5 %{name[3:]}", math.inf) for name in names)


def _would_do(plan: Plan, row: WhatIf) -> str:
    if row.needed_noise_multiplier is not None and plan.best is not None:
        z = row.needed_noise_multiplier
        # The same noise is 1.00, whatever the last digits.
        times = up(round(z / plan.best.noise_multiplier, 6), 2)
        return f"noise multiplier {up(z)} ({times} times)"
    return "" if row.rounds is None else f"rounds.count {row.rounds:,}"


def _what_if_min_sep(row: WhatIf) -> str:
    if row.starves_at is None:
        return shown_min_sep(row.min_sep)
    # Only a row without a run has a note.
    return "cannot sustain" if row.note else f"starves at round {row.starves_at:,}"


def _candidates_table(plan: Plan) -> Table:
    impossible = [each for each in plan.candidates if not each.is_possible]
    least = sorted(impossible, key=lambda each: each.report_goal)[:1]
    how = (
        "Runs differ in their seeds; their size is that of devices and goal. Planned: with a "
        "margin below the seeds' min-seps, from their spread, that one more run falls short of "
        "once in twenty times. k: the most that have room at the planned min-sep, or that a rule "
        "permits."
    )
    # Without a run that ends there is nothing else to show.
    rows = [each for each in plan.candidates if not each.starves] or plan.candidates
    rows = [*([] if plan.fallback is None else [plan.fallback]), *rows]
    if plan.own is not None:
        rows = [plan.own, *(each for each in rows if each != plan.own)]
    cells = {
        "verdict": lambda each: _verdict(plan, each),
        "timer": lambda each: f"{each.timer_hours:g} h",
        "report goal": lambda each: f"{each.report_goal:,}",
        "z": lambda each: needed_noise(each.noise_multiplier),
        **_runs_column(rows, _runs_of),
        "min-sep, seeds": lambda each: _min_seps_of_seeds(each.min_seps),
        "planned": lambda each: or_dash(
            lambda _: shown_min_sep(each.planned_min_sep), each.planned_max_participations
        ),
        "population / goal": lambda each: f"{each.population_over_goal:,}",
        "k": lambda each: or_dash(str, each.planned_max_participations),
        "days": lambda each: or_dash("{:.1f}".format, each.days),
        "epsilon": lambda each: or_dash(up, each.judged_epsilon),
    }
    return Table.of(
        "Candidates",
        rows,
        cells,
        "" if plan.own is None else f"Own: the scenario's settings, with {_mechanism_words(plan)}.",
        *_why_nearest(plan),
        *_folded(plan),
        *(f"Goal {each.report_goal:,} cannot be sustained: {each.note}." for each in least),
        *_starved_at_full_size(plan),
        row_styles=["marked" if each == plan.shown else "" for each in rows],
        method=(how,),
        # They follow from the other columns.
        details=("z", "population / goal"),
        subject=lambda each: Subject(runs=_runs_of(each), unit=plan.target.unit),
    )


def _why_nearest(plan: Plan) -> Iterable[str]:
    """Yields why the nearest miss is not the candidate with the least epsilon, if it is not."""
    near = plan.nearest
    missed = [each for each in plan.candidates if each.epsilon and not each.meets_target]
    least = min(missed, key=lambda each: each.judged_epsilon or 0.0, default=near)
    if plan.best is None and near is not None and least is not None and least != near:
        epsilon = or_dash(up, least.judged_epsilon)
        yield (
            f"Nearest miss: of those within a tenth of the least epsilon ({epsilon}, timer "
            f"{least.timer_hours:g} h), the one with the own goal and timer, else the fastest."
        )


def _folded(plan: Plan) -> Iterable[str]:
    """Yields a line for each timer and outcome of the goals that no run commits: how far the least
    goal that starves got, and why."""
    tried: dict[tuple[float, str], list[Candidate]] = {}
    for each in plan.candidates:
        if each.starves:
            tried.setdefault((each.timer_hours, _verdict(plan, each)), []).append(each)
    for (hours, outcome), of in tried.items():
        goals = sorted(each.report_goal for each in of)
        ends = " to ".join(dict.fromkeys((f"{goals[0]:,}", f"{goals[-1]:,}")))
        said = f"Timer {hours:g} h, goal {ends}: {outcome} ({len(of)} tried)"
        least = min(of, key=lambda each: each.report_goal)
        # Those that the rules make impossible have a line with the arithmetic.
        yield f"{said}. {_how_far(plan, least)}" if least.is_possible else f"{said}."
    pace, most = days_of_pace(plan.scenario), plan.scenario.rounds.max_days
    if tried and pace >= LATE * most:
        yield f"{_pace_takes(plan)} of the {most:g} of rounds.max_days."


def _how_far(plan: Plan, starved: Candidate) -> str:
    """Returns how far a goal got that starves, and why."""
    # A note has the way it ended, then the cause with its remedies.
    _, _, cause = starved.note.partition("; ")
    cause = cause.partition(", so ")[0].partition("; ")[0] or starved.note
    if not starved.committed:
        return f"Goal {starved.report_goal:,}: {cause}."
    return (
        f"Goal {starved.report_goal:,} got to {starved.committed:,} of {starved.rounds:,} rounds "
        f"within rounds.max_days={plan.scenario.rounds.max_days:g}: {cause}."
    )


def _pace_takes(plan: Plan) -> str:
    rounds, pace = plan.scenario.rounds, days_of_pace(plan.scenario)
    return (
        f"{rounds.count:,} rounds {rounds.min_minutes_between:g} minutes apart take {pace:.1f} days"
    )


def _timers_table(plan: Plan) -> Table:
    def cell(text: Callable[[Candidate], str]) -> Callable[[PlannedTimer], str]:
        return lambda row: or_dash(text, row.least)

    def runs(row: PlannedTimer) -> str:
        return _runs_at(plan.seeds, plan.scale) if row.least is None else _runs_of(row.least)

    cells = {
        "timer": lambda row: f"{row.timer_hours:g} h",
        "least report goal": _least_goal,
        "device updates": cell(lambda each: f"{each.updates:,}"),
        "min-sep, planned": cell(lambda each: shown_min_sep(each.planned_min_sep)),
        "days": cell(lambda each: f"{each.days:.1f}"),
        "epsilon": cell(lambda each: or_dash(up, each.judged_epsilon)),
        **_runs_column(plan.timers, runs),
    }
    above = "Above: the search of this timer ended there, since the plan's has a smaller goal."
    return Table.of(
        "What a longer timer costs",
        plan.timers,
        cells,
        "A longer timer raises min-sep, so that a smaller goal will do, and slows the rounds down.",
        above if plan.cut_short else "",
        details=("device updates",),
        subject=lambda row: Subject(runs=runs(row), unit=plan.target.unit),
    )


def _least_goal(row: PlannedTimer) -> str:
    if row.least is not None:
        return f"{row.least.report_goal:,}"
    return "none" if row.above is None else f"above {row.above:,}"


def _verdict(plan: Plan, candidate: Candidate) -> str:
    if candidate is plan.own:
        return f"own, {plan.scenario.privacy.mechanism.kind}: {_outcome(candidate)}"
    # The best candidate meets the target as well, so it is asked for first.
    if candidate == plan.best:
        return "plan"
    if plan.best is None and candidate == plan.nearest:
        return "meets" if candidate.meets_target else "nearest miss"
    return _outcome(candidate)


def _outcome(candidate: Candidate) -> str:
    if candidate.starves:
        return "starves" if candidate.is_possible else "cannot sustain"
    return "meets" if candidate.meets_target else "misses"


def _min_seps_of_seeds(min_seps: Sequence[int | None]) -> str:
    """From the least to the largest; a min-sep that does not exist is larger than any number."""
    if not min_seps:
        return "-"
    # Without a second participation the gap is longer than the run.
    found = sorted(min_seps, key=lambda each: math.inf if each is None else each)
    # Equal ends are shown once.
    return " to ".join(dict.fromkeys(map(shown_min_sep, (found[0], found[-1]))))


def plan_figures(plan: Plan) -> list[Figure]:
    """Days and epsilon over report goal: a line of the search's candidates for each timer, and the
    plan as a star."""
    target, best = plan.target.epsilon, plan.best
    zone = _starving_zone(plan)
    note = "Lines are simulations of the search; the star is the plan at full size."
    if best is None:
        note = "Lines are simulations of the search; the star is the nearest miss."
    line = Mark(target, f"target {given(target)}", "y")
    figures: list[Figure] = [
        _figure(plan, "days", note, _days, zone),
        _figure(plan, "epsilon", note, lambda each: each.judged_epsilon, [line, *zone]),
    ]
    # A single goal spans no axis.
    if len({each.report_goal for each in plan.candidates if not each.starves}) < 2:
        figures = []
    # If a plan fails, the remedies decide.
    return figures if best is not None else [*_trade_figure(plan), *figures[::-1]]


def _starving_zone(plan: Plan) -> list[Mark]:
    """The goals that starve beyond all that do not, whatever their timer, so that no point lies in
    the zone; its text names the timers with which they were tried."""
    served = max((e.report_goal for e in plan.candidates if not e.starves), default=0)
    starved = [e for e in plan.candidates if e.starves and e.report_goal > served]
    if not starved:
        return []
    goals = [each.report_goal for each in starved]
    timers = ", ".join(f"{hours:g}" for hours in sorted({e.timer_hours for e in starved}))
    return [Mark(min(goals), f"starves ({timers} h)", until=max(goals))]


def _trade_figure(plan: Plan) -> Iterable[Figure]:
    """Yields the noise on the mean over the report goals of remedies, if it can be traded. Remedies
    of the same goal and noise are one point."""
    near, found = plan.nearest, plan.found
    if near is None or not {HALF_TRADE, TRADE}.intersection(each.key for each in found):
        return
    at: dict[tuple[int, float], list[Remedy]] = {}
    traded = []
    for each in found:
        point = each.report_goal or near.report_goal, float(_times_the_noise(near, each))
        at.setdefault(point, []).append(each)
        if each.key in (HALF_TRADE, TRADE):
            traded.append(point)
    line = _series("fewer rounds, no more device updates", "line", sorted(traded))
    points = []
    for point, same in at.items():
        name, label = (
            " or ".join(words(plan, each) for each in same)
            for words in (_remedy_words, _short_words)
        )
        points += [replace(each, labels=(label,)) for each in _series(name, "points", [point])]
    goals, noise = zip(*at, strict=True)
    yield Figure(
        name="noise",
        title="What would do: noise on the mean over report goal",
        note="Noise as a multiple of the nearest miss's; each point meets epsilon "
        f"{given(plan.target.epsilon)} of a {plan.judged_unit}.",
        x=_goal_axis(goals),
        y=Axis("times the noise", needs_log(noise), decimals=2),
        series=(*(line if len(set(traded)) > 1 else []), *points),
        subject=Subject(runs=_runs_at(plan.seeds, min(each.scale for each in found)) + " or more"),
    )


def _short_words(plan: Plan, remedy: Remedy) -> str:
    """Words at a point, whose place shows goal and noise."""
    words = ["for a person"] if remedy.key == PERSON else []
    words += [counted(remedy.rounds, "round")] if remedy.rounds else []
    if remedy.devices:
        words.append(f"{remedy.devices / plan.scenario.population.devices:.3g} x devices")
    words += [f"{remedy.timer_hours:g} h"] if remedy.timer_hours else []
    return ", ".join(words) or "more noise"


def _goal_axis(goals: Sequence[float]) -> Axis:
    return Axis("report goal", needs_log(goals), starts_at_zero=False, at_points=True)


def _figure(
    plan: Plan,
    name: str,
    note: str,
    value: Callable[[Candidate], float | None],
    marks: Sequence[Mark],
) -> Figure:
    lines: dict[str, list[tuple[int, float | None]]] = {}
    for each in sorted(plan.candidates, key=lambda each: (each.timer_hours, each.report_goal)):
        # A confirmation has another size, and would break the line by a step.
        if each.scale == scale_of(each.report_goal, plan.scale):
            points = lines.setdefault(f"timer {each.timer_hours:g} h", [])
            points.append((each.report_goal, value(each)))
    series = [one for line, points in lines.items() for one in _series(line, "line", points)]
    if (star := plan.shown) is not None:
        kind, named = ("misses", "nearest miss") if plan.best is None else ("stars", "plan")
        point = _series(f"{named}, {_runs_of(star)}", kind, [(star.report_goal, value(star))])
        series += [replace(each, labels=(f"{star.report_goal:,}",)) for each in point]
    # Without points the axes still need values.
    x = [goal for each in series for goal in each.x.tolist()] or [1.0]
    y = [mark.at for mark in marks if mark.axis == "y"]
    y = [*y, *(float(each) for one in series for each in one.y)] or [1.0]
    return Figure(
        name=name,
        title=f"{name.capitalize()} over report goal",
        note=note,
        x=_goal_axis([*x, *(mark.until for mark in marks if mark.until)]),
        y=Axis(
            *(name if name == "days" else f"epsilon of a {plan.judged_unit}", needs_log(y)),
            name == "days",
            decimals=1 if name == "days" else 3,
        ),
        series=tuple(series),
        marks=tuple(marks),
        subject=Subject(runs=f"{_runs_at(plan.seeds, plan.scale)} or more of each goal"),
    )


def _series(name: str, kind: Any, points: Iterable[tuple[int, float | None]]) -> list[Series]:
    shown = [(goal, y) for goal, y in points if y is not None]
    if not shown:
        return []
    x, y = np.array(shown, np.float64).T
    return [Series(name, kind, x, y)]
