"""Admission of devices by rules other than timers: membership, number of examples, and the age of
their history."""

import numpy as np

from fedray.base.arrays import BoolArray, Float64Array, UInt64Array
from fedray.scenario import Scenario
from fedray.scenario.participation import EVERYBODY
from fedray.wire.history import HistoryLosses, last_loss_before
from fedray.wire.members import are_members
from .data.source import ExampleSource
from .population import Presence, present_between


class Admission:
    """Rules of a scenario that admit a device, whatever it took part in.

    Args:
        scenario: scenario with the rules.
        data: examples of its devices.
        presence: joins and lifetimes of its devices.
    """

    def __init__(self, scenario: Scenario, data: ExampleSource, presence: Presence) -> None:
        participation = scenario.participation
        self._scenario, self._data, self._presence = scenario, data, presence
        self._least_examples = participation.min_example_count
        self.leaves_out = bool(self._least_examples) or participation.members != EVERYBODY
        """Whether some devices may never serve."""
        self._young_seconds = participation.young_history_seconds
        """Seconds that a device waits after its history began."""
        self.has_young = self._young_seconds > 0
        """Whether some devices wait because their history is too young."""
        self._can_be_young_again = self.has_young and participation.forgets_noticeably
        self._losses = HistoryLosses.of(scenario)

    def may_serve(self, device_ids: UInt64Array) -> BoolArray:
        """Returns whether devices [S] are members with the examples that a policy requires."""
        may_serve = are_members(self._scenario, device_ids)
        # Counting examples takes a draw of each device.
        if self._least_examples:
            may_serve &= self._data.examples_on(device_ids) >= self._least_examples
        return may_serve

    def trust_times(self, device_ids: UInt64Array, times: Float64Array) -> Float64Array:
        """Returns the times at which the history that devices [S] have at a time [S] is old enough,
        seconds since start; 0 for devices that exist from the start and have lost none."""
        trusted = np.zeros(device_ids.size)
        if not self._presence.is_everybody_always:
            joins, _ = present_between(self._presence, device_ids)
            trusted = np.where(joins > 0.0, joins + self._young_seconds, 0.0)
        if self._can_be_young_again:
            lost = last_loss_before(self._losses, device_ids, times)
            trusted = np.maximum(trusted, lost + self._young_seconds)
        return trusted
