"""Local randomisers and their shuffles by exact probabilities: every report of a small randomiser on
every pair of contributions of one device, and all data of the others."""

import itertools
import math
import os
import tracemalloc

import numpy as np
import pytest
from scipy.stats import binom, chisquare

from fedray.base.arrays import Float64Array
from fedray.mechanisms.accounting.shuffling import (
    largest_local_epsilon,
    shuffled_delta,
    shuffled_epsilon,
)
from fedray.mechanisms.questions.local import RandomisedReports
from fedray.mechanisms.questions.trust import Shape, Vectors

FALSE_ALARM = 1e-6
FULL = "FEDRAY_ALL_SEEDS" in os.environ
Reports = dict[tuple[int, ...], float]


def divergence(p: Float64Array, q: Float64Array, epsilon: float) -> float:
    """delta at epsilon of two lists of probabilities."""
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


# Local randomisers.


def definition(reports: RandomisedReports) -> Float64Array:
    """Probability of each output given each category, [K + 1, outputs]; the outputs are categories,
    or all 2^K settings of the bits."""
    size, p, q = reports.categories, reports.p, reports.q
    if not reports.is_unary:
        return q + (p - q) * np.eye(size + 1)
    return unary(size, p, q)


def unary(size: int, p: float, q: float) -> Float64Array:
    bits = np.arange(1 << size)[:, None] >> np.arange(size) & 1
    ones = q + (p - q) * np.eye(size + 1, size)
    return np.prod(np.where(bits[None], ones[:, None], 1.0 - ones[:, None]), axis=2)


@pytest.mark.parametrize("epsilon", [0.1, math.log(3), 3.0, 7.0])
@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("is_signed", [False, True])
def test_local_randomisers_attain_their_epsilon_between_any_two_contributions(
    epsilon: float, size: int, is_signed: bool
) -> None:
    shape = Shape(size, most_l1=3, most_l2=3.0, is_signed=is_signed)
    mechanism = RandomisedReports(shape, epsilon, releases=1)
    assert mechanism.is_unary == (mechanism.categories - 1 > 3 * math.exp(epsilon))
    outputs = definition(mechanism)
    np.testing.assert_allclose(outputs.sum(axis=1), 1.0, rtol=1e-12)
    # A device draws its category, so its contribution is a mixture of them, which is no worse.
    ratios = outputs[:, None] / outputs[None]
    assert math.log(ratios.max()) == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "epsilon"), [(2, 1.0), (4, 0.5), (3, 3.0), (5, 0.1)])
def test_reports_are_sampled_as_defined(size: int, epsilon: float) -> None:
    """Numbers of reports of three devices, against sums of independent reports of the definition;
    the chi-squared test has a false-alarm rate of 1e-6."""
    mechanism = RandomisedReports(Shape(size, 1, 1.0), epsilon, releases=1)
    categories = [0, 1, size]
    one = definition(mechanism)
    exact: dict[tuple[int, ...], float] = {(0,) * size: 1.0}
    for category in categories:
        grown: dict[tuple[int, ...], float] = {}
        for seen, chance in exact.items():
            for output, probability in enumerate(one[category]):
                if mechanism.is_unary:
                    report = tuple(output >> bit & 1 for bit in range(size))
                else:
                    report = tuple(int(output == each) for each in range(size))
                total = tuple(a + b for a, b in zip(seen, report, strict=True))
                grown[total] = grown.get(total, 0.0) + chance * probability
        exact = grown
    holders = np.array([0, 1])
    vectors = Vectors(holders, np.array([0, 1]), np.array([1, 1]), size, 3)
    rng = np.random.default_rng(7)
    draws = 20_000
    counts = dict.fromkeys(exact, 0)
    for _ in range(draws):
        estimates = mechanism.release(vectors, rng).estimates
        seen = np.rint(estimates / mechanism.scale + 3 * mechanism.q).astype(int)
        counts[tuple(seen.tolist())] += 1
    common = [each for each, chance in exact.items() if chance * draws >= 5]
    observed = [counts[each] for each in common]
    expected = [exact[each] * draws for each in common]
    observed.append(draws - sum(observed))
    expected.append(draws - sum(expected))
    if expected[-1] < 5:
        observed[-2:], expected[-2:] = [sum(observed[-2:])], [sum(expected[-2:])]
    assert chisquare(observed, expected).pvalue > FALSE_ALARM


