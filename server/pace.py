"""Pace steering: how often, and until when in a window, devices are asked to check in (Bonawitz et
al. 2019, section 2.3); and by which of the two samplers the shards draw the check-ins, by predicted
cost. Functions of the scenario and of the census alone.

Both samplers draw the same process, but not the same draws of it. So the predicted costs, which
choose between them, are part of what makes a trace, as the seed is: they are constants, never
measured at run time, and run.json records their version.
"""

import math

from fedray.messages import Census, CheckInOrder, Window
from fedray.scenario import Scenario

COSTS_VERSION = 1
"""Of the three costs below. Whoever changes one of them raises it: another choice of sampler is
another trace."""
ENUMERATED_DEVICE_COST = 700.0
"""Of enumeration: to list one device's eligible intervals over one period. Costs are relative; one
machine took so many nanoseconds."""
CANDIDATE_COST = 450.0
"""Of thinning: one candidate on a device that the task can use."""
UNUSABLE_CANDIDATE_COST = 40.0
"""Of thinning: one candidate on a device that the task cannot use."""
QUIET_LOCAL_HOUR = 14.0
"""Periods of enumeration end then, local time of the largest zone: the fewest intervals go on."""


class Pace:
    """The orders that shards get.

    window_seconds: length of every look-ahead window.
    listed_until: end of the period for which the shards have listed intervals, seconds since
        start; part of a checkpoint's state.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self.window_seconds = scenario.rounds.look_ahead_minutes * 60.0
        self.listed_until = 0.0
        windows_per_day = round(86_400.0 / self.window_seconds)
        largest = max(scenario.population.time_zones, key=lambda zone: zone.share)
        quiet_hour = (QUIET_LOCAL_HOUR - largest.utc_offset_hours) % 24.0
        self._windows_per_day = windows_per_day
        self._quiet_window = round(quiet_hour * 3600.0 / self.window_seconds) % windows_per_day
        population, rounds = scenario.population, scenario.rounds
        self._is_small = (
            population.devices * scenario.usable_share
            < rounds.small_population * rounds.selection_target
        )

    def census_only(self) -> CheckInOrder:
        """The order that asks for the first window's census, and for nobody to come."""
        return CheckInOrder(
            window=Window(0, 0.0, self.window_seconds, self.window_seconds, 0.0),
            round_index=0,
            is_enumerated=not self._scenario.availability.can_be_thinned,
            list_until_time=self._period_end(0),
            settlements=(),
        )

    def order(self, window: int, census: Census, round_index: int) -> CheckInOrder:
        """The order for a window, without settlements.

        Args:
            window: its number.
            census: of the window before.
            round_index: the round that is being formed.
        """
        start = window * self.window_seconds
        end = start + self.window_seconds
        rate = self._rate(census.free_eligible)
        ask_until = end
        # Few devices come together at the window's start, or they would hardly ever wait at once;
        # the higher rate makes up for the shorter time.
        if self._is_small:
            ask_until = min(end, start + 60.0 * self._scenario.rounds.together_minutes)
            rate *= self.window_seconds / (ask_until - start)
        is_enumerated = self._is_enumerated(
            window, start, rate * (ask_until - start) / self.window_seconds, census
        )
        return CheckInOrder(
            window=Window(window, start, end, ask_until, rate),
            round_index=round_index,
            is_enumerated=is_enumerated,
            list_until_time=self.listed_until if is_enumerated else self._period_end(window),
            settlements=(),
        )

    def _rate(self, free_eligible: int) -> float:
        """Check-ins per device and hour: those of the devices that may take part are a small
        multiple of what rounds at full speed could select.

        Devices whose last round is too near are asked at the same rate, since only they know that;
        they are turned away.
        """
        rounds, latency = self._scenario.rounds, self._scenario.latency
        # A round takes about as long as a device that is one deviation slower than the median.
        slow_device = math.exp(math.hypot(latency.speed_between, latency.speed_within))
        fastest_round_seconds = latency.slowdown * (
            latency.fixed_seconds + latency.train_seconds * slow_device
        )
        demand_per_hour = rounds.selection_target * 3600.0 / fastest_round_seconds
        return min(
            rounds.max_checkins_per_hour,
            rounds.pace_multiple * demand_per_hour / max(1, free_eligible),
        )

    def _is_enumerated(
        self, window: int, start: float, rate_per_hour: float, census: Census
    ) -> bool:
        """Whether the window's check-ins are enumerated: until the period's end, once it is begun.

        What is predicted is the rest of the period at the present rate; blocks are alike, so that
        it holds for each of them.
        """
        if start < self.listed_until:
            return True
        scenario, period_end = self._scenario, self._period_end(window)
        match scenario.rounds.sampler:
            case "enumeration":
                is_cheaper = True
            case "thinning":
                is_cheaper = False
            case _ if not scenario.availability.can_be_thinned:
                is_cheaper = True
            case _:
                population = scenario.population
                devices = min(
                    population.devices + population.joins_per_day * start / 86_400.0,
                    scenario.device_ids,
                )
                candidates = devices * rate_per_hour * (period_end - start) / 3600.0
                each = (
                    scenario.usable_share * CANDIDATE_COST
                    + (1.0 - scenario.usable_share) * UNUSABLE_CANDIDATE_COST
                )
                is_cheaper = census.listed * ENUMERATED_DEVICE_COST < candidates * each
        if is_cheaper:
            self.listed_until = period_end
        return is_cheaper

    def _period_end(self, window: int) -> float:
        """Seconds at which the period that a window lies in ends: the next quiet hour."""
        windows = (self._quiet_window - window - 1) % self._windows_per_day + 1
        return (window + windows) * self.window_seconds
