"""Adaptive clipping: joint privacy of the sums of updates and of the counts by which the clip norm
follows a quantile.

Each device sends, with its update, whether that is no longer than an estimate (b = 1) or longer
(0). The server counts b - 1/2, and 0 for a device that is zeroed out or has no examples, so one
contribution changes the count by at most 1/2. A device that sent an update of zeros would count as
short and change the count by 1, which is not the zero-out that is accounted for here.

Counts go through the same matrix C as sums, with noise of standard deviation sigma_b. A round's
contribution, each part divided by its noise, is a vector of squared norm at most 1 / z_u^2 + 1 / (2
sigma_b)^2, z_u the noise multiplier of the sums; so both releases together are one mechanism of
noise multiplier z, 1 / z^2 = 1 / z_u^2 + 1 / (2 sigma_b)^2 (Andrew et al. 2021, Theorem 1), with
C's own sensitivity. The clip norm does not enter, as noise is measured by it; it may follow from
the earlier counts, because the mechanisms are Gaussian and adaptive (Denisov et al. 2022, Theorem
2.1), as long as it is constant between two restarts of C.
"""

import math

from fedray.base.errors import InputError
from fedray.mechanisms.accounting.events import Composed, StrategyRelease
from fedray.mechanisms.accounting.limits import check_noise_multiplier

COUNTS = "count of short updates"
"""Second release of a round of adaptive clipping, beside the sum of its updates."""


def count_noise_multiplier(count_noise: float) -> float:
    """2 sigma_b: noise of standard deviation sigma_b over the 1/2 that one contribution changes."""
    return 2.0 * count_noise


def update_noise_multiplier(noise_multiplier: float, count_noise: float) -> float:
    """Returns z_u, the noise multiplier of the sums of updates that leaves z for both releases.

    z_u = (z^-2 - (2 sigma_b)^-2)^(-1/2) (Andrew et al. 2021, Theorem 1).

    Args:
        noise_multiplier: z of both releases together.
        count_noise: sigma_b, standard deviation of the noise on a round's count.

    Raises:
        InputError: z is not below 2 sigma_b, the noise multiplier of the counts.
    """
    check_noise_multiplier(noise_multiplier)
    of_counts = count_noise_multiplier(count_noise)
    if not noise_multiplier < of_counts:
        raise InputError.of(
            "noise_multiplier",
            noise_multiplier,
            f"with count_noise={count_noise:g}: both releases together have less noise than "
            f"the count alone, whose noise multiplier is 2 count_noise = {of_counts:g}",
            f"raise count_noise above {noise_multiplier / 2:g}, or lower the noise multiplier",
        )
    # In this form nothing overflows or cancels, whatever the sizes.
    return noise_multiplier / math.sqrt(1.0 - (noise_multiplier / of_counts) ** 2)


def with_counts(release: StrategyRelease, count_noise: float) -> Composed:
    """Returns the sums of updates and the counts that together are as private as one release.

    The counts share the strategy of the sums. rho is that of `release`, for every pattern of
    participation; if G has no negative entries it is exact, as all contributions may be aligned.

    Args:
        release: release with z, the noise multiplier of both together.
        count_noise: sigma_b, standard deviation of the noise on a round's count.

    Raises:
        InputError: as `update_noise_multiplier`.
    """
    of_updates = update_noise_multiplier(release.noise_multiplier, count_noise)
    of_counts = count_noise_multiplier(count_noise)
    sums = release.model_copy(update={"noise_multiplier": of_updates})
    counts = release.model_copy(update={"noise_multiplier": of_counts, "query": COUNTS})
    return Composed(events=(sums, counts))
