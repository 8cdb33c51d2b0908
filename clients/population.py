"""Attributes of devices: each is a pure function of (seed, device), computed on demand.

Devices live in fixed blocks of 65,536 ids (fedray/base/blocks.py). A shard is a contiguous run of
whole blocks; blocks never depend on shards. If devices join, ids are dealt to the blocks in the
order of joining, one to each in turn: all blocks, and so all shards, have the same share of the
devices at any time, and the devices of a block that have joined have its first ids.
"""

import math
from typing import NamedTuple

import numpy as np

from fedray.base.arrays import (
    BoolArray,
    Float64Array,
    Int64Array,
    UInt16Array,
    UInt32Array,
    UInt64Array,
)
from fedray.base.blocks import BLOCK_DEVICES
from fedray.base.compiled import njit
from fedray.base.rng import Key, Stream, draw, exponential, normal, stream_key, uniform
from fedray.scenario import Scenario
from fedray.wire.device_classes import DeviceClasses, class_of, classes_of
from fedray.wire.zones import REACH

# Part b of the address (0, b) within Stream.DEVICE, whose REACH = 0 is in fedray/wire/zones.py.
# Within Stream.PRESENCE and Stream.TIMER: (0, 0).
_SPEED = 1


class DeviceModel(NamedTuple):
    """Numbers from which a device's attributes derive, except its class."""

    key: Key
    """Key of the draws."""
    usable_share: float
    """Share of the devices that the task can use."""
    examples_median: float
    """Median number of training examples on a device; see `fedray.scenario.population`."""
    examples_sigma: float
    """Log-standard deviation of that number."""
    examples_max: float
    """Largest number of training examples on a device."""
    speed_sigma: float
    """Log-standard deviation of the training time between devices."""
    downlink_sigma: float
    """Log-standard deviation of the downlink rate."""
    uplink_sigma: float
    """Log-standard deviation of the uplink rate."""

    @classmethod
    def of(cls, scenario: Scenario) -> "DeviceModel":
        """Compiles the tables `population` and `latency`."""
        population = scenario.population
        latency = scenario.latency
        return cls(
            key=stream_key(scenario.seed, Stream.DEVICE),
            usable_share=scenario.usable_share,
            examples_median=population.examples_median,
            examples_sigma=population.examples_sigma,
            examples_max=float(population.examples_max),
            speed_sigma=latency.speed_between,
            downlink_sigma=latency.downlink_sigma,
            uplink_sigma=latency.uplink_sigma,
        )


@njit(inline="always")
def is_usable(model, device):
    """Whether the task can use a device."""
    # No uniform reaches 1, so a draw would give the same.
    if model.usable_share == 1.0:
        return True
    w0 = draw(model.key, device, 0, REACH)[0]
    return uniform(w0) < model.usable_share


def habits_on(scenario: Scenario, device_ids: UInt64Array) -> Float64Array:
    """Returns the quantiles [G], between 0 and 1, of the propensities of devices [G] to be
    eligible among all devices, for models with propensities."""
    return _habits_on(stream_key(scenario.seed, Stream.HABIT), device_ids)


@njit(cache=True, nogil=True)
def _habits_on(key, device_ids):
    found = np.empty(device_ids.size)
    for asked in range(device_ids.size):
        # The habit model draws the propensity by inversion of the same word.
        found[asked] = uniform(draw(key, device_ids[asked], 0, 0)[2])
    return found


@njit(forceinline=True)
def examples_of(model, device, class_factor):
    """Returns the number of training examples on a device, as float64: log-normal around the median
    times the factor of the device's class, from 1 to the model's limit."""
    # The third word of the address: the first two decide whether the device is usable, and its
    # zone.
    w2 = draw(model.key, device, 0, REACH)[2]
    spread = math.exp(model.examples_sigma * normal(w2))
    examples = math.floor(class_factor * model.examples_median * spread)
    return max(1.0, min(model.examples_max, examples))


@njit(forceinline=True)
def speed_of(model, device):
    """Returns factors on the training time, download rate and upload rate of a device; log-normal
    with median 1."""
    w0, w1, w2, _ = draw(model.key, device, 0, _SPEED)
    return (
        math.exp(model.speed_sigma * normal(w0)),
        math.exp(model.downlink_sigma * normal(w1)),
        math.exp(model.uplink_sigma * normal(w2)),
    )


class JoinOrder(NamedTuple):
    """Order in which ids are dealt to blocks: one to each block in turn until the last block is
    full, then one to each of the others."""

    blocks: int
    """Number of blocks."""
    block_devices: int
    """Number of ids in every block but the last."""
    last_block_devices: int
    """Number of ids in the last block."""


