"""Adaptive clipping: joint privacy of the sums of updates and of the counts from which the clip
norm follows a quantile.

Each device sends a bit with its update: b = 1 if the update is no longer than the estimate, else 0.
The server sums b - 1/2, and adds 0 for a device that is zeroed out or has no examples, so one
contribution changes the count by at most 1/2. (An update of zeros would count as short and change
the count by 1; that is not the zero-out accounted for here.)

Counts use the same matrix C as sums, with noise of standard deviation sigma_b. Divided by its
noise, a round's contribution has squared norm at most 1 / z_u^2 + 1 / (2 sigma_b)^2, with z_u the
noise multiplier of the sums. So both releases together are one mechanism with C's sensitivity and
noise multiplier z, 1 / z^2 = 1 / z_u^2 + 1 / (2 sigma_b)^2 (Andrew et al. 2021, Theorem 1). The
clip norm cancels, as noise is relative to it. It may depend on earlier counts, because the
mechanisms are Gaussian and adaptive (Denisov et al. 2022, Theorem 2.1), as long as it is constant
between two restarts of C.
"""

import math

from fedray.base.errors import InputError
from .events import Composed, StrategyRelease
from .limits import check_noise_multiplier

COUNTS = "count of short updates"
"""Query that a round of adaptive clipping releases in addition to the sum of updates."""


def count_noise_multiplier(count_noise: float) -> float:
    """Returns 2 sigma_b, the standard deviation of the noise over the largest change by one
    contribution, 1/2."""
    return 2.0 * count_noise


def update_noise_multiplier(noise_multiplier: float, count_noise: float) -> float:
    """Returns z_u = (z^-2 - (2 sigma_b)^-2)^(-1/2), the noise multiplier of the sums of updates
    (Andrew et al. 2021, Theorem 1).

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
            f"with `count_noise={count_noise:g}` must be below the count's noise multiplier, "
            f"2 count_noise = {of_counts:g}",
            f"raise count_noise above {noise_multiplier / 2:g}, or lower the noise multiplier",
        )
    # Unlike the formula of the paper, this form never overflows or cancels.
    return noise_multiplier / math.sqrt(1.0 - (noise_multiplier / of_counts) ** 2)


def with_counts(release: StrategyRelease, count_noise: float) -> Composed:
    """Splits a release into sums of updates and counts that together are as private as the release.

    The counts use the strategy of the sums. For every pattern of participation, rho is that of
    `release`; it is exact if G has no negative entries, because then all contributions may be
    aligned.

    Args:
        release: release with z, the noise multiplier of both together.
        count_noise: sigma_b, standard deviation of the noise on a round's count.

    Raises:
        InputError: raised by `update_noise_multiplier`.
    """
    of_updates = update_noise_multiplier(release.noise_multiplier, count_noise)
    of_counts = count_noise_multiplier(count_noise)
    sums = release.model_copy(update={"noise_multiplier": of_updates})
    counts = release.model_copy(update={"noise_multiplier": of_counts, "query": COUNTS})
    return Composed(events=(sums, counts))
