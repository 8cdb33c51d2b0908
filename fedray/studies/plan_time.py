"""Time that a plan takes: estimated before its first simulation by rough costs of free CPUs, and
from then on by the pace of the work that is done."""

import math
import time
from dataclasses import dataclass, field

from fedray.report.progress import duration
from fedray.scenario import Scenario

RUN, DEVICE_DAY, REPORT, DESIGN = 0.3, 5e-7, 2e-6, 1.0
"""Seconds of one CPU, measured on one machine to within a factor of three: for each run, device and
simulated day, report of a round, and mechanism."""
FIRST, FURTHER = 6, 3
"""Usual numbers of candidates of the first timer, and of each further one."""
WHAT_IFS = 11
"""Usual number of what-ifs."""
PROPOSALS, COMPUTED = 8, 15
"""Usual numbers of simulated proposals of a plan that fails, and of mechanisms made for others."""
PRIOR = 5.0
"""Estimated seconds after which the measured pace counts as much as the estimate."""


def run_seconds(scenario: Scenario) -> float:
    """Returns the estimated seconds of a simulation on one CPU."""
    rounds, devices = scenario.rounds, scenario.population.devices
    reports = rounds.count * rounds.report_goal
    # Devices come again after the timer at the earliest.
    times = math.ceil(reports / max(1.0, devices * scenario.serving_share))
    days = (times - 1) * scenario.participation.timer_hours / 24.0
    paced = rounds.count * (rounds.min_minutes_between or 0.0) / 1440.0
    days = min(max(1.0, days, paced), rounds.max_days)
    return RUN + DEVICE_DAY * devices * days + REPORT * reports


def usual_candidates(timers: int) -> float:
    """Returns the usual number of candidates of a search over a number of timers."""
    return FIRST + FURTHER * (timers - 1)


@dataclass
class PlanClock:
    """Clock of a plan, which knows how estimated and measured seconds compare."""

    places: int
    """Simulations that run at the same time."""
    seeds: int
    """Runs of each candidate."""
    small: float = 0.0
    """Estimated seconds of a run of the search."""
    full: float = 0.0
    """Estimated seconds of a run at full size."""
    begun: float = field(default_factory=time.monotonic)
    _estimated: float = 0.0
    _measured: float = 0.0

    def batch(self, seconds: float, runs: int) -> float:
        """Returns the estimated wall-clock seconds of runs that take `seconds` each on one CPU."""
        return seconds * math.ceil(runs / self.places)

    def of_candidates(self, count: float) -> float:
        """Returns the estimated seconds of candidates of the search."""
        return count * (self.batch(self.small, self.seeds) + DESIGN)

    @property
    def beyond_search(self) -> float:
        """Estimated seconds of the steps after the search, if it finds a candidate: two runs at
        full size, and the what-ifs."""
        return 2.0 * self.full + self.batch(self.small, WHAT_IFS)

    @property
    def of_remedies(self) -> float:
        """Estimated seconds of what would do, if the search finds no candidate."""
        return self.of_candidates(PROPOSALS) + COMPUTED * DESIGN

    def took(self, estimated: float, measured: float) -> None:
        """Takes the estimated and measured seconds of finished work."""
        self._estimated += estimated
        self._measured += measured

    def left(self, estimated: float) -> str:
        """Returns the time of work to do in words, at the pace so far."""
        pace = (self._measured + PRIOR) / (self._estimated + PRIOR)
        return duration(estimated * pace)

    @property
    def so_far(self) -> str:
        """The time since the beginning in words."""
        return duration(time.monotonic() - self.begun)
