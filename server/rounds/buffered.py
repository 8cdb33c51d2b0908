"""The coordinator of buffered asynchronous rounds: a round is a buffer of reports, which devices
that started at any time fill (FedBuff, Nguyen et al. 2022; Papaya, Huba et al. 2022)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedray.base.rng import Stream, stream_key
from fedray.scenario import Scenario
from fedray.scenario.several_tasks import tasks_of
from fedray.trace.checkpoints import prefixed, under
from fedray.wire.messages import CheckIns, RoundRecord
from fedray.wire.protocols import Shard
from .buffer import EXHAUSTED, Buffer, BufferRules
from .coordinator import ClosedRound, RoundLoop
from .pace import Pace
from .rounds import without_commit
from .task import TaskRounds


class BufferedCoordinator(RoundLoop):
    """Forms rounds of buffered reports.

    Devices that are still training when the last buffer is released have no row in the trace.

    Args:
        scenario: source of the rounds and their rules.
        shards: shards of the population, in order of their devices.
    """

    def __init__(self, scenario: Scenario, shards: Sequence[Shard]) -> None:
        (task,) = tasks_of(scenario)
        super().__init__([TaskRounds(task)], shards, Pace([scenario]))
        return_key = stream_key(scenario.seed, Stream.RETURN)
        self._buffer = Buffer(BufferRules.of(scenario), return_key)

    def state(self) -> dict[str, NDArray]:
        return {**super().state(), **prefixed("buffer.", self._buffer.state())}

    def load(self, state: dict[str, NDArray]) -> None:
        super().load(state)
        self._buffer.load(under("buffer.", state))

    def _start_window(self, check_ins: CheckIns) -> None:
        self._buffer.start_window(check_ins, self._window)

    def _next_event(self) -> ClosedRound | None:
        status, time = self._buffer.advance()
        if status == EXHAUSTED:
            return None
        (task,) = self.tasks
        settlement = self._buffer.release()
        if task.is_late(time):
            task.starve(time)
        is_committed = not task.starved and task.may_commit(settlement, task.opened)
        if not is_committed:
            settlement = without_commit(settlement)
        accepted = settlement.accepted_device_ids
        self._shards.tell(settlement)
        # A buffer opens when the one before it is released.
        opened, task.opened = task.opened, time
        record = RoundRecord(
            round_index=task.round_index,
            opened=opened,
            started=opened,
            closed=time,
            selected=int(settlement.device_ids.size),
            reported=int(np.count_nonzero(~np.isnan(settlement.report_times))),
            accepted=int(accepted.size),
            is_committed=is_committed,
            eligible_estimate=task.census.eligible,
        )
        task.note(record)
        return ClosedRound(record, accepted, (settlement,))
