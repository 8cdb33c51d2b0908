"""Parts of the trace from the rows of a shard: each is a range of devices, as Parquet."""

import numpy as np

from fedray.base.blocks import part_ranges
from fedray.scenario import Scenario
from fedray.trace.writer import PartEncoder
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