def test_a_device_draws_a_coordinate_in_proportion_to_its_steps() -> None:
    mechanism = RandomisedReports(Shape(3, 10, 10.0, is_signed=True), 1.0, releases=1)
    devices = 60_000
    owners = np.repeat(np.arange(devices), 2)
    keys, steps = np.tile([0, 2], devices), np.tile([3, -5], devices)
    drawn = mechanism.drawn(Vectors(owners, keys, steps, 3, devices), np.random.default_rng(1))
    # Key 0 positive, key 2 negative (3 + 2), or none (6).
    observed = np.bincount(drawn, minlength=7)
    assert observed[[1, 2, 3, 4]].sum() == 0
    shares = np.array([0.3, 0.5, 0.2])
    assert chisquare(observed[[0, 5, 6]], shares * devices).pvalue > FALSE_ALARM


# Shuffles.


def shuffled_reports(rows: list[Float64Array]) -> Reports:
    """Probabilities of the numbers of each output, of independent reports."""
    total: Reports = {(0,) * rows[0].size: 1.0}
    for row in rows:
        grown: Reports = {}
        for seen, chance in total.items():
            for output, probability in enumerate(row):
                key = (*seen[:output], seen[output] + 1, *seen[output + 1 :])
                grown[key] = grown.get(key, 0.0) + chance * probability
        total = grown
    return total


def largest_deltas(randomiser: Float64Array, devices: int, epsilons: list[float]) -> list[float]:
    """Largest delta at each epsilon over all data of the others, and all pairs of inputs of one
    device."""
    inputs, worst = range(len(randomiser)), [0.0] * len(epsilons)
    for others in itertools.combinations_with_replacement(inputs, devices - 1):
        rest = [randomiser[each] for each in others]
        seen = [shuffled_reports([*rest, randomiser[each]]) for each in inputs]
        keys = list(seen[0])
        chances = [np.array([each[key] for key in keys]) for each in seen]
        for one, other in itertools.permutations(chances, 2):
            found = [divergence(one, other, each) for each in epsilons]
            worst = [max(pair) for pair in zip(worst, found, strict=True)]
    return worst


