"""Adaptive odometer: the privacy that the participations of a training loop have spent so far, and
whether one more would exceed a budget."""

import itertools
import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedray.base.arrays import UInt64Array
from fedray.base.errors import InputError
from fedray.base.rounding import given, up
from .accounting.calibration import largest_sensitivity
from .accounting.events import Gaussian
from .accounting.gdp import gdp_epsilon
from .accounting.limits import check_delta, check_noise_multiplier
from .accounting.zcdp import rho_of
from .files import read_strategy
from .running import RunningSensitivity, SensitivityFilter
from .strategy import Strategy


@dataclass(frozen=True, slots=True)
class OdometerReading:
    """Privacy of the worst device in the rounds so far, as an audit of these rounds finds it."""

    rounds: int
    """Number of released rounds."""
    device: Hashable
    """A device that has spent most; None before the first participation."""
    sensitivity: float
    """Sensitivity of its rounds, at clip norm 1."""
    is_exact: bool
    """Whether the figures are exact; False marks upper bounds, which only strategies with negative
    Gram entries leave."""
    rho: float
    """zCDP of that sensitivity."""
    epsilon: float
    """epsilon of that sensitivity, at the odometer's delta."""


class Odometer:
    """Counts the participations of a training loop as they happen.

    Participations may depend on earlier releases: row t of the release is sum_i C[t, i] X_i + z
    N(0, I) with fresh noise, so a device changes it, given earlier rows, by at most the row's sum
    over the device's rounds (Denisov et al. 2022, Theorem 2.1).

    * Budget: if no device that `would_exceed` names takes part, every device stays within the
      budget in every run, however rounds and devices are chosen and wherever the run stops. That is
      a privacy filter with a budget that is fixed in advance (Rogers, Roth, Ullman and Vadhan 2016;
      Smith and Thakurta 2022 for Gaussian DP; Whitehouse et al. 2023 for zCDP). A participation is
      charged for all planned rounds at once.
    * Reading: exact for the participations so far. It is a guarantee only if participations do not
      depend on the releases and the number of rounds is fixed in advance. If releases
      decide when to stop, the reading is not a guarantee (Rogers et al. 2016: without a budget, an
      odometer costs more).

    Args:
        strategy: matrix C of the mechanism, or the path of a file for `read_strategy`.
        rounds: planned number of rounds. Fewer may be released; more are refused.
        noise_multiplier: z, standard deviation of the noise in units of the clip norm.
        delta: delta of epsilon.
        epsilon: budget: largest epsilon of a device, over all planned rounds; None for no limit.
        rho: budget: largest rho of a device, over all planned rounds; None for no limit.

    Raises:
        InputError: an argument is out of range; or there is a budget, and the strategy has negative
            entries, or a single participation would exceed the budget.
    """

    def __init__(
        self,
        strategy: Strategy | str | Path,
        rounds: int,
        *,
        noise_multiplier: float,
        delta: float,
        epsilon: float | None = None,
        rho: float | None = None,
    ) -> None:
        check_noise_multiplier(noise_multiplier)
        check_delta(delta)
        if isinstance(strategy, str | Path):
            strategy = read_strategy(strategy)
        self._noise_multiplier, self._delta = noise_multiplier, delta
        self._planned = rounds
        self._running = RunningSensitivity(strategy, rounds, math.inf)
        self._filter: SensitivityFilter | None = None
        if epsilon is not None or rho is not None:
            limit = largest_sensitivity(noise_multiplier, delta, rho=rho, epsilon=epsilon)
            self._filter = SensitivityFilter(strategy, rounds, limit)
        self._numbers: dict[Hashable, int] = {}
        """Number of each device, in order of first participations."""

    def __repr__(self) -> str:
        found = self.reading()
        return (
            f"<Odometer of {found.rounds:,} of {self._planned:,} rounds, "
            f"{len(self._numbers):,} devices: epsilon {up(found.epsilon)} at {given(self._delta)}>"
        )

    @property
    def rounds(self) -> int:
        """Number of rounds so far, which is the number of the next."""
        return self._running.rounds

    def add(self, round_index: int, device_ids: Iterable[Hashable]) -> None:
        """Adds a released round. Rounds that were passed over had no participation.

        Args:
            round_index: number of the round, from 0; not below `rounds`.
            device_ids: the devices whose contributions it used: any hashable names, each once.

        Raises:
            InputError: the round is out of order or not planned, or a device occurs twice. Nothing
                is added then.
        """
        ids = self._checked(round_index, device_ids)
        counters = [self._running, *([] if self._filter is None else [self._filter])]
        numbers = [self._numbers.setdefault(each, len(self._numbers)) for each in ids]
        for counter in counters:
            while counter.rounds < round_index:
                counter.add(_array([]))
            counter.add(_array(numbers))

    def reading(self) -> OdometerReading:
        """Returns the privacy that the worst device has spent so far."""
        found = self._running.largest()
        release = Gaussian(noise_multiplier=self._noise_multiplier, sensitivity=found.value)
        # Numbers are in the order of the dict.
        device = next(itertools.islice(self._numbers, found.place, None)) if found.value else None
        rho, epsilon = rho_of(release), gdp_epsilon(release, self._delta)
        return OdometerReading(self.rounds, device, found.value, found.is_exact, rho, epsilon)

    def would_exceed(self, round_index: int, device_ids: Iterable[Hashable]) -> list[Any]:
        """Returns the devices that one more participation would bring beyond the budget.

        Args:
            round_index: number of the round, from 0; not below `rounds`.
            device_ids: devices that might take part in it, each once.

        Returns:
            The devices among these, in their order; empty if all of them may take part.

        Raises:
            InputError: the odometer has no budget, or as `add`.
        """
        if self._filter is None:
            raise InputError("the odometer has no budget; give epsilon or rho when it is made")
        ids = self._checked(round_index, device_ids)
        # A device that never took part may: a budget that is too small for that was refused.
        known = [each for each in ids if each in self._numbers]
        is_admitted = self._filter.admits(
            _array([self._numbers[each] for each in known]), round_index
        )
        return [each for each, is_in in zip(known, is_admitted, strict=True) if not is_in]

    def _checked(self, round_index: int, device_ids: Iterable[Hashable]) -> list[Hashable]:
        if not self.rounds <= round_index < self._planned:
            rule = f"must be from {self.rounds}, the next round, to {self._planned - 1}"
            remedy = "rounds are added in order, each once with all its devices"
            raise InputError.of("round_index", round_index, rule, remedy)
        # Converting an array at once is faster than hashing numpy's numbers.
        ids = device_ids.tolist() if isinstance(device_ids, np.ndarray) else list(device_ids)
        if len(set(ids)) < len(ids):
            twice = next(each for place, each in enumerate(ids) if each in ids[:place])
            rule = "occurs twice in a round"
            raise InputError.of("device_ids", twice, rule, "name each device once")
        return ids


def _array(numbers: list[int]) -> UInt64Array:
    return np.array(numbers, np.uint64)
