"""Selection: who waits for the next round, compiled. tests/server/test_selection.py holds it to a
readable twin.

Check-ins come in order of time. A device that checks in while there is room to wait, and that is
free, waits until it is selected or its interval ends. The round starts at the first moment, not
before the previous one has closed, at which the target waits at once; or selection times out. There
is room for the target, or for more where the round draws its devices among the waiting
(server/rounds/reservoir.py).

Devices check in as Poisson processes, which have no memory. The shards list the first check-in of
each eligible interval. The next one is drawn here, from the time on at which the device could be
taken: at once if it was turned away or must stay apart from its last round, or when it is done with
its round and its timer is open.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedray.base.rng import Key
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
from fedray.trace.checkpoints import prefixed, under
from fedray.wire.messages import NO_WINDOW, CheckIns, Window

EXHAUSTED, FULL, TIMED_OUT, DOWN = 0, 1, 2, 3
_READY = 4
"""How `Selection.advance` ends; and, inside the kernel alone, that the round may start now."""


class _Waiting(NamedTuple):
    """The waiting devices: a heap of slots by the end of their interval, and the slots' columns,
    which are those of `fedray.server.rounds.rounds.Selected`. All arrays but `counts` are [room].

    counts: [waiting, free slots].
    heap: slots of those that wait.
    free: slots of nobody.
    """

    counts: NDArray[np.int64]
    heap: NDArray[np.int64]
    free: NDArray[np.int64]
    device_ids: NDArray[np.uint64]
    check_in_times: NDArray[np.float64]
    interval_ends: NDArray[np.float64]
    fixed_seconds: NDArray[np.float32]
    training_seconds: NDArray[np.float32]
    upload_seconds: NDArray[np.float32]
    timer_seconds: NDArray[np.float64]
    contributions: NDArray[np.uint32]
    list_rows: NDArray[np.int64]

    @classmethod
    def of(cls, room: int) -> "_Waiting":
        """Room for so many devices; nobody waits."""
        return cls(
            counts=np.array([0, room]),
            heap=np.zeros(room, np.int64),
            free=np.arange(room),
            device_ids=np.zeros(room, np.uint64),
            check_in_times=np.zeros(room),
            interval_ends=np.zeros(room),
            fixed_seconds=np.zeros(room, np.float32),
            training_seconds=np.zeros(room, np.float32),
            upload_seconds=np.zeros(room, np.float32),
            timer_seconds=np.zeros(room),
            contributions=np.zeros(room, np.uint32),
            list_rows=np.full(room, -1, np.int64),
        )

    def columns(self) -> dict[str, NDArray]:
        """The slots' columns by name."""
        columns = self._asdict()
        for name in ("counts", "heap", "free"):
            del columns[name]
        return columns


class _Arrival(NamedTuple):
    """A check-in of a device that may wait; the fields are those of a slot of `_Waiting`."""

    device_id: np.uint64
    time: float
    interval_end: float
    fixed_seconds: np.float32
    training_seconds: np.float32
    upload_seconds: np.float32
    timer_seconds: float
    contributions: np.uint32
    list_row: int


class _Attempt(NamedTuple):
    """The attempt at a round that selection is open for; times are seconds since start.

    ready_time: the round may start from then on.
    is_ready: whether that time has come.
    deadline: selection times out then.
    """

    round_index: int
    ready_time: float
    is_ready: bool
    deadline: float


class _Outages(NamedTuple):
    """When the server is down, as far as the present window may see; seconds since start.

    next_start: the next outage begins then; infinity for none.
    down_until: the last one that has begun is over then.
    """

    next_start: float
    down_until: float


class _Rules(NamedTuple):
    """What compiled code needs of `RoundRules`.

    target: devices that must wait at once.
    room: devices that may wait at once, at least as many.
    timer_seconds: of all devices, where the lists do not say how long each waits.
    separation: least difference between the numbers of two rounds of a device; 0 for none.
    return_key: of the draws of next check-ins.
    """

    target: int
    room: int
    timer_seconds: float
    separation: int
    return_key: Key


