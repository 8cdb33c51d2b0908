"""The number of bands that needs the least noise under amplification by sampling."""

import math

import pytest

from fedray.mechanisms.accounting.pld import pld_epsilon
from fedray.mechanisms.optimize.amplified import Amplification, best_bands
from fedray.mechanisms.optimize.design import MechanismRequest, optimize_mechanism
from fedray.mechanisms.participation import MinSep


def request(rounds: int, bands: int | None = None) -> MechanismRequest:
    return MechanismRequest("banded-toeplitz", MinSep(rounds, 1, 1), bands=bands)


def ignored(line: str) -> None:
    del line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bands", "epsilon", "published"),
    [(1, 8, 0.20567), (9, 1, 0.79118), (18, 2, 0.64708), (64, 8, 0.43490)],
)
def test_noise_of_bands_has_the_published_multipliers_on_the_safe_side(
    bands: int, epsilon: float, published: float
) -> None:
    """Appendix G of Choquette-Choo et al. 2023: n = 2052, 6 epochs, delta 1e-6, z over sqrt(6)."""
    wanted = Amplification(2052, 6 / 2052, epsilon, 1e-6)
    _, (found,) = best_bands(wanted, request(2052, bands), optimize_mechanism, ignored)
    assert published < found.column_multiplier / math.sqrt(6) < published * (1 + 6e-4)


@pytest.mark.slow
def test_the_chosen_bands_need_the_least_noise_of_all_numbers() -> None:
    wanted = Amplification(48, 1 / 48, 4.0, 1e-6)
    best, tried = best_bands(wanted, request(48), optimize_mechanism, ignored)
    noises = {}
    for bands in wanted.numbers_of_bands:
        _, (each,) = best_bands(wanted, request(48, bands), optimize_mechanism, ignored)
        noises[bands] = each.noise
    assert best.sampling is not None
    assert best.sampling.partitions == min(noises, key=lambda bands: noises[bands])
    assert {each.bands: each.noise for each in tried}.items() <= noises.items()
    assert best.amplified_event is not None
    assert pld_epsilon(best.amplified_event, 1e-6) <= 4.0
