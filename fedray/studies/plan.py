"""A plan: the report goal, timer and noise multiplier that meet a privacy target at the least cost,
by simulated min-seps.

The signal-to-noise hypothesis (McMahan et al. 2018; the practice of DP-FTRL studies): models of
equal quality need an equal ratio of noise multiplier to report goal. A larger goal then means more
noise and less privacy loss, but devices come round sooner, and a run may starve. The common guess
for min-sep, population / report goal, is that of a population that is cycled through without a gap;
here it is simulated.

The planned min-sep is a margin below the simulated ones: a lower prediction bound of the min-sep of
one more run, from the spread of the seeds. Smaller simulations have fewer devices, so their least
gap is a little larger; hence a run of the full size confirms the plan, and corrects it if that
falls short.

The scenario of a plan makes rules of its planned limits: devices keep the planned min-sep as a
round separation, and the planned participations as a cap. So the planned epsilon rests on enforced
rules. Devices seldom meet these rules, because they lie below the devices' own behaviour; a second
run of the full size, with the rules, shows their cost.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from fedray.base.document import InJson, InPlace, Key, Keys, NotInJson
from fedray.base.errors import InputError, Unsustainable
from fedray.base.part_done import PartDone
from fedray.base.result import DrawnResult
from fedray.base.rounding import given, up
from fedray.mechanisms.accounting.events import Gaussian
from fedray.mechanisms.accounting.gdp import gdp_epsilon
from fedray.mechanisms.accounting.limits import (
    LEAST_NOISE_MULTIPLIER,
    MOST_NOISE_MULTIPLIER,
    check_delta,
)
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.mechanisms.optimize.design import MechanismRequest, default_cache, made_mechanism
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.strategy import Strategy
from fedray.runs.sustainable import why_unsustainable
from fedray.runtime.cluster import TaskCounts, cluster
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.scenario.participation import Participation
from fedray.studies.simulated import StudyCache, Truth, simulate_runs, simulated_limits

PRECISION = 0.05
"""Relative, of report goals: between a goal that fails and one that meets the target."""
NEAR_STARVING = 0.25
"""Least distance to a starving goal at which other goals are tried if none met the target: starving
takes long to find out."""
GROWTH = 2.0
LEAST_SIMULATED_GOAL = 20
"""Smaller rounds are simulated at a larger scale."""
LEAST_SCALE = 0.05
"""Below, min-seps of simulations are further off than the margin covers."""
MOST_CONFIRMATIONS = 8
FULL_SIZE_RUNS = 2
"""That most plans need: one confirms, and one keeps the planned limits as rules."""
MISS_PROBABILITY = 0.05
"""That one more run has a smaller min-sep than is planned for, if min-seps vary normally, as they
did between seeds."""
LEAST_DEVIATION = 0.5
"""Rounds: min-sep is a whole number, so that equal seeds do not mean no spread."""
SLOWER = 0.05
"""Relative: a run that takes so much longer with the planned limits as rules than without gets a
warning."""
MOST_OF_THE_DEVICES = 0.95
"""Largest share of the usable devices that a round may select at once."""
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PlanTarget:
    """Target of a plan, and how it is judged. Raises InputError for an impossible value."""

    epsilon: float
    """Most epsilon."""
    delta: float = 1e-10
    """delta of epsilon."""
    noise_per_report: float = 7.0 / 6500.0
    """Noise multiplier over report goal: the signal-to-noise ratio is the same at every goal."""
    buffers: int = 4
    """Buffers of the BLT that is planned for."""

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise InputError.of(
                "epsilon",
                self.epsilon,
                "must be positive and finite",
                "0 would need noise without end",
            )
        if not 0 < self.noise_per_report < math.inf:
            raise InputError.of(
                "noise_per_report",
                self.noise_per_report,
                "must be positive",
                "7 / 6500 is that of Xu et al. 2023",
            )
        # This import loads jax, which takes 0.8 s.
        from fedray.mechanisms.optimize.blt import MOST_BUFFERS

        if not 1 <= self.buffers <= MOST_BUFFERS:
            raise InputError.of(
                "buffers", self.buffers, f"must be from 1 to {MOST_BUFFERS}", "4 are usual"
            )
        try:
            check_delta(self.delta)
        except ValueError as error:
            raise InputError.caused_by(error) from None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A report goal with a timer, as simulated, and the limits and privacy that are planned with
    it."""

    report_goal: int
    """Reports that close a round."""
    timer_hours: float
    """Participation timer."""
    noise_multiplier: float
    """z: the goal times the target's noise per report."""
    scale: float
    """Size of the simulations; 1: the whole population."""
    population_over_goal: int
    """The common guess for min-sep, rounded down; it may be more than there are rounds."""
    min_seps: tuple[int | None, ...]
    """Min-sep of each seed's run; None if no device took part twice."""
    max_participations: tuple[int, ...]
    """Most participations of a device in each seed's run."""
    planned_min_sep: int | None = None
    """Min-sep of the plan: those of the seeds less a margin; None if no device takes part twice."""
    planned_max_participations: int | None = None
    """Most participations of the plan: one more than the seeds' if they differ; None if a run
    starves."""
    deviation: float | None = None
    """Standard deviation of the min-sep between seeds over its mean."""
    days: float | None = None
    """Days that the slowest seed's run took."""
    sensitivity: float | None = None
    """Sensitivity of a BLT made for the planned limits, under them."""
    rho: float | None = None
    """zCDP at the planned limits."""
    epsilon: float | None = None
    """Epsilon at the planned limits; None if the noise is too small for a guarantee, or a run
    starves."""
    guessed_epsilon: float | None = None
    """Epsilon if min-sep were population / report goal."""
    note: str = ""
    """Why a run starved; empty if none did."""
    enforced_days: float | None = None
    """Days of a full-size run in which the planned limits are rules; None if none was simulated."""
    enforced_min_sep: int | None = None
    """Min-sep of that run; None also where no device took part twice."""

    @property
    def starves(self) -> bool:
        """Whether a run of a seed could not commit its rounds, for want of devices."""
        return bool(self.note)

    @property
    def is_full_size(self) -> bool:
        """Whether the whole population was simulated, and not a smaller one."""
        return self.scale == 1.0

    def meets(self, target: PlanTarget) -> bool:
        """Whether epsilon is known and no more than the `target` asks for."""
        return self.epsilon is not None and self.epsilon <= target.epsilon

    def updates(self, rounds: int) -> int:
        """Returns the cost of a run of `rounds` rounds: accepted device updates, of all devices
        together."""
        return rounds * self.report_goal


