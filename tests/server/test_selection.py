"""Selection and reporting: the compiled kernel against a readable event loop, and the rules of a round."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from scipy import stats

from fedray.base.rng import Stream, draw, exponential, stream_key
from fedray.server.policies.cap import Cap
from fedray.server.policies.policy import Policies
from fedray.server.policies.round_separation import RoundSeparation
from fedray.server.policies.timer import Timer
from fedray.server.rounds.closing import AtGoal
from fedray.server.rounds.rounds import (
    FateModel,
    Fates,
    RoundRules,
    Selected,
    draw_fates,
    resolve_reporting,
)
from fedray.server.rounds.selection import DOWN, EXHAUSTED, FULL, TIMED_OUT, Selection
from fedray.wire.device_classes import DeviceClasses
from fedray.wire.history import HistoryLosses
from fedray.wire.messages import NEVER, Census, CheckIns, Outcome, Window

ONE_CLASS = DeviceClasses(stream_key(1, Stream.DEVICE_CLASS), np.ones(1))
FATES = FateModel(stream_key(1, Stream.TRAINING_TIME), 0.3, ONE_CLASS, np.array([0.03]))
KEY = stream_key(1, Stream.RETURN)
NO_LOSSES = HistoryLosses(stream_key(1, Stream.HISTORY), math.inf)
RULES = RoundRules(
    selection_target=4,
    waiting_room=4,
    least_to_start=3,
    selection_timeout_seconds=500.0,
    report_timeout_seconds=100.0,
    timer_seconds=1000.0,
    closing=AtGoal(3),
    policies=Policies((Timer("accepted"),), NO_LOSSES),
    fates=FATES,
    outages=np.empty((0, 2)),
)


def with_policies(*each) -> RoundRules:
    return replace(RULES, policies=Policies(each, NO_LOSSES))


RATE = 90.0
"""Check-ins per hour, so that a window of 200 s has several."""


@njit
def _wait(device, window, address):
    word, _, _, _ = draw(KEY, device, window, address)
    return exponential(word)


class Twin:
    """The same rules, one event after the other, with dicts and sorted lists."""

    def __init__(self, rules: RoundRules, separation: int, cap: int | None) -> None:
        self.separation, self.cap = separation, cap
        self.rules, self.waiting, self.blocked, self.last, self.counts = rules, {}, {}, {}, {}
        self.outages = [tuple(outage) for outage in rules.outages.tolist()]
        self.down_until = 0.0

    def open(self, opened: float, ready_time: float) -> None:
        self.ready_time, self.is_ready, self.deadline = (
            ready_time,
            False,
            max(opened, ready_time) + self.rules.selection_timeout_seconds,
        )

    def start_window(self, rows: list[tuple], window: Window) -> None:
        self.window, self.rows = window, rows
        self.events = [(time, 0, row) for row, (time, _, _) in enumerate(rows)]
        self.waiting = {
            device: (time, end, None) for device, (time, end, _) in self.waiting.items()
        }

    def next_check_in(self, row: int, free: float) -> None:
        _, device, end = self.rows[row]
        until = min(end, self.window.ask_until_time)
        if free < until:
            address = int(
                (free - self.window.start_time)
                / (self.window.end_time - self.window.start_time)
                * 2.0**32
            )
            time = free + max(1e-3, _wait(device, self.window.number, address) * (3600.0 / RATE))
            if time < until:
                self.events.append((time, 1, row))

    def leave(self, time: float) -> None:
        self.waiting = {device: entry for device, entry in self.waiting.items() if entry[1] > time}

    def advance(self, round_index: int) -> tuple[int, float]:
        while True:
            events = sorted(self.events)
            time = events[0][0] if events else self.window.end_time
            clocks = [
                (
                    self.deadline if self.is_ready else self.ready_time,
                    1,
                    "deadline" if self.is_ready else "ready",
                )
            ]
            if self.outages:
                clocks.append((self.outages[0][0], 0, "outage"))
            moment, _, what = min(clocks)
            if moment <= time and moment < self.window.end_time:
                self.leave(moment)
                if what == "outage":
                    self.down_until = self.outages.pop(0)[1]
                    return DOWN, moment
                if what == "deadline":
                    return TIMED_OUT, moment
                self.is_ready = True
                if len(self.waiting) >= self.rules.selection_target:
                    return FULL, moment
                continue
            if not events:
                return EXHAUSTED, self.window.end_time
            self.events.remove(events[0])
            row = events[0][2]
            _, device, end = self.rows[row]
            self.leave(time)
            separation, last = self.separation, self.last.get(device)
            if time < self.down_until:
                self.next_check_in(row, self.down_until)
            elif device in self.waiting:
                self.next_check_in(row, time)
            elif self.blocked.get(device, -1.0) > time:
                self.next_check_in(row, self.blocked[device])
            elif len(self.waiting) >= self.rules.waiting_room or (
                separation and last is not None and round_index - last < separation
            ):
                self.next_check_in(row, time)
            else:
                self.waiting[device] = (time, end, row)
                if self.is_ready and len(self.waiting) >= self.rules.selection_target:
                    return FULL, time

    def let_go(self, until: float, round_index: int | None) -> list[int]:
        taken, self.waiting = sorted(self.waiting.items()), {}
        for device, (_, _, row) in taken:
            self.blocked[device] = until
            if round_index is not None:
                self.last[device] = round_index
                self.counts[device] = self.counts.get(device, 0) + 1
                if self.counts[device] == self.cap:
                    self.blocked[device] = math.inf
            if row is not None:
                self.next_check_in(row, self.blocked[device])
        return [device for device, _ in taken]


def as_check_ins(rows: list[tuple]) -> CheckIns:
    size = len(rows)
    return CheckIns(
        device_ids=np.array([row[1] for row in rows], np.uint64),
        times=np.array([row[0] for row in rows], np.float64),
        interval_ends=np.array([row[2] for row in rows], np.float64),
        fixed_seconds=np.full(size, 10.0, np.float32),
        training_seconds=np.full(size, 5.0, np.float32),
        upload_seconds=np.empty(0, np.float32),
        last_rounds=np.empty(0, np.int32),
        timer_seconds=np.empty(0),
        contributions=np.zeros(size, np.uint32),
        census=Census(0, 0, 0, 0),
    )


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.floats(0, 599), st.integers(0, 12), st.floats(1, 300)), max_size=60),
    st.integers(1, 6),
    st.integers(0, 2),
    st.floats(20, 400),
    st.sampled_from([[], [(90.0, 130.0)], [(150.0, 260.0), (300.0, 310.0)]]),
    st.booleans(),
    st.sampled_from([None, 1, 2]),
    st.sampled_from([0, 0, 1, 3]),
)
@settings(max_examples=400, deadline=None)
def test_the_kernel_does_what_the_readable_loop_does(
    raw, target, separation, timeout, outages, is_interrupted, cap, more_room
) -> None:
    """Windows of 200 s; a round holds its devices for 30 s after it starts, and the next may start 25 s after.

    Where it is interrupted, the kernel is saved and loaded into another between windows.
    """
    rules = replace(
        RULES,
        selection_target=target,
        waiting_room=target + more_room,
        policies=Policies((RoundSeparation(separation, "arrived"),), NO_LOSSES),
        selection_timeout_seconds=timeout,
        outages=np.array(outages).reshape(-1, 2),
    )
    rows: list[tuple] = []
    for time, device, length in sorted({row[0]: row for row in raw}.values()):
        if all(
            other != device or end < time for _, other, end in rows
        ):  # intervals of a device are apart
            rows.append((time, device, time + length))
    kernel, twin = Selection(rules, KEY), Twin(rules, separation, cap)
    log: list[list] = [[], []]
    kernel.open(0.0, 0.0)
    twin.open(0.0, 0.0)
    rounds = [0, 0]
    for number in range(3):
        window = Window(number, 200.0 * number, 200.0 * (number + 1), 200.0 * number + 170.0, RATE)
        inside = [row for row in rows if window.start_time <= row[0] < window.ask_until_time]
        if is_interrupted and number:
            state = kernel.state()
            kernel = Selection(rules, KEY)
            kernel.load(state)
        for which, player in enumerate((kernel, twin)):
            player.start_window(as_check_ins(inside) if which == 0 else inside, window)
            while True:
                status, time = player.advance(rounds[which])
                if status == EXHAUSTED:
                    break
                is_round = status != DOWN
                until = time + 30.0 if is_round else player.down_until
                if player is kernel:
                    taken = kernel.take()
                    devices = taken.device_ids.tolist()
                    remembered = np.full(len(devices), rounds[which] if is_round else -1, np.int32)
                    counts = taken.contributions + np.uint32(is_round)
                    reopen = np.where(counts == cap, NEVER, 0).astype(np.uint32)
                    kernel.let_go(taken, np.full(len(devices), until), reopen, remembered, counts)
                    if (
                        separation or cap
                    ):  # the lists of this test never know of a last round or a participation
                        kernel._blocked["known_from"] = 99
                else:
                    devices = twin.let_go(until, rounds[which] if is_round else None)
                log[which].append((status, time, devices))
                if is_round:
                    rounds[which] += 1
                    player.open(time, time + 25.0)
    assert log[0] == log[1]


def selected(work: list[float], ends: list[float]) -> Selected:
    size = len(work)
    return Selected(
        device_ids=np.arange(size, dtype=np.uint64),
        check_in_times=np.zeros(size),
        interval_ends=np.array(ends, np.float64),
        fixed_seconds=np.zeros(size, np.float32),
        training_seconds=np.zeros(size, np.float32),
        upload_seconds=np.zeros(size, np.float32),
        timer_seconds=np.full(size, RULES.timer_seconds),
        contributions=np.zeros(size, np.uint32),
        list_rows=np.full(size, -1),
    )


def resolve(
    work: list[float],
    ends: list[float],
    started: float,
    failures: list[float] | None = None,
    rules: RoundRules = RULES,
    **changes,
):
    """resolve_reporting with fates as they are given."""
    fates = Fates(
        np.array(work, np.float64), np.array(failures or [math.inf] * len(work), np.float64)
    )
    chosen = replace(selected(work, ends), **changes)
    return resolve_reporting(chosen, fates, started, 7, 5, rules)


def outcomes(reporting) -> list[str]:
    return [Outcome(code).name for code in reporting.settlement.outcomes]


def test_a_round_closes_with_the_goal_and_later_reports_are_late() -> None:
    reporting = resolve([30, 10, 20, 40], [999] * 4, 100.0)
    assert reporting.is_committed
    assert reporting.closed == 130.0
    assert outcomes(reporting) == ["ACCEPTED", "ACCEPTED", "ACCEPTED", "LATE"]
    assert reporting.accepted_device_ids.tolist() == [0, 1, 2]
    assert reporting.settlement.reopen_times.tolist() == [1130, 1110, 1120, 0]
    assert reporting.busy_until.tolist() == [130, 110, 120, 140]
    assert reporting.reported == 4


def test_lost_sessions_drop_and_failures_fail_whichever_comes_first() -> None:
    ends, failures = [115, 999, 105, 999], [math.inf, 5, 8, math.inf]
    reporting = resolve([30, 10, 20, 40], ends, 100.0, failures)
    assert outcomes(reporting) == ["DROPPED", "FAILED", "DROPPED", "ABANDONED"]
    assert np.isnan(reporting.settlement.report_times[:3]).all()
    assert reporting.busy_until.tolist()[:3] == [115, 105, 105]


def test_an_abandoned_round_accepts_nobody_but_its_timers_stand() -> None:
    reporting = resolve([30, 10, 200], [999] * 3, 0.0)
    assert not reporting.is_committed
    assert reporting.closed == 100.0
    assert outcomes(reporting) == ["ABANDONED", "ABANDONED", "LATE"]
    assert reporting.settlement.reopen_times.tolist() == [1030, 1010, 0]
    assert reporting.accepted_device_ids.size == 0


@pytest.mark.parametrize(
    ("resets_on", "expected"),
    [
        ("accepted", [1030, 1010, 1020, 0]),
        ("reported", [1030, 1010, 1020, 1040]),
        ("selected", [1000] * 4),
    ],
)
def test_what_resets_the_timer(resets_on: str, expected: list[int]) -> None:
    reporting = resolve([30, 10, 20, 40], [999] * 4, 0.0, rules=with_policies(Timer(resets_on)))
    assert reporting.settlement.reopen_times.tolist() == expected


def test_timers_are_rounded_up_to_whole_seconds_never_down() -> None:
    reporting = resolve([10.2] * 3, [999] * 3, 0.0)
    assert reporting.settlement.reopen_times.tolist() == [1011] * 3


def test_equal_report_times_count_in_order_of_device() -> None:
    reporting = resolve([10] * 5, [999] * 5, 0.0)
    assert outcomes(reporting) == ["ACCEPTED"] * 3 + ["LATE"] * 2


def test_reports_that_arrive_in_an_outage_are_lost() -> None:
    reporting = resolve(
        [30, 10, 20, 40, 50],
        [999] * 5,
        100.0,
        rules=replace(RULES, outages=np.array([[115.0, 135.0]])),
    )
    assert outcomes(reporting) == ["FAILED", "ACCEPTED", "FAILED", "ACCEPTED", "ACCEPTED"]
    assert reporting.busy_until.tolist() == [130, 110, 120, 140, 150]
    assert np.isnan(reporting.settlement.report_times[[0, 2]]).all()


def test_devices_wait_as_long_as_their_own_timers_say() -> None:
    waits = np.array([0.0, 999.5, 1000.0])
    reporting = resolve([10, 20, 30], [999] * 3, 0.0, timer_seconds=waits)
    assert reporting.settlement.reopen_times.tolist() == [0, 1020, 1030]


def test_the_accepted_report_that_reaches_the_cap_closes_the_timer_for_good_even_in_an_abandoned_round() -> (
    None
):
    rules = with_policies(Timer("accepted"), Cap(3))
    before = np.array([2, 1, 2, 2], np.uint32)
    committed = resolve([30, 10, 20, 40], [999] * 4, 100.0, rules=rules, contributions=before)
    assert committed.settlement.reopen_times.tolist() == [
        NEVER,
        1110,
        NEVER,
        0,
    ]  # the last one was late
    abandoned = resolve([30, 10, 200], [999] * 3, 0.0, rules=rules, contributions=before[:3])
    assert abandoned.settlement.reopen_times.tolist() == [NEVER, 1010, 0]


def test_fates_follow_their_laws() -> None:
    """20,000 devices: log-normal round factor on the training part, failures at 3 % and at a uniform share of the work."""
    size = 20_000
    chosen = replace(
        selected([0] * size, [999] * size),
        fixed_seconds=np.full(size, 10, np.float32),
        training_seconds=np.full(size, 100, np.float32),
    )
    fates = draw_fates(chosen, 3, FATES)
    assert stats.kstest(np.log((fates.work_seconds - 10) / 100) / 0.3, stats.norm.cdf).pvalue > 1e-4
    fails = np.isfinite(fates.failure_seconds)
    assert stats.binomtest(int(fails.sum()), size, 0.03).pvalue > 1e-4
    assert (
        stats.kstest(
            fates.failure_seconds[fails] / fates.work_seconds[fails], stats.uniform.cdf
        ).pvalue
        > 1e-4
    )
    assert not (draw_fates(chosen, 4, FATES).work_seconds == fates.work_seconds).any()


def test_own_timers_are_known_though_the_present_list_is_empty() -> None:
    """Devices that checked in in the window before, and are selected in one without check-ins; what they say of themselves is what
    counts, and the rules' timer only where they say nothing."""
    kernel = Selection(replace(RULES, selection_target=1), KEY)
    kernel.open(0.0, 250.0)
    first = replace(
        as_check_ins([(5.0, 3, 900.0)]),
        timer_seconds=np.array([17.0]),
        contributions=np.array([4], np.uint32),
    )
    kernel.start_window(first, Window(0, 0.0, 200.0, 200.0, RATE))
    assert kernel.advance(0)[0] == EXHAUSTED
    kernel.start_window(as_check_ins([]), Window(1, 200.0, 400.0, 400.0, RATE))
    assert kernel.advance(0) == (FULL, 250.0)
    taken = kernel.take()
    assert taken.timer_seconds.tolist() == [17.0]
    assert taken.contributions.tolist() == [4]


