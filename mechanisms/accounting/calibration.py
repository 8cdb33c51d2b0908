"""Calibration: the smallest noise multiplier z that meets a privacy target."""

import math
from collections.abc import Callable

from fedray.base.errors import InputError
from .events import Gaussian
from .gdp import gaussian_epsilon, gdp_epsilon
from .limits import LEAST_NOISE_MULTIPLIER, MOST_NOISE_MULTIPLIER
from .zcdp import rho_of

PRECISION = 1e-7
"""Relative precision; the noise multiplier is rounded up by this much."""


def check_one_target(epsilon: float | None, rho: float | None) -> None:
    """Raises InputError unless exactly one of the two is given."""
    if (epsilon is None) == (rho is None):
        raise InputError("exactly one target must be given; give epsilon or rho")


def noise_multiplier_for(
    sensitivity: float, delta: float, *, epsilon: float | None = None, rho: float | None = None
) -> float:
    """Returns the smallest noise multiplier, rounded up, at which one Gaussian release of the given
    sensitivity meets a target.

    Args:
        sensitivity: sensitivity at contributions of norm 1.
        delta: delta of epsilon.
        epsilon: largest epsilon allowed at delta. Give this or rho.
        rho: largest rho allowed.

    Raises:
        InputError: not exactly one target is given, or no noise multiplier meets it.
    """
    check_one_target(epsilon, rho)
    if epsilon is not None:
        if not 0 < sensitivity < math.inf:
            rule = "must be positive and finite"
            raise InputError.of("sensitivity", sensitivity, rule, "sensitivity 0 needs no noise")
        start = min(max(sensitivity, LEAST_NOISE_MULTIPLIER), MOST_NOISE_MULTIPLIER)
        return least_noise_multiplier(
            lambda z: gaussian_epsilon(sensitivity / z, delta), epsilon, start
        )
    assert rho is not None
    if not 0 < rho < math.inf:
        raise InputError.of(
            "rho", rho, "must be positive and finite", "0 would need infinite noise"
        )
    z = sensitivity / math.sqrt(2.0 * rho)
    if not LEAST_NOISE_MULTIPLIER <= z <= MOST_NOISE_MULTIPLIER:
        raise InputError.of(
            "rho",
            rho,
            f"needs the noise multiplier {z:g}, outside {LEAST_NOISE_MULTIPLIER:g} to "
            f"{MOST_NOISE_MULTIPLIER:g}",
            "less gives no guarantee, more leaves nothing to learn",
        )
    # Rounding may leave z an ulp too small.
    while rho_of(Gaussian(sensitivity=sensitivity, noise_multiplier=z)) > rho:
        z = math.nextafter(z, math.inf)
    return z


def largest_sensitivity(
    noise_multiplier: float,
    delta: float,
    *,
    rho: float | None = None,
    epsilon: float | None = None,
) -> float:
    """Returns the largest sensitivity at which one Gaussian release meets the targets; the next
    larger float does not.

    Args:
        noise_multiplier: z.
        delta: delta of epsilon.
        rho: largest rho allowed, or None.
        epsilon: largest epsilon allowed at delta, or None.

    Raises:
        InputError: a target is impossible, or both are None.
    """
    if rho is None and epsilon is None:
        raise InputError("rho=None and epsilon=None; give at least one of them")
    for target, most in (("rho", rho), ("epsilon", epsilon)):
        if most is not None and not 0 < most < math.inf:
            raise InputError.of(target, most, "must be positive and finite", "0 permits no release")

    def is_allowed(sensitivity: float) -> bool:
        event = Gaussian(noise_multiplier=noise_multiplier, sensitivity=sensitivity)
        return (rho is None or rho_of(event) <= rho) and (
            epsilon is None or gdp_epsilon(event, delta) <= epsilon
        )

    low, high = 0.0, noise_multiplier
    while is_allowed(high):
        low, high = high, 2.0 * high
    # Bisection ends when no float is between the bounds.
    while low < (middle := 0.5 * (low + high)) < high:
        low, high = (middle, high) if is_allowed(middle) else (low, middle)
    return low


def least_noise_multiplier(
    epsilon_of: Callable[[float], float],
    epsilon: float,
    start: float = 1.0,
    target: str = "epsilon",
) -> float:
    """Returns nearly the smallest z with epsilon_of(z) <= epsilon. Raises InputError.

    Args:
        epsilon_of: accountant, a function of the noise multiplier. If it decreases, z is within
            `PRECISION` of the smallest; if not, z may be larger, but always meets the target.
        epsilon: target, above 0.
        start: first noise multiplier of the search.
        target: name of the target in errors.
    """
    if not 0 < epsilon < math.inf:
        raise InputError.of(
            target, epsilon, "must be positive and finite", "0 would need infinite noise"
        )
    low = high = start
    while epsilon_of(high) > epsilon:
        if high >= MOST_NOISE_MULTIPLIER:
            raise InputError.of(
                target,
                epsilon,
                f"needs a noise multiplier above {MOST_NOISE_MULTIPLIER:g}",
                "ask for less privacy",
            )
        low, high = high, min(2.0 * high, MOST_NOISE_MULTIPLIER)
    while epsilon_of(low) <= epsilon:
        if low <= LEAST_NOISE_MULTIPLIER:
            raise InputError.of(
                target,
                epsilon,
                f"needs a noise multiplier below {LEAST_NOISE_MULTIPLIER:g}",
                "that is no guarantee",
            )
        low, high = max(low / 2.0, LEAST_NOISE_MULTIPLIER), low
    z, step = _root(lambda z: epsilon_of(z) - epsilon, low, high), PRECISION / 2
    # The root may be slightly too small; noise is only ever rounded up.
    while z < high and epsilon_of(z) > epsilon:
        z, step = min(high, z * (1.0 + step)), 2.0 * step
    return z


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    # Imported here, because it takes 0.5 s and every run imports this file.
    from scipy.optimize import brentq

    found = brentq(function, low, high, xtol=low * PRECISION / 4)
    assert isinstance(found, float), "brentq returns a float unless full_output is set"
    return found