class PlannedCandidate(NamedTuple):
    """A candidate, its cost, and whether it meets the target."""

    candidate: InPlace[Candidate]
    updates: int
    """Accepted updates of a run, of all devices together."""
    meets_target: bool
    """Whether epsilon is known and no more than was asked for."""


class PlannedTimer(NamedTuple):
    """The least report goal of a timer."""

    timer_hours: float
    """Participation timer."""
    least: PlannedCandidate | None
    """The candidate of the least report goal that meets the target: at full size where one was
    simulated; None if none meets it."""


@dataclass(frozen=True, slots=True)
class Plan(DrawnResult):
    """The best candidate, and all that were simulated on the way."""

    TABLES: ClassVar[str] = "fedray.studies.plan_page:plan_tables"
    FIGURES: ClassVar[str] = "fedray.studies.plan_page:plan_figures"
    PAGE: ClassVar[str] = "fedray.studies.plan_page:plan_page"

    target: PlanTarget
    """What was asked for."""
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
    best: NotInJson[Candidate | None]
    """The answer, confirmed at full size; None if nothing meets the target."""
    candidates: NotInJson[tuple[Candidate, ...]]
    """All that were simulated, in order of timer, goal and scale."""
    warnings: tuple[str, ...] = ()
    """What the reader must know of the answer, in sentences."""
    has_cache: NotInJson[bool] = True
    """Whether what was computed is kept, and what was kept is taken."""

    def __repr__(self) -> str:
        found = "nothing meets it"
        if self.best is not None:
            found = f"goal {self.best.report_goal:,}, timer {self.best.timer_hours:g} h"
        tried = f"{len(self.candidates)} candidates"
        return f"<Plan for epsilon {given(self.target.epsilon)}: {found}; {tried}>"

    @property
    def least_of_timers(self) -> dict[float, Candidate | None]:
        """For each timer the candidate of the least goal that meets the target: at full size where
        one was simulated."""
        timers = [each.timer_hours for each in self.candidates]
        found: dict[float, Candidate | None] = dict.fromkeys(timers)
        for hours in found:
            all_of_it = [each for each in self.candidates if each.timer_hours == hours]
            meeting = [each for each in all_of_it if each.meets(self.target)]
            failing = [each for each in all_of_it if not each.meets(self.target)]
            # A goal that fell short at full size refutes smaller goals that small simulations let
            # pass.
            refuted = max((each.report_goal for each in failing if each.is_full_size), default=0)
            meeting = [each for each in meeting if each.report_goal > refuted]
            full = [each for each in meeting if each.is_full_size]
            found[hours] = min(full or meeting, key=lambda each: each.report_goal, default=None)
        return found

    def _planned(self, candidate: Candidate | None) -> PlannedCandidate | None:
        if candidate is None:
            return None
        updates = candidate.updates(self.scenario.rounds.count)
        return PlannedCandidate(candidate, updates, candidate.meets(self.target))

    @property
    def planned_best(self) -> Annotated[PlannedCandidate | None, Key("best")]:
        """The answer, confirmed at full size; None if nothing meets the target."""
        return self._planned(self.best)

    @property
    def planned(self) -> Annotated[list[PlannedCandidate], Key("candidates")]:
        """All that were simulated, in order of timer, goal and scale."""
        return [each for each in map(self._planned, self.candidates) if each is not None]

    @property
    def timers(self) -> InJson[list[PlannedTimer]]:
        """Least report goal of each timer."""
        least = self.least_of_timers.items()
        return [PlannedTimer(hours, self._planned(found)) for hours, found in least]

    def to_arrow(self) -> pa.Table:
        """The candidates, a row each, with the keys of `to_json`."""
        return pa.Table.from_pylist(self.to_json()["candidates"])