_BLOCKED = np.dtype(
    [
        ("device_id", np.uint64),
        ("busy_until", np.float64),
        ("reopen_time", np.float64),
        ("known_from", np.int32),
        ("last_round", np.int32),
        ("contributions", np.uint32),
        ("is_waiting", np.bool_),
    ],
    align=True,
)
"""An entry of the hash table of who may not check in now, as far as the shards' lists do not
account for it. Entries are whole records, so that a look at one touches one line of the cache.

busy_until: waiting, training or reporting until then; no list accounts for that.
is_waiting: it waits, so that it may be free sooner or later than that.
reopen_time: the timer opens then.
known_from: first window whose lists account for the timer, the last round and the contributions.
last_round: -1 for none.
contributions: reports that arrived in time.
"""


class Selection:
    """The server's view of who is waiting and who is not free.

    Args:
        rules: of the rounds.
        return_key: of the draws of next check-ins.
    """

    def __init__(self, rules: RoundRules, return_key: Key) -> None:
        self._rules = _Rules(
            target=rules.selection_target,
            room=rules.waiting_room,
            timer_seconds=rules.timer_seconds,
            separation=rules.policies.separation,
            return_key=return_key,
        )
        self._timeout_seconds = rules.selection_timeout_seconds
        self._outages = rules.outages
        self._waiting = _Waiting.of(rules.waiting_room)
        self._blocked = _blocked_table(64)
        self._arrivals: Arrivals | None = None
        self._window = NO_WINDOW
        self._ready_time = 0.0
        self._is_ready = False
        self._deadline = 0.0
        self._outage = 0
        """The outage that is next, or has begun."""
        self._down_until = 0.0

    def start_window(self, check_ins: CheckIns, window: Window) -> None:
        """Goes on to a window; forgets what its lists account for.

        Args:
            check_ins: the window's first check-ins.
            window: the next one.
        """
        stays = _stays(self._blocked, window.number, window.start_time)
        # Whoever checks in may get an entry: the table never grows within a window.
        most_entries = int(stays.sum()) + check_ins.device_ids.size
        table = _blocked_table(most_entries)
        carry_over(self._blocked, table, stays)
        self._blocked = table
        self._arrivals = Arrivals.of(check_ins)
        self._window = window
        # Those who still wait have no row in this window's list: theirs were rows of the last one.
        self._waiting.list_rows.fill(-1)

    def open(self, opened: float, ready_time: float) -> None:
        """Opens selection for a round that can start from ready_time on, when the previous one has
        closed.

        Args:
            opened: when the previous round started or was given up, seconds since start.
            ready_time: seconds since start.
        """
        self._ready_time = ready_time
        self._is_ready = False
        # No round can start before ready_time, so the wait for devices counts from then on.
        self._deadline = max(opened, ready_time) + self._timeout_seconds

    def advance(self, round_index: int) -> tuple[int, float]:
        """Goes on until something happens that the coordinator decides.

        Args:
            round_index: the round that is being formed.

        Returns:
            What it is, and its time (seconds since start): the round can start (FULL), selection
            times out (TIMED_OUT), an outage begins (DOWN), or the window ends (EXHAUSTED).
        """
        assert self._arrivals is not None
        next_outage = float("inf")
        if self._outage < len(self._outages):
            next_outage = float(self._outages[self._outage, 0])
        attempt = _Attempt(round_index, self._ready_time, self._is_ready, self._deadline)
        outages = _Outages(next_outage, self._down_until)
        status, self._is_ready, time = _advance(
            self._arrivals,
            self._window,
            attempt,
            outages,
            self._rules,
            self._waiting,
            self._blocked,
        )
        if status == DOWN:
            self._down_until = float(self._outages[self._outage, 1])
            self._outage += 1
        return status, time

    @property
    def waiting(self) -> int:
        """Devices that wait now."""
        return int(self._waiting.counts[0])

    @property
    def down_until(self) -> float:
        """When the last outage that has begun is over."""
        return self._down_until

    def waiting_device_ids(self) -> NDArray[np.uint64]:
        """The devices that wait now, in no certain order."""
        return self._waiting.device_ids[self._waiting.heap[: self.waiting]]

    def take(self, is_taken: NDArray[np.bool_] | None = None) -> Selected:
        """Waiting devices, sorted by id, who do not wait afterwards.

        Args:
            is_taken: which of them, in the order of `waiting_device_ids`; None for all.
        """
        waiting = self._waiting
        in_heap = waiting.heap[: self.waiting].copy()
        left = in_heap[:0] if is_taken is None else in_heap[~is_taken]
        taken = in_heap if is_taken is None else in_heap[is_taken]
        by_id = np.argsort(waiting.device_ids[taken])
        slots = taken[by_id]
        was_free = waiting.counts[1]
        is_free = was_free + slots.size
        waiting.free[was_free:is_free] = slots
        waiting.counts[:] = left.size, is_free
        # A sorted list is a heap.
        waiting.heap[: left.size] = left[np.argsort(waiting.interval_ends[left], kind="stable")]
        # Fancy indexing copies, so the slots may be filled anew while the columns are in use.
        columns = {name: column[slots] for name, column in waiting.columns().items()}
        return Selected(**columns)

    def let_go(
        self,
        selected: Selected,
        busy_until: NDArray[np.float64],
        reopen_times: NDArray[np.uint32],
        remembered_rounds: NDArray[np.int32],
        contributions: NDArray[np.uint32],
    ) -> None:
        """Lets devices [S] go that waited: they check in again when they are free, if they can.

        The next window's lists will account for timers, rounds and contributions.

        Args:
            selected: what `take` gave.
            busy_until: [S]; no device checks in before.
            reopen_times: [S]; nor before its timer is open.
            remembered_rounds: [S]; -1 where the device keeps none.
            contributions: [S]; its reports that arrived in time, the last round's included.
        """
        _block_all(
            self._blocked,
            selected.device_ids,
            busy_until,
            reopen_times,
            remembered_rounds,
            contributions,
            self._window.number + 1,
        )
        assert self._arrivals is not None
        free_times = np.maximum(busy_until, reopen_times)
        _come_again(self._arrivals, self._rules, self._window, selected.list_rows, free_times)

    def state(self) -> dict[str, NDArray]:
        """Everything, as named arrays, for a checkpoint between two windows."""
        # Between two windows every check-in has been dealt with, so no arrivals are kept.
        is_live = self._blocked["device_id"] != EMPTY
        slots = self._waiting.heap[: self.waiting]
        state = prefixed("blocked.", columns_of(self._blocked[is_live]))
        for name, column in self._waiting.columns().items():
            state[f"waiting.{name}"] = column[slots]
        state["clock"] = np.array(
            [self._ready_time, self._is_ready, self._deadline, self._outage, self._down_until]
        )
        return state

    def load(self, state: dict[str, NDArray]) -> None:
        """Takes up a state.

        Args:
            state: what the `state` of a selection with the same rules gave.
        """
        blocked = entries_of(under("blocked.", state), _BLOCKED)
        self._blocked = _blocked_table(blocked.size)
        all_stay = np.ones(blocked.size, np.bool_)
        carry_over(blocked, self._blocked, all_stay)
        waiting = self._waiting
        count = state["waiting.device_ids"].size
        for name, column in waiting.columns().items():
            column[:count] = state[f"waiting.{name}"]
        size = self._rules.room
        waiting.counts[:] = count, size - count
        # A sorted list is a heap.
        waiting.heap[:count] = np.argsort(waiting.interval_ends[:count], kind="stable")
        waiting.free[: size - count] = np.arange(count, size)
        ready_time, is_ready, deadline, outage, down_until = state["clock"].tolist()
        self._ready_time = ready_time
        self._is_ready = bool(is_ready)
        self._deadline = deadline
        self._outage = int(outage)
        self._down_until = down_until


