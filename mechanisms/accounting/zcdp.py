"""Zero-concentrated DP (Bun and Steinke 2016)."""

from fedray.errors import InputError

LEAST_NOISE_MULTIPLIER, MOST_NOISE_MULTIPLIER = 0.01, 1e6


def check_noise_multiplier(noise_multiplier: float) -> None:
    """Raises InputError outside 0.01 to 1e6: below, no guarantee is left that means anything."""
    if not LEAST_NOISE_MULTIPLIER <= noise_multiplier <= MOST_NOISE_MULTIPLIER:
        raise InputError(
            f"noise_multiplier={noise_multiplier} must be from {LEAST_NOISE_MULTIPLIER:g} to "
            f"{MOST_NOISE_MULTIPLIER:g}; "
            "less is no guarantee, more leaves nothing to learn"
        )


def gaussian_rho(sensitivity: float, noise_multiplier: float) -> float:
    """rho = s^2 / (2 z^2) of the Gaussian mechanism (Bun and Steinke 2016, Proposition 1.6). Raises
    InputError."""
    check_noise_multiplier(noise_multiplier)
    return (sensitivity / noise_multiplier) ** 2 / 2
