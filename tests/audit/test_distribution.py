"""Per-device privacy and the frontier, against brute force on random small traces: 200, and 1,000 by `make canary`."""

import os

import numpy as np
import pytest
import slow_twins as reference

from fedray.audit.distribution import DevicePrivacy, device_sensitivities, frontier, frontier_of
from fedray.audit.noise import ServerNoise
from fedray.audit.participation import Patterns
from fedray.audit.sensitivity import trace_sensitivity
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import (
    BISR,
    BLT,
    Banded,
    BandFHU,
    Dense,
    Identity,
    Matrix,
    Toeplitz,
    Tree,
    TreeFull,
)
from fedray.mechanisms.strategy import Strategy
from fedray.mechanisms.triangular import lower_factor

ROUNDS = 12
TRACES = 1000 if os.environ.get("FEDRAY_ALL_SEEDS") else 200
LAGS = np.abs(np.subtract.outer(np.arange(ROUNDS), np.arange(ROUNDS)))
GENERATOR = np.random.default_rng(3)
STRATEGIES: list[Strategy] = [
    Identity(),
    BLT(theta=(0.9, 0.4), omega=(0.2, 0.3)),
    Toeplitz(coefficients=(1.0, 0.2, 0.4)),
    BandFHU(bands=5),
    BISR(bands=3),
    Banded.from_matrix(
        lower_factor(np.where(LAGS < 6, 0.8**LAGS, 0.0) + np.eye(ROUNDS)), "banded.npy"
    ),
    Dense.from_matrix(np.tril(GENERATOR.random((ROUNDS, ROUNDS))) + np.eye(ROUNDS), "dense.npy"),
    Matrix.from_matrix(np.tril(GENERATOR.random((ROUNDS, ROUNDS))) + np.eye(ROUNDS), "user.npy"),
    Tree(),
    Tree(restarts=(5,), completion=True, rounds=ROUNDS),
    TreeFull(rounds=ROUNDS),
]


def random_patterns(generator: np.random.Generator) -> list[list[int]]:
    devices = generator.integers(1, 9)
    sizes = generator.integers(1, 6, devices)
    return [sorted(generator.choice(ROUNDS, size, replace=False).tolist()) for size in sizes]


def as_patterns(patterns: list[list[int]]) -> Patterns:
    return Patterns(
        ROUNDS,
        np.arange(len(patterns), dtype=np.uint64),
        np.array([len(pattern) for pattern in patterns]),
        np.concatenate([np.array(pattern, np.uint32) for pattern in patterns]),
    )


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.kind)
def test_random_traces_against_brute_force(strategy: Strategy) -> None:
    """Every device's value, the trace's, and the bounds above it: trace <= frontier <= one (b, k) pair."""
    C, participations = strategy.definition(ROUNDS), {}
    generator = np.random.default_rng(11)
    for _ in range(TRACES):
        patterns = random_patterns(generator)
        each = [float(np.linalg.norm(C[:, pattern].sum(axis=1))) for pattern in patterns]
        found = as_patterns(patterns)
        values = device_sensitivities(strategy, found)
        assert values.is_exact.all()
        np.testing.assert_allclose(values.values, each, rtol=1e-12)
        trace = trace_sensitivity(strategy, found)
        assert trace.is_exact
        assert trace.value == pytest.approx(max(each), rel=1e-12)
        key = found.min_sep, found.max_participations
        if key not in participations:
            participations[key] = strategy.participation_sensitivity(MinSep(ROUNDS, *key))
        bound = frontier(strategy, found).sensitivity
        assert trace.value <= bound * (1 + 1e-12)
        assert bound <= participations[key].value * (1 + 1e-12)
    for (b, k), participation in participations.items():
        largest = reference.participation_sensitivity(strategy, MinSep(ROUNDS, b, k))
        assert participation.lower_bound <= largest * (1 + 1e-12)
        assert largest <= participation.value * (1 + 1e-12)


def test_the_frontier_has_the_least_gap_of_each_number_of_participations() -> None:
    """A device that comes once keeps any pair, so it has none of its own."""
    found = frontier(Identity(), as_patterns([[0, 4, 9], [1, 6, 8], [2, 3], [5], [7, 11]]))
    assert [(e.max_participations, e.min_sep) for e in found.entries] == [(3, 2), (2, 1)]


def test_many_numbers_of_participations_share_entries() -> None:
    """Devices of c participations are 7 - c apart: c and c + 1 share a pair if there are too many."""
    patterns = [[(7 - count) * each for each in range(count)] for count in range(2, 7)]
    found = frontier(Identity(), as_patterns(patterns))
    assert [(e.max_participations, e.min_sep) for e in found.entries] == [(6, 1)]
    patterns = [[count * each for each in range(count)] for count in range(2, 5)]
    assert frontier_of(as_patterns(patterns)) == ((4, 4), (3, 3), (2, 2))
    assert frontier_of(as_patterns(patterns), 2) == ((4, 4), (2, 3))


def test_quantiles_are_values_that_devices_have() -> None:
    patterns = as_patterns([[0]] * 50 + [[0, 3]] * 45 + [[0, 3, 6, 9]] * 5)
    values = device_sensitivities(Identity(), patterns)
    found = DevicePrivacy.of(values, patterns, ServerNoise(2.0))
    rho = {each.share: each.rho for each in found.quantiles}
    assert (rho[0.0], rho[0.5], rho[0.75], rho[0.95], rho[0.99], rho[1.0]) == pytest.approx(
        (1 / 8, 1 / 8, 2 / 8, 2 / 8, 4 / 8, 4 / 8)
    )
    assert found.mean_rho == pytest.approx((50 + 90 + 20) / 100 / 8)
    assert found.is_exact
