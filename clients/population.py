"""Who the devices are: every attribute is a pure function of (seed, device), computed when asked
for.

Devices live in fixed blocks of 65,536 ids (fedray/base/blocks.py). A shard is a contiguous run of
whole blocks; blocks never depend on shards. Where devices join, ids are dealt to the blocks in the
order of joining, one each in turn: all blocks, and so all shards, have the same share of the
devices at any time, and those of a block that have joined are its first ids.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedray.base.blocks import BLOCK_DEVICES
from fedray.base.rng import Key, Stream, draw, exponential, normal, share_at, stream_key, uniform
from fedray.scenario import Scenario
from fedray.scenario.population import Correlation
from fedray.wire.device_classes import DeviceClasses, class_of, classes_of, classes_on

# Addresses (a, b) within Stream.DEVICE: a = 0 throughout. Within Stream.PRESENCE and Stream.TIMER:
# (0, 0).
_REACH, _SPEED = 0, 1


class Copula(NamedTuple):
    """Makes attributes of a device depend on one another (a Gaussian copula), and leaves the
    distribution of each as it is.

    A row mixes the independent normal scores of the attributes before and of its own; its length
    is 1, so that the mixture is a standard normal too. The first score is that of the habit,
    which stays as it is: who is eligible does not depend on correlations.

    is_independent: whether every attribute has its own score alone.
    habit_key: of the draws of habits, whose third word gives the first score.
    speed, downlink, uplink, examples: rows, as far as they are not 0.
    """

    is_independent: bool
    habit_key: Key
    speed: tuple[float, float]
    downlink: tuple[float, float, float]
    uplink: tuple[float, float, float, float]
    examples: tuple[float, float, float, float, float]

    @classmethod
    def of(cls, scenario: Scenario) -> "Copula":
        """The copula of a scenario's table `population.correlation`."""
        correlation = scenario.population.correlation
        _, speed, downlink, uplink, examples = (correlation or Correlation()).factor().tolist()
        return cls(
            is_independent=correlation is None,
            habit_key=stream_key(scenario.seed, Stream.HABIT),
            speed=tuple(speed[:2]),
            downlink=tuple(downlink[:3]),
            uplink=tuple(uplink[:4]),
            examples=tuple(examples),
        )


class DeviceModel(NamedTuple):
    """What compiled code needs to derive a device's attributes, but for its class.

    key: of the draws.
    usable_share: share of the devices that are usable, which means that the task can use them.
    examples_median, examples_sigma, examples_max: of the training examples on a device; see
        `fedray.scenario.population`.
    speed_sigma: log-standard deviation of the training time between devices.
    downlink_sigma, uplink_sigma: the same of the two rates.
    copula: how the attributes depend on one another.
    """

    key: Key
    usable_share: float
    examples_median: float
    examples_sigma: float
    examples_max: float
    speed_sigma: float
    downlink_sigma: float
    uplink_sigma: float
    copula: Copula

    @classmethod
    def of(cls, scenario: Scenario) -> "DeviceModel":
        """The device model of a scenario."""
        population, latency = scenario.population, scenario.latency
        return cls(
            key=stream_key(scenario.seed, Stream.DEVICE),
            usable_share=scenario.usable_share,
            examples_median=population.examples_median,
            examples_sigma=population.examples_sigma,
            examples_max=float(population.examples_max),
            speed_sigma=latency.speed_between,
            downlink_sigma=latency.downlink_sigma,
            uplink_sigma=latency.uplink_sigma,
            copula=Copula.of(scenario),
        )


@njit(inline="always")
def is_usable(model, device):
    """Whether a device is usable: the task can use it at all.

    Args:
        model: of the scenario's devices.
        device: its id.
    """
    # No uniform reaches 1, so the draw would say the same; it is spared.
    if model.usable_share == 1.0:
        return True
    w0, _, _, _ = draw(model.key, device, 0, _REACH)
    return uniform(w0) < model.usable_share


class Zones(NamedTuple):
    """The time zones of a population.

    key: of the draws.
    edges: [Z]; upper edge of each zone's share, rising to 1.
    offsets: [Z]; local time minus UTC, hours.
    """

    key: Key
    edges: NDArray[np.float64]
    offsets: NDArray[np.float64]

    @classmethod
    def of(cls, scenario: Scenario) -> "Zones":
        """The time zones of a scenario."""
        zones = scenario.population.time_zones
        shares = [zone.share for zone in zones]
        offsets = [zone.utc_offset_hours for zone in zones]
        return cls(
            key=stream_key(scenario.seed, Stream.DEVICE),
            edges=np.cumsum(shares),
            offsets=np.array(offsets, np.float64),
        )


