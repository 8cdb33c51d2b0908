"""Epsilon by privacy loss distributions (Koskela et al. 2020; the dp-accounting library)."""

import importlib
import math
from functools import lru_cache

from mechanisms.accounting.zcdp import check_noise_multiplier

LEAST_DELTA = 1e-30
LARGEST_MU = 1e4
"""Sensitivity over noise multiplier beyond which epsilon, above 5e7, is not worth its computation."""


def check_delta(delta: float) -> None:
    """Raises ValueError outside [1e-30, 1)."""
    if not LEAST_DELTA <= delta < 1:
        raise ValueError(f"delta={delta} must be from {LEAST_DELTA:g} to below 1; 1e-10 is usual for populations of millions")


def load() -> None:
    """Imports the accountant, which takes a second: for callers that have something else to do meanwhile, on another thread."""
    importlib.import_module("dp_accounting.pld.privacy_loss_distribution")


@lru_cache(maxsize=256)
def gaussian_epsilon(sensitivity: float, noise_multiplier: float, delta: float) -> float:
    """Smallest epsilon, rounded up by the discretisation, of one Gaussian of standard deviation z / s at sensitivity 1.

    The discretisation is a thousandth of the standard deviation s / z of the privacy loss, or a millionth of its range where
    that is more: fine enough that the rounding shows in the fifth digit, coarse enough for a fraction of a second. Raises
    ValueError.
    """
    from dp_accounting.pld import privacy_loss_distribution  # 1 s to import

    check_noise_multiplier(noise_multiplier)
    check_delta(delta)
    if not 0 <= sensitivity < math.inf:
        raise ValueError(f"sensitivity={sensitivity} must be finite and not negative")
    if sensitivity == 0:
        return 0.0
    loss_deviation = sensitivity / noise_multiplier
    if loss_deviation > LARGEST_MU:
        raise ValueError(
            f"noise_multiplier={noise_multiplier} at a sensitivity of {sensitivity:g}: epsilon would be above 5e7, no "
            "guarantee at all; raise the noise multiplier"
        )
    loss_distribution = privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=noise_multiplier / sensitivity,
        value_discretization_interval=max(loss_deviation / 1e3, loss_deviation**2 / 1e6),
        log_mass_truncation_bound=min(-50.0, math.log(delta) - 10.0),  # what is cut off counts towards delta
    )
    return float(loss_distribution.get_epsilon_for_delta(delta))
