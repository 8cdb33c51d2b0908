"""Selection: which devices wait for the next round of which task, compiled.
    tests/server/test_several_tasks.py compares it with a readable twin.

Check-ins come in order of time. A device that checks in and is free is offered to every task that
is selecting, has room for another device, and whose rules admit it. If there are several, one of
them is drawn in proportion to their weights. The device waits for that task only, until it is
selected or its interval ends. A round of a task starts once the previous round has closed and the
task's target waits, or when selection times out. The waiting room holds the target, or more if the
round draws its devices from the waiting ones (server/rounds/reservoir.py).

Devices check in as Poisson processes, which have no memory. The shards list the first check-in of
each eligible interval. The next one is drawn here, from the time at which a task could take the
device: at once if it was turned away or its last round is too near, else when it is done with its
    round and a timer is open.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.base.arrays import (
    BoolArray,
    Float64Array,
    Int32Array,
    Int64Array,
    UInt32Array,
    UInt64Array,
)
from fedray.base.compiled import njit
from fedray.base.rng import Key, Stream, address_within, draw, exponential, stream_key, stream_seed
from fedray.scenario.hold import HeldDevices
from fedray.scenario.several_tasks import TASK_BITS
from fedray.trace.checkpoints import prefixed, under
from fedray.wire.messages import NO_CHECK_INS, NO_WINDOW, CheckIns, Window
from .arrivals import (
    EMPTY,
    Arrivals,
    Slots,
    columns_of,
    entries_of,
    find,
    next_time,
    pop,
    pop_slot,
    push,
    table_of,
)
from .rounds import RoundRules, Selected

EXHAUSTED, FULL, TIMED_OUT, DOWN = 0, 1, 2, 3
_READY = 4
"""Results of `Selection.advance`; inside the kernel also: a round may start now."""

_NO_CAP = 2**32
"""More contributions than are counted."""

_ENTRY = np.dtype(
    [
        ("device_id", np.uint64),
        ("busy_until", np.float64),
        ("open_time", np.float64),
        ("known_from", np.int32),
        ("last_round", np.int32),
        ("contributions", np.uint32),
        ("is_waiting", np.bool_),
    ],
    align=True,
)
"""An entry of the hash table of devices that may not check in now, as far as the shards' lists do
not account for it: one for each device and task that have met. Entries are whole records, so that
reading one touches one cache line.

device_id: device and task together: see `_key`.
busy_until: end of waiting, training or reporting, for any task; only in entries of the first
    task. No list accounts for it.
is_waiting: whether it waits, and so may be free sooner; only in entries of the first task.
open_time: time at which the task's timer opens.
known_from: first window whose lists account for the timer, the last round and the contributions.
last_round: last round of the task; -1 for none.
contributions: number of reports to the task that arrived in time.
"""
_WAITING = np.dtype(
    [
        ("device_id", np.uint64),
        ("check_in_time", np.float64),
        ("interval_end", np.float64),
        ("fixed_seconds", np.float32),
        ("training_seconds", np.float32),
        ("upload_seconds", np.float32),
        ("timer_seconds", np.float64),
        ("contributions", np.uint32),
        ("list_row", np.int64),
        ("task", np.int64),
    ],
    align=True,
)
"""A waiting device, and its task."""
_COLUMNS = (_WAITING.names or ())[:-1]
"""The fields of `Selected`, in its order."""


class _Rules(NamedTuple):
    """Rules of the tasks for compiled code, [T] each."""

    targets: Int64Array
    """Number of devices of a task that must wait at once."""
    rooms: Int64Array
    """Largest number of devices that may wait for a task."""
    timers: Float64Array
    """Timer of all devices if the lists do not state each one's wait, seconds."""
    separations: Int64Array
    """Least difference between the numbers of two rounds of a device; 0 for none."""
    weights: Float64Array
    """See `fedray.scenario.several_tasks.FederatedTask.weight`."""
    caps: Int64Array
    """Number of contributions with which a device takes part in no round any more, from the round
    of `holds_from` on."""
    holds_from: Int64Array
    """First round of a task from which devices are held."""
    offer_keys: UInt64Array
    """[T, 2]; keys of the draws that decide between tasks."""
    return_key: Key
    """Key of the draws of next check-ins."""


