"""Pace steering: how often, and until when in a window, devices are asked to check in (Bonawitz et
al. 2019, section 2.3); and the choice between the two samplers of check-ins, by predicted cost.
Functions of only the scenario and the census.

Both samplers draw the same process, but different realisations of it. So the predicted costs, which
choose between them, are part of a trace's definition, like the seed: they are constants, never
measured at run time, and run.json records their version.
"""

import math
from collections.abc import Sequence

import numpy as np

from fedray.base.arrays import Int64Array
from fedray.base.errors import CheckpointError
from fedray.scenario import Scenario
from fedray.wire.messages import Census, CheckInOrder, Window

COSTS_VERSION = 1
"""Version of the three costs below. Raise it with any change of them, since another choice of
sampler gives another trace."""
ENUMERATED_DEVICE_COST = 700.0
"""Cost of enumeration: listing one device's eligible intervals over one period. Costs are relative;
on one machine they were nanoseconds."""
CANDIDATE_COST = 450.0
"""Cost of thinning: one candidate on a usable device."""
UNUSABLE_CANDIDATE_COST = 40.0
"""Cost of thinning: one candidate on an unusable device."""
QUIET_LOCAL_HOUR = 14.0
"""Local hour of the largest zone at which periods of enumeration end, since the fewest intervals
are in progress then."""


class Pace:
    """The orders that shards get.

    Args:
        scenarios: scenario of each task; the first has the keys that tasks share.

    window_seconds: length of every look-ahead window.
    listed_from, listed_until: start and end of the period for which the shards have listed
        intervals, seconds since start; part of a checkpoint's state.
    is_small: whether devices are so few that they are asked to come together.
    """

    def __init__(self, scenarios: Sequence[Scenario]) -> None:
        self._scenarios, scenario = scenarios, scenarios[0]
        self._scenario = scenario
        self.window_seconds = scenario.rounds.look_ahead_minutes * 60.0
        self.listed_from = 0.0
        self.listed_until = 0.0
        windows_per_day = round(86_400.0 / self.window_seconds)
        # Most devices live there, so its nights decide the number of intervals in progress.
        largest = max(scenario.population.time_zones, key=lambda zone: zone.share)
        quiet_hour = (QUIET_LOCAL_HOUR - largest.utc_offset_hours) % 24.0
        self._windows_per_day = windows_per_day
        self._quiet_window = round(quiet_hour * 3600.0 / self.window_seconds) % windows_per_day
        # Devices come together if any task needs that, since they come for all.
        self.is_small = any(_is_small(each) for each in scenarios)

    def census_only(self) -> CheckInOrder:
        """Returns the order for the first window's census, which asks no device to come."""
        return CheckInOrder(
            window=Window(0, 0.0, self.window_seconds, self.window_seconds, 0.0),
            # Thinning costs nothing if no device is asked, but some models can only be enumerated.
            is_enumerated=not self._scenario.availability.can_be_thinned,
            list_from_time=0.0,
            list_until_time=self._period_end(0),
        )

    def order(self, window: int, census: Census, wanted: Sequence[int | None]) -> CheckInOrder:
        """Returns the order for a window, without settlements and rounds.

        Args:
            window: its number.
            census: census of the window before.
            wanted: for each task, the devices that could take part in it at the start of the window
                before; None for an idle task.
        """
        start = window * self.window_seconds
        end = start + self.window_seconds
        rate = self._rate(wanted)
        ask_until = end
        # Pace steering of small populations (Bonawitz et al. 2019, section 2.3).
        # A few devices come together at the window's start, or they would hardly ever wait at the
        # same time; the higher rate makes up for the shorter time.
        if self.is_small:
            ask_until = min(end, start + 60.0 * self._scenario.rounds.together_minutes)
            rate *= self.window_seconds / (ask_until - start)
        # The same number of check-ins, spread over the whole window.
        mean_rate = rate * (ask_until - start) / self.window_seconds
        is_enumerated = self._is_enumerated(window, start, mean_rate, census)
        return CheckInOrder(
            window=Window(window, start, end, ask_until, rate),
            is_enumerated=is_enumerated,
            list_from_time=self.listed_from if is_enumerated else start,
            list_until_time=self.listed_until if is_enumerated else self._period_end(window),
        )

    def _rate(self, wanted: Sequence[int | None]) -> float:
        """Returns the check-ins per device and hour for all tasks together: the sum of their rates,
        but at most the largest `rounds.max_checkins_per_hour`. `wanted` is as in `order`."""
        rates = [
            _rate_of(scenario, free_eligible)
            for scenario, free_eligible in zip(self._scenarios, wanted, strict=True)
            if free_eligible is not None
        ]
        most = max(each.rounds.max_checkins_per_hour for each in self._scenarios)
        return min(most, sum(rates, 0.0))

    def _is_enumerated(
        self,
        window: int,
        start: float,
        rate_per_hour: float,
        census: Census,
    ) -> bool:
        """Returns whether the window's check-ins are enumerated. Once begun, enumeration continues
        until the period's end.

        The prediction covers the rest of the period at the present rate; blocks are alike, so it
        holds for each of them.
        """
        # The intervals of this period are listed already, so drawing from them costs little.
        if start < self.listed_until:
            return True
        scenario = self._scenario
        period_end = self._period_end(window)
        match scenario.rounds.sampler:
            case "enumeration":
                is_cheaper = True
            case "thinning":
                is_cheaper = False
            case _ if not scenario.availability.can_be_thinned:
                is_cheaper = True
            case _:
                population = scenario.population
                joined = population.joins_per_day * start / 86_400.0
                devices = min(population.devices + joined, scenario.device_ids)
                candidates = devices * rate_per_hour * (period_end - start) / 3600.0
                usable_cost = scenario.usable_share * CANDIDATE_COST
                unusable_cost = (1.0 - scenario.usable_share) * UNUSABLE_CANDIDATE_COST
                candidate_cost = usable_cost + unusable_cost
                thinning_cost = candidates * candidate_cost
                enumeration_cost = census.listed * ENUMERATED_DEVICE_COST
                is_cheaper = enumeration_cost < thinning_cost
        # A period begins with this window; later windows in it find it begun.
        if is_cheaper:
            self.listed_from = start
            self.listed_until = period_end
        return is_cheaper

    def _period_end(self, window: int) -> float:
        """Returns the end of the period of a window, seconds since start: the next quiet hour."""
        # Between one window and a day: a period that begins at the quiet hour lasts a day.
        windows = (self._quiet_window - window - 1) % self._windows_per_day + 1
        return (window + windows) * self.window_seconds


