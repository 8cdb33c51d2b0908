"""Bounds for devices that take part at random rounds, against integrals over all patterns."""

import functools
import itertools
import math

import numpy as np
import pytest
from scipy.stats import ks_2samp, norm
from slow_twins import gaussian_delta

from fedray.base.arrays import Float64Array
from fedray.mechanisms.accounting.events import EventRefused, Gaussian, MinSepSampled
from fedray.mechanisms.accounting.monte_carlo import (
    BATCH,
    allocation_gram,
    loss_sampler,
    loss_tails,
    monte_carlo_epsilon,
)
from fedray.mechanisms.accounting.renyi import allocated_moments, renyi_epsilon
from fedray.mechanisms.registry import BLT, Identity
from fedray.mechanisms.strategy import Strategy
from fedray.mechanisms.toeplitz import Toeplitz

STEP = 0.15
"""Step of the grid of outputs; sums of smooth densities over it are exact to 1e-3 here."""
EPSILONS = (0.1, 0.5, 1.0, 2.0, 3.0, 4.0)


def event(
    strategy: Strategy, rounds: int, min_sep: int, probability: float, noise_multiplier: float
) -> MinSepSampled:
    return MinSepSampled(
        strategy=strategy,
        rounds=rounds,
        min_sep=min_sep,
        probability=probability,
        noise_multiplier=noise_multiplier,
    )


def toeplitz(*coefficients: float) -> Toeplitz:
    return Toeplitz(coefficients=coefficients)


def patterns(sampled: MinSepSampled) -> tuple[Float64Array, Float64Array]:
    """All patterns of rounds, [patterns, rounds], and the probability of each."""
    b, p = sampled.min_sep, sampled.probability
    found: dict[tuple[int, ...], float] = {}

    def walk(wait: int, pattern: tuple[int, ...], share: float) -> None:
        if len(pattern) == sampled.rounds:
            found[pattern] = found.get(pattern, 0.0) + share
        elif wait:
            walk(wait - 1, (*pattern, 0), share)
        else:
            walk(b - 1, (*pattern, 1), share * p)
            walk(0, (*pattern, 0), share * (1 - p))

    for wait in range(b):
        walk(wait, (), (p if wait else 1.0) / (1 + (b - 1) * p))
    shares = np.array(list(found.values()))
    assert shares.sum() == pytest.approx(1.0)
    return np.array(list(found), np.float64), shares


@functools.lru_cache
def integrated(sampled: MinSepSampled) -> tuple[Float64Array, Float64Array]:
    """delta(EPSILONS) of P against Q and of Q against P, by a sum over a grid of outputs."""
    found, shares = patterns(sampled)
    means = found @ sampled.strategy.definition(sampled.rounds).T / sampled.noise_multiplier
    axes = [
        np.arange(low - 6, high + 6, STEP)
        for low, high in zip(means.min(0), means.max(0), strict=True)
    ]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))
    mass = norm.pdf(points).prod(axis=1) * STEP ** len(axes)
    ratio = np.exp(points @ means.T - (means**2).sum(1) / 2) @ shares
    return _deltas(mass, ratio)


def _deltas(mass: Float64Array, ratio: Float64Array) -> tuple[Float64Array, Float64Array]:
    level = np.exp(np.array(EPSILONS))[:, None]
    present, absent = np.maximum(ratio - level, 0), np.maximum(1 - level * ratio, 0)
    return present @ mass, absent @ mass


CASES = {
    "allocated to 2 bins": event(Identity(), 2, 2, 1.0, 1.0),
    "allocated to 2 bins, two bands": event(toeplitz(1.0, 0.5), 3, 2, 1.0, 1.0),
    "allocated to 3 bins, dense": event(toeplitz(1.0, 0.5, 0.3), 3, 3, 1.0, 0.7),
    "more bands than bins": event(toeplitz(1.0, 0.5, 0.25), 3, 2, 1.0, 1.0),
    "b-min-sep": event(toeplitz(1.0, 0.5), 3, 2, 0.4, 1.0),
    "b-min-sep, seldom": event(toeplitz(1.0, 0.5, 0.2), 3, 3, 0.1, 0.8),
    "independent": event(Identity(), 3, 1, 0.3, 1.0),
}


@pytest.mark.parametrize("name", CASES)
def test_bounds_are_above_the_integral_and_close_to_it(name: str) -> None:
    tails = loss_tails(CASES[name])
    for tail, exact in zip(tails.tails, integrated(CASES[name]), strict=True):
        bounds = np.array([tail.delta(each) for each in EPSILONS])
        assert np.all(bounds >= exact * (1 - 1e-3))
        # Draws see what is not rare; below that, the bound only follows from the tail.
        is_seen = exact > 1e-2
        assert np.all(bounds[is_seen] < 1.5 * exact[is_seen])


def test_one_bin_is_a_gaussian_however_small_delta_is() -> None:
    tails = loss_tails(event(toeplitz(1.0, 0.5), 4, 1, 1.0, 2.0))
    mu = float(np.linalg.norm([1.0, 1.5, 1.5, 1.5])) / 2.0
    for delta in (1e-3, 1e-6, 1e-12):
        epsilon = tails.epsilon(delta)
        assert gaussian_delta(mu, epsilon) <= delta
        assert gaussian_delta(mu, 0.93 * epsilon) > delta


@pytest.mark.parametrize("seed", range(20))
def test_bounds_hold_for_other_draws(seed: int) -> None:
    sampled = CASES["b-min-sep"]
    tails = loss_tails(sampled, draws=4 * BATCH, seed=seed)
    for tail, exact in zip(tails.tails, integrated(sampled), strict=True):
        assert np.all(np.array([tail.delta(each) for each in EPSILONS]) >= exact * (1 - 1e-3))