def make_plan(
    scenario: Scenario,
    target: PlanTarget,
    timers: Sequence[float],
    seeds: int = 3,
    scale: float = 0.1,
    placement: Placement | None = None,
    has_cache: bool = True,
    on_progress: Progress | None = None,
) -> Plan:
    """Finds for every timer the least report goal that meets the target in small simulations; then
    confirms the best of them at full size. Of goals within 5 % of the least, the fastest is best.

    An interrupted plan continues when it is asked for again: its simulations are kept.

    Args:
        scenario: population, rounds and all but report goal and timer.
        target: the target.
        timers: participation timers to try, hours.
        seeds: simulations of each candidate, at least 2, since their spread is the margin.
        scale: factor on population and goal in the search.
        placement: where the simulations run.
        has_cache: whether to keep simulations and the mechanisms made for them, and to use kept
            ones.
        on_progress: called with progress of the plan.

    Raises:
        Unsustainable: no report goal can be run under the rules, at any timer.
        InputError: no report goal is possible, or an argument is impossible.
        RunFailed: a simulation dies for good.
    """
    _check(scenario, timers, seeds, scale)
    # z is goal x noise per report, and scenarios refuse a smaller z.
    least = max(1, math.ceil(LEAST_NOISE_MULTIPLIER / target.noise_per_report))
    # No round can select more devices than there are, nor can the noise be larger than is allowed.
    selectable = MOST_OF_THE_DEVICES * scenario.device_ids * scenario.usable_share
    most_of_devices = selectable / scenario.rounds.over_selection
    most_of_noise = MOST_NOISE_MULTIPLIER / target.noise_per_report
    most = int(min(most_of_devices, most_of_noise))
    if least > most:
        raise InputError.of(
            "population.devices",
            scenario.population.devices,
            f"is too small: no report goal from {least:,} to {most:,} is possible",
            "raise it, or the noise per report",
        )
    # Larger goals need more devices, so if the least one is impossible, all are.
    of_timers = [f"participation.timer_hours={hours!r}" for hours in timers]
    smallest = scenario.with_overrides(f"rounds.report_goal={least}", "training.enabled=false")
    reasons = [why_unsustainable(smallest.with_overrides(each)) for each in of_timers]
    if all(reasons):
        raise Unsustainable(f"no report goal is possible; the least one: {reasons[0]}")
    placement = placement or Placement()
    cache = StudyCache(has_cache)
    # The cluster is joined here, once for all simulations, so that they need no address.
    with cluster(placement) as cpus:
        tell = on_progress or (lambda _: None)
        runs = _Runs(replace(placement, address=None), cpus, cache, tell)
        planner = _Planner(scenario, target, seeds, scale, runs, has_cache)
        start = _first_goal(scenario, target, least, most)
        searches = {hours: _Search(least, most, start) for hours in timers}
        planner.search(searches)
        best = planner.confirm(searches)
    candidates = sorted(
        planner.candidates, key=lambda each: (each.timer_hours, each.report_goal, each.scale)
    )
    warnings = (*_warnings(scale, best, least, candidates), *cache.warnings)
    return Plan(target, scenario, seeds, scale, best, tuple(candidates), warnings, has_cache)


