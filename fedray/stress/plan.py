"""A plan: the report goal, timer and noise multiplier that meet a privacy target at the least cost, by simulated min-seps.

The signal-to-noise hypothesis (McMahan et al. 2018; the practice of DP-FTRL studies): models of equal quality need an equal ratio
of noise multiplier to report goal. A larger goal then means more noise and less privacy loss, but devices come round sooner, and a
run may starve. The common guess for min-sep, population / report goal, is what a population gives that is cycled through without a
gap; here it is simulated, for several seeds, and the worst of them counts.
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedray.cluster import cluster, run_tasks
from fedray.errors import InputError
from fedray.fit import scaled
from fedray.placement import Placement
from fedray.scenario import Scenario
from fedray.stress.cells import Truth, simulated
from mechanisms.accounting.pld import check_delta, gaussian_epsilon
from mechanisms.accounting.zcdp import gaussian_rho
from mechanisms.optimize.design import MechanismRequest, cached_mechanism, default_cache
from mechanisms.participation import MinSep

PRECISION = 0.05
"""Relative, of report goals."""
NEAR_STARVING = 0.25
"""How near to a goal that starves others are tried, where none met the target: starving takes long to find out."""
LEAST_GOAL, GROWTH = 20, 2.0
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Target:
    """What a plan must meet, and how it is judged."""

    epsilon: float
    delta: float = 1e-10
    noise_per_report: float = 7.0 / 6500.0
    buffers: int = 4

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise InputError(f"epsilon={self.epsilon} must be positive and finite; 0 would need noise without end")
        if not 0 < self.noise_per_report < math.inf:
            raise InputError(f"noise_per_report={self.noise_per_report} must be positive; 7 / 6500 is that of Xu et al. 2023")
        from mechanisms.optimize.blt import MOST_BUFFERS  # loads jax

        if not 1 <= self.buffers <= MOST_BUFFERS:
            raise InputError(f"buffers={self.buffers} must be from 1 to {MOST_BUFFERS}; 4 are usual")
        try:
            check_delta(self.delta)
        except ValueError as error:
            raise InputError(str(error)) from None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A report goal with a timer. min_seps, max_participations: of each seed. optimistic_min_sep: population / report goal.

    epsilon, rho: of a BLT made for the worst min-sep and participations of all seeds; None where the noise is no guarantee at all,
    or a run starves, and then the note says why.
    """

    report_goal: int
    timer_hours: float
    noise_multiplier: float
    optimistic_min_sep: int
    min_seps: tuple[int, ...]
    max_participations: tuple[int, ...]
    days: float | None
    sensitivity: float | None
    rho: float | None
    epsilon: float | None
    optimistic_epsilon: float | None
    note: str = ""

    @property
    def starves(self) -> bool:
        """Whether a run of a seed could not commit its rounds."""
        return bool(self.note)

    def meets(self, target: Target) -> bool:
        """Whether epsilon is no more than asked for."""
        return self.epsilon is not None and self.epsilon <= target.epsilon

    def updates(self, rounds: int) -> int:
        """The cost: accepted device updates."""
        return rounds * self.report_goal


@dataclass(frozen=True, slots=True)
class Plan:
    """best: of the candidates that meet the target the one of fewest updates, and of those the fastest; None if none does."""

    target: Target
    scenario: Scenario
    seeds: int
    scale: float
    best: Candidate | None
    candidates: tuple[Candidate, ...]

    def to_json(self) -> dict[str, Any]:
        """One JSON object."""
        rounds = self.scenario.rounds.count

        def entry(candidate: Candidate) -> dict[str, Any]:
            return {**asdict(candidate), "updates": candidate.updates(rounds), "meets_target": candidate.meets(self.target)}

        return {
            "population": self.scenario.population.devices,
            "rounds": rounds,
            "seeds": self.seeds,
            "scale": self.scale,
            "target": asdict(self.target),
            "best": entry(self.best) if self.best is not None else None,
            "candidates": [entry(each) for each in self.candidates],
        }


