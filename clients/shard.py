"""PopulationShard: a contiguous range of device blocks that answers the server. Plain Python;
clients/workers.py puts it on Ray."""

import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients.availability.registry import availability_of
from clients.availability.runs import DAY, Runs, joined
from clients.checkin import (
    ListedRuns,
    Stretches,
    bits_of,
    count_at,
    draw_again,
    draw_candidates,
    enumerate_check_ins,
    first_of_each_run,
)
from clients.data.registry import source_of
from clients.device_map import DeviceMap
from clients.latency import latency_model, work_seconds
from clients.population import (
    are_reachable,
    device_model,
    devices_of_ranks,
    joined_before,
    joined_in_block,
    presence_of,
    present_between,
    reachable_among,
    timer_habits,
    timer_seconds_of,
)
from clients.rows import RowStore
from fedray.blocks import BLOCK_DEVICES, part_ranges
from fedray.messages import Census, CheckInOrder, CheckIns, Settlement, ShardPart, ShardUse
from fedray.rng import Stream, stream_key
from fedray.scenario import Scenario
from fedray.trace.writer import encode_part, write_part

CENSUS_DEVICES = 65_536
"""Devices whose sessions are always listed, timer or not, to estimate how many are eligible: every
stride-th to join."""

KNOWN_BYTES = 160 * 2**20
"""Memory of a shard for what stays the same of devices, so that it need not be drawn at every
listing."""

_WHOLE_BLOCK = np.arange(BLOCK_DEVICES, dtype=np.uint16)


@dataclass(frozen=True, slots=True)
class _Listed:
    """Check-ins in order of (time, device): places [A] among stretches, and the work of their
    devices."""

    stretches: Stretches
    places: NDArray[np.int64]
    fixed_seconds: NDArray[np.float32]
    training_seconds: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Prepared:
    """Check-ins of a window as far as they are known before the one in progress is settled."""

    order: CheckInOrder
    listed: _Listed

    def is_for(self, order: CheckInOrder) -> bool:
        """Whether it is the same but for what has been settled since."""
        mine = replace(self.order, settlements=(), round_index=0)
        return mine == replace(order, settlements=(), round_index=0)