def _blocked_table(entries: int) -> NDArray[np.void]:
    table = empty_table(entries, _BLOCKED)
    table["last_round"] = -1
    return table


@njit(cache=True, nogil=True)
def _stays(table, window, window_start):
    """Which entries the lists of a window do not account for.

    An entry can be forgotten once the device is not busy at the window's start, and either the
    lists know its timer, its last round and its contributions, or none of them holds it back.
    """
    stays = np.zeros(table.size, np.bool_)
    for slot in range(table.size):
        entry = table[slot]
        if entry.device_id == EMPTY:
            continue
        is_busy = entry.busy_until > window_start
        is_known = entry.known_from <= window
        is_open = entry.reopen_time <= window_start
        holds_nothing = is_open and entry.last_round < 0 and entry.contributions == 0
        stays[slot] = is_busy or not (is_known or holds_nothing)
    return stays


@njit(cache=True, nogil=True)
def _block_all(
    table, device_ids, busy_until, reopen_times, remembered_rounds, contributions, known_from
):
    for chosen in range(device_ids.size):
        device = device_ids[chosen]
        entry = table[find(table, device)]
        entry.device_id = device
        entry.busy_until = busy_until[chosen]
        entry.is_waiting = False
        # The latest time counts, as in the maps of the shards.
        entry.reopen_time = max(entry.reopen_time, np.float64(reopen_times[chosen]))
        entry.contributions = contributions[chosen]
        entry.known_from = known_from
        if remembered_rounds[chosen] >= 0:
            entry.last_round = remembered_rounds[chosen]


