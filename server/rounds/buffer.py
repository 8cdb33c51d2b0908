"""Buffers of buffered asynchronous rounds, compiled: which devices train, and whose reports are in
the buffer (FedBuff, Nguyen et al. 2022, Algorithm 1; Papaya, Huba et al. 2022, section 4).
tests/server/test_buffer.py compares it with a readable twin.

Check-ins come in order of time. A free device that checks in while fewer than `concurrency` train
starts at once from the newest version of the model. Its fate is drawn then: it reports, or it
fails, or its interval ends first. A report is accepted if at most `max_staleness` versions were
released since its device started, and turned away otherwise. The buffer is full with its
report_goal-th accepted report. A device has at most one accepted report in a buffer: it is then
turned away until the buffer is released.

The memory that attempts leave is decided in Python, for many devices at once: at the latest when
one of them checks in again, and when the buffer is full.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.base.arrays import BoolArray, Float64Array, Int64Array, UInt32Array
from fedray.base.compiled import njit
from fedray.base.errors import InputError
from fedray.base.rng import Key, address_within, draw
from fedray.scenario import Scenario
from fedray.trace.checkpoints import prefixed, under
from fedray.wire.device_classes import class_of
from fedray.wire.messages import NO_CHECK_INS, NO_WINDOW, CheckIns, Outcome, Settlement, Window
from ..policies.factory import policies_of
from ..policies.policy import Attempt, Policies
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
from .rounds import FateModel, fate, outages_of

EXHAUSTED, RELEASED = 0, 1
_UNSETTLED = 2
"""Results of `Buffer.advance`; inside the kernel also the need to settle devices first."""
_ACCEPTED = np.uint8(Outcome.ACCEPTED)
_LATE = np.uint8(Outcome.LATE)
_DROPPED = np.uint8(Outcome.DROPPED)
_FAILED = np.uint8(Outcome.FAILED)
_NOT_YET = np.iinfo(np.int32).max
"""First window whose lists account for an entry, as long as it is unknown."""
_LEAST_ROOM = 1024
"""Least number of devices that may end before they are settled."""

_ENTRY = np.dtype(
    [
        ("device_id", np.uint64),
        ("busy_until", np.float64),
        ("open_time", np.float64),
        ("known_from", np.int32),
        ("last_round", np.int32),
        ("accepted_round", np.int32),
        ("contributions", np.uint32),
        ("is_unsettled", np.bool_),
    ],
    align=True,
)
"""An entry of the hash table of devices that the shards' lists do not account for.

busy_until: end of its training.
open_time: time at which the timer opens.
known_from: first window whose lists account for timer, last round and contributions.
last_round: last round that it remembers; -1 for none.
accepted_round: last round that accepted its report; -1 for none.
contributions: number of accepted reports.
is_unsettled: whether its memory of a started attempt is still to be decided.
"""
_STARTED = np.dtype(
    [
        ("device_id", np.uint64),
        ("start_time", np.float64),
        ("end_time", np.float64),
        ("upload_time", np.float64),
        ("timer_seconds", np.float64),
        ("version", np.uint32),
        ("contributions", np.uint32),
        ("outcome", np.uint8),
    ],
    align=True,
)
"""A device that was started. Its outcome is ACCEPTED as long as it trains and will report.

end_time: end of its attempt, whatever the outcome.
upload_time: time at which its upload would start.
version: version of the model that it was sent.
contributions: number of reports accepted before.
"""


@dataclass(frozen=True, slots=True)
class BufferRules:
    """The scenario's rules of buffered rounds."""

    report_goal: int
    """Number of accepted reports of a buffer."""
    concurrency: int
    """Largest number of devices in training."""
    max_staleness: int
    """Largest staleness of an accepted report."""
    timer_seconds: float
    """Time that a device keeps away after its timer starts, unless it states its own."""
    policies: Policies
    """Memory of devices after an attempt."""
    fates: FateModel
    """Distribution of the course of attempts."""
    outages: Float64Array
    """[O, 2]; start and end of each, seconds since start, in order and disjoint."""

    @classmethod
    def of(cls, scenario: Scenario) -> "BufferRules":
        """Returns the rules of a scenario.

        Raises:
            InputError: its rounds are not buffered.
        """
        buffer = scenario.rounds.buffer
        if buffer is None:
            raise InputError("rounds.buffer is none, so rounds are not buffered; add the table")
        return cls(
            report_goal=scenario.rounds.report_goal,
            concurrency=buffer.concurrency,
            max_staleness=buffer.max_staleness,
            timer_seconds=scenario.participation.timer_seconds,
            policies=policies_of(scenario),
            fates=FateModel.of(scenario),
            outages=outages_of(scenario),
        )


