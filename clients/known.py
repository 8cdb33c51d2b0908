"""Constant data of a shard's devices that is drawn once and kept, within a stated memory. It
changes no answer."""

from typing import Any

import numpy as np

from fedray.base.arrays import Float32Array, UInt16Array, UInt32Array, UInt64Array
from fedray.base.blocks import BLOCK_DEVICES
from fedray.scenario import Scenario
from .admission import Admission
from .availability.model import Availability
from .data.source import ExampleSource
from .latency import LatencyModel, work_seconds
from .population import DeviceModel, usable_among

KNOWN_BYTES = 160 * 2**20
"""Memory of a shard for the availability data of devices, so that it is not drawn at every
listing."""
WORK_BYTES = 96 * 2**20
"""Largest memory of a shard for the work times of devices. A device checks in several times, but
its work time is drawn once."""
_WHOLE_BLOCK = np.arange(BLOCK_DEVICES, dtype=np.uint16)


class KnownMembers:
    """Devices of a shard that may ever take part, by block, with their availability data.

    Args:
        scenario: source of the devices.
        end_device: end of the shard.
        admission: rules that may leave devices out for good.
        availability: model of the intervals.
    """

    def __init__(
        self,
        scenario: Scenario,
        end_device: int,
        admission: Admission,
        availability: Availability,
    ) -> None:
        self._devices = DeviceModel.of(scenario)
        self._end_device = end_device
        self._admission, self._availability = admission, availability
        self._of_blocks: dict[int, tuple[UInt16Array, Any]] = {}
        self._room = KNOWN_BYTES

    def of_block(self, block: int) -> tuple[UInt16Array, Any]:
        """Returns the devices of the block that begins with a device, as ids less the block's
        first, and their constant availability data, which is kept for the first blocks, up to
        KNOWN_BYTES."""
        if block in self._of_blocks:
            return self._of_blocks[block]
        end = min(block + BLOCK_DEVICES, self._end_device)
        # If all devices are usable, blocks share one array instead of 128 KiB each.
        is_everybody = self._devices.usable_share == 1.0
        members = (
            _WHOLE_BLOCK[: end - block] if is_everybody else usable_among(self._devices, block, end)
        )
        if self._admission.leaves_out:
            members = members[self._admission.may_serve(members + np.uint64(block))]
        known, size = None, members.size * self._availability.bytes_to_know
        # Blocks beyond the memory have their data drawn at every listing.
        if 0 < size <= self._room:
            known = self._availability.known_of(members + np.uint64(block))
            self._room -= size
        self._of_blocks[block] = members, known
        return members, known

    def forget(self) -> None:
        """Frees the memory."""
        self._of_blocks, self._room = {}, KNOWN_BYTES


class KnownWork:
    """Work times of a shard's devices.

    Args:
        scenario: source of the devices.
        data: their examples.
        first_device: first device of the shard.
        end_device: end of the shard.
    """

    def __init__(
        self, scenario: Scenario, data: ExampleSource, first_device: int, end_device: int
    ) -> None:
        self.latency = LatencyModel.of(scenario, data)
        """Latency of the devices."""
        self._data, self._first_device = data, np.uint64(first_device)
        devices = end_device - first_device
        self._known = np.zeros((devices, 2), np.float32) if 8 * devices <= WORK_BYTES else None
        """Fixed and training seconds of each device; 0 until drawn. A device's two values are
        adjacent, because they are read together from random places in memory. Unwritten pages take
        no memory."""

    def seconds_of(self, local: UInt32Array) -> tuple[Float32Array, Float32Array]:
        """Returns the work times [A] of devices [A] by position; see `work_seconds`."""
        if self._known is None:
            return self._drawn(local)
        work = self._known.take(local, axis=0)
        fixed, training = work[:, 0].copy(), work[:, 1].copy()
        # Work of zero seconds counts as unknown, and is computed every time.
        unknown = np.flatnonzero((fixed == 0.0) & (training == 0.0))
        if unknown.size:
            fixed[unknown], training[unknown] = self._drawn(local[unknown])
            self._known[local[unknown]] = np.stack((fixed[unknown], training[unknown]), axis=1)
        return fixed, training

    def _drawn(self, local: UInt32Array) -> tuple[Float32Array, Float32Array]:
        device_ids: UInt64Array = local + self._first_device
        return work_seconds(self.latency, device_ids, self._data.examples_on(device_ids))
