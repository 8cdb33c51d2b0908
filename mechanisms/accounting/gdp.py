"""Gaussian DP (Dong, Roth, Su 2022): the one number mu that says all about a Gaussian mechanism."""

from mechanisms.accounting.zcdp import check_noise_multiplier


def gaussian_mu(sensitivity: float, noise_multiplier: float) -> float:
    """mu = s / z: telling the two neighbours apart is as hard as N(0, 1) from N(mu, 1). Exact. Raises ValueError."""
    check_noise_multiplier(noise_multiplier)
    return sensitivity / noise_multiplier
