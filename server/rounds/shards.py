"""All shards of a population as one: their check-ins, and settlements that they have not received
yet."""

import dataclasses
from collections.abc import Sequence

from fedray.wire.messages import (
    CheckInOrder,
    CheckIns,
    Settlement,
    SettlementBatch,
    Settlements,
)
from fedray.wire.protocols import Pending, Shard

MOST_UNSENT_ROWS = 1 << 20
"""Number of unsent settlement rows (about 40 MB) at which they are sent without waiting for the
next order."""


class Shards:
    """The shards, and the settlements that they have not received yet.

    Args:
        shards: shards of the population, in order of their devices.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards
        self._unsent: list[Settlement] = []
        self._unsent_rows = 0

    def tell(self, settlement: Settlement) -> None:
        """Takes a settlement, which the shards receive with the next order."""
        self._unsent.append(settlement)
        self._unsent_rows += settlement.device_ids.size

    def prepare(self, order: CheckInOrder) -> None:
        """Announces the next order, without settlements."""
        for shard in self._shards:
            shard.prepare(order)

    def check_ins(self, order: CheckInOrder) -> CheckIns:
        """Returns the check-ins of all shards, which get the pending settlements first."""
        # All shards get the order before the first answer is awaited.
        answers: list[Pending[CheckIns]] = [
            shard.check_ins(dataclasses.replace(order, settlements=own))
            for shard, own in zip(self._shards, self._take_unsent(), strict=True)
        ]
        return CheckIns.merged([pending.result() for pending in answers])

    def tell_if_many(self) -> None:
        """Sends the pending settlements if they are many."""
        if self._unsent_rows >= MOST_UNSENT_ROWS:
            self.tell_now()

    def tell_now(self) -> None:
        """Sends the pending settlements."""
        # All shards get them before the first answer is awaited.
        answers = [
            shard.settle(own) for shard, own in zip(self._shards, self._take_unsent(), strict=True)
        ]
        for pending in answers:
            pending.result()

    def _take_unsent(self) -> Sequence[Settlements]:
        """Returns the pending settlements of each shard."""
        unsent, self._unsent, self._unsent_rows = self._unsent, [], 0
        # A single shard has all devices.
        if len(self._shards) == 1:
            return [tuple(unsent)]
        edges = [shard.first_device for shard in self._shards]
        return SettlementBatch.cut(unsent, [*edges, self._shards[-1].end_device])
