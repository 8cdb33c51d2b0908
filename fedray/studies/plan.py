"""A plan: the report goal, timer and noise multiplier that meet a privacy target at the least cost,
by simulated min-seps.

The signal-to-noise hypothesis (McMahan et al. 2018; the practice of DP-FTRL studies): models of
equal quality need an equal ratio of noise multiplier to report goal. A larger goal then means more
noise and less privacy loss, but devices come round sooner, and a run may starve. The common guess
for min-sep, population / report goal, assumes a population that is cycled through without a gap;
here min-sep is simulated.

The planned min-sep is a margin below the simulated ones: a lower prediction bound of the min-sep of
one more run, from the spread of the seeds. Smaller simulations have fewer devices, so their least
gap is a little larger; hence a run of the full size confirms the plan, and corrects it if that
falls short.

The scenario of a plan makes rules of its planned limits: devices keep the planned min-sep as a
round separation, which also limits their participations, and a cap if fewer are planned. So the
planned epsilon rests on enforced rules. Devices seldom meet these rules, because they lie below the
devices' own behaviour; a second run of the full size, with the rules, shows their cost.
"""

import contextlib
import itertools
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa

from fedray.audit.calibration import check_only_models
from fedray.audit.guarantees import fitting
from fedray.audit.noise import PlannedNoise, PlannedRelease
from fedray.audit.rules import rules_of, strictest
from fedray.base.document import InJson, Keys, NotInJson
from fedray.base.errors import InputError, Unsustainable
from fedray.base.kept import cache_folder
from fedray.base.part_done import Announcement
from fedray.base.result import DrawnResult
from fedray.base.rounding import counted, given, needed_noise, up
from fedray.mechanisms.accounting.calibration import noise_multiplier_for
from fedray.mechanisms.accounting.limits import (
    LEAST_NOISE_MULTIPLIER,
    MOST_NOISE_MULTIPLIER,
    check_delta,
)
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.mechanisms.named import named_mechanism
from fedray.mechanisms.optimize.design import MechanismRequest, made_mechanism
from fedray.mechanisms.participation import MinSep, most_of_device
from fedray.mechanisms.strategy import SensitivityUnknown, Strategy
from fedray.runs.sustainable import why_unsustainable
from fedray.runtime.placement import Placement
from fedray.runtime.session import session
from fedray.runtime.tasks import TaskCounts
from fedray.scenario import Scenario
from fedray.scenario.literals import literal
from fedray.scenario.participation import Participation
from fedray.studies.goal_search import MEETS, MISSES, STARVES, GoalSearch
from fedray.studies.plan_time import PlanClock, run_seconds, usual_candidates
from fedray.studies.remedies import (
    MOST_PROPOSALS,
    NEARLY_ALL,
    PRECISION,
    Remedy,
    for_a_person,
    remedies,
)
from fedray.studies.simulated import (
    INTERRUPTED,
    StudyCache,
    Truth,
    simulate_runs,
    simulated,
    simulated_limits,
)
from fedray.studies.what_ifs import FEWER, WhatIf, epsilon_at, known_epsilon, most_mu, what_ifs

LEAST_SIMULATED_GOAL = 20
"""Smaller rounds are simulated at a larger scale."""
LEAST_SCALE = 0.05
"""Below, min-seps of simulations are further off than the margin covers."""
MOST_CONFIRMATIONS = 8
MISS_PROBABILITY = 0.05
"""Probability of a run with a smaller min-sep than planned, if min-seps vary normally."""
LEAST_DEVIATION = 0.5
"""Rounds: min-sep is a whole number, so equal seeds do not mean zero spread."""
SLOWER = 0.05
"""Relative slowdown by the planned limits as rules from which on a plan warns."""
LATE = 0.95
"""Share of rounds.max_days from which on a plan has little margin."""
SLACK = 0.04
"""Least share of the days of a run that its pace leaves free, if the plan chooses them."""
NEAR = 0.05
"""Relative distance from the least goal within which the fastest candidate is chosen."""
NEARLY = 0.1
"""The same for the epsilon of candidates that miss the target."""
SPREAD, BY_CHANCE = 2.0, 0.02
"""Factor on the margin of a min-sep, and relative difference between neighbouring goals, within
which another goal may differ by chance."""
MOST_EPSILON = 100.0
"""Largest epsilon for which noise is computed; a larger target is met with hardly any."""
MOST_OF_THE_DEVICES = 0.95
"""Largest share of the usable devices that a round may select at once."""
PUBLISHED = 7.0 / 6500.0
"""Noise multiplier over report goal of a published run (Xu et al. 2023)."""
Progress = Callable[[str], None]
Least = Literal["updates", "days"]
"""Cost by which a plan is the least: accepted updates, or days."""
Unit = Literal["device", "person"]
"""Unit whose epsilon is to meet a target."""