def test_where_the_lists_say_nothing_of_timers_all_keep_the_rules_timer() -> None:
    kernel = Selection(replace(RULES, selection_target=1), KEY)
    kernel.open(0.0, 0.0)
    kernel.start_window(as_check_ins([(5.0, 3, 900.0)]), Window(0, 0.0, 200.0, 200.0, RATE))
    assert kernel.advance(0) == (FULL, 5.0)
    assert kernel.take().timer_seconds.tolist() == [RULES.timer_seconds]


def test_an_upload_counts_if_it_was_lost_on_the_way_before_the_round_closed() -> None:
    """Works of 30, 10, 20, 40 s, of which the last 8 are the upload; the round closes at 130 s."""
    upload = np.full(6, 8.0, np.float32)
    reporting = resolve(
        [30, 10, 20, 40, 25, 26],
        [999, 999, 999, 999, 120, 110],  # the fifth loses its session while it uploads, at 120 s
        100.0,
        rules=with_policies(Timer("upload")),
        upload_seconds=upload,
    )
    assert outcomes(reporting) == ["ACCEPTED"] * 3 + ["LATE", "DROPPED", "DROPPED"]
    assert reporting.settlement.reopen_times.tolist() == [1122, 1102, 1112, 0, 1117, 0]
    failed = resolve(
        [30, 10, 20, 40],
        [999] * 4,
        100.0,
        failures=[math.inf, math.inf, 15.0, 35.0],
        rules=with_policies(Timer("upload")),
        upload_seconds=upload[:4],
    )
    assert not failed.is_committed
    assert failed.settlement.reopen_times.tolist() == [1122, 1102, 1112, 1132]
