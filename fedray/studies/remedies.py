"""Remedies of a plan that fails: more noise, for a device and for a person, fewer rounds, fewer
rounds of more reports, a longer timer, more devices with a larger report goal, or more devices at
the same goal, from the goal and timer of the nearest miss. If fewer or larger rounds by themselves
do not suffice, half of the rounds is proposed, with the noise that it needs.

Noise and rounds follow from the planned limits: the first rounds of a run have no smaller min-sep.
If devices and report goal grow by one factor, min-sep stays about the same and the noise grows by
that factor. The same holds of fewer rounds with the same reports in all, but the devices stay.
Devices or timers by themselves change who comes when: the min-sep that would do is
found first, and min-sep is about proportional to both. Proposals that change devices or timer are
then simulated as the plan's own candidates are, and so are fewer rounds of more reports.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedray.audit.guarantees import fitting
from fedray.audit.noise import PlannedRelease
from fedray.base.document import Document
from fedray.mechanisms.participation import MinSep
from fedray.studies.what_ifs import known_epsilon

ReleaseOf = Callable[[MinSep, int], PlannedRelease]
"""Returns the release of runs in which devices keep some limits, at a report goal."""
PRECISION = 0.01
"""Relative distance at which a bisection ends, and margin of the noise for the full size."""
MORE = 1.05
"""Factor on devices and hours beyond proportion, and from one simulated proposal to the next."""
MOST_PROPOSALS = 4
NEARLY_ALL = 0.9
"""Share of the devices, or of the reports of a starved run, that the next run counts on."""
LEAST_SHARE = 0.2
"""Least share of the wanted rounds that counts as a remedy."""
LEAST_TRADED = 0.1
"""The same share if the reports in all stay."""
NOISE = "noise_per_report"
PERSON = "noise_per_report for a person"
TRADE = "rounds.count and rounds.report_goal"
HALF, HALF_TRADE = f"rounds.count and {NOISE}", f"rounds.count, rounds.report_goal and {NOISE}"
ONCE = "participation.max_participations"
TIMER, DEVICES = "participation.timer_hours", "population.devices"


@dataclass(frozen=True, slots=True)
class Remedy(Document):
    """A change that would meet the target of a plan. A setting is None if it is that of the nearest
    miss; all are if no change was found."""

    key: str
    """Changed figures: noise_per_report; "noise_per_report for a person", with which a person with
    several devices meets the target too; rounds.count, with noise_per_report if it is half of them;
    "rounds.count and rounds.report_goal", with no more reports in all, or "rounds.count,
    rounds.report_goal and noise_per_report"; rounds.report_goal (the devices grow by the same
    factor); population.devices; participation.timer_hours; participation.max_participations, which
    is then 1."""
    epsilon: float | None
    """Epsilon of the target's unit with it. If none was found: epsilon of one participation, which
    exceeds the target; or None if the simulated values failed, but others might do."""
    scale: float
    """Size of the simulations on which it rests; 1: the whole population."""
    days: float | None = None
    """Days of the slowest simulated run; in proportion if only the rounds are fewer."""
    noise_multiplier: float | None = None
    """Noise multiplier with it."""
    rounds: int | None = None
    """Rounds with it."""
    report_goal: int | None = None
    """Report goal with it."""
    devices: int | None = None
    """Devices with it."""
    timer_hours: float | None = None
    """Timer with it."""

    @property
    def is_found(self) -> bool:
        """Whether any settings would do."""
        return any((self.noise_multiplier, self.rounds, self.devices, self.timer_hours))


def remedies(
    near: Any,
    devices: int,
    release_of: ReleaseOf,
    simulate: Callable[[int, float, int, int, bool], Any],
    longer_timers: Sequence[float] = (),
    devices_of_person: int = 1,
) -> tuple[Remedy, ...]:
    """Returns the changes that would do. A change that was not found has no settings.

    Args:
        near: candidate of a plan with the least epsilon, and planned limits.
        devices: devices of its population.
        release_of: release to the target's unit of the mechanism made for limits, under them, at a
            report goal.
        simulate: returns the candidate with other devices, timer hours, report goal and rounds, and
            whether each device comes only once.
        longer_timers: timers for fewer, larger rounds, if the candidate's own does not do.
        devices_of_person: most devices of a person, if the target is that of a device.
    """
    search = _Search(near, devices, release_of, simulate)
    found = [search.with_noise(Remedy(NOISE, None, near.scale, near.days), near.planned_limits)]
    found += for_a_person(near, devices_of_person, release_of)
    found += search.with_fewer_rounds()
    limits, goal = near.planned_limits, near.report_goal
    n, b = limits.rounds, limits.min_sep
    needed_b = _bisected(lambda each: search.epsilon_within(n, each) <= near.target.epsilon, b, n)
    more_apart = None if needed_b is None else MORE * needed_b / b
    more_noise = search.noise_for(limits, goal) / near.noise_multiplier
    if more_noise > 2:
        found += search.with_half_of_the_rounds(HALF_TRADE, 2 * goal)
    factors = {TRADE: more_noise, TIMER: more_apart}
    factors |= {"rounds.report_goal": more_noise, DEVICES: more_apart}
    # Without a timer none can be longer.
    if not near.timer_hours:
        del factors[TIMER]
    if near.target.report_goal is not None:
        del factors["rounds.report_goal"]
        found += search.with_one_participation()
    for key, factor in factors.items():
        none = Remedy(key, None if factor else search.epsilon_within(n, n), near.scale)
        timers = (near.timer_hours, *longer_timers) if key == TRADE else (near.timer_hours,)
        tries = (search.proposed(key, factor, each) for each in timers if factor)
        found.append(next(filter(None, tries), none))
    return tuple(found)


def for_a_person(near: Any, most_devices: int, release_of: ReleaseOf) -> list[Remedy]:
    """Returns the noise with which a person with `most_devices` devices meets the target of a
    candidate too; empty for one device. Their sensitivity is that many times as large, and rho its
    square (Bun and Steinke 2016, Proposition 1.9)."""
    if most_devices < 2:
        return []
    limits, goal = near.planned_limits, near.report_goal

    def of_person(limits: MinSep, goal: int) -> PlannedRelease:
        return release_of(limits, goal).of_group(most_devices)

    z = _Search(near, 0, of_person, lambda *_: None).noise_for(limits, goal)
    epsilon = known_epsilon(release_of(limits, goal), z, near.target.delta)
    return [Remedy(PERSON, epsilon, near.scale, near.days, z)]


@dataclass(frozen=True, slots=True)
class _Search:
    """Search for changes with which the nearest miss of a plan would meet its target. The fields
    are arguments of `remedies`."""

    near: Any
    devices: int
    release_of: ReleaseOf
    simulate: Callable[[int, float, int, int, bool], Any]

    def with_noise(self, remedy: Remedy, limits: MinSep, least: float = 0.0) -> Remedy:
        """Returns a remedy with the noise that limits need, and at least `least`."""
        target, goal = self.near.target, remedy.report_goal or self.near.report_goal
        z = max(self.noise_for(limits, goal), least)
        # At the least noise epsilon is the target but for rounding.
        epsilon = min(target.epsilon, self._epsilon(limits, z, goal))
        return replace(remedy, noise_multiplier=z, epsilon=epsilon)

    def with_fewer_rounds(self) -> list[Remedy]:
        """Returns the most rounds that meet the target; if they are too few, half of the rounds
        with more noise."""
        near, n = self.near, self.near.planned_limits.rounds
        rounds = _bisected(
            lambda each: self.epsilon_within(each) <= near.target.epsilon, n, self._fewest
        )
        if rounds is None:
            return self.with_half_of_the_rounds(HALF, near.report_goal)
        # Rounds take about as long, however many follow.
        days = near.days * rounds / n
        epsilon = self.epsilon_within(rounds)
        return [Remedy("rounds.count", epsilon, near.scale, days, None, rounds)]

    def with_half_of_the_rounds(self, key: str, goal: int) -> list[Remedy]:
        """Returns half of the rounds with a report goal and the noise that they need; empty if the
        run starves."""
        near, half = self.near, self.near.planned_limits.rounds // 2
        if not half:
            return []
        tried = self.simulate(self.devices, near.timer_hours, goal, half, False)
        if tried.starves:
            return []
        others = half, None if goal == near.report_goal else goal
        remedy = Remedy(key, None, tried.scale, tried.days, None, *others)
        return [self.with_noise(remedy, tried.planned_limits, tried.noise_multiplier)]

    def with_one_participation(self) -> list[Remedy]:
        """Returns rounds in which each device comes only once; empty if every run starves."""
        near, limits = self.near, self.near.planned_limits
        # Nine tenths of the devices may suffice for just the plan's rounds.
        share = NEARLY_ALL * self.devices / near.report_goal
        most, tried = min(limits.rounds, math.floor(share + 1e-9)), None
        # Each attempt has the rounds that the one before it committed.
        for _ in range(MOST_PROPOSALS if limits.max_participations > 1 else 0):
            if most >= self._fewest and (tried is None or tried.starves):
                tried = self.simulate(self.devices, near.timer_hours, near.report_goal, most, True)
                most = tried.committed or most
        if tried is None or tried.starves:
            return []
        once = Remedy(ONCE, None, tried.scale, tried.days, None, most)
        return [self.with_noise(once, MinSep(most, most, 1), near.noise_multiplier)]

    def proposed(self, key: str, factor: float, timer_hours: float) -> Remedy | None:
        """Returns the first simulated proposal that meets the target.

        Args:
            key: changed figure.
            factor: factor on it that would do in proportion.
            timer_hours: timer of the proposals, unless it is the changed figure.
        """
        near, n, goal = self.near, self.near.planned_limits.rounds, self.near.report_goal
        times, reports = factor, n * goal
        for _ in range(MOST_PROPOSALS):
            hours, larger, more, count = timer_hours, goal, self.devices, n
            if key == TIMER:
                # Whole hours, so that the shown value is the simulated one.
                hours = float(math.ceil(hours * times))
            elif key == DEVICES:
                more = round(self.devices * times)
            elif key == TRADE:
                count = int(reports / (goal * times))
                if count < LEAST_TRADED * n:
                    return None
                larger = reports // count
            else:
                larger = math.ceil(goal * times)
                more = math.ceil(self.devices * larger / goal)
            tried = self.simulate(more, hours, larger, count, False)
            if tried.starves and key == TRADE:
                reports = int(NEARLY_ALL * larger * tried.committed)
                continue
            if tried.meets_target:
                return Remedy(
                    *(key, tried.judged_epsilon, tried.scale, tried.days),
                    noise_multiplier=None if larger == goal else tried.noise_multiplier,
                    rounds=None if count == n else count,
                    report_goal=None if larger == goal else larger,
                    devices=None if more == self.devices else more,
                    timer_hours=None if hours == near.timer_hours else hours,
                )
            # A longer timer starves once, and then always.
            if tried.starves:
                return None
            times *= MORE
            if key == TRADE:
                needed = self._least_noise(tried.planned_limits, larger)
                times *= max(1.0, needed / tried.noise_multiplier)
        return None

    def noise_for(self, limits: MinSep, goal: int) -> float:
        """Returns the noise multiplier that limits need at a report goal, with a margin for the
        full size."""
        return (1 + PRECISION * (self.near.scale < 1)) * self._least_noise(limits, goal)

    def epsilon_within(self, rounds: int, min_sep: int | None = None) -> float:
        """Returns epsilon of fewer rounds or of another min-sep, at the planned noise."""
        planned = self.near.planned_limits
        most_apart = min(planned.min_sep if min_sep is None else min_sep, rounds)
        limits = fitting(rounds, most_apart, planned.max_participations)
        return self._epsilon(limits, self.near.noise_multiplier, self.near.report_goal)

    @property
    def _fewest(self) -> int:
        """Fewest rounds that count as a remedy."""
        return math.ceil(LEAST_SHARE * self.near.planned_limits.rounds)

    def _epsilon(self, limits: MinSep, noise_multiplier: float, goal: int) -> float:
        delta = self.near.target.delta
        found = known_epsilon(self.release_of(limits, goal), noise_multiplier, delta)
        return math.inf if found is None else found

    def _least_noise(self, limits: MinSep, goal: int) -> float:
        target = self.near.target
        return self.release_of(limits, goal).least_noise(target.delta, target.epsilon)


def _bisected(meets: Callable[[int], bool], fails: int, end: int) -> int | None:
    """Returns the value next to `fails` that meets the target, within PRECISION, from there to
    `end`; None if that does not meet it."""
    if fails == end or not meets(end):
        return None
    while abs(end - fails) > max(1.0, PRECISION * end):
        middle = (fails + end) // 2
        fails, end = (fails, middle) if meets(middle) else (middle, end)
    return end