@dataclass(frozen=True, slots=True)
class PlanTarget:
    """Target of a plan, and how it is judged. Raises InputError for an impossible value."""

    epsilon: float
    """Most epsilon."""
    delta: float = 1e-10
    """delta of epsilon."""
    noise_per_report: float = PUBLISHED
    """Noise multiplier over report goal: the signal-to-noise ratio is the same at every goal."""
    buffers: int = 4
    """Buffers of the BLT that is planned for."""
    report_goal: int | None = None
    """Report goal to keep; only timers are tried then. None: the least that will do."""
    unit: Unit = "device"
    """Unit whose epsilon is to meet it: a device, or a person with the most devices of
    population.owners."""

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise InputError.of("epsilon", self.epsilon, "must be positive and finite")
        if self.unit not in get_args(Unit):
            raise InputError.of("unit", self.unit, f"must be one of {', '.join(get_args(Unit))}")
        if not 0 < self.noise_per_report < math.inf:
            raise InputError.of(
                *("noise_per_report", self.noise_per_report),
                "must be positive",
                "Xu et al. 2023 have 7 / 6500",
            )
        # This import loads scipy.optimize, which takes 0.3 s.
        from fedray.mechanisms.optimize.blt import MOST_BUFFERS

        if not 1 <= self.buffers <= MOST_BUFFERS:
            rule = f"must be from 1 to {MOST_BUFFERS}"
            raise InputError.of("buffers", self.buffers, rule, "4 are usual")
        try:
            check_delta(self.delta)
        except ValueError as error:
            raise InputError.caused_by(error) from None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A report goal with a timer, as simulated, and the limits and privacy planned with it."""

    target: NotInJson[PlanTarget]
    rounds: NotInJson[int]
    report_goal: int
    """Reports that close a round."""
    timer_hours: float
    """Participation timer."""
    scale: float
    """Size of the simulations; 1: the whole population."""
    population_over_goal: int
    """The common guess for min-sep, rounded down; it may be more than there are rounds."""
    min_seps: tuple[int | None, ...]
    """Min-sep of each seed's run; None if no device took part twice."""
    max_participations: tuple[int, ...]
    """Most participations of a device in each seed's run."""
    planned_min_sep: int | None = None
    """Min-sep of the plan: the seeds' less a margin; None if no device takes part twice."""
    planned_max_participations: int | None = None
    """Most participations of the plan: the most that its min-sep, its timer within the run's days,
    or the scenario's rules permit; None if a run starves."""
    deviation: float | None = None
    """Standard deviation of the min-sep between seeds over its mean."""
    days: float | None = None
    """Days that the slowest seed's run took."""
    median_gap_minutes: float | None = None
    """Median minutes from the start of a round to the next, the most of the runs; with the planned
    limits as rules if they were simulated."""
    longest_gap_minutes: float | None = None
    """Longest of these times in any run."""
    rho: float | None = None
    """zCDP of a BLT made for the planned limits, under them; own settings: of their mechanism."""
    epsilon: float | None = None
    """Epsilon of a device at the planned limits; None without a guarantee, or if a run starves."""
    note: str = ""
    """Why a run starved, or why the goal is impossible; empty otherwise."""
    is_possible: bool = True
    """False if the rules leave too few devices for the goal, so that it was not simulated."""
    by_zcdp: NotInJson[bool] = False
    """Whether devices add the noise, of which rho is all that is proven."""
    committed: NotInJson[int] = 0
    """Rounds that every run committed if one starved, else 0."""
    devices_of_unit: NotInJson[int] = 1
    """Devices of the unit of the target."""
    enforced_days: float | None = None
    """Days of a full-size run in which the planned limits are rules; None if none was simulated."""
    enforced_min_sep: int | None = None
    """Min-sep of that run; None also if no device took part twice."""

    def __str__(self) -> str:
        found, unit = self.judged_epsilon, self.target.unit
        outcome = "no guarantee" if found is None else f"epsilon {up(found)} of a {unit}"
        if self.starves:
            outcome = "starves" if self.is_possible else "cannot sustain"
        goal, hours = self.report_goal, self.timer_hours
        return f"goal {goal:,}, timer {hours:g} h, at {self.scale:.2g} of the size: {outcome}"

    @property
    def noise_multiplier(self) -> InJson[float]:
        """z: the goal times the target's noise per report."""
        # To twelve digits, so that z / goal gives z again.
        return float(f"{self.target.noise_per_report * self.report_goal:.12g}")

    @property
    def updates(self) -> InJson[int]:
        """Accepted updates of a run, of all devices together."""
        return self.rounds * self.report_goal

    @property
    def judged_epsilon(self) -> float | None:
        """Epsilon of the unit of the target; None without a guarantee, or if a run starves."""
        if self.devices_of_unit == 1:
            return self.epsilon
        return self.epsilon_of_person(self.devices_of_unit)

    @property
    def meets_target(self) -> InJson[bool]:
        """Whether epsilon of the target's unit is known and no more than the target's."""
        found = self.judged_epsilon
        return found is not None and found <= self.target.epsilon

    @property
    def starves(self) -> bool:
        """Whether a run of a seed could not commit its rounds, for lack of devices."""
        return bool(self.note)

    @property
    def is_full_size(self) -> bool:
        """Whether the whole population was simulated, and not a smaller one."""
        return self.scale == 1.0

    @property
    def cap(self) -> int | None:
        """The planned participations, as a rule; None if the planned min-sep ensures them."""
        most = self.planned_max_participations
        ensured = most_of_device(self.rounds, self.planned_min_sep or 1)
        return most if most is not None and most < ensured else None

    def epsilon_of_person(self, devices: int) -> float | None:
        """Returns epsilon of a person with a number of devices, by group privacy: mu grows by it
        (Dong, Roth and Su 2022, Theorem 2.14). None if unknown, or without a guarantee."""
        if self.rho is None:
            return None
        mu = devices * math.sqrt(2.0 * self.rho)
        return epsilon_at(mu, self.target.delta, by_zcdp=self.by_zcdp)

    @property
    def planned_limits(self) -> MinSep:
        """The planned limits as mechanisms take them."""
        assert self.planned_max_participations is not None
        # Devices that come once keep any separation, and the rounds are the largest.
        min_sep = self.planned_min_sep or self.rounds
        return MinSep(self.rounds, min_sep, self.planned_max_participations)


class PlannedTimer(NamedTuple):
    """The least report goal of a timer."""

    timer_hours: float
    """Participation timer."""
    least: Candidate | None
    """The least goal that meets the target, at full size if one was simulated; None if none does,
    or if the search ended early."""
    above: int | None = None
    """Goal below the least one, if the search ended early because the timer cannot be the best."""

    @property
    def is_known(self) -> bool:
        """Whether the least goal or one below it is known."""
        return self.least is not None or self.above is not None


@dataclass(frozen=True, slots=True)
class Plan(DrawnResult):
    """The best candidate, and all that were simulated on the way."""

    TABLES: ClassVar[str] = "fedray.studies.plan_page:plan_tables"
    SUBJECT: ClassVar[str] = "fedray.studies.plan_page:plan_subject"
    FIGURES: ClassVar[str] = "fedray.studies.plan_page:plan_figures"
    PAGE: ClassVar[str] = "fedray.studies.plan_page:plan_page"
    HEADLINE: ClassVar[str] = "fedray.studies.plan_page:plan_verdict"

    target: PlanTarget
    """The requested privacy."""
    scenario: Annotated[
        Scenario,
        Keys(
            "population=population.devices rounds=rounds.count "
            "min_minutes_between_rounds=rounds.min_minutes_between"
        ),
    ]
    """Everything but report goal and timer."""
    seeds: int
    """Simulated runs of each candidate."""
    scale: float
    """Size of the simulations of the search; 1: the whole population."""
    best: Candidate | None
    """The answer, confirmed at full size; None if nothing meets the target."""
    candidates: tuple[Candidate, ...]
    """All that were simulated, in order of timer, goal and scale."""
    warnings: tuple[str, ...] = ()
    """Warnings about the answer, a sentence each."""
    what_ifs: tuple[WhatIf, ...] = ()
    """The plan as simulated at the search's scale, then the same if assumptions fail."""
    least: Least = "updates"
    """Cost by which the answer is the least."""
    remedies: tuple[Remedy, ...] = ()
    """Changes of the nearest miss that would meet the target, if nothing meets it; without any
    setting if none was found. Of an answer for a device, the noise with which a person meets it
    too, if population.owners is given and the answer misses it."""
    own: Candidate | None = None
    """The user's own goal, timer, noise multiplier and mechanism, simulated as the search's
    candidates; its min-seps and participations are as its rules enforced them in the runs. None if
    they were not given."""
    made: Candidate | None = None
    """The same settings with a BLT made for their planned limits in place of the mechanism; None if
    they starve."""
    fallback: Candidate | None = None
    """If every candidate starves: the own goal and timer, or else fewer rounds, that do not."""
    stated_max_days: float | None = None
    """Days that were asked for, if the pace leaves no slack in them. Then the plan is for the days
    of its scenario, and no answer to what was asked."""
    cut_short: NotInJson[tuple[float, ...]] = ()
    """Timers whose search ended early, because their least goal is above those that may be the
    best."""

    @property
    def settings(self) -> InJson[dict[str, Any]]:
        """The scenario that was planned for, as the tables of a file. The plan chooses its report
        goal, timer, noise and mechanism."""
        return self.scenario.to_tables()

    @property
    def found(self) -> list[Remedy]:
        """The remedies that would do."""
        return [each for each in self.remedies if each.is_found]

    @property
    def nearest(self) -> InJson[Candidate | None]:
        """The candidate that misses the target by about the least (see `nearest_of`), or the
        fallback."""
        return nearest_of(self.candidates, self.own) or self.fallback

    @property
    def shown(self) -> Candidate | None:
        """The answer, or else the nearest miss."""
        return self.best or self.nearest

    @property
    def is_met(self) -> InJson[bool]:
        """Whether the unit of the target meets it in the days that were asked for."""
        return self.best is not None and self.stated_max_days is None

    @property
    def devices_of_person(self) -> InJson[int]:
        """Most devices of a person; 1 if owners are unknown."""
        owners = self.scenario.population.owners
        return 1 if owners is None else owners.most_devices

    @property
    def judged_unit(self) -> str:
        """The unit of the target in words."""
        people = self.devices_of_person
        is_person = self.target.unit == "person"
        return f"person with up to {counted(people, 'device')}" if is_person else "device"

    @property
    def epsilon_of_person(self) -> InJson[float | None]:
        """Epsilon of a person with the most devices, of the answer or nearest miss; None if owners
        are unknown, or without a guarantee."""
        if self.shown is None or self.devices_of_person == 1:
            return None
        return self.shown.epsilon_of_person(self.devices_of_person)

    @property
    def misses_for_person(self) -> bool:
        """Whether a person with several devices is not known to meet the target."""
        epsilon = self.epsilon_of_person
        is_missed = epsilon is None or epsilon > self.target.epsilon
        return self.devices_of_person > 1 and is_missed

    def __repr__(self) -> str:
        found = "nothing meets it"
        if self.best is not None:
            found = f"goal {self.best.report_goal:,}, timer {self.best.timer_hours:g} h"
        tried = f"{len(self.candidates)} candidates"
        return f"<Plan for epsilon {given(self.target.epsilon)}: {found}; {tried}>"

    @property
    def timers(self) -> InJson[list[PlannedTimer]]:
        """Least report goal of each timer."""
        timers = dict.fromkeys(each.timer_hours for each in self.candidates)
        return [
            PlannedTimer(hours, None, self._above(hours))
            if hours in self.cut_short
            else PlannedTimer(hours, self._least(hours))
            for hours in timers
        ]

    def _above(self, hours: float) -> int | None:
        """Returns the largest goal that missed below the least one that met the target."""
        of_timer = [each for each in self.candidates if each.timer_hours == hours]
        met = min((each.report_goal for each in of_timer if each.meets_target), default=math.inf)
        # A goal that starves is above the least one, if there is any.
        missed = (e.report_goal for e in of_timer if not e.meets_target and not e.starves)
        return max((goal for goal in missed if goal < met), default=None)

    def _least(self, hours: float) -> Candidate | None:
        if self.best is not None and self.best.timer_hours == hours:
            return self.best
        of_timer = [each for each in self.candidates if each.timer_hours == hours]
        # A goal that fell short at full size refutes smaller goals that passed small simulations,
        # and one that starved refutes itself and larger ones.
        full = [each for each in of_timer if each.is_full_size]
        short = (each.report_goal for each in full if not each.meets_target and not each.starves)
        starved = (each.report_goal for each in full if each.starves)
        least, most = max(short, default=0), min(starved, default=math.inf)
        left = [each for each in of_timer if each.meets_target and least < each.report_goal < most]
        return min(left, key=lambda each: (not each.is_full_size, each.report_goal), default=None)

    def to_arrow(self) -> pa.Table:
        """The candidates, a row each, with the keys of `to_json` and the target."""
        target = {"target_epsilon": self.target.epsilon, "delta": self.target.delta}
        rows = [{**each, **target} for each in self.to_json()["candidates"]]
        return pa.Table.from_pylist(rows)