class _Rules(NamedTuple):
    """`BufferRules` for compiled code; separation and return_key as in selection.py."""

    report_goal: int
    concurrency: int
    max_staleness: int
    timer_seconds: float
    separation: int
    return_key: Key
    fates: FateModel


class _Ended(NamedTuple):
    """Devices whose work has ended and whose memory is still to be decided, in order of time."""

    counts: Int64Array
    """[number of such devices, number of reports in the buffer]."""
    records: NDArray[np.void]
    """[room] records of `_STARTED`."""


class _Settled(NamedTuple):
    """Devices [S] of the present buffer whose attempt is over, and their memory of it; the columns
    are as in `fedray.wire.messages.Settlement`."""

    rows: NDArray[np.void]
    open_times: UInt32Array
    remembers_round: BoolArray
    forget_times: UInt32Array


class Buffer:
    """The server's view of the devices that train, of those that are not free, and of the present
    buffer.

    Args:
        rules: rules of the rounds.
        return_key: key of the draws of next check-ins.
    """

    def __init__(self, rules: BufferRules, return_key: Key) -> None:
        self._policies = rules.policies
        self._rules = _Rules(
            report_goal=rules.report_goal,
            concurrency=rules.concurrency,
            max_staleness=rules.max_staleness,
            timer_seconds=rules.timer_seconds,
            separation=rules.policies.separation,
            return_key=return_key,
            fates=rules.fates,
        )
        self._outages = rules.outages
        self._training = Slots.of(rules.concurrency, _STARTED)
        room = max(_LEAST_ROOM, rules.concurrency)
        self._ended = _Ended(np.zeros(2, np.int64), np.zeros(room, _STARTED))
        self._table = table_of(64, _ENTRY)
        self._arrivals = Arrivals.of(NO_CHECK_INS)
        self._window = NO_WINDOW
        self._round_index = 0
        self._settled: list[_Settled] = []

    def start_window(self, check_ins: CheckIns, window: Window) -> None:
        """Moves to a window, and forgets entries that its lists account for.

        Args:
            check_ins: the window's first check-ins.
            window: the next window.
        """
        stays = _stays(self._table, window.number, window.start_time, self._round_index)
        # Every device that checks in may get an entry, so the table never grows within a window.
        most_entries = int(stays.sum()) + check_ins.device_ids.size
        self._table = table_of(most_entries, _ENTRY, self._table, stays)
        self._arrivals = Arrivals.of(check_ins)
        self._window = window

    def advance(self) -> tuple[int, float]:
        """Continues until the buffer is full (RELEASED) or the window ends (EXHAUSTED).

        Returns:
            The event, and its time, seconds since start.
        """
        while True:
            status, time = _advance(
                self._arrivals,
                self._window,
                self._round_index,
                self._outages,
                self._rules,
                self._training,
                self._ended,
                self._table,
            )
            # Devices that have ended stay unsettled until one of them checks in, or the buffer is
            # full.
            if status == EXHAUSTED:
                return status, time
            self._settle()
            if status == RELEASED:
                return status, time

    def release(self) -> Settlement:
        """Empties the full buffer, and moves to the next one: a version is released.

        Returns:
            Every device whose attempt ended while the buffer was filled, in order of (device,
            check-in): the accepted ones, those whose report was too stale (late), and those that
            failed or dropped out. A device may have several rows, of which one is accepted.
        """
        settled, self._settled = self._settled, []
        rows = np.concatenate([each.rows for each in settled])
        # By device and not in order of time: the trace has this order, and it must not reveal how
        # often Python settled.
        order = np.lexsort((rows["start_time"], rows["device_id"]))
        forget_times = np.concatenate([each.forget_times for each in settled])
        rows = rows[order]
        is_report = (rows["outcome"] == _ACCEPTED) | (rows["outcome"] == _LATE)
        settlement = Settlement(
            attempt=self._round_index,
            round_index=self._round_index,
            device_ids=rows["device_id"].copy(),
            check_in_times=rows["start_time"].copy(),
            report_times=np.where(is_report, rows["end_time"], np.nan),
            outcomes=rows["outcome"].copy(),
            open_times=np.concatenate([each.open_times for each in settled])[order],
            remembers_round=np.concatenate([each.remembers_round for each in settled])[order],
            forget_times=forget_times[order] if forget_times.size else forget_times,
            versions=rows["version"].copy(),
        )
        # The next window's lists account for them.
        _set_known(self._table, settlement.device_ids, self._window.number + 1)
        self._ended.counts[1] = 0
        self._round_index += 1
        return settlement

    def state(self) -> dict[str, NDArray]:
        """Returns the whole state as named arrays, for a checkpoint between two windows."""
        # Settling first leaves no ended rows in the state.
        self._settle()
        entries = self._table[self._table["device_id"] != EMPTY]
        settled = self._settled
        rows = np.concatenate([np.empty(0, _STARTED), *(each.rows for each in settled)])
        return {
            **prefixed("entries.", columns_of(entries)),
            **prefixed("training.", columns_of(self._training.records[self._training.used])),
            **prefixed("settled.", columns_of(rows)),
            "open_times": _joined([each.open_times for each in settled], np.uint32),
            "remembers_round": _joined([each.remembers_round for each in settled], np.bool_),
            "forget_times": _joined([each.forget_times for each in settled], np.uint32),
            "counts": np.array([self._round_index, self._ended.counts[1]]),
        }

    def load(self, state: dict[str, NDArray]) -> None:
        """Restores a state.

        Args:
            state: result of `state` of a buffer with the same rules.
        """
        self._round_index, in_buffer = state["counts"].tolist()
        entries = entries_of(under("entries.", state), _ENTRY)
        self._table = table_of(entries.size, _ENTRY, entries)
        training = entries_of(under("training.", state), _STARTED)
        size = self._rules.concurrency
        self._training = Slots.of(size, _STARTED, training, by="end_time")
        self._ended.counts[:] = 0, in_buffer
        rows = entries_of(under("settled.", state), _STARTED)
        memory = (state[name] for name in _Settled._fields[1:])
        self._settled = [_Settled(rows, *memory)] if rows.size else []

    def _settle(self) -> None:
        """Decides the memory of ended devices; the time of the decision does not matter."""
        ended = self._ended
        rows = ended.records[: ended.counts[0]].copy()
        ended.counts[0] = 0
        if not rows.size:
            return
        is_accepted = rows["outcome"] == _ACCEPTED
        has_reported = is_accepted | (rows["outcome"] == _LATE)
        # The server only aborts uploads of stale reports, which it would reject.
        is_lost_on_the_way = ~has_reported & (rows["upload_time"] < rows["end_time"])
        attempt = Attempt(
            started=rows["start_time"],
            device_ids=rows["device_id"],
            report_times=np.where(has_reported, rows["end_time"], np.inf),
            upload_times=rows["upload_time"],
            has_reported=has_reported,
            has_arrived=is_accepted,
            has_uploaded=is_accepted | is_lost_on_the_way,
            timer_seconds=rows["timer_seconds"],
            contributions=rows["contributions"],
        )
        open_times = self._policies.open_times(attempt)
        remembers = self._policies.remembers_round(attempt)
        forget_times = self._policies.forget_times(attempt)
        last_rounds = np.where(remembers, self._round_index, -1).astype(np.int32)
        contributions = rows["contributions"] + is_accepted.astype(np.uint32)
        _note(self._table, rows["device_id"], open_times, last_rounds, contributions)
        self._settled.append(_Settled(rows, open_times, remembers, forget_times))


