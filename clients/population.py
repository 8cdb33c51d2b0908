"""Who the devices are: every attribute is a pure function of (seed, device), computed when asked for.

Devices live in fixed blocks of 65,536 ids (fedray/trace/schema.py). A shard is a contiguous run of whole blocks; blocks never
depend on shards.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedray.rng import Key, Stream, draw, normal, stream_key, uniform
from fedray.scenario import Scenario
from fedray.trace.schema import part_devices

# Addresses (a, b) within Stream.DEVICE: a = 0 throughout.
_REACH, _SPEED = 0, 1


class DeviceModel(NamedTuple):
    """What compiled code needs to derive a device's attributes."""

    key: Key
    reachable_share: float
    examples_median: float
    examples_sigma: float
    examples_max: float
    speed_sigma: float
    downlink_sigma: float
    uplink_sigma: float


def device_model(scenario: Scenario) -> DeviceModel:
    """The device model of a scenario."""
    population, latency = scenario.population, scenario.latency
    return DeviceModel(
        key=stream_key(scenario.seed, Stream.DEVICE),
        reachable_share=population.reach * (1.0 - population.unreachable),
        examples_median=population.examples_median,
        examples_sigma=population.examples_sigma,
        examples_max=float(population.examples_max),
        speed_sigma=latency.speed_between,
        downlink_sigma=latency.downlink_sigma,
        uplink_sigma=latency.uplink_sigma,
    )


def part_count(devices: int) -> int:
    """Parts of the trace, and so the most shards that have devices."""
    return -(-devices // part_devices(devices))


def shard_ranges(devices: int, shards: int) -> list[tuple[int, int]]:
    """Device ranges [first, end) of the shards: whole trace parts, as even as can be.

    A shard without parts has first == end; so many shards are allowed, and idle.
    """
    unit = part_devices(devices)
    parts = part_count(devices)
    edges = [min(devices, (parts * index // shards) * unit) for index in range(shards + 1)]
    return list(itertools.pairwise(edges))


@njit(inline="always")
def is_reachable(model, device):
    """Whether the task can use the device at all."""
    w0, _, _, _ = draw(model.key, device, 0, _REACH)
    return uniform(w0) < model.reachable_share


@njit(inline="always")
def zone_uniform(model, device):
    """The uniform that picks the device's time zone."""
    _, w1, _, _ = draw(model.key, device, 0, _REACH)
    return uniform(w1)


@njit(forceinline=True)
def examples_of(model, device):
    """Training examples of a device in one round: log-normal around the median, at least 1, at most the scenario's limit."""
    _, _, w2, _ = draw(model.key, device, 0, _REACH)
    examples = model.examples_median * math.exp(model.examples_sigma * normal(w2))
    return max(1.0, min(model.examples_max, math.floor(examples)))


@njit(forceinline=True)
def speed_of(model, device):
    """(training-time factor, download-rate factor, upload-rate factor) of a device, each with median 1."""
    w0, w1, w2, _ = draw(model.key, device, 0, _SPEED)
    return (
        math.exp(model.speed_sigma * normal(w0)),
        math.exp(model.downlink_sigma * normal(w1)),
        math.exp(model.uplink_sigma * normal(w2)),
    )


@njit(cache=True)
def examples_on(model: DeviceModel, device_ids: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Training examples [S] on devices [S]."""
    examples = np.empty(device_ids.size, np.uint32)
    for index in range(device_ids.size):
        examples[index] = np.uint32(examples_of(model, device_ids[index]))
    return examples