class _Held(NamedTuple):
    """Devices that must wait, for compiled code, sorted by key; [H] each."""

    keys: UInt64Array
    """Device and task together: see `_key`."""
    first_rounds: Int64Array
    """First round of the task that may select the device."""
    first_times: Float64Array
    """Time from which it may select the device, seconds since start."""


class _Attempts(NamedTuple):
    """Attempts at rounds that selection is open for, [T] each; times are seconds since start."""

    rounds: Int64Array
    """Numbers of the rounds."""
    select_from: Float64Array
    """Time from which devices may wait; infinite for a task that is over."""
    ready_times: Float64Array
    """Time from which the round may start."""
    is_ready: BoolArray
    """Whether that time has come."""
    deadlines: Float64Array
    """Time at which selection times out."""

    @classmethod
    def of(cls, tasks: int) -> "_Attempts":
        """Returns attempts at the first rounds of some tasks."""
        return cls(
            rounds=np.zeros(tasks, np.int64),
            select_from=np.zeros(tasks),
            ready_times=np.zeros(tasks),
            is_ready=np.zeros(tasks, np.bool_),
            deadlines=np.zeros(tasks),
        )


class Selection:
    """The server's view of the devices that wait for a task, and of devices that are not free.

    Args:
        rules: rules of the rounds of each task.
        seed: seed of the scenario.
        weights: share of each task in devices that several tasks would take.

    down_until: end of the last outage that has begun, seconds since start.
    """

    def __init__(
        self, rules: Sequence[RoundRules], seed: int, weights: Sequence[float] = (1.0,)
    ) -> None:
        self._rules = _Rules(
            targets=np.array([each.selection_target for each in rules]),
            rooms=np.array([each.waiting_room for each in rules]),
            timers=np.array([each.timer_seconds for each in rules]),
            separations=np.zeros(len(rules), np.int64),
            caps=np.array([each.later_cap or _NO_CAP for each in rules]),
            holds_from=np.array([each.from_round for each in rules]),
            weights=np.array(weights, np.float64),
            offer_keys=np.array([_offer_key(seed, task) for task in range(len(rules))], np.uint64),
            return_key=stream_key(seed, Stream.RETURN),
        )
        self._round_rules = rules
        self._held = _Held(np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0))
        self._timeouts = [each.selection_timeout_seconds for each in rules]
        self._outages = rules[0].outages
        self._attempts = _Attempts.of(len(rules))
        self._by_task = np.zeros(len(rules), np.int64)
        """Number of devices that wait for each task."""
        self._waiting = Slots.of(int(self._rules.rooms.sum()), _WAITING)
        self._table = table_of(64, _ENTRY)
        self._most_entries = 0
        """Largest number of entries of the table before the next window."""
        self._arrivals = Arrivals.of(NO_CHECK_INS, len(rules))
        self._window = NO_WINDOW
        self._outage = 0
        """The next outage, or the one in progress."""
        self.down_until = 0.0

    def hold(self, task: int, held: HeldDevices) -> None:
        """Makes devices wait for a task, from the round `holds_from` on, besides those that do.

        Args:
            task: the task.
            held: the devices; one that must wait already waits until both permit it.
        """
        now = self._held
        added = (held.device_ids << np.uint64(TASK_BITS)) | np.uint64(task)
        rounds = np.concatenate([now.first_rounds, held.first_rounds])
        times = np.concatenate([now.first_times, held.first_times])
        keys, place = np.unique(np.concatenate([now.keys, added]), return_inverse=True)
        first_rounds, first_times = np.zeros(keys.size, np.int64), np.zeros(keys.size)
        np.maximum.at(first_rounds, place, rounds)
        np.maximum.at(first_times, place, times)
        self._held = _Held(keys, first_rounds, first_times)

    def start_window(self, check_ins: CheckIns, window: Window) -> None:
        """Enters a window, and forgets everything that its lists account for.

        Args:
            check_ins: first check-ins of the window.
            window: the next window.
        """
        tasks = self._by_task.size
        stays = _stays(self._table, window.number, window.start_time, tasks > 1)
        # Every device that checks in may get an entry.
        self._most_entries = int(stays.sum()) + check_ins.device_ids.size
        self._table = table_of(self._most_entries, _ENTRY, self._table, stays)
        self._arrivals = Arrivals.of(check_ins, tasks)
        self._window = window
        # Devices that still wait have no row in this window's list, but one in an earlier list.
        self._waiting.records["list_row"] = -1

    def open(self, task: int, opened: float, ready_time: float) -> None:
        """Opens selection for a round that can start from ready_time on, when the previous one has
        closed.

        Args:
            task: task of the round.
            opened: time at which the previous round started or was given up, seconds since start.
            ready_time: seconds since start.
        """
        self._attempts.ready_times[task] = ready_time
        self._attempts.is_ready[task] = False
        # No round can start before ready_time, so the wait for devices counts from then on.
        self._attempts.deadlines[task] = max(opened, ready_time) + self._timeouts[task]

    def select_from(self, task: int, time: float) -> None:
        """Sets the time from which devices may wait for a task, seconds since start; infinite once
        the task is over."""
        self._attempts.select_from[task] = time

    def advance(self, rounds: Sequence[int]) -> tuple[int, int, float]:
        """Continues until an event that the coordinator decides on.

        Args:
            rounds: rounds that are being formed, [T].

        Returns:
            The event, its task, and its time (seconds since start): the round can start (FULL),
            selection times out (TIMED_OUT), an outage begins (DOWN), or the window ends
            (EXHAUSTED). The last two are for all tasks; their task is -1.
        """
        self._attempts.rounds[:] = rounds
        # A later separation also concerns the rounds before it.
        of_rounds = zip(self._round_rules, rounds, strict=True)
        self._rules.separations[:] = [
            each.policies_at(number).separation for each, number in of_rounds
        ]
        next_outage = np.inf
        if self._outage < len(self._outages):
            next_outage = float(self._outages[self._outage, 0])
        status, task, time = _advance(
            self._arrivals,
            self._window,
            self._attempts,
            next_outage,
            self.down_until,
            self._rules,
            self._held,
            self._by_task,
            self._waiting,
            self._table,
        )
        if status == DOWN:
            self.down_until = float(self._outages[self._outage, 1])
            self._outage += 1
        return status, task, time

    def waiting(self, task: int) -> int:
        """Returns the number of devices that wait for a task now."""
        return int(self._by_task[task])

    def waiting_device_ids(self, task: int) -> UInt64Array:
        """Returns the devices that wait for a task now, in any order."""
        return self._waiting.records["device_id"][self._waiting.used[self._is_for(task)]]

    def take(self, task: int, is_taken: BoolArray | None = None) -> Selected:
        """Returns devices that wait for a task, sorted by id; they do not wait afterwards.

        Args:
            task: task for which they wait.
            is_taken: devices to take, in the order of `waiting_device_ids`; None for all.
        """
        takes = self._is_for(task)
        if is_taken is not None:
            takes[takes] = is_taken
        slots, records = self._waiting.take(takes), self._waiting.records
        self._by_task[task] -= slots.size
        slots = slots[np.argsort(records["device_id"][slots])]
        # Fancy indexing copies, so the slots may be filled while the columns are in use. Whole
        # records would be copied five times as slowly as their columns.
        return Selected(*(records[name][slots] for name in _COLUMNS))

    def _is_for(self, task: int) -> BoolArray:
        """Whether each waiting device, in the order of the slots, waits for a task."""
        return self._waiting.records["task"][self._waiting.used] == task

    def remember(
        self,
        task: int,
        device_ids: UInt64Array,
        open_times: UInt32Array,
        remembered_rounds: Int32Array,
        contributions: UInt32Array,
    ) -> None:
        """Notes the memory of devices [S] for a task, until the lists account for it.

        Args:
            task: task of the memory.
            device_ids: [S].
            open_times: [S]; time from which the task admits the device again.
            remembered_rounds: [S]; -1 if the device remembers no round.
            contributions: [S]; number of its reports that arrived in time, the last round's
                included.
        """
        # A device that waited has an entry of the first task already.
        if task > 0:
            self._most_entries += device_ids.size
            if 3 * self._most_entries // 2 >= self._table.size:
                is_used = self._table["device_id"] != EMPTY
                self._table = table_of(2 * self._most_entries, _ENTRY, self._table, is_used)
        next_window = self._window.number + 1
        _note(
            self._table,
            task,
            device_ids,
            open_times,
            remembered_rounds,
            contributions,
            next_window,
        )

    def let_go(self, selected: Selected, busy_until: Float64Array) -> None:
        """Releases waiting devices [S]: they check in again when they are free, if they can.

        Their memory must have been noted before.

        Args:
            selected: result of `take`.
            busy_until: [S]; no device checks in before.
        """
        _come_again(
            self._arrivals,
            self._window,
            self._attempts.select_from,
            self._rules.return_key,
            self._table,
            selected.device_ids,
            selected.list_rows,
            busy_until,
        )

    def state(self) -> dict[str, NDArray]:
        """Returns the whole state as named arrays, for a checkpoint between two windows."""
        # Between two windows every check-in has been processed, so no arrivals are kept.
        return {
            **prefixed("entries.", columns_of(self._table[self._table["device_id"] != EMPTY])),
            **prefixed("waiting.", columns_of(self._waiting.records[self._waiting.used])),
            **prefixed("attempts.", self._attempts._asdict()),
            "outages": np.array([self._outage, self.down_until]),
        }

    def load(self, state: dict[str, NDArray]) -> None:
        """Restores a state.

        Args:
            state: result of `state` of a selection with the same rules.
        """
        entries = entries_of(under("entries.", state), _ENTRY)
        self._table = table_of(entries.size, _ENTRY, entries)
        waiting = entries_of(under("waiting.", state), _WAITING)
        self._waiting = Slots.of(self._waiting.free.size, _WAITING, waiting, by="interval_end")
        # Their rows belonged to lists of earlier windows.
        self._waiting.records["list_row"] = -1
        self._by_task[:] = np.bincount(waiting["task"], minlength=self._by_task.size)
        self._attempts = _Attempts(**under("attempts.", state))
        self._outage, self.down_until = int(state["outages"][0]), float(state["outages"][1])


