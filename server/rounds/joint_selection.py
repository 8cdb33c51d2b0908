"""Selection where several federated tasks share the devices, compiled: who waits for which task.
tests/server/test_several_tasks.py holds it to a readable twin.

It is server/rounds/selection.py with a state of selection for each of T tasks, and one walk through
the window's check-ins. A device that checks in and is not busy is offered to every task that is
selecting, wants more devices, and whose rules admit it. If there are several, it is given to one of
them, drawn in proportion to their weights. It waits for that task alone; until it is done with it,
it is busy for all.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedray.base.rng import Key, Stream, address_within, draw, exponential, stream_key, stream_seed
from fedray.scenario import SeveralTasks
from fedray.server.rounds.arrivals import (
    EMPTY,
    Arrivals,
    carry_over,
    columns_of,
    empty_table,
    entries_of,
    find,
    next_time,
    pop,
    push,
)
from fedray.server.rounds.rounds import RoundRules, Selected
from fedray.server.rounds.selection import DOWN, EXHAUSTED, FULL, TIMED_OUT
from fedray.trace.checkpoints import prefixed, under
from fedray.wire.messages import NO_WINDOW, CheckIns, Window

_READY = 4
"""As in server/rounds/selection.py: inside the kernel alone, that a round may start now."""
_MOST_TASKS_BITS = 6
"""Bits of a key that tell tasks apart; ids of devices have at most 40."""

_BUSY = np.dtype(
    [("device_id", np.uint64), ("busy_until", np.float64), ("is_waiting", np.bool_)], align=True
)
"""An entry of the hash table of devices that wait, train or report.

busy_until: until then; of one that waits, the end of its interval.
is_waiting: it waits, so that it may be free sooner than that.
"""
_MEMORY = np.dtype(
    [
        ("device_id", np.uint64),
        ("reopen_time", np.float64),
        ("known_from", np.int32),
        ("last_round", np.int32),
        ("contributions", np.uint32),
    ],
    align=True,
)
"""An entry of the hash table of what devices remember of a task, as far as the shards' lists do not
account for it.