def make_plan(
    scenario: Scenario,
    target: PlanTarget,
    timers: Sequence[float],
    seeds: int = 3,
    scale: float = 0.1,
    placement: Placement | None = None,
    on_progress: Progress | None = None,
    least: Least = "updates",
    own: Scenario | None = None,
) -> Plan:
    """Finds for every timer the least report goal that meets the target in small simulations; then
    confirms the best of them at full size, and simulates what-ifs of it at the search's scale.

    An interrupted plan continues when it is asked for again: its simulations are kept.

    Args:
        scenario: population, rounds and all but report goal and timer.
        target: the target.
        timers: participation timers to try, hours.
        seeds: simulations of each candidate, at least 2, since their spread is the margin.
        scale: factor on population and goal in the search.
        placement: where the simulations run.
        on_progress: called with progress of the plan.
        least: cost by which the best timer is chosen. "updates": the least report goal, and of
            goals within 5 % of it the fastest. "days": the fastest.
        own: scenario whose goal, timer, noise multiplier and mechanism are simulated too, so that
            the plan says whether they meet the target; its goal is the first of the search. Without
            any if it states no noise.

    Raises:
        Unsustainable: no report goal can be run under the rules, at any timer.
        InputError: no report goal is possible, or an argument is impossible.
        RunFailed: a simulation dies for good.
    """
    _check(scenario, target, timers, seeds, scale, least)
    first = None if own is None else (own.rounds.report_goal, own.participation.timer_hours)
    own = own if own is not None and stated_noise(own) else None
    # A plan finds the noise for its own target.
    if scenario.privacy.target is not None:
        scenario = scenario.with_overrides("privacy.noise_multiplier=1.0")
    stated_max_days = None
    if (days := days_with_slack(scenario)) is not None:
        stated_max_days = scenario.rounds.max_days
        scenario = scenario.with_overrides(f"rounds.max_days={days}")
        own = own and own.with_overrides(f"rounds.max_days={days}")
    least_goal, most = _possible_goals(scenario, target)
    # Larger goals need more devices, so if the least one is impossible, all are.
    smallest = scenario.with_overrides(f"rounds.report_goal={least_goal}", "training.enabled=false")
    reasons = [
        why_unsustainable(smallest.with_overrides(f"participation.timer_hours={hours!r}"))
        for hours in timers
    ]
    if all(reasons):
        raise Unsustainable(f"no report goal is possible; the least one: {reasons[0]}")
    placement = placement or Placement()
    cache = StudyCache()
    with session(placement):
        tell = on_progress or (lambda _: None)
        places = 1 if placement.backend == "in-process" else os.cpu_count() or 1
        clock = PlanClock(places, seeds)
        planner = _Planner(scenario, target, seeds, scale, placement, cache, tell, clock)
        start = _first_goal(scenario, target, least_goal, most, planner.devices_of_unit)
        planner.expect(timers, start, own)
        try:
            judged = made = None
            if own is not None:
                judged, made = planner.own(own)
                planner.step += 1
                if not judged.starves:
                    start = min(max(judged.report_goal, least_goal), most)
            planner.searches = {hours: GoalSearch(least_goal, most, start) for hours in timers}
            if own is None and first is not None:
                planner.try_first(*first)
            planner.search(least, {})
            planner.step += 1
            best = planner.confirm(least)
            planner.step += 1
            if best is None:
                rows, (fixes, fallback) = (), planner.remedies(judged)
            else:
                rows, fixes, fallback = planner.what_ifs(best), planner.for_a_person(best), None
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"{INTERRUPTED}{planner.so_far}") from None
    found = sorted(
        planner.candidates, key=lambda each: (each.timer_hours, each.report_goal, each.scale)
    )
    common = (target, scenario, seeds, scale, best, tuple(found))
    others = (judged, made, fallback, stated_max_days, planner.cut_short)
    plan = Plan(*common, (), rows, least, fixes, *others)
    warnings = (*_warnings(plan), *cache.warnings)
    return replace(plan, warnings=warnings)


def days_with_slack(scenario: Scenario) -> int | None:
    """Returns days of a run that leave room beyond its pace, if those of the scenario leave none;
    else None. Each round is a little late, so rounds whose pace takes all days starve, whatever
    their goal and timer."""
    rounds = scenario.rounds
    pace = days_of_pace(scenario)
    if rounds.count < 2 or pace < rounds.max_days:
        return None
    return math.ceil(pace / (1.0 - SLACK))


def days_of_pace(scenario: Scenario) -> float:
    """Returns the days that the pace of a scenario takes; 0 without one."""
    return scenario.rounds.count * (scenario.rounds.min_minutes_between or 0.0) / 1440.0


