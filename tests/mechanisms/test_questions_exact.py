"""Privacy and noise of questions by exact probabilities: every output of a small mechanism on every
pair of neighbouring inputs."""

import itertools
import math
import os
from collections.abc import Iterator

import numpy as np
import pytest
from scipy.stats import binom

from fedray.base.arrays import Float64Array
from fedray.mechanisms.accounting.events import DiscreteGaussianSum
from fedray.mechanisms.accounting.zcdp import zcdp_epsilon
from fedray.mechanisms.questions.added_noise import DiscreteGaussian, DiscreteLaplace
from fedray.mechanisms.questions.linear import Histogram
from fedray.mechanisms.questions.numbers import Quantiles
from fedray.mechanisms.questions.open_domain import PrefixTree, Thresholded
from fedray.mechanisms.questions.question import Items
from fedray.mechanisms.questions.registry import Devices, Local, Server, Shuffled
from fedray.mechanisms.questions.trust import Budget, NoisySums, Shape, Vectors

FALSE_ALARM = 1e-6
FULL = "FEDRAY_ALL_SEEDS" in os.environ


def divergence(p: Float64Array, q: Float64Array, epsilon: float) -> float:
    """delta at epsilon of two lists of probabilities."""
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


# Noise on sums.


@pytest.mark.parametrize("noise", ["laplace", "gaussian", "shares"])
def test_added_noise_has_its_variance_its_tails_and_its_width(noise: str) -> None:
    shape, budget = Shape(40_000, 2, math.sqrt(2)), Budget(1.0, 1e-5)
    mechanism = {
        "laplace": lambda: DiscreteLaplace(shape, budget),
        "gaussian": lambda: DiscreteGaussian(shape, budget),
        "shares": lambda: DiscreteGaussian(shape, budget, devices=50),
    }[noise]()
    values = mechanism.noise(shape.size, 80, np.random.default_rng(11))
    variance = mechanism.variance(80)
    # The fourth moment of Laplace noise is 6 variances squared: a deviation of 4.9.
    assert abs(values.var() / variance - 1) < 4.9 * math.sqrt(5 / shape.size)
    assert abs(values.mean()) < 4.9 * math.sqrt(variance / shape.size)
    for failure in (0.3, 0.05, 0.001):
        beyond = int((np.abs(values) > mechanism.width(80, failure)).sum())
        assert binom.sf(beyond - 1, shape.size, failure) > FALSE_ALARM
        # A width of two steps less would fail more often, so it is not vacuous.
        closer = int((np.abs(values) > mechanism.width(80, failure) - 2).sum())
        assert binom.cdf(closer, shape.size, failure * 0.9) > FALSE_ALARM
    if noise != "shares":
        for least in (1, 3, 8):
            beyond = int((values >= least).sum())
            tail = mechanism.tail(least)
            assert binom.sf(beyond - 1, shape.size, tail) > FALSE_ALARM
            assert binom.cdf(beyond, shape.size, tail) > FALSE_ALARM


@pytest.mark.parametrize("devices", [None, 50])
def test_the_event_the_tail_and_the_width_are_those_of_the_drawn_noise(devices: int | None) -> None:
    """The sampler's variance is rounded up, which narrower intervals and tails would not cover."""
    for epsilon in np.linspace(0.1, 4.0, 30).tolist():
        gaussian = DiscreteGaussian(Shape(1, 1, 1.0), Budget(epsilon, 1e-6), devices=devices)
        shares = devices or 1
        drawn = float(gaussian._scale(shares).variance)
        assert drawn > gaussian.device_variance * shares
        assert isinstance(gaussian.event, DiscreteGaussianSum)
        assert gaussian.event.device_variance * shares == pytest.approx(drawn, rel=1e-15)
        assert gaussian.variance(shares) == drawn / gaussian.fineness**2
        assert zcdp_epsilon(gaussian.event, 1e-6) <= epsilon
        sizes = np.arange(-400, 401)
        chances = np.exp(-(sizes**2) / (2 * drawn))
        chances /= chances.sum()
        if devices is None:
            assert gaussian.tail(3) == pytest.approx(chances[sizes >= 3].sum(), rel=1e-12)
            assert chances[np.abs(sizes) > gaussian.width(1, 0.01)].sum() <= 0.01


# Thresholds.


def mass(noise: DiscreteLaplace | DiscreteGaussian, value: int) -> float:
    """P(noise = value)."""
    size = abs(value)
    if size == 0:
        return 1.0 - 2.0 * noise.tail(1)
    return noise.tail(size) - noise.tail(size + 1)


def released(noise: DiscreteLaplace | DiscreteGaussian, threshold: int, count: int) -> Float64Array:
    """Probabilities of the outputs of a key: nothing, or a noisy count from the threshold to the
    last one, which stands for all beyond."""
    if count == 0:
        return np.eye(1, REACH + 1)[0]
    shown = [mass(noise, threshold + extra - count) for extra in range(REACH - 1)]
    beyond = threshold + REACH - 1 - count
    shown.append(noise.tail(beyond))
    return np.array([1.0 - sum(shown), *shown])


