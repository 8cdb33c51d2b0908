"""Remedies of a plan that fails: more noise, fewer rounds, fewer rounds of more reports, a longer
timer, more devices with a larger report goal, or more devices at the same goal, from the goal and
timer of the nearest miss. If fewer or larger rounds by themselves do not suffice, half of the
rounds is proposed, with the noise that it needs.

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
from fedray.base.document import Document
from fedray.mechanisms.accounting.calibration import noise_multiplier_for
from fedray.mechanisms.participation import MinSep
from fedray.studies.what_ifs import epsilon_of

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
TRADE = "rounds.count and rounds.report_goal"
HALF, HALF_TRADE = f"rounds.count and {NOISE}", f"rounds.count, rounds.report_goal and {NOISE}"
ONCE = "participation.max_participations"


@dataclass(frozen=True, slots=True)
class Remedy(Document):
    """A change that would meet the target of a plan. A setting is None if it is that of the nearest
    miss; all are if no change was found."""

    key: str
    """Changed figures: noise_per_report; rounds.count, with noise_per_report if it is half of them;
    "rounds.count and rounds.report_goal", with no more reports in all, or "rounds.count,
    rounds.report_goal and noise_per_report"; rounds.report_goal (the devices grow by the same
    factor); population.devices; participation.timer_hours; participation.max_participations, which
    is then 1."""
    epsilon: float | None
    """Epsilon with it. If none was found: epsilon of one participation, which exceeds the target;
    or None if the simulated values failed, but others might do."""
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
    sensitivity_of: Callable[[MinSep], float],
    simulate: Callable[[int, float, int, int, bool], Any],
    longer_timers: Sequence[float] = (),
) -> tuple[Remedy, ...]:
    """Returns the changes that would do. A change that was not found has no settings.

    Args:
        near: candidate of a plan with the least epsilon, and planned limits.
        devices: devices of its population.
        sensitivity_of: sensitivity of the mechanism made for limits, under them.
        simulate: returns the candidate with other devices, timer hours, report goal and rounds, and
            whether each device comes only once.
        longer_timers: timers for fewer, larger rounds, if the candidate's own does not do.
    """
    target, limits, goal = near.target, near.planned_limits, near.report_goal
    n, b, k = limits.rounds, limits.min_sep, limits.max_participations

    def within(rounds: int, min_sep: int = b) -> MinSep:
        return fitting(rounds, min(min_sep, rounds), k)

    def epsilon(limits: MinSep, z: float = near.noise_multiplier) -> float:
        found = epsilon_of(sensitivity_of(limits), z, target.delta)
        return math.inf if found is None else found

    def needed(limits: MinSep) -> float:
        # Without sampling the noise for an epsilon has a closed form.
        return noise_multiplier_for(sensitivity_of(limits), target.delta, epsilon=target.epsilon)

    margin = 1 + PRECISION * (near.scale < 1)

    def with_noise(remedy: Remedy, limits: MinSep, least: float = 0.0) -> Remedy:
        z = max(margin * needed(limits), least)
        # At the least noise epsilon is the target but for rounding.
        return replace(remedy, noise_multiplier=z, epsilon=min(target.epsilon, epsilon(limits, z)))

    def halved(key: str, larger: int) -> list[Remedy]:
        tried = simulate(devices, near.timer_hours, larger, half, False)
        if tried.starves:
            return []
        others = half, None if larger == goal else larger
        remedy = Remedy(key, None, tried.scale, tried.days, None, *others)
        return [with_noise(remedy, tried.planned_limits, tried.noise_multiplier)]

    fewest, half = math.ceil(LEAST_SHARE * n), n // 2
    rounds = _bisected(lambda each: epsilon(within(each)) <= target.epsilon, n, fewest)
    found = [with_noise(Remedy(NOISE, None, near.scale, near.days), limits)]
    if rounds is not None:
        # Rounds take about as long, however many follow.
        days = near.days * rounds / n
        found.append(
            Remedy("rounds.count", epsilon(within(rounds)), near.scale, days, None, rounds)
        )
    elif half:
        found += halved(HALF, goal)
    needed_b = _bisected(lambda each: epsilon(within(n, each)) <= target.epsilon, b, n)
    more_apart = needed_b and MORE * needed_b / b
    more_noise = margin * needed(limits) / near.noise_multiplier
    if more_noise > 2 and half:
        found += halved(HALF_TRADE, 2 * goal)
    factors = {TRADE: more_noise, "participation.timer_hours": more_apart}
    factors |= {"rounds.report_goal": more_noise, "population.devices": more_apart}
    # Without a timer none can be longer.
    if not near.timer_hours:
        del factors["participation.timer_hours"]
    if target.report_goal is not None:
        del factors["rounds.report_goal"]
        most, tried = min(n, int(NEARLY_ALL * near.population_over_goal)), None
        # Each attempt has the rounds that the one before it committed.
        for _ in range(MOST_PROPOSALS if k > 1 else 0):
            if most >= fewest and (tried is None or tried.starves):
                tried = simulate(devices, near.timer_hours, goal, most, True)
                most = tried.committed or most
        if tried is not None and not tried.starves:
            once = Remedy(ONCE, None, tried.scale, tried.days, None, most)
            found.append(with_noise(once, MinSep(most, most, 1), near.noise_multiplier))

    def proposed(key: str, factor: float, timer_hours: float) -> Remedy | None:
        times, reports = factor, n * goal
        for _ in range(MOST_PROPOSALS):
            hours, larger, more, count = timer_hours, goal, devices, n
            if key == "participation.timer_hours":
                # Whole hours, so that the shown value is the simulated one.
                hours = float(math.ceil(hours * times))
            elif key == "population.devices":
                more = round(devices * times)
            elif key == TRADE:
                count = int(reports / (goal * times))
                if count < LEAST_TRADED * n:
                    return None
                larger = reports // count
            else:
                larger = math.ceil(goal * times)
                more = math.ceil(devices * larger / goal)
            tried = simulate(more, hours, larger, count, False)
            if tried.starves and key == TRADE:
                reports = int(NEARLY_ALL * larger * tried.committed)
                continue
            if tried.meets_target:
                return Remedy(
                    *(key, tried.epsilon, tried.scale, tried.days),
                    noise_multiplier=None if larger == goal else tried.noise_multiplier,
                    rounds=None if count == n else count,
                    report_goal=None if larger == goal else larger,
                    devices=None if more == devices else more,
                    timer_hours=None if hours == near.timer_hours else hours,
                )
            # A longer timer starves once, and then always.
            if tried.starves:
                return None
            times *= MORE
            if key == TRADE:
                times *= max(1.0, needed(tried.planned_limits) / tried.noise_multiplier)
        return None

    for key, factor in factors.items():
        none = Remedy(key, None if factor else epsilon(within(n, n)), near.scale)
        timers = (near.timer_hours, *longer_timers) if key == TRADE else (near.timer_hours,)
        tries = (proposed(key, factor, each) for each in timers if factor)
        found.append(next(filter(None, tries), none))
    return tuple(found)


def _bisected(meets: Callable[[int], bool], fails: int, end: int) -> int | None:
    """Returns the value next to `fails` that meets the target, within PRECISION, from there to
    `end`; None if that does not meet it."""
    if fails == end or not meets(end):
        return None
    while abs(end - fails) > max(1.0, PRECISION * end):
        middle = (fails + end) // 2
        fails, end = (fails, middle) if meets(middle) else (middle, end)
    return end
