"""Questions about one number per device, the average of its values: `mean` and `quantiles`."""

import math
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.errors import InputError
from .linear import (
    LEAST_RANGE,
    MOST_NUMBER,
    MOST_SIZE,
    RESOLUTION,
    LinearQuestion,
    loosened_range,
    rounded,
)
from .question import Answer, Items, Truth
from .trust import NoisySums, Shape, Vectors


class _Numbers(LinearQuestion):
    low: Annotated[float, Field(ge=-MOST_NUMBER, le=MOST_NUMBER, examples=[0.0])]
    """Least number after clipping."""
    high: Annotated[float, Field(ge=-MOST_NUMBER, le=MOST_NUMBER, examples=[100.0])]
    """Largest number after clipping."""

    @model_validator(mode="after")
    def _has_a_range(self) -> Self:
        if self.high - self.low < LEAST_RANGE:
            rule = f"must be above low = {self.low:g} by {LEAST_RANGE:g} or more"
            raise InputError.of("high", self.high, rule, "raise it")
        return self

    def _of_devices(self, items: Items) -> tuple[Int64Array, Float64Array]:
        """Returns the devices with values, and the average of each one's values, [H]."""
        counts = np.diff(items.starts)
        sums = np.bincount(items.owners, items.values, items.devices)
        holders = np.flatnonzero(counts)
        return holders, sums[holders] / counts[holders]


