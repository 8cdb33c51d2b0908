"""Selection: who waits for the next round, compiled. tests/server/test_selection.py holds it to a readable twin.

Check-ins come in order of time. A device that checks in while fewer than the target wait, and that is free, waits until it is
selected or its session ends. The round starts at the first moment, not before the previous one has closed, at which the
target waits at once; or selection times out.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedray.messages import CheckIns
from server.rounds import RoundRules, Selected

EXHAUSTED, FULL, TIMED_OUT = 0, 1, 2
_EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
_HASH = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)


class _Waiting(NamedTuple):
    """The waiting devices: a heap of slots by session end, and the slots' columns. counts = [waiting, free slots]."""

    counts: NDArray[np.int64]
    heap: NDArray[np.int64]
    free: NDArray[np.int64]
    device: NDArray[np.uint64]
    checkin: NDArray[np.float64]
    end: NDArray[np.float64]
    work: NDArray[np.float32]
    failure: NDArray[np.float32]


class _Blocked(NamedTuple):
    """Hash table: who may not check in now, as far as the shards' lists do not account for it.

    busy_until: waiting, training or reporting until then; no list accounts for that. reopen: the timer opens then.
    known_from: first window whose lists account for the timer and the last round. last_round: -1 for none.
    """

    device: NDArray[np.uint64]
    busy_until: NDArray[np.float64]
    reopen: NDArray[np.float64]
    known_from: NDArray[np.int32]
    last_round: NDArray[np.int32]


class Selection:
    """The server's view of who is waiting and who is not free."""

    def __init__(self, rules: RoundRules) -> None:
        self._rules = rules
        size = rules.selection_target
        self._waiting = _Waiting(
            counts=np.array([0, size]),
            heap=np.zeros(size, np.int64),
            free=np.arange(size),
            device=np.zeros(size, np.uint64),
            checkin=np.zeros(size),
            end=np.zeros(size),
            work=np.zeros(size, np.float32),
            failure=np.zeros(size, np.float32),
        )
        self._blocked = _blocked_table(64)
        self._check_ins: CheckIns | None = None
        self._cursor, self._window_end = 0, 0.0
        self._ready_at, self._is_ready, self._deadline = 0.0, False, 0.0

    def start_window(self, check_ins: CheckIns, window: int, window_start: float, window_end: float) -> None:
        """Takes a window's check-ins; forgets what their lists account for."""
        entries = int((self._blocked.device != _EMPTY).sum())
        table = _blocked_table(entries + check_ins.device_ids.size)
        _carry_over(self._blocked, table, window, window_start)
        self._blocked, self._check_ins = table, check_ins
        self._cursor, self._window_end = 0, window_end

    def open(self, opened: float, ready_at: float) -> None:
        """Opens selection for a round that can start from ready_at on, when the previous one has closed."""
        self._ready_at, self._is_ready = ready_at, False
        self._deadline = max(opened, ready_at) + self._rules.selection_timeout

    def advance(self, round_index: int) -> tuple[int, float]:
        """Goes on until the round can start (FULL), times out (TIMED_OUT) or the window ends (EXHAUSTED); and the time."""
        check_ins = self._check_ins
        assert check_ins is not None
        status, self._cursor, self._is_ready, time = _advance(
            check_ins.times, check_ins.device_ids, check_ins.session_ends, check_ins.work_seconds,
            check_ins.failure_seconds, check_ins.last_rounds, self._cursor, self._window_end, self._rules.selection_target,
            self._ready_at, self._is_ready, self._deadline, round_index, self._rules.round_separation,
            self._waiting, self._blocked,
        )  # fmt: skip
        return status, time

    @property
    def waiting(self) -> int:
        """Devices that wait now."""
        return int(self._waiting.counts[0])

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
            work_seconds=waiting.work[slots].astype(np.float64),
            failure_seconds=waiting.failure[slots].astype(np.float64),
        )

    def block(
        self,
        selected: Selected,
        busy_until: NDArray[np.float64],
        reopen: NDArray[np.uint32],
        remembered_round: NDArray[np.int32],
        known_from: int,
    ) -> None:
        """Keeps devices [S] from checking in while they are busy or their timer is closed.

        remembered_round [S] is -1 where the device keeps none; known_from is the window whose lists will account for the rest.
        """
        _block_all(self._blocked, selected.device_ids, busy_until, reopen, remembered_round, known_from)


