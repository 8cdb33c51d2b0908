"""Privacy amplified by Poisson sampling: DP-FedAvg, banded matrices with cyclic partitions, and
random rounds at least min_sep apart.

The population is split into `partitions` parts. Round t draws from part t mod partitions, each
device with the sampling probability. Two participations of a device are then at least `partitions`
rounds apart, and with at most that many bands the mechanism is equivalent to ceil(n / partitions)
Poisson-sampled Gaussians (Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization",
Theorem 4). One partition and C = I give DP-FedAvg (McMahan et al. 2018). Adjacency: zero-out, whose
privacy loss with sampling is that of add-or-remove.
"""

import operator
from dataclasses import dataclass

import numpy as np

from fedray.base.errors import InputError
from fedray.base.rounding import counted
from ..participation import MinSep
from ..strategy import Strategy
from .events import (
    Event,
    Gaussian,
    MinSepSampled,
    PoissonSampled,
    Repeated,
)
from .limits import check_noise_multiplier
from .monte_carlo import loss_sampler


@dataclass(frozen=True, slots=True)
class PoissonSampling:
    """Poisson sampling in which the parts of the population take turns, or in which devices rest
    after a round (b-min-sep sampling; see `MinSepSampled`)."""

    rounds: int
    """n, at least 1."""
    probability: float
    """q, probability that a device is drawn when its part has its turn; above 0 and at most 1."""
    partitions: int = 1
    """Number of parts of the population, which take turns; from 1 to `rounds`."""
    min_sep: int = 1
    """b, least difference between two rounds of a device, at least 1; 1 with several partitions."""

    def __post_init__(self) -> None:
        # Fractions would pass the comparisons below, and no theorem has them.
        for count in (self.rounds, self.partitions, self.min_sep):
            operator.index(count)
        if self.rounds < 1:
            raise InputError.of(
                "rounds", self.rounds, "must be at least 1", "nothing is released in no rounds"
            )
        if not 0 < self.probability <= 1:
            raise InputError.of(
                "probability",
                self.probability,
                "must be above 0 and at most 1",
                "it is the chance that a device is drawn in its turn",
            )
        if not 1 <= self.partitions <= self.rounds:
            raise InputError.of(
                "partitions",
                self.partitions,
                f"must be from 1 to `rounds={self.rounds}`",
                "further ones would never have a turn",
            )
        if self.min_sep < 1 or (self.min_sep > 1 and self.partitions > 1):
            raise InputError.of(
                "min_sep",
                self.min_sep,
                f"must be 1 or more, and 1 with `partitions={self.partitions}` above 1",
                "devices of partitions that take turns are apart already",
            )

    @property
    def compositions(self) -> int:
        """Number of turns of the part with the most turns, ceil(rounds / partitions)."""
        return -(-self.rounds // self.partitions)


def sampled_release(
    strategy: Strategy, sampling: PoissonSampling, noise_multiplier: float
) -> Event:
    """Returns the event to which the rounds of a strategy reduce if devices are sampled: that of
    `sampled_in_turn` with `compositions` turns, or of random rounds `min_sep` apart.

    Args:
        strategy: C, with at most as many bands as there are partitions.
        sampling: sampling of the devices.
        noise_multiplier: z, the standard deviation of the noise on the rows of C x, at clip norm 1.

    Raises:
        InputError: C has more bands, which Theorem 4 does not cover, or a number is out of range.
    """
    if sampling.min_sep > 1:
        event = MinSepSampled(
            strategy=strategy,
            rounds=sampling.rounds,
            min_sep=sampling.min_sep,
            probability=sampling.probability,
            noise_multiplier=noise_multiplier,
        )
        loss_sampler(event)  # refuses a strategy for which nothing is proven
        return event
    turns = MinSep(sampling.rounds, sampling.partitions, sampling.compositions)
    return sampled_in_turn(strategy, turns, sampling.probability, noise_multiplier)


def sampled_in_turn(
    strategy: Strategy, turns: MinSep, probability: float, noise_multiplier: float
) -> Event:
    """Returns the event of a device that is drawn with a probability in each of its turns.

    Turns at least as many rounds apart as C has bands touch disjoint rows of C x. Each is then a
    Poisson-sampled Gaussian, with the noise divided by the largest norm of a column of C
    (Choquette-Choo et al. 2023, Theorem 4), and they compose adaptively. Which rounds are turns may
    depend on earlier releases, but not on earlier draws of the device.

    Args:
        strategy: C, with at most `turns.min_sep` bands.
        turns: rounds in which a device may be drawn.
        probability: q, probability that it is drawn in a turn.
        noise_multiplier: z, the standard deviation of the noise on the rows of C x, at clip norm 1.

    Raises:
        InputError: C has more bands, which Theorem 4 does not cover, or a number is out of range.
    """
    check_noise_multiplier(noise_multiplier)
    bands = strategy.diagonals(turns.rounds)
    if bands > turns.min_sep:
        raise InputError(
            f"this {strategy.kind} mechanism has {bands:,} bands, and two turns of a device may be "
            f"{counted(turns.min_sep, 'round')} apart: amplification is proven for at most as many "
            "bands as partitions that take turns; use more partitions or fewer bands, or account "
            "without sampling"
        )
    norm, _ = largest_column(strategy, turns.rounds)
    # The largest column covers the others, which is pessimistic where the last ones are shorter, as
    # in a Toeplitz C.
    step = Gaussian(noise_multiplier=noise_multiplier / norm)
    sampled = PoissonSampled(probability=probability, event=step)
    return Repeated(event=sampled, count=turns.max_participations)


def largest_column(strategy: Strategy, rounds: int) -> tuple[float, int]:
    """Returns the largest norm of a column of C over `rounds` rounds, and its first such round."""
    # The diagonal of G has the squared norms of the columns of C.
    columns = strategy.gram_entries(np.arange(rounds), np.arange(rounds), rounds)
    return float(columns.max()) ** 0.5, int(columns.argmax())
