"""PopulationShard: a contiguous range of device blocks that answers the server. Plain Python;
clients/host.py puts several of them on a node."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedray.base.arrays import (
    BoolArray,
    Float32Array,
    Float64Array,
    Int64Array,
    UInt8Array,
    UInt16Array,
    UInt32Array,
    UInt64Array,
)
from fedray.base.blocks import BLOCK_DEVICES, part_ranges
from fedray.base.rng import Stream, stream_key
from fedray.scenario import Scenario
from fedray.scenario.participation import EVERYBODY
from fedray.trace.writer import encode_part, write_part
from fedray.wire.device_classes import DeviceClasses, counts_by_class
from fedray.wire.history import HistoryLosses, last_loss_before, losses_between
from fedray.wire.members import are_members
from fedray.wire.messages import (
    Census,
    CheckInOrder,
    CheckIns,
    ClassCounts,
    Losses,
    Settlement,
    ShardPart,
)
from fedray.wire.owners import OwnersOfDevices, owners_on
from .availability.intervals import Intervals, joined
from .availability.model import Listing
from .census import CensusSample, Remembered
from .check_in import (
    CheckInProcess,
    FirstCheckIns,
    ListedIntervals,
    bits_of,
    draw_again,
    draw_candidates,
    enumerate_check_ins,
    first_of_each_interval,
)
from .data.factory import source_of
from .device_map import DeviceMap
from .eligibility import Eligibility
from .latency import LatencyModel, upload_seconds, work_seconds
from .population import (
    DeviceModel,
    TimerHabits,
    joined_before,
    joined_in_block,
    present_between,
    timer_seconds_of,
    usable_among,
)
from .rows import RowStore

KNOWN_BYTES = 160 * 2**20
"""Memory of a shard for the constant data of devices, so that it is not drawn at every listing."""

WORK_BYTES = 96 * 2**20
"""Largest memory of a shard for the work times of devices. A device checks in several times, but
its work time is drawn once."""

_WHOLE_BLOCK = np.arange(BLOCK_DEVICES, dtype=np.uint16)


@dataclass(frozen=True, slots=True)
class _Listed:
    """Check-ins of a window in order of (time, device), and the work of their devices.

    first: first check-ins of all intervals looked at.
    entries: [A]; positions of the check-ins among them.
    fixed_seconds, training_seconds: [A]; see `fedray.clients.latency.work_seconds`.
    """

    first: FirstCheckIns
    entries: Int64Array
    fixed_seconds: Float32Array
    training_seconds: Float32Array

    def take(self, chosen: NDArray) -> "_Listed":
        """Some of the check-ins, in the same order: by positions that rise, or a mask."""
        return _Listed(
            self.first,
            self.entries[chosen],
            self.fixed_seconds[chosen],
            self.training_seconds[chosen],
        )


@dataclass(frozen=True, slots=True)
class _Prepared:
    """Check-ins of a window as far as they are known before the previous window is settled.

    order: order for which they were drawn.
    listed: the check-ins.
    """

    order: CheckInOrder
    listed: _Listed

    def is_for(self, order: CheckInOrder) -> bool:
        """Returns whether an order is the same except for later settlements."""
        # These two change while the window is prepared, and neither affects its draws.
        mine = replace(self.order, settlements=(), rounds=())
        return mine == replace(order, settlements=(), rounds=())


class PopulationShard:
    """Devices [first_device, end_device) of a scenario.

    Its state is the memory of devices that took part (the time at which their timer opens; with a
    round separation, their last round; with a cap, their number of participations; with losses of
    history, the time of the loss), the intervals of the period while check-ins are enumerated, and
    the rows for the trace, on disk. Everything else is derived. Windows are requested in order; the
    present one may be requested again.

    A device reports its memory at its first check-in of a window.

    Args:
        scenario: source of the devices.
        first_device: the first device, at the start of a block.
        end_device: the end of the devices.
        like: a shard of the same devices whose scenario has no rules of participation, with which
            this one shares common data.
    """

    def __init__(
        self,
        scenario: Scenario,
        first_device: int,
        end_device: int,
        like: "PopulationShard | None" = None,
    ) -> None:
        self.first_device, self.end_device = first_device, end_device
        self._devices = DeviceModel.of(scenario)
        self._classes = DeviceClasses.of(scenario)
        self._owners = OwnersOfDevices.of(scenario)
        self._eligibility = like._eligibility if like else Eligibility.of(scenario, first_device)
        self._availability = self._eligibility.availability
        self._presence = self._eligibility.presence
        self._timer_habits = TimerHabits.of(scenario)
        # Shards need the data too: the number of examples on a device decides how long it works.
        self._data = source_of(scenario)
        self._latency = LatencyModel.of(scenario, self._data)
        # Each sampler has a stream of its own, because their addresses would collide in one.
        self._check_in_key = stream_key(scenario.seed, Stream.CHECK_IN)
        self._thinning_key = stream_key(scenario.seed, Stream.THINNING)
        participation = scenario.participation
        self._separation = participation.separation
        self._uploads_are_stored = scenario.rounds.uploads is not None
        self._is_capped = participation.max_participations is not None
        self._counts_uploads = participation.counts_uploads
        self._scenario = scenario
        self._least_examples = participation.min_example_count
        self._leaves_out = bool(self._least_examples) or participation.members != EVERYBODY
        self._losses = HistoryLosses.of(scenario)
        self._young_seconds = participation.young_history_seconds
        """Seconds that a device waits after its history began."""
        self._can_be_young_again = self._young_seconds > 0 and participation.forgets_noticeably
        self._open_times = DeviceMap(end_device - first_device)
        """Time at which each device's timer opens, whole seconds since start."""
        self._last_rounds = DeviceMap(end_device - first_device)
        """Last round + 1; filled only if rounds must be separated."""
        self._contributions = DeviceMap(end_device - first_device)
        """Number of reports that arrived in time; filled only with a cap."""
        self._forgotten = DeviceMap(end_device - first_device)
        """Number of these reports before the last loss of the device's history."""
        self._forget_times = DeviceMap(end_device - first_device)
        """Time at which each device loses its memory, whole seconds; 0 for never."""
        self._remembered = Remembered(self._open_times, self._last_rounds, self._forget_times)
        self._members: dict[int, tuple[UInt16Array, Any]] = {}
        self._known_room = KNOWN_BYTES
        devices = end_device - first_device
        self._known_work = np.zeros((devices, 2), np.float32) if 8 * devices <= WORK_BYTES else None
        """Fixed and training seconds of the work of devices; 0 until drawn. A device's two values
        are adjacent, because they are read together from random places in memory. Unwritten pages
        take no memory."""
        self._prepared: _Prepared | None = None
        self._moved: list[Int64Array] = []
        """Positions of devices whose timers were started since the last report to `_listed`."""
        self._listed: ListedIntervals | None = None
        sample = like._census if like else CensusSample.of(scenario, self._eligibility, end_device)
        if self._leaves_out:
            sample = sample.among(self._may_serve(sample.device_ids))
        self._census = sample
        self._settled = -1
        self._rows = RowStore(has_versions=scenario.rounds.mode == "buffered")
        self._parts = part_ranges(scenario.device_ids, first_device, end_device)

    def prepare(self, order: CheckInOrder) -> None:
        """Prepares a window before the one in progress is settled. It changes no answer.

        Args:
            order: order of the window, without settlements.
        """
        self._prepared = self._prepare(order)

    def check_ins(self, order: CheckInOrder) -> CheckIns:
        """Applies the order's settlements, then lists its window's first check-ins."""
        # Settlements come first: timers started since then decide which devices may check in.
        self.settle(order.settlements)
        # Settling changes its arrays in place, so it is used for one answer only.
        prepared, self._prepared = self._prepared, None
        if prepared is None or not prepared.is_for(order):
            prepared = self._prepare(order)
        listed = (
            self._settle_enumerated(prepared)
            if order.is_enumerated
            else self._settle_thinned(prepared)
        )
        return self._answer(self._trusted(listed), self._take_census(order))

    def check_ins_at(self, first: FirstCheckIns, order: CheckInOrder) -> CheckIns:
        """Returns the reports of the shard's devices at check-ins that another shard listed,
        whether or not the rules of this scenario admit them; `open_times` has the times from which
        they do.

        Args:
            first: the check-ins [A], in order of (time, device).
            order: order of the window, whose settlements were applied.
        """
        listed = self._with_work(first, np.arange(first.local.size))
        answer = self._answer(listed, self._take_census(order))
        return replace(answer, open_times=self._admission_times(first.local, first.times))

    def open_times_of(self, device_ids: UInt64Array) -> UInt32Array:
        """Returns the times at which the timers of devices [S] open, in whole seconds since start;
        0 for a device whose timer was never started."""
        return self._open_times.get((device_ids - np.uint64(self.first_device)).astype(np.int64))

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """Starts timers and keeps the rows for the trace.

        Args:
            settlements: settlements in order of attempt; earlier ones are skipped.
        """
        for settlement in settlements:
            if settlement.attempt <= self._settled:
                continue
            self._settled = settlement.attempt
            local = (settlement.device_ids - np.uint64(self.first_device)).astype(np.int64)
            self._open_times.raise_to(local, settlement.open_times)
            # Listed intervals carry their own open times, which must be updated.
            if self._listed is not None:
                self._moved.append(local[settlement.open_times > 0])
            # A round that draws stored uploads does not involve their devices.
            if settlement.is_of_uploads == self._uploads_are_stored:
                self._remember(local, settlement)
            # An attempt may have selected none of this shard's devices.
            if local.size and not settlement.is_of_uploads:
                self._rows.add(settlement)

    def _remember(self, local: Int64Array, settlement: Settlement) -> None:
        """Keeps last rounds and counts of devices, by position, if a policy needs them."""
        # Reports of abandoned rounds count too: the device cannot know the fate of its report.
        counted = local[settlement.has_arrived]
        if self._is_capped:
            is_lost = self._has_forgotten(
                counted, settlement.check_in_times[settlement.has_arrived]
            )
            # Maps keep the largest value of each device, so a count cannot return to zero. Lost
            # participations are counted separately, and `_counts` subtracts them.
            lost = counted[is_lost]
            self._forgotten.raise_to(lost, self._contributions.get(lost))
            counts = self._contributions.get(counted) + np.uint32(1)
            self._contributions.raise_to(counted, counts)
        if self._separation:
            kept = local[settlement.remembers_round]
            # Maps hold 0 for none, so round 0 is kept as 1.
            number = np.full(kept.size, settlement.round_index + 1, np.uint32)
            self._last_rounds.raise_to(kept, number)
        if self._losses.happen and (self._is_capped or self._separation):
            # Only a device that stores something can lose it.
            is_written = settlement.has_arrived | settlement.remembers_round
            self._forget_times.raise_to(local[is_written], settlement.forget_times[is_written])

    def _has_forgotten(self, local: Int64Array, times: Float64Array) -> BoolArray:
        """Returns whether devices, by their positions, have lost their memory at a time [S]."""
        if not self._losses.happen:
            return np.zeros(local.size, np.bool_)
        forget_times = self._forget_times.get(local)
        return (forget_times > 0) & (forget_times <= times)

    def _prepare(self, order: CheckInOrder) -> "_Prepared":
        return self._enumerate(order) if order.is_enumerated else self._thin(order)

    def _process(self, order: CheckInOrder) -> CheckInProcess:
        key = self._check_in_key if order.is_enumerated else self._thinning_key
        return CheckInProcess.of(order.window, key, self.first_device)

    def _enumerate(self, order: CheckInOrder) -> "_Prepared":
        """Returns check-ins from the intervals of the period, which are listed on first use."""
        window = order.window
        if self._listed is None or not self._listed.covers(window.number):
            self._forget_listed()  # its memory is free before there are others
            self._listed = self._list_period(order)
        self._listed.enter(window, self._open_times, self._take_moved())
        first, entries = enumerate_check_ins(self._listed.active, self._process(order))
        return _Prepared(order, self._with_work(first, entries))

    def _list_period(self, order: CheckInOrder) -> ListedIntervals:
        window = order.window
        seconds = order.list_until_time - window.start_time
        # The quotient is whole except for the rounding of float times.
        windows = round(seconds / (window.end_time - window.start_time))
        intervals = self._list_intervals(order)
        return ListedIntervals(intervals, order, window.number + windows)

    def _settle_enumerated(self, prepared: "_Prepared") -> "_Listed":
        """Draws again for devices whose timer was started since the window was prepared."""
        before, order = prepared.listed, prepared.order
        listed, moved = self._listed, self._take_moved()
        assert listed is not None
        is_new, has_new = draw_again(
            before.first, listed.active, self._process(order), self._open_times, moved
        )
        # A new check-in may lie anywhere among the others; if some only drop out, the order stays.
        if has_new:
            drawn = np.flatnonzero(before.first.times < np.inf)
            return self._with_work(before.first, before.first.in_order(drawn, order.window))
        return before.take(~is_new[before.entries])

    def _forget_listed(self) -> None:
        self._listed, self._moved = None, []

    def _take_moved(self) -> UInt8Array:
        """Returns the devices whose timers were started since the last call; only enumeration
        asks."""
        moved, self._moved = self._moved, []
        bits = bits_of(
            np.concatenate([np.empty(0, np.int64), *moved]), self.end_device - self.first_device
        )
        if self._listed is not None:
            self._listed.note(bits)
        return bits

    def _with_work(self, first: FirstCheckIns, entries: Int64Array) -> _Listed:
        local = first.local[entries]
        if self._known_work is None:
            return _Listed(first, entries, *self._work_of(local))
        work = self._known_work.take(local, axis=0)
        fixed, training = work[:, 0].copy(), work[:, 1].copy()
        # Work of zero seconds counts as unknown, and is computed every time.
        unknown = np.flatnonzero((fixed == 0.0) & (training == 0.0))
        if unknown.size:
            fixed[unknown], training[unknown] = self._work_of(local[unknown])
            self._known_work[local[unknown]] = np.stack((fixed[unknown], training[unknown]), axis=1)
        return _Listed(first, entries, fixed, training)

    def _work_of(self, local: UInt32Array) -> tuple[Float32Array, Float32Array]:
        """Returns the work times of devices by position; see
        `fedray.clients.latency.work_seconds`."""
        device_ids = local + np.uint64(self.first_device)
        return work_seconds(self._latency, device_ids, self._data.examples_on(device_ids))

    def _list_intervals(self, order: CheckInOrder) -> Intervals:
        """Lists the intervals that touch the rest of an order's period, from its window on, for all
        devices whose timer opens before its end, block by block."""
        listed: list[Intervals] = []
        from_time, until_time = order.window.start_time, order.list_until_time
        joined_devices = joined_before(self._presence, until_time)
        for block in range(self.first_device, self.end_device, BLOCK_DEVICES):
            members, known = self._members_of(block)
            if self._presence.has_joins:  # those that have joined come first
                number = block // BLOCK_DEVICES
                here = joined_in_block(self._presence.order, number, joined_devices)
                members = members[: np.searchsorted(members, here)]
            if members.size:
                local = members + np.uint32(block - self.first_device)
                open_times = self._open_times.get(local.astype(np.int64)).astype(np.float64)
                if self._young_seconds:
                    # Later losses are compared with each check-in, however late this is listed.
                    begin_times = np.full(local.size, order.list_from_time)
                    open_times = np.maximum(open_times, self._trust_times(local, begin_times))
                device_ids = members + np.uint64(block)
                listing = Listing(device_ids, open_times, from_time, until_time, known)
                listed.append(self._eligibility.list_intervals(listing))
        return joined(listed)

    def _members_of(self, block: int) -> tuple[UInt16Array, Any]:
        """Returns the devices of a block that may ever take part, as ids less the block's first,
        and their constant availability data, which is kept for the first blocks, up to KNOWN_BYTES.
        """
        if block in self._members:
            return self._members[block]
        end = min(block + BLOCK_DEVICES, self.end_device)
        # If all devices are usable, blocks share one array instead of 128 KiB each.
        is_everybody = self._devices.usable_share == 1.0
        members = (
            _WHOLE_BLOCK[: end - block] if is_everybody else usable_among(self._devices, block, end)
        )
        if self._leaves_out:
            members = members[self._may_serve(members + np.uint64(block))]
        known, size = None, members.size * self._availability.bytes_to_know
        # Blocks beyond the memory have their data drawn at every listing.
        if 0 < size <= self._known_room:
            known = self._availability.known_of(members + np.uint64(block))
            self._known_room -= size
        self._members[block] = members, known
        return members, known

    def _may_serve(self, device_ids: UInt64Array) -> BoolArray:
        """Returns whether devices are members with as many examples as a policy requires."""
        may_serve = are_members(self._scenario, device_ids)
        # Counting examples takes a draw of each device.
        if self._least_examples:
            may_serve &= self._data.examples_on(device_ids) >= self._least_examples
        return may_serve

    def _trust_times(self, local: UInt32Array, times: Float64Array) -> Float64Array:
        """Returns the times at which the history that devices have at a time [S] is old enough,
        seconds since start; 0 for devices that exist from the start and have lost none."""
        device_ids = local + np.uint64(self.first_device)
        trusted = np.zeros(local.size)
        if not self._presence.is_everybody_always:
            joins, _ = present_between(self._presence, device_ids)
            trusted = np.where(joins > 0.0, joins + self._young_seconds, 0.0)
        if self._can_be_young_again:
            lost = last_loss_before(self._losses, device_ids, times)
            trusted = np.maximum(trusted, lost + self._young_seconds)
        return trusted

    def _admission_times(self, local: UInt32Array, times: Float64Array) -> Float64Array:
        """Returns the times from which devices are admitted, as far as known at a time [S]: their
        timer is open and their history old enough. Infinite for devices that never serve."""
        found = self._open_times.get(local.astype(np.int64)).astype(np.float64)
        if self._young_seconds:
            found = np.maximum(found, self._trust_times(local, times))
        if self._leaves_out:
            may_serve = self._may_serve(local + np.uint64(self.first_device))
            found = np.where(may_serve, found, np.inf)
        return found

    def _trusted(self, listed: "_Listed") -> "_Listed":
        """Returns the check-ins of devices whose history is old enough at that time."""
        if not self._young_seconds:
            return listed
        first = listed.first.take(listed.entries)
        return listed.take(self._trust_times(first.local, first.times) <= first.times)

    def _thin(self, order: CheckInOrder) -> "_Prepared":
        """Returns check-ins from candidates; cheap tests come first."""
        # Moves are only recorded while intervals are listed, so the list would be out of date.
        self._forget_listed()
        local, times = draw_candidates(
            self._devices, self._presence, self._process(order), self.end_device
        )
        is_open = self._open_times.get(local.astype(np.int64)) <= times
        local, times = local[is_open], times[is_open]
        if self._young_seconds:  # before the first of each interval is taken
            is_trusted = self._trust_times(local, times) <= times
            local, times = local[is_trusted], times[is_trusted]
        if self._leaves_out:
            may_serve = self._may_serve(local + np.uint64(self.first_device))
            local, times = local[may_serve], times[may_serve]
        leaves = np.full(local.size, np.inf)
        if not self._presence.is_everybody_always:
            joins, leaves = present_between(self._presence, local + np.uint64(self.first_device))
            is_there = (joins <= times) & (times < leaves)
            local, times, leaves = local[is_there], times[is_there], leaves[is_there]
        device_ids = local + np.uint64(self.first_device)
        # The most expensive test comes last: it draws the sessions around each candidate.
        ends = np.minimum(self._availability.interval_ends(device_ids, times), leaves)
        is_eligible = ends > times
        local, times, ends = local[is_eligible], times[is_eligible], ends[is_eligible]
        # A candidate is never drawn again, so its own time counts as the time it is drawn from.
        first = FirstCheckIns(local, times, times, ends)
        entries = first.in_order(np.arange(local.size), order.window)
        return _Prepared(order, self._with_work(first, entries))

    def _settle_thinned(self, prepared: "_Prepared") -> "_Listed":
        """Drops candidates whose timers were started since the window was prepared, then all but
        the first of each interval."""
        listed = prepared.listed
        candidates = listed.first.take(listed.entries)
        is_open = self._open_times.get(candidates.local.astype(np.int64)) <= candidates.times
        # The first of each interval is chosen only now: a candidate with a closed timer would hide
        # a later one of its interval.
        still = np.flatnonzero(is_open)
        return listed.take(still[first_of_each_interval(candidates.take(still))])

    def _take_census(self, order: CheckInOrder) -> Census:
        # Devices that their last round holds back; no earlier round is that many rounds ago.
        held_back = self._separation and max(0, order.rounds[0] - self._separation + 1)
        return self._census.count(order, self._remembered, held_back)

    def _answer(self, listed: "_Listed", census: Census) -> CheckIns:
        first = listed.first.take(listed.entries)
        local = first.local.astype(np.int64)
        device_ids = local.astype(np.uint64) + np.uint64(self.first_device)
        has_forgotten = self._has_forgotten(local, first.times)
        return CheckIns(
            device_ids=device_ids,
            times=first.times,
            interval_ends=first.end_times,
            fixed_seconds=listed.fixed_seconds,
            training_seconds=listed.training_seconds,
            upload_seconds=upload_seconds(self._latency, device_ids)
            if self._counts_uploads
            else np.empty(0, np.float32),
            # The map holds the round plus 1, so 0 (no round) becomes -1.
            last_rounds=np.where(has_forgotten, 0, self._last_rounds.get(local)).astype(np.int32)
            - 1
            if self._separation
            else np.empty(0, np.int32),
            timer_seconds=np.empty(0)
            if self._timer_habits.is_exact
            else timer_seconds_of(self._timer_habits, device_ids),
            contributions=self._counts(local, has_forgotten)
            if self._is_capped
            else np.empty(0, np.uint32),
            census=census,
        )

    def _counts(self, local: Int64Array, has_forgotten: BoolArray) -> UInt32Array:
        """Returns the remembered numbers of reports that arrived in time, by positions of devices
        [S]."""
        counts = self._contributions.get(local) - self._forgotten.get(local)
        return np.where(has_forgotten, np.uint32(0), counts)

    def write_part(self, part: int, partial: str, token: str) -> ShardPart:
        """Encodes one part of the trace as Parquet, its rows sorted by (device, check-in time).

        Args:
            part: its number among the shard's parts, which are requested in order.
            partial: the run's directory. The part is written there on the same file system, and
                returned otherwise.
            token: marker by which the shard recognises its own file system.
        """
        if part == 0:  # there are no more windows
            self._forget_listed()
            self._prepared = None
            self._members, self._known_room = {}, KNOWN_BYTES
        first, end = self._parts[part]
        columns = self._rows.of_devices(first, end)
        # It follows from the device, so it is derived here instead of kept with every row.
        columns["examples"] = self._data.examples_on(columns["device_id"]).astype(np.uint32)
        if self._owners is not None:
            columns["owner_id"] = owners_on(self._owners, columns["device_id"])
        encoded = replace(
            encode_part(first, end, columns),
            losses=self._losses_of(columns),
            classes=self._class_counts_of(columns),
        )
        return write_part(encoded, partial, token)

    def _class_counts_of(self, columns: dict[str, NDArray]) -> ClassCounts | None:
        if self._classes.edges.size == 1:
            return None
        rows = (columns[name] for name in ("device_id", "round", "outcome"))
        return counts_by_class(self._classes, *rows)

    def _losses_of(self, columns: dict[str, NDArray]) -> Losses | None:
        """Returns the losses of the devices that have rows, from their first check-in to their
        last."""
        if not self._losses.happen:
            return None
        return losses_between(self._losses, *_spans_of(columns))

    @property
    def part_count(self) -> int:
        """Number of its parts of the trace."""
        return len(self._parts)

    @property
    def rows(self) -> int:
        """Rows of the trace that it holds."""
        return self._rows.rows


def _spans_of(
    columns: dict[str, NDArray],
) -> tuple[UInt64Array, Float64Array, Float64Array]:
    """Returns the devices [S] that have rows, with their first and last check-in."""
    device_ids, times = columns["device_id"], columns["checkin_time"]
    # Rows are sorted by device, so a device's first row is where the id changes.
    first = np.flatnonzero(np.diff(device_ids, prepend=np.uint64(2**64 - 1)))
    # Cut to the number of devices, because a part may have no rows at all.
    last = np.append(first[1:], device_ids.size)[: first.size] - 1
    return device_ids[first], times[first], times[last]
