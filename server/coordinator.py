"""The round loop. Shards list check-ins window by window; the coordinator forms rounds from them, one after the other.

Selection of the next round overlaps the reporting of the present one. A shard lists a window without knowing what the window
will decide: the coordinator remembers that itself, and sends it along when it asks for the next window.
"""

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedray.errors import Starved
from fedray.messages import CheckInOrder, CheckIns, RoundRecord, Settlement
from fedray.protocols import Pending, Shard
from fedray.scenario import Scenario
from server.rounds import RoundRules, resolve_reporting
from server.selection import EXHAUSTED, FULL, Selection


@dataclass(frozen=True, slots=True)
class ClosedRound:
    """A round that has closed: its record, and its accepted devices [A], sorted, if it was committed."""

    record: RoundRecord
    accepted_device_ids: NDArray[np.uint64]


class Coordinator:
    """Forms rounds until the scenario's count is committed. `records` holds every attempt so far, in order of time."""

    def __init__(self, scenario: Scenario, shards: Sequence[Shard]) -> None:
        self._scenario, self._shards = scenario, shards
        self._rules = RoundRules.of(scenario)
        self._selection = Selection(self._rules)
        self._window_seconds = scenario.rounds.look_ahead_minutes * 60.0
        self._unsent: list[Settlement] = []
        self.records: list[RoundRecord] = []

    def rounds(self) -> Iterator[ClosedRound]:
        """Every attempt as it closes. Raises Starved when the simulated days run out first."""
        windows = self._windows()
        window, eligible = next(windows)
        round_index, opened = 0, 0.0
        self._selection.open(opened, ready_at=0.0)
        while round_index < self._scenario.rounds.count:
            status, time = self._selection.advance(round_index)
            if status == EXHAUSTED:
                window, eligible = next(windows)
                continue
            if status == FULL or self._selection.waiting >= self._rules.report_goal:
                closed = self._report(round_index, opened, time, eligible, window)
            else:
                closed = self._give_up(round_index, opened, time, eligible, window)
            self.records.append(closed.record)
            round_index += closed.record.is_committed
            opened = time
            self._selection.open(opened, ready_at=closed.record.closed)
            yield closed
        windows.close()

    def finish(self) -> None:
        """Tells the shards what they have not heard yet. Call once, when no more rounds are wanted."""
        unsent, self._unsent = self._unsent, []
        for pending in [shard.settle(_for_shard(unsent, shard)) for shard in self._shards]:
            pending.result()

    def _report(self, round_index: int, opened: float, started: float, eligible: int, window: int) -> ClosedRound:
        selected = self._selection.take()
        reporting = resolve_reporting(selected, started, round_index, self._rules)
        settlement = reporting.settlement
        remembered = np.where(settlement.remembers_round, round_index, -1).astype(np.int32)
        self._selection.block(selected, reporting.busy_until, settlement.reopen_seconds, remembered, known_from=window + 1)
        self._unsent.append(settlement)
        record = RoundRecord(
            round_index=round_index,
            opened=opened,
            started=started,
            closed=reporting.closed,
            selected=int(selected.device_ids.size),
            reported=reporting.reported,
            accepted=int(reporting.accepted_device_ids.size),
            is_committed=reporting.is_committed,
            eligible_estimate=eligible,
        )
        return ClosedRound(record, reporting.accepted_device_ids)

    def _give_up(self, round_index: int, opened: float, time: float, eligible: int, window: int) -> ClosedRound:
        """Too few waited at the selection timeout: they are let go, and may check in again."""
        released = self._selection.take()
        size = released.device_ids.size
        no_timer, no_round = np.zeros(size, np.uint32), np.full(size, -1, np.int32)
        self._selection.block(released, np.full(size, time), no_timer, no_round, known_from=window + 1)
        record = RoundRecord(round_index, opened, time, time, 0, 0, 0, False, eligible)
        return ClosedRound(record, released.device_ids[:0])

    def _windows(self) -> Generator[tuple[int, int]]:
        """Makes window after window the selection's present one; yields its number and how many devices are eligible."""
        open_eligible = _merge([pending.result() for pending in self._ask(0, checkins_per_hour=0.0)]).open_eligible
        window = 0
        while window * self._window_seconds < self._scenario.rounds.max_days * 86_400.0:
            answers = self._ask(window, self._checkin_rate(open_eligible))
            check_ins = _merge([pending.result() for pending in answers])
            open_eligible = check_ins.open_eligible
            start = window * self._window_seconds
            self._selection.start_window(check_ins, window, start, start + self._window_seconds)
            yield window, check_ins.eligible_estimate
            window += 1
        raise Starved(self._why_starved())

    def _why_starved(self) -> str:
        scenario, rounds = self._scenario, self._scenario.rounds
        committed = sum(record.is_committed for record in self.records)
        failed = sum(record.selected > 0 and not record.is_committed for record in self.records)
        text = f"rounds.max_days={rounds.max_days:g} ran out with {committed} of {rounds.count} rounds committed; "
        if failed > committed:
            return text + (
                f"{failed} were abandoned with too few reports, so raise rounds.report_timeout_minutes="
                f"{rounds.report_timeout_minutes:g} or rounds.over_selection={rounds.over_selection:g}"
            )
        return text + (
            f"too few devices checked in, so lower rounds.report_goal={rounds.report_goal} or participation.timer_hours="
            f"{scenario.participation.timer_hours:g}, or raise population.devices={scenario.population.devices} or rounds.max_days"
        )

    def _ask(self, window: int, checkins_per_hour: float) -> list[Pending[CheckIns]]:
        unsent, self._unsent = self._unsent, []
        start = window * self._window_seconds
        return [
            shard.check_ins(CheckInOrder(window, start, start + self._window_seconds, checkins_per_hour, _for_shard(unsent, shard)))
            for shard in self._shards
        ]

    def _checkin_rate(self, open_eligible: int) -> float:
        """Pace steering: check-ins per device and hour, a small multiple of what rounds at full speed could select.

        A round takes about as long as a device that is one deviation slower than the median.
        """
        rounds, latency = self._scenario.rounds, self._scenario.latency
        slow_device = math.exp(math.hypot(latency.speed_between, latency.speed_within))
        fastest_round_seconds = latency.setup_seconds + latency.train_seconds * slow_device
        demand_per_hour = rounds.selection_target * 3600.0 / fastest_round_seconds
        return min(rounds.max_checkins_per_hour, rounds.pace_multiple * demand_per_hour / max(1, open_eligible))


def _for_shard(settlements: Sequence[Settlement], shard: Shard) -> tuple[Settlement, ...]:
    return tuple(settlement.slice_of_devices(shard.first_device, shard.end_device) for settlement in settlements)


def _merge(lists: Sequence[CheckIns]) -> CheckIns:
    """One list in order of (time, device). Shards come in order of device, so a stable sort by time breaks ties by device."""
    times = np.concatenate([part.times for part in lists])
    order = np.argsort(times, kind="stable")
    return CheckIns(
        device_ids=np.concatenate([part.device_ids for part in lists])[order],
        times=times[order],
        session_ends=np.concatenate([part.session_ends for part in lists])[order],
        work_seconds=np.concatenate([part.work_seconds for part in lists])[order],
        failure_seconds=np.concatenate([part.failure_seconds for part in lists])[order],
        last_rounds=_take(np.concatenate([part.last_rounds for part in lists]), order),
        eligible_estimate=sum(part.eligible_estimate for part in lists),
        open_eligible=sum(part.open_eligible for part in lists),
    )


def _take(column: NDArray[np.int32], order: NDArray[np.int64]) -> NDArray[np.int32]:
    return column[order] if column.size else column