def _offer_key(seed: int, task: int) -> tuple[int, int]:
    """Returns the key of a task's draws; made like `fedray.base.rng.stream_key`."""
    word = stream_seed(seed, Stream.OFFER, task)
    return word & 0xFFFFFFFF, word >> 32


@njit(inline="always")
def _key(device, task):
    """Returns a number that only this pair of device and task has."""
    return (device << np.uint64(TASK_BITS)) | np.uint64(task)


@njit(cache=True, nogil=True)
def _stays(table, window, window_start, has_several_tasks):
    """Marks the entries that the lists of a window do not account for.

    An entry can be forgotten once two conditions hold at the window's start: the device is not
    busy, and the lists know its timer, last round and contributions, or none of these holds it
    back.
    """
    stays = np.zeros(table.size, np.bool_)
    for slot in range(table.size):
        entry = table[slot]
        if entry.device_id == EMPTY:
            continue
        is_busy = entry.busy_until > window_start
        is_known = entry.known_from <= window
        is_open = entry.open_time <= window_start
        holds_nothing = is_open and entry.last_round < 0 and entry.contributions == 0
        stays[slot] = is_busy or not (is_known or holds_nothing)
        # With several tasks only the lists count, once they know: a busy device may have lost its
        # history.
        if has_several_tasks and is_busy and is_known:
            entry.open_time = 0.0
            entry.last_round = -1
            entry.contributions = 0
    return stays