def stated_noise(scenario: Scenario) -> float | None:
    """Returns the noise multiplier over report goal that a scenario states, or None."""
    privacy = scenario.privacy
    # A default says nothing about the user's noise.
    is_stated = "noise_multiplier" in privacy.model_fields_set
    if not is_stated or privacy.target is not None or privacy.strategy is None:
        return None
    return privacy.noise_multiplier / scenario.rounds.report_goal or None


def nearest_of(candidates: Iterable[Candidate], own: Candidate | None = None) -> Candidate | None:
    """Returns the candidate that misses the target by about the least: that with the goal and timer
    of the user's own settings, else the fastest; None without one."""
    # Runs of full size have refuted the candidates that met the target in smaller ones.
    missed = (each for each in candidates if not each.meets_target)
    known = {each: epsilon for each in missed if (epsilon := each.judged_epsilon)}
    most = (1 + NEARLY) * min(known.values(), default=0.0)
    near = [each for each, epsilon in known.items() if epsilon <= most]

    def order(each: Candidate) -> tuple[bool, float]:
        settings = each.report_goal, each.timer_hours
        is_own = own is not None and settings == (own.report_goal, own.timer_hours)
        return not is_own, each.days or math.inf

    return min(near, key=order, default=None)


def _possible_goals(scenario: Scenario, target: PlanTarget) -> tuple[int, int]:
    # z is goal x noise per report, and scenarios have bounds for z.
    least = max(1, math.ceil(LEAST_NOISE_MULTIPLIER / target.noise_per_report))
    most_of_noise = MOST_NOISE_MULTIPLIER / target.noise_per_report
    # No round can select more devices than there are.
    selectable = MOST_OF_THE_DEVICES * scenario.device_ids * scenario.usable_share
    most = int(min(selectable / scenario.rounds.over_selection, most_of_noise))
    if least > most:
        raise InputError.of(
            "population.devices",
            scenario.population.devices,
            f"is too small: no report goal from {least:,} to {most:,} is possible",
            "raise it, or the noise per report",
        )
    kept = target.report_goal
    return (least, most) if kept is None else (kept, kept)


def _warnings(plan: Plan) -> list[str]:
    scale, best, candidates = plan.scale, plan.best, plan.candidates
    warnings = []
    if {most for each in candidates for most in each.max_participations} == {1}:
        warnings.append(
            "No device took part twice in any simulation, so neither min-sep nor the timer changes "
            "epsilon. Timers only differ in a run of more rounds."
        )
    if scale < LEAST_SCALE:
        warnings.append(
            f"The search was simulated at {scale:g} of the size. Below {LEAST_SCALE:g} min-seps "
            "may be several per cent off; only results at full size can be relied on."
        )
    if best is None:
        return warnings
    if plan.misses_for_person and (found := plan.found):
        z = found[0].noise_multiplier or 0.0
        warnings.append(
            f"A person with {plan.devices_of_person} devices misses the target. For a person "
            f"to meet it, the noise multiplier must be {needed_noise(z)}, "
            f"{up(z / best.noise_multiplier, 2)} times as large."
        )
    if best.days and best.enforced_days and best.enforced_days > (1 + SLOWER) * best.days:
        warnings.append(
            f"With the planned limits as rules the run takes {best.enforced_days:.1f} days instead "
            f"of {best.days:.1f}."
        )
    days, max_days = best.enforced_days or best.days or 0.0, plan.scenario.rounds.max_days
    tight = []
    if days >= LATE * max_days:
        tight.append(f"takes {days:.2f} of the {max_days:g} days of rounds.max_days")
    if any(row.name == FEWER and row.starves_at is not None for row in plan.what_ifs):
        tight.append("starves with 10 % fewer devices")
    if tight:
        warnings.append(f"The plan has little margin: the run {' and '.join(tight)}.")
    return warnings


def planned_scenario(scenario: Scenario, best: Candidate) -> tuple[Scenario, Strategy]:
    """Returns the scenario of a candidate, in which devices must keep the planned limits, and the
    mechanism made for them.

    Args:
        scenario: everything except the planned keys.
        best: the candidate.
    """
    # As overrides, so that planned keys are read and checked like a user's.
    strategy = _mechanism_for(best.planned_limits, best.target)
    parameters = strategy.model_dump(mode="json")
    # JSON writes a kind, a number or a list of numbers as TOML does.
    table = ", ".join(f"{name} = {json.dumps(value)}" for name, value in parameters.items())
    # A cohort is drawn from the round, so it cannot be larger.
    sample = min(scenario.training.cohort_sample, best.report_goal)
    # If no device comes twice there is nothing to enforce, and the user's own rule stays.
    separation = best.planned_min_sep or scenario.participation.round_separation
    # The separation ensures its k by itself, and reports of abandoned rounds count toward a cap.
    cap = [f"participation.max_participations={best.cap}"] if best.cap else []
    # The user's own words are of other settings.
    unit, devices = best.target.unit, best.devices_of_unit
    of = f"{unit} with up to {counted(devices, 'device')}" if unit == "person" else unit
    text = (
        f"Planned for epsilon {given(best.target.epsilon)} of a {of}: {best.rounds:,} rounds of "
        f"{best.report_goal:,} reports, timer {best.timer_hours:g} h"
    )
    planned = scenario.with_overrides(
        f"rounds.report_goal={best.report_goal}",
        f"participation.timer_hours={best.timer_hours!r}",
        f"participation.round_separation={separation}",
        *cap,
        f"privacy.noise_multiplier={best.noise_multiplier!r}",
        f"privacy.delta={best.target.delta!r}",
        f"privacy.wanted_epsilon={best.target.epsilon!r}",
        f"privacy.mechanism={{{table}}}",
        f"training.cohort_sample={sample}",
        f"description={literal(text)}",
    )
    return planned, strategy


