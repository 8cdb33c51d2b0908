"""Memory of a shard's devices: when their timers open, and which rounds they took part in."""

import numpy as np

from fedray.base.arrays import BoolArray, Float64Array, Int32Array, Int64Array, UInt32Array
from fedray.scenario import Scenario
from fedray.wire.history import HistoryLosses
from fedray.wire.messages import Settlement
from .device_map import DeviceMap


class DeviceMemory:
    """Memory of devices that took part, which settlements fill and losses of history empty.

    Devices are known by their positions in the shard. Rounds and counts are kept only if a policy
    needs them.

    Args:
        scenario: scenario whose policies say what devices remember.
        devices: number of devices in the shard.
    """

    def __init__(self, scenario: Scenario, devices: int) -> None:
        participation = scenario.participation
        self.open_times = DeviceMap(devices)
        """Time at which each device's timer opens, whole seconds since start."""
        self.last_rounds = DeviceMap(devices)
        """Last round + 1 of each device; filled only if rounds must be separated."""
        self.forget_times = DeviceMap(devices)
        """Time at which each device loses its history, whole seconds since start; 0 for never."""
        self._contributions = DeviceMap(devices)
        """Number of reports that arrived in time; filled only with a cap."""
        self._forgotten = DeviceMap(devices)
        """Number of these reports before the last loss of the device's history."""
        self._participation = participation
        # A later rule also concerns rounds before it, so these are remembered from the start.
        self._separation = participation.most_separation
        self._is_capped = participation.counts_contributions
        self._uploads_are_stored = scenario.rounds.uploads is not None
        self._has_losses = HistoryLosses.of(scenario).happen

    def settle(self, local: Int64Array, settlement: Settlement) -> None:
        """Keeps what devices remember of a settlement.

        Args:
            local: positions of its devices [S].
            settlement: settlement of this shard's devices.
        """
        self.open_times.raise_to(local, settlement.open_times)
        # A round that draws stored uploads does not involve their devices.
        if settlement.is_of_uploads == self._uploads_are_stored:
            self._remember(local, settlement)

    def last_rounds_at(self, local: Int64Array, times: Float64Array) -> Int32Array:
        """Returns the last rounds [S] that devices [S] remember at a time [S], or -1; empty if
        rounds need not be separated."""
        if not self._separation:
            return np.empty(0, np.int32)
        last_rounds = np.where(self._has_forgotten(local, times), 0, self.last_rounds.get(local))
        # The map holds the round plus 1, so 0 (no round) becomes -1.
        return last_rounds.astype(np.int32) - 1

    def contributions_at(self, local: Int64Array, times: Float64Array) -> UInt32Array:
        """Returns the numbers of reports in time [S] that devices [S] remember at a time [S]; empty
        without a cap."""
        if not self._is_capped:
            return np.empty(0, np.uint32)
        counts = self._contributions.get(local) - self._forgotten.get(local)
        return np.where(self._has_forgotten(local, times), np.uint32(0), counts)

    def held_back_until(self, round_index: int) -> int:
        """Returns the largest entry of `last_rounds` that does not hold a device back from a
        round."""
        if not self._separation:
            return 0
        # No earlier round is that many rounds ago.
        return max(0, round_index - self._participation.separation_at(round_index) + 1)

    def _remember(self, local: Int64Array, settlement: Settlement) -> None:
        """Keeps last rounds and counts of devices, by position, if a policy needs them."""
        # Reports of abandoned rounds count too: the device cannot know the fate of its report.
        counted = local[settlement.has_arrived]
        if self._is_capped:
            is_lost = self._has_forgotten(
                counted, settlement.check_in_times[settlement.has_arrived]
            )
            # Maps keep the largest value of each device, so a count cannot return to zero. Lost
            # participations are counted separately, and `contributions_at` subtracts them.
            lost = counted[is_lost]
            self._forgotten.raise_to(lost, self._contributions.get(lost))
            counts = self._contributions.get(counted) + np.uint32(1)
            self._contributions.raise_to(counted, counts)
        if self._separation:
            kept = local[settlement.remembers_round]
            # Maps hold 0 for none, so round 0 is kept as 1.
            number = np.full(kept.size, settlement.round_index + 1, np.uint32)
            self.last_rounds.raise_to(kept, number)
        if self._has_losses and (self._is_capped or self._separation):
            # Only a device that stores something can lose it.
            is_written = settlement.has_arrived | settlement.remembers_round
            self.forget_times.raise_to(local[is_written], settlement.forget_times[is_written])

    def _has_forgotten(self, local: Int64Array, times: Float64Array) -> BoolArray:
        """Returns whether devices have lost their history at a time [S]."""
        if not self._has_losses:
            return np.zeros(local.size, np.bool_)
        forget_times = self.forget_times.get(local)
        return (forget_times > 0) & (forget_times <= times)
