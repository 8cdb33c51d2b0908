"""Selection: who waits for the next round, compiled. tests/server/test_selection.py holds it to a
readable twin.

Check-ins come in order of time. A device that checks in while fewer than the target wait, and that
is free, waits until it is selected or its session ends. The round starts at the first moment, not
before the previous one has closed, at which the target waits at once; or selection times out.

Devices check in as Poisson processes, which have no memory. The shards list the first check-in of
each eligible stretch. The next one is drawn here, from the time on at which the device could be
taken: at once if it was turned away or must stay apart from its last round, or when it is done with
its round and its timer is open.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedray.messages import CheckIns
from fedray.rng import Key, draw, exponential
from server.rounds import RoundRules, Selected

EXHAUSTED, FULL, TIMED_OUT, CLOSED = 0, 1, 2, 3
_EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
_HASH = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_ADDRESSES = 2.0**32
"""A next check-in's address b within its (device, window): from when on it is drawn, in 2^-32 of
the window."""


class Window(NamedTuple):
    """A look-ahead window: its number, seconds [start, end), until when devices are asked to come,
    and their rate."""

    number: int
    start: float
    end: float
    ask_until: float
    checkins_per_hour: float


class _Waiting(NamedTuple):
    """The waiting devices: a heap of slots by session end, and the slots' columns. counts =
    [waiting, free slots]."""

    counts: NDArray[np.int64]
    heap: NDArray[np.int64]
    free: NDArray[np.int64]
    device: NDArray[np.uint64]
    checkin: NDArray[np.float64]
    end: NDArray[np.float64]
    fixed: NDArray[np.float32]
    training: NDArray[np.float32]
    timer: NDArray[np.float64]
    contributions: NDArray[np.uint32]
    row: NDArray[np.int64]


_BLOCKED = np.dtype(
    [
        ("device", np.uint64),
        ("busy_until", np.float64),
        ("reopen", np.float64),
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
reopen: the timer opens then.
known_from: first window whose lists account for the timer, the last round and the contributions.
last_round: -1 for none.
contributions: accepted reports.
"""


class _Next(NamedTuple):
    """Next check-ins of rows of the list: a heap by time. entries = [how many]."""

    entries: NDArray[np.int64]
    time: NDArray[np.float64]
    row: NDArray[np.int64]