@dataclass
class _Runs:
    """Simulates candidates, keeps all of them, and reports progress."""

    scenario: Scenario
    target: PlanTarget
    seeds: int
    scale: float
    placement: Placement
    cache: StudyCache
    on_progress: Progress
    clock: PlanClock
    candidates: list[Candidate] = field(default_factory=list)
    step: int = 1
    """Number of the step: own settings if there are any, search, confirmation, and the rest."""
    steps: int = 3
    strategy: Strategy | None = None
    """The scenario's own mechanism, judged under its enforced limits; None: a BLT made for the
    planned limits."""

    @property
    def devices_of_unit(self) -> int:
        """Devices of the unit of the target."""
        owners = self.scenario.population.owners
        return 1 if owners is None or self.target.unit == "device" else owners.most_devices

    def tried(self, goal: int, hours: float, size: float, what: str) -> Candidate:
        """One report goal and timer, simulated unless the rules make it impossible."""
        scale, refusal = scale_of(goal, size), why_unsustainable(self.run_of(goal, hours, 0, 1.0))
        if refusal is None:
            runs = [self.run_of(goal, hours, seed, size) for seed in range(self.seeds)]
            truths = self.truths(runs, what)
            try:
                return self.judged(goal, hours, scale, truths, None)
            except SensitivityUnknown as error:
                refusal = str(error)
        return self.judged(goal, hours, scale, [Truth(None, note=refusal)], None, False)

    def release_of(self, limits: MinSep, goal: int) -> PlannedRelease:
        """Returns the release of runs of a report goal in which devices keep some limits. Raises
        SensitivityUnknown."""
        strategy = self.strategy or _mechanism_for(limits, self.target)
        noise = replace(PlannedNoise.of(self.scenario), report_goal=goal, fewest=goal)
        return noise.release(strategy, limits)

    def judged_release_of(self, limits: MinSep, goal: int) -> PlannedRelease:
        """Returns the same for the unit of the target."""
        return self.release_of(limits, goal).of_group(self.devices_of_unit)

    def run_of(self, goal: int, hours: float, seed: int, scale: float) -> Scenario:
        # Who takes part does not depend on who adds the noise, which may be too little at a goal.
        has_shares = self.scenario.privacy.sent.adds_noise
        full = self.scenario.with_overrides(
            *(["privacy.trust={kind='server'}"] if has_shares else []),
            f"rounds.report_goal={goal}",
            f"participation.timer_hours={hours!r}",
            # The first run has the scenario's own seed.
            f"seed={self.scenario.seed + seed}",
            "training.enabled=false",
        )
        return full.scaled(scale_of(goal, scale))

    def truths(
        self,
        scenarios: Sequence[Scenario],
        what: str,
        simulate_one: Callable[[Scenario], Truth] | None = None,
        after: float | None = None,
    ) -> list[Truth]:
        """Simulates scenarios, and reports the progress.

        Args:
            scenarios: runs.
            what: name of the runs in progress lines.
            simulate_one: see `simulate_runs`; by default `simulated_limits`.
            after: estimated seconds of the work after these runs; None if it is unknown.
        """
        begun, counted = time.monotonic(), TaskCounts(len(scenarios))
        seconds = self.clock.batch(max(map(run_seconds, scenarios), default=0.0), len(scenarios))

        def say(counts: TaskCounts) -> None:
            nonlocal counted
            counted = counts
            share = (counts.jobs - counts.done) / max(1, counts.jobs + counts.kept)
            step = f"step {self.step} of {self.steps}, {self.clock.so_far} so far"
            if after is not None:
                step += f", about {self.clock.left(seconds * share + after)} left"
            self.on_progress(str(counts.line(f"{what} simulated ({step})")))

        found = simulate_runs(
            scenarios, simulate_one or simulated_limits, self.placement, self.cache, say
        )
        done = seconds * counted.jobs / max(1, counted.jobs + counted.kept)
        self.clock.took(done, time.monotonic() - begun)
        return found

    def judged(
        self,
        goal: int,
        hours: float,
        scale: float,
        found: Sequence[Truth],
        before: Candidate | None,
        is_possible: bool = True,
    ) -> Candidate:
        """Adds a goal as simulated at one size; spread and participations of smaller runs count
        too."""
        if self.strategy is not None:
            # Without planned rules a run keeps only the limits of its own rules.
            found = [replace(each, participation=each.enforced) for each in found]
        participations = [truth.participation for truth in found if truth.participation is not None]
        # A run that ended with its budget has participations and a note.
        notes = [truth.note for truth in found if truth.note]
        if notes and is_possible:
            notes = [self._in_full(notes[0], goal, self.run_of(goal, hours, 0, scale))]
        gaps = [truth.gaps for truth in found if truth.gaps is not None]
        candidate = Candidate(
            target=self.target,
            rounds=self.scenario.rounds.count,
            report_goal=goal,
            timer_hours=hours,
            scale=scale,
            population_over_goal=self.scenario.population.devices // goal,
            min_seps=tuple(each.min_sep for each in found if each.participation is not None),
            max_participations=tuple(each.max_participations for each in participations),
            note=notes[0] if notes else "",
            is_possible=is_possible,
            by_zcdp=self.scenario.privacy.sent.adds_noise,
            committed=min((each.committed for each in found if each.note), default=0),
            devices_of_unit=self.devices_of_unit,
        )
        if not notes:
            # The slowest run counts, so that a plan does not promise too few days.
            candidate = replace(candidate, days=max(truth.days or 0.0 for truth in found))
        if not notes and gaps:
            median, longest = map(max, zip(*gaps, strict=True))
            candidate = replace(candidate, median_gap_minutes=median, longest_gap_minutes=longest)
        if not notes and participations:
            rules = self.scenario.participation
            candidate = with_limits(candidate, self.seeds, before, rules)
            candidate = _within_days(candidate, before, self.scenario.rounds.max_days)
            release, z = self.release_of(candidate.planned_limits, goal), candidate.noise_multiplier
            # Without a guarantee there is no figure at all.
            with contextlib.suppress(ValueError):
                candidate = replace(candidate, rho=rho_of(release.event(z)))
            candidate = replace(candidate, epsilon=known_epsilon(release, z, self.target.delta))
        self.candidates.append(candidate)
        self.on_progress(str(candidate))
        return candidate

    def _in_full(self, note: str, goal: int, run: Scenario) -> str:
        """Returns the reason why a run starved with the values of the full size, and what its pace
        takes of the days."""
        full = {"rounds.report_goal": goal, "population.devices": self.scenario.population.devices}
        scaled = (run.rounds.report_goal, run.population.devices)
        for (key, value), simulated_value in zip(full.items(), scaled, strict=True):
            note = re.sub(rf"\b{key}={simulated_value}\b", f"{key}={value}", note)
        rounds, pace = self.scenario.rounds, days_of_pace(self.scenario)
        if pace < LATE * rounds.max_days:
            return note
        return (
            f"{note}; {rounds.count:,} rounds {rounds.min_minutes_between:g} minutes apart take "
            f"{pace:.1f} of the {rounds.max_days:g} days by themselves"
        )