device_id: the device and the task together: see `_key`.
reopen_time: the timer opens then.
known_from: first window whose lists account for the entry.
last_round: of the task; -1 for none.
contributions: reports to the task that arrived in time.
"""
_SLOT = np.dtype(
    [
        ("device_id", np.uint64),
        ("task", np.int64),
        ("check_in_time", np.float64),
        ("interval_end", np.float64),
        ("fixed_seconds", np.float32),
        ("training_seconds", np.float32),
        ("upload_seconds", np.float32),
        ("timer_seconds", np.float64),
        ("contributions", np.uint32),
        ("list_row", np.int64),
    ],
    align=True,
)
"""A device that waits, and for which task; the other fields are columns of
`server.rounds.Selected`."""


class _Rules(NamedTuple):
    """What compiled code needs of the tasks' rules, [T] each.

    targets: devices of a task that must wait at once.
    rooms: devices that may wait for a task at once, at least as many.
    separations: least difference between the numbers of two rounds of a device; 0 for none.
    weights: see `fedray.scenario.several_tasks.FederatedTask.weight`.
    offer_keys: [T, 2]; of the draws that decide between tasks.
    return_key: of the draws of next check-ins.
    """

    targets: NDArray[np.int64]
    rooms: NDArray[np.int64]
    separations: NDArray[np.int64]
    weights: NDArray[np.float64]
    offer_keys: NDArray[np.uint64]
    return_key: Key


class _Clocks(NamedTuple):
    """The attempts at rounds that selection is open for, [T] each; times are seconds since start.

    rounds: numbers of the rounds.
    select_from: devices may wait from then on; infinite for a task that is over.
    ready_times, is_ready, deadlines: as in server/rounds/selection.py.
    """

    rounds: NDArray[np.int64]
    select_from: NDArray[np.float64]
    ready_times: NDArray[np.float64]
    is_ready: NDArray[np.bool_]
    deadlines: NDArray[np.float64]


class _Waiting(NamedTuple):
    """The waiting devices of all tasks: a heap of slots by the end of their intervals.

    by_task: [T]; how many wait for each.
    counts: [0, entries of the heap], as the heap of `server.arrivals.push` has it.
    ends, heap: the heap.
    free_count: [1]; free slots.
    free: slots of nobody.
    slots: records of `_SLOT`.
    """

    by_task: NDArray[np.int64]
    counts: NDArray[np.int64]
    ends: NDArray[np.float64]
    heap: NDArray[np.int64]
    free_count: NDArray[np.int64]
    free: NDArray[np.int64]
    slots: NDArray[np.void]

    @classmethod
    def of(cls, rooms: NDArray[np.int64]) -> "_Waiting":
        """Room for so many devices of each task; nobody waits."""
        size = int(rooms.sum())
        return cls(
            by_task=np.zeros(rooms.size, np.int64),
            counts=np.zeros(2, np.int64),
            ends=np.zeros(size),
            heap=np.zeros(size, np.int64),
            free_count=np.array([size]),
            free=np.arange(size),
            slots=np.zeros(size, _SLOT),
        )


class JointSelection:
    """The server's view of who waits for which task, and who is not free.

    Args:
        several: the tasks.
        rules: of the rounds of each.
    """

    def __init__(self, several: SeveralTasks, rules: list[RoundRules]) -> None:
        seed, count = several.seed, len(rules)
        offer_keys = [_offer_key(seed, place) for place in range(count)]
        self._rules = _Rules(
            targets=np.array([each.selection_target for each in rules]),
            rooms=np.array([each.waiting_room for each in rules]),
            separations=np.array([each.policies.separation for each in rules]),
            weights=np.array([task.weight for task in several.tasks]),
            offer_keys=np.array(offer_keys, np.uint64),
            return_key=stream_key(seed, Stream.RETURN),
        )
        self._timeouts = [each.selection_timeout_seconds for each in rules]
        self._outages = rules[0].outages
        self._clocks = _Clocks(
            rounds=np.zeros(count, np.int64),
            select_from=np.zeros(count),
            ready_times=np.zeros(count),
            is_ready=np.zeros(count, np.bool_),
            deadlines=np.zeros(count),
        )
        self._waiting = _Waiting.of(self._rules.rooms)
        self._busy = empty_table(64, _BUSY)
        self._memory = _memory_table(64)
        self._arrivals: Arrivals | None = None
        self._open_times = np.empty((0, count))
        self._window = NO_WINDOW
        self._outage = 0
        """The outage that is next, or has begun."""
        self.down_until = 0.0
        """When the last outage that has begun is over."""

    def start_window(self, check_ins: CheckIns, window: Window) -> None:
        """Goes on to a window; forgets what its lists account for.

        Args:
            check_ins: the window's first check-ins, with columns of every task.
            window: the next one.
        """
        is_busy = self._busy["busy_until"] > window.start_time
        is_busy &= self._busy["device_id"] != EMPTY
        # Whoever checks in may get an entry: the table never grows within a window.
        busy = empty_table(int(is_busy.sum()) + check_ins.device_ids.size, _BUSY)
        carry_over(self._busy, busy, is_busy)
        self._busy = busy
        self._keep(_stays(self._memory, window.number, window.start_time), 0)
        self._arrivals = Arrivals.of(check_ins)
        self._open_times = check_ins.open_times
        self._window = window
        # Those who still wait have no row in this window's list: theirs were rows of the last one.
        self._waiting.slots["list_row"] = -1

    def open(self, task: int, opened: float, ready_time: float) -> None:
        """See `server.selection.Selection.open`.

        Args:
            task: whose selection it is.
            opened: seconds since start.
            ready_time: seconds since start.
        """
        clocks = self._clocks
        clocks.ready_times[task] = ready_time
        clocks.is_ready[task] = False
        clocks.deadlines[task] = max(opened, ready_time) + self._timeouts[task]

    def select_from(self, task: int, time: float) -> None:
        """Says from when on devices may wait for a task, seconds since start; infinite once it is
        over."""
        self._clocks.select_from[task] = time

    def advance(self, rounds: list[int]) -> tuple[int, int, float]:
        """Goes on until something happens that a coordinator decides.

        Args:
            rounds: the rounds that are being formed, [T].

        Returns:
            What it is, for which task, and its time (seconds since start), as
            `server.selection.Selection.advance` says. An outage (DOWN) and the window's end
            (EXHAUSTED) are for all tasks.
        """
        assert self._arrivals is not None
        self._clocks.rounds[:] = rounds
        next_outage = np.inf
        if self._outage < len(self._outages):
            next_outage = float(self._outages[self._outage, 0])
        status, task, time = _advance(
            self._arrivals,
            self._open_times,
            self._window,
            self._clocks,
            next_outage,
            self.down_until,
            self._rules,
            self._waiting,
            self._busy,
            self._memory,
        )
        if status == DOWN:
            self.down_until = float(self._outages[self._outage, 1])
            self._outage += 1
        return status, task, time

    def waiting(self, task: int) -> int:
        """Devices that wait for a `task` now."""
        return int(self._waiting.by_task[task])

    def take(self, task: int) -> Selected:
        """All devices that wait for a `task`, sorted by id; nobody waits for it afterwards."""
        waiting = self._waiting
        size = int(waiting.counts[1])
        in_heap = waiting.heap[:size].copy()
        ends = waiting.ends[:size].copy()
        is_taken = waiting.slots["task"][in_heap] == task
        # Devices that wait for other tasks go on waiting.
        stay = np.flatnonzero(~is_taken)
        # A sorted list is a heap.
        stay = stay[np.argsort(ends[stay], kind="stable")]
        waiting.heap[: stay.size], waiting.ends[: stay.size] = in_heap[stay], ends[stay]
        waiting.counts[1] = stay.size
        slots = in_heap[is_taken]
        was_free = int(waiting.free_count[0])
        waiting.free[was_free : was_free + slots.size] = slots
        waiting.free_count[0] += slots.size
        waiting.by_task[task] = 0
        rows = waiting.slots[slots]
        # Selected devices are sorted by id, whatever slots they had.
        rows = rows[np.argsort(rows["device_id"])]
        return Selected(
            device_ids=rows["device_id"].copy(),
            check_in_times=rows["check_in_time"].copy(),
            interval_ends=rows["interval_end"].copy(),
            fixed_seconds=rows["fixed_seconds"].copy(),
            training_seconds=rows["training_seconds"].copy(),
            upload_seconds=rows["upload_seconds"].copy(),
            timer_seconds=rows["timer_seconds"].copy(),
            contributions=rows["contributions"].copy(),
            list_rows=rows["list_row"].copy(),
        )

    def remember(
        self,
        task: int,
        device_ids: NDArray[np.uint64],
        reopen_times: NDArray[np.uint32],
        remembered_rounds: NDArray[np.int32],
        contributions: NDArray[np.uint32],
    ) -> None:
        """Notes what devices [S] remember of a task, until the lists account for it.

        Args:
            task: of which.
            device_ids: [S].
            reopen_times: [S]; not before does the task admit them.
            remembered_rounds: [S]; -1 where the device keeps none.
            contributions: [S]; its reports that arrived in time, the last round's included.
        """
        # Entries are added all through a window, so the table grows before it is more than half
        # full.
        used = self._memory["device_id"] != EMPTY
        if 2 * (int(used.sum()) + device_ids.size) > self._memory.size:
            self._keep(used, device_ids.size)
        _note(
            self._memory,
            task,
            device_ids,
            reopen_times,
            remembered_rounds,
            contributions,
            self._window.number + 1,
        )

    def let_go(self, selected: Selected, busy_until: NDArray[np.float64]) -> None:
        """Lets devices [S] go that waited: they check in again when they are free, if they can.

        What they remember must have been noted before.

        Args:
            selected: what `take` gave.
            busy_until: [S]; no device checks in before.
        """
        assert self._arrivals is not None
        _come_again(
            self._arrivals,
            self._open_times,
            self._window,
            self._clocks.select_from,
            self._rules.return_key,
            self._busy,
            self._memory,
            selected.device_ids,
            selected.list_rows,
            busy_until,
        )

    def state(self) -> dict[str, NDArray]:
        """Everything, as named arrays, for a checkpoint between two windows."""
        waiting = self._waiting
        in_heap = waiting.heap[: int(waiting.counts[1])]
        busy = self._busy[self._busy["device_id"] != EMPTY]
        memory = self._memory[self._memory["device_id"] != EMPTY]
        return {
            **prefixed("busy.", columns_of(busy)),
            **prefixed("memory.", columns_of(memory)),
            **prefixed("waiting.", columns_of(waiting.slots[in_heap])),
            **prefixed("clocks.", self._clocks._asdict()),
            "outages": np.array([self._outage, self.down_until]),
        }

    def load(self, state: dict[str, NDArray]) -> None:
        """Takes up a state.

        Args:
            state: what the `state` of a selection of the same tasks gave.
        """
        busy = entries_of(under("busy.", state), _BUSY)
        self._busy = empty_table(busy.size, _BUSY)
        carry_over(busy, self._busy, np.ones(busy.size, np.bool_))
        memory = entries_of(under("memory.", state), _MEMORY)
        self._memory = _memory_table(memory.size)
        carry_over(memory, self._memory, np.ones(memory.size, np.bool_))
        self._clocks = _Clocks(**under("clocks.", state))
        rows = entries_of(under("waiting.", state), _SLOT)
        rows = rows[np.argsort(rows["interval_end"], kind="stable")]
        self._waiting = waiting = _Waiting.of(self._rules.rooms)
        size = rows.size
        waiting.slots[:size] = rows
        # A sorted list is a heap.
        waiting.heap[:size], waiting.ends[:size] = np.arange(size), rows["interval_end"]
        waiting.counts[1] = size
        waiting.free_count[0] -= size
        waiting.free[: waiting.free_count[0]] = np.arange(size, waiting.free.size)
        waiting.by_task[:] = np.bincount(rows["task"], minlength=waiting.by_task.size)
        self._outage, self.down_until = int(state["outages"][0]), float(state["outages"][1])

    def _keep(self, stays: NDArray[np.bool_], more: int) -> None:
        """Another table of what devices remember: with the entries that stay, and room for some
        more."""
        table = _memory_table(int(stays.sum()) + more)
        carry_over(self._memory, table, stays)
        self._memory = table


def _offer_key(seed: int, task: int) -> tuple[int, int]:
    """The key of a task's draws, as `fedray.base.rng.stream_key` makes that of a stream."""
    word = stream_seed(seed, Stream.OFFER, task)
    return word & 0xFFFFFFFF, word >> 32


