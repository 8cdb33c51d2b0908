"""Selection of one task and of several: the compiled walk against a readable event loop."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from fedray.base.rng import Stream, draw, exponential, stream_key, stream_seed
from fedray.scenario import SeveralTasks
from fedray.server.policies.policy import Policies
from fedray.server.policies.round_separation import RoundSeparation
from fedray.server.rounds.closing import AtGoal
from fedray.server.rounds.rounds import FateModel, RoundRules
from fedray.server.rounds.selection import DOWN, EXHAUSTED, FULL, TIMED_OUT, Selection
from fedray.wire.device_classes import DeviceClasses
from fedray.wire.history import HistoryLosses
from fedray.wire.messages import NEVER, NO_CHECK_INS, Census, CheckIns, Window

SEED = 1
RETURN = stream_key(SEED, Stream.RETURN)
RATE = 90.0
"""Check-ins per hour, so that a window of 200 s has several."""
RULES = RoundRules(
    selection_target=4,
    waiting_room=4,
    least_to_start=3,
    selection_timeout_seconds=500.0,
    report_timeout_seconds=100.0,
    timer_seconds=1000.0,
    closing=AtGoal(3),
    policies=Policies((), HistoryLosses(stream_key(1, Stream.HISTORY), math.inf)),
    fates=FateModel(
        stream_key(1, Stream.TRAINING_TIME),
        0.3,
        DeviceClasses(stream_key(1, Stream.DEVICE_CLASS), np.ones(1)),
        np.array([0.03]),
    ),
    outages=np.empty((0, 2)),
)
TABLES = {
    "seed": SEED,
    "population": {"devices": 1000},
    "rounds": {"count": 5, "report_goal": 5},
    "training": {"enabled": False},
}


@njit
def _word(key, device, window, address):
    word, _, _, _ = draw(key, device, window, address)
    return exponential(word)


def offer_key(task: int) -> tuple[np.uint64, np.uint64]:
    word = stream_seed(SEED, Stream.OFFER, task)
    return np.uint64(word & 0xFFFFFFFF), np.uint64(word >> 32)


class Twin:
    """The same rules, one event after the other, with dicts and sorted lists."""

    def __init__(
        self, rules: list[RoundRules], weights: list[float], outages: list, cap: int | None
    ) -> None:
        self.rules, self.weights, self.cap = rules, weights, cap
        self.counts: dict[tuple[int, int], int] = {}
        self.tasks = range(len(rules))
        self.waiting: dict[int, tuple] = {}  # by device: task, check-in, end, row
        self.busy: dict[int, float] = {}
        self.reopen: dict[tuple[int, int], float] = {}
        self.last: dict[tuple[int, int], int] = {}
        self.outages, self.down_until = list(outages), 0.0
        self.ready_times, self.deadlines = [0.0] * len(rules), [0.0] * len(rules)
        self.is_ready, self.starts = [False] * len(rules), [0.0] * len(rules)

    def open(self, task: int, opened: float, ready_time: float) -> None:
        self.ready_times[task], self.is_ready[task] = ready_time, False
        timeout = self.rules[task].selection_timeout_seconds
        self.deadlines[task] = max(opened, ready_time) + timeout

    def select_from(self, task: int, time: float) -> None:
        self.starts[task] = time

    def start_window(self, rows: list[tuple], window: Window) -> None:
        self.window, self.rows = window, rows
        self.events = [(row[0], 0, place) for place, row in enumerate(rows)]
        self.waiting = {device: (*each[:3], None) for device, each in self.waiting.items()}

    def address(self, time: float) -> int:
        window = self.window
        return int((time - window.start_time) / (window.end_time - window.start_time) * 2.0**32)

    def admitted_from(self, device: int, task: int, row: int) -> float:
        said = self.rows[row][3][task]
        return max(said, self.reopen.get((device, task), 0.0), self.starts[task])

    def next_check_in(self, row: int, free: float) -> None:
        _, device, end, _ = self.rows[row]
        until = min(end, self.window.ask_until_time)
        if free < until:
            wait = _word(RETURN, device, self.window.number, self.address(free))
            time = free + max(1e-3, wait * (3600.0 / RATE))
            if time < until:
                self.events.append((time, 1, row))

    def count(self, task: int) -> int:
        return sum(each[0] == task for each in self.waiting.values())

    def is_full(self, task: int) -> bool:
        return self.count(task) >= self.rules[task].selection_target

    def has_room(self, task: int) -> bool:
        return self.count(task) < self.rules[task].waiting_room

    def admits(self, device: int, task: int, row: int, time: float, round_index: int) -> bool:
        last, apart = self.last.get((device, task)), self.rules[task].policies.separation
        is_apart = not apart or last is None or round_index - last >= apart
        is_open = self.admitted_from(device, task, row) <= time
        return is_open and is_apart and self.has_room(task)

    def leave(self, time: float) -> None:
        self.waiting = {device: each for device, each in self.waiting.items() if each[2] > time}

    def clocks(self) -> list[tuple]:
        found = [(self.outages[0][0], -1, "outage")] if self.outages else []
        for task in self.tasks:
            if self.starts[task] == math.inf:
                continue
            if self.is_ready[task]:
                found.append((self.deadlines[task], task, "deadline"))
            else:
                found.append((self.ready_times[task], task, "ready"))
        return [*found, (math.inf, 99, "never")]

    def advance(self, rounds: list[int]) -> tuple[int, int, float]:
        while True:
            time = min(self.events)[0] if self.events else self.window.end_time
            moment, task, what = min(self.clocks())
            if moment <= time and moment < self.window.end_time:
                self.leave(moment)
                if what == "outage":
                    self.down_until = self.outages.pop(0)[1]
                    return DOWN, -1, moment
                if what == "deadline":
                    return TIMED_OUT, task, moment
                self.is_ready[task] = True
                if self.is_full(task):
                    return FULL, task, moment
                continue
            if not self.events:
                return EXHAUSTED, -1, self.window.end_time
            event = min(self.events)
            self.events.remove(event)
            row = event[2]
            _, device, end, _ = self.rows[row]
            self.leave(time)
            admitted = min(self.admitted_from(device, task, row) for task in self.tasks)
            offers = [
                task for task in self.tasks if self.admits(device, task, row, time, rounds[task])
            ]
            if time < self.down_until:
                self.next_check_in(row, self.down_until)
            elif device in self.waiting:
                self.next_check_in(row, time)
            elif self.busy.get(device, -1.0) > time:
                self.next_check_in(row, max(self.busy[device], admitted))
            elif not offers:
                self.next_check_in(row, max(time, admitted))
            else:
                address = self.address(time)
                by_score = [
                    (
                        _word(offer_key(task), device, self.window.number, address)
                        / self.weights[task],
                        task,
                    )
                    for task in offers
                ]
                task = min(by_score)[1]
                self.waiting[device] = (task, time, end, row)
                if self.is_ready[task] and self.is_full(task):
                    return FULL, task, time

    def let_go(
        self, task: int, until: float, reopen: float, sharing: list[int], round_index: int | None
    ) -> list[int]:
        """reopen: 0 where no timer starts."""
        taken = sorted((d, each) for d, each in self.waiting.items() if each[0] == task)
        for device, _ in taken:
            del self.waiting[device]
        for device, (_, _, _, row) in taken:
            self.busy[device] = until
            if round_index is not None:
                self.last[device, task] = round_index
            for other in (task, *sharing):
                before = self.reopen.get((device, other), 0.0)
                self.reopen[device, other] = max(before, reopen)
            if round_index is not None:
                self.counts[device, task] = self.counts.get((device, task), 0) + 1
                if self.counts[device, task] == self.cap:
                    self.reopen[device, task] = math.inf
            if row is not None:
                opens = min(self.admitted_from(device, each, row) for each in self.tasks)
                self.next_check_in(row, max(until, opens))
        return [device for device, _ in taken]


def selection_of(several: SeveralTasks, rules: list[RoundRules]) -> Selection:
    return Selection(rules, several.seed, [task.weight for task in several.tasks])


def as_check_ins(rows: list[tuple], tasks: int, is_bare: bool = False) -> CheckIns:
    """Bare lists of one task have columns without tasks, and leave out those of which nobody needs anything."""
    size = len(rows)
    if is_bare:
        return replace(
            NO_CHECK_INS,
            device_ids=np.array([row[1] for row in rows], np.uint64),
            times=np.array([row[0] for row in rows], np.float64),
            interval_ends=np.array([row[2] for row in rows], np.float64),
            fixed_seconds=np.full(size, 10.0, np.float32),
            training_seconds=np.full(size, 5.0, np.float32),
            contributions=np.zeros(size, np.uint32),
        )

    def columns(value: float, kind: type) -> np.ndarray:
        return np.full((size, tasks), value, kind)

    return CheckIns(
        device_ids=np.array([row[1] for row in rows], np.uint64),
        times=np.array([row[0] for row in rows], np.float64),
        interval_ends=np.array([row[2] for row in rows], np.float64),
        fixed_seconds=columns(10.0, np.float32),
        training_seconds=columns(5.0, np.float32),
        upload_seconds=columns(0.0, np.float32),
        last_rounds=columns(-1, np.int32),
        timer_seconds=columns(1000.0, np.float64),
        contributions=columns(0, np.uint32),
        census=Census(0, 0, 0, 0),
        open_times=np.array([row[3] for row in rows], np.float64).reshape(size, tasks),
    )


def let_go(kernel: Selection, cap, task, until, reopen, sharing, round_index) -> list[int]:
    taken = kernel.take(task)
    size = taken.device_ids.size
    none, no_round = np.zeros(size, np.uint32), np.full(size, -1, np.int32)
    times = np.full(size, reopen, np.uint32)
    for other in sharing:
        kernel.remember(other, taken.device_ids, times, no_round, none)
    remembered = no_round if round_index is None else np.full(size, round_index, np.int32)
    counts = taken.contributions + np.uint32(round_index is not None)
    times = np.where(counts == cap, np.uint32(NEVER), times)
    kernel.remember(task, taken.device_ids, times, remembered, counts)
    kernel._table["known_from"] = 99  # the lists of this test know of nothing that was decided
    kernel.let_go(taken, np.full(size, until))
    return taken.device_ids.tolist()


ROW = st.tuples(
    st.floats(0, 599), st.integers(0, 12), st.floats(1, 300), st.lists(st.sampled_from([0.0, 0.0, 150.0, 420.0]), min_size=3, max_size=3)
)  # fmt: skip


@pytest.mark.slow
@given(
    st.lists(ROW, max_size=60),
    st.integers(1, 3),
    st.lists(st.integers(1, 5), min_size=3, max_size=3),
    st.lists(st.integers(0, 2), min_size=3, max_size=3),
    st.lists(st.sampled_from([0, 0, 2]), min_size=3, max_size=3),
    st.lists(st.sampled_from([1.0, 0.2, 7.0]), min_size=3, max_size=3),
    st.floats(20, 400),
    st.sampled_from([[], [(90.0, 130.0)], [(150.0, 260.0), (300.0, 310.0)]]),
    st.sampled_from([0.0, 170.0, 330.0]),
    st.sampled_from([0, 60, 450]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, None, 1, 2]),
    st.booleans(),
)
@settings(max_examples=400, deadline=None)
def test_the_compiled_walk_does_what_the_readable_loop_does(
    raw,
    tasks,
    targets,
    separations,
    rooms,
    weights,
    timeout,
    outages,
    start,
    timer,
    shares,
    is_interrupted,
    cap,
    is_bare,
) -> None:
    """Windows of 200 s. A round holds its devices for 30 s, starts timers, and the next may start 25 s after it. The last task starts
    later, and the first is over after three rounds; where tasks share a timer, all of them do. Where it is interrupted, the
    kernel is saved and loaded into another between windows."""
    several = SeveralTasks.from_tables(
        {**TABLES, "tasks": {f"t{task}": {"weight": weights[task]} for task in range(tasks)}}
    )
    rules = [
        replace(
            RULES,
            selection_target=targets[task],
            waiting_room=targets[task] + rooms[task],
            policies=replace(RULES.policies, each=(RoundSeparation(separations[task], "arrived"),)),
            selection_timeout_seconds=timeout,
            outages=np.array(outages).reshape(-1, 2),
        )
        for task in range(tasks)
    ]
    rows: list[tuple] = []
    for time, device, length, opens in sorted({row[0]: row for row in raw}.values()):
        if all(other != device or end < time for _, other, end, _ in rows):
            rows.append((time, device, time + length, opens[:tasks]))
    is_bare = is_bare and tasks == 1
    if is_bare:
        rows = [(*row[:3], [0.0]) for row in rows]
    starts = [start if task == tasks - 1 else 0.0 for task in range(tasks)]
    players = [selection_of(several, rules), Twin(rules, weights, outages, cap)]
    for player in players:
        for task in range(tasks):
            player.select_from(task, starts[task])
            player.open(task, starts[task], starts[task])
    log: list[list] = [[], []]
    rounds = [[0] * tasks, [0] * tasks]
    for number in range(3):
        window = Window(number, 200.0 * number, 200.0 * (number + 1), 200.0 * number + 170.0, RATE)
        inside = [row for row in rows if window.start_time <= row[0] < window.ask_until_time]
        if is_interrupted and number:
            state = players[0].state()
            players[0] = selection_of(several, rules)
            players[0].load(state)
        for which, player in enumerate(players):
            is_kernel = which == 0
            player.start_window(
                as_check_ins(inside, tasks, is_bare) if is_kernel else inside, window
            )
            while True:
                status, task, time = player.advance(rounds[which])
                if status == EXHAUSTED:
                    break
                if status == DOWN:
                    closing, until = list(range(tasks)), player.down_until
                else:
                    closing, until = [task], time + 30.0
                gone = []
                for each in closing:
                    is_round = status != DOWN
                    sharing = [t for t in range(tasks) if t != each] if shares and is_round else []
                    reopen = math.ceil(until + timer) if is_round and timer else 0
                    number_of_round = rounds[which][each] if is_round else None
                    arguments = (each, until, reopen, sharing, number_of_round)
                    gone.append(
                        let_go(player, cap, *arguments) if is_kernel else player.let_go(*arguments)
                    )
                log[which].append((status, task, time, gone))
                if status != DOWN:
                    rounds[which][task] += 1
                    player.open(task, time, time + 25.0)
                    if task == 0 and rounds[which][0] == 3:
                        player.select_from(0, math.inf)
    assert log[0] == log[1]


@pytest.mark.compiles
def test_a_device_that_several_tasks_would_take_is_given_to_one_of_them_by_weight() -> None:
    """4,000 devices come one after the other; weights 3 and 1, and a third task that wants nobody until later."""
    size = 4000
    several = SeveralTasks.from_tables(
        {**TABLES, "tasks": {"a": {"weight": 3}, "b": {}, "later": {"weight": 100}}}
    )
    rules = [replace(RULES, selection_target=size, waiting_room=size)] * 3
    kernel = selection_of(several, rules)
    for task, start in enumerate((0.0, 0.0, 500.0)):
        kernel.select_from(task, start)
        kernel.open(task, start, start)
    rows = [(200.0 * place / size, place, 900.0, [0.0] * 3) for place in range(size)]
    kernel.start_window(as_check_ins(rows, 3), Window(0, 0.0, 200.0, 200.0, RATE))
    assert kernel.advance([0, 0, 0])[0] == EXHAUSTED
    assert kernel.waiting(2) == 0
    assert kernel.waiting(0) + kernel.waiting(1) == size
    # Five standard deviations of a binomial: false alarms are rarer than one in a million.
    assert abs(kernel.waiting(0) - 0.75 * size) < 5 * math.sqrt(size * 0.75 * 0.25)