def make_plan(
    scenario: Scenario,
    target: Target,
    timers: Sequence[float],
    seeds: int = 3,
    scale: float = 0.1,
    placement: Placement | None = None,
    on_progress: Progress | None = None,
) -> Plan:
    """For every timer: doubles the report goal from `LEAST_GOAL` / scale until the target is met, then bisects.

    scenario: population, rounds and all but report goal and timer. scale: of population and goal in simulations, which are then so
    many times as fast and their min-seps a percent or two off. Raises InputError.
    """
    if not timers or min(timers) < 0:
        raise InputError(f"timers={list(timers)} must be hours, at least one; 24, 48, 72 are usual")
    if not 1 <= seeds <= 100:
        raise InputError(f"seeds={seeds} must be from 1 to 100; a few show how much min-sep varies")
    if not 0 < scale <= 1:
        raise InputError(f"scale={scale} must be above 0 and at most 1; 1 is the whole population")
    most = scenario.population.devices // 2
    least = math.ceil(LEAST_GOAL / scale)
    if least > most:
        raise InputError(f"population.devices={scenario.population.devices} is too small at scale={scale}; raise the scale")
    placement = placement or Placement()
    searches = {hours: _Search(least, most) for hours in timers}
    candidates: list[Candidate] = []
    with cluster(placement) if placement.backend == "ray" else contextlib.nullcontext():
        inside = replace(placement, address=None)
        while True:
            asked = [(hours, goal) for hours, search in searches.items() if (goal := search.next_goal()) is not None]
            if not asked:
                break
            runs = [_run_of(scenario, goal, hours, seed, scale) for hours, goal in asked for seed in range(seeds)]
            truths = dict(run_tasks(simulated, runs, inside))
            for place, (hours, goal) in enumerate(asked):
                found = [truths[place * seeds + seed] for seed in range(seeds)]
                candidate = _candidate(scenario, target, goal, hours, found)
                candidates.append(candidate)
                searches[hours].learn(goal, candidate.meets(target), candidate.starves)
                if on_progress is not None:
                    shown = "no guarantee" if candidate.epsilon is None else f"epsilon {candidate.epsilon:.2f}"
                    on_progress(f"goal {goal:,}, timer {hours:g} h: {shown}")
    meeting = [candidate for candidate in candidates if candidate.meets(target)]
    best = min(meeting, key=lambda each: (each.report_goal, each.days or 0.0), default=None)
    candidates.sort(key=lambda each: (each.timer_hours, each.report_goal))
    return Plan(target, scenario, seeds, scale, best, tuple(candidates))


class _Search:
    """The least report goal that meets the target, of one timer: doubling, then bisection, between goals that fail and goals that
    meet it, or starve."""

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self._low, self._high, self._starving = 0, 0, 0
        """Largest goal that failed; smallest that met the target; smallest that starved. 0 for none."""

    def next_goal(self) -> int | None:
        """None when it is found, or there is none."""
        if not self._low and not self._high:
            return self._least if not self._starving else None
        top = self._high or self._starving
        if not top:
            return min(self._most, round(self._low * GROWTH)) if self._low < self._most else None
        near = PRECISION if self._high else NEAR_STARVING
        if not self._low or top <= self._low * (1 + near) or top - self._low < 2:
            return None
        return round(math.sqrt(self._low * top))

    def learn(self, goal: int, meets: bool, starves: bool) -> None:
        """What became of a goal."""
        if meets:
            self._high = goal
        elif starves and not self._high:
            self._starving = goal
        else:  # a goal that starves below one that meets the target is one that fails
            self._low = goal


def _run_of(scenario: Scenario, goal: int, hours: float, seed: int, scale: float) -> Scenario:
    full = scenario.with_overrides(
        f"rounds.report_goal={goal}", f"participation.timer_hours={hours}", f"seed={scenario.seed + seed}", "training.enabled=false"
    )
    return scaled(full, scale)


def _candidate(scenario: Scenario, target: Target, goal: int, hours: float, found: Sequence[Truth]) -> Candidate:
    n, z = scenario.rounds.count, target.noise_per_report * goal
    optimistic = min(n, max(1, scenario.population.devices // goal))
    guessed = _sensitivity(MinSep(n, optimistic, -(-n // optimistic)), target.buffers)
    schemas = [truth.schema for truth in found if truth.schema is not None]
    notes = [truth.note for truth in found if truth.note]
    seen = {
        "report_goal": goal,
        "timer_hours": hours,
        "noise_multiplier": z,
        "optimistic_min_sep": optimistic,
        "optimistic_epsilon": _epsilon(guessed, z, target.delta),
        "min_seps": tuple(schema.min_sep for schema in schemas),
        "max_participations": tuple(schema.max_participations for schema in schemas),
    }
    if notes:
        return Candidate(**seen, days=None, sensitivity=None, rho=None, epsilon=None, note=notes[0])
    b = min(schema.min_sep for schema in schemas)
    worst = MinSep(n, b, min(max(schema.max_participations for schema in schemas), -(-n // b)))
    sensitivity = _sensitivity(worst, target.buffers)
    epsilon = _epsilon(sensitivity, z, target.delta)
    return Candidate(
        **seen,
        days=max(truth.days or 0.0 for truth in found),
        sensitivity=sensitivity,
        rho=None if epsilon is None else gaussian_rho(sensitivity, z),
        epsilon=epsilon,
    )


def _epsilon(sensitivity: float, z: float, delta: float) -> float | None:
    """None where the noise is no guarantee at all."""
    try:
        return gaussian_epsilon(sensitivity, z, delta)
    except ValueError:
        return None


def _sensitivity(schema: MinSep, buffers: int) -> float:
    """Of the BLT made for a schema, under it."""
    return cached_mechanism(MechanismRequest("blt", schema, buffers), default_cache()).schema_sensitivity(schema).value
