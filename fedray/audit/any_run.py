"""Participation in any run of a scenario, before the times of its rounds are known, and the
guarantee of all planned rounds of a run that ended early."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from fedray.audit.guarantees import (
    Guarantee,
    Limits,
    fitting,
    limits_of_schedule,
    of_limits,
    strongest,
)
from fedray.audit.noise import Noise
from fedray.audit.rules import rules_of
from fedray.audit.sampled import sampled_in_any_run
from fedray.base.rounding import counted
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.strategy import Strategy
from fedray.scenario import Scenario


class Bound(NamedTuple):
    """Largest number of contributions of a device to a run, and the rule that limits it."""

    most: int
    rule: str
    remedy: str


def worst_participation(scenario: Scenario) -> MinSep:
    """Returns the tightest participation that the rules ensure in every run of a scenario.

    Upload windows end at known times, so that what an audit will enforce is known. The times of
    other rounds are not, so a timer only limits how often a device comes in the days of a run.
    """
    n = scenario.rounds.count
    if scenario.rounds.uploads is not None:
        permitted = limits_of_schedule(scenario, n).participation
        assert permitted is not None, "stored uploads always have limits"
        return permitted
    rules = [each for each in rules_of(scenario.participation) if not each.unkept]
    caps = [each.most for each in rules if each.most is not None]
    if scenario.rounds.buffer is None:
        # Buffers overlap, so an audit of their times may allow more than a timer does.
        caps += [each.most for each in contributions_of_a_device(scenario)]
    b = max((each.separation for each in rules), default=1)
    return fitting(n, min(max(1, b), n), min(caps, default=n))


def contributions_of_a_device(scenario: Scenario) -> Iterator[Bound]:
    """Yields an upper bound on the contributions of a device for each rule that limits them."""
    participation = scenario.participation
    # A device that has lost its history no longer knows how often or when it took part.
    if participation.history_loss_per_day is not None:
        return
    cap = participation.max_participations
    if cap is not None:
        yield Bound(cap, f"participation.max_participations={cap}", "raise the cap")
    # Devices with wrong clocks, or that ignore the timer, may take part at any time.
    is_kept = participation.timer_violators == 0.0 and participation.clock_skew_hours == 0.0
    wait = participation.wait_seconds
    if is_kept and wait > 0.0:
        # A wait of next to nothing would allow infinitely many.
        most = math.floor(min(last_report(scenario) / wait, 2.0**62)) + 1
        days = scenario.rounds.max_days
        rule = (
            f"{participation.keys_by_rule['time']} lets a device take part at most {most:,} "
            f"time{'s' if most > 1 else ''} in rounds.max_days={days:g}"
        )
        yield Bound(most, rule, "shorten the wait or raise max_days")
    for each in participation.policies or ():
        most = each.most_contributions(last_report(scenario))
        if most is not None:
            rule = (
                f"{each.keys_by_rule['time']} lets a device take part at most {most:,} times in "
                f"rounds.max_days={scenario.rounds.max_days:g}"
            )
            yield Bound(most, rule, "raise participations or max_days")


def last_start(scenario: Scenario) -> float:
    """Returns the latest start of a round, seconds since start: the end of the last window."""
    rounds = scenario.rounds
    # One more window allows for max_days that end within a window, and for rounding.
    return 86_400.0 * rounds.max_days + 60.0 * rounds.look_ahead_minutes


def last_report(scenario: Scenario) -> float:
    """Returns the latest time of a contribution that counts, seconds since start."""
    return last_start(scenario) + 60.0 * scenario.rounds.report_timeout_minutes


def planned_guarantee(
    scenario: Scenario, strategy: Strategy, noise: Noise | None, delta: float
) -> Guarantee:
    """Returns the guarantee of all planned rounds, wherever between two of them a run stops.

    A run that stops by its released models is a function of the releases of all planned rounds, so
    it has their guarantee (post-processing). Figures of the rounds done are those of a number of
    rounds that no model decides: with several chances to stop, the loss of privacy at the end may
    be larger (Rogers, Roth, Ullman and Vadhan 2016).

    Args:
        scenario: scenario of the run, with all planned rounds.
        strategy: the mechanism.
        noise: least noise that the rules permit; None if unknown.
        delta: delta of epsilon.
    """
    worst = worst_participation(scenario)
    rounds = counted(worst.rounds, "planned round")
    limits = Limits(worst, f"it follows from the rules in any run of all {rounds}")
    found = [of_limits("planned", limits, strategy, noise, delta, True)]
    if noise is not None:
        drawn = sampled_in_any_run(scenario, strategy, noise, delta, worst)
        found += [] if drawn is None else [replace(drawn, name="planned")]
    return strongest(found) or found[0]
