"""Small runs by a made-up law, in place of simulated ones."""

import math

from fedray.mechanisms.participation import MinSep
from fedray.scenario import Scenario
from fedray.studies.simulated import Truth

USABLE = 0.6
"""Share of the population that takes part in a timer's length in the made-up law below."""


def lawful(scenario: Scenario) -> Truth:
    """A made-up law: min-sep is proportional to the population, or what the pace lets into a timer,
    and rounds take the same time but for a faster start of a fifth."""
    goal, timer_hours = scenario.rounds.report_goal, scenario.participation.timer_hours
    devices = scenario.population.devices * scenario.population.reach
    minutes = scenario.rounds.min_minutes_between or 1.0
    min_sep = min(USABLE * devices / goal, 60.0 * timer_hours / minutes)
    timers = scenario.rounds.count / (1.2 * min_sep)
    k = math.ceil(timers)
    days = max(timers * timer_hours / 24.0, scenario.rounds.count * minutes / 1440.0)
    rounds = scenario.rounds.count
    return Truth(MinSep(rounds, rounds if k == 1 else max(1, round(min_sep)), k), days=days)
