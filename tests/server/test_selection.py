"""Selection and reporting: the compiled kernel against a readable event loop, and the rules of a round."""

import heapq
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedray.messages import CheckIns, Outcome
from server.rounds import RoundRules, Selected, resolve_reporting
from server.selection import EXHAUSTED, FULL, TIMED_OUT, Selection

RULES = RoundRules(
    report_goal=3,
    selection_target=4,
    selection_timeout=500.0,
    report_timeout=100.0,
    timer=1000.0,
    timer_resets_on="accepted",
    round_separation=0,
)


class Twin:
    """The same rules, one event after the other, with a dict and a list."""

    def __init__(self, rules: RoundRules) -> None:
        self.rules, self.waiting, self.until, self.last = rules, {}, {}, {}

    def open(self, opened: float, ready_at: float) -> None:
        self.ready_at, self.deadline = ready_at, max(opened, ready_at) + self.rules.selection_timeout

    def events(self, check_ins: list[tuple], window_end: float) -> list[tuple]:
        """(time, order at one time, what): the moments at which something may happen, check-ins after the clock's own."""
        return [(time, 2, entry) for entry in check_ins for time in [entry[0]]]

    def run(self, check_ins: list[tuple], window_end: float, round_index: int) -> tuple[int, float]:
        queue = self.events(check_ins, window_end)
        for moment, kind in ((self.ready_at, 0), (self.deadline, 1)):
            if moment < window_end and moment not in getattr(self, "done", ()):
                heapq.heappush(queue, (moment, kind, ()))
        for time, kind, entry in sorted(queue):
            if kind == 0 and (self.ready_at, 0) in self.handled:
                continue
            self.waiting = {device: row for device, row in self.waiting.items() if row[1] > time}
            if kind == 0:
                self.handled.add((self.ready_at, 0))
            elif kind == 1:
                return TIMED_OUT, time
            else:
                check_ins.remove(entry)
                _, device, end = entry
                if len(self.waiting) >= self.rules.selection_target or end <= time:
                    continue
                separation, last = self.rules.round_separation, self.last.get(device)
                if self.until.get(device, -1.0) > time or (separation and last is not None and round_index - last < separation):
                    continue
                self.waiting[device] = (time, end)
                self.until[device] = end
            if len(self.waiting) >= self.rules.selection_target and time >= self.ready_at:
                return FULL, time
        return EXHAUSTED, window_end


def as_check_ins(rows: list[tuple]) -> CheckIns:
    size = len(rows)
    return CheckIns(
        device_ids=np.array([row[1] for row in rows], np.uint64),
        times=np.array([row[0] for row in rows], np.float64),
        session_ends=np.array([row[2] for row in rows], np.float64),
        work_seconds=np.full(size, 10.0, np.float32),
        failure_seconds=np.full(size, np.inf, np.float32),
        last_rounds=np.empty(0, np.int32),
        eligible_estimate=0,
        open_eligible=0,
    )


@given(
    st.lists(st.tuples(st.floats(0, 599), st.integers(0, 12), st.floats(1, 300)), max_size=60),
    st.integers(1, 6),
    st.integers(0, 2),
    st.floats(20, 400),
)
@settings(max_examples=300, deadline=None)
def test_the_kernel_does_what_the_readable_loop_does(raw, target: int, separation: int, timeout: float) -> None:
    """Windows of 200 s; a round holds its devices for 30 s after it starts, and the next may start 25 s after."""
    rules = replace(RULES, selection_target=target, round_separation=separation, selection_timeout=timeout)
    rows = sorted({time: (time, device, time + length) for time, device, length in raw}.values())
    kernel, twin = Selection(rules), Twin(rules)
    twin.handled = set()
    log: list[list] = [[], []]
    for player, entries in ((kernel, log[0]), (twin, log[1])):
        player.open(0.0, 0.0)
        round_index = 0
        for window in range(3):
            end = 200.0 * (window + 1)
            inside = [row for row in rows if end - 200.0 <= row[0] < end]
            if player is kernel:
                kernel.start_window(as_check_ins(inside), window, end - 200.0, end)
            while True:
                status, time = kernel.advance(round_index) if player is kernel else twin.run(inside, end, round_index)
                if status == EXHAUSTED:
                    break
                if player is kernel:
                    taken = kernel.take()
                    devices = taken.device_ids.tolist()
                    busy, reopen = np.full(len(devices), time + 30.0), np.zeros(len(devices), np.uint32)
                    remembered = np.full(len(devices), round_index, np.int32)
                    kernel.block(taken, busy, reopen, remembered, known_from=99 if separation else window + 1)
                else:
                    devices = sorted(twin.waiting)
                    twin.waiting = {}
                    twin.until.update(dict.fromkeys(devices, time + 30.0))
                    twin.last.update(dict.fromkeys(devices, round_index))
                entries.append((status, time, devices))
                round_index += 1
                player.open(time, time + 25.0)
    assert log[0] == log[1]