REACH = 40


def neighbours() -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Counts of three keys with a device of at most two keys, and without it."""
    for others in itertools.product(range(3), repeat=3):
        for held in itertools.product((0, 1), repeat=3):
            if 1 <= sum(held) <= 2:
                yield tuple(a + b for a, b in zip(others, held, strict=True)), others


@pytest.mark.parametrize(("noise", "epsilon"), [("laplace", 0.5), ("gaussian", 1.5)])
def test_the_delta_of_a_threshold_is_exact_over_all_neighbours(noise: str, epsilon: float) -> None:
    """Three keys, two per device: every output's probability, in both directions."""
    shape, delta = Shape(1, 2, math.sqrt(2)), 0.02
    if noise == "laplace":
        added, own = DiscreteLaplace(shape, Budget(epsilon)), 0.0
    else:
        added, own = DiscreteGaussian(shape, Budget(epsilon, delta)), delta
    opened = Thresholded(added, delta, most_keys=2)
    worst, largest_gap = 0.0, 0.0
    for one, other in neighbours():
        outputs = [
            np.einsum("i,j,k->ijk", *(released(added, opened.threshold, each) for each in counts))
            for counts in (one, other)
        ]
        worst = max(worst, divergence(*outputs, epsilon), divergence(*outputs[::-1], epsilon))
        # Outputs that are impossible without the device.
        largest_gap = max(largest_gap, float(outputs[0][outputs[1] == 0].sum()))
    unique = opened.release_probability(opened.threshold)
    assert unique <= delta
    assert largest_gap == pytest.approx(unique, rel=1e-9)
    assert worst <= unique + own + 1e-12
    if noise == "laplace":
        assert worst == pytest.approx(unique, rel=1e-9), "delta is attained"
        lower = Thresholded(added, delta, most_keys=2)
        assert lower.release_probability(opened.threshold - 1) > delta, "the least threshold"
    else:
        assert zcdp_epsilon(opened.event, delta + unique) <= epsilon * (1 + 1e-9)


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_the_bias_of_a_released_count_is_bounded_by_that_at_one_device(noise: str) -> None:
    shape, budget = Shape(1, 1, 1.0), Budget(1.0, 1e-4)
    added = (
        DiscreteLaplace(shape, budget) if noise == "laplace" else DiscreteGaussian(shape, budget)
    )
    opened = Thresholded(added, 1e-3, most_keys=1)
    for count in (1, 2, 5, 20):
        values = range(opened.threshold - count, opened.threshold - count + 400)
        chances = np.array([mass(added, each) for each in values])
        bias = float(chances @ np.array(values) / chances.sum())
        # The tail of log-concave noise falls at least geometrically from the threshold on.
        least = opened.threshold - 1
        ratio = added.tail(least + 1) / added.tail(least)
        bound = least + ratio / (1 - ratio)
        assert bias <= bound * (1 + 1e-9)
        if count == 1 and noise == "laplace":
            assert bias == pytest.approx(bound)


# Trees.


@pytest.mark.parametrize("seed", range(12 if FULL else 4))
def test_ranks_add_up_the_counts_below_each_edge(seed: int) -> None:
    rng = np.random.default_rng(seed)
    question = Quantiles(low=0.0, high=1.0, branching=2 + seed % 3, levels=3)
    numbers = rng.uniform(-0.2, 1.2, 200)
    items = Items(np.arange(201), np.zeros(200, np.int64), numbers)
    nodes = question.vectors(items, rng).totals().astype(np.float64)
    kept = np.clip(numbers, 0.0, 1.0)
    edges = np.linspace(0.0, 1.0, question.bins + 1)
    below = [(kept < edge).sum() for edge in edges[:-1]] + [200]
    np.testing.assert_array_equal(question.ranks(nodes), below)


@pytest.mark.parametrize("shares", [(0.5,), (0.01, 0.3, 0.99)])
def test_quantiles_without_noise_are_within_half_a_bin(shares: tuple[float, ...]) -> None:
    question = Quantiles(low=0.0, high=1.0, shares=shares, levels=5)
    numbers = np.random.default_rng(1).beta(2, 5, 5000)
    items = Items(np.arange(5001), np.zeros(5000, np.int64), numbers)
    rng = np.random.default_rng(2)
    answer = question.plan(Server(), Budget(99.0)).answer(items, rng)
    truth = question.truth(items, rng)
    assert np.abs(answer.estimates - truth.values).max() <= 0.5 / question.bins
    assert ((answer.low <= truth.values) & (truth.values <= answer.high)).all()
    assert (answer.high - answer.low).max() <= 1.0 / question.bins * (1 + 1e-9)


def tree_population(seed: int, question: PrefixTree, devices: int) -> Items:
    rng = np.random.default_rng(seed)
    ends = question.branching**question.levels
    words = rng.integers(0, ends, 30)
    starts = np.concatenate([[0], np.cumsum(rng.integers(0, 4, devices))])
    return Items(
        starts,
        rng.choice(words, starts[-1], p=rng.dirichlet(np.full(30, 0.4))),
        np.ones(starts[-1]),
    )