def _memory_table(entries: int) -> NDArray[np.void]:
    table = empty_table(entries, _MEMORY)
    table["last_round"] = -1
    return table


@njit(inline="always")
def _key(device, task):
    """The device and the task as one number, which is no other pair's."""
    return (device << np.uint64(_MOST_TASKS_BITS)) | np.uint64(task)


@njit(cache=True, nogil=True)
def _stays(memory, window, window_start):
    """Which entries the lists of a window do not account for, and which hold a device back."""
    stays = np.zeros(memory.size, np.bool_)
    for slot in range(memory.size):
        entry = memory[slot]
        if entry.device_id == EMPTY or entry.known_from <= window:
            continue
        is_closed = entry.reopen_time > window_start
        stays[slot] = is_closed or entry.last_round >= 0 or entry.contributions > 0
    return stays


@njit(cache=True, nogil=True)
def _note(memory, task, device_ids, reopen_times, remembered_rounds, contributions, known_from):
    for chosen in range(device_ids.size):
        key = _key(device_ids[chosen], task)
        entry = memory[find(memory, key)]
        entry.device_id = key
        entry.reopen_time = max(entry.reopen_time, np.float64(reopen_times[chosen]))
        # A task that merely shares the timer notes 0, which must not undo what is known.
        entry.contributions = max(entry.contributions, contributions[chosen])
        entry.known_from = known_from
        if remembered_rounds[chosen] >= 0:
            entry.last_round = remembered_rounds[chosen]


