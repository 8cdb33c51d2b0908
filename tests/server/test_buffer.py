"""Buffers: the compiled kernel against a readable event loop with a heap, and what every buffer keeps to."""

import heapq
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from fedray.base.rng import Stream, draw, exponential, normal, stream_key, uniform
from fedray.scenario.buffer import AnyStalenessWeighting, ConstantWeighting, PolynomialWeighting
from fedray.server.policies.cap import Cap
from fedray.server.policies.policy import Policies
from fedray.server.policies.round_separation import RoundSeparation
from fedray.server.policies.timer import Timer
from fedray.server.rounds.buffer import EXHAUSTED, Buffer, BufferRules
from fedray.server.rounds.rounds import FateModel
from fedray.wire.device_classes import DeviceClasses
from fedray.wire.history import HistoryLosses
from fedray.wire.messages import NEVER, Census, CheckIns, Outcome, Settlement, Window

SPEED, FAILURES = 0.4, 0.2
WEIGHTINGS = [ConstantWeighting(), PolynomialWeighting(), PolynomialWeighting(exponent=3.0)]
FATE_KEY, KEY = stream_key(1, Stream.TRAINING_TIME), stream_key(1, Stream.RETURN)
NO_LOSSES = HistoryLosses(stream_key(1, Stream.HISTORY), math.inf)
RATE = 90.0
"""Check-ins per hour, so that a window of 200 s has several."""


def fates_of(speed_within: float, failures: float) -> FateModel:
    """Of a population of one class."""
    one_class = DeviceClasses(stream_key(1, Stream.DEVICE_CLASS), np.ones(1))
    return FateModel(FATE_KEY, speed_within, one_class, np.array([failures]))


RULES = BufferRules(
    report_goal=3,
    concurrency=4,
    max_staleness=1,
    timer_seconds=60.0,
    policies=Policies((Timer("accepted"),), NO_LOSSES),
    fates=fates_of(SPEED, FAILURES),
    outages=np.empty((0, 2)),
)


@njit
def _gap(device, window, address):
    word, _, _, _ = draw(KEY, device, window, address)
    return exponential(word)


@njit
def _fate(device, window, address):
    w0, w1, w2, _ = draw(FATE_KEY, device, window, address)
    work = 10.0 + 25.0 * math.exp(SPEED * normal(w0))
    return work, work * uniform(w2) if uniform(w1) < FAILURES else np.inf


END, LISTED, DRAWN = 0, 1, 2
"""Kinds of events, in the order in which they happen at one time."""


class Twin:
    """The same rules: one heap of events, dicts, and a list per buffer."""

    def __init__(self, rules: BufferRules, timer: float, separation: int, cap: int | None) -> None:
        self.rules, self.timer, self.separation, self.cap = rules, timer, separation, cap
        self.round, self.buffer = 0, []
        self.training: dict[int, tuple] = {}
        self.ends: list[tuple] = []
        self.reopens: dict[int, float] = {}
        self.last: dict[int, int] = {}
        self.counts: dict[int, int] = {}
        self.most_at_once = 0

    def start_window(self, rows: list[tuple], window: Window) -> None:
        self.window, self.rows = window, rows
        self.events = [(time, LISTED, row) for row, (time, _, _) in enumerate(rows)]
        heapq.heapify(self.events)

    def address(self, time: float) -> int:
        start, end = self.window.start_time, self.window.end_time
        return int((time - start) / (end - start) * 2.0**32)

    def come_again(self, row: int, free: float) -> None:
        _, device, end = self.rows[row]
        until = min(end, self.window.ask_until_time)
        if free < until:
            gap = _gap(device, self.window.number, self.address(free)) * (3600.0 / RATE)
            time = free + max(1e-3, gap)
            if time < until:
                heapq.heappush(self.events, (time, DRAWN, row))

    def down(self, time: float) -> float | None:
        return next(
            (end for start, end in self.rules.outages.tolist() if start <= time < end), None
        )

    def advance(self) -> list[tuple] | None:
        """The rows of the buffer that is full next; None if the window ends before."""
        while True:
            is_end = self.ends and (not self.events or self.ends[0][0] <= self.events[0][0])
            if is_end and self.ends[0][0] < self.window.end_time:
                time, device = heapq.heappop(self.ends)
                if self.done(device, time):
                    rows, self.buffer = self.buffer, []
                    self.round += 1
                    return sorted(rows)
            elif self.events:
                time, _, row = heapq.heappop(self.events)
                self.come_again(row, self.check_in(row, time))
            else:
                return None

    def check_in(self, row: int, time: float) -> float:
        """When the device may come again."""
        _, device, end = self.rows[row]
        if (down := self.down(time)) is not None:
            return down
        if device in self.training:
            return self.training[device][1]
        if self.reopens.get(device, 0.0) > time:
            return self.reopens[device]
        last = self.last.get(device)
        is_near = last is not None and self.round - last < max(1, self.separation)
        if is_near or len(self.training) == self.rules.concurrency:
            return time
        work, failure = _fate(device, self.window.number, self.address(time))
        report, failed = time + work, time + failure
        if self.down(report) is not None:
            report, failed = math.inf, min(report, failed)
        done = min(report, failed, end)
        what = "reports" if report == done else "fails" if failed == done else "drops"
        self.training[device] = (time, done, what, self.round)
        heapq.heappush(self.ends, (done, device))
        self.most_at_once = max(self.most_at_once, len(self.training))
        return done

    def done(self, device: int, time: float) -> bool:
        started, _, what, version = self.training.pop(device)
        outcome = {"fails": Outcome.FAILED, "drops": Outcome.DROPPED}.get(what)
        if outcome is None:
            is_fresh = self.round - version <= self.rules.max_staleness
            outcome = Outcome.ACCEPTED if is_fresh else Outcome.LATE
        if outcome is Outcome.ACCEPTED:
            self.last[device] = self.round
            self.counts[device] = self.counts.get(device, 0) + 1
            if self.timer:
                self.reopens[device] = math.ceil(time + self.timer)
            if self.counts[device] == self.cap:
                self.reopens[device] = NEVER
        report = time if what == "reports" else None
        self.buffer.append((device, started, report, outcome, version))
        return sum(row[3] is Outcome.ACCEPTED for row in self.buffer) == self.rules.report_goal