def randomisers_of(local_epsilon: float, rng: np.random.Generator) -> list[Float64Array]:
    """Randomised response, unary encoding of few bits, and random randomisers of the same
    epsilon."""
    q = 1 / (math.exp(local_epsilon) + 1)
    found = [
        definition(RandomisedReports(Shape(1, 1, 1.0), local_epsilon, 1)),
        definition(RandomisedReports(Shape(2, 1, 1.0), local_epsilon, 1)),
        unary(2, 0.5, q),
        unary(3, 0.5, q),
    ]
    for _ in range(10 if FULL else 3):
        # Rows within a factor of e^epsilon of each other at every output.
        wild = np.exp(rng.choice([0.0, local_epsilon], (3, 3)))
        rows = wild / wild.sum(axis=1, keepdims=True)
        while np.log((rows[:, None] / rows[None]).max()) > local_epsilon:
            wild = wild**0.95
            rows = wild / wild.sum(axis=1, keepdims=True)
        found.append(rows)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2, 3, 5] if not FULL else [1, 2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize("local_epsilon", [0.7, 2.0, 4.0])
def test_the_bound_on_shuffles_holds_for_all_data_of_few_devices(
    devices: int, local_epsilon: float
) -> None:
    shares = (0.1, 0.4, 0.8)
    for randomiser in randomisers_of(local_epsilon, np.random.default_rng(devices)):
        epsilons = [share * local_epsilon for share in shares]
        for epsilon, worst in zip(
            epsilons, largest_deltas(randomiser, devices, epsilons), strict=True
        ):
            bound = shuffled_delta(local_epsilon, devices, epsilon, tail=1e-15)
            assert worst <= bound * (1 + 1e-9)


def mean_excess(values: Float64Array, chances: Float64Array, ends: Float64Array) -> Float64Array:
    """E[(X - t)+] of a variable that is 0 unless it has one of some values, at each t."""
    nothing = np.maximum(-ends, 0.0) * (1.0 - chances.sum())
    return nothing + np.maximum(values - ends[:, None], 0.0) @ chances


@pytest.mark.parametrize("local_epsilon", [0.05, 0.7, 2.0, 4.0, 9.0])
def test_any_randomiser_is_below_the_pair_of_the_theorem_in_the_convex_order(
    local_epsilon: float,
) -> None:
    """The step of the proof that an erratum of the paper leaves open for unary encoding."""
    p = 1 / (math.exp(local_epsilon) + 1)
    for randomiser in randomisers_of(local_epsilon, np.random.default_rng(5)):
        least = randomiser.min(axis=0)
        for (one, other), share in itertools.product(
            itertools.permutations(randomiser, 2), (0.0, 0.3, 0.9)
        ):
            grown = math.exp(share * local_epsilon)
            high, low = math.exp(local_epsilon) - grown, 1 - math.exp(local_epsilon) * grown
            ends = np.linspace(1.1 * low, 1.1 * high, 201)
            own = mean_excess((one - grown * other) / least, least, ends)
            pair = mean_excess(np.array([high, low]), np.array([p, p]), ends)
            assert (own <= pair + 1e-12 * abs(low)).all()


def test_one_report_is_as_private_as_randomised_response_and_a_bound_is_tight_for_it() -> None:
    binary = definition(RandomisedReports(Shape(1, 1, 1.0), 2.0, 1))
    (exact,) = largest_deltas(binary, 1, [1.0])
    assert shuffled_delta(2.0, 1, 1.0, tail=1e-15) == pytest.approx(exact, rel=1e-5)
    # With others it is within a factor of 3 for two inputs, so it is not vacuous.
    for devices in (3, 6):
        bound = shuffled_delta(2.0, devices, 1.0, tail=1e-15)
        (exact,) = largest_deltas(binary, devices, [1.0])
        assert bound / 3 < exact <= bound


def slow_delta(local_epsilon: float, devices: int, epsilon: float) -> float:
    """The definition of Feldman, McMillan, Talwar 2023, Theorem 3.1, term by term."""
    share = 2 / (math.exp(local_epsilon) + 1)
    right = math.exp(local_epsilon) / (math.exp(local_epsilon) + 1)
    total = 0.0
    for c in range(devices):
        weight = binom.pmf(c, devices - 1, share)
        a = binom.pmf(np.arange(-1, c + 2), c, 0.5)
        one = right * a[:-1] + (1 - right) * a[1:]
        other = (1 - right) * a[:-1] + right * a[1:]
        total += weight * divergence(one, other, epsilon)
    return total


@pytest.mark.parametrize("devices", [1, 2, 17, 300])
@pytest.mark.parametrize(("local_epsilon", "epsilon"), [(1.0, 0.3), (3.0, 1.0), (5.0, 0.2)])
def test_the_bound_on_shuffles_is_the_sum_of_its_definition(
    devices: int, local_epsilon: float, epsilon: float
) -> None:
    slow = slow_delta(local_epsilon, devices, epsilon)
    fast = shuffled_delta(local_epsilon, devices, epsilon, tail=1e-16)
    assert slow - 1e-15 <= fast <= slow * (1 + 2e-6) + 3e-16


def test_a_tail_below_the_precision_of_floats_is_cut_on_both_sides() -> None:
    """At 300 reports, delta is 3e-23 by its definition; and millions of reports stay a short sum."""
    slow = slow_delta(1.0, 300, 0.7)
    fast = shuffled_delta(1.0, 300, 0.7, tail=1e-3 * slow)
    assert slow < 1e-20
    assert slow * (1 - 1e-9) <= fast <= slow * (1 + 1.1e-3)
    tracemalloc.start()
    local = largest_local_epsilon(1.0, 1e-15, 30_000_000)
    assert tracemalloc.get_traced_memory()[1] < 100e6
    tracemalloc.stop()
    assert local > 1.0


@pytest.mark.parametrize("devices", [100, 10_000, 1_000_000])
def test_the_largest_local_epsilon_meets_the_target_and_beats_the_closed_form(
    devices: int,
) -> None:
    epsilon, delta = math.log(3), 1e-8
    local = largest_local_epsilon(epsilon, delta, devices)
    assert local >= epsilon
    assert shuffled_delta(local, devices, epsilon, 1e-3 * delta) <= delta
    assert shuffled_delta(local + 1e-4, devices, epsilon, 1e-3 * delta) > delta
    # Theorem 3.2, where its condition holds.
    smaller = min(local, math.log(devices / (8 * math.log(2 / delta)) - 1)) if devices > 400 else 0
    if smaller > 0:
        grown = math.exp(smaller)
        inner = 4 * math.sqrt(2 * math.log(4 / delta) / ((grown + 1) * devices)) + 4 / devices
        closed = math.log1p((grown - 1) * inner)
        assert shuffled_delta(smaller, devices, closed, 1e-3 * delta) <= delta


@pytest.mark.parametrize("devices", [1, 7, 1000, 200_000])
def test_the_epsilon_of_a_shuffle_is_the_least_at_its_delta(devices: int) -> None:
    for local, delta in ((0.5, 1e-3), (2.0, 1e-6), (6.0, 1e-10)):
        epsilon = shuffled_epsilon(local, devices, delta)
        assert epsilon <= local
        assert shuffled_delta(local, devices, epsilon, 1e-3 * delta) <= delta
        if epsilon > 1e-6:
            assert shuffled_delta(local, devices, epsilon - 1e-6, 1e-3 * delta) > delta
        assert shuffled_epsilon(local, devices + 1, delta) <= epsilon + 1e-8
        # It undoes the calibration, up to the rounding of both.
        largest = largest_local_epsilon(0.4, delta, devices)
        assert shuffled_epsilon(largest, devices, delta) == pytest.approx(0.4, abs=1e-6)
