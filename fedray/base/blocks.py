"""Geometry of device ids: blocks, the parts of a trace, and the ranges of shards.

Ids 0 .. N-1 lie in blocks of 65,536. A part of a trace is one block, or a run of blocks if there
would be too many parts. A shard holds whole parts. So the edges of parts depend only on N, and no
result depends on the number of shards.
"""

import itertools

from fedray.base.errors import InputError

BLOCK_DEVICES = 65_536
MAX_PARTS = 256
"""A part costs two milliseconds however few rows it has: with 1,024, a run of 10^9 devices took 1.8
times as long as the same run of 10^7."""
MOST_SHARD_DEVICES = 2**32 - 2
"""Largest number of devices in a shard, which numbers them in 32 bits."""


def part_devices(devices: int) -> int:
    """Returns the size of a part in device ids: the fewest blocks with which at most MAX_PARTS
    parts hold a population of `devices`."""
    blocks = -(-devices // BLOCK_DEVICES)
    # Candidates of check-ins are drawn by block, so no part may cut one.
    blocks_of_part = max(1, -(-blocks // MAX_PARTS))
    return blocks_of_part * BLOCK_DEVICES


def part_count(devices: int) -> int:
    """Returns the number of parts of a population, which limits the number of useful shards."""
    return -(-devices // part_devices(devices))


def part_ranges(devices: int, first_device: int, end_device: int) -> list[tuple[int, int]]:
    """Lists the parts [first, end) within a range of devices.

    Args:
        devices: size of the population.
        first_device, end_device: edges of parts.
    """
    # The last part of the population may be short.
    size = part_devices(devices)
    starts = range(first_device, end_device, size)
    return [(start, min(start + size, end_device)) for start in starts]


def shard_ranges(devices: int, shards: int) -> list[tuple[int, int]]:
    """Divides the parts of a population into device ranges [first, end) of nearly equal size.

    A shard without parts has first == end, and is idle.

    Raises:
        InputError: a shard would have more than MOST_SHARD_DEVICES.
    """
    unit = part_devices(devices)
    parts = part_count(devices)
    # Edges are rounded down to edges of parts, so that every part lies in one shard.
    part_edges = [parts * index // shards for index in range(shards + 1)]
    edges = [min(devices, part * unit) for part in part_edges]
    ranges = list(itertools.pairwise(edges))
    if max(end - first for first, end in ranges) > MOST_SHARD_DEVICES:
        raise InputError.of(
            "shards",
            shards,
            f"must leave each shard at most {MOST_SHARD_DEVICES} of {devices} devices",
            "take more shards",
        )
    return ranges
