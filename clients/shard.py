"""PopulationShard: a contiguous range of device blocks that answers the server. Plain Python;
clients/host.py puts several of them on a node."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedray.base.arrays import (
    Float32Array,
    Float64Array,
    Int64Array,
    UInt8Array,
    UInt32Array,
    UInt64Array,
)
from fedray.base.blocks import BLOCK_DEVICES
from fedray.base.rng import Stream, stream_key
from fedray.scenario import Scenario
from fedray.trace.writer import write_part
from fedray.wire.messages import (
    Census,
    CheckInOrder,
    CheckIns,
    Settlement,
    ShardPart,
)
from .admission import Admission
from .availability.model import Listing
from .census import CensusSample
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
from .eligibility import Eligibility
from .held import HeldHere
from .known import KnownMembers, KnownWork
from .latency import upload_seconds
from .memory import DeviceMemory
from .parts import TraceParts
from .population import (
    DeviceModel,
    TimerHabits,
    joined_before,
    joined_in_block,
    present_between,
    timer_seconds_of,
)


@dataclass(frozen=True, slots=True)
class _Listed:
    """Check-ins of a window in order of (time, device), and the work of their devices."""

    first: FirstCheckIns
    """First check-ins of all intervals looked at."""
    entries: Int64Array
    """Positions of the check-ins among them, [A]."""
    fixed_seconds: Float32Array
    """Seconds of setup and transfers, [A]."""
    training_seconds: Float32Array
    """Seconds of training, [A], which the round factor scales."""

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
    """Check-ins of a window as far as they are known before the previous window is settled."""

    order: CheckInOrder
    """Order for which they were drawn."""
    listed: _Listed

    def is_for(self, order: CheckInOrder) -> bool:
        """Returns whether an order is the same except for later settlements."""
        # These two change while the window is prepared, and neither affects its draws.
        mine = replace(self.order, settlements=(), rounds=())
        return mine == replace(order, settlements=(), rounds=())


class PopulationShard:
    """Devices [first_device, end_device) of a scenario.

    Its state is the memory of devices that took part (clients/memory.py), the intervals of the
    period while check-ins are enumerated, and the rows for the trace, on disk. Everything else is
    derived. Windows are requested in order; the present one may be requested again.

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
        self._eligibility = like._eligibility if like else Eligibility.of(scenario, first_device)
        self._availability = self._eligibility.availability
        self._presence = self._eligibility.presence
        self._timer_habits = TimerHabits.of(scenario)
        # Each sampler has a stream of its own, because their addresses would collide in one.
        self._check_in_key = stream_key(scenario.seed, Stream.CHECK_IN)
        self._thinning_key = stream_key(scenario.seed, Stream.THINNING)
        self._counts_uploads = scenario.participation.counts_uploads
        # Shards need the data too: the number of examples on a device decides how long it works.
        data = source_of(scenario)
        self._admission = Admission(scenario, data, self._presence)
        self._members = KnownMembers(scenario, end_device, self._admission, self._availability)
        self._work = KnownWork(scenario, data, first_device, end_device)
        self._memory = DeviceMemory(scenario, end_device - first_device)
        self._parts = TraceParts(scenario, data, first_device, end_device)
        self._prepared: _Prepared | None = None
        self._listed: ListedIntervals | None = None
        self._moved: list[Int64Array] = []
        """Positions of devices whose timers were started since the last report to `_listed`."""
        sample = like._census if like else CensusSample.of(scenario, self._eligibility, end_device)
        if self._admission.leaves_out:
            sample = sample.among(self._admission.may_serve(sample.device_ids))
        self._census = sample
        self._held = HeldHere(scenario, first_device, end_device)
        self._settled = -1
        """The last attempt that was settled."""

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
        return self._memory.open_times.get(
            (device_ids - np.uint64(self.first_device)).astype(np.int64)
        )

    def settle(self, settlements: Iterable[Settlement]) -> None:
        """Starts timers and keeps the rows for the trace.

        Args:
            settlements: settlements in order of attempt; earlier ones are skipped.
        """
        for settlement in settlements:
            if settlement.attempt <= self._settled:
                continue
            self._settled = settlement.attempt
            local = (settlement.device_ids - np.uint64(self.first_device)).astype(np.int64)
            self._memory.settle(local, settlement)
            # Listed intervals carry their own open times, which must be updated.
            if self._listed is not None:
                self._moved.append(local[settlement.open_times > 0])
            self._parts.add(settlement)

    def _ids_of(self, local: UInt32Array) -> UInt64Array:
        """Returns the ids of devices [S] by their positions in the shard."""
        return local + np.uint64(self.first_device)

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
        self._listed.enter(window, self._memory.open_times, self._take_moved())
        first, entries = enumerate_check_ins(self._listed.active, self._process(order))
        return _Prepared(order, self._with_work(first, entries))

    def _list_period(self, order: CheckInOrder) -> ListedIntervals:
        window = order.window
        seconds = order.list_until_time - window.start_time
        # The quotient is whole except for the rounding of float times.
        windows = round(seconds / (window.end_time - window.start_time))
        listed = ListedIntervals(order, window.number + windows)
        self._list_intervals(order, listed)
        return listed

    def _settle_enumerated(self, prepared: "_Prepared") -> "_Listed":
        """Draws again for devices whose timer was started since the window was prepared."""
        before, order = prepared.listed, prepared.order
        listed, moved = self._listed, self._take_moved()
        assert listed is not None
        is_new, has_new = draw_again(
            before.first, listed.active, self._process(order), self._memory.open_times, moved
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
        return _Listed(first, entries, *self._work.seconds_of(first.local[entries]))

    def _list_intervals(self, order: CheckInOrder, listed: ListedIntervals) -> None:
        """Lists the intervals that touch the rest of an order's period, from its window on, for all
        devices whose timer opens before its end, block by block."""
        from_time, until_time = order.window.start_time, order.list_until_time
        joined_devices = joined_before(self._presence, until_time)
        for block in range(self.first_device, self.end_device, BLOCK_DEVICES):
            members, known = self._members.of_block(block)
            if self._presence.has_joins:  # those that have joined come first
                number = block // BLOCK_DEVICES
                here = joined_in_block(self._presence.order, number, joined_devices)
                members = members[: np.searchsorted(members, here)]
            if members.size:
                local = members + np.uint32(block - self.first_device)
                device_ids = members + np.uint64(block)
                open_times = self._memory.open_times.get(local.astype(np.int64)).astype(np.float64)
                if self._admission.has_young:
                    # Later losses are compared with each check-in, however late this is listed.
                    begin_times = np.full(local.size, order.list_from_time)
                    open_times = np.maximum(
                        open_times, self._admission.trust_times(device_ids, begin_times)
                    )
                listing = Listing(device_ids, open_times, from_time, until_time, known)
                listed.add(self._eligibility.list_intervals(listing))

    def _admission_times(self, local: UInt32Array, times: Float64Array) -> Float64Array:
        """Returns the times from which devices are admitted, as far as known at a time [S]: their
        timer is open and their history old enough. Infinite for devices that never serve."""
        found = self._memory.open_times.get(local.astype(np.int64)).astype(np.float64)
        if self._admission.has_young:
            found = np.maximum(found, self._admission.trust_times(self._ids_of(local), times))
        if self._admission.leaves_out:
            may_serve = self._admission.may_serve(self._ids_of(local))
            found = np.where(may_serve, found, np.inf)
        return found

    def _trusted(self, listed: "_Listed") -> "_Listed":
        """Returns the check-ins of devices whose history is old enough at that time."""
        if not self._admission.has_young:
            return listed
        first = listed.first.take(listed.entries)
        trusted = self._admission.trust_times(self._ids_of(first.local), first.times)
        return listed.take(trusted <= first.times)

    def _thin(self, order: CheckInOrder) -> "_Prepared":
        """Returns check-ins from candidates; cheap tests come first."""
        # Moves are only recorded while intervals are listed, so the list would be out of date.
        self._forget_listed()
        local, times = draw_candidates(
            self._devices, self._presence, self._process(order), self.end_device
        )
        is_open = self._memory.open_times.get(local.astype(np.int64)) <= times
        local, times = local[is_open], times[is_open]
        if self._admission.has_young:  # before the first of each interval is taken
            is_trusted = self._admission.trust_times(self._ids_of(local), times) <= times
            local, times = local[is_trusted], times[is_trusted]
        if self._admission.leaves_out:
            may_serve = self._admission.may_serve(self._ids_of(local))
            local, times = local[may_serve], times[may_serve]
        leaves = np.full(local.size, np.inf)
        if not self._presence.is_everybody_always:
            joins, leaves = present_between(self._presence, self._ids_of(local))
            is_there = (joins <= times) & (times < leaves)
            local, times, leaves = local[is_there], times[is_there], leaves[is_there]
        device_ids = self._ids_of(local)
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
        is_open = self._memory.open_times.get(candidates.local.astype(np.int64)) <= candidates.times
        # The first of each interval is chosen only now: a candidate with a closed timer would hide
        # a later one of its interval.
        still = np.flatnonzero(is_open)
        return listed.take(still[first_of_each_interval(candidates.take(still))])

    def _take_census(self, order: CheckInOrder) -> Census:
        held_back = self._memory.held_back_until(order.rounds[0])
        held = self._held.at(order.rounds[0], order.window.start_time)
        return self._census.count(order, self._memory, held_back, held)

    def _answer(self, listed: "_Listed", census: Census) -> CheckIns:
        first = listed.first.take(listed.entries)
        local = first.local.astype(np.int64)
        device_ids = self._ids_of(first.local)
        return CheckIns(
            device_ids=device_ids,
            times=first.times,
            interval_ends=first.end_times,
            fixed_seconds=listed.fixed_seconds,
            training_seconds=listed.training_seconds,
            upload_seconds=upload_seconds(self._work.latency, device_ids)
            if self._counts_uploads
            else np.empty(0, np.float32),
            last_rounds=self._memory.last_rounds_at(local, first.times),
            timer_seconds=np.empty(0)
            if self._timer_habits.is_exact
            else timer_seconds_of(self._timer_habits, device_ids),
            contributions=self._memory.contributions_at(local, first.times),
            census=census,
        )

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
            self._members.forget()
        return write_part(self._parts.encoded(part), partial, token)

    @property
    def part_count(self) -> int:
        """Number of its parts of the trace."""
        return self._parts.count

    @property
    def rows(self) -> int:
        """Rows of the trace that it holds."""
        return self._parts.rows
