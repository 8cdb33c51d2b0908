"""Sums of bounded integer vectors, one per device: the only thing that a trust model releases. A
question turns items into such vectors, and noisy sums into its answer."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.errors import InputError
from fedray.mechanisms.accounting.events import Event
from fedray.mechanisms.questions.question import Budget, Claim, Items, Trust

RESOLUTION = 4096
"""Steps per largest value to which real values are rounded, at random so that sums are unbiased."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Bounds on a device's integer vector, in steps."""

    size: int
    """P, number of coordinates."""
    most_l1: int
    """Largest sum of absolute values."""
    most_l2: float
    """Largest Euclidean norm."""
    is_signed: bool = False
    """Whether coordinates may be negative."""
    is_rounded: bool = False
    """Whether real values were rounded at random to steps."""


@dataclass(frozen=True, slots=True)
class Vectors:
    """The nonzero coordinates of the devices' vectors, ordered by device."""

    owners: Int64Array
    """Row of the device, ascending, [I]."""
    keys: Int64Array
    """Coordinate, [I]."""
    steps: Int64Array
    """Value in steps, [I]."""
    devices: int
    """Devices that came, with or without a vector."""

    def totals(self, size: int) -> Int64Array:
        """Returns the exact sum of the vectors, [size]."""
        total = np.zeros(size, np.int64)
        np.add.at(total, self.keys, self.steps)
        return total

    def of_devices(self, chosen: Int64Array) -> "Vectors":
        """Returns the vectors of some devices, by ascending row, which are numbered again."""
        row = np.searchsorted(chosen, self.owners)
        is_chosen = chosen[np.minimum(row, chosen.size - 1)] == self.owners
        kept = (row[is_chosen], self.keys[is_chosen], self.steps[is_chosen])
        return Vectors(*kept, devices=chosen.size)


class NoisySums(ABC):
    """A release of sums."""

    estimates: Float64Array
    """Unbiased estimates of the sums, in steps, [P]."""
    variances: Float64Array
    """Variances of the estimates, [P]."""
    claim: Claim
    """Whether the variances are exact, bounds or estimates."""

    @abstractmethod
    def interval(self, failure: float) -> tuple[Float64Array, Float64Array]:
        """Returns the ends, [P] each, of intervals that each miss their sum with at most this
        probability."""


class SumMechanism(ABC):
    """A trust model calibrated to a shape and a budget."""

    name: str
    """Name of the mechanism."""
    theorem: str
    """Theorem that proves the privacy."""
    event: Event
    """What one device spends in all its releases."""
    least_devices: int = 1
    """Least number of devices for which the event holds."""
    groups: int = 1
    """Number of groups of devices that take turns at the releases; 1 if all take part in each."""

    @abstractmethod
    def variance(self, devices: int) -> float:
        """Returns the variance of an estimate of a sum that is 0, in squared steps."""

    @abstractmethod
    def release(self, vectors: Vectors, rng: np.random.Generator) -> NoisySums:
        """Returns noisy sums of the vectors."""


class SumTrust(Trust):
    """A trust model that releases sums."""

    @abstractmethod
    def mechanism(self, shape: Shape, budget: Budget, releases: int = 1) -> SumMechanism:
        """Returns the mechanism for `releases` adaptive releases of vectors of one shape.

        Raises:
            PairRefused: no theorem applies.
            InputError: the budget cannot be met.
        """


def bounded(
    items: Items, size: int | None, most_keys: int, rng: np.random.Generator
) -> tuple[Int64Array, Int64Array, Float64Array]:
    """Returns (owner, key, sum of values), [I] each, ordered by device and key: a device's values
    at a key are added, and of more than `most_keys` keys a uniform sample remains.

    Raises:
        InputError: a key is outside a closed domain of `size` keys.
    """
    if items.keys.size and (items.keys.min() < 0 or (size and items.keys.max() >= size)):
        outside = items.keys[(items.keys < 0) | (items.keys >= (size or math.inf))][0]
        rule = f"must be from 0 to {size - 1:,}" if size else "must not be negative"
        raise InputError.of("keys", int(outside), rule, "drop the items outside the domain")
    order = np.lexsort((items.keys, items.owners))
    owners, keys, values = items.owners[order], items.keys[order], items.values[order]
    is_first = np.ones(keys.size, bool)
    is_first[1:] = (owners[1:] != owners[:-1]) | (keys[1:] != keys[:-1])
    firsts = np.flatnonzero(is_first)
    sums = np.add.reduceat(values, firsts) if firsts.size else values
    owners, keys = owners[firsts], keys[firsts]
    # Ranks in a random order within each device.
    shuffled = np.lexsort((rng.random(keys.size), owners))
    ranks = np.empty(keys.size, np.int64)
    begins = np.searchsorted(owners, owners)
    ranks[shuffled] = np.arange(keys.size) - begins[shuffled]
    is_kept = ranks < most_keys
    return owners[is_kept], keys[is_kept], sums[is_kept]


def rounded(values: Float64Array, rng: np.random.Generator) -> Int64Array:
    """Returns values rounded to a neighbouring whole number at random, without bias."""
    below = np.floor(values)
    return (below + (rng.random(values.size) < values - below)).astype(np.int64)


def rounding_width(devices: int, failure: float) -> float:
    """Returns a bound on the rounding of a sum of one value per device, which fails with at most
    this probability (Hoeffding 1963, Theorem 2)."""
    return math.sqrt(devices / 2.0 * math.log(2.0 / failure))
