"""Upload, then train: devices upload once per window, and a trusted program on the server draws
rounds from the stored uploads.

An upload is a device's contribution in time, and participation policies hold only for it. The
schedule decides which uploads take part in a round (server/rounds/schedules.py). So a device needs
to be eligible once, and the schedule, not its habits, sets the least separation between two of its
rounds in a window.

In the trace a row is an upload that was drawn for a round, with the times of the upload. A round is
opened when its window ends.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedray.base.arrays import Float64Array, Int64Array, UInt8Array, UInt64Array
from fedray.base.errors import Starved
from fedray.scenario import Scenario
from fedray.scenario.several_tasks import tasks_of
from fedray.scenario.uploads import most_unresolved
from fedray.trace.checkpoints import prefixed, under
from fedray.wire.messages import (
    NEVER,
    NO_WINDOW,
    CheckIns,
    Outcome,
    RoundRecord,
    Settlement,
)
from fedray.wire.protocols import Shard
from .closing import Closing
from .coordinator import ClosedRound, RoundLoop, Settled, WindowOver
from .pace import UploadPace
from .rounds import RoundRules, Selected, draw_fates, resolve_reporting, without_commit
from .schedules import Unresolved, schedule_of
from .task import Supply, TaskRounds

MOST_FAILURES = 100
"""Largest number of consecutive attempts at a round that may fail because of unreadable uploads."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Uploads that a server holds, in order of device; [U] each."""

    device_ids: UInt64Array
    """Device of each; no device has two."""
    check_in_times: Float64Array
    """Time of each check-in to upload, seconds since start."""
    report_times: Float64Array
    """Time at which each upload was complete."""

    def with_more(self, more: "Stored") -> "Stored":
        """Returns these uploads and others, of other devices."""
        device_ids = np.concatenate([self.device_ids, more.device_ids])
        order = np.argsort(device_ids, kind="stable")
        check_ins = np.concatenate([self.check_in_times, more.check_in_times])
        reports = np.concatenate([self.report_times, more.report_times])
        return Stored(device_ids[order], check_ins[order], reports[order])


NOTHING = Stored(np.empty(0, np.uint64), np.empty(0), np.empty(0))


@dataclass(frozen=True, slots=True)
class _WindowEnd:
    """The closing rule of a window: it stores every upload that is complete by its end."""

    time: float
    report_goal: int = 0

    def close(
        self, report_times: Float64Array, started: float | Float64Array, deadline: object
    ) -> Closing:
        return Closing(True, self.time, report_times <= self.time)