def _blocked_table(entries: int) -> _Blocked:
    size = 1 << max(6, (2 * entries).bit_length())
    return _Blocked(np.full(size, _EMPTY), np.zeros(size), np.zeros(size), np.zeros(size, np.int32), np.full(size, -1, np.int32))


@njit(inline="always")
def _find(devices, device):
    """The device's place in a table of devices, or the empty place where it belongs."""
    mask = np.uint64(devices.size - 1)
    place = ((device * _HASH) >> _HALF) & mask
    while devices[place] != _EMPTY and devices[place] != device:
        place = (place + np.uint64(1)) & mask
    return place


@njit(cache=True)
def _carry_over(old, new, window, window_start):
    for place in range(old.device.size):
        if old.device[place] == _EMPTY:
            continue
        is_over = old.reopen[place] <= window_start and old.last_round[place] < 0
        if old.busy_until[place] <= window_start and (old.known_from[place] <= window or is_over):
            continue
        target = _find(new.device, old.device[place])
        new.device[target] = old.device[place]
        new.busy_until[target] = old.busy_until[place]
        new.reopen[target] = old.reopen[place]
        new.known_from[target] = old.known_from[place]
        new.last_round[target] = old.last_round[place]


@njit(cache=True)
def _block_all(table, devices, busy_until, reopen, remembered_round, known_from):
    for row in range(devices.size):
        place = _find(table.device, devices[row])
        table.device[place] = devices[row]
        table.busy_until[place] = busy_until[row]
        table.reopen[place] = max(table.reopen[place], np.float64(reopen[row]))
        table.known_from[place] = known_from
        if remembered_round[row] >= 0:
            table.last_round[place] = remembered_round[row]


@njit(cache=True)
def _advance(
    times, devices, ends, work, failure, last_rounds, cursor, window_end, target,
    ready_at, is_ready, deadline, round_index, separation, waiting, blocked,
):  # fmt: skip
    # Arrays taken out of their tuples once: compiled code counts references anew wherever it reaches into a tuple.
    counts, heap, end = waiting.counts, waiting.heap, waiting.end
    blocked_device, busy_until = blocked.device, blocked.busy_until
    while True:
        time = times[cursor] if cursor < times.size else window_end
        if not is_ready and ready_at <= time and ready_at < window_end:
            is_ready = True
            _leave(waiting, ready_at)
            if waiting.counts[0] >= target:
                return FULL, cursor, is_ready, ready_at
            continue
        if is_ready and deadline <= time and deadline < window_end:
            _leave(waiting, deadline)
            return TIMED_OUT, cursor, is_ready, deadline
        if cursor == times.size:
            return EXHAUSTED, cursor, is_ready, window_end
        device = devices[cursor]
        if counts[0] > 0 and end[heap[0]] <= time:
            _leave(waiting, time)
        if counts[0] < target and ends[cursor] > time:
            place = _find(blocked_device, device)
            is_known = blocked_device[place] == device
            last_round = last_rounds[cursor] if last_rounds.size else -1
            if is_known:
                last_round = max(last_round, blocked.last_round[place])
            is_free = not is_known or (busy_until[place] <= time and blocked.reopen[place] <= time)
            is_apart = separation == 0 or last_round < 0 or round_index - last_round >= separation
            if is_free and is_apart:
                blocked_device[place] = device
                busy_until[place] = ends[cursor]
                _join(waiting, device, time, ends[cursor], work[cursor], failure[cursor])
        cursor += 1
        if is_ready and counts[0] >= target:
            return FULL, cursor, is_ready, time


@njit(forceinline=True)
def _join(waiting, device, time, end, work, failure):
    waiting.counts[1] -= 1
    slot = waiting.free[waiting.counts[1]]
    waiting.device[slot], waiting.checkin[slot], waiting.end[slot] = device, time, end
    waiting.work[slot], waiting.failure[slot] = work, failure
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
            if child + 1 < count and waiting.end[waiting.heap[child + 1]] < waiting.end[waiting.heap[child]]:
                child += 1
            if waiting.end[waiting.heap[child]] >= waiting.end[moved]:
                break
            waiting.heap[place] = waiting.heap[child]
            place = child
        waiting.heap[place] = moved
