"""Geometry of device ids: blocks, the parts of a trace, and the ranges of shards.

Ids 0 .. N-1 lie in blocks of 65,536. A part of a trace is one block, or a run of blocks where there
would be too many parts. A shard holds whole parts. So the parts' edges depend on N alone, and no
result depends on how many shards there are.
"""

import itertools

from fedray.base.errors import InputError

BLOCK_DEVICES = 65_536
MAX_PARTS = 256
"""A part costs two milliseconds however few rows it has: with 1,024, a run of 10^9 devices took 1.8
times as long as the same run of 10^7."""
MOST_SHARD_DEVICES = 2**32 - 2
"""Most devices of one shard, which numbers them in 32 bits."""


def part_devices(devices: int) -> int:
    """Device ids per part, of a population of so many `devices`: as few blocks as let MAX_PARTS
    parts hold the population."""
    blocks = -(-devices // BLOCK_DEVICES)
    # Candidates of check-ins are drawn by block, so no part may cut one.
    blocks_of_part = max(1, -(-blocks // MAX_PARTS))
    return blocks_of_part * BLOCK_DEVICES


def part_count(devices: int) -> int:
    """Parts of the trace of a population of so many `devices`, and so the most shards that have
    devices."""
    return -(-devices // part_devices(devices))


def part_ranges(devices: int, first_device: int, end_device: int) -> list[tuple[int, int]]:
    """Lists the parts [first, end) within a range of devices.

    Args:
        devices: of the whole population.
        first_device: where the range starts, the edge of a part.
        end_device: where it ends, the edge of a part.
    """
    # The last part of the population may be short.
    size = part_devices(devices)
    starts = range(first_device, end_device, size)
    return [(start, min(start + size, end_device)) for start in starts]


def shard_ranges(devices: int, shards: int) -> list[tuple[int, int]]:
    """Device ranges [first, end) of the shards: whole parts, as even as can be.

    A shard without parts has first == end; so many shards are allowed, and idle.

    Args:
        devices: of the whole population.
        shards: how many ranges.

    Raises:
        InputError: a shard would have more than MOST_SHARD_DEVICES.
    """
    unit = part_devices(devices)
    parts = part_count(devices)
    # Edges are those of parts, rounded down, so that every part lies in one shard.
    part_edges = [parts * index // shards for index in range(shards + 1)]
    edges = [min(devices, part * unit) for part in part_edges]
    ranges = list(itertools.pairwise(edges))
    if max(end - first for first, end in ranges) > MOST_SHARD_DEVICES:
        raise InputError.of(
            "shards",
            shards,
            f"are too few for {devices} devices: one holds {MOST_SHARD_DEVICES} at the most",
            "take more shards",
        )
    return ranges