def _warnings(
    scale: float, best: Candidate | None, least: int, candidates: Sequence[Candidate]
) -> list[str]:
    warnings = []
    seen = {most for each in candidates for most in each.max_participations}
    if seen == {1}:
        warnings.append(
            "No device took part twice in any simulation, so neither min-sep nor the timer changes "
            "epsilon. It takes a run of more rounds to tell timers apart."
        )
    if scale < LEAST_SCALE:
        warnings.append(
            f"The search was simulated at {scale:g} of the size. Below {LEAST_SCALE:g} min-seps "
            "may be several per cent off; only what was run at full size can be relied on."
        )
    if best is None:
        return warnings
    if best.days and best.enforced_days and best.enforced_days > (1 + SLOWER) * best.days:
        warnings.append(
            f"With the planned limits as rules the run takes {best.enforced_days:.1f} days instead "
            f"of {best.days:.1f}."
        )
    if best.report_goal == least:
        warnings.append(
            f"Report goal {least:,} is the least that this noise per report allows, so that no "
            "smaller one was tried."
        )
    return warnings


def planned_scenario(
    scenario: Scenario, target: PlanTarget, best: Candidate, has_cache: bool = True
) -> tuple[Scenario, Strategy]:
    """Returns the scenario of a candidate, in which devices must keep the planned limits, and the
    mechanism made for them.

    Args:
        scenario: everything except the planned keys.
        target: source of delta and the buffers of the mechanism.
        best: the candidate.
        has_cache: whether to keep the mechanism, and to use a kept one.
    """
    # As overrides, so that planned keys are read and checked like a user's.
    strategy = _Designs(target.buffers, has_cache).of(_limits(scenario.rounds.count, best))
    parameters = strategy.model_dump(mode="json")
    table = ", ".join(f"{name} = {_toml(value)}" for name, value in parameters.items())
    # A cohort is drawn from the round, so it cannot be larger.
    sample = min(scenario.training.cohort_sample, best.report_goal)
    # If no device comes twice there is nothing to enforce, and the user's own rule stays.
    separation = best.planned_min_sep or scenario.participation.round_separation
    planned = scenario.with_overrides(
        f"rounds.report_goal={best.report_goal}",
        f"participation.timer_hours={best.timer_hours!r}",
        f"participation.round_separation={separation}",
        f"participation.max_participations={best.planned_max_participations}",
        f"privacy.noise_multiplier={best.noise_multiplier!r}",
        f"privacy.delta={target.delta!r}",
        f"privacy.mechanism={{{table}}}",
        f"training.cohort_sample={sample}",
    )
    return planned, strategy


def _toml(value: Any) -> str:
    """A kind, a number or a list of numbers."""
    return f'"{value}"' if isinstance(value, str) else repr(value)


class _Runs:
    """Simulates the runs of candidates, and reports progress of the whole plan.

    The unit of work is the time of one run at full size. The work left is an estimate, as a search
    may take more or fewer steps.
    """

    def __init__(
        self, placement: Placement, cpus: float, cache: StudyCache, tell: Progress
    ) -> None:
        self._placement = placement
        self._cpus = cpus
        self._cache = cache
        self._tell = tell
        self._work = 0.0
        """Work simulated; kept runs took no time."""
        self._work_left = 0.0
        """Work left when the requested runs are done."""
        self._share = 0.0

    def work_of(self, count: int, scale: float) -> float:
        """Returns the time of `count` runs of this size, as many at once as there are CPUs."""
        # Runs beyond the CPUs wait, and fewer runs than CPUs leave the others idle.
        return scale * count / max(1.0, min(self._cpus, count))

    def truths(
        self, scenarios: Sequence[Scenario], scale: float, what: str, work_left: float
    ) -> list[Truth]:
        """Returns the outcome of each run.

        Args:
            scenarios: scenarios of the runs.
            scale: scale of the runs.
            what: progress text.
            work_left: estimated further work of the plan.
        """
        self._work_left = work_left
        cost = self.work_of(len(scenarios), scale) / len(scenarios)
        before = self._work

        def say(counts: TaskCounts) -> None:
            self._work = before + cost * counts.done
            self._told(counts.line(f"{what} simulated"), cost * (counts.jobs - counts.done))

        return simulate_runs(scenarios, simulated_limits, self._placement, self._cache, say)

    def tell(self, text: str) -> None:
        """Reports a line, with the share of the work done."""
        self._told(text, 0.0)

    def _told(self, text: str, left: float) -> None:
        whole = self._work + left + self._work_left
        # The work left may grow, but the share done never falls.
        self._share = max(self._share, self._work / whole if whole else 0.0)
        self._tell(PartDone(text, self._share, 1.0))


