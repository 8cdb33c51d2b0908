"""Remedies of a plan that fails: how much noise, how few rounds, how many devices or how long a
timer would meet its target, each by itself, at the report goal and timer of the nearest miss.

Noise and rounds follow from the planned limits: the first rounds of a run have no smaller min-sep.
Devices and timers change who comes when: the min-sep that would do is found first, and min-sep is
about proportional to both; the proposal is then simulated as the plan's own candidates are.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedray.audit.guarantees import fitting
from fedray.base.document import Document
from fedray.mechanisms.accounting.calibration import noise_multiplier_for
from fedray.mechanisms.participation import MinSep
from fedray.studies.what_ifs import epsilon_of

PRECISION = 0.01
"""Relative distance at which a bisection ends."""
MORE = 1.05
"""Factor on devices and hours beyond proportion, and from one simulated proposal to the next."""
MOST_PROPOSALS = 4


@dataclass(frozen=True, slots=True)
class Remedy(Document):
    """A change that would meet the target of a plan."""

    key: str
    """Changed figure: noise_per_report, rounds.count, population.devices or timer_hours."""
    value: float
    """Value that would do."""
    epsilon: float
    """Epsilon with it."""
    days: float | None = None
    """Days of the slowest simulated run; None without simulations."""


def remedies(
    near: Any,
    devices: int,
    sensitivity_of: Callable[[MinSep], float],
    simulate: Callable[[int, float], Any],
) -> tuple[Remedy, ...]:
    """Returns the changes that would do.

    Args:
        near: candidate of a plan with the least epsilon, and planned limits.
        devices: devices of its population.
        sensitivity_of: sensitivity of the mechanism made for limits, under them.
        simulate: returns the candidate with its goal and other devices or timer.
    """
    target, limits = near.target, near.planned_limits
    n, b, k = limits.rounds, limits.min_sep, limits.max_participations

    def epsilon(rounds: int, min_sep: int) -> float:
        sensitivity = sensitivity_of(fitting(rounds, min(min_sep, rounds), k))
        found = epsilon_of(sensitivity, near.noise_multiplier, target.delta)
        return float("inf") if found is None else found

    # Without sampling the noise for an epsilon has a closed form.
    z = noise_multiplier_for(sensitivity_of(limits), target.delta, epsilon=target.epsilon)
    found = [Remedy("noise_per_report", z / near.report_goal, target.epsilon)]
    if (rounds := _bisected(lambda each: epsilon(each, b) <= target.epsilon, n, 1)) is not None:
        found.append(Remedy("rounds.count", rounds, epsilon(rounds, b)))
    needed = _bisected(lambda each: epsilon(n, each) <= target.epsilon, b, n)
    if needed is None:
        return tuple(found)
    for key in ("population.devices", "timer_hours"):
        factor = MORE * needed / b
        for _ in range(MOST_PROPOSALS):
            is_timer = key == "timer_hours"
            # Whole hours, so that what a reader is told is what was simulated.
            hours = float(math.ceil(near.timer_hours * factor)) if is_timer else near.timer_hours
            tried = simulate(devices if is_timer else round(devices * factor), hours)
            if tried.meets_target and tried.epsilon is not None:
                value = hours if is_timer else round(devices * factor)
                found.append(Remedy(key, value, tried.epsilon, tried.days))
            # A longer timer starves once, and then always.
            if tried.meets_target or tried.starves or (is_timer and not hours):
                break
            factor *= MORE
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
