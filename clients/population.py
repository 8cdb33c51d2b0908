"""Who the devices are: every attribute is a pure function of (seed, device), computed when asked
for.

Devices live in fixed blocks of 65,536 ids (fedray/blocks.py). A shard is a contiguous run of
whole blocks; blocks never depend on shards. Where devices join, ids are dealt to the blocks in the
order of joining, one each in turn: all blocks, and so all shards, have the same share of the
devices at any time, and those of a block that have joined are its first ids.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedray.blocks import BLOCK_DEVICES
from fedray.rng import Key, Stream, draw, exponential, normal, stream_key, uniform
from fedray.scenario import Scenario

# Addresses (a, b) within Stream.DEVICE: a = 0 throughout. Within Stream.PRESENCE and Stream.TIMER:
# (0, 0).
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
        reachable_share=scenario.usable_share,
        examples_median=population.examples_median,
        examples_sigma=population.examples_sigma,
        examples_max=float(population.examples_max),
        speed_sigma=latency.speed_between,
        downlink_sigma=latency.downlink_sigma,
        uplink_sigma=latency.uplink_sigma,
    )


@njit(inline="always")
def is_reachable(model, device):
    """Whether the task can use the device at all."""
    if model.reachable_share == 1.0:
        return True
    w0, _, _, _ = draw(model.key, device, 0, _REACH)
    return uniform(w0) < model.reachable_share


class Zones(NamedTuple):
    """Time zones: upper edges of their shares [Z], and local time minus UTC, hours [Z]."""

    key: Key
    edges: NDArray[np.float64]
    offsets: NDArray[np.float64]


def zones_of(scenario: Scenario) -> Zones:
    """The time zones of a scenario."""
    zones = scenario.population.time_zones
    return Zones(
        key=stream_key(scenario.seed, Stream.DEVICE),
        edges=np.cumsum([zone.share for zone in zones]),
        offsets=np.array([zone.utc_offset_hours for zone in zones], np.float64),
    )


@njit(forceinline=True)
def zone_index(key, edges, device):
    """Which of the zones a device lives in."""
    if edges.size == 1:
        return 0
    _, w1, _, _ = draw(key, device, 0, _REACH)
    u = uniform(w1)
    zone = 0
    while zone < edges.size - 1 and edges[zone] < u:
        zone += 1
    return zone


@njit(forceinline=True)
def examples_of(model, device):
    """Training examples of a device in one round: log-normal around the median, at least 1, at most
    the scenario's limit."""
    _, _, w2, _ = draw(model.key, device, 0, _REACH)
    examples = model.examples_median * math.exp(model.examples_sigma * normal(w2))
    return max(1.0, min(model.examples_max, math.floor(examples)))


@njit(forceinline=True)
def speed_of(model, device):
    """(training-time factor, download-rate factor, upload-rate factor) of a device, each with
    median 1."""
    w0, w1, w2, _ = draw(model.key, device, 0, _SPEED)
    return (
        math.exp(model.speed_sigma * normal(w0)),
        math.exp(model.downlink_sigma * normal(w1)),
        math.exp(model.uplink_sigma * normal(w2)),
    )


class JoinOrder(NamedTuple):
    """How ids are dealt to blocks in the order of joining: one to each block in turn, until the
    last block is full, then one to each of the others."""

    blocks: int
    block_devices: int
    last_block_devices: int


@njit(inline="always")
def join_rank(order, device):
    """How many devices join before a device, by its id."""
    block, offset = device // order.block_devices, device % order.block_devices
    if offset < order.last_block_devices:
        return offset * order.blocks + block
    return (
        order.last_block_devices * order.blocks
        + (offset - order.last_block_devices) * (order.blocks - 1)
        + block
    )