def test_no_adaptive_update_costs_more_than_the_same_one_in_every_round() -> None:
    sampled = CASES["allocated to 2 bins, two bands"]
    sampled = sampled.model_copy(update={"rounds": 2})
    found, shares = patterns(sampled)
    c = sampled.strategy.definition(2) / sampled.noise_multiplier
    axis = np.arange(-8.0, 10.0, 0.05)
    first, second = np.meshgrid(axis, axis, indexing="ij")
    mass = (norm.pdf(first) * norm.pdf(second)).ravel() * 0.05**2
    worst = integrated(sampled)
    random = np.random.default_rng(5)
    for _ in range(200):
        # The second update is a function of the first release: steps of random heights.
        heights = random.uniform(-1, 1, 6)
        later = heights[np.digitize(first, np.sort(random.normal(size=5)))]
        ratio = np.zeros_like(first)
        for (a, b), share in zip(found, shares, strict=True):
            mean, then = c[0, 0] * a, c[1, 0] * a + c[1, 1] * b * later
            ratio += share * np.exp(first * mean - mean**2 / 2 + second * then - then**2 / 2)
        for got, most in zip(_deltas(mass, ratio.ravel()), worst, strict=True):
            assert np.all(got <= most + 1e-5)


def test_bounds_are_above_those_of_a_projection() -> None:
    strategy = BLT(theta=(0.9,), omega=(0.4,))
    sampled = event(strategy, 120, 20, 1.0, 3.0)
    means = np.stack(
        [strategy.definition(120)[:, start::20].sum(axis=1) / 3.0 for start in range(20)]
    )
    # Whoever sees only the product with one direction sees normal mixtures of one dimension.
    direction = means.sum(axis=0) / np.linalg.norm(means.sum(axis=0))
    centres = means @ direction
    x = np.arange(-12.0, 20.0, 1e-3)
    mass, ratio = norm.pdf(x) * 1e-3, np.exp(np.outer(x, centres) - centres**2 / 2).mean(axis=1)
    tails = loss_tails(sampled, draws=8 * BATCH)
    for tail, least in zip(tails.tails, _deltas(mass, ratio), strict=True):
        assert np.all(np.array([tail.delta(each) for each in EPSILONS]) >= least)


@pytest.mark.parametrize("probability", [1.0, 0.2])
@pytest.mark.parametrize("is_present", [True, False])
def test_losses_have_the_law_of_another_library(probability: float, is_present: bool) -> None:
    batch_selection = pytest.importorskip("jax_privacy.batch_selection")
    from jax_privacy.experimental.monte_carlo import sample_generation

    rounds, min_sep, column = 24, 6, np.array([1.0, 0.6])
    kind = {"iterations": rounds}
    other = (
        batch_selection.BallsInBinsSampling(cycle_length=min_sep, **kind)
        if probability == 1.0
        else batch_selection.BMinSepSampling(sampling_prob=probability, min_sep=min_sep, **kind)
    )
    losses, _ = sample_generation.get_privacy_loss_sample(
        other,
        1.5,
        np.pad(column, (0, rounds - 2)) if probability == 1.0 else column,
        seed=3,
        positive_sample=is_present,
        num_samples=4000,
    )
    sampled = event(toeplitz(*column), rounds, min_sep, probability, 1.5)
    sampler = loss_sampler(sampled)
    ours = sampler.draw(np.random.default_rng(4), 4000, is_present)
    theirs = np.asarray(losses) if is_present else -np.asarray(losses)
    # One in 10,000 would fail by chance; the seeds are fixed.
    assert ks_2samp(ours, theirs).pvalue > 1e-4


@pytest.mark.parametrize("coefficients", [(1.0,), (1.0, 0.5, 0.25)])
def test_moments_of_random_allocation_are_exact_for_orthogonal_bins(
    coefficients: tuple[float, ...],
) -> None:
    gram = allocation_gram(toeplitz(*coefficients).definition(9) / 1.3, 4)
    moments = allocated_moments(gram)
    for order in (2, 3, 4, 5):
        terms = []
        for choice in itertools.product(range(4), repeat=order):
            pairs = sum(gram[i, j] for i, j in itertools.combinations(choice, 2))
            terms.append(math.exp(pairs))
        exact = math.log(np.mean(terms))
        if len(coefficients) == 1:
            assert moments[order - 2] == pytest.approx(exact, rel=1e-9)
        else:
            assert moments[order - 2] > exact


@pytest.mark.parametrize("name", [each for each in CASES if CASES[each].probability == 1.0])
def test_epsilon_by_moments_is_above_the_integral(name: str) -> None:
    for exact in integrated(CASES[name]):
        for epsilon, delta in zip(EPSILONS, exact, strict=True):
            assert renyi_epsilon(CASES[name], float(min(delta, 0.5))) >= epsilon


def test_what_is_not_proven_is_refused() -> None:
    with pytest.raises(EventRefused, match="negative entries"):
        loss_sampler(event(toeplitz(1.0, -0.5), 4, 2, 1.0, 1.0))
    with pytest.raises(EventRefused, match="3 bands with min_sep=2"):
        loss_sampler(event(toeplitz(1.0, 0.5, 0.2), 4, 2, 0.5, 1.0))
    with pytest.raises(EventRefused, match="closed form"):
        renyi_epsilon(CASES["b-min-sep"], 1e-5)
    with pytest.raises(EventRefused, match="random pattern"):
        monte_carlo_epsilon(Gaussian(noise_multiplier=1.0), 1e-5)