@njit(cache=True, nogil=True)
def _note(table, task, device_ids, open_times, remembered_rounds, contributions, known_from):
    for chosen in range(device_ids.size):
        key = _key(device_ids[chosen], task)
        entry = table[find(table, key)]
        entry.device_id = key
        # The latest time counts, as in the maps of the shards.
        entry.open_time = max(entry.open_time, np.float64(open_times[chosen]))
        # A task that only shares the timer notes 0 and -1, which must not overwrite known values.
        entry.contributions = max(entry.contributions, contributions[chosen])
        entry.last_round = max(entry.last_round, remembered_rounds[chosen])
        entry.known_from = known_from


@njit(cache=True, nogil=True)
def _come_again(
    arrivals, window, select_from, return_key, table, device_ids, list_rows, busy_until
):
    counts, next_times, next_rows = arrivals.counts, arrivals.next_times, arrivals.next_rows
    open_times = arrivals.open_times
    for chosen in range(device_ids.size):
        device = device_ids[chosen]
        key = _key(device, 0)
        busy = table[find(table, key)]
        busy.device_id = key
        busy.busy_until = busy_until[chosen]
        busy.is_waiting = False
        row = list_rows[chosen]
        # The others have waited since an earlier window, and have no row in this window's list.
        if row < 0:
            continue
        # The device comes as soon as one task would admit it, just as the shards draw it.
        admitted = np.inf
        for task in range(select_from.size):
            opens = select_from[task]
            if open_times.size:
                opens = max(opens, open_times[row, task])
            key = _key(device, task)
            entry = table[find(table, key)]
            if entry.device_id == key:
                opens = max(opens, entry.open_time)
            admitted = min(admitted, opens)
        free_time = max(busy_until[chosen], admitted)
        end = arrivals.interval_ends[row]
        time = next_time(return_key, window, device, end, free_time)
        if time < np.inf:
            push(counts, next_times, next_rows, time, row)