@njit(forceinline=True)
def zone_of(key, edges, device):
    """The zone that a device lives in.

    Args:
        key: of `Zones`.
        edges: of `Zones`.
        device: its id.

    Returns:
        The zone's position among those of `Zones`.
    """
    if edges.size == 1:
        return 0
    # The second word of the address whose first says whether the task can use the device.
    _, w1, _, _ = draw(key, device, 0, _REACH)
    return share_at(edges, w1)


@njit(cache=True, nogil=True)
def zones_on(zones: Zones, device_ids: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The zones that devices live in.

    Args:
        zones: of the scenario.
        device_ids: [G].

    Returns:
        Positions [G] among the zones.
    """
    found = np.empty(device_ids.size, np.int64)
    for asked in range(device_ids.size):
        found[asked] = zone_of(zones.key, zones.edges, device_ids[asked])
    return found


def zone_offsets_on(scenario: Scenario, device_ids: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Local time minus UTC of devices, hours [G], with the zones of their classes.

    Args:
        scenario: has the population.
        device_ids: [G].
    """
    own_class = classes_on(DeviceClasses.of(scenario), device_ids)
    offsets = np.empty(device_ids.size)
    # Each class has a scenario of its own, with the zones that its devices live in.
    for place, of_class in enumerate(scenario.of_classes):
        zones = Zones.of(of_class)
        chosen = own_class == place
        offsets[chosen] = zones.offsets[zones_on(zones, device_ids[chosen])]
    return offsets


@njit(forceinline=True)
def examples_of(model, device, class_factor):
    """Training examples of a device: log-normal around the median, whole, at least 1, at most the
    model's limit.

    Args:
        model: of the scenario's devices.
        device: its id.
        class_factor: on the median, of the device's class.

    Returns:
        A whole number, as float64.
    """
    # The third word of the address: the first two say whether the device is usable, and its zone.
    _, _, w2, _ = draw(model.key, device, 0, _REACH)
    score = normal(w2)
    copula = model.copula
    if not copula.is_independent:
        row = copula.examples
        habit, speed, downlink, uplink = _scores(model, device)
        score = (
            row[0] * habit + row[1] * speed + row[2] * downlink + row[3] * uplink + row[4] * score
        )
    examples = class_factor * model.examples_median * math.exp(model.examples_sigma * score)
    return max(1.0, min(model.examples_max, math.floor(examples)))


@njit(forceinline=True)
def _scores(model, device):
    """Independent normal scores of a device: (habit, speed, download rate, upload rate)."""
    # The habit model draws the propensity by inversion of this very word, so this is its score.
    _, _, habit_word, _ = draw(model.copula.habit_key, device, 0, 0)
    w0, w1, w2, _ = draw(model.key, device, 0, _SPEED)
    # Fast devices take little time.
    return normal(habit_word), -normal(w0), normal(w1), normal(w2)


@njit(forceinline=True)
def speed_of(model, device):
    """How fast a device is, as factors that are log-normal with median 1.

    Args:
        model: of the scenario's devices.
        device: its id.

    Returns:
        (training-time factor, download-rate factor, upload-rate factor).
    """
    copula = model.copula
    if copula.is_independent:
        w0, w1, w2, _ = draw(model.key, device, 0, _SPEED)
        slow, down, up = normal(w0), normal(w1), normal(w2)
    else:
        habit, e1, e2, e3 = _scores(model, device)
        speed, downlink, uplink = copula.speed, copula.downlink, copula.uplink
        # Scores rise with the speed and the factor is on the time, hence the sign.
        slow = -(speed[0] * habit + speed[1] * e1)
        down = downlink[0] * habit + downlink[1] * e1 + downlink[2] * e2
        up = uplink[0] * habit + uplink[1] * e1 + uplink[2] * e2 + uplink[3] * e3
    return (
        math.exp(model.speed_sigma * slow),
        math.exp(model.downlink_sigma * down),
        math.exp(model.uplink_sigma * up),
    )


class JoinOrder(NamedTuple):
    """How ids are dealt to blocks in the order of joining: one to each block in turn, until the
    last block is full, then one to each of the others.

    blocks: how many there are.
    block_devices: ids of every block but the last.
    last_block_devices: ids of the last one.
    """

    blocks: int
    block_devices: int
    last_block_devices: int


@njit(inline="always")
def join_rank(order, device):
    """How many devices join before a device.

    Args:
        order: in which ids are dealt.
        device: its id.
    """
    # Ids of a block lie together, so the place within it is the turn in which an id is dealt.
    block = device // order.block_devices
    turn = device % order.block_devices
    if turn < order.last_block_devices:
        return turn * order.blocks + block
    # The last block is full: a turn deals one id less from then on.
    dealt_to_all = order.last_block_devices * order.blocks
    late_turn = turn - order.last_block_devices
    return dealt_to_all + late_turn * (order.blocks - 1) + block


def devices_of_ranks(order: JoinOrder, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    """The ids of devices by their join ranks; the inverse of `join_rank`.

    Args:
        order: in which ids are dealt.
        ranks: [N].

    Returns:
        Device ids [N].
    """
    dealt_to_all = order.last_block_devices * order.blocks
    is_late = ranks >= dealt_to_all
    dealt = np.where(is_late, ranks - dealt_to_all, ranks)
    # With a single block nobody is late, and what is divided by does not matter if it is not 0.
    late_blocks = max(1, order.blocks - 1)
    ids_per_turn = np.where(is_late, late_blocks, order.blocks)
    turn, block = np.divmod(dealt, ids_per_turn)
    first_turn = np.where(is_late, order.last_block_devices, 0)
    return block * order.block_devices + turn + first_turn


@njit(cache=True, nogil=True)
def joined_in_block(order: JoinOrder, block: int, joined: int) -> int:
    """How many devices of a block are among the first to join: its first ids.

    Args:
        order: in which ids are dealt.
        block: its number.
        joined: how many devices of all blocks are meant.
    """
    dealt_to_all = order.last_block_devices * order.blocks
    # -((b - n) // m) is (n - b) / m, rounded up: the turns in which n ids reach block b of m.
    if joined <= dealt_to_all:
        return max(0, -((block - joined) // order.blocks))
    # The last block is full by now, and the late turns pass it over.
    if block == order.blocks - 1:
        return order.last_block_devices
    dealt_late = joined - dealt_to_all
    late = -((block - dealt_late) // (order.blocks - 1))
    return min(order.block_devices, order.last_block_devices + max(0, late))


class Presence(NamedTuple):
    """When devices are there: the first ones from the start, the others join one after the other.

    key: of the draws.
    order: in which ids are dealt to blocks.
    devices: that are there at the start.
    devices_at_the_end: that will have joined when the simulated days are over.
    seconds_per_join: between two joins; infinity for none.
    lifetime_seconds: mean time until a device leaves; infinity for never.
    """

    key: Key
    order: JoinOrder
    devices: int
    devices_at_the_end: int
    seconds_per_join: float
    lifetime_seconds: float

    @classmethod
    def of(cls, scenario: Scenario) -> "Presence":
        """Joins and lifetimes of a scenario."""
        population = scenario.population
        devices = scenario.device_ids
        joins = population.joins_per_day
        life = population.lifetime_days
        # Without joins all ids lie in one block, so that they are in the order of joining already.
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
        """Whether nobody joins or leaves."""
        return not self.has_joins and self.lifetime_seconds == math.inf

    @property
    def has_joins(self) -> bool:
        """Whether devices join after the start."""
        return self.seconds_per_join < math.inf


def joined_before(presence: Presence, time: float) -> int:
    """How many devices have joined before a time, or at most two more than have.

    Args:
        presence: of the scenario.
        time: seconds since start.
    """
    if not presence.has_joins:
        return presence.devices
    # One more than there can be, so that no rounding leaves one out.
    joins = math.ceil(time / presence.seconds_per_join) + 1
    # Nobody joins after the simulated days: no id is kept for them.
    return min(presence.devices_at_the_end, presence.devices + joins)


@njit(cache=True, nogil=True)
def present_between(
    presence: Presence,
    device_ids: NDArray[np.uint64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """When devices join and leave.

    Lives have no memory: those of devices that are there at the start begin anew.

    Args:
        presence: of the scenario.
        device_ids: [N].

    Returns:
        (joining, leaving) times [N], seconds since start; infinity for never.
    """
    joins = np.zeros(device_ids.size)
    leaves = np.full(device_ids.size, np.inf)
    for asked in range(device_ids.size):
        device = np.int64(device_ids[asked])
        w0, w1, _, _ = draw(presence.key, device, 0, 0)
        rank = join_rank(presence.order, device)
        if rank >= presence.devices:
            # The n-th device after the start joins within the n-th gap between joins.
            joined_since = rank - presence.devices
            joins[asked] = (joined_since + uniform(w0)) * presence.seconds_per_join
        if presence.lifetime_seconds < np.inf:
            leaves[asked] = joins[asked] + presence.lifetime_seconds * exponential(w1)
    return joins, leaves


class TimerHabits(NamedTuple):
    """How devices keep their timers.

    key: of the draws.
    timer_seconds: what the timer should be.
    violator_share: of devices that ignore it.
    skew_seconds: standard deviation of the others' clocks.
    """

    key: Key
    timer_seconds: float
    violator_share: float
    skew_seconds: float

    @classmethod
    def of(cls, scenario: Scenario) -> "TimerHabits":
        """The timers of a scenario's devices."""
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
def timer_seconds_of(habits: TimerHabits, device_ids: NDArray[np.uint64]) -> NDArray[np.float64]:
    """How long devices really wait: not at all where they ignore the timer, else its length by
    their own clocks.

    Args:
        habits: of the scenario.
        device_ids: [N].

    Returns:
        Seconds [N].
    """
    seconds = np.zeros(device_ids.size)
    for asked in range(device_ids.size):
        w0, w1, _, _ = draw(habits.key, device_ids[asked], 0, 0)
        if uniform(w0) >= habits.violator_share:
            by_its_clock = habits.timer_seconds + habits.skew_seconds * normal(w1)
            # A clock that is off by more than the timer opens it at once, and not before it starts.
            seconds[asked] = max(0.0, by_its_clock)
    return seconds


@njit(cache=True, nogil=True)
def are_usable(model: DeviceModel, device_ids: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Whether devices are usable.

    Args:
        model: of the scenario's devices.
        device_ids: [N].

    Returns:
        Whether each is, [N].
    """
    answer = np.empty(device_ids.size, np.bool_)
    for asked in range(device_ids.size):
        answer[asked] = is_usable(model, device_ids[asked])
    return answer


@njit(cache=True, nogil=True)
def usable_among(model: DeviceModel, first_device: int, end_device: int) -> NDArray[np.uint16]:
    """The usable devices of a range.

    Args:
        model: of the scenario's devices.
        first_device, end_device: at most BLOCK_DEVICES ids.

    Returns:
        Their ids less first_device [M], in 2 bytes each, because shards keep them.
    """
    locals_in_block = np.empty(end_device - first_device, np.uint16)
    total = 0
    for device in range(first_device, end_device):
        if is_usable(model, device):
            locals_in_block[total] = device - first_device
            total += 1
    # A view would keep the room for all devices of the range in memory.
    return locals_in_block[:total].copy()


class ExampleModel(NamedTuple):
    """What compiled code needs to know how many training examples devices have.

    devices: of the scenario.
    classes: theirs.
    class_factors: [K]; on the median, of each class.
    """

    devices: DeviceModel
    classes: DeviceClasses
    class_factors: NDArray[np.float64]

    @classmethod
    def of(cls, scenario: Scenario) -> "ExampleModel":
        """The examples of a scenario's devices."""
        factors = [each.examples_factor for each in classes_of(scenario)]
        return cls(DeviceModel.of(scenario), DeviceClasses.of(scenario), np.array(factors))


@njit(cache=True, nogil=True)
def examples_on(model: ExampleModel, device_ids: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Training examples on devices.

    Args:
        model: of the scenario's devices.
        device_ids: [S]; repeats of a device cost nothing where they follow one another.

    Returns:
        How many each has, [S].
    """
    devices, classes, class_factors = model
    key, edges = classes
    examples = np.empty(device_ids.size, np.uint32)
    for row in range(device_ids.size):
        device = device_ids[row]
        # Rows of the trace are sorted by device, so repeats of a device follow one another.
        if row and device == device_ids[row - 1]:
            examples[row] = examples[row - 1]
        else:
            factor = class_factors[class_of(key, edges, device)]
            examples[row] = np.uint32(examples_of(devices, device, factor))
    return examples
