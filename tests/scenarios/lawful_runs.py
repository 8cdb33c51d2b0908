"""Small runs by a made-up law, in place of simulated ones."""

import math

from fedray.scenario import Scenario
from fedray.scenarios.small_runs import Outcome

USABLE = 0.6
"""Share of the population that takes part in a timer's length in the made-up law below."""


def lawful(scenario: Scenario) -> Outcome:
    """A made-up law: min-sep is proportional to the reach, and all rounds come at one pace.

    A run with a least time between rounds takes a fifth longer.
    """
    goal, timer_hours = scenario.rounds.report_goal, scenario.participation.timer_hours
    devices = scenario.population.devices * scenario.population.reach
    min_sep = USABLE * devices / goal
    pace = 1.2
    pace -= 0.2 if scenario.rounds.min_minutes_between is not None else 0.0
    timers = scenario.rounds.count / (pace * min_sep)
    return Outcome(max(1, round(min_sep)), math.ceil(timers), timers * timer_hours / 24.0)
