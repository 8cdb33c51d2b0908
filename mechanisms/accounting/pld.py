"""The names under which a Gaussian's epsilon was found when it came from privacy loss distributions; it is in gdp.py now."""

from mechanisms.accounting.gdp import LEAST_DELTA, check_delta, gaussian_epsilon

__all__ = ["LEAST_DELTA", "check_delta", "gaussian_epsilon", "load"]


def load() -> None:
    """Does nothing: the closed form has nothing to import."""