class _Planner:
    """Simulates candidates, and keeps all of them."""

    def __init__(
        self,
        scenario: Scenario,
        target: PlanTarget,
        seeds: int,
        scale: float,
        runs: _Runs,
        has_cache: bool,
    ) -> None:
        self._scenario = scenario
        self._target = target
        self._seeds = seeds
        self._scale = scale
        self._runs = runs
        self._designs = _Designs(target.buffers, has_cache)
        self.candidates: list[Candidate] = []

    def search(self, searches: "dict[float, _Search]") -> None:
        """Continues all timers at once until each has its least goal, or none is left."""
        while True:
            wanted = {hours: search.next_goal() for hours, search in searches.items()}
            asked = [(hours, goal) for hours, goal in wanted.items() if goal is not None]
            if not asked:
                return
            # The runs of this step are reported as they finish, so they are not left over.
            steps = sum(search.steps_left() for search in searches.values()) - len(asked)
            work_left = FULL_SIZE_RUNS + self._runs.work_of(steps * self._seeds, self._scale)
            runs = [
                self._run_of(goal, hours, seed, self._scale)
                for hours, goal in asked
                for seed in range(self._seeds)
            ]
            goals = " and ".join(f"{goal:,}" for goal in sorted({goal for _, goal in asked}))
            what = f"runs of report goals {goals}"
            truths = self._runs.truths(runs, self._scale, what, work_left)
            for place, (hours, goal) in enumerate(asked):
                # The seeds of a candidate lie together, in the order in which they were asked for.
                first = place * self._seeds
                found = truths[first : first + self._seeds]
                scale = _scale_of(goal, self._scale)
                candidate = self._judged(goal, hours, scale, found, None)
                searches[hours].learn(goal, candidate.meets(self._target), candidate.starves)

    def confirm(self, searches: "dict[float, _Search]") -> Candidate | None:
        """Returns the best candidate that also meets the target at full size, or None.

        One that falls short is tried again with a larger goal, as far as its timer allows.
        """
        meeting = [each for each in self.candidates if each.meets(self._target)]
        proposals: dict[float, Candidate] = {}
        for hours in searches:
            of_timer = [each for each in meeting if each.timer_hours == hours]
            if of_timer:
                # Among goals that meet the target, the least has the fewest updates.
                proposals[hours] = min(of_timer, key=lambda each: each.report_goal)
        for _ in range(MOST_CONFIRMATIONS):
            if not proposals:
                return None
            hours, proposal = _best(proposals)
            full = proposal
            # A full-size run of the search is not simulated again.
            if not (proposal.is_full_size and proposal in self.candidates):
                goal = proposal.report_goal
                run = self._run_of(goal, hours, 0, 1.0)
                what = f"full-size runs of report goal {goal:,}, timer {hours:g} h,"
                found = self._runs.truths([run], 1.0, what, work_left=FULL_SIZE_RUNS - 1.0)
                full = self._judged(goal, hours, 1.0, found, proposal)
            if full.meets(self._target):
                # The plan's own scenario has the planned limits as rules; a run with them may be
                # slower, or starve.
                full = self._with_rules(full)
                if not full.starves:
                    return full
            # A goal that passes small simulations may fall short at full size, where the least gap
            # is the smallest of more devices.
            larger = _larger_goal(full, self._target)
            if larger is None or not searches[hours].allows(larger):
                del proposals[hours]
            else:
                # The smaller runs are kept for their spread, and only the goal is new.
                proposals[hours] = replace(proposal, report_goal=larger)
        return None

    def _with_rules(self, full: Candidate) -> Candidate:
        """Returns the candidate with the outcome of a run in which the planned limits are rules; it
        may starve then."""
        has_cache = self._designs.has_cache
        planned = planned_scenario(self._scenario, self._target, full, has_cache)[0]
        run = planned.with_overrides("training.enabled=false")
        what = "full-size runs with the planned limits as rules"
        (truth,) = self._runs.truths([run], 1.0, what, work_left=0.0)
        participation = truth.participation
        seen = None
        if participation is not None and participation.max_participations > 1:
            seen = participation.min_sep
        # A run with a note did not come about as asked, so it meets no target.
        if truth.note:
            judged = replace(full, note=truth.note, rho=None, epsilon=None)
        else:
            judged = replace(full, enforced_days=truth.days, enforced_min_sep=seen)
        # One candidate stands for both full-size runs.
        self.candidates[self.candidates.index(full)] = judged
        return judged

    def _run_of(self, goal: int, hours: float, seed: int, scale: float) -> Scenario:
        full = self._scenario.with_overrides(
            f"rounds.report_goal={goal}",
            f"participation.timer_hours={hours!r}",
            # The first run has the scenario's own seed.
            f"seed={self._scenario.seed + seed}",
            "training.enabled=false",
        )
        return full.scaled(_scale_of(goal, scale))

    def _judged(
        self,
        goal: int,
        hours: float,
        scale: float,
        found: Sequence[Truth],
        before: Candidate | None,
    ) -> Candidate:
        """Returns the outcome of a goal in simulations of one size. before: smaller simulations,
        whose spread and participations count too."""
        # z grows with the goal, so that the signal-to-noise ratio of a round stays the same.
        n = self._scenario.rounds.count
        target = self._target
        z = target.noise_per_report * goal
        over = self._scenario.population.devices // goal
        participations = [truth.participation for truth in found if truth.participation is not None]
        # A run that ended with its budget has participations and a note.
        notes = [truth.note for truth in found if truth.note]
        # Population / goal may exceed the rounds, which a min-sep cannot.
        guessed = max(1, min(n, over))
        guessed_limits = MinSep(n, guessed, -(-n // guessed))
        guessed_sensitivity = _sensitivity(guessed_limits, self._designs)
        min_seps = [
            each.min_sep if each.max_participations > 1 else None for each in participations
        ]
        candidate = Candidate(
            report_goal=goal,
            timer_hours=hours,
            noise_multiplier=z,
            scale=scale,
            population_over_goal=over,
            min_seps=tuple(min_seps),
            max_participations=tuple(each.max_participations for each in participations),
            guessed_epsilon=_epsilon(guessed_sensitivity, z, target.delta),
            note=notes[0] if notes else "",
        )
        if not notes:
            rules = self._scenario.participation
            candidate = _with_limits(candidate, n, self._seeds, before, rules)
            limits = _limits(n, candidate)
            sensitivity = _sensitivity(limits, self._designs)
            candidate = replace(
                candidate,
                # The slowest run counts, so that a plan does not promise too few days.
                days=max(truth.days or 0.0 for truth in found),
                sensitivity=sensitivity,
                rho=rho_of(Gaussian(noise_multiplier=z, sensitivity=sensitivity)),
                epsilon=_epsilon(sensitivity, z, target.delta),
            )
        self.candidates.append(candidate)
        if notes:
            shown = "starves"
        elif candidate.epsilon is None:
            shown = "no guarantee"
        else:
            shown = f"epsilon {up(candidate.epsilon, 2)}"
        self._runs.tell(f"goal {goal:,}, timer {hours:g} h, at {scale:.2g} of the size: {shown}")
        return candidate


class _Search:
    """The least report goal that meets the target, of one timer: from a first guess by factors of
    two, down as well as up, then bisection, between a goal that fails and one that meets the
    target, or starves."""

    def __init__(self, least: int, most: int, first: int) -> None:
        self._least = least
        self._most = most
        self._first = first
        self._low = 0
        """Largest goal that failed; 0 for none."""
        self._high = 0
        """Smallest goal that met the target; 0 for none."""
        self._starving = 0
        """Smallest goal that starved; 0 for none."""

    def next_goal(self) -> int | None:
        """Returns the goal to simulate next, or None when the search is over."""
        # A goal that starves bounds the search as one that meets the target does.
        top = self._high or self._starving
        if not self._low and not top:
            return self._first
        # Nothing has failed yet, so a smaller goal may do as well.
        if not self._low:
            smaller = max(self._least, round(top / GROWTH))
            return smaller if top > self._least else None
        if not top:
            larger = min(self._most, round(self._low * GROWTH))
            return larger if self._low < self._most else None
        near = PRECISION if self._high else NEAR_STARVING
        # Goals are whole numbers, so neighbours have nothing between them.
        if top <= self._low * (1 + near) or top - self._low < 2:
            return None
        # Bisection of the logarithm, as precision is relative.
        return round(math.sqrt(self._low * top))

    def learn(self, goal: int, meets: bool, starves: bool) -> None:
        """Takes what became of a `goal`: whether it `meets` the target, and whether its run
        `starves`."""
        if meets:
            self._high = goal
        elif starves and not self._high:
            self._starving = goal
        else:
            # A goal that starves below one that meets the target is noise of the search: it fails.
            self._low = goal

    def steps_left(self) -> int:
        """About how many goals are still to be simulated: exact between two bounds, else as if the
        next goal were the second bound."""
        if self.next_goal() is None:
            return 0
        top = self._high or self._starving
        if not self._low or not top:
            return 1 + _bisections(GROWTH, PRECISION)
        return _bisections(top / self._low, PRECISION if self._high else NEAR_STARVING)

    def allows(self, goal: int) -> bool:
        """Whether a `goal` is possible for the population, and not known to starve at this
        timer."""
        return goal <= self._most and not 0 < self._starving <= goal


_NOT_PLANNED = {
    "buffered": "min-sep then counts buffers and follows from rounds.buffer.concurrency, which a "
    "plan does not vary; compare runs with `fedray stress`",
    "upload-then-train": "min-sep is then that of rounds.uploads.schedule, so no simulation is "
    "needed to find it; take `fedray mechanism` with an epsilon",
}
"""Why a mode of rounds is not planned, and what to do instead."""


def _check(scenario: Scenario, timers: Sequence[float], seeds: int, scale: float) -> None:
    mode = scenario.rounds.mode
    if mode in _NOT_PLANNED:
        raise InputError.of("rounds.mode", mode, f"cannot be planned: {_NOT_PLANNED[mode]}")
    if not timers or min(timers) < 0:
        raise InputError.of(
            "timers", list(timers), "must be hours, at least one", "24, 48, 72 are usual"
        )
    if scenario.participation.policies is not None:
        raise InputError(
            "participation.policies is given, but a plan chooses the timer, the round separation "
            "and the cap of the table itself; leave the policies out"
        )
    if not 2 <= seeds <= 100:
        raise InputError.of(
            "seeds",
            seeds,
            "must be from 2 to 100",
            "their spread is the margin that is planned with",
        )
    if not 0 < scale <= 1:
        raise InputError.of(
            "scale", scale, "must be above 0 and at most 1", "1 is the whole population"
        )
    if scenario.population.devices * scale < LEAST_SIMULATED_GOAL:
        raise InputError.of(
            "population.devices",
            scenario.population.devices,
            f"is too small at scale={scale}",
            "raise the scale",
        )


def _bisections(ratio: float, near: float) -> int:
    """Returns how often a ratio of two goals is bisected until it is at most 1 + `near`; at least
    once."""
    # A bisection halves the logarithm of the ratio.
    return max(1, math.ceil(math.log2(math.log(ratio) / math.log1p(near))))


def _scale_of(goal: int, scale: float) -> float:
    """Small rounds are simulated at a larger scale."""
    return min(1.0, max(scale, LEAST_SIMULATED_GOAL / goal))


def _first_goal(scenario: Scenario, target: PlanTarget, least: int, most: int) -> int:
    """The least goal that meets the target if min-sep is population / goal; the sensitivity is
    guessed as 2 sqrt(k)."""
    n = scenario.rounds.count
    devices = scenario.population.devices

    def meets(goal: int) -> bool:
        guessed_min_sep = max(1, min(n, devices // goal))
        most_participations = math.ceil(n / guessed_min_sep)
        guessed_sensitivity = 2.0 * math.sqrt(most_participations)
        epsilon = _epsilon(guessed_sensitivity, target.noise_per_report * goal, target.delta)
        return epsilon is not None and epsilon <= target.epsilon

    # Larger goals starve, and finding that out takes long.
    low = least
    high = max(least, most // 16)
    # Steps of k make the guess uneven, which does no harm to a place to start from.
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if meets(middle) else (middle + 1, high)
    return low


def _best(proposals: dict[float, Candidate]) -> tuple[float, Candidate]:
    """The fastest candidate among those whose goal is the least, to the search's precision."""
    least = min(each.report_goal for each in proposals.values())
    most = least * (1 + PRECISION)
    near = {hours: each for hours, each in proposals.items() if each.report_goal <= most}
    return min(near.items(), key=lambda item: (item[1].days or 0.0, item[1].report_goal))


def _larger_goal(full: Candidate, target: PlanTarget) -> int | None:
    """The next to try where a goal falls short: epsilon falls about as the root of the goal, or
    faster."""
    if full.starves:
        return None
    # At least one per cent, so that the search continues; at most half as much again, as a goal
    # that is too large starves.
    ratio = math.inf if full.epsilon is None else (full.epsilon / target.epsilon) ** 2
    return math.ceil(full.report_goal * min(1.5, max(1.01, ratio)))


def _with_limits(
    candidate: Candidate,
    rounds: int,
    seeds: int,
    before: Candidate | None,
    rules: Participation | None = None,
) -> Candidate:
    """The limits that are planned for: a lower prediction bound of one more run's min-sep
    (Student's t), and one participation more than the most that was seen where runs differ in that;
    no further than the rules of the scenario allow."""
    from scipy import stats

    # If no device came twice, min-sep is at least as long as the run.
    known = np.array([rounds if each is None else each for each in candidate.min_seps], float)
    # One run at full size has no spread of its own; that of the smaller ones stands for it.
    deviation = before.deviation if before is not None else None
    if deviation is None:
        deviation = max(float(known.std(ddof=1)), LEAST_DEVIATION) / float(known.mean())
    # A prediction interval: one more run deviates by itself, and the mean of those seen does too.
    quantile = float(stats.t.ppf(1.0 - MISS_PROBABILITY, seeds - 1))
    factor = quantile * math.sqrt(1.0 + 1.0 / known.size)
    seen = set(candidate.max_participations)
    if before is not None:
        seen.update(before.max_participations)
    if seen == {1}:
        return replace(
            candidate, planned_min_sep=None, planned_max_participations=1, deviation=deviation
        )
    predicted = known.mean() * (1.0 - factor * deviation)
    # The plan is never above a min-sep that was seen, however small the spread.
    min_sep = max(1, math.floor(min(predicted, known.min())))
    most = max(seen) + (len(seen) > 1)
    # Limits that the rules ensure anyway need no plan.
    if rules is not None:
        min_sep = max(min_sep, rules.round_separation)
        most = min(most, rules.max_participations or most)
    # No more participations than have room at that separation.
    most = min(most, -(-rounds // min_sep))
    return replace(
        candidate, planned_min_sep=min_sep, planned_max_participations=most, deviation=deviation
    )


def _limits(rounds: int, candidate: Candidate) -> MinSep:
    """The planned limits as mechanisms take them."""
    assert candidate.planned_max_participations is not None
    # Devices that come once keep any separation, and the rounds are the largest.
    return MinSep(rounds, candidate.planned_min_sep or rounds, candidate.planned_max_participations)


def _epsilon(sensitivity: float, z: float, delta: float) -> float | None:
    """Returns epsilon, or None if the noise is too small for a guarantee."""
    try:
        return gdp_epsilon(Gaussian(noise_multiplier=z, sensitivity=sensitivity), delta)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class _Designs:
    """Options for making mechanisms: number of buffers, and whether they are kept."""

    buffers: int
    has_cache: bool

    def of(self, limits: MinSep) -> Strategy:
        """The BLT made for limits."""
        directory = default_cache() if self.has_cache else None
        return made_mechanism(MechanismRequest("blt", limits, self.buffers), directory)


def _sensitivity(limits: MinSep, designs: _Designs) -> float:
    """Sensitivity of the BLT made for limits, under them."""
    return designs.of(limits).participation_sensitivity(limits).value