def as_check_ins(rows: list[tuple]) -> CheckIns:
    size = len(rows)
    return CheckIns(
        device_ids=np.array([row[1] for row in rows], np.uint64),
        times=np.array([row[0] for row in rows], np.float64),
        interval_ends=np.array([row[2] for row in rows], np.float64),
        fixed_seconds=np.full(size, 10.0, np.float32),
        training_seconds=np.full(size, 25.0, np.float32),
        upload_seconds=np.empty(0, np.float32),
        last_rounds=np.empty(0, np.int32),
        timer_seconds=np.empty(0),
        contributions=np.zeros(size, np.uint32),
        census=Census(0, 0, 0, 0),
    )


def as_rows(settlement: Settlement) -> list[tuple]:
    return [
        (int(device), float(started), None if np.isnan(report) else float(report), outcome, version)
        for device, started, report, outcome, version in zip(
            settlement.device_ids.tolist(),
            settlement.check_in_times.tolist(),
            settlement.report_times.tolist(),
            map(Outcome, settlement.outcomes.tolist()),
            settlement.versions.tolist(),
            strict=True,
        )
    ]


def window_of(number: int) -> Window:
    return Window(number, 200.0 * number, 200.0 * (number + 1), 200.0 * number + 170.0, RATE)


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.floats(0, 799), st.integers(0, 12), st.floats(1, 300)), max_size=80),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(0, 3),
    st.sampled_from([0.0, 40.0]),
    st.integers(0, 2),
    st.sampled_from([None, 1, 3]),
    st.sampled_from([[], [(90.0, 130.0)], [(150.0, 260.0), (300.0, 310.0)]]),
    st.booleans(),
)
@settings(max_examples=400, deadline=None)
def test_the_kernel_does_what_the_readable_loop_does(
    raw, goal, concurrency, staleness, timer, separation, cap, outages, is_interrupted
) -> None:
    """Where it is interrupted, the kernel is saved and loaded into another between windows."""
    each = [Timer("accepted"), RoundSeparation(separation, "arrived")]
    rules = replace(
        RULES,
        report_goal=goal,
        concurrency=concurrency,
        max_staleness=staleness,
        timer_seconds=timer,
        policies=Policies((*each, Cap(cap)) if cap else tuple(each), NO_LOSSES),
        outages=np.array(outages).reshape(-1, 2),
    )
    rows: list[tuple] = []
    for time, device, length in sorted({row[0]: row for row in raw}.values()):
        # Intervals of a device are apart.
        if all(other != device or end < time for _, other, end in rows):
            rows.append((time, device, time + length))
    kernel, twin = Buffer(rules, KEY), Twin(rules, timer, separation, cap)
    found: list[list[tuple]] = []
    expected: list[list[tuple]] = []
    for number in range(4):
        window = window_of(number)
        inside = [row for row in rows if window.start_time <= row[0] < window.ask_until_time]
        if is_interrupted and number:
            state = kernel.state()
            kernel = Buffer(rules, KEY)
            kernel.load(state)
        kernel.start_window(as_check_ins(inside), window)
        while kernel.advance()[0] != EXHAUSTED:
            found.append(as_rows(kernel.release()))
            # The lists of this test never know what devices remember.
            kernel._table["known_from"] = 99
        twin.start_window(inside, window)
        while (full := twin.advance()) is not None:
            expected.append(full)
    assert found == expected
    assert twin.most_at_once <= concurrency
    for index, buffer in enumerate(found):
        accepted = [row for row in buffer if row[3] is Outcome.ACCEPTED]
        assert len(accepted) == goal == len({row[0] for row in accepted})
        assert all(0 <= index - row[4] <= staleness for row in accepted)