@njit(cache=True, nogil=True)
def _come_again(
    arrivals,
    open_times,
    window,
    select_from,
    return_key,
    busy,
    memory,
    device_ids,
    list_rows,
    busy_until,
):
    counts, next_times, next_rows = arrivals.counts, arrivals.next_times, arrivals.next_rows
    for chosen in range(device_ids.size):
        device = device_ids[chosen]
        entry = busy[find(busy, device)]
        entry.device_id = device
        entry.busy_until = busy_until[chosen]
        entry.is_waiting = False
        row = list_rows[chosen]
        # The others, who wait since an earlier window, have no row in this window's list.
        if row < 0:
            continue
        # The device comes as soon as one task would admit it, as the shards draw it too.
        admitted = np.inf
        for task in range(select_from.size):
            opens = _admitted_from(memory, device, task, open_times[row, task])
            admitted = min(admitted, max(opens, select_from[task]))
        free_time = max(busy_until[chosen], admitted)
        end = arrivals.interval_ends[row]
        time = next_time(return_key, window, device, end, free_time)
        if time < np.inf:
            push(counts, next_times, next_rows, time, row)


@njit(forceinline=True)
def _admitted_from(memory, device, task, open_time):
    """When a task's timer is open for a device, by what it said and what was noted since."""
    key = _key(device, task)
    entry = memory[find(memory, key)]
    if entry.device_id == key:
        return max(open_time, entry.reopen_time)
    return open_time


