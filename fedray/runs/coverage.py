"""Coverage of a question: which devices had answered by the end of a window.

In a simulation the whole population is known, so the devices that did not come are known too. A
deployment sees only devices that came.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedray.base.arrays import BoolArray, UInt64Array
from fedray.base.document import Document, InJson
from fedray.clients.population import (
    DeviceModel,
    Presence,
    are_usable,
    habits_on,
    present_between,
)
from fedray.scenario import Scenario
from fedray.wire.device_classes import DeviceClasses, classes_of, classes_on
from fedray.wire.zones import zone_offsets_on

HABITS = ("0 to 25 %", "25 to 50 %", "50 to 75 %", "75 to 100 %")
"""Quarters of the devices by their propensity to be eligible, from the least."""


@dataclass(frozen=True, slots=True)
class CoverageGroup(Document):
    """Devices that have something in common, and how many of them answered in a window."""

    by: str
    """Their common property: "all", "zone", "class", "habit" or "use"."""
    label: str
    """Name of the group."""
    devices: int
    """Number of devices of the group that were in the population during the window."""
    came: int
    """Number of them whose upload was stored by the end of the window."""

    @property
    def share(self) -> InJson[float]:
        """Share of the devices that came; NaN without a device."""
        return self.came / self.devices if self.devices else float("nan")


class Devices:
    """All devices that are ever in the population of a scenario, with their groups.

    Args:
        scenario: scenario of the devices.

    device_ids: [N], sorted.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.device_ids: UInt64Array = np.arange(scenario.device_ids, dtype=np.uint64)
        self._presence = Presence.of(scenario)
        self._groups = list(self._groups_of(scenario))

    def present(self, start: float, end: float) -> BoolArray:
        """Returns which devices [N] were in the population at some time of [start, end)."""
        if self._presence.is_everybody_always:
            return np.ones(self.device_ids.size, np.bool_)
        joins, leaves = present_between(self._presence, self.device_ids)
        return (joins < end) & (leaves > start)

    def coverage(self, present: BoolArray, came: BoolArray) -> tuple[CoverageGroup, ...]:
        """Returns the groups that have devices, the whole population first.

        Args:
            present: devices [N] of the population during the window.
            came: devices [N] that answered.
        """
        everybody = CoverageGroup("all", "all", int(present.sum()), int(came.sum()))
        found = [everybody]
        for by, labels, members in self._groups:
            devices = np.bincount(members[present], minlength=len(labels))
            of_group = np.bincount(members[came], minlength=len(labels))
            rows = zip(labels, devices.tolist(), of_group.tolist(), strict=True)
            found += [CoverageGroup(by, *row) for row in rows if row[1]]
        return tuple(found)

    def _groups_of(self, scenario: Scenario) -> Iterator[tuple[str, list[str], NDArray]]:
        """Yields kinds of groups: name, labels [L], and the label of each device [N]."""
        ids = self.device_ids
        offsets, zones = np.unique(zone_offsets_on(scenario, ids), return_inverse=True)
        if offsets.size > 1:
            yield "zone", [f"UTC{each:+g}" for each in offsets], zones.astype(np.uint8)
        if scenario.population.classes:
            names = [each.name for each in classes_of(scenario)]
            yield "class", names, classes_on(DeviceClasses.of(scenario), ids)
        if scenario.availability.has_propensities:
            quarters = (len(HABITS) * habits_on(scenario, ids)).astype(np.uint8)
            yield "habit", list(HABITS), quarters
        if scenario.usable_share < 1.0:
            is_usable = are_usable(DeviceModel.of(scenario), ids).astype(np.uint8)
            yield "use", ["never eligible", "eligible"], is_usable