def _joined(parts: list[NDArray], kind: type) -> NDArray:
    return np.concatenate([np.empty(0, kind), *parts])


@njit(cache=True, nogil=True)
def _stays(table, window, window_start, round_index):
    """Marks the entries that the lists of a window do not account for."""
    stays = np.zeros(table.size, np.bool_)
    for slot in range(table.size):
        entry = table[slot]
        if entry.device_id == EMPTY:
            continue
        is_known = entry.known_from <= window
        is_open = entry.open_time <= window_start
        is_in_buffer = entry.accepted_round == round_index
        remembers_nothing = entry.last_round < 0 and entry.contributions == 0
        holds_nothing = is_open and remembers_nothing and not is_in_buffer
        stays[slot] = entry.is_unsettled or not (is_known or holds_nothing)
    return stays


@njit(cache=True, nogil=True)
def _note(table, device_ids, open_times, last_rounds, contributions):
    """Enters the devices' memory of an attempt."""
    for settled in range(device_ids.size):
        entry = table[find(table, device_ids[settled])]
        entry.is_unsettled = False
        entry.open_time = max(entry.open_time, np.float64(open_times[settled]))
        entry.last_round = max(entry.last_round, last_rounds[settled])
        entry.contributions = contributions[settled]


@njit(cache=True, nogil=True)
def _set_known(table, device_ids, window):
    """Marks devices as covered by the shards' lists from `window` on, unless they have started
    again."""
    for settled in range(device_ids.size):
        entry = table[find(table, device_ids[settled])]
        # A device that has started again holds news that the next lists lack: its entry stays.
        if entry.device_id == device_ids[settled] and not entry.is_unsettled:
            entry.known_from = window


