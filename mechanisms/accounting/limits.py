"""Ranges of noise multipliers and deltas for which privacy figures are meaningful."""

from fedray.base.errors import InputError

LEAST_NOISE_MULTIPLIER, MOST_NOISE_MULTIPLIER = 0.01, 1e6
LEAST_DELTA = 1e-30


def check_noise_multiplier(noise_multiplier: float) -> None:
    """Raises InputError unless the noise multiplier is from 0.01 to 1e6."""
    if not LEAST_NOISE_MULTIPLIER <= noise_multiplier <= MOST_NOISE_MULTIPLIER:
        raise InputError.of(
            "noise_multiplier",
            noise_multiplier,
            f"must be from {LEAST_NOISE_MULTIPLIER:g} to {MOST_NOISE_MULTIPLIER:g}",
            "less gives no guarantee, more leaves nothing to learn",
        )


def check_delta(delta: float) -> None:
    """Raises InputError unless delta is in [1e-30, 1)."""
    if not LEAST_DELTA <= delta < 1:
        raise InputError.of(
            "delta",
            delta,
            f"must be from {LEAST_DELTA:g} to below 1",
            "1e-10 is usual for populations of millions",
        )