class UploadPace(Pace):
    """The orders if uploads are stored: no device waits for others, so devices come at the highest
    rate."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__([scenario])
        self.is_small = False

    def _rate(self, wanted: Sequence[int | None]) -> float:
        del wanted
        return self._scenario.rounds.max_checkins_per_hour


def _is_small(scenario: Scenario) -> bool:
    """Whether a task has so few devices that they are asked to come together."""
    rounds = scenario.rounds
    usable_devices = scenario.population.devices * scenario.serving_share
    # Buffered rounds take devices as they come, so no device needs to wait for others.
    is_selected_together = rounds.mode == "on-device"
    return is_selected_together and usable_devices < rounds.small_population * rounds.wanted_at_once


def _rate_of(scenario: Scenario, free_eligible: int) -> float:
    """Returns the check-ins per device and hour, at most `rounds.max_checkins_per_hour`.

    At this rate the devices that may take part make `rounds.pace_multiple` check-ins for each
    device that rounds at full speed could select. Devices whose last round is too recent are asked
    at the same rate, since only they know that it is too recent; they are turned away.

    Args:
        free_eligible: devices that may take part, at the start of the window before.
    """
    rounds, latency = scenario.rounds, scenario.latency
    # A round takes about as long as a device that is one deviation slower than the median. The
    # log-deviations between devices and within one are independent: their squares add up.
    deviation = math.hypot(latency.speed_between, latency.speed_within)
    # In buffered rounds a place is free again after the mean time; the factor is log-normal.
    factor = math.exp(deviation if rounds.buffer is None else deviation**2 / 2.0)
    work_seconds = latency.fixed_seconds + latency.train_seconds * factor
    busy_seconds = latency.slowdown * work_seconds
    demand_per_hour = rounds.wanted_at_once * 3600.0 / busy_seconds
    # Pace steering tells each device when to come back. A common rate has the same mean load, and
    # keeps check-ins a Poisson process, which is what both samplers need.
    # There may be no free device; the largest rate bounds the result.
    per_device = rounds.pace_multiple * demand_per_hour / max(1, free_eligible)
    return min(rounds.max_checkins_per_hour, per_device)


class Samplers:
    """Number of windows drawn by enumeration and by thinning."""

    def __init__(self) -> None:
        self._windows = {True: 0, False: 0}

    def count(self, is_enumerated: bool) -> None:
        """Counts a window."""
        self._windows[is_enumerated] += 1

    @property
    def document(self) -> dict[str, int]:
        """The counts, and the version of the predicted costs behind the choice; for run.json."""
        return {
            "costs_version": COSTS_VERSION,
            "enumerated_windows": self._windows[True],
            "thinned_windows": self._windows[False],
        }

    def state(self) -> Int64Array:
        """The values of `document`, in their order."""
        return np.array(list(self.document.values()))

    def load(self, state: Int64Array) -> None:
        """Restores a state.

        Raises:
            CheckpointError: the samplers were chosen by other predicted costs, so that the rest of
                the run would not be the same.
        """
        version, self._windows[True], self._windows[False] = state.tolist()
        if version != COSTS_VERSION:
            raise CheckpointError(
                f"the checkpoint was written with predicted costs of version {version}, this "
                f"release has {COSTS_VERSION}; go on "
                "with the release that began the run, or run it again"
            )