@dataclass
class _Planner(_Runs):
    """Searches for the best candidate, confirms it, and finds what would do instead."""

    searches: dict[float, GoalSearch] = field(default_factory=dict)
    """Search of each timer."""
    expected: float = 0.0
    """Candidates that the search is expected to simulate."""
    is_measured: bool = False
    """Whether the time was announced again, by the pace of the first candidate."""

    def expect(self, timers: Sequence[float], goal: int, own: Scenario | None) -> None:
        """Reports the estimated candidates and time, before the first simulation.

        Args:
            timers: timers of the search.
            goal: its first goal.
            own: scenario whose own settings are simulated first; None for none.
        """
        self.steps += own is not None
        # One goal is simulated at each timer, or several are searched.
        is_kept = self.target.report_goal is not None
        self.expected = float(len(timers)) if is_kept else usual_candidates(len(timers))
        hours = sorted(timers)[len(timers) // 2]
        clock = self.clock
        clock.small = run_seconds(self.run_of(goal, hours, 0, self.scale))
        clock.full = run_seconds(self.run_of(goal, hours, 0, 1.0))
        what = counted(round(self.expected), "candidate")
        self.on_progress(
            Announcement(
                f"about {what} of {self.seeds} runs each: {self._time(own is not None)}; longer if "
                "others use them, and measured once the first is simulated"
            )
        )

    def _time(self, extra: float) -> str:
        """Returns the time of the candidates to do, and of what follows, in words.

        Args:
            extra: candidates beyond those of the search; below 0 for those that are done.
        """
        clock = self.clock
        search = clock.of_candidates(max(0.0, self.expected + extra))
        met, failed = (clock.left(search + e) for e in (clock.beyond_search, clock.of_remedies))
        free = counted(clock.places, "free CPU")
        return f"{met} of {free}, or {failed} if none meets the target"

    def own(self, scenario: Scenario) -> tuple[Candidate, Candidate | None]:
        """A scenario's own goal, timer and noise multiplier, with its own mechanism, then with a
        BLT made for them, or None if they starve; neither is one of the candidates."""
        goal, hours = scenario.rounds.report_goal, scenario.participation.timer_hours
        target = replace(self.target, noise_per_report=scenario.privacy.noise_multiplier / goal)
        other = replace(self, scenario=scenario, target=target, candidates=[])
        of_own = replace(other, strategy=scenario.privacy.strategy, candidates=[])
        what = "runs of the scenario's own settings"
        found = of_own.tried(goal, hours, self.scale, what)
        # The runs are kept, so that they are simulated once.
        return found, None if found.starves else other.tried(goal, hours, self.scale, what)

    def try_first(self, goal: int, hours: float) -> None:
        """Tries the goal and timer of a scenario that states no noise, so that the plan has a row
        of just these, if the search has the timer and may take the goal."""
        search = self.searches.get(hours)
        if search is not None and search.may_take(goal) and goal != search.next_goal():
            what = "runs of the scenario's own goal and timer"
            self._learn(self.tried(goal, hours, self.scale, what))

    def search(self, least: Least, proposals: dict[float, Candidate | None]) -> None:
        """Continues all timers at once until each search is over, or the timer cannot be the best.

        Args:
            least: cost of the plan.
            proposals: timers whose search is over, which are left out; see `confirm`.
        """
        failed = dict[float, Candidate]()
        while True:
            asked: list[tuple[float, int]] = []
            for hours, search in self.searches.items():
                goal = None if hours in proposals else self._next_goal(hours, search)
                if goal is None or search.low >= self._most_to_win(least, proposals):
                    continue
                last = failed.get(hours)
                if last is not None and search.top and self._is_hopeless(last, search.top):
                    search.is_given_up = True
                    self.on_progress(f"timer {hours:g} h: given up at goal {last.report_goal:,}")
                    continue
                asked.append((hours, goal))
            if not asked:
                return
            for (hours, goal), found in zip(asked, self._seeds_of(asked), strict=True):
                candidate = self.judged(goal, hours, scale_of(goal, self.scale), found, None)
                self._learn(candidate)
                if not self.is_measured:
                    self.is_measured = True
                    left = self._time(-float(len(asked)))
                    self.on_progress(Announcement(f"measured on the first: {left} from here"))
                if not candidate.meets_target and not candidate.starves:
                    failed[hours] = candidate

    def _most_to_win(self, least: Least, proposals: dict[float, Candidate | None]) -> float:
        """Returns the largest goal with which a timer can be the best; see `_best`."""
        if least == "days":
            return math.inf
        found = [each.report_goal for each in proposals.values() if each is not None]
        found += [
            each.report_goal
            for each in self.candidates
            if each.meets_target and each.timer_hours not in proposals
        ]
        return (1 + NEAR) * min(found, default=math.inf)

    def _seeds_of(self, asked: Sequence[tuple[float, int]]) -> list[list[Truth]]:
        """Returns the outcomes of all seeds of each (timer, goal), or those up to the first that
        starved, which decides."""
        found: dict[tuple[float, int], list[Truth]] = {each: [] for each in asked}
        # A run that starves takes all its days, so that one is tried before the others.
        doubtful = [each for each in asked if self.searches[each[0]].may_starve(each[1])]
        for part, count in ((doubtful, 1), (asked, self.seeds)):
            wanted = [
                (each, seed)
                for each in part
                if not any(truth.note for truth in found[each])
                for seed in range(len(found[each]), count)
            ]
            if not wanted:
                continue
            runs = [self.run_of(goal, hours, seed, self.scale) for (hours, goal), seed in wanted]
            left = self._candidates_left(asked)
            what = f"runs for candidates ({len(self.candidates)} done, about {left:.0f} to do)"
            after = self.clock.of_candidates(left - len(asked)) + self.clock.beyond_search
            for (each, _), truth in zip(wanted, self.truths(runs, what, None, after), strict=True):
                found[each].append(truth)
        return list(found.values())

    def _candidates_left(self, asked: Sequence[tuple[float, int]]) -> float:
        """Returns the candidates to do, with those that are asked for."""
        most = sum(self.searches[hours].most_left for hours, _ in asked)
        # Timers are cut short, so that the most is seldom reached.
        return max(float(len(asked)), min(most, self.expected - len(self.candidates)))

    def _learn(self, candidate: Candidate) -> None:
        search, goal = self.searches[candidate.timer_hours], candidate.report_goal
        outcome = MEETS if candidate.meets_target else STARVES if candidate.starves else MISSES
        search.learn(goal, outcome)
        if candidate.rho is not None:
            search.bound(*_alike(candidate), outcome)

    @property
    def cut_short(self) -> tuple[float, ...]:
        """Timers whose search ended before its end, because they cannot be the best."""
        return tuple(h for h, each in self.searches.items() if each.next_goal() is not None)

    def _is_hopeless(self, failed: Candidate, top: int) -> bool:
        """Whether goals above a failed one, up to `top`, miss the target even with the noise of
        `top`, if devices come as late and as seldom as they did.

        In one population larger rounds close no earlier, so a timer spans no more of them; and a
        run takes more reports of the same devices: n rounds of goal G from D devices have
        k >= n G / D. So min-sep does not rise and k does not fall, except by chance: seeds differ
        by some per cent, of which the largest min-sep and the smallest k count here. The BLT for
        smaller limits is made anew, and nothing proves that its sensitivity is larger. So a timer
        that is given up has no goal that was found, which does not mean that none exists.
        """
        # Without the margin, which differs between goals.
        apart = max(each or failed.rounds for each in failed.min_seps)
        seen = fitting(failed.rounds, apart, min(failed.max_participations))
        release, target = self.judged_release_of(seen, top), self.target
        epsilon = known_epsilon(release, target.noise_per_report * top, target.delta)
        return epsilon is None or epsilon > self.target.epsilon

    @property
    def so_far(self) -> str:
        """The best candidate until now, as the end of a sentence; empty without one."""
        meeting = (each for each in self.candidates if each.meets_target)
        best = min(meeting, key=lambda each: each.report_goal, default=nearest_of(self.candidates))
        return "" if best is None else f"; best so far: {best}"

    def _next_goal(self, hours: float, search: GoalSearch) -> int | None:
        """Returns the next goal to simulate; goals that the rules make impossible are skipped."""
        while (goal := search.next_goal()) is not None:
            refusal = why_unsustainable(self.run_of(goal, hours, 0, 1.0))
            if refusal is None:
                return goal
            scale = scale_of(goal, self.scale)
            self.judged(goal, hours, scale, [Truth(None, note=refusal)], None, is_possible=False)
            search.learn(goal, STARVES)
        return None

    def confirm(self, least: Least) -> Candidate | None:
        """Returns the best candidate that also meets the target at full size, or None.

        One that falls short is tried again with a larger goal, as far as its timer allows. Then
        timers whose search was cut short may be the best, and are searched further.
        """
        proposals: dict[float, Candidate | None] = {}
        for _ in range(MOST_CONFIRMATIONS):
            self.search(least, proposals)
            self._propose(proposals)
            found = {hours: each for hours in self.searches if (each := proposals.get(hours))}
            if not found:
                return None
            hours, proposal = _best(found, least)
            full = proposal
            # A full-size run of the search is not simulated again.
            if not (proposal.is_full_size and proposal in self.candidates):
                goal = proposal.report_goal
                # A seed of its own: that of the scenario is left to the real run.
                run = self.run_of(goal, hours, self.seeds, 1.0)
                what = f"full-size runs of report goal {goal:,}, timer {hours:g} h,"
                after = self.clock.beyond_search - self.clock.full
                truths = self.truths([run], what, None, after)
                full = self.judged(goal, hours, 1.0, truths, proposal)
            if full.meets_target:
                # The plan's own scenario has the planned limits as rules; a run with them may be
                # slower, or starve.
                full = self._with_rules(full)
                if not full.starves:
                    return full
            # A goal that passes small simulations may fall short at full size, where the least gap
            # is the smallest of more devices.
            larger = _larger_goal(full)
            if larger is None or not self.searches[hours].allows(larger):
                proposals[hours] = None
            else:
                # The smaller runs are kept for their spread, and only the goal is new.
                proposals[hours] = replace(proposal, report_goal=larger)
        return None

    def _propose(self, proposals: dict[float, Candidate | None]) -> None:
        """Adds the least goal that meets the target, or None, of each timer whose search ended."""
        for hours, search in self.searches.items():
            if hours in proposals or search.next_goal() is not None:
                continue
            # Among goals that meet the target, the least has the fewest updates.
            met = (e for e in self.candidates if e.timer_hours == hours and e.meets_target)
            proposals[hours] = min(met, key=lambda each: each.report_goal, default=None)

    def what_ifs(self, best: Candidate) -> tuple[WhatIf, ...]:
        """What-ifs of the best candidate, simulated at the search's scale."""
        planned, strategy = planned_scenario(self.scenario, best)

        def simulate_all(runs: Sequence[Scenario]) -> list[Truth]:
            return self.truths(runs, "what-ifs", simulated, 0.0)

        scale = scale_of(best.report_goal, self.scale)

        def noise_for(participation: MinSep) -> float:
            seen = [participation.min_sep if participation.max_participations > 1 else None]
            found = limits_of_runs(best.rounds, seen, self.seeds, deviation=best.deviation)
            apart = found.min_sep or best.rounds
            limits = MinSep(best.rounds, apart, found.max_participations)
            release, target = self.judged_release_of(limits, best.report_goal), best.target
            z = release.least_noise(target.delta, min(target.epsilon, MOST_EPSILON))
            # As for remedies, since the run is smaller.
            return z if scale == 1.0 else (1 + PRECISION) * z

        return what_ifs(planned, strategy, scale, simulate_all, noise_for, self.devices_of_unit)

    def for_a_person(self, best: Candidate) -> tuple[Remedy, ...]:
        """The noise with which a person meets the target too, if the best candidate misses it."""
        owners = self.scenario.population.owners
        most = 1 if owners is None else owners.most_devices
        epsilon = best.epsilon_of_person(most)
        if epsilon is not None and epsilon <= best.target.epsilon:
            return ()
        return tuple(for_a_person(best, most, self.release_of))

    def remedies(self, own: Candidate | None) -> tuple[tuple[Remedy, ...], Candidate | None]:
        """Changes that would meet the target, from the nearest miss, at the search's scale; and the
        nearest miss if it is no candidate, because all of them starve."""
        near, fallback = nearest_of(self.candidates, own), None
        if near is None:
            near = fallback = self._that_does_not_starve(own)
        if near is None:
            return (), None
        if near.meets_target:
            # What it changes is all that it takes.
            keys = ("rounds.count", near.judged_epsilon, near.scale, near.days, None, near.rounds)
            return (Remedy(*keys, timer_hours=near.timer_hours),), fallback
        devices, number = self.scenario.population.devices, itertools.count(1)

        def simulate(more: int, hours: float, goal: int, rounds: int, once: bool) -> Candidate:
            # A remedy costs no more than a run of the plan at full size.
            scale = min(self.scale, devices / more)
            keys = [f"population.devices={more}", f"rounds.count={rounds}"]
            if once:
                keys.append("participation.max_participations=1")
            scenario = self.scenario.with_overrides(*keys)
            other = replace(self, scenario=scenario, candidates=[])
            return other.tried(goal, hours, scale, f"runs for proposal {next(number)}")

        longest = max((e.timer_hours for e in self.candidates if not e.starves), default=0.0)
        longer = [longest] if longest > near.timer_hours else []
        owners = self.scenario.population.owners
        # The noise for a person is that of the first row if the target is of a person.
        most = 1 if owners is None else owners.most_devices // self.devices_of_unit
        return remedies(near, devices, self.judged_release_of, simulate, longer, most), fallback

    def _that_does_not_starve(self, own: Candidate | None) -> Candidate | None:
        """The own goal and timer at the target's noise; or else the rounds that most devices of a
        starved candidate suffice for; None if they starve too."""
        what, other = "runs of what does not starve", replace(self, candidates=[])
        if own is not None and not own.starves:
            goal = self.target.report_goal or own.report_goal
            tried = other.tried(goal, own.timer_hours, self.scale, what)
            if not tried.starves:
                return tried
        tried = max(
            self.candidates,
            key=lambda each: (each.committed, -each.report_goal, -each.timer_hours),
            default=None,
        )
        for _ in range(MOST_PROPOSALS):
            if tried is None or not tried.committed:
                return None
            fewer = f"rounds.count={max(1, int(NEARLY_ALL * tried.committed))}"
            other = replace(self, scenario=self.scenario.with_overrides(fewer), candidates=[])
            tried = other.tried(tried.report_goal, tried.timer_hours, self.scale, what)
            if not tried.starves:
                return tried
        return None

    def _with_rules(self, full: Candidate) -> Candidate:
        """Adds the outcome of a run in which the planned limits are rules; it may starve then."""
        planned, _ = planned_scenario(self.scenario, full)
        seed = self.scenario.seed + self.seeds
        run = planned.with_overrides("training.enabled=false", f"seed={seed}")
        what = "full-size runs with the planned limits as rules"
        after = self.clock.beyond_search - 2.0 * self.clock.full
        (truth,) = self.truths([run], what, None, after)
        # A run with a note did not end as requested, so it meets no target.
        if truth.note:
            note = (
                f"only with the planned limits as rules, {truth.note}; reports of abandoned rounds "
                "count toward them too, so raise rounds.over_selection or "
                "rounds.report_timeout_minutes"
            )
            judged = replace(full, note=note, rho=None, epsilon=None)
        else:
            judged = replace(full, enforced_days=truth.days, enforced_min_sep=truth.min_sep)
            if truth.gaps is not None:
                median, longest = truth.gaps
                judged = replace(judged, median_gap_minutes=median, longest_gap_minutes=longest)
        # One candidate stands for both full-size runs.
        self.candidates[self.candidates.index(full)] = judged
        return judged


_NOT_PLANNED = {
    "buffered": "min-sep then counts buffers and follows from rounds.buffer.concurrency, which a "
    "plan does not vary; compare runs with `fedray sweep`",
    "upload-then-train": "min-sep is then that of rounds.uploads.schedule, so no simulation is "
    "needed to find it; take `fedray mechanism` with an epsilon",
}
"""Modes of rounds that are not planned, with the reason and a remedy."""


def _check(
    scenario: Scenario,
    target: PlanTarget,
    timers: Sequence[float],
    seeds: int,
    scale: float,
    least: str,
) -> None:
    check_only_models(scenario, "epsilon")
    if target.unit == "person" and scenario.population.owners is None:
        rule = "needs the devices of a person, which population.owners has"
        raise InputError.of("unit", target.unit, rule, "give population.owners")
    # A plan makes a BLT, whose noise devices add only with a last coefficient.
    PlannedNoise.of(scenario).as_added(named_mechanism("blt-400"))
    mode, devices = scenario.rounds.mode, scenario.population.devices
    if mode in _NOT_PLANNED:
        raise InputError.of("rounds.mode", mode, f"cannot be planned: {_NOT_PLANNED[mode]}")
    if not timers or min(timers) < 0:
        rule = "must be hours, at least one"
        raise InputError.of("timers", list(timers), rule, "24, 48, 72 are usual")
    if scenario.participation.policies is not None:
        raise InputError(
            "participation.policies is given, but a plan chooses the timer, the round separation "
            "and the cap; leave the policies out"
        )
    lost = scenario.participation.history_loss_per_day
    if lost is not None:
        rule = "makes devices forget the rules on which the epsilon of a plan rests"
        raise InputError.of("participation.history_loss_per_day", lost, rule, "leave it out")
    if least not in get_args(Least):
        raise InputError.of("least", least, f"must be one of {', '.join(get_args(Least))}")
    if not 2 <= seeds <= 100:
        raise InputError.of("seeds", seeds, "must be from 2 to 100", "their spread is the margin")
    if not 0 < scale <= 1:
        rule = "must be above 0 and at most 1"
        raise InputError.of("scale", scale, rule, "1 is the whole population")
    if devices * scale < LEAST_SIMULATED_GOAL:
        rule = f"is too small at scale={scale}"
        raise InputError.of("population.devices", devices, rule, "raise the scale")


def scale_of(goal: int, scale: float) -> float:
    """Small rounds are simulated at a larger scale."""
    return min(1.0, max(scale, LEAST_SIMULATED_GOAL / goal))


def _first_goal(
    scenario: Scenario, target: PlanTarget, least: int, most: int, devices: int = 1
) -> int:
    """The least goal that meets the target if k = rounds x goal / population, s = 2 sqrt(k) for
    each of the devices of the target's unit."""
    z = (
        2.0
        * devices
        * noise_multiplier_for(1.0, target.delta, epsilon=min(target.epsilon, MOST_EPSILON))
    )
    once = z / target.noise_per_report
    guess = max(once, once**2 * scenario.rounds.count / scenario.population.devices)
    # Larger goals starve, and finding that out takes long.
    return max(least, math.ceil(min(guess, most // 16)))


def _best(proposals: dict[float, Candidate], least: Least) -> tuple[float, Candidate]:
    """The fastest candidate; for the least updates, only among those whose goal is near the
    least."""
    most = (1 + NEAR) * min(each.report_goal for each in proposals.values())
    near = {
        hours: each
        for hours, each in proposals.items()
        if least == "days" or each.report_goal <= most
    }
    return min(near.items(), key=lambda item: (item[1].days or 0.0, item[1].report_goal))


def _alike(candidate: Candidate) -> tuple[float, float]:
    """Returns the least and the largest goal that have the outcome of a simulated candidate, with
    known rho, if larger rounds have no larger min-sep.

    In one population larger rounds close no earlier and take more reports of the same devices. So
    min-sep does not rise with the goal, nor does k fall: all goals above one that misses miss too,
    until their noise makes up for it; and all below one that meets the target meet it, until theirs
    is too small. A sensitivity is taken to grow no faster than k, and to fall no faster than
    min-sep rises. Neighbours differ by chance: at a larger goal the largest min-sep of the seeds
    counts, at a smaller one twice the margin.
    """
    assert candidate.rho is not None
    limits, goal, n = candidate.planned_limits, candidate.report_goal, candidate.rounds
    b, k = limits.min_sep, limits.max_participations
    seen = [each or n for each in candidate.min_seps]
    target = candidate.target
    if target.epsilon > MOST_EPSILON:
        return goal, goal
    most = most_mu(target.epsilon, target.delta, by_zcdp=candidate.by_zcdp)
    needed = goal * candidate.devices_of_unit * math.sqrt(2.0 * candidate.rho) / most
    if candidate.meets_target:
        mean = sum(seen) / len(seen)
        apart = max(1, math.floor((1 - BY_CHANCE) * (mean - SPREAD * (mean - b))))
        more = max(k, most_of_device(n, apart))
        return needed * (more / k) * (b / min(b, apart)), goal
    apart = min(n, math.ceil((1 + BY_CHANCE) * max(seen)))
    fewer = min(k, most_of_device(n, apart))
    return goal, needed * (fewer / k) * (b / max(b, apart))


def _larger_goal(full: Candidate) -> int | None:
    """The goal after one that falls short, as if epsilon fell with its inverse."""
    if full.starves:
        return None
    # At least one per cent, so that the search continues; at most half as much again, as a goal
    # that is too large starves.
    found = full.judged_epsilon
    ratio = math.inf if found is None else found / full.target.epsilon
    return math.ceil(full.report_goal * min(1.5, max(1.01, ratio)))


def with_limits(
    candidate: Candidate, seeds: int, before: Candidate | None, rules: Participation | None = None
) -> Candidate:
    """Plans the limits of a candidate; see `limits_of_runs`."""
    # One run at full size has no spread of its own; that of the smaller ones stands for it.
    deviation = before.deviation if before is not None else None
    found = limits_of_runs(candidate.rounds, candidate.min_seps, seeds, rules, deviation)
    return replace(
        candidate,
        planned_min_sep=found.min_sep,
        planned_max_participations=found.max_participations,
        deviation=found.deviation,
    )


def _within_days(
    candidate: Candidate, before: Candidate | None, max_days: float | None
) -> Candidate:
    """Plans no more participations than the timer permits within the days of the slowest run, nor
    fewer than were seen. The scenario of the plan enforces them as a cap."""
    most = candidate.planned_max_participations
    assert most is not None
    assert candidate.days is not None
    seen = [*candidate.max_participations, *(before.max_participations if before else ())]
    if candidate.timer_hours:
        # The cap that this becomes holds back devices of a slower run only, in its last days.
        days = min(max_days or math.inf, candidate.days)
        most = min(most, max(*seen, most_within(days, candidate.timer_hours)))
    return replace(candidate, planned_max_participations=most)


def most_within(days: float, timer_hours: float) -> int:
    """Returns the most participations within these days if a timer passes between any two."""
    # The slack is for rounding; a larger cap is accounted for.
    return math.floor(24.0 * days / timer_hours + 1e-9) + 1


class LimitsOfRuns(NamedTuple):
    """Planned limits of a run like some others."""

    min_sep: int | None
    """Smallest min-sep to expect; None if no device is to come twice."""
    max_participations: int
    """Most participations at that min-sep."""
    deviation: float
    """Standard deviation of the min-sep over its mean."""


def limits_of_runs(
    rounds: int,
    min_seps: Sequence[int | None],
    seeds: int,
    rules: Participation | None = None,
    deviation: float | None = None,
) -> LimitsOfRuns:
    """Plans the limits: a lower prediction bound of one more run's min-sep (Student's t), and the
    most participations that have room at it, which runs with fewer do not refute; or the limits
    that the scenario's rules ensure.

    Args:
        rounds: rounds of every run.
        min_seps: min-seps seen; None where no device came twice.
        seeds: runs on which the deviation rests.
        rules: participation rules of the scenario.
        deviation: standard deviation over the mean, if known; by default that of `min_seps`.
    """
    from scipy import stats

    # If no device came twice, min-sep is at least as long as the run.
    known = np.array([rounds if each is None else each for each in min_seps], float)
    if deviation is None:
        deviation = max(float(known.std(ddof=1)), LEAST_DEVIATION) / float(known.mean())
    # A prediction interval: one more run deviates by itself, and the mean of the seen runs does.
    quantile = float(stats.t.ppf(1.0 - MISS_PROBABILITY, seeds - 1))
    factor = quantile * math.sqrt(1.0 + 1.0 / known.size)
    if not any(min_seps):
        return LimitsOfRuns(None, 1, deviation)
    predicted = known.mean() * (1.0 - factor * deviation)
    # The plan is never above a min-sep that was seen, however small the spread.
    min_sep = max(1, math.floor(min(predicted, known.min())))
    # Limits that the rules ensure anyway need no plan.
    kept = [each for each in rules_of(rules) if not each.unkept] if rules is not None else []
    _, separation, cap = strictest(kept)
    min_sep = max(min_sep, separation)
    most = most_of_device(rounds, min_sep)
    most = most if cap is None else min(most, cap)
    return LimitsOfRuns(min_sep, most, deviation)


def _mechanism_for(limits: MinSep, target: PlanTarget) -> Strategy:
    request = MechanismRequest("blt", limits, target.buffers)
    return made_mechanism(request, cache_folder("designs"))
