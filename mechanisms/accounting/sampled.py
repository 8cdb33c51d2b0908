"""Privacy amplification by Poisson sampling: DP-FedAvg, and banded matrices with cyclic partitions.

The population is split into `partitions` parts. Round t samples each device of part t mod
partitions with the same probability, so two participations of a device are at least `partitions`
rounds apart. With at most `partitions` bands, the mechanism is ceil(n / partitions) Poisson-sampled
Gaussians (Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization", Theorem 4). One
partition and C = I is DP-FedAvg (McMahan et al. 2018). Adjacency is zero-out, whose privacy loss
with sampling is that of add-or-remove.
"""

from dataclasses import dataclass

import numpy as np

from fedray.base.errors import InputError
from fedray.mechanisms.accounting.events import Event, Gaussian, PoissonSampled, Repeated
from fedray.mechanisms.accounting.limits import check_noise_multiplier
from fedray.mechanisms.strategy import Strategy


@dataclass(frozen=True, slots=True)
class PoissonSampling:
    """Poisson sampling of the parts of a population in turn."""

    rounds: int
    """n, at least 1."""
    probability: float
    """q, probability that a device is sampled in a turn of its part; above 0 and at most 1."""
    partitions: int = 1
    """Number of parts of the population, from 1 to `rounds`."""

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise InputError.of("rounds", self.rounds, "must be at least 1")
        if not 0 < self.probability <= 1:
            rule = "must be above 0 and at most 1"
            raise InputError.of("probability", self.probability, rule)
        if not 1 <= self.partitions <= self.rounds:
            rule = f"must be from 1 to `rounds={self.rounds}`"
            raise InputError.of("partitions", self.partitions, rule)

    @property
    def compositions(self) -> int:
        """Most turns of a part, ceil(rounds / partitions)."""
        return -(-self.rounds // self.partitions)


def cyclically_sampled(
    strategy: Strategy, sampling: PoissonSampling, noise_multiplier: float
) -> Event:
    """Returns the event that the rounds of a sampled strategy reduce to: `compositions`
    Poisson-sampled Gaussians, with noise relative to the largest column norm of C (Choquette-Choo
    et al. 2023, Theorem 4).

    Args:
        strategy: C, with at most as many bands as partitions.
        sampling: sampling of the devices.
        noise_multiplier: z, standard deviation of the noise on the rows of C X, at clip norm 1.

    Raises:
        InputError: C has more bands, which Theorem 4 does not cover, or a number is out of range.
    """
    check_noise_multiplier(noise_multiplier)
    bands = strategy.diagonals(sampling.rounds)
    if bands > sampling.partitions:
        raise InputError(
            f"a {strategy.kind} strategy of {bands} bands with `partitions={sampling.partitions}`: "
            "amplification is proven for at most as many bands as partitions; use more partitions"
        )
    rounds = np.arange(sampling.rounds)
    squared_norms = strategy.gram_entries(rounds, rounds, sampling.rounds)
    step = Gaussian(noise_multiplier=noise_multiplier / float(squared_norms.max()) ** 0.5)
    sampled = PoissonSampled(probability=sampling.probability, event=step)
    return Repeated(event=sampled, count=sampling.compositions)
