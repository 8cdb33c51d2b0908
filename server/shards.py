"""All shards of a population as one: who checks in anywhere, and what has not yet been told."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedray.messages import Census, CheckInOrder, CheckIns, Settlement
from fedray.protocols import Pending, Shard


class Shards:
    """The shards, and the settlements that they have not heard of.

    Args:
        shards: of the population, in order of their devices.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards
        self._unsent: list[Settlement] = []

    def tell(self, settlement: Settlement) -> None:
        """Takes a settlement, which the shards hear with the next order."""
        self._unsent.append(settlement)

    def prepare(self, order: CheckInOrder) -> None:
        """Says what will be asked for next, without settlements."""
        for shard in self._shards:
            shard.prepare(order)

    def check_ins(self, order: CheckInOrder) -> CheckIns:
        """The check-ins of all shards, who are told of what they have not heard yet."""
        unsent, self._unsent = self._unsent, []
        answers: list[Pending[CheckIns]] = []
        # All shards are asked before the first answer is waited for.
        for shard in self._shards:
            own = dataclasses.replace(order, settlements=_for_shard(unsent, shard))
            answers.append(shard.check_ins(own))
        return _merge([pending.result() for pending in answers])

    def finish(self) -> None:
        """Tells the shards what they have not heard yet; is called once, after the last order."""
        unsent, self._unsent = self._unsent, []
        # All shards are asked before the first answer is waited for.
        answers = [shard.settle(_for_shard(unsent, shard)) for shard in self._shards]
        for pending in answers:
            pending.result()


def _for_shard(settlements: Sequence[Settlement], shard: Shard) -> tuple[Settlement, ...]:
    return tuple(
        settlement.slice_of_devices(shard.first_device, shard.end_device)
        for settlement in settlements
    )


def _merge(lists: Sequence[CheckIns]) -> CheckIns:
    """One list in order of (time, device). Shards come in order of device, so a stable sort by time
    breaks ties by device."""
    if len(lists) == 1:
        return lists[0]
    census = sum((part.census for part in lists), Census(0, 0, 0, 0))
    times = np.concatenate([part.times for part in lists])
    order = np.argsort(times, kind="stable")

    def merged(name: str) -> NDArray:
        column = np.concatenate([getattr(part, name) for part in lists])
        return column[order] if column.size else column

    return CheckIns(
        device_ids=merged("device_ids"),
        times=times[order],
        interval_ends=merged("interval_ends"),
        fixed_seconds=merged("fixed_seconds"),
        training_seconds=merged("training_seconds"),
        upload_seconds=merged("upload_seconds"),
        last_rounds=merged("last_rounds"),
        timer_seconds=merged("timer_seconds"),
        contributions=merged("contributions"),
        census=census,
    )