@njit(cache=True, nogil=True)
def _advance(
    arrivals,
    open_times,
    window,
    clocks,
    next_outage,
    down_until,
    rules,
    waiting,
    busy,
    memory,
):
    """See `JointSelection.advance`: goes through the window's check-ins in order of time."""
    # Arrays are taken out of their tuples once: see `server.selection._advance`.
    device_ids = arrivals.device_ids
    times = arrivals.times
    ends = arrivals.interval_ends
    counts = arrivals.counts
    next_times = arrivals.next_times
    next_rows = arrivals.next_rows
    last_rounds = arrivals.last_rounds
    contributions = arrivals.contributions
    rounds = clocks.rounds
    select_from = clocks.select_from
    is_ready = clocks.is_ready
    targets = rules.targets
    rooms = rules.rooms
    separations = rules.separations
    weights = rules.weights
    offer_keys = rules.offer_keys
    by_task = waiting.by_task
    waiting_counts = waiting.counts
    waiting_ends = waiting.ends
    waiting_heap = waiting.heap
    free_count = waiting.free_count
    free = waiting.free
    slots = waiting.slots
    tasks = targets.size
    while True:
        # The next check-in is the list's or the heap's, whichever is first; at equal times the
        # list's.
        time = times[counts[0]] if counts[0] < times.size else window.end_time
        is_next = counts[1] > 0 and next_times[0] < time
        if is_next:
            time = next_times[0]
        # What needs no check-in, such as a timeout, may come before the next one does.
        moment, what, which = _next_moment(clocks, next_outage)
        if moment <= time and moment < window.end_time:
            while waiting_counts[1] > 0 and waiting_ends[0] <= moment:
                _leave_first(
                    by_task, waiting_counts, waiting_ends, waiting_heap, free_count, free, slots
                )
            if what != _READY:
                return what, which, moment
            is_ready[which] = True
            if by_task[which] >= targets[which]:
                return FULL, which, moment
            continue
        # All check-ins come before the window's end, so that none is left.
        if time >= window.end_time:
            return EXHAUSTED, -1, window.end_time
        if is_next:
            row = next_rows[0]
            pop(counts, next_times, next_rows)
        else:
            row = counts[0]
            counts[0] += 1
        # Whoever's interval is over makes room before the device is looked at.
        while waiting_counts[1] > 0 and waiting_ends[0] <= time:
            _leave_first(
                by_task, waiting_counts, waiting_ends, waiting_heap, free_count, free, slots
            )
        device = device_ids[row]
        entry = busy[find(busy, device)]
        is_busy = entry.device_id == device and entry.busy_until > time
        chosen, best, admitted = np.int64(-1), np.inf, np.inf
        # One that waits may be let go at any moment, so that it is not known when it is free.
        if is_busy and entry.is_waiting:
            admitted = time
        else:
            for task in range(tasks):
                key = _key(device, task)
                noted = memory[find(memory, key)]
                is_noted = noted.device_id == key
                opens = max(open_times[row, task], select_from[task])
                if is_noted:
                    opens = max(opens, noted.reopen_time)
                # If no task takes the device now, it may come when the first of its timers opens.
                admitted = min(admitted, opens)
                if is_busy or opens > time or by_task[task] >= rooms[task]:
                    continue
                last_round = last_rounds[row, task]
                if is_noted:
                    last_round = max(last_round, noted.last_round)
                separation = separations[task]
                if separation and last_round >= 0 and rounds[task] - last_round < separation:
                    continue
                # The least of exponentials with rates w is that of task t with probability w_t /
                # sum w. Of a single task nothing need be drawn.
                score = -1.0
                if chosen >= 0:
                    if best < 0.0:
                        best = _score(offer_keys, weights, chosen, device, window, time)
                    score = _score(offer_keys, weights, task, device, window, time)
                if chosen < 0 or score < best:
                    chosen, best = task, score
        # While the server is down nobody is taken, whatever the tasks want.
        if time < down_until:
            chosen = -1
            free_time = down_until
        else:
            # It was turned away and may try again at once, or comes when it is free.
            free_time = max(time, admitted)
            if is_busy and not entry.is_waiting:
                free_time = max(free_time, entry.busy_until)
        if chosen < 0:
            time = next_time(rules.return_key, window, device, ends[row], free_time)
            if time < np.inf:
                push(counts, next_times, next_rows, time, row)
            continue
        key = _key(device, chosen)
        noted = memory[find(memory, key)]
        # The device's own count may be older than what was noted of it within the window.
        known = contributions[row, chosen]
        if noted.device_id == key:
            known = max(known, noted.contributions)
        entry.device_id = device
        # Unless it is selected or let go before, it leaves when its interval ends.
        entry.busy_until = ends[row]
        entry.is_waiting = True
        free_count[0] -= 1
        place = free[free_count[0]]
        slot = slots[place]
        slot.device_id = device
        slot.task = chosen
        slot.check_in_time = time
        slot.interval_end = ends[row]
        slot.fixed_seconds = arrivals.fixed_seconds[row, chosen]
        slot.training_seconds = arrivals.training_seconds[row, chosen]
        slot.upload_seconds = arrivals.upload_seconds[row, chosen]
        slot.timer_seconds = arrivals.timer_seconds[row, chosen]
        slot.contributions = known
        slot.list_row = row
        push(waiting_counts, waiting_ends, waiting_heap, ends[row], place)
        by_task[chosen] += 1
        if is_ready[chosen] and by_task[chosen] >= targets[chosen]:
            return FULL, chosen, time