class PopulationShard:
    """Devices [first_device, end_device) of a scenario.

    State: for devices that ever took part the second from which their timer is open (and, if rounds
    must be separated, their last round; if participations are capped, how many they had), see
    clients/device_map.py; the runs of the period, while check-ins are
    enumerated; the rows for the trace, on disk. Everything else is derived. Windows are asked for
    in order; the present one may be asked for again.
    """

    def __init__(self, scenario: Scenario, first_device: int, end_device: int) -> None:
        self.first_device, self.end_device = first_device, end_device
        self._devices = device_model(scenario)
        self._availability = availability_of(scenario)
        self._presence = presence_of(scenario)
        self._timers = timer_habits(scenario)
        self._data = source_of(scenario)
        self._latency = latency_model(scenario, self._devices, self._data)
        self._check_in_key = stream_key(scenario.seed, Stream.CHECK_IN)
        self._thinning_key = stream_key(scenario.seed, Stream.THINNING)
        self._separation = scenario.participation.round_separation
        self._is_capped = scenario.participation.max_participations is not None
        self._reopen = DeviceMap(end_device - first_device)
        self._last_rounds = DeviceMap(end_device - first_device)
        """Last round + 1; filled only where rounds must be separated."""
        self._contributions = DeviceMap(end_device - first_device)
        """Accepted reports; filled only where they are capped."""
        self._members: dict[int, tuple[NDArray[np.uint16], Any]] = {}
        self._known_room = KNOWN_BYTES
        self._prepared: _Prepared | None = None
        self._moved: list[NDArray[np.int64]] = []
        """Devices whose timers were started since `_listed` was last told."""
        self._listed: ListedRuns | None = None
        self._census_stride = max(1, scenario.device_ids // CENSUS_DEVICES)
        sample = self._census_sample(scenario.device_ids)
        self._census_members = (sample - np.uint64(first_device)).astype(np.uint32)
        self._census_joins = present_between(self._presence, sample)[0]
        self._census_day, self._census_runs = -1, joined([])
        self._settled, self._window = -1, -1
        self.busy_seconds = 0.0
        """Wall-clock time spent on windows."""
        self._rows = RowStore()
        self._parts = part_ranges(scenario.device_ids, first_device, end_device)

    def prepare(self, order: CheckInOrder) -> None:
        """Does ahead what can be done for a window before the one in progress is settled. It
        changes no answer."""
        begun = time.perf_counter()
        self._prepared = self._prepare(order)
        self.busy_seconds += time.perf_counter() - begun

    def check_ins(self, order: CheckInOrder) -> CheckIns:
        """Applies the settlements, then lists the window's first check-ins, sorted by (time,
        device)."""
        begun = time.perf_counter()
        self._window = order.window
        self.settle(order.settlements)
        prepared, self._prepared = self._prepared, None
        if prepared is None or not prepared.is_for(order):
            prepared = self._prepare(order)
        listed = (
            self._settle_enumerated(prepared)
            if order.is_enumerated
            else self._settle_thinned(prepared)
        )
        answer = self._answer(listed, self._take_census(order))
        self.busy_seconds += time.perf_counter() - begun
        return answer

    def gauges(self) -> dict[str, tuple[str, float]]:
        """Descriptions and values of what a cluster's monitoring shows of a shard."""
        use = self.use()
        return {
            "rows": ("Rows of the trace that a shard holds", use.rows),
            "peak_mebibytes": ("Peak memory of a shard's process, MiB", use.peak_mebibytes),
            "busy_seconds": ("Seconds that a shard has worked on windows", use.busy_seconds),
            "window": ("Look-ahead window that a shard listed last", use.window),
        }

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """Starts timers and keeps the rows for the trace. What was settled before is passed
        over."""
        for settlement in settlements:
            if settlement.attempt <= self._settled:
                continue
            self._settled = settlement.attempt
            local = (settlement.device_ids - np.uint64(self.first_device)).astype(np.int64)
            self._reopen.raise_to(local, settlement.reopen_seconds)
            if self._listed is not None:
                self._moved.append(local[settlement.reopen_seconds > 0])
            kept = local[settlement.remembers_round]
            if self._separation:
                self._last_rounds.raise_to(
                    kept, np.full(kept.size, settlement.round_index + 1, np.uint32)
                )
            if self._is_capped:
                self._contributions.raise_to(kept, self._contributions.get(kept) + np.uint32(1))
            if local.size:
                self._rows.add(settlement)

    def _prepare(self, order: CheckInOrder) -> "_Prepared":
        return self._enumerate(order) if order.is_enumerated else self._thin(order)

    def _enumerate(self, order: CheckInOrder) -> "_Prepared":
        """From the runs of the period, which are listed when it is first asked for."""
        if self._listed is None or not self._listed.covers(order.window):
            length = order.end_seconds - order.start_seconds
            end_window = order.window + round(
                (order.list_until_seconds - order.start_seconds) / length
            )
            self._forget_listed()  # its memory is free before there are others
            self._listed = ListedRuns(
                self._list_runs(order.start_seconds, order.list_until_seconds), order, end_window
            )
        listed = self._listed
        listed.enter(order, self._reopen, self._take_moved())
        stretches, places = enumerate_check_ins(
            listed.active, listed.opens, self._check_in_key, self.first_device, order
        )
        return _Prepared(order, self._with_work(stretches, places))

    def _settle_enumerated(self, prepared: "_Prepared") -> "_Listed":
        before = prepared.listed
        stretches, places = before.stretches, before.places
        listed, moved = self._listed, self._take_moved()
        assert listed is not None
        is_new, has_new = draw_again(
            stretches,
            listed.active,
            listed.opens,
            self._reopen,
            self._check_in_key,
            self.first_device,
            prepared.order,
            moved,
        )
        if has_new:
            drawn, order = np.flatnonzero(stretches.time < np.inf), prepared.order
            return self._with_work(
                stretches, stretches.in_order(drawn, order.start_seconds, order.end_seconds)
            )
        stays = ~is_new[places]
        return _Listed(
            stretches, places[stays], before.fixed_seconds[stays], before.training_seconds[stays]
        )

    def _forget_listed(self) -> None:
        self._listed, self._moved = None, []

    def _take_moved(self) -> NDArray[np.uint8]:
        """Whose timers were started since this was asked last; only enumeration asks."""
        moved, self._moved = self._moved, []
        bits = bits_of(
            np.concatenate([np.empty(0, np.int64), *moved]), self.end_device - self.first_device
        )
        if self._listed is not None:
            self._listed.note(bits)
        return bits

    def _with_work(self, stretches: Stretches, places: NDArray[np.int64]) -> _Listed:
        device_ids = stretches.which[places] + np.uint64(self.first_device)
        examples = self._data.examples_on(device_ids)
        return _Listed(stretches, places, *work_seconds(self._latency, device_ids, examples))

    def _list_runs(self, low: float, high: float) -> Runs:
        """Runs that touch [low, high) of all devices whose timer opens before its end, block by
        block."""
        listed: list[Runs] = []
        total = joined_before(self._presence, high)
        for block in range(self.first_device, self.end_device, BLOCK_DEVICES):
            offsets, known = self._members_of(block)
            if self._presence.seconds_per_join < np.inf:  # those that have joined come first
                here = joined_in_block(self._presence.order, block // BLOCK_DEVICES, total)
                offsets = offsets[: np.searchsorted(offsets, here)]
            if offsets.size:
                local = offsets + np.uint32(block - self.first_device)
                opens = self._reopen.get(local.astype(np.int64)).astype(np.float64)
                listed.append(self._runs_of(local, opens, low, high, known))
        return joined(listed)

    def _members_of(self, block: int) -> tuple[NDArray[np.uint16], Any]:
        """Offsets of the devices of a block that the task can use, and what is known of their
        availability: the first blocks' is kept, as far as KNOWN_BYTES go."""
        if block in self._members:
            return self._members[block]
        end = min(block + BLOCK_DEVICES, self.end_device)
        is_everybody = self._devices.reachable_share == 1.0
        offsets = (
            _WHOLE_BLOCK[: end - block]
            if is_everybody
            else reachable_among(self._devices, block, end)
        )
        known, size = None, offsets.size * self._availability.bytes_to_know
        if 0 < size <= self._known_room:
            known = self._availability.known_of(offsets + np.uint64(block))
            self._known_room -= size
        self._members[block] = offsets, known
        return offsets, known

    def _runs_of(
        self,
        local: NDArray[np.uint32],
        opens: NDArray[np.float64],
        low: float,
        high: float,
        known: Any = None,
    ) -> Runs:
        """Runs of some devices, by their index within the shard, within the time that they are
        there and their timer is open."""
        device_ids = local + np.uint64(self.first_device)
        if self._presence.is_everybody_always:
            runs = self._availability.list_runs(device_ids, opens, low, high, known)
            return Runs(local[runs.which], np.maximum(runs.start, opens[runs.which]), runs.end)
        joins, leaves = present_between(self._presence, device_ids)
        opens = np.where(leaves > low, np.maximum(opens, joins), np.inf)
        runs = self._availability.list_runs(device_ids, opens, low, high, known)
        start, end = (
            np.maximum(runs.start, opens[runs.which]),
            np.minimum(runs.end, leaves[runs.which]),
        )
        is_there = (start < end) & (end > low)
        return Runs(local[runs.which[is_there]], start[is_there], end[is_there])

    def _thin(self, order: CheckInOrder) -> "_Prepared":
        """From candidates: cheap tests first. Runs that were listed before are forgotten, and with
        them who was moved since."""
        self._forget_listed()
        which, time = draw_candidates(
            self._devices,
            self._presence,
            self._thinning_key,
            self.first_device,
            self.end_device,
            order,
        )
        is_open = self._reopen.get(which.astype(np.int64)) <= time
        which, time = which[is_open], time[is_open]
        device_ids = which + np.uint64(self.first_device)
        leaves = np.full(which.size, np.inf)
        if not self._presence.is_everybody_always:
            joins, leaves = present_between(self._presence, device_ids)
            is_there = (joins <= time) & (time < leaves)
            which, time, device_ids, leaves = (
                which[is_there],
                time[is_there],
                device_ids[is_there],
                leaves[is_there],
            )
        end = np.minimum(self._availability.run_ends(device_ids, time), leaves)
        is_eligible = end > time
        which, time, end = which[is_eligible], time[is_eligible], end[is_eligible]
        stretches = Stretches(which, time, time, end)
        places = stretches.in_order(np.arange(which.size), order.start_seconds, order.end_seconds)
        return _Prepared(order, self._with_work(stretches, places))

    def _settle_thinned(self, prepared: "_Prepared") -> "_Listed":
        before = prepared.listed
        stretches, places = before.stretches, before.places
        which, time = stretches.which[places], stretches.time[places]
        still = np.flatnonzero(self._reopen.get(which.astype(np.int64)) <= time)
        first = still[first_of_each_run(which[still], time[still], stretches.end[places][still])]
        return _Listed(
            stretches, places[first], before.fixed_seconds[first], before.training_seconds[first]
        )

    def _census_sample(self, devices: int) -> NDArray[np.uint64]:
        """Ids of this shard's devices that are counted: of every stride-th to join, those that the
        task can use."""
        ranks = np.arange(0, devices, self._census_stride)
        ids = np.sort(devices_of_ranks(self._presence.order, ranks)).astype(np.uint64)
        here = ids[
            slice(*np.searchsorted(ids, np.array([self.first_device, self.end_device], np.uint64)))
        ]
        return here[are_reachable(self._devices, here)]

    def _take_census(self, order: CheckInOrder) -> Census:
        """Counts the census devices, each of which stands for a stride of ids."""
        day, stride = int(order.start_seconds // DAY), self._census_stride
        if day != self._census_day:
            self._census_day = day
            opens = np.zeros(self._census_members.size)
            self._census_runs = self._runs_of(
                self._census_members, opens, day * DAY, (day + 1) * DAY
            )
        # Devices that are held back by their last round; none before it is that many rounds ago.
        held_back = self._separation and max(0, order.round_index - self._separation + 1)
        eligible, is_open, is_free, is_spent = count_at(
            self._census_runs,
            self._reopen.table,
            self._last_rounds.table,
            order.start_seconds,
            held_back,
        )
        opens = self._reopen.get(self._census_members.astype(np.int64))
        listed = int((np.maximum(opens, self._census_joins) < order.list_until_seconds).sum())
        return Census(
            eligible * stride,
            is_open * stride,
            is_free * stride,
            listed * stride,
            is_spent * stride,
        )

    def _answer(self, listed: "_Listed", census: Census) -> CheckIns:
        stretches, places = listed.stretches, listed.places
        local = stretches.which[places].astype(np.int64)
        device_ids = local.astype(np.uint64) + np.uint64(self.first_device)
        return CheckIns(
            device_ids=device_ids,
            times=stretches.time[places],
            session_ends=stretches.end[places],
            fixed_seconds=listed.fixed_seconds,
            training_seconds=listed.training_seconds,
            last_rounds=self._last_rounds.get(local).astype(np.int32) - 1
            if self._separation
            else np.empty(0, np.int32),
            timer_seconds=np.empty(0)
            if self._timers.is_exact
            else timer_seconds_of(self._timers, device_ids),
            contributions=self._contributions.get(local)
            if self._is_capped
            else np.empty(0, np.uint32),
            census=census,
        )

    def write_part(self, part: int, partial: str, token: str) -> ShardPart:
        """One part of the trace, as Parquet: the rows of a run of blocks, sorted by (device,
        check-in time).

        Written into the run's directory `partial` if the token shows that this is the same file
        system, else answered.
        """
        if part == 0:  # there are no more windows
            self._forget_listed()
            self._prepared = None
            self._members, self._known_room = {}, KNOWN_BYTES
        first, end = self._parts[part]
        columns = self._rows.of_devices(first, end)
        columns["examples"] = self._data.examples_on(columns["device_id"]).astype(np.uint32)
        return write_part(encode_part(first, end, columns), partial, token)

    def use(self) -> ShardUse:
        """What this shard has used so far."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return ShardUse(
            self.first_device,
            self.end_device,
            self._rows.rows,
            round(peak, 1),
            round(self.busy_seconds, 3),
            self._window,
        )
