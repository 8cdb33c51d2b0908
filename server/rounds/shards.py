"""All shards of a population as one: their check-ins, and settlements that they have not received
yet."""

import dataclasses
from collections.abc import Sequence

from fedray.wire.messages import CheckInOrder, CheckIns, Settlement, settlements_of_devices
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
        unsent = self._take_unsent()
        answers: list[Pending[CheckIns]] = []
        # All shards get the order before the first answer is awaited.
        for shard in self._shards:
            own = dataclasses.replace(order, settlements=_for_shard(unsent, shard))
            answers.append(shard.check_ins(own))
        return CheckIns.merged([pending.result() for pending in answers])

    def tell_if_many(self) -> None:
        """Sends the pending settlements if they are many."""
        if self._unsent_rows >= MOST_UNSENT_ROWS:
            self.tell_now()

    def tell_now(self) -> None:
        """Sends the pending settlements."""
        unsent = self._take_unsent()
        # All shards get them before the first answer is awaited.
        answers = [shard.settle(_for_shard(unsent, shard)) for shard in self._shards]
        for pending in answers:
            pending.result()

    def _take_unsent(self) -> list[Settlement]:
        unsent, self._unsent, self._unsent_rows = self._unsent, [], 0
        return unsent


def _for_shard(settlements: Sequence[Settlement], shard: Shard) -> tuple[Settlement, ...]:
    return settlements_of_devices(settlements, shard.first_device, shard.end_device)
