"""Strategies against their reference: Gram entries, pattern and schema sensitivities; golden values with their source."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechanisms import reference
from mechanisms.blt import BLT
from mechanisms.identity import Identity
from mechanisms.participation import MinSep
from mechanisms.sensitivity import PatternSensitivities, any_strategy_bound, pattern_sensitivity
from mechanisms.tree import Tree

EXAMPLES = [
    Identity(),
    BLT(theta=(0.9,), omega=(0.3,)),
    BLT(theta=(0.9953348970002772, 0.8122920858683399), omega=(0.12828660029532482, 0.32906048602262866)),
    BLT(theta=(0.7, 0.4), omega=(0.9, 0.5)),  # c_1 > c_0: outside Theorem 3.1
    Tree(),
]
strategies = st.sampled_from(EXAMPLES)


@pytest.mark.parametrize("strategy", EXAMPLES, ids=lambda s: s.kind)
@pytest.mark.parametrize("rounds", [1, 2, 7, 16, 37])
def test_gram_entries_are_those_of_the_materialised_matrix(strategy, rounds: int) -> None:
    C = reference.strategy_matrix(strategy, rounds)
    first, second = np.triu_indices(rounds)
    np.testing.assert_allclose(strategy.gram_entries(first, second, rounds), (C.T @ C)[first, second], rtol=1e-12)


@given(strategies, st.integers(1, 24), st.data())
@settings(max_examples=150, deadline=None)
def test_pattern_sensitivity_is_the_norm_of_the_summed_columns(strategy, rounds: int, data) -> None:
    pattern = sorted(data.draw(st.sets(st.integers(0, rounds - 1), min_size=1)))
    expected = reference.pattern_sensitivity(strategy, tuple(pattern), rounds)
    assert pattern_sensitivity(strategy, np.array(pattern), rounds) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("strategy", EXAMPLES, ids=lambda s: s.kind)
def test_tabulated_and_computed_sensitivities_agree(strategy) -> None:
    rng = np.random.default_rng(3)
    patterns = np.array([np.sort(rng.choice(40, 4, replace=False)) for _ in range(200)])
    tabulated = PatternSensitivities(strategy, 40).of(patterns)
    computed = [pattern_sensitivity(strategy, pattern, 40) for pattern in patterns]
    np.testing.assert_allclose(tabulated, computed, rtol=1e-13)


@given(strategies, st.integers(1, 14), st.integers(1, 14), st.integers(1, 6))
@settings(max_examples=200, deadline=None)
def test_schema_sensitivity_is_the_largest_over_all_patterns(strategy, rounds: int, min_sep: int, most: int) -> None:
    schema = MinSep(rounds, min_sep, most)
    brute = reference.schema_sensitivity(strategy, schema)
    claimed = strategy.schema_sensitivity(schema)
    if claimed.is_exact:
        assert claimed.value == pytest.approx(brute, rel=1e-12)
    else:
        assert claimed.value >= brute * (1 - 1e-12)
    assert any_strategy_bound(strategy, schema).value >= brute * (1 - 1e-12)


def test_only_increasing_toeplitz_blts_lack_an_exact_schema_sensitivity() -> None:
    schema = MinSep(14, 3, 3)
    assert [strategy.schema_sensitivity(schema).is_exact for strategy in EXAMPLES] == [True, True, True, False, True]


@pytest.mark.parametrize(
    ("rounds", "min_sep", "most", "squared"),
    [
        # Published rows of Xu et al. 2023 (MinS counts the rounds between, so b = MinS + 1); squares by exact computation.
        (930, 213, 4, 47),
        (530, 55, 8, 182),
        (2800, 372, 7, 128),
        (1620, 304, 5, 70),
        (1280, 198, 5, 87),
        (430, 55, 7, 97),
        (1290, 171, 6, 112),
        (1290, 170, 6, 116),
        (2052, 342, 6, 118),
    ],
)
def test_tree_sensitivity_has_the_published_squares(rounds: int, min_sep: int, most: int, squared: int) -> None:
    value = Tree().schema_sensitivity(MinSep(rounds, min_sep, most)).value
    assert value**2 == pytest.approx(squared, abs=1e-9)


def test_blt_has_the_golden_sensitivity_and_losses() -> None:
    """(2052, 342, 6), 2 buffers: sensitivity 5.112628, MaxLoss 10.806269, RmsLoss 9.343450 (McMahan, Xu, Zhang 2024, Table 3)."""
    n, strategy = 2052, EXAMPLES[2]
    sensitivity = strategy.schema_sensitivity(MinSep(n, 342, 6)).value
    inverse = [1.0]
    coefficients = strategy.coefficients(n)
    for t in range(1, n):
        inverse.append(-float(np.dot(coefficients[1 : t + 1], inverse[::-1][:t])))
    beta = np.cumsum(inverse)
    assert sensitivity == pytest.approx(5.112628, abs=5e-7)
    assert sensitivity * np.sqrt((beta**2).sum()) == pytest.approx(10.806269, abs=5e-7)
    assert sensitivity * np.sqrt(((n - np.arange(n)) * beta**2).sum() / n) == pytest.approx(9.343450, abs=5e-7)


def test_tree_decoder_has_the_golden_error() -> None:
    """Online Honaker at 2052 rounds: 27.2721 MaxLoss over the sensitivity sqrt(118)."""
    variances, total = [1.0], []
    for _ in range(12):
        variances.append(2 * variances[-1] / (1 + 2 * variances[-1]))
    for end in range(1, 2053):
        total.append(sum(variances[h] for h in range(12) if end >> h & 1))
    assert np.sqrt(118 * max(total)) == pytest.approx(27.2721, abs=5e-5)
    small = np.cumsum(reference.noise_map(Tree(), 21), axis=0)
    expected = [sum(variances[h] for h in range(5) if end >> h & 1) for end in range(1, 22)]
    np.testing.assert_allclose((small**2).sum(axis=1), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("theta", "omega", "rule"),
    [
        ((0.5,), (1e4,), "spectral radius at most 1"),
        ((1e-200,), (0.1,), "greater than or equal to"),
        ((0.9, 0.9), (0.1, 0.1), "distinct"),
        ((0.9,), (0.0,), "greater than 0"),
        ((0.9,), (float("nan"),), "finite"),
    ],
)
def test_blts_whose_noise_would_not_be_noise_are_refused(theta, omega, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        BLT(theta=theta, omega=omega)


@pytest.mark.parametrize("arguments", [(0, 1, 1), (5, 0, 1), (5, 1, 0)])
def test_impossible_schemas_are_refused(arguments) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        MinSep(*arguments)


@pytest.mark.parametrize("pattern", [[2, 1], [1, 1], [-1, 3], [0, 5]])
def test_impossible_patterns_are_refused(pattern) -> None:
    with pytest.raises(ValueError, match="increase strictly"):
        pattern_sensitivity(Identity(), np.array(pattern), 5)


@pytest.mark.parametrize("strategy", EXAMPLES, ids=lambda s: s.kind)
def test_json_round_trip(strategy) -> None:
    assert type(strategy).model_validate_json(strategy.model_dump_json()) == strategy
