"""Remedies of a plan that fails: more noise, fewer rounds, fewer rounds of more reports, a longer
timer, more devices with a larger report goal, or more devices at the same goal, each by itself,
from the report goal and timer of the nearest miss.

Noise and rounds follow from the planned limits: the first rounds of a run have no smaller min-sep.
If devices and report goal grow by one factor, min-sep stays about the same and the noise grows by
that factor. The same holds of fewer rounds with the same reports in all, but the devices stay.
Devices or timers by themselves change who comes when: the min-sep that would do is
found first, and min-sep is about proportional to both. Proposals that change devices or timer are
then simulated as the plan's own candidates are, and so are fewer rounds of more reports.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
"""Fewer rounds than this share of those wanted are no remedy."""
LEAST_TRADED = 0.1
"""The same share if the reports in all stay."""
TRADE = "rounds.count and rounds.report_goal"
ONCE = "participation.max_participations"
OF_ROUNDS = "rounds.count", TRADE, ONCE
"""Keys whose value is a number of rounds."""


@dataclass(frozen=True, slots=True)
class Remedy(Document):
    """A change that would meet the target of a plan."""

    key: str
    """Changed figure: noise_per_report, rounds.count, rounds.report_goal (the devices grow by the
    same factor), population.devices, timer_hours, participation.max_participations, which is 1 for
    `value` rounds, or "rounds.count and rounds.report_goal", `value` rounds of no more reports in
    all."""
    value: float | None
    """Value that would do; None if none was found."""
    epsilon: float | None
    """Epsilon with it. Without a value: epsilon of one participation, which exceeds the target; or
    None if the simulated values failed, but others might do, or if only too few rounds would do."""
    scale: float
    """Size of the simulations on which it rests; 1: the whole population."""
    days: float | None = None
    """Days of the slowest simulated run; None without simulations."""
    noise_multiplier: float | None = None
    """Noise multiplier with it, if it is another."""
    report_goal: int | None = None
    """Report goal with it, if it is another."""
    devices: int | None = None
    """Devices with it, if they are others."""
    timer_hours: float | None = None
    """Timer with it, if it is another and not the change itself."""


def remedies(
    near: Any,
    devices: int,
    sensitivity_of: Callable[[MinSep], float],
    simulate: Callable[[int, float, int, int, bool], Any],
    longer_timers: Sequence[float] = (),
) -> tuple[Remedy, ...]:
    """Returns the changes that would do; a change of which none was found has no value.

    Args:
        near: candidate of a plan with the least epsilon, and planned limits.
        devices: devices of its population.
        sensitivity_of: sensitivity of the mechanism made for limits, under them.
        simulate: returns the candidate with other devices, timer hours, report goal and rounds, and
            whether each device comes only once.
        longer_timers: timers for fewer, larger rounds, if those of the candidate do not do.
    """
    target, limits = near.target, near.planned_limits
    n, b, k = limits.rounds, limits.min_sep, limits.max_participations

    def epsilon(rounds: int, min_sep: int) -> float:
        sensitivity = sensitivity_of(fitting(rounds, min(min_sep, rounds), k))
        found = epsilon_of(sensitivity, near.noise_multiplier, target.delta)
        return float("inf") if found is None else found

    # Without sampling the noise for an epsilon has a closed form.
    sensitivity = sensitivity_of(limits)
    z = noise_multiplier_for(sensitivity, target.delta, epsilon=target.epsilon)
    z *= 1 + PRECISION * (near.scale < 1)
    with_noise = min(target.epsilon, epsilon_of(sensitivity, z, target.delta) or target.epsilon)
    fewest = math.ceil(LEAST_SHARE * n)
    rounds = _bisected(lambda each: epsilon(each, b) <= target.epsilon, n, fewest)
    with_rounds = epsilon(rounds or 1, b)
    if rounds is None and with_rounds <= target.epsilon:
        with_rounds = None
    found = [
        Remedy("noise_per_report", z / near.report_goal, with_noise, near.scale, near.days, z),
        Remedy("rounds.count", rounds, with_rounds, near.scale),
    ]
    if target.report_goal is not None:
        most, days, scale = min(n, int(NEARLY_ALL * near.population_over_goal)), None, near.scale
        # Each attempt is to commit what the one before it did.
        for _ in range(MOST_PROPOSALS if k > 1 else 0):
            if most >= fewest and days is None:
                tried = simulate(devices, near.timer_hours, near.report_goal, most, True)
                most, days, scale = tried.committed or most, tried.days, tried.scale
        if days is not None:
            once = sensitivity_of(MinSep(most, most, 1))
            z_once = noise_multiplier_for(once, target.delta, epsilon=target.epsilon)
            z_once = max(z_once, near.noise_multiplier)
            epsilon_once = epsilon_of(once, z_once, target.delta)
            found.append(Remedy(ONCE, most, epsilon_once, scale, days, z_once))
    needed = _bisected(lambda each: epsilon(n, each) <= target.epsilon, b, n)
    more_apart, more_noise = needed and MORE * needed / b, z / near.noise_multiplier
    factors = {TRADE: more_noise, "timer_hours": more_apart}
    factors |= {"rounds.report_goal": more_noise, "population.devices": more_apart}
    # Without a timer none can be longer.
    if not near.timer_hours:
        del factors["timer_hours"]
    if target.report_goal is not None:
        del factors["rounds.report_goal"]

    def proposed(key: str, factor: float, timer_hours: float) -> Remedy | None:
        times, reports = factor, n * near.report_goal
        for _ in range(MOST_PROPOSALS):
            hours, goal, more, count = timer_hours, near.report_goal, devices, n
            if key == "timer_hours":
                # Whole hours, so that the shown value is the simulated one.
                value = hours = float(math.ceil(hours * times))
            elif key == "population.devices":
                value = more = round(devices * times)
            elif key == TRADE:
                value = count = int(reports / (goal * times))
                if count < LEAST_TRADED * n:
                    return None
                goal = reports // count
            else:
                value = goal = math.ceil(goal * times)
                more = math.ceil(devices * goal / near.report_goal)
            tried = simulate(more, hours, goal, count, False)
            if tried.starves and key == TRADE:
                reports = int(NEARLY_ALL * goal * tried.committed)
                continue
            if tried.meets_target:
                is_same = goal == near.report_goal
                noise, goal = (None, None) if is_same else (tried.noise_multiplier, goal)
                others = None if more == devices else more
                other = None if timer_hours == near.timer_hours else timer_hours
                found_by = tried.epsilon, tried.scale, tried.days
                return Remedy(key, value, *found_by, noise, goal, others, other)
            # A longer timer starves once, and then always.
            if tried.starves:
                return None
            times *= MORE
            if key == TRADE:
                least = sensitivity_of(tried.planned_limits)
                least = noise_multiplier_for(least, target.delta, epsilon=target.epsilon)
                times *= max(1.0, least / tried.noise_multiplier)
        return None

    for key, factor in factors.items():
        none = Remedy(key, None, None if factor else epsilon(n, n), near.scale)
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