@njit(cache=True, nogil=True)
def _advance(
    arrivals, window, attempts, next_outage, down_until, rules, held, by_task, waiting, table
):
    """Goes through the window's check-ins in order of time; see `Selection.advance`."""
    # Arrays are taken out of their tuples once, and steps of every check-in only get numbers and
    # records: compiled code counts references whenever it reaches into a tuple or passes an array,
    # which made this kernel three times as slow.
    device_ids = arrivals.device_ids
    times = arrivals.times
    ends = arrivals.interval_ends
    fixed_seconds = arrivals.fixed_seconds
    training_seconds = arrivals.training_seconds
    upload_seconds = arrivals.upload_seconds
    last_rounds = arrivals.last_rounds
    timer_seconds = arrivals.timer_seconds
    contributions = arrivals.contributions
    open_times = arrivals.open_times
    counts = arrivals.counts
    next_times = arrivals.next_times
    next_rows = arrivals.next_rows
    rounds = attempts.rounds
    select_from = attempts.select_from
    is_ready = attempts.is_ready
    targets = rules.targets
    rooms = rules.rooms
    timers = rules.timers
    separations = rules.separations
    caps = rules.caps
    holds_from = rules.holds_from
    held_keys = held.keys
    first_rounds = held.first_rounds
    first_times = held.first_times
    weights = rules.weights
    offer_keys = rules.offer_keys
    waiting_counts = waiting.counts
    waiting_ends = waiting.times
    places = waiting.places
    free = waiting.free
    records = waiting.records
    tasks = targets.size
    moment, what, which = _next_moment(attempts, next_outage)
    while True:
        # The next check-in is the list's or the heap's, whichever comes first; at equal times the
        # list's.
        time = times[counts[0]] if counts[0] < times.size else window.end_time
        is_next = counts[1] > 0 and next_times[0] < time
        if is_next:
            time = next_times[0]
        # Events without a check-in, such as a timeout, may come before the next check-in.
        is_moment = moment <= time and moment < window.end_time
        # All check-ins come before the window's end, so the list is exhausted.
        if not is_moment and time >= window.end_time:
            return EXHAUSTED, -1, window.end_time
        # Devices whose interval is over make room first, since only eligible ones count.
        until = moment if is_moment else time
        while waiting_counts[1] > 0 and waiting_ends[0] <= until:
            by_task[records[places[0]].task] -= 1
            pop_slot(waiting_counts, waiting_ends, places, free)
        if is_moment:
            if what != _READY:
                return what, which, moment
            is_ready[which] = True
            if by_task[which] >= targets[which]:
                return FULL, which, moment
            moment, what, which = _next_moment(attempts, next_outage)
            continue
        if is_next:
            row = next_rows[0]
            pop(counts, next_times, next_rows)
        else:
            row = counts[0]
            counts[0] += 1
        device = device_ids[row]
        key = _key(device, 0)
        # For a device without an entry this is the empty slot for it.
        entry = table[find(table, key)]
        is_busy = entry.device_id == key and entry.busy_until > time
        chosen, best, free_time = np.int64(-1), -1.0, time
        chosen_count = np.uint32(0)
        if time < down_until:
            # While the server is down no device is taken, whatever the tasks want.
            free_time = down_until
        # A waiting device may be released at any moment, so the time when it is free is unknown.
        elif not (is_busy and entry.is_waiting):
            admitted = np.inf
            for task in range(tasks):
                noted = entry
                if task > 0:
                    key = _key(device, task)
                    noted = table[find(table, key)]
                opens = select_from[task]
                if open_times.size:
                    opens = max(opens, open_times[row, task])
                last_round = np.int64(-1)
                if last_rounds.size:
                    last_round = np.int64(last_rounds[row, task])
                # The entry may hold a round that was settled after the shards had listed the
                # window.
                noted_contributions = np.uint32(0)
                if noted.device_id == key:
                    opens = max(opens, noted.open_time)
                    last_round = max(last_round, np.int64(noted.last_round))
                    noted_contributions = noted.contributions
                first_round = np.int64(0)
                if rounds[task] >= holds_from[task]:
                    if held_keys.size:
                        key = _key(device, task)
                        place = np.searchsorted(held_keys, key)
                        if place < held_keys.size and held_keys[place] == key:
                            first_round = first_rounds[place]
                            opens = max(opens, first_times[place])
                    if contributions.size:
                        count = max(noted_contributions, contributions[row, task])
                        # A device at the cap never comes again, so no later check-in is drawn.
                        if count >= caps[task]:
                            opens = np.inf
                # If no task takes the device now, it may come when the first of its timers opens.
                admitted = min(admitted, opens)
                if is_busy or opens > time or by_task[task] >= rooms[task]:
                    continue
                if rounds[task] < first_round:
                    continue
                separation = separations[task]
                if separation and last_round >= 0 and rounds[task] - last_round < separation:
                    continue
                # The smallest of exponentials with rates w belongs to task t with probability w_t /
                # sum w. A single task needs no draw.
                if chosen >= 0:
                    if best < 0.0:
                        best = _score(offer_keys, weights, chosen, device, window, time)
                    score = _score(offer_keys, weights, task, device, window, time)
                    if score >= best:
                        continue
                    best = score
                chosen, chosen_count = task, noted_contributions
            # It was turned away and may try again at once, or comes when it is free.
            free_time = max(time, admitted)
            if is_busy:
                free_time = max(free_time, entry.busy_until)
        if chosen < 0:
            time = next_time(rules.return_key, window, device, ends[row], free_time)
            if time < np.inf:
                push(counts, next_times, next_rows, time, row)
            continue
        entry.device_id = _key(device, 0)
        # Unless it is selected or released before, it leaves when its interval ends.
        entry.busy_until = ends[row]
        entry.is_waiting = True
        waiting_counts[0] -= 1
        place = free[waiting_counts[0]]
        record = records[place]
        record.device_id = device
        record.task = chosen
        record.check_in_time = time
        record.interval_end = ends[row]
        record.fixed_seconds = fixed_seconds[row, chosen]
        record.training_seconds = training_seconds[row, chosen]
        # The device's own values count; if the lists have none, all keep the timer, uploads do not
        # matter and nothing is counted.
        record.upload_seconds = 0.0
        if upload_seconds.size:
            record.upload_seconds = upload_seconds[row, chosen]
        record.timer_seconds = timers[chosen]
        if timer_seconds.size:
            record.timer_seconds = timer_seconds[row, chosen]
        record.contributions = 0
        if contributions.size:
            record.contributions = max(chosen_count, contributions[row, chosen])
        record.list_row = row
        push(waiting_counts, waiting_ends, places, ends[row], place)
        by_task[chosen] += 1
        if is_ready[chosen] and by_task[chosen] >= targets[chosen]:
            return FULL, chosen, time


@njit(forceinline=True)
def _next_moment(attempts, next_outage):
    """Returns the time, kind and task of selection's next change without a check-in; at equal times
    the first task's."""
    moment, what, which = np.inf, TIMED_OUT, -1
    for task in range(attempts.rounds.size):
        # A task that is over waits for nothing.
        if attempts.select_from[task] == np.inf:
            continue
        is_ready = attempts.is_ready[task]
        own = attempts.deadlines[task] if is_ready else attempts.ready_times[task]
        if own < moment:
            moment, what, which = own, TIMED_OUT if is_ready else _READY, task
    # At equal times the outage comes first, so that no round starts in it.
    if next_outage <= moment:
        return next_outage, DOWN, -1
    return moment, what, which


@njit(forceinline=True)
def _score(offer_keys, weights, task, device, window, time):
    """Returns the score of a task for a device that several tasks would take; the smallest score
    wins."""
    # The time is part of the address, because a device may be offered twice in a window.
    address = address_within(time, window.start_time, window.end_time)
    word, _, _, _ = draw(offer_keys[task], device, window.number, address)
    return exponential(word) / weights[task]