@njit(cache=True, nogil=True)
def _come_again(arrivals, rules, window, list_rows, free_times):
    counts, next_times, next_rows = arrivals.counts, arrivals.next_times, arrivals.next_rows
    for chosen in range(list_rows.size):
        row = list_rows[chosen]
        # The others, who wait since an earlier window, have no row in this window's list.
        if row < 0:
            continue
        device = arrivals.device_ids[row]
        end = arrivals.interval_ends[row]
        time = next_time(rules.return_key, window, device, end, free_times[chosen])
        if time < np.inf:
            push(counts, next_times, next_rows, time, row)


@njit(cache=True, nogil=True)
def _advance(arrivals, window, attempt, outages, rules, waiting, blocked):
    """See `Selection.advance`: goes through the window's check-ins in order of time; how it ended,
    whether the round may start, and the time."""
    # Arrays are taken out of their tuples once, and steps that every check-in takes are given
    # numbers and records alone: compiled code counts references anew wherever it reaches into a
    # tuple or hands an array on, which made this kernel three times as slow.
    device_ids = arrivals.device_ids
    times = arrivals.times
    ends = arrivals.interval_ends
    fixed_seconds = arrivals.fixed_seconds
    training_seconds = arrivals.training_seconds
    own_upload_seconds = arrivals.upload_seconds
    last_rounds = arrivals.last_rounds
    own_timer_seconds = arrivals.timer_seconds
    own_contributions = arrivals.contributions
    counts = arrivals.counts
    next_times = arrivals.next_times
    next_rows = arrivals.next_rows
    waiting_counts = waiting.counts
    heap = waiting.heap
    waiting_ends = waiting.interval_ends
    is_ready = attempt.is_ready
    while True:
        # The next check-in is the list's or the heap's, whichever comes first; at equal times the
        # list's.
        time = times[counts[0]] if counts[0] < times.size else window.end_time
        is_next = counts[1] > 0 and next_times[0] < time
        if is_next:
            time = next_times[0]
        # What needs no check-in, such as a timeout, may come before the next one does.
        moment, what = _next_moment(attempt, is_ready, outages)
        if moment <= time and moment < window.end_time:
            # Only those count who are still eligible at that moment.
            _leave(waiting, moment)
            if what != _READY:
                return what, is_ready, moment
            is_ready = True
            if waiting_counts[0] >= rules.target:
                return FULL, is_ready, moment
            continue
        # All check-ins come before the window's end, so that none is left.
        if time >= window.end_time:
            return EXHAUSTED, is_ready, window.end_time
        if is_next:
            row = next_rows[0]
            pop(counts, next_times, next_rows)
        else:
            row = counts[0]
            counts[0] += 1
        # Whoever's interval is over makes room before the device is looked at.
        if waiting_counts[0] > 0 and waiting_ends[heap[0]] <= time:
            _leave(waiting, time)
        device = device_ids[row]
        # A device without an entry has here the empty slot where its entry would be.
        entry = blocked[find(blocked, device)]
        free_time = _held_until(entry, device, time, outages.down_until)
        if free_time < 0.0:
            last_round = last_rounds[row] if last_rounds.size else -1
            is_apart = _is_apart(entry, device, last_round, attempt.round_index, rules)
            if is_apart and waiting_counts[0] < rules.room:
                # What the device says counts; where the lists say nothing, all keep the timer,
                # uploads do not matter and nobody counts.
                timer_seconds = rules.timer_seconds
                if own_timer_seconds.size:
                    timer_seconds = own_timer_seconds[row]
                upload_seconds = np.float32(0.0)
                if own_upload_seconds.size:
                    upload_seconds = own_upload_seconds[row]
                contributions = np.uint32(0)
                if own_contributions.size:
                    contributions = max(entry.contributions, own_contributions[row])
                arrival = _Arrival(
                    device_id=device,
                    time=time,
                    interval_end=ends[row],
                    fixed_seconds=fixed_seconds[row],
                    training_seconds=training_seconds[row],
                    upload_seconds=upload_seconds,
                    timer_seconds=timer_seconds,
                    contributions=contributions,
                    list_row=row,
                )
                _join(waiting, entry, arrival)
                if is_ready and waiting_counts[0] >= rules.target:
                    return FULL, is_ready, time
                continue
            # It was turned away, and may try again at once.
            free_time = time
        time = next_time(rules.return_key, window, device, ends[row], free_time)
        if time < np.inf:
            push(counts, next_times, next_rows, time, row)