class Selection:
    """The server's view of who is waiting and who is not free."""

    def __init__(self, rules: RoundRules, return_key: Key) -> None:
        self._rules, self._key = rules, return_key
        size = rules.selection_target
        self._waiting = _Waiting(
            counts=np.array([0, size]),
            heap=np.zeros(size, np.int64),
            free=np.arange(size),
            device=np.zeros(size, np.uint64),
            checkin=np.zeros(size),
            end=np.zeros(size),
            fixed=np.zeros(size, np.float32),
            training=np.zeros(size, np.float32),
            timer=np.zeros(size),
            contributions=np.zeros(size, np.uint32),
            row=np.full(size, -1, np.int64),
        )
        self._blocked = _blocked_table(64)
        self._list: CheckIns | None = None
        self._window = Window(-1, 0.0, 0.0, 0.0, 0.0)
        self._next = _Next(np.zeros(1, np.int64), np.empty(0), np.empty(0, np.int64))
        self._cursor = 0
        self._ready_at, self._is_ready, self._deadline = 0.0, False, 0.0
        self._outage = 0
        """The outage that is next, or has begun."""
        self._down_until = 0.0

    def start_window(self, check_ins: CheckIns, window: Window) -> None:
        """Takes a window's first check-ins; forgets what their lists account for."""
        stays = _stays(self._blocked, window.number, window.start)
        table = _blocked_table(int(stays.sum()) + check_ins.device_ids.size)
        _carry_over(self._blocked, table, stays)
        self._blocked, self._list, self._window, self._cursor = table, check_ins, window, 0
        self._waiting.row.fill(-1)
        size = check_ins.device_ids.size
        self._next = _Next(np.zeros(1, np.int64), np.empty(size), np.empty(size, np.int64))

    def open(self, opened: float, ready_at: float) -> None:
        """Opens selection for a round that can start from ready_at on, when the previous one has
        closed."""
        self._ready_at, self._is_ready = ready_at, False
        self._deadline = max(opened, ready_at) + self._rules.selection_timeout

    def advance(self, round_index: int) -> tuple[int, float]:
        """Goes on until the round can start (FULL), selection times out (TIMED_OUT), an outage
        begins (CLOSED), or the window ends (EXHAUSTED); which of them, and the time.
        """
        check_ins = self._list
        assert check_ins is not None
        outages = self._rules.outages
        outage_start = outages[self._outage, 0] if self._outage < len(outages) else np.inf
        status, self._cursor, self._is_ready, time = _advance(
            check_ins.times,
            check_ins.device_ids,
            check_ins.session_ends,
            check_ins.fixed_seconds,
            check_ins.training_seconds,
            check_ins.last_rounds,
            check_ins.timer_seconds,
            check_ins.contributions,
            self._rules.timer,
            self._cursor,
            self._window,
            self._rules.selection_target,
            self._ready_at,
            self._is_ready,
            self._deadline,
            outage_start,
            self._down_until,
            round_index,
            self._rules.round_separation,
            self._waiting,
            self._blocked,
            self._next,
            self._key,
        )
        if status == CLOSED:
            self._down_until = float(outages[self._outage, 1])
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

    def take(self) -> Selected:
        """All waiting devices, sorted by id; nobody waits afterwards."""
        waiting = self._waiting
        slots = waiting.heap[: self.waiting].copy()
        slots = slots[np.argsort(waiting.device[slots])]
        waiting.free[waiting.counts[1] : waiting.counts[1] + slots.size] = slots
        waiting.counts[:] = 0, waiting.counts[1] + slots.size
        return Selected(
            device_ids=waiting.device[slots],
            checkin_times=waiting.checkin[slots],
            session_ends=waiting.end[slots],
            fixed_seconds=waiting.fixed[slots],
            training_seconds=waiting.training[slots],
            timer_seconds=waiting.timer[slots],
            contributions=waiting.contributions[slots],
            rows=waiting.row[slots],
        )

    def let_go(
        self,
        selected: Selected,
        busy_until: NDArray[np.float64],
        reopen: NDArray[np.uint32],
        remembered_round: NDArray[np.int32],
        contributions: NDArray[np.uint32],
    ) -> None:
        """Devices [S] that waited are busy, or their timer closed, until then; and check in again
        afterwards, if they still can.

        remembered_round [S] is -1 where the device keeps none; contributions [S] are its accepted
        reports, the last round's included. The next window's lists will account for timers, rounds
        and contributions.
        """
        known_from = self._window.number + 1
        _block_all(
            self._blocked,
            selected.device_ids,
            busy_until,
            reopen,
            remembered_round,
            contributions,
            known_from,
        )
        _come_again(
            self._next,
            self._key,
            self._window,
            selected.rows,
            selected.device_ids,
            selected.session_ends,
            busy_until,
            reopen,
        )

    def state(self) -> dict[str, NDArray]:
        """Everything, as named arrays, for a checkpoint between two windows."""
        live = self._blocked["device"] != _EMPTY
        slots = self._waiting.heap[: self.waiting]
        return {
            **{f"blocked.{name}": self._blocked[name][live] for name in _BLOCKED.fields or ()},
            **{
                f"waiting.{name}": column[slots]
                for name, column in self._waiting._asdict().items()
                if name not in ("counts", "heap", "free")
            },
            "clock": np.array(
                [self._ready_at, self._is_ready, self._deadline, self._outage, self._down_until]
            ),
        }

    def load(self, state: dict[str, NDArray]) -> None:
        """Takes up a state."""
        blocked = np.empty(state["blocked.device"].size, _BLOCKED)
        for name in _BLOCKED.fields or ():
            blocked[name] = state[f"blocked.{name}"]
        self._blocked = _blocked_table(blocked.size)
        _carry_over(blocked, self._blocked, np.ones(blocked.size, np.bool_))
        columns = {
            name: state[f"waiting.{name}"]
            for name in _Waiting._fields
            if f"waiting.{name}" in state
        }
        size, count = self._rules.selection_target, columns["device"].size
        for name, column in columns.items():
            getattr(self._waiting, name)[:count] = column
        self._waiting.counts[:] = count, size - count
        self._waiting.heap[:count] = np.argsort(
            self._waiting.end[:count], kind="stable"
        )  # a sorted list is a heap
        self._waiting.free[: size - count] = np.arange(count, size)
        ready_at, is_ready, deadline, outage, down_until = state["clock"].tolist()
        self._ready_at, self._is_ready, self._deadline = ready_at, bool(is_ready), deadline
        self._outage, self._down_until = int(outage), down_until