def selected(work: list[float], ends: list[float], failures: list[float] | None = None) -> Selected:
    size = len(work)
    return Selected(
        device_ids=np.arange(size, dtype=np.uint64),
        checkin_times=np.zeros(size),
        session_ends=np.array(ends, np.float64),
        work_seconds=np.array(work, np.float64),
        failure_seconds=np.array(failures or [math.inf] * size, np.float64),
    )


def outcomes(reporting) -> list[str]:
    return [Outcome(code).name for code in reporting.settlement.outcomes]


def test_a_round_closes_with_the_goal_and_later_reports_are_late() -> None:
    reporting = resolve_reporting(selected([30, 10, 20, 40], [999] * 4), 100.0, 5, RULES)
    assert reporting.is_committed
    assert reporting.closed == 130.0
    assert outcomes(reporting) == ["ACCEPTED", "ACCEPTED", "ACCEPTED", "LATE"]
    assert reporting.accepted_device_ids.tolist() == [0, 1, 2]
    assert reporting.settlement.reopen_seconds.tolist() == [1130, 1110, 1120, 0]
    assert reporting.busy_until.tolist() == [130, 110, 120, 140]
    assert reporting.reported == 4


def test_lost_sessions_drop_and_failures_fail_whichever_comes_first() -> None:
    ends, failures = [115, 999, 105, 999], [math.inf, 5, 8, math.inf]
    reporting = resolve_reporting(selected([30, 10, 20, 40], ends, failures), 100.0, 0, RULES)
    assert outcomes(reporting) == ["DROPPED", "FAILED", "DROPPED", "ABANDONED"]
    assert np.isnan(reporting.settlement.report_times[:3]).all()
    assert reporting.busy_until.tolist()[:3] == [115, 105, 105]


def test_an_abandoned_round_accepts_nobody_but_its_timers_stand() -> None:
    reporting = resolve_reporting(selected([30, 10, 200], [999] * 3), 0.0, 2, RULES)
    assert not reporting.is_committed
    assert reporting.closed == 100.0
    assert outcomes(reporting) == ["ABANDONED", "ABANDONED", "LATE"]
    assert reporting.settlement.reopen_seconds.tolist() == [1030, 1010, 0]
    assert reporting.accepted_device_ids.size == 0


@pytest.mark.parametrize(
    ("resets_on", "expected"),
    [("accepted", [1030, 1010, 1020, 0]), ("reported", [1030, 1010, 1020, 1040]), ("selected", [1000] * 4)],
)
def test_what_resets_the_timer(resets_on: str, expected: list[int]) -> None:
    reporting = resolve_reporting(selected([30, 10, 20, 40], [999] * 4), 0.0, 0, replace(RULES, timer_resets_on=resets_on))
    assert reporting.settlement.reopen_seconds.tolist() == expected


def test_timers_are_rounded_up_to_whole_seconds_never_down() -> None:
    reporting = resolve_reporting(selected([10.2] * 3, [999] * 3), 0.0, 0, RULES)
    assert reporting.settlement.reopen_seconds.tolist() == [1011] * 3


def test_equal_report_times_count_in_order_of_device() -> None:
    reporting = resolve_reporting(selected([10] * 5, [999] * 5), 0.0, 0, RULES)
    assert outcomes(reporting) == ["ACCEPTED"] * 3 + ["LATE"] * 2
