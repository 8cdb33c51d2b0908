"""Group privacy: the loss of a person with several devices from answers, of which the loss of one
device is known.

In a window, d devices of a person answer. Each part of the window's release has a bound for them:

* A stated guarantee (epsilon, delta) is (d epsilon, delta (e^(d epsilon) - 1) / (e^epsilon - 1))
  for them together (Vadhan 2017, Lemma 2.2); without a delta it is d epsilon (Dwork and Roth 2014,
  Theorem 2.2).
* rho of discrete Gaussian noise grows by d^2 (Bun and Steinke 2016, Proposition 1.9).

Stated guarantees of several windows are added up (Dwork and Roth 2014, Theorem 3.16), and rho is
too, so the sums hold however the answers of the devices fall into windows, also if that depends on
earlier releases: all three bounds are convex in d, so the sum is largest if all devices of a person
answer in the same windows.
"""

import math
from typing import NamedTuple

import numpy as np

from fedray.base.arrays import Float64Array, Int64Array
from .accountants import epsilon_of
from .events import (
    MOST_COUNT,
    MOST_STATED_EPSILON,
    ApproximateDP,
    Composed,
    DiscreteGaussianSum,
    Event,
    EventRefused,
    Repeated,
)
from .pld import parts_of
from .zcdp import failure_of, rho_of

GROUP_THEOREM = (
    "group privacy of the devices of a person (Dwork and Roth 2014, Theorem 2.2; Vadhan 2017, "
    "Lemma 2.2; Bun and Steinke 2016, Proposition 1.9)"
)
"""Theorems behind `of_group`."""


class WindowLoss(NamedTuple):
    """Loss of one device from one window, in the terms that grow differently with a group."""

    epsilon: float
    """Epsilon of the stated guarantees together."""
    delta: float
    """Delta of theirs."""
    noise: tuple[tuple[DiscreteGaussianSum, int], ...]
    """Releases with discrete Gaussian noise, and how often each is in the window."""

    @classmethod
    def of(cls, window: Event, delta: float) -> "WindowLoss":
        """Returns the loss from the release of a window.

        A release that fails with a probability and has discrete Gaussian noise too is taken by its
        epsilon at `delta`, because a failure and the noise do not grow independently.

        Args:
            window: release of a window, of which one device is one contribution.
            delta: delta of the window, at which its epsilon is known.

        Raises:
            EventRefused: the release has parts for which no group privacy is known here.
        """
        parts = parts_of(window)
        stated = [(each, n) for each, n in parts.items() if isinstance(each, ApproximateDP)]
        noise = [(each, n) for each, n in parts.items() if isinstance(each, DiscreteGaussianSum)]
        if len(stated) + len(noise) < len(parts):
            raise EventRefused(
                "group privacy is known here for stated guarantees and discrete Gaussian noise "
                "only; describe the release by them"
            )
        if noise and failure_of(window) > 0:
            return cls(epsilon_of(window, delta).epsilon, delta, ())
        epsilon = math.fsum(n * each.epsilon for each, n in stated)
        return cls(epsilon, math.fsum(n * each.delta for each, n in stated), tuple(noise))

    @property
    def rho(self) -> float:
        """rho of the noise, without the stated guarantees."""
        return math.fsum(n * rho_of(each) for each, n in self.noise)

    def failures(self, devices: Int64Array) -> Float64Array:
        """Returns delta of groups of `devices` [W] in a window, over that of one device."""
        if self.epsilon == 0:
            return devices.astype(np.float64)
        # Larger exponents make every delta 1 or more.
        return np.expm1(np.minimum(devices * self.epsilon, 700.0)) / math.expm1(self.epsilon)


def of_group(loss: WindowLoss, persons: Int64Array, devices: Int64Array) -> Event | None:
    """Returns an event that bounds the loss of every person from answers; None if its epsilon is
    100 or more or its delta 1 or more, which mean nothing.

    Args:
        loss: loss of one device from a window.
        persons: [W], number of a person, from 0, for each window in which it has answers.
        devices: [W], its devices that answered in that window, from 1.
    """
    squares = int(np.bincount(persons, devices.astype(np.float64) ** 2).max())
    epsilon = loss.epsilon * float(np.bincount(persons, devices).max())
    delta = loss.delta * float(np.bincount(persons, loss.failures(devices)).max())
    if epsilon >= MOST_STATED_EPSILON or delta >= 1:
        return None
    events: list[Event] = [
        Repeated(event=each, count=min(squares * n, MOST_COUNT - 1)) for each, n in loss.noise
    ]
    if epsilon or delta:
        events.append(ApproximateDP(epsilon=epsilon, delta=delta, theorem=GROUP_THEOREM))
    return Composed(events=tuple(events)) if events else None  # pyright: ignore[reportArgumentType]