def _blocked_table(entries: int) -> NDArray[np.void]:
    size = 1 << max(
        6, (3 * entries // 2).bit_length()
    )  # a third to two thirds full, so that more of it stays in the cache
    table = np.zeros(size, _BLOCKED)
    table["device"], table["last_round"] = _EMPTY, -1
    return table


@njit(inline="always")
def _find(table, device):
    """The device's place in the table, or the empty place where it belongs."""
    mask = np.uint64(table.size - 1)
    place = ((device * _HASH) >> _HALF) & mask
    while table[place].device != _EMPTY and table[place].device != device:
        place = (place + np.uint64(1)) & mask
    return place


@njit(cache=True)
def _stays(table, window, window_start):
    """Which entries the lists of a window do not account for."""
    stays = np.zeros(table.size, np.bool_)
    for place in range(table.size):
        entry = table[place]
        if entry.device != _EMPTY:
            is_over = (
                entry.reopen <= window_start and entry.last_round < 0 and entry.contributions == 0
            )
            stays[place] = entry.busy_until > window_start or not (
                entry.known_from <= window or is_over
            )
    return stays


@njit(cache=True)
def _carry_over(old, new, stays):
    for place in range(old.size):
        if stays[place]:
            new[_find(new, old[place].device)] = old[place]


@njit(cache=True)
def _block_all(table, devices, busy_until, reopen, remembered_round, contributions, known_from):
    for row in range(devices.size):
        entry = table[_find(table, devices[row])]
        entry.device = devices[row]
        entry.busy_until = busy_until[row]
        entry.is_waiting = False
        entry.reopen = max(entry.reopen, np.float64(reopen[row]))
        entry.contributions = contributions[row]
        entry.known_from = known_from
        if remembered_round[row] >= 0:
            entry.last_round = remembered_round[row]


@njit(cache=True)
def _come_again(following, key, window, rows, devices, ends, busy_until, reopen):
    for place in range(rows.size):
        if rows[place] >= 0:  # others have an entry of their own in the window's list
            free = max(busy_until[place], np.float64(reopen[place]))
            _draw_next(following, key, window, rows[place], devices[place], ends[place], free)


@njit(cache=True)
def _advance(
    times,
    devices,
    ends,
    fixed,
    training,
    last_rounds,
    timers,
    contributions,
    timer,
    cursor,
    window,
    target,
    ready_at,
    is_ready,
    deadline,
    outage_start,
    down_until,
    round_index,
    separation,
    waiting,
    blocked,
    following,
    key,
):
    # Arrays taken out of their tuples once: compiled code counts references anew wherever it
    # reaches into a tuple.
    counts, heap, end = waiting.counts, waiting.heap, waiting.end
    next_count, next_time, next_row = following.entries, following.time, following.row
    window_end = window.end
    while True:
        time = times[cursor] if cursor < times.size else window_end
        is_next = next_count[0] > 0 and next_time[0] < time
        if is_next:
            time = next_time[0]
        comes_first = deadline >= outage_start if is_ready else ready_at >= outage_start
        if outage_start <= time and outage_start < window_end and comes_first:
            _leave(waiting, outage_start)
            return CLOSED, cursor, is_ready, outage_start
        if not is_ready and ready_at <= time and ready_at < window_end:
            is_ready = True
            _leave(waiting, ready_at)
            if counts[0] >= target:
                return FULL, cursor, is_ready, ready_at
            continue
        if is_ready and deadline <= time and deadline < window_end:
            _leave(waiting, deadline)
            return TIMED_OUT, cursor, is_ready, deadline
        if is_next:
            row = next_row[0]
            _pop(following)
        elif cursor < times.size:
            row = cursor
            cursor += 1
        else:
            return EXHAUSTED, cursor, is_ready, window_end
        device = devices[row]
        if counts[0] > 0 and end[heap[0]] <= time:
            _leave(waiting, time)
        if time < down_until:
            _draw_next(following, key, window, row, device, ends[row], down_until)
            continue
        entry = blocked[_find(blocked, device)]
        is_known = entry.device == device
        if is_known and (entry.busy_until > time or entry.reopen > time):
            free = time if entry.is_waiting else max(entry.busy_until, entry.reopen)
            _draw_next(following, key, window, row, device, ends[row], free)
            continue
        last_round = last_rounds[row] if last_rounds.size else -1
        if is_known:
            last_round = max(last_round, entry.last_round)
        is_apart = separation == 0 or last_round < 0 or round_index - last_round >= separation
        if counts[0] >= target or not is_apart:
            _draw_next(following, key, window, row, device, ends[row], time)
            continue
        # What the device says counts; where the lists say nothing, all keep the timer and nobody
        # counts.
        wait = timers[row] if timers.size else timer
        contributed = (
            max(entry.contributions, contributions[row]) if contributions.size else np.uint32(0)
        )
        entry.device = device
        entry.busy_until = ends[row]
        entry.is_waiting = True
        _join(waiting, device, time, ends[row], fixed[row], training[row], wait, contributed, row)
        if is_ready and counts[0] >= target:
            return FULL, cursor, is_ready, time


@njit(forceinline=True)
def _draw_next(following, key, window, row, device, end, free):
    """The next check-in of a row's device after it is free: kept if it comes in time."""
    until = min(end, window.ask_until)
    if free >= until or window.checkins_per_hour == 0.0:
        return
    word, _, _, _ = draw(
        key,
        device,
        window.number,
        int((free - window.start) / (window.end - window.start) * _ADDRESSES),
    )
    # At least a millisecond later, so that the next draw has another address.
    time = free + max(1e-3, exponential(word) * (3600.0 / window.checkins_per_hour))
    if time < until:
        _push(following, time, row)


@njit(forceinline=True)
def _push(following, time, row):
    times, rows = following.time, following.row
    place = following.entries[0]
    following.entries[0] += 1
    while place > 0:
        parent = (place - 1) // 2
        if times[parent] <= time:
            break
        times[place], rows[place] = times[parent], rows[parent]
        place = parent
    times[place], rows[place] = time, row


@njit(forceinline=True)
def _pop(following):
    """Removes the first entry."""
    times, rows = following.time, following.row
    following.entries[0] -= 1
    count = following.entries[0]
    time, row = times[count], rows[count]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= count:
            break
        if child + 1 < count and times[child + 1] < times[child]:
            child += 1
        if times[child] >= time:
            break
        times[place], rows[place] = times[child], rows[child]
        place = child
    times[place], rows[place] = time, row


@njit(forceinline=True)
def _join(waiting, device, time, end, fixed, training, timer, contributions, row):
    waiting.counts[1] -= 1
    slot = waiting.free[waiting.counts[1]]
    waiting.device[slot], waiting.checkin[slot], waiting.end[slot] = device, time, end
    waiting.fixed[slot], waiting.training[slot], waiting.timer[slot], waiting.row[slot] = (
        fixed,
        training,
        timer,
        row,
    )
    waiting.contributions[slot] = contributions
    place = waiting.counts[0]
    waiting.counts[0] += 1
    while place > 0:
        parent = (place - 1) // 2
        if waiting.end[waiting.heap[parent]] <= end:
            break
        waiting.heap[place] = waiting.heap[parent]
        place = parent
    waiting.heap[place] = slot


@njit(forceinline=True)
def _leave(waiting, time):
    """Devices whose session has ended by `time` leave."""
    while waiting.counts[0] > 0 and waiting.end[waiting.heap[0]] <= time:
        waiting.free[waiting.counts[1]] = waiting.heap[0]
        waiting.counts[1] += 1
        waiting.counts[0] -= 1
        count = waiting.counts[0]
        moved = waiting.heap[count]
        place = 0
        while True:
            child = 2 * place + 1
            if child >= count:
                break
            if (
                child + 1 < count
                and waiting.end[waiting.heap[child + 1]] < waiting.end[waiting.heap[child]]
            ):
                child += 1
            if waiting.end[waiting.heap[child]] >= waiting.end[moved]:
                break
            waiting.heap[place] = waiting.heap[child]
            place = child
        waiting.heap[place] = moved