@njit(cache=True, nogil=True)
def _advance(arrivals, window, round_index, outages, rules, training, ended, table):
    """See `Buffer.advance`: goes through check-ins and ends of work in order of time."""
    # Arrays are taken out of their tuples once: see server/rounds/selection.py.
    device_ids = arrivals.device_ids
    times = arrivals.times
    ends = arrivals.interval_ends
    fixed_seconds = arrivals.fixed_seconds
    training_seconds = arrivals.training_seconds
    uploads = arrivals.upload_seconds
    last_rounds = arrivals.last_rounds
    timers = arrivals.timer_seconds
    reports = arrivals.contributions
    counts = arrivals.counts
    next_times = arrivals.next_times
    next_rows = arrivals.next_rows
    counts_of_ended = ended.counts
    ended_records = ended.records
    slot_counts = training.counts
    end_times = training.times
    places = training.places
    free = training.free
    records = training.records
    fate_key, speed_within, classes, failure_probabilities = rules.fates
    class_key, class_edges = classes
    while True:
        # The next check-in is the list's or the heap's, whichever comes first; at equal times the
        # list's.
        time = times[counts[0]] if counts[0] < times.size else window.end_time
        is_next = counts[1] > 0 and next_times[0] < time
        if is_next:
            time = next_times[0]
        # A device that is done makes room before a check-in at the same time is processed. A device
        # that ends after the window waits for the next window, since check-ins before that end are
        # not listed yet.
        if slot_counts[1] > 0 and end_times[0] <= time and end_times[0] < window.end_time:
            done = records[places[0]]
            # The room for ended attempts is full. Python settles them, and calls again.
            if counts_of_ended[0] == ended_records.size:
                return _UNSETTLED, done.end_time
            if done.outcome == _ACCEPTED:
                # The analysis of FedBuff assumes that staleness is bounded; here the server
                # enforces it.
                # Staleness counts the versions that were released while the device trained.
                if round_index - np.int64(done.version) > rules.max_staleness:
                    done.outcome = _LATE
                else:
                    counts_of_ended[1] += 1
                    table[find(table, done.device_id)].accepted_round = round_index
            ended_records[counts_of_ended[0]] = done
            counts_of_ended[0] += 1
            end_time = done.end_time
            pop_slot(slot_counts, end_times, places, free, records)
            if counts_of_ended[1] == rules.report_goal:
                return RELEASED, end_time
            continue
        # All check-ins come before the window's end, so the list is exhausted.
        if time >= window.end_time:
            return EXHAUSTED, window.end_time
        row = next_rows[0] if is_next else counts[0]
        device = device_ids[row]
        entry = table[find(table, device)]
        has_entry = entry.device_id == device
        free_time = _down_until(outages, time)
        if free_time < 0.0 and has_entry:
            if entry.busy_until > time:
                free_time = entry.busy_until
            elif entry.is_unsettled:
                # The check-in stays in place until the device's memory is decided.
                return _UNSETTLED, time
            elif entry.open_time > time:
                free_time = entry.open_time
        if is_next:
            pop(counts, next_times, next_rows)
        else:
            counts[0] += 1
        if free_time < 0.0:
            # It starts, or is turned away and may try again at once.
            free_time = time
            last_round = np.int64(last_rounds[row, 0]) if last_rounds.size else -1
            if has_entry:
                last_round = max(last_round, np.int64(entry.last_round))
            is_near = last_round >= 0 and round_index - last_round < rules.separation
            is_in_buffer = has_entry and entry.accepted_round == round_index
            # A second report in one buffer would double what a device can change in one release,
            # which every theorem about rounds counts once.
            if not is_near and not is_in_buffer and slot_counts[0] > 0:
                # The device's own values count; if the lists have none, all keep the timer, uploads
                # do not matter and nothing is counted.
                contributions = np.uint32(0)
                if reports.size:
                    contributions = max(entry.contributions, reports[row, 0])
                upload_seconds = np.float64(uploads[row, 0]) if uploads.size else 0.0
                slot_counts[0] -= 1
                place = free[slot_counts[0]]
                started = records[place]
                started.device_id = device
                started.start_time = time
                started.timer_seconds = timers[row, 0] if timers.size else rules.timer_seconds
                started.version = round_index
                started.contributions = contributions
                fixed = np.float64(fixed_seconds[row, 0])
                trains = np.float64(training_seconds[row, 0])
                # A device may start several times in a window, so the window is no unique address.
                address = address_within(time, window.start_time, window.end_time)
                words = draw(fate_key, device, window.number, address)
                fails = failure_probabilities[class_of(class_key, class_edges, device)]
                work_seconds, failure_seconds = fate(speed_within, fails, words, fixed, trains)
                started.upload_time = time + work_seconds - upload_seconds
                _decide(started, work_seconds, failure_seconds, ends[row], outages)
                entry.device_id = device
                entry.busy_until = started.end_time
                entry.is_unsettled = True
                # No list accounts for it before its buffer is released, at an unknown time.
                entry.known_from = _NOT_YET
                entry.contributions = contributions
                free_time = started.end_time
                end_time = started.end_time
                push(slot_counts, end_times, places, end_time, place, records)
        # Whatever its outcome, the device comes again once it is free, if its interval lasts.
        time = next_time(rules.return_key, window, device, ends[row], free_time)
        if time < np.inf:
            push(counts, next_times, next_rows, time, row)


@njit(forceinline=True)
def _down_until(outages, time):
    """Returns the end of the outage in progress at a time; -1 without an outage."""
    for outage in range(outages.shape[0]):
        if outages[outage, 0] <= time < outages[outage, 1]:
            return outages[outage, 1]
    return -1.0


@njit(forceinline=True)
def _decide(started, work_seconds, failure_seconds, interval_end, outages):
    """Returns the end and the outcome of a device's attempt, as server/rounds/rounds.py resolves
    it."""
    report_time = started.start_time + work_seconds
    failure_time = started.start_time + failure_seconds
    # A report to a server that is down is lost and not sent again, so the device fails.
    if _down_until(outages, report_time) >= 0.0:
        failure_time = min(failure_time, report_time)
        report_time = np.inf
    if failure_time < report_time and failure_time <= interval_end:
        started.end_time = failure_time
        started.outcome = _FAILED
    elif report_time <= interval_end:
        started.end_time = report_time
        started.outcome = _ACCEPTED
    else:
        started.end_time = interval_end
        started.outcome = _DROPPED
