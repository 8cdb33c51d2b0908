"""PopulationShard: a contiguous range of device blocks that answers the server. Plain Python; clients/actor.py puts it on Ray."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from clients.availability import DAY, Habits, habit_model, habits_of, zones_of
from clients.checkin import ActiveRuns, RunList, list_check_ins, runs_of_day
from clients.latency import fixed_work_of, latency_model
from clients.population import device_model, examples_on
from fedray.messages import CheckInOrder, CheckIns, Settlement, ShardPart
from fedray.rng import Stream, stream_key
from fedray.scenario import Scenario
from fedray.trace.schema import part_ranges
from fedray.trace.writer import encode_part

CENSUS_DEVICES = 131_072
"""Devices whose sessions are always listed, timer or not, to estimate how many are eligible: every stride-th id."""


class PopulationShard:
    """Devices [first_device, end_device) of a scenario.

    State per device: the second from which its timer is open (uint32) and, if rounds must be separated, its last round (int32).
    Everything else is derived. Windows are asked for in order; the present one may be asked for again.
    """

    def __init__(self, scenario: Scenario, first_device: int, end_device: int) -> None:
        self.first_device, self.end_device = first_device, end_device
        self._devices = device_model(scenario)
        self._habit = habit_model(scenario, self._devices)
        self._latency = latency_model(scenario, self._devices)
        self._check_in_key = stream_key(scenario.seed, Stream.CHECK_IN)
        self._window_seconds = scenario.rounds.look_ahead_minutes * 60.0
        self._windows_per_day = round(DAY / self._window_seconds)
        self._census_stride = max(1, scenario.population.devices // CENSUS_DEVICES)
        count = end_device - first_device
        self._habits: Habits = habits_of(self._habit, zones_of(scenario), first_device, count)
        self._fixed_work = fixed_work_of(self._latency, first_device, count)
        self._reopen = np.zeros(count, np.uint32)
        separated = scenario.participation.round_separation > 0
        self._last_rounds = np.full(count if separated else 0, -1, np.int32)
        self._active = ActiveRuns()
        self._runs: RunList | None = None
        self._window = -1
        self._rows: list[Settlement] = []
        self._parts = part_ranges(scenario.population.devices, first_device, end_device)

    def check_ins(self, order: CheckInOrder) -> CheckIns:
        """Applies the settlements, then lists the window's check-ins, sorted by (time, device).

        The present window may be asked for again with another rate (0 for its census alone).
        """
        self.settle(order.settlements)
        if order.window != self._window:
            self._enter_window(order.window)
        self._active.drop_finished(order.start_seconds, self._reopen, self.first_device, self._census_stride)
        return list_check_ins(
            self._active,
            self._reopen,
            self._last_rounds,
            self._check_in_key,
            self._latency,
            self._fixed_work,
            self.first_device,
            self._census_stride,
            order.window,
            order.start_seconds,
            order.end_seconds,
            order.checkins_per_hour,
        )

    def _enter_window(self, window: int) -> None:
        self._window = window
        day, bucket = divmod(window, self._windows_per_day)
        if bucket == 0 or self._runs is None:
            self._active = ActiveRuns()  # the day's list names again every run that reaches into it
            self._runs = runs_of_day(
                self._habit,
                self._habits,
                self.first_device,
                self._reopen,
                self._census_stride,
                day * DAY,
                self._window_seconds,
            )
        self._active.add(self._runs, bucket)

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """Starts timers and keeps the rows for the trace."""
        for settlement in settlements:
            local = (settlement.device_ids - np.uint64(self.first_device)).astype(np.int64)
            self._reopen[local] = np.maximum(self._reopen[local], settlement.reopen_seconds)
            if self._last_rounds.size:
                kept = settlement.remembers_round
                self._last_rounds[local[kept]] = settlement.rounds[kept]
            if local.size:
                self._rows.append(settlement)

    def part_count(self) -> int:
        """How many parts of the trace this shard holds."""
        return len(self._parts)

    def encode_part(self, part: int) -> ShardPart:
        """One part of the trace: the rows of a run of blocks, sorted by (device, check-in time), as Parquet."""
        first, end = self._parts[part]
        rows = [settlement.slice_of_devices(first, end) for settlement in self._rows]
        columns = {
            "round": _concatenate([row.rounds for row in rows], np.uint32),
            "device_id": _concatenate([row.device_ids for row in rows], np.uint64),
            "checkin_time": _concatenate([row.checkin_times for row in rows], np.float64),
            "report_time": _concatenate([row.report_times for row in rows], np.float64),
            "outcome": _concatenate([row.outcomes for row in rows], np.uint8),
        }
        order = np.lexsort((columns["checkin_time"], columns["device_id"]))
        columns = {name: column[order] for name, column in columns.items()}
        columns["examples"] = examples_on(self._devices, columns["device_id"])
        return encode_part(first, end, columns)


def _concatenate(columns: list[NDArray], dtype: type) -> NDArray:
    return np.concatenate(columns) if columns else np.empty(0, dtype)
