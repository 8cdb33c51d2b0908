"""Largest number of contributions of a device to any run of a scenario, by rules and days."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from fedray.scenario.scenario import Scenario


class Bound(NamedTuple):
    """Largest number of contributions of a device to a run, and the rule that limits it."""

    most: int
    rule: str
    remedy: str


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