def devices_of_ranks(order: JoinOrder, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ids [N] of the devices with join ranks [N]; the inverse of `join_rank`."""
    dealt_to_all = order.last_block_devices * order.blocks
    is_late, others = ranks >= dealt_to_all, max(1, order.blocks - 1)
    turn = np.where(is_late, ranks - dealt_to_all, ranks)
    offset, block = np.divmod(turn, np.where(is_late, others, order.blocks))
    return block * order.block_devices + offset + np.where(is_late, order.last_block_devices, 0)


@njit(cache=True, nogil=True)
def joined_in_block(order: JoinOrder, block: int, joined: int) -> int:
    """How many devices of a block are among the first `joined` of all: its first ids."""
    dealt_to_all = order.last_block_devices * order.blocks
    if joined <= dealt_to_all:
        return max(0, -((block - joined) // order.blocks))
    if block == order.blocks - 1:
        return order.last_block_devices
    late = -((block - (joined - dealt_to_all)) // (order.blocks - 1))
    return min(order.block_devices, order.last_block_devices + max(0, late))


class Presence(NamedTuple):
    """When devices are there: the first `devices` from the start, the others join one after the
    other; infinity for never."""

    key: Key
    order: JoinOrder
    devices: int
    devices_at_the_end: int
    seconds_per_join: float
    lifetime_seconds: float

    @property
    def is_everybody_always(self) -> bool:
        """Whether nobody joins or leaves."""
        return self.seconds_per_join == self.lifetime_seconds == math.inf


def presence_of(scenario: Scenario) -> Presence:
    """Joins and lifetimes of a scenario."""
    population, devices = scenario.population, scenario.device_ids
    block_devices = (
        BLOCK_DEVICES if population.joins_per_day else devices
    )  # without joins, ids are in order already
    blocks = -(-devices // block_devices)
    return Presence(
        key=stream_key(scenario.seed, Stream.PRESENCE),
        order=JoinOrder(blocks, block_devices, devices - (blocks - 1) * block_devices),
        devices=population.devices,
        devices_at_the_end=devices,
        seconds_per_join=86_400.0 / population.joins_per_day
        if population.joins_per_day
        else math.inf,
        lifetime_seconds=86_400.0 * population.lifetime_days
        if population.lifetime_days is not None
        else math.inf,
    )


def joined_before(presence: Presence, seconds: float) -> int:
    """How many devices, in the order of joining, hold all that have joined before a time."""
    if presence.seconds_per_join == math.inf:
        return presence.devices
    # One more than there can be, so that no rounding leaves one out.
    return min(
        presence.devices_at_the_end,
        presence.devices + math.ceil(seconds / presence.seconds_per_join) + 1,
    )


@njit(cache=True, nogil=True)
def present_between(
    presence: Presence, device_ids: NDArray[np.uint64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(joining, leaving) times [N] of devices, seconds since start. Lives have no memory: those
    there at the start begin anew."""
    joins, leaves = np.zeros(device_ids.size), np.full(device_ids.size, np.inf)
    for index in range(device_ids.size):
        device = np.int64(device_ids[index])
        w0, w1, _, _ = draw(presence.key, device, 0, 0)
        rank = join_rank(presence.order, device)
        if rank >= presence.devices:
            joins[index] = (rank - presence.devices + uniform(w0)) * presence.seconds_per_join
        if presence.lifetime_seconds < np.inf:
            leaves[index] = joins[index] + presence.lifetime_seconds * exponential(w1)
    return joins, leaves


class TimerHabits(NamedTuple):
    """How devices keep their timers: the share that ignores them, and the spread of the others'
    clocks."""

    key: Key
    timer_seconds: float
    violator_share: float
    skew_seconds: float

    @property
    def is_exact(self) -> bool:
        """Whether every device keeps the timer to the second."""
        return self.violator_share == self.skew_seconds == 0.0


def timer_habits(scenario: Scenario) -> TimerHabits:
    """The timers of a scenario's devices."""
    participation = scenario.participation
    return TimerHabits(
        key=stream_key(scenario.seed, Stream.TIMER),
        timer_seconds=3600.0 * participation.timer_hours,
        violator_share=participation.timer_violators,
        skew_seconds=3600.0 * participation.clock_skew_hours,
    )


@njit(cache=True, nogil=True)
def timer_seconds_of(habits: TimerHabits, device_ids: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Seconds [N] that devices really wait: none for those that ignore the timer, else its length
    by their own clocks."""
    seconds = np.zeros(device_ids.size)
    for index in range(device_ids.size):
        w0, w1, _, _ = draw(habits.key, device_ids[index], 0, 0)
        if uniform(w0) >= habits.violator_share:
            seconds[index] = max(0.0, habits.timer_seconds + habits.skew_seconds * normal(w1))
    return seconds


@njit(cache=True, nogil=True)
def are_reachable(model: DeviceModel, device_ids: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Whether the task can use devices [N]."""
    answer = np.empty(device_ids.size, np.bool_)
    for index in range(device_ids.size):
        answer[index] = is_reachable(model, device_ids[index])
    return answer


@njit(cache=True, nogil=True)
def reachable_among(model: DeviceModel, first_device: int, end_device: int) -> NDArray[np.uint16]:
    """Offsets [M] from first_device, at most BLOCK_DEVICES of them, of the devices that the task
    can use."""
    offsets = np.empty(end_device - first_device, np.uint16)
    total = 0
    for device in range(first_device, end_device):
        if is_reachable(model, device):
            offsets[total] = device - first_device
            total += 1
    return offsets[:total].copy()


@njit(cache=True)
def examples_on(model: DeviceModel, device_ids: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Training examples [S] on devices [S]."""
    examples = np.empty(device_ids.size, np.uint32)
    for index in range(device_ids.size):
        if index and device_ids[index] == device_ids[index - 1]:  # rows of a device stand together
            examples[index] = examples[index - 1]
        else:
            examples[index] = np.uint32(examples_of(model, device_ids[index]))
    return examples