@pytest.mark.parametrize("seed", range(20 if FULL else 6))
@pytest.mark.parametrize(("branching", "levels", "most"), [(2, 6, 1), (5, 3, 3), (27, 2, 2)])
def test_a_tree_with_hardly_any_noise_finds_exactly_the_keys_of_an_exhaustive_count(
    seed: int, branching: int, levels: int, most: int
) -> None:
    question = PrefixTree(branching=branching, levels=levels, most_keys=most)
    items = tree_population(seed, question, 400)
    answer = question.plan(Server(), Budget(99.0)).answer(items, np.random.default_rng(seed))
    counted: dict[int, int] = {}
    owners, keys, _ = items.bounded(branching**levels, most, np.random.default_rng(seed))
    for _, key in zip(owners, keys.tolist(), strict=True):
        counted[key] = counted.get(key, 0) + 1
    assert dict(zip(answer.keys.tolist(), answer.estimates.tolist(), strict=True)) == counted


class Recorded(DiscreteLaplace):
    """Hardly any noise, and a record of the vectors."""

    def release(self, vectors: Vectors, rng: np.random.Generator) -> NoisySums:
        seen.append(vectors)
        return super().release(vectors, rng)


class Spied(PrefixTree):
    """A tree that records which devices take part in each level."""

    def _vectors(self, owners, prefixes, children, turn) -> Vectors:
        turns.append(turn)
        return super()._vectors(owners, prefixes, children, turn)


seen: list[Vectors] = []
turns: list[np.ndarray] = []


@pytest.mark.parametrize("groups", [1, 6])
def test_a_device_is_in_a_level_of_a_tree_within_the_bounds_once_or_in_its_turn(
    groups: int,
) -> None:
    question = Spied(branching=2, levels=6, most_keys=3)
    items = tree_population(1, question, 300)
    mechanism = Recorded(question.shape, Budget(99.0))
    mechanism.groups = groups
    seen.clear()
    turns.clear()
    question.answered(mechanism, items, np.random.default_rng(1), 0.95)
    assert len(seen) == 6
    for vectors in seen:
        assert vectors.steps.tolist() == [1] * vectors.steps.size
        pairs = np.stack([vectors.owners, vectors.keys])
        assert np.unique(pairs, axis=1).shape == pairs.shape, "one vote for a shared prefix"
        assert np.bincount(vectors.owners).max() <= 3
        assert vectors.keys.max() < question.shape.size
    assert [each.devices for each in seen] == [each.size for each in turns]
    took_part = np.bincount(np.concatenate(turns), minlength=300)
    assert took_part.tolist() == [6 if groups == 1 else 1] * 300


@pytest.mark.slow
@pytest.mark.parametrize("trust", ["server", "devices", "shuffled", "local"])
def test_a_tree_releases_only_keys_that_are_held_and_all_that_are_common(trust: str) -> None:
    """Each statement fails with a probability of at most 0.1; the acceptance of the number of
    failures is exact, with a false-alarm rate of 1e-6."""
    seeds, failures, found, devices = 200 if FULL else 12, [0, 0], 0, 20_000
    question = PrefixTree(branching=3, levels=4, most_keys=2, most_prefixes=81)
    trusts = {
        "server": Server(),
        "devices": Devices(least_devices=devices),
        "shuffled": Shuffled(least_devices=devices),
        "local": Local(),
    }
    plan = question.plan(trusts[trust], Budget(3.0, 1e-6))
    for seed in range(seeds):
        items = tree_population(seed, question, devices)
        answer = plan.answer(items, np.random.default_rng(seed), confidence=0.9)
        truth = question.truth(items, np.random.default_rng(seed))
        counts = dict(zip(truth.keys.tolist(), truth.bounded.tolist(), strict=True))
        widest = (answer.high - answer.low).max(initial=0.0)
        failures[0] += any(counts.get(key, 0) == 0 for key in answer.keys.tolist())
        if answer.keys.size and trust in ("server", "devices"):
            # All intervals of a level are equally wide, and the last is the widest.
            common = {key for key, count in counts.items() if count > widest}
            failures[1] += not common <= set(answer.keys.tolist())
        found += answer.keys.size
    for each in failures:
        assert binom.sf(each - 1, seeds, 0.1) > FALSE_ALARM
    assert found > (2 if trust == "local" else 6) * seeds, "the tree finds keys"


def test_trust_models_are_ordered_in_error_at_one_budget() -> None:
    budget, devices = Budget(math.log(3), 1e-8), 100_000
    question = Histogram(size=3600)
    errors = [
        question.plan(trust, budget).sums.variance(devices) ** 0.5
        for trust in (
            Server(),
            Devices(least_devices=devices),
            Shuffled(least_devices=devices),
            Local(),
        )
    ]
    assert errors == sorted(errors)
    # Discrete Laplace noise of ratio 1/3, and unary encoding: by hand.
    assert errors[0] == pytest.approx(math.sqrt(1.5))
    assert errors[3] == pytest.approx(math.sqrt(devices * 3))