class StoredCoordinator(RoundLoop):
    """Collects uploads window by window, and forms the rounds of each window when it is over.

    Args:
        scenario: windows, schedule and policies.
        shards: shards of the population, in order of their devices.
    """

    def __init__(self, scenario: Scenario, shards: Sequence[Shard]) -> None:
        uploads = scenario.rounds.uploads
        assert uploads is not None
        (task,) = tasks_of(scenario)
        self._task = TaskRounds(task)
        super().__init__([self._task], shards, UploadPace(scenario))
        self._scenario, self._uploads = scenario, uploads
        self._rules = RoundRules.of(scenario)
        self._schedule = schedule_of(scenario)
        self._unresolved = Unresolved(scenario.seed, uploads.unresolved_share)
        self._ahead_per_window = round(uploads.seconds / self._pace.window_seconds)
        """Number of look-ahead windows in an upload window."""
        self._attempt = 0
        """Number of the attempt, over uploads and rounds: shards apply each number once."""
        self._stored = NOTHING
        """Uploads of the present window."""
        self._outcomes = np.zeros((uploads.windows, len(Outcome)), np.int64)
        """Number of attempts to upload by outcome, for each upload window."""

    def events(self) -> Iterator[ClosedRound | Settled | WindowOver]:
        """Yields the uploads of every look-ahead window, and its end; and after each upload window
        every attempt at one of its rounds.

        Raises:
            Starved: the first window has too few uploads, or the first round failed too often.
        """
        if self._window.number < 0:
            # The first look-ahead window needs a census of its own.
            self._enter(NO_WINDOW, self._shards.check_ins(self._pace.census_only()))
        ahead = self._uploads.windows * self._ahead_per_window
        for number in range(self._window.number + 1, ahead):
            yield Settled((self._collect(number, is_last=number + 1 == ahead),))
            if (number + 1) % self._ahead_per_window == 0:
                yield from self._rounds_of_window(number // self._ahead_per_window)
                if self._task.stopped or self._task.starved:
                    return
            yield WindowOver(self._window.end_time)

    @property
    def supply(self) -> Supply:
        """Devices at the start of the present look-ahead window. Rounds wait for the end of an
        upload window, which is not a shortage."""
        return super().supply._replace(starving="")

    @property
    def document(self) -> dict[str, Any]:
        """Keys of run.json on the making of the trace: the sampler of check-ins, the outcomes of
        uploads, and the draws of rounds."""
        counts = self._uploads.rounds_of_windows(self._scenario.rounds.count)
        names = [outcome.name.lower() for outcome in Outcome]
        return {
            **super().document,
            "uploads": [
                {
                    "window": window,
                    "rounds": counts[window],
                    "stored": int(outcomes[Outcome.ACCEPTED]),
                    **{
                        names[each]: int(outcomes[each])
                        for each in (Outcome.LATE, Outcome.DROPPED, Outcome.FAILED)
                    },
                }
                for window, outcomes in enumerate(self._outcomes)
            ],
            "sampling": self._uploads.schedule.model_dump(mode="json"),
        }

    def state(self) -> dict[str, NDArray]:
        stored = {field.name: getattr(self._stored, field.name) for field in fields(Stored)}
        return {
            **super().state(),
            **prefixed("stored.", stored),
            "attempt": np.array([self._attempt]),
            "outcomes": self._outcomes,
        }

    def load(self, state: dict[str, NDArray]) -> None:
        super().load(state)
        self._stored = Stored(**under("stored.", state))
        self._attempt = int(state["attempt"][0])
        self._outcomes = state["outcomes"]

    def _collect(self, number: int, is_last: bool) -> Settlement:
        """Takes the uploads of a look-ahead window, and settles the memory of their devices."""
        order = self._order(number)
        check_ins = self._shards.check_ins(order)
        self._window = order.window
        self._enter(self._window, check_ins)
        self._samplers.count(order.is_enumerated)
        # Shards draw the next window while this one is settled. After the last window the answer
        # would be unused.
        if not is_last:
            self._shards.prepare(self._order(number + 1))
        upload_window = number // self._ahead_per_window
        settlement = self._settle(check_ins, (upload_window + 1) * self._uploads.seconds)
        # Every outcome gets a count, even 0.
        counts = np.bincount(settlement.outcomes, minlength=self._outcomes.shape[1])
        self._outcomes[upload_window] += counts
        accepted = settlement.has_arrived
        more = Stored(
            settlement.device_ids[accepted],
            settlement.check_in_times[accepted],
            settlement.report_times[accepted],
        )
        # No device is in both: a device whose upload is stored keeps away until the window ends.
        self._stored = self._stored.with_more(more)
        self._shards.tell(settlement)
        return settlement

    def _settle(self, check_ins: CheckIns, window_end: float) -> Settlement:
        """Settles uploads: each device's first check-in of the list is its attempt.

        An upload takes the part of a device's work that is not training, and is a report to a round
        that every device starts by itself and that the window's end closes.
        """
        tried = self._tried(check_ins)
        # No device trains, so an upload fails as often as a report does: the failures of a real
        # upload are probably rarer, since it is short.
        fates = draw_fates(tried, self._attempt, self._rules.fates)
        rules = replace(self._rules, closing=_WindowEnd(window_end))
        reporting = resolve_reporting(
            tried, fates, tried.check_in_times, self._attempt, Settlement.NO_ROUND, rules
        )
        settlement = reporting.settlement
        # The server takes one upload of a device per window, whatever the device remembers.
        until = np.where(settlement.has_arrived, window_end, reporting.busy_until)
        again = np.minimum(np.ceil(until), float(NEVER)).astype(np.uint32)
        self._attempt += 1
        return replace(
            settlement,
            open_times=np.maximum(settlement.open_times, again),
            # The schedule forms the rounds, so devices that upload remember none.
            remembers_round=np.zeros(again.size, np.bool_),
        )

    def _tried(self, check_ins: CheckIns) -> Selected:
        """Returns the devices that try to upload, each at its first check-in; sorted by device
        id."""
        is_up = np.ones(check_ins.times.size, np.bool_)
        for outage_start, outage_end in self._rules.outages:
            is_up &= (check_ins.times < outage_start) | (check_ins.times >= outage_end)
        up = np.flatnonzero(is_up)
        # The list is in order of time, and `unique` returns the first place of each.
        device_ids, places = np.unique(check_ins.device_ids[up], return_index=True)
        rows = up[places]

        def column(values: NDArray, otherwise: float) -> NDArray:
            """Returns a column; an empty one stands for the same value everywhere."""
            return values[rows] if values.size else np.full(rows.size, otherwise, values.dtype)

        return Selected(
            device_ids=device_ids,
            check_in_times=check_ins.times[rows],
            interval_ends=check_ins.interval_ends[rows],
            fixed_seconds=check_ins.fixed_seconds[rows],
            # No device trains here, so an upload only takes the fixed seconds.
            training_seconds=np.zeros(rows.size, np.float32),
            upload_seconds=column(check_ins.upload_seconds, 0.0),
            timer_seconds=column(check_ins.timer_seconds, self._rules.timer_seconds),
            contributions=column(check_ins.contributions, 0),
            list_rows=rows,
        )

    def _rounds_of_window(self, window: int) -> Iterator[ClosedRound]:
        """Yields the rounds on the uploads of a finished window."""
        # Later windows have rounds of their own, so the uploads are not kept.
        stored, self._stored = self._stored, NOTHING
        self._schedule.start_window(window, stored.device_ids)
        count = self._uploads.rounds_of_windows(self._scenario.rounds.count)[window]
        task = self._task
        first_round = task.round_index
        failures = 0
        while task.round_index < first_round + count:
            # Rounds on the server are drawn one after the other.
            opened = (window + 1) * self._uploads.seconds
            started = max(opened, task.records[-1].closed if task.records else 0.0)
            eligible = self._schedule.eligible(task.round_index)
            # An upload is complete before its window ends, so no age is negative.
            is_kept = started - stored.report_times[eligible] <= self._uploads.keep_seconds
            expired, eligible = int(np.count_nonzero(~is_kept)), eligible[is_kept]
            least = self._schedule.least_eligible()
            if eligible.size < least:
                kept = f", and {expired} have expired" if expired else ""
                longer = "rounds.uploads.keep_days" if expired else "rounds.uploads.window_hours"
                self._starve(
                    f"upload window {window} stored {stored.device_ids.size} uploads, so that "
                    f"{eligible.size} are eligible in round {task.round_index}{kept}, fewer than "
                    f"rounds.report_goal={least}; lower it, or raise {longer} "
                    f"or population.devices={self._scenario.population.devices}"
                )
                return
            closed = self._draw_round(stored, eligible, opened, started)
            # A failed attempt keeps its number, so the next draw of this round differs.
            task.note(closed.record)
            yield closed
            # The next order comes after the window's rounds, and a replaced shard has this round by
            # then.
            self._shards.tell_if_many()
            if task.stopped:
                return
            failures = 0 if closed.record.is_committed else failures + 1
            if failures == MOST_FAILURES:
                self._starve(
                    f"{failures} attempts at round {task.round_index} had more than a tenth of "
                    "their uploads unresolved; lower rounds.uploads.unresolved_share="
                    f"{self._uploads.unresolved_share:g}"
                )
                return

    def _starve(self, reason: str) -> None:
        """Ends the run for a reason. Raises Starved if no round was committed."""
        if not self._task.round_index:
            raise Starved(reason)
        self._task.starved = reason

    def _draw_round(
        self, stored: Stored, eligible: Int64Array, opened: float, started: float
    ) -> ClosedRound:
        """Makes one attempt at a round from the eligible uploads. `opened` is the end of their
        window, and `started` the time of the draw, seconds since start."""
        task = self._task
        drawn = self._schedule.draw(eligible, self._attempt)
        device_ids = stored.device_ids[drawn]
        # Only a drawn upload shows whether it can be read.
        is_unresolved = self._unresolved.among(device_ids, self._attempt)
        unresolved = int(np.count_nonzero(is_unresolved))
        is_committed = unresolved <= most_unresolved(drawn.size)
        kept = Outcome.ACCEPTED if is_committed else Outcome.ABANDONED
        outcomes = np.where(is_unresolved, Outcome.FAILED, kept).astype(np.uint8)
        settlement = self._settlement_of_round(stored, drawn, outcomes)
        if is_committed and not task.may_commit(settlement, started):
            is_committed, settlement = False, without_commit(settlement)
        record = RoundRecord(
            round_index=task.round_index,
            opened=opened,
            started=started,
            closed=started + 60.0 * self._uploads.round_minutes,
            selected=drawn.size,
            reported=drawn.size - unresolved,
            accepted=drawn.size - unresolved if is_committed else 0,
            is_committed=is_committed,
            eligible_estimate=eligible.size,
        )
        self._shards.tell(settlement)
        self._attempt += 1
        return ClosedRound(record, settlement.accepted_device_ids, (settlement,))

    def _settlement_of_round(
        self, stored: Stored, drawn: Int64Array, outcomes: UInt8Array
    ) -> Settlement:
        """Returns the rows of an attempt at a round; its devices are not informed."""
        has_losses = self._rules.policies.losses.happen
        return Settlement(
            attempt=self._attempt,
            round_index=self._task.round_index,
            device_ids=stored.device_ids[drawn],
            check_in_times=stored.check_in_times[drawn],
            report_times=stored.report_times[drawn],
            outcomes=outcomes,
            open_times=np.zeros(drawn.size, np.uint32),
            remembers_round=np.zeros(drawn.size, np.bool_),
            forget_times=np.zeros(drawn.size if has_losses else 0, np.uint32),
        )
