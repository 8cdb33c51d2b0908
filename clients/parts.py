"""Parts of the trace from the rows of a shard: each is a range of devices, as Parquet."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedray.base.arrays import Float64Array, UInt64Array
from fedray.base.blocks import part_ranges
from fedray.scenario import Scenario
from fedray.trace.writer import encode_part
from fedray.wire.device_classes import DeviceClasses, counts_by_class
from fedray.wire.history import HistoryLosses, losses_between
from fedray.wire.messages import Settlement, ShardPart
from fedray.wire.owners import OwnersOfDevices, owners_on
from .data.source import ExampleSource
from .rows import RowStore


class TraceParts:
    """Rows of a shard, and the parts of the trace that they become.

    Args:
        scenario: source of the devices.
        data: their examples.
        first_device: first device of the shard.
        end_device: end of the shard.
    """

    def __init__(
        self, scenario: Scenario, data: ExampleSource, first_device: int, end_device: int
    ) -> None:
        self._data = data
        self._encoder = PartEncoder(scenario)
        self._owners = OwnersOfDevices.of(scenario)
        self._rows = RowStore(has_versions=scenario.rounds.mode == "buffered")
        self._ranges = part_ranges(scenario.device_ids, first_device, end_device)

    @property
    def count(self) -> int:
        """Number of the parts."""
        return len(self._ranges)

    @property
    def rows(self) -> int:
        """Number of the rows."""
        return self._rows.rows

    def add(self, settlement: Settlement) -> None:
        """Adds the rows of a settlement of a round. Attempts must come in order."""
        # An attempt may have selected none of this shard's devices.
        if settlement.device_ids.size and not settlement.is_of_uploads:
            self._rows.add(settlement)

    def encoded(self, part: int) -> ShardPart:
        """Encodes a part, by its number, as Parquet, its rows sorted by (device, check-in time)."""
        first, end = self._ranges[part]
        columns = self._rows.of_devices(first, end)
        # It follows from the device, so it is derived here instead of kept with every row.
        columns["examples"] = self._data.examples_on(columns["device_id"]).astype(np.uint32)
        if self._owners is not None:
            columns["owner_id"] = owners_on(self._owners, columns["device_id"])
        return self._encoder.encoded(first, end, columns)


class PartEncoder:
    """Encodes the parts of a run's trace, with what follows from their rows: losses of histories,
    and participations by class.

    Args:
        scenario: scenario of the run.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._classes = DeviceClasses.of(scenario)
        self._losses = HistoryLosses.of(scenario)

    def encoded(
        self, first_device: int, end_device: int, columns: Mapping[str, NDArray]
    ) -> ShardPart:
        """Encodes one part; see `encode_part`. Rows are sorted by (device, check-in time)."""
        part = encode_part(first_device, end_device, columns)
        losses = classes = None
        if self._losses.happen:
            # From the first check-in of each device that has rows to its last.
            losses = losses_between(self._losses, *_spans_of(columns))
        if self._classes.edges.size > 1:
            rows = (columns[name] for name in ("device_id", "round", "outcome"))
            classes = counts_by_class(self._classes, *rows)
        return replace(part, losses=losses, classes=classes)


def _spans_of(
    columns: Mapping[str, NDArray],
) -> tuple[UInt64Array, Float64Array, Float64Array]:
    """Returns the devices [S] that have rows, with their first and last check-in."""
    device_ids, times = columns["device_id"], columns["checkin_time"]
    # Rows are sorted by device, so a device's first row is where the id changes.
    first = np.flatnonzero(np.diff(device_ids, prepend=np.uint64(2**64 - 1)))
    # Cut to the number of devices, because a part may have no rows at all.
    last = np.append(first[1:], device_ids.size)[: first.size] - 1
    return device_ids[first], times[first], times[last]