@njit(forceinline=True)
def _next_moment(clocks, next_outage):
    """When selection changes next without a check-in, how, and for which task; of equal times the
    first task's."""
    moment, what, which = np.inf, TIMED_OUT, -1
    for task in range(clocks.rounds.size):
        # A task that is over waits for nothing any more.
        if clocks.select_from[task] == np.inf:
            continue
        is_ready = clocks.is_ready[task]
        own = clocks.deadlines[task] if is_ready else clocks.ready_times[task]
        if own < moment:
            moment, what, which = own, TIMED_OUT if is_ready else _READY, task
    # At equal times the server is down first, so that no round starts in an outage.
    if next_outage <= moment:
        return next_outage, DOWN, -1
    return moment, what, which


@njit(forceinline=True)
def _score(offer_keys, weights, task, device, window, time):
    """By what a device is given to one of several tasks: the one with the least takes it."""
    # The moment is part of the address, because a device may be offered twice in a window.
    address = address_within(time, window.start_time, window.end_time)
    word, _, _, _ = draw(offer_keys[task], device, window.number, address)
    return exponential(word) / weights[task]


@njit(forceinline=True)
def _leave_first(by_task, counts, ends, heap, free_count, free, slots):
    """The device whose interval ends first leaves."""
    place = heap[0]
    by_task[slots[place].task] -= 1
    free[free_count[0]] = place
    free_count[0] += 1
    pop(counts, ends, heap)
