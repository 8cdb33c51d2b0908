"""The coordinator of buffered asynchronous rounds: a round is a buffer of reports, which devices
that started at any time fill (FedBuff, Nguyen et al. 2022; Papaya, Huba et al. 2022)."""

from collections.abc import Sequence

import numpy as np

from fedray.base.rng import Stream, stream_key
from fedray.scenario import Scenario
from fedray.server.rounds.buffer import EXHAUSTED, Buffer, BufferRules
from fedray.server.rounds.coordinator import ClosedRound, RoundLoop
from fedray.server.rounds.rounds import without_commit
from fedray.wire.messages import Outcome, RoundRecord
from fedray.wire.protocols import Shard


class BufferedCoordinator(RoundLoop):
    """Forms rounds of buffered reports.

    Devices that still train when the last buffer is released are in no row of the trace.

    Args:
        scenario: says the rounds and their rules.
        shards: of the population, in order of their devices.
    """

    def __init__(self, scenario: Scenario, shards: Sequence[Shard]) -> None:
        return_key = stream_key(scenario.seed, Stream.RETURN)
        self._buffer = Buffer(BufferRules.of(scenario), return_key)
        super().__init__(scenario, shards, self._buffer)

    def _next_attempt(self) -> ClosedRound | None:
        status, time = self._buffer.advance()
        if status == EXHAUSTED:
            return None
        settlement = self._buffer.release()
        accepted = settlement.device_ids[settlement.outcomes == Outcome.ACCEPTED]
        if self._budget is not None:
            self.stopped = self._budget.refusal(accepted)
        if self.stopped:
            settlement = without_commit(settlement)
            accepted = accepted[:0]
        self._shards.tell(settlement)
        # A buffer opens when the one before it is released.
        opened, self._opened = self._opened, time
        record = RoundRecord(
            round_index=self._round_index,
            opened=opened,
            started=opened,
            closed=time,
            selected=int(settlement.device_ids.size),
            reported=int(np.count_nonzero(~np.isnan(settlement.report_times))),
            accepted=int(accepted.size),
            is_committed=not self.stopped,
            eligible_estimate=self._census.eligible,
        )
        return ClosedRound(record, accepted, settlement)
