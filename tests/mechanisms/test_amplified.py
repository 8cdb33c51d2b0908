"""The number of bands that needs the least noise under amplification by sampling."""

import math

import pytest

from fedray.mechanisms.accounting.pld import pld_epsilon
from fedray.mechanisms.optimize.amplified import Amplification, best_bands
from fedray.mechanisms.optimize.design import MechanismRequest, optimize_mechanism
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import Toeplitz


def request(rounds: int, bands: int | None = None) -> MechanismRequest:
    return MechanismRequest("banded-toeplitz", MinSep(rounds, 1, 1), bands=bands)


BANDS_ALIKE = Toeplitz(coefficients=(1.0,))
"""The multiplier of unit columns does not depend on the other coefficients."""


def ignored(line: str) -> None:
    del line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bands", "epsilon", "published"),
    [
        (1, 1, 0.37313),
        (1, 2, 0.30481),
        (1, 8, 0.20567),
        (9, 1, 0.79118),
        (18, 2, 0.64708),
        (64, 8, 0.43490),
    ],
)
def test_noise_of_bands_has_the_published_multipliers_on_the_safe_side(
    bands: int, epsilon: float, published: float
) -> None:
    """Appendix G of Choquette-Choo et al. 2023: n = 2052, 6 epochs, delta 1e-6, z over sqrt(6)."""
    wanted = Amplification(2052, 6 / 2052, epsilon, 1e-6)
    _, (found,) = best_bands(wanted, request(2052, bands), optimize_mechanism, ignored)
    assert published < found.column_multiplier / math.sqrt(6) < published + 5.3e-4


@pytest.mark.parametrize(("epsilon", "published"), [(1, 4.22468), (2, 2.23048), (8, 0.65294)])
def test_noise_where_every_device_is_drawn_in_its_turn_is_the_published_one_without_amplification(
    epsilon: float, published: float
) -> None:
    """The multipliers printed have five decimals."""
    wanted = Amplification(2052, 6 / 2052, epsilon, 1e-6)
    _, (found,) = best_bands(wanted, request(2052, 342), lambda *_, **__: BANDS_ALIKE, ignored)
    assert found.probability == 1.0
    assert found.column_multiplier / math.sqrt(6) == pytest.approx(published, abs=5.1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("bands", "epsilon"), [(2, 1.0), (27, 8.0), (171, 1.0), (171, 8.0)])
def test_the_multipliers_of_other_bands_are_safe_and_tight_by_dp_accounting(
    bands: int, epsilon: float
) -> None:
    """Its losses rounded down give a lower bound, and rounded up an upper bound, on epsilon."""
    from dp_accounting.pld import privacy_loss_distribution

    wanted = Amplification(2052, 6 / 2052, epsilon, 1e-6)
    _, (found,) = best_bands(wanted, request(2052, bands), lambda *_, **__: BANDS_ALIKE, ignored)

    def composed(z: float, is_pessimistic: bool) -> float:
        step = privacy_loss_distribution.from_gaussian_mechanism(
            standard_deviation=z,
            sampling_prob=found.probability,
            value_discretization_interval=1e-4,
            pessimistic_estimate=is_pessimistic,
            use_connect_dots=is_pessimistic,
        )
        return step.self_compose(found.turns).get_epsilon_for_delta(1e-6)

    z = found.column_multiplier
    assert composed(z, is_pessimistic=False) < epsilon
    assert composed(z, is_pessimistic=True) < epsilon * 1.001
    assert composed(z * (1 - 2e-3), is_pessimistic=True) > epsilon


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--rounds", "9"), "--sampling"),
        (("--rounds", "9", "--sampling", "0.1"), "--epsilon"),
        (("--sampling", "0.1", "--epsilon", "1"), "--rounds"),
        (("--rounds", "9", "--sampling", "1.5", "--epsilon", "1"), "at most 1"),
        (("--rounds", "9", "--sampling", "0.5", "--epsilon", "1", "--bands", "3"), "at most 2"),
        (("--rounds", "9", "--sampling", "0.5", "--epsilon", "1", "--min-sep", "3"), "chooses it"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_one_line(
    fedray_command, options: tuple[str, ...], reason: str
) -> None:
    code, out, err = fedray_command("--quiet", "optimize", "best", *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert reason in err


def test_other_kinds_refuse_the_options_of_best(fedray_command) -> None:
    setting = ("--rounds", "9", "--min-sep", "3", "--max-participations", "3")
    code, _, err = fedray_command("--quiet", "optimize", "tree", *setting, "--epsilon", "1")
    assert code == 2
    assert "does not apply to tree" in err


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
