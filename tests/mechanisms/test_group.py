"""Group privacy of answers: never below the exact divergence of a person's presence, by brute force."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.events import (
    ApproximateDP,
    Composed,
    DiscreteGaussianSum,
    EventRefused,
    Gaussian,
    Repeated,
)
from fedray.mechanisms.accounting.group import WindowLoss, of_group
from fedray.mechanisms.accounting.zcdp import failure_of, rho_of
from fedray.mechanisms.questions.added_noise import Server
from fedray.mechanisms.questions.linear import Histogram
from fedray.mechanisms.questions.open_domain import OpenHistogram
from fedray.mechanisms.questions.trust import Budget

REACH = 400
SHAPES = [[1], [2], [3], [1, 1], [2, 1], [3, 3], [2, 2, 2]]
"""Devices of a person in each window in which any of them answers."""


def grouped(window: Any, delta: float, *persons: list[int]) -> Any:
    """The event of persons, given the number of their devices in each window."""
    numbers = [place for place, each in enumerate(persons) for _ in each]
    return of_group(
        WindowLoss.of(window, delta),
        np.array(numbers),
        np.array(list(itertools.chain.from_iterable(persons))),
    )


def divergence(present: np.ndarray, absent: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(present - math.exp(epsilon) * absent, 0.0).sum())


def of_windows(shape: list[int], outcomes: Any) -> tuple[np.ndarray, np.ndarray]:
    """Exact probabilities of all outcomes of the windows, with the person and without; windows of
    many outcomes are merged by their loss."""
    present, absent = np.ones(1), np.ones(1)
    for devices in shape:
        with_person, without = outcomes(devices)
        present = np.outer(present, with_person).ravel()
        absent = np.outer(absent, without).ravel()
        # Equal losses may be merged, and outcomes without probability tell nothing.
        with np.errstate(divide="ignore", invalid="ignore"):
            losses = np.round(np.log(present) - np.log(absent), 9)
        losses[(present == 0) & (absent == 0)] = 0.0
        _, place = np.unique(losses, return_inverse=True)
        present, absent = (np.bincount(place, each) for each in (present, absent))
    return present, absent


def shifted(noise: np.ndarray, by: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy counts of one key with `by` devices of the person, and without."""
    zeros = np.zeros(by)
    return np.concatenate([zeros, noise]), np.concatenate([noise, zeros])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0])
def test_epsilons_of_laplace_noise_add_up_and_are_attained(
    shape: list[int], epsilon: float
) -> None:
    """Of a histogram in which the devices of a person share a key: at delta 0 no less would do."""
    plan = Histogram(size=4).plan(Server(), Budget(epsilon))
    event = grouped(plan.event, 1e-8, shape)
    stated = epsilon_of(event, 1e-8).epsilon
    assert stated == pytest.approx(epsilon * sum(shape), rel=1e-12)
    steps = np.arange(-REACH, REACH + 1)
    noise = np.exp(-epsilon * np.abs(steps))
    present, absent = of_windows(shape, lambda devices: shifted(noise / noise.sum(), devices))
    assert divergence(present, absent, stated * (1 + 1e-6)) < 1e-9
    assert divergence(present, absent, 0.9 * stated) > 1e-9


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("variance", [4.0, 25.0])
def test_gaussian_noise_spends_no_more_than_stated(shape: list[int], variance: float) -> None:
    """At delta 1e-6, for every split of the devices over windows; rho grows with the squares."""
    window = DiscreteGaussianSum(sensitivity=1.0, device_variance=variance, devices=1, dimension=4)
    event = grouped(window, 1e-6, shape)
    squares = sum(each**2 for each in shape)
    assert rho_of(event) == pytest.approx(squares * rho_of(window), rel=1e-12)
    steps = np.arange(-120, 121)
    noise = np.exp(-(steps**2) / (2 * variance))
    present, absent = of_windows(shape, lambda devices: shifted(noise / noise.sum(), devices))
    assert divergence(present, absent, epsilon_of(event, 1e-6).epsilon) <= 1e-6


@pytest.mark.parametrize("shape", [[1], [2], [3], [2, 2]], ids=str)
@pytest.mark.parametrize(("epsilon", "most_keys"), [(1.0, 1), (0.5, 1), (2.0, 3)])
def test_a_threshold_fails_for_a_group_by_more_than_its_size(
    shape: list[int], epsilon: float, most_keys: int
) -> None:
    """A key that only devices of one person hold: exact probability of each noisy count above the
    threshold. Deltas grow with e^epsilon, so that the number of devices times delta is too little."""
    delta = 1e-4
    plan = OpenHistogram(most_keys=most_keys).plan(Server(), Budget(epsilon, delta))
    event = grouped(plan.event, delta, shape)
    own = failure_of(event)
    stated = epsilon_of(event, own).epsilon
    sums: Any = plan.sums
    tails = [sums._noise.tail(least) for least in range(1, REACH)]

    def outcomes(devices: int) -> tuple[np.ndarray, np.ndarray]:
        # Noise from the least that lifts the devices' count over the threshold; else nothing.
        first = sums.threshold - devices
        at_least = np.array(tails[first - 1 :])
        counts = at_least - np.append(at_least[1:], 0.0)
        with_person = np.append(counts, 1.0 - at_least[0])
        # Without a device the key is never released.
        return with_person, np.append(np.zeros(counts.size), 1.0)

    present, absent = of_windows(shape, outcomes)
    assert divergence(present, absent, stated) <= own
    if max(shape) == 3 and most_keys == 1:
        assert own > 3 * delta * len(shape) * 0.9


def test_a_window_with_a_failure_and_gaussian_noise_is_taken_by_its_epsilon() -> None:
    window = Composed(
        events=(
            DiscreteGaussianSum(sensitivity=1.0, device_variance=16.0, devices=1, dimension=1),
            ApproximateDP(epsilon=0.0, delta=1e-7, theorem="t"),
        )
    )
    of_one = epsilon_of(window, 1e-6).epsilon
    event = grouped(window, 1e-6, [2, 2])
    assert event.events[0].epsilon == pytest.approx(4 * of_one)
    assert failure_of(event) == pytest.approx(2e-6 * (1 + math.exp(of_one)))


def test_the_worst_person_counts_in_every_term() -> None:
    """The most answers and the largest sum of squares may be of two persons."""
    mixed = Composed(
        events=(
            ApproximateDP(epsilon=0.5, theorem="t"),
            DiscreteGaussianSum(sensitivity=1.0, device_variance=9.0, devices=1, dimension=1),
        )
    )
    event = grouped(mixed, 1e-6, [1, 1, 1, 1, 1], [4])
    noise, stated = event.events
    assert (noise.count, stated.epsilon) == (16, 2.5)


def test_what_has_no_group_privacy_here_is_refused_and_what_means_nothing_is_none() -> None:
    with pytest.raises(EventRefused, match="group privacy is known here for stated"):
        grouped(Gaussian(noise_multiplier=1.0), 1e-6, [2])
    much: Any = Repeated(event=ApproximateDP(epsilon=10.0, theorem="t"), count=4)
    assert grouped(much, 1e-6, [3]) is None
    failing: Any = ApproximateDP(epsilon=8.0, delta=1e-6, theorem="t")
    assert grouped(failing, 1e-6, [3]) is None
