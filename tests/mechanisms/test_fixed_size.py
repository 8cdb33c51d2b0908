"""Samples of a fixed size: epsilon is never below what real neighbours need, and not far above."""

import itertools
import json
import math

import numpy as np
import pytest
from scipy.stats import norm

from fedray.base.arrays import Float64Array
from fedray.base.errors import InputError
from fedray.mechanisms.accounting.accountants import ACCOUNTANTS, epsilon_of
from fedray.mechanisms.accounting.events import (
    Composed,
    EventRefused,
    FixedSizeSampled,
    Gaussian,
    PoissonSampled,
    Repeated,
    read_event,
)
from fedray.mechanisms.accounting.peer import peer_figures

DELTA = 1e-6


def drawn(devices: int, size: int, noise_multiplier: float, rounds: int = 1) -> Repeated:
    one = FixedSizeSampled(
        devices=devices, size=size, event=Gaussian(noise_multiplier=noise_multiplier)
    )
    return Repeated(event=one, count=rounds)


def density(values: tuple[float, ...], size: int, z: float, at: Float64Array) -> Float64Array:
    """Density of the noisy sum of a sample, by all samples one by one."""
    sums = [sum(each) for each in itertools.combinations(values, size)]
    return np.mean([norm.pdf(at, each, z) for each in sums], axis=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "size", "z"), [(4, 1, 1.0), (4, 2, 0.7), (5, 3, 2.0), (6, 2, 1.2)]
)
def test_no_neighbours_need_a_larger_epsilon(devices: int, size: int, z: float) -> None:
    """All data sets of the values -1, 0 and 1, of which one device is replaced; delta at the
    stated epsilon by numerical integration."""
    at = np.linspace(-size - 12 * z, size + 12 * z, 20_001)
    epsilon = epsilon_of(drawn(devices, size, z), DELTA).epsilon
    worst = 0.0
    for others in itertools.combinations_with_replacement((-1.0, 0.0, 1.0), devices - 1):
        both = [density((value, *others), size, z, at) for value in (-1.0, 0.0, 1.0)]
        for p, q in itertools.permutations(both, 2):
            excess = np.maximum(p - math.exp(epsilon) * q, 0.0)
            worst = max(worst, float(np.trapezoid(excess, at)))
    assert worst <= DELTA


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "size", "z", "rounds"),
    [(1000, 10, 1.0, 100), (10_000, 100, 2.0, 1000), (100, 50, 8.0, 10)],
)
def test_epsilon_is_above_that_of_one_pair_and_at_most_three_times_it(
    devices: int, size: int, z: float, rounds: int
) -> None:
    """If all others send -1, replacing a 1 by -1 compares (1 - q) N(0) + q N(2) with N(0): a
    Poisson-sampled Gaussian of sensitivity 2, whose losses are rounded down here."""
    from dp_accounting.pld import privacy_loss_distribution

    least = (
        privacy_loss_distribution.from_gaussian_mechanism(
            standard_deviation=z / 2,
            sampling_prob=size / devices,
            value_discretization_interval=1e-4,
            pessimistic_estimate=False,
            use_connect_dots=False,
        )
        .self_compose(rounds)
        .get_epsilon_for_delta(DELTA)
    )
    epsilon = epsilon_of(drawn(devices, size, z, rounds), DELTA).epsilon
    assert 0 < least <= epsilon <= 3 * least


def test_epsilon_is_that_of_dp_accounting_with_the_sensitivity_of_a_replaced_device() -> None:
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    step = dp_accounting.SampledWithoutReplacementDpEvent(
        1000, 10, dp_accounting.GaussianDpEvent(0.5)
    )
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = RdpAccountant(neighboring_relation=relation).compose(step, 7)
    found = epsilon_of(drawn(1000, 10, 1.0, 7), DELTA)
    assert found.accountant == "renyi"
    assert found.epsilon == accountant.get_epsilon(DELTA)
    peer = peer_figures(drawn(1000, 10, 1.0, 7), DELTA)
    assert (peer.pld_epsilon, peer.renyi_epsilon) == (None, found.epsilon)
    # The noise over one clip norm would promise too much.
    assert epsilon_of(drawn(1000, 10, 2.0, 7), DELTA).epsilon < found.epsilon


def test_smaller_samples_more_noise_and_fewer_rounds_spend_less() -> None:
    def spent(size: int = 20, z: float = 1.0, rounds: int = 9) -> float:
        return epsilon_of(drawn(1000, size, z, rounds), DELTA).epsilon

    assert max(spent(size=19), spent(z=1.1), spent(rounds=8)) < spent()


@pytest.mark.parametrize("accountant", ["gdp", "pld", "zcdp", "monte-carlo"])
def test_other_accountants_refuse_it(accountant: str) -> None:
    with pytest.raises(EventRefused):
        ACCOUNTANTS[accountant](drawn(100, 10, 1.0), DELTA)


def test_samples_of_both_kinds_have_no_common_theorem() -> None:
    poisson = PoissonSampled(probability=0.1, event=Gaussian(noise_multiplier=1.0))
    both = Composed(events=(drawn(100, 10, 1.0), poisson))
    with pytest.raises(EventRefused, match="fixed size beside Poisson samples"):
        ACCOUNTANTS["renyi"](both, DELTA)
    # A release without sampling has moments under the same neighbours.
    plain = Composed(events=(drawn(100, 10, 1.0), Gaussian(noise_multiplier=3.0)))
    assert epsilon_of(plain, DELTA).epsilon > epsilon_of(drawn(100, 10, 1.0), DELTA).epsilon


def test_a_draw_of_all_devices_is_no_sample() -> None:
    with pytest.raises(InputError, match="size=100 must be below devices=100"):
        drawn(100, 100, 1.0)


def test_the_event_is_read_from_its_json() -> None:
    event = drawn(100, 10, 1.0, 4)
    assert read_event(json.loads(json.dumps(event.to_json()))) == event