def run_one_window(rules: BufferRules, rows: list[tuple]) -> list[list[tuple]]:
    kernel = Buffer(rules, KEY)
    kernel.start_window(as_check_ins(rows), window_of(0)._replace(check_ins_per_hour=0.0))
    found = []
    while kernel.advance()[0] != EXHAUSTED:
        found.append(as_rows(kernel.release()))
    return found


SURE = replace(RULES, fates=fates_of(0.0, 0.0))
"""Every device takes 35 s and reports."""


@pytest.mark.compiles
def test_a_device_has_the_version_that_was_newest_when_it_started() -> None:
    """Goal 2: devices 0 and 1 fill the first buffer at 36 s; device 2 started before, device 3 after that."""
    rows = [(0.0, 0, 900.0), (1.0, 1, 900.0), (2.0, 2, 900.0), (40.0, 3, 900.0)]
    found = run_one_window(replace(SURE, report_goal=2), rows)
    assert [[(row[0], row[3].name, row[4]) for row in buffer] for buffer in found] == [
        [(0, "ACCEPTED", 0), (1, "ACCEPTED", 0)],
        [(2, "ACCEPTED", 0), (3, "ACCEPTED", 1)],
    ]


def test_without_staleness_a_device_that_started_before_the_release_is_turned_away() -> None:
    """Concurrency 2 and goal 2: the usual rounds, but for the device that takes a place that has become free."""
    rules = replace(SURE, report_goal=2, concurrency=2, max_staleness=0)
    rows = [(0.0, 0, 900.0), (5.0, 1, 900.0), (36.0, 2, 900.0), (41.0, 3, 900.0), (80.0, 4, 900.0)]
    found = run_one_window(rules, rows)
    # Device 2 started at 36 s, when 0 had reported, and before 1 filled the buffer at 40 s.
    assert [[(row[0], row[3].name) for row in buffer] for buffer in found] == [
        [(0, "ACCEPTED"), (1, "ACCEPTED")],
        [(2, "LATE"), (3, "ACCEPTED"), (4, "ACCEPTED")],
    ]


def test_who_drops_out_frees_its_place() -> None:
    """With one place, device 1 is turned away while 0 trains; 0's interval ends at 20 s, and 2 starts."""
    rules = replace(SURE, report_goal=1, concurrency=1)
    rows = [(0.0, 0, 20.0), (10.0, 1, 900.0), (20.0, 2, 900.0)]
    (buffer,) = run_one_window(rules, rows)
    assert [(row[0], row[3].name) for row in buffer] == [(0, "DROPPED"), (2, "ACCEPTED")]


def test_what_a_device_remembers_of_an_attempt_counts_at_its_next_check_in() -> None:
    """Without a timer a device that failed may come back into the same buffer; one whose report is in it may not."""
    free = replace(RULES, report_goal=3, policies=Policies((), NO_LOSSES), timer_seconds=0.0)
    failing = replace(free, fates=fates_of(0.0, 0.5))
    kernel = Buffer(failing, KEY)
    rows = [(float(device), device, 5000.0) for device in range(3)]
    kernel.start_window(as_check_ins(rows), Window(0, 0.0, 4000.0, 4000.0, RATE))
    buffers = []
    while kernel.advance()[0] != EXHAUSTED:
        buffers.append(as_rows(kernel.release()))
    assert len(buffers) > 5
    came_back = 0
    for buffer in buffers:
        accepted = [row[0] for row in buffer if row[3] is Outcome.ACCEPTED]
        assert accepted == [0, 1, 2]
        came_back += len(buffer) - 3
    assert came_back > 0


@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=lambda table: table.kind)
def test_a_weight_is_a_function_of_staleness_alone_and_at_most_one(
    weighting: AnyStalenessWeighting,
) -> None:
    """Else a clipped update could be longer than the norm by which noise is measured."""
    staleness = np.array([0, 7, 1, 10_000, 7, 0])
    weights = weighting.weights(staleness)
    assert ((weights > 0) & (weights <= 1)).all()
    assert weights[0] == 1.0
    alone = [float(weighting.weights(staleness[place : place + 1])[0]) for place in range(6)]
    assert weights.tolist() == alone
    assert (weights[[1, 0]] == weights[[4, 5]]).all()
