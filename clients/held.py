"""Devices of a shard that the list `participation.hold` makes wait. Only the census asks: selection
turns them away, because the list begins with a round, within a window."""

import numpy as np

from fedray.base.arrays import UInt32Array
from fedray.scenario import Scenario


class HeldHere:
    """Held devices among those of a shard.

    Args:
        scenario: scenario whose table `participation` names the list.
        first_device: first device of the shard.
        end_device: end of its devices.
    """

    def __init__(self, scenario: Scenario, first_device: int, end_device: int) -> None:
        self._from_round = scenario.participation.from_round
        self._local = np.empty(0, np.uint32)
        hold = scenario.participation.hold
        if hold is None:
            return
        held = hold.devices
        begin, end = np.searchsorted(
            held.device_ids, np.array([first_device, end_device], np.uint64)
        )
        self._local = (held.device_ids[begin:end] - np.uint64(first_device)).astype(np.uint32)
        self._first_rounds = held.first_rounds[begin:end]
        self._first_times = held.first_times[begin:end]

    def at(self, round_index: int, time: float) -> UInt32Array:
        """Returns the positions [H] of devices that may not take part in a round yet, sorted.

        Args:
            round_index: the round that is being formed.
            time: seconds since start.
        """
        if not self._local.size or round_index < self._from_round:
            return self._local[:0]
        return self._local[(round_index < self._first_rounds) | (time < self._first_times)]