@njit(forceinline=True)
def _next_moment(attempt, is_ready, outages):
    """When selection changes next without a check-in, and how."""
    if is_ready:
        moment, what = attempt.deadline, TIMED_OUT
    else:
        moment, what = attempt.ready_time, _READY
    # At equal times the server is down first, so that no round starts in an outage.
    if outages.next_start <= moment:
        return outages.next_start, DOWN
    return moment, what


@njit(forceinline=True)
def _held_until(entry, device, time, down_until):
    """From when on a device that checks in may come again, where it is not free or the server is
    down; -1 where neither is so."""
    if time < down_until:
        return down_until
    has_entry = entry.device_id == device
    is_free = entry.busy_until <= time and entry.reopen_time <= time
    if not has_entry or is_free:
        return -1.0
    # One that waits may be let go at any moment, so that it is not known when it is free.
    if entry.is_waiting:
        return time
    return max(entry.busy_until, entry.reopen_time)


@njit(forceinline=True)
def _is_apart(entry, device, last_round, round_index, rules):
    """Whether a device's last round, as it or its entry remembers it, is far enough away."""
    # The entry may know of a round that was settled after the shards had listed the window.
    if entry.device_id == device:
        last_round = max(last_round, entry.last_round)
    if rules.separation == 0 or last_round < 0:
        return True
    return round_index - last_round >= rules.separation


@njit(forceinline=True)
def _join(waiting, entry, arrival):
    """A device waits from now on; its entry says so."""
    entry.device_id = arrival.device_id
    # Unless it is selected or let go before, it leaves when its interval ends.
    entry.busy_until = arrival.interval_end
    entry.is_waiting = True
    waiting.counts[1] -= 1
    slot = waiting.free[waiting.counts[1]]
    waiting.device_ids[slot] = arrival.device_id
    waiting.check_in_times[slot] = arrival.time
    waiting.interval_ends[slot] = arrival.interval_end
    waiting.fixed_seconds[slot] = arrival.fixed_seconds
    waiting.training_seconds[slot] = arrival.training_seconds
    waiting.upload_seconds[slot] = arrival.upload_seconds
    waiting.timer_seconds[slot] = arrival.timer_seconds
    waiting.contributions[slot] = arrival.contributions
    waiting.list_rows[slot] = arrival.list_row
    # The new slot rises in the heap until its parent's interval ends no later.
    hole = waiting.counts[0]
    waiting.counts[0] += 1
    while hole > 0:
        parent = (hole - 1) // 2
        if waiting.interval_ends[waiting.heap[parent]] <= arrival.interval_end:
            break
        waiting.heap[hole] = waiting.heap[parent]
        hole = parent
    waiting.heap[hole] = slot


@njit(forceinline=True)
def _leave(waiting, time):
    """Devices whose interval has ended by `time` leave."""
    while waiting.counts[0] > 0 and waiting.interval_ends[waiting.heap[0]] <= time:
        _leave_first(waiting.counts, waiting.heap, waiting.free, waiting.interval_ends)


@njit(forceinline=True)
def _leave_first(counts, heap, free, ends):
    """The device whose interval ends first leaves."""
    free[counts[1]] = heap[0]
    counts[1] += 1
    counts[0] -= 1
    count = counts[0]
    # The last slot fills the hole at the top, and sinks until no child's interval ends before.
    moved = heap[count]
    hole = 0
    while True:
        child = 2 * hole + 1
        if child >= count:
            break
        if child + 1 < count and ends[heap[child + 1]] < ends[heap[child]]:
            child += 1
        if ends[heap[child]] >= ends[moved]:
            break
        heap[hole] = heap[child]
        hole = child
    heap[hole] = moved