@njit(inline="always")
def join_rank(order, device):
    """Returns the number of devices that join before a device."""
    # The place of an id within its block is the turn in which it is dealt.
    block = device // order.block_devices
    turn = device % order.block_devices
    if turn < order.last_block_devices:
        return turn * order.blocks + block
    # The last block is full: a turn deals one id less from here on.
    dealt_to_all = order.last_block_devices * order.blocks
    late_turn = turn - order.last_block_devices
    return dealt_to_all + late_turn * (order.blocks - 1) + block


def devices_of_ranks(order: JoinOrder, ranks: Int64Array) -> Int64Array:
    """Returns the device ids [N] of join ranks [N]; the inverse of `join_rank`."""
    dealt_to_all = order.last_block_devices * order.blocks
    is_late = ranks >= dealt_to_all
    dealt = np.where(is_late, ranks - dealt_to_all, ranks)
    # With a single block no rank is late, and any divisor but 0 will do.
    late_blocks = max(1, order.blocks - 1)
    ids_per_turn = np.where(is_late, late_blocks, order.blocks)
    turn, block = np.divmod(dealt, ids_per_turn)
    first_turn = np.where(is_late, order.last_block_devices, 0)
    return block * order.block_devices + turn + first_turn


@njit(cache=True, nogil=True)
def joined_in_block(order: JoinOrder, block: int, joined: int) -> int:
    """Returns the number of devices in a block, its first ids, among the first `joined` of all."""
    dealt_to_all = order.last_block_devices * order.blocks
    # -((b - n) // m) is (n - b) / m, rounded up: the turns in which n ids reach block b of m.
    if joined <= dealt_to_all:
        return max(0, -((block - joined) // order.blocks))
    # The last block is full, and the late turns skip it.
    if block == order.blocks - 1:
        return order.last_block_devices
    dealt_late = joined - dealt_to_all
    late = max(0, -((block - dealt_late) // (order.blocks - 1)))
    return min(order.block_devices, order.last_block_devices + late)


class Presence(NamedTuple):
    """Joins and lifetimes of devices: the first are present from the start, the others join one
    after the other."""

    key: Key
    """Key of the draws."""
    order: JoinOrder
    """Order in which ids are dealt to blocks."""
    devices: int
    """Number of devices at the start."""
    devices_at_the_end: int
    """Number of devices that have joined by the end of the simulated days."""
    seconds_per_join: float
    """Time between two joins; infinity without joins."""
    lifetime_seconds: float
    """Mean time until a device leaves; infinity for never."""

    @classmethod
    def of(cls, scenario: Scenario) -> "Presence":
        """Compiles joins and lifetimes of a scenario."""
        population = scenario.population
        devices = scenario.device_ids
        joins = population.joins_per_day
        life = population.lifetime_days
        # Without joins a single block holds all ids, so they are already in the order of joining.
        block_devices = BLOCK_DEVICES if joins else devices
        blocks = -(-devices // block_devices)
        last_block_devices = devices - (blocks - 1) * block_devices
        return cls(
            key=stream_key(scenario.seed, Stream.PRESENCE),
            order=JoinOrder(blocks, block_devices, last_block_devices),
            devices=population.devices,
            devices_at_the_end=devices,
            seconds_per_join=86_400.0 / joins if joins else math.inf,
            lifetime_seconds=86_400.0 * life if life is not None else math.inf,
        )

    @property
    def is_everybody_always(self) -> bool:
        """Whether no device joins or leaves."""
        return not self.has_joins and self.lifetime_seconds == math.inf

    @property
    def has_joins(self) -> bool:
        """Whether devices join after the start."""
        return self.seconds_per_join < math.inf


def joined_before(presence: Presence, time: float) -> int:
    """Returns the number of devices that have joined before a time (seconds since start), or at
    most two more."""
    if not presence.has_joins:
        return presence.devices
    # One more, so that rounding leaves no device out.
    joins = math.ceil(time / presence.seconds_per_join) + 1
    # No device joins after the simulated days.
    return min(presence.devices_at_the_end, presence.devices + joins)


@njit(cache=True, nogil=True)
def present_between(
    presence: Presence,
    device_ids: UInt64Array,
) -> tuple[Float64Array, Float64Array]:
    """Returns the times at which devices [N] join and leave, seconds since start; infinity for
    never."""
    # Lifetimes have no memory, so they may begin with the run for the devices at the start.
    joins = np.zeros(device_ids.size)
    leaves = np.full(device_ids.size, np.inf)
    for asked in range(device_ids.size):
        device = np.int64(device_ids[asked])
        w0, w1, _, _ = draw(presence.key, device, 0, 0)
        rank = join_rank(presence.order, device)
        if rank >= presence.devices:
            # The n-th device after the start joins within the n-th gap between joins.
            joined_since = rank - presence.devices
            gaps = joined_since + uniform(w0)
            joins[asked] = gaps * presence.seconds_per_join
        if presence.lifetime_seconds < np.inf:
            lifetime = presence.lifetime_seconds * exponential(w1)
            leaves[asked] = joins[asked] + lifetime
    return joins, leaves


class TimerHabits(NamedTuple):
    """Accuracy of devices' timers."""

    key: Key
    """Key of the draws."""
    timer_seconds: float
    """Length of the timer."""
    violator_share: float
    """Share of the devices that ignore it."""
    skew_seconds: float
    """Standard deviation of the other devices' clocks."""

    @classmethod
    def of(cls, scenario: Scenario) -> "TimerHabits":
        """Compiles the table `participation`."""
        participation = scenario.participation
        return cls(
            key=stream_key(scenario.seed, Stream.TIMER),
            timer_seconds=participation.timer_seconds,
            violator_share=participation.timer_violators,
            skew_seconds=3600.0 * participation.clock_skew_hours,
        )

    @property
    def is_exact(self) -> bool:
        """Whether every device keeps the timer to the second."""
        return self.violator_share == self.skew_seconds == 0.0


@njit(cache=True, nogil=True)
def timer_seconds_of(habits: TimerHabits, device_ids: UInt64Array) -> Float64Array:
    """Returns the seconds [N] that devices [N] really wait: 0 if they ignore the timer, otherwise
    its length by their own clocks."""
    seconds = np.zeros(device_ids.size)
    for asked in range(device_ids.size):
        w0, w1, _, _ = draw(habits.key, device_ids[asked], 0, 0)
        if uniform(w0) >= habits.violator_share:
            # Normal and constant for each device: an assumption. Clocks that are wrong by whole
            # hours, as after a missed change of time, would have heavier tails.
            by_own_clock = habits.timer_seconds + habits.skew_seconds * normal(w1)
            # A clock that is off by more than the timer opens it at once.
            seconds[asked] = max(0.0, by_own_clock)
    return seconds


@njit(cache=True, nogil=True)
def are_usable(model: DeviceModel, device_ids: UInt64Array) -> BoolArray:
    """Returns which devices [N] are usable, [N]."""
    answer = np.empty(device_ids.size, np.bool_)
    for asked in range(device_ids.size):
        answer[asked] = is_usable(model, device_ids[asked])
    return answer


def usable_among(model: DeviceModel, first_device: int, end_device: int) -> UInt16Array:
    """Lists the usable devices of a range of at most BLOCK_DEVICES ids.

    Returns:
        Ids less first_device [M], in 2 bytes each, because shards keep them.
    """
    device_ids = np.arange(first_device, end_device, dtype=np.uint64)
    return np.flatnonzero(are_usable(model, device_ids)).astype(np.uint16)


class ExampleModel(NamedTuple):
    """Numbers of training examples on devices."""

    devices: DeviceModel
    """Devices of the scenario."""
    classes: DeviceClasses
    """Their classes."""
    class_factors: Float64Array
    """[K]; factor on the median of each class."""

    @classmethod
    def of(cls, scenario: Scenario) -> "ExampleModel":
        """Compiles the examples of a scenario's devices."""
        factors = [each.examples_factor for each in classes_of(scenario)]
        return cls(
            devices=DeviceModel.of(scenario),
            classes=DeviceClasses.of(scenario),
            class_factors=np.array(factors),
        )


@njit(cache=True, nogil=True)
def examples_on(model: ExampleModel, device_ids: UInt64Array) -> UInt32Array:
    """Returns the numbers of training examples on devices [S]; repeats cost nothing if they are
    adjacent."""
    devices, classes, class_factors = model
    key, edges = classes
    examples = np.empty(device_ids.size, np.uint32)
    for row in range(device_ids.size):
        device = device_ids[row]
        # Rows of the trace are sorted by device, so repeats are adjacent.
        if row and device == device_ids[row - 1]:
            examples[row] = examples[row - 1]
        else:
            factor = class_factors[class_of(key, edges, device)]
            examples[row] = np.uint32(examples_of(devices, device, factor))
    return examples
