"""The spending of a device on a question against an observer who knows all but some devices of a
release: against exact sums of probabilities, closed forms, and the figures of fewer devices."""

import math
from typing import Any

import numpy as np
import pytest

from fedray.audit.observers import with_noise_of
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.events import DiscreteGaussianSum, Repeated
from fedray.mechanisms.accounting.shuffling import shuffled_delta, shuffled_epsilon
from fedray.mechanisms.questions.linear import Count, Histogram
from fedray.mechanisms.questions.local import ShuffledReports
from fedray.mechanisms.questions.open_domain import PrefixTree
from fedray.mechanisms.questions.registry import Devices, Enclave, Local, Server, Shuffled
from fedray.mechanisms.questions.trust import Budget, SumMechanism, Trust

BUDGET = Budget(1.0, 1e-8)
TRUSTS: tuple[Trust, ...] = (
    Server(),
    Enclave(),
    Devices(least_devices=300),
    Shuffled(least_devices=300),
    Local(),
)


def spent(sums: SumMechanism, honest: int) -> float:
    return epsilon_of(sums.event_of(honest), BUDGET.delta).epsilon


@pytest.mark.slow
@pytest.mark.parametrize("trust", TRUSTS, ids=lambda each: each.kind)
def test_of_all_devices_the_budget_is_spent_and_of_fewer_honest_ones_no_less(trust: Trust) -> None:
    for question in (Histogram(size=40), PrefixTree(branching=4, levels=3)):
        sums = question.plan(trust, BUDGET).sums
        cohort = sums.least_devices // sums.groups
        assert sums.event_of(cohort) == sums.event
        assert spent(sums, cohort) <= BUDGET.epsilon * (1 + 1e-9)
        found = [spent(sums, max(1, round(cohort * share))) for share in np.linspace(1, 0, 9)]
        assert found == sorted(found)
        # Devices know nothing of the noise of a server, and others add nothing to a local report.
        assert (found[-1] > found[0]) is (trust.kind in ("devices", "shuffled"))


@pytest.mark.parametrize("malicious", [0.0, 0.01, 0.1, 0.333])
def test_of_shares_of_noise_those_of_the_honest_devices_protect(malicious: float) -> None:
    question, trust = PrefixTree(branching=4, levels=3, most_keys=2), Devices(least_devices=50)
    sums = question.plan(trust, BUDGET).sums
    event: Any = sums.event
    assert isinstance(event, Repeated)
    release = event.event
    assert isinstance(release, DiscreteGaussianSum)
    honest = 50 - math.ceil(50 * malicious)
    # The audit counts noise in the event that a device spends.
    assert with_noise_of(event, honest) == sums.event_of(honest)
    # rho by hand: the noise of each honest device, and the price of adding several.
    k = np.arange(1, honest)
    tau = 10 * np.exp(-2 * math.pi**2 * release.device_variance * k / (k + 1)).sum()
    apart = release.sensitivity / math.sqrt(honest * release.device_variance)
    rho = 3 * (apart + tau * math.sqrt(release.dimension)) ** 2 / 2
    alpha = 1 + np.exp(np.linspace(-6, 12, 200_001))
    bounds = (
        rho * alpha + np.log1p(-1 / alpha) + (-math.log(BUDGET.delta) - np.log(alpha)) / (alpha - 1)
    )
    assert spent(sums, honest) == pytest.approx(bounds.min(), rel=1e-3)


def test_a_pair_of_devices_leaves_each_other_the_noise_of_one() -> None:
    sums = Count().plan(Devices(least_devices=2), BUDGET).sums
    event = sums.event
    assert isinstance(event, DiscreteGaussianSum)
    sizes = np.arange(-4000, 4001)
    half = np.exp(-(sizes**2) / (2 * event.device_variance))
    half /= half.sum()
    step = round(event.sensitivity)
    for epsilon, chances in ((spent(sums, 1), half), (spent(sums, 2), np.convolve(half, half))):
        # The exact delta of a shift by the contribution.
        padded = np.pad(chances, (0, step))
        shifted = np.pad(chances, (step, 0))
        exact = np.maximum(padded - math.exp(epsilon) * shifted, 0).sum()
        assert exact <= BUDGET.delta
        tighter = np.maximum(padded - math.exp(0.8 * epsilon) * shifted, 0).sum()
        assert tighter > BUDGET.delta
    assert spent(sums, 1) > spent(sums, 2)


@pytest.mark.parametrize("malicious", [0.0, 0.1, 0.9, 1.0])
@pytest.mark.parametrize("levels", [1, 3])
def test_a_shuffle_hides_a_report_among_the_honest_ones_of_its_group(
    malicious: float, levels: int
) -> None:
    question, trust = PrefixTree(branching=4, levels=levels), Shuffled(least_devices=300)
    sums = question.plan(trust, BUDGET).sums
    assert isinstance(sums, ShuffledReports)
    group, local = 300 // levels, sums.report.epsilon
    honest = max(1, group - math.ceil(group * malicious))
    epsilon = spent(sums, honest)
    assert epsilon == pytest.approx(shuffled_epsilon(local, honest, BUDGET.delta), rel=1e-6)
    assert shuffled_delta(local, honest, epsilon + 1e-9, 1e-3 * BUDGET.delta) <= BUDGET.delta
    # The report by itself, as the shuffler reads it.
    assert local == pytest.approx(epsilon_of(sums.report, BUDGET.delta).epsilon, rel=1e-6)
    assert local > 1.0