class Mean(_Numbers):
    """Mean over the devices that hold values of their clipped numbers: sum and count in one
    release.

    With the middle m of the range and half its width h, a device adds (number - m) / h and 1. The
    ratio of the two noisy sums is biased by about (mean - m) Var(count) / count^2; the interval is
    proven, from intervals of both sums.
    """

    kind: Literal["mean"] = "mean"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Mean of clipped numbers."""

    @property
    def shape(self) -> Shape:
        return Shape(2, 2 * RESOLUTION, math.sqrt(2) * RESOLUTION, is_signed=True)

    @property
    def unit(self) -> float:
        return (self.high - self.low) / 2 / RESOLUTION

    def vectors(self, items: Items, rng: np.random.Generator) -> Vectors:
        holders, numbers = self._of_devices(items)
        middle = (self.low + self.high) / 2
        places = rounded((np.clip(numbers, self.low, self.high) - middle) / self.unit, rng)
        steps = np.stack([places, np.full(holders.size, RESOLUTION)], axis=1).ravel()
        keys = np.tile(np.arange(2), holders.size)
        return Vectors(np.repeat(holders, 2), keys, steps, 2, items.devices)

    def decode(self, sums: NoisySums, devices: int, confidence: float) -> Answer:
        total, count = sums.estimates
        low, high = sums.interval((1.0 - confidence) / 2.0)
        # Relative to half the range, from its middle, which is all that a count near 0 leaves.
        estimate, ends, error = 0.0, np.array([-1.0, 1.0]), math.nan
        if low[1] > 0:
            estimate = float(np.clip(total / count, -1.0, 1.0))
            ratios = np.divide.outer([low[0], high[0]], [low[1], high[1]])
            ends = np.clip([ratios[0].min(), ratios[1].max()], -1.0, 1.0)
            # First order (delta method), hence an estimate: the noise of the count is taken as
            # small beside the count.
            error = math.sqrt(sums.variances @ [1.0, estimate**2]) / count
        half, middle = (self.high - self.low) / 2, (self.low + self.high) / 2
        return Answer(
            keys=np.zeros(1, np.int64),
            estimates=np.array([middle + half * estimate]),
            standard_errors=np.array([half * error]),
            error_claim="estimate",
            low=middle + half * ends[:1],
            high=middle + half * ends[1:],
            confidence=confidence,
            devices=devices,
        )

    def loosened(self, items: Items) -> dict[str, float]:
        return loosened_range(self.low, self.high, self._of_devices(items)[1])

    def truth(self, items: Items, rng: np.random.Generator) -> Truth:
        del rng
        _, numbers = self._of_devices(items)
        numbers = numbers if numbers.size else np.array([math.nan])
        kept = np.clip(numbers, self.low, self.high)
        return Truth(np.zeros(1, np.int64), numbers[None].mean(axis=1), kept[None].mean(axis=1))


class Quantiles(_Numbers):
    """Quantiles of the devices' clipped numbers, from a tree of counts over equal bins (Hay et al.
    2010, without their consistency step): a device is counted in one node of each level, and a rank
    adds up to (branching - 1) nodes of each level.

    The p-quantile is the least number with at least p of the devices at or below it; its estimate
    is the middle of a bin. All nodes are within their intervals at once with the probability
    `confidence`, and so the bins of all quantiles are proven; the error is at most the interval.
    """

    kind: Literal["quantiles"] = "quantiles"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Quantiles of clipped numbers."""
    shares: Annotated[
        tuple[Annotated[float, Field(gt=0, lt=1)], ...], Field(strict=False, min_length=1)
    ] = (0.5,)
    """Quantiles to estimate, such as 0.5 for the median."""
    branching: Annotated[int, Field(ge=2, le=1024)] = 4
    """Children of a node."""
    levels: Annotated[int, Field(ge=1, le=24)] = 4
    """Levels of nodes; there are branching^levels bins."""

    @model_validator(mode="after")
    def _is_a_small_tree(self) -> Self:
        if self._sizes.sum() > MOST_SIZE:
            rule = f"makes more than {MOST_SIZE:,} nodes with `branching={self.branching}`"
            raise InputError.of("levels", self.levels, rule, "lower one of them")
        return self

    @property
    def bins(self) -> int:
        """Number of bins."""
        return self.branching**self.levels

    @property
    def _sizes(self) -> Int64Array:
        return np.array([min(self.branching**each, 1 << 40) for each in range(1, self.levels + 1)])

    @property
    def shape(self) -> Shape:
        return Shape(int(self._sizes.sum()), self.levels, self.levels**0.5)

    def vectors(self, items: Items, rng: np.random.Generator) -> Vectors:
        holders, numbers = self._of_devices(items)
        share = (np.clip(numbers, self.low, self.high) - self.low) / (self.high - self.low)
        bins = np.minimum((share * self.bins).astype(np.int64), self.bins - 1)
        # Node j of a level with s nodes is below the offset of the level.
        offsets = np.cumsum(self._sizes) - self._sizes
        keys = offsets + bins[:, None] // (self.bins // self._sizes)
        owners = np.repeat(holders, self.levels)
        return Vectors(
            owners, keys.ravel(), np.ones(keys.size, np.int64), self.shape.size, items.devices
        )

    def ranks(self, nodes: Float64Array) -> Float64Array:
        """Returns the number of devices below each edge of the bins, [bins + 1], from the nodes."""
        below = np.zeros(self.bins + 1)
        for level in np.split(nodes, np.cumsum(self._sizes)[:-1]):
            siblings = level.reshape(-1, self.branching)
            left = (np.cumsum(siblings, axis=1) - siblings).ravel()
            below[:-1] += np.repeat(left, self.bins // left.size)
        below[-1] = nodes[: self.branching].sum()
        return below

    def decode(self, sums: NoisySums, devices: int, confidence: float) -> Answer:
        lows, highs = sums.interval((1.0 - confidence) / sums.estimates.size)
        # Slightly heuristic: noisy ranks need not increase, and raising them is quicker than the
        # least squares of Hay et al. 2010. The interval does not rest on it.
        ranks = np.maximum.accumulate(self.ranks(sums.estimates))
        # True ranks increase, which sharpens their bounds.
        least = np.maximum.accumulate(self.ranks(lows))
        most = np.minimum.accumulate(self.ranks(highs)[::-1])[::-1]
        shares = np.array(self.shares)
        place = np.searchsorted(ranks[1:], shares * ranks[-1])
        # The quantile's bin e has rank[e] < share total <= rank[e + 1].
        first = np.searchsorted(most[1:], shares * max(least[-1], 0.0))
        last = np.searchsorted(least[:-1], shares * most[-1]) - 1
        edges = np.linspace(self.low, self.high, self.bins + 1)
        middles = (edges[1:] + edges[:-1]) / 2
        low, high = edges[np.minimum(first, self.bins - 1)], edges[np.maximum(last, 0) + 1]
        return Answer(
            keys=np.arange(shares.size),
            estimates=middles[np.minimum(place, self.bins - 1)],
            standard_errors=np.full(shares.size, math.nan),
            error_claim="bound",
            low=low,
            high=high,
            confidence=confidence,
            devices=devices,
        )

    def loosened(self, items: Items) -> dict[str, float]:
        # Clipping moves no quantile that is within the range.
        _, numbers = self._of_devices(items)
        if not numbers.size:
            return {}
        exact = np.quantile(numbers, self.shares, method="inverted_cdf")
        return loosened_range(self.low, self.high, exact)

    def truth(self, items: Items, rng: np.random.Generator) -> Truth:
        del rng
        _, numbers = self._of_devices(items)
        if not numbers.size:
            missing = np.full(len(self.shares), math.nan)
            return Truth(np.arange(missing.size), missing, missing)
        exact = np.quantile(numbers, self.shares, method="inverted_cdf")
        return Truth(np.arange(exact.size), exact, np.clip(exact, self.low, self.high))
