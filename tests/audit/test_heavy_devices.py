"""Devices with very many participations, and mechanisms outside every theorem: exact values in memory of the rounds, or a reason."""

import numpy as np
import pytest
import slow_twins as reference

from fedray.audit.distribution import device_sensitivities, frontier
from fedray.audit.noise import ServerNoise
from fedray.audit.over_rounds import privacy_over_rounds
from fedray.audit.participation import Patterns
from fedray.audit.sensitivity import MOST_OF_MATRICES, trace_sensitivity
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import BLT, BandFHU, Dense, Identity, Matrix, Toeplitz, Tree
from fedray.mechanisms.sensitivity import SUMMED_FROM, PatternSensitivities
from fedray.mechanisms.strategy import SensitivityUnknown, Strategy

GOLDEN = BLT(
    theta=(0.9953348970002772, 0.8122920858683399), omega=(0.12828660029532482, 0.32906048602262866)
)
ODD = Toeplitz(coefficients=(1.0, 0.2, 0.4))
"""Outside Theorem 3.1, and with more bands than a min-sep of 1 allows."""


def patterns_of(rounds: int, *patterns: np.ndarray) -> Patterns:
    counts = np.array([each.size for each in patterns])
    return Patterns(
        rounds,
        np.arange(len(patterns), dtype=np.uint64),
        counts,
        np.concatenate(patterns).astype(np.uint32),
    )


@pytest.mark.parametrize(
    "strategy",
    [Identity(), GOLDEN, BandFHU(bands=300), BandFHU(bands=7), ODD, Tree(restarts=(100,))],
    ids=repr,
)
def test_summed_columns_give_what_the_gram_gives(strategy: Strategy) -> None:
    """On 700 rounds, both ways of adding up columns included, against the norm of the materialised columns."""
    pattern = np.sort(np.random.default_rng(0).choice(700, 400, replace=False))
    C = strategy.definition(700)
    expected = np.linalg.norm(C[:, pattern].sum(axis=1))
    assert strategy.pattern_square(pattern, 700) == pytest.approx(expected**2, rel=1e-12)
    found = PatternSensitivities(strategy, 700).of(pattern[None])
    assert pattern.size > SUMMED_FROM
    assert found.is_exact[0]
    assert found.values[0] == pytest.approx(expected, rel=1e-12)


DENSE = Dense.from_matrix(np.tril(np.full((700, 700), 0.1)) + np.eye(700), "x")


@pytest.mark.parametrize(
    "strategy",
    [Identity(), GOLDEN, BandFHU(bands=300), BandFHU(bands=7), Tree(), DENSE],
    ids=lambda s: s.kind,
)
@pytest.mark.parametrize("size", [100, 400])
def test_a_round_that_occurs_twice_counts_twice(strategy: Strategy, size: int) -> None:
    """Contributions of their own in one round add up, however many participations there are; counted once, the value is too small."""
    rng = np.random.default_rng(1)
    pattern = np.sort(
        np.concatenate([rng.choice(700, size, replace=False), rng.choice(700, size // 4)])
    )
    expected = np.linalg.norm(strategy.definition(700)[:, pattern].sum(axis=1))
    assert PatternSensitivities(strategy, 700).of(pattern[None]).values[0] == pytest.approx(
        expected, rel=1e-12
    )


def test_matrices_are_summed_too_and_signs_are_looked_for_block_by_block() -> None:
    rng = np.random.default_rng(0)
    C, pattern = np.tril(rng.random((600, 600))) + np.eye(600), np.arange(0, 600, 2)
    dense = Dense.from_matrix(C, "x")
    expected = np.linalg.norm(C[:, pattern].sum(axis=1))
    assert PatternSensitivities(dense, 600).of(pattern[None]).values[0] == pytest.approx(
        expected, rel=1e-12
    )
    C[5, 2] = -5000.0
    signed = PatternSensitivities(Matrix.from_matrix(C, "y"), 600).of(pattern[None])
    assert not signed.is_exact[0]
    assert signed.values[0] == pytest.approx(
        np.sqrt(np.abs((C.T @ C)[np.ix_(pattern, pattern)]).sum()), rel=1e-12
    )


@pytest.mark.parametrize(
    "strategy", [Identity(), GOLDEN, Tree(), BandFHU(bands=50)], ids=lambda s: s.kind
)
def test_a_device_of_fifty_thousand_participations_is_audited(strategy: Strategy) -> None:
    """Its Gram would be 20 GB."""
    heavy = np.sort(np.random.default_rng(0).choice(100_000, 50_000, replace=False))
    patterns = patterns_of(100_000, heavy, np.array([7, 900]), np.array([5]))
    found = trace_sensitivity(strategy, patterns)
    square = strategy.pattern_square(heavy, 100_000)
    assert square is not None
    assert found.value == square**0.5
    assert found.is_exact
    assert (found.device_id, len(found.rounds)) == (0, 50_000)
    assert device_sensitivities(strategy, patterns).values[0] == found.value
    assert frontier(strategy, patterns).sensitivity >= found.value
    assert (
        privacy_over_rounds(strategy, patterns, ServerNoise(7.0), 1e-10, entries=2)[-1].sensitivity
        == found.value
    )


def test_a_heavy_device_under_a_mechanism_with_signs_is_refused_with_the_reason() -> None:
    heavy = np.arange(10_001)
    with pytest.raises(
        ValueError,
        match="a device took part 10,001 times, and this toeplitz strategy has negative entries",
    ):
        trace_sensitivity(Toeplitz(coefficients=(1.0, -0.5)), patterns_of(30_000, heavy))


def test_the_trace_is_exact_where_no_theorem_gives_the_schema() -> None:
    """25,000 rounds, more than the bound for any C takes."""
    patterns = patterns_of(25_000, np.array([0, 2, 9, 400]), np.array([3, 4]), np.array([24_999]))
    with pytest.raises(
        SensitivityUnknown, match="no theorem gives this toeplitz strategy's sensitivity"
    ):
        ODD.participation_sensitivity(MinSep(25_000, patterns.min_sep, patterns.max_participations))
    found = trace_sensitivity(ODD, patterns)
    assert found.is_exact
    # Columns (1, 0.2, 0.4) of rounds 0 and 2 overlap in one place, the others in none.
    assert found.value == pytest.approx((4 * 1.2 + 2 * 0.4) ** 0.5, rel=1e-12)


def test_many_participations_under_a_tree_have_a_bound_above_the_exact_program() -> None:
    from fedray.mechanisms.tree import Subtree, _counted_bound, forest_sensitivity

    trees = (Subtree(0, 6, 64), Subtree(64, 4, 16))
    for participation in (MinSep(80, 1, 80), MinSep(80, 3, 20), MinSep(80, 7, 5)):
        exact, bound = (
            forest_sensitivity(trees, participation),
            _counted_bound(trees, participation),
        )
        assert bound.lower_bound <= exact.value <= bound.value * (1 + 1e-12)
        assert not bound.is_exact
    assert not Tree().participation_sensitivity(MinSep(2000, 2, 800)).is_exact


BLOCKS = 1100
"""Rounds of matrices that take three blocks of columns."""


def matrix_of(what: str) -> np.ndarray:
    C = np.tril(np.random.default_rng(5).random((BLOCKS, BLOCKS))) + np.eye(BLOCKS)
    if what == "banded":
        C = np.triu(C, -39)
    if what == "signed":
        C -= 0.7 * np.tril(np.ones_like(C), -1)
    return C


@pytest.mark.slow
@pytest.mark.parametrize("what", ["dense", "banded", "signed"])
def test_a_matrix_s_table_is_the_gram_of_its_leading_block_however_it_grew(what: str) -> None:
    C = matrix_of(what)
    strategy = Matrix.from_matrix(C, "x")
    whole, grown = strategy.gram_table(BLOCKS), None
    for rounds in (1, 300, 700, BLOCKS):
        grown = strategy.grown_table(grown, rounds, BLOCKS)
        expected = C[:rounds, :rounds].T @ C[:rounds, :rounds]
        np.testing.assert_allclose(grown.rows(np.arange(rounds)), expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(grown.diagonal(), expected.diagonal(), rtol=1e-12)
    np.testing.assert_allclose(whole.rows(np.arange(BLOCKS)), expected, rtol=1e-12, atol=1e-12)
    pattern = np.arange(0, BLOCKS, 3)
    np.testing.assert_allclose(
        strategy.summed_gram_rows(pattern, BLOCKS),
        expected[pattern].sum(axis=0),
        rtol=1e-9,
        atol=1e-9,
    )
    assert strategy.error_variances(BLOCKS) == pytest.approx(
        reference.error_variances(strategy, BLOCKS), rel=1e-9
    )


@pytest.mark.slow
@pytest.mark.parametrize("what", ["dense", "banded", "signed"])
def test_privacy_over_rounds_of_a_matrix_is_that_of_each_leading_block_by_itself(what: str) -> None:
    """Privacy over rounds grows one table; the slow twin audits each leading block as a matrix of its own."""
    C, rng = matrix_of(what), np.random.default_rng(6)
    several = [np.sort(rng.choice(BLOCKS, size, replace=False)) for size in (900, 40, *[5] * 300)]
    spent = privacy_over_rounds(
        Matrix.from_matrix(C, "x"),
        patterns_of(BLOCKS, *several),
        ServerNoise(7.0),
        1e-10,
        entries=4,
    )
    assert [entry.rounds for entry in spent] == [275, 550, 825, BLOCKS]
    for entry in spent:
        leading = C[: entry.rounds, : entry.rounds]
        inside = [each[each < entry.rounds] for each in several]
        twin = trace_sensitivity(
            Matrix.from_matrix(leading, "y"), patterns_of(entry.rounds, *filter(np.size, inside))
        )
        assert (entry.sensitivity, entry.sensitivity_is_exact) == (
            pytest.approx(twin.value, rel=1e-7),
            twin.is_exact,
        )
        largest = max(np.linalg.norm(leading[:, each].sum(axis=1)) for each in inside)
        assert entry.sensitivity >= largest * (1 - 1e-12)
        if what != "signed":
            assert entry.sensitivity == pytest.approx(largest, rel=1e-12)


def test_without_a_min_sep_the_bound_takes_the_largest_of_every_row_however_many_participations() -> (
    None
):
    """Refused before, as n^2 k products of 8,000 rounds would be; every row's sum is that of its k largest."""
    rng = np.random.default_rng(7)
    C = np.tril(rng.normal(size=(60, 60))) + 3 * np.eye(60)
    found = Matrix.from_matrix(C, "x").participation_sensitivity(MinSep(60, 1, 25))
    sums = np.sort(np.abs(C.T @ C), axis=1)[:, -25:].sum(axis=1)
    assert found.value == pytest.approx(np.sort(sums)[-25:].sum() ** 0.5, rel=1e-12)
    chosen = np.array(found.worst_pattern)
    assert found.lower_bound == pytest.approx(np.linalg.norm(C[:, chosen].sum(axis=1)), rel=1e-12)
    assert found.lower_bound <= found.value


def test_a_frontier_with_a_matrix_of_many_rounds_has_fewer_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The more often a device comes, the further apart.
    several = [size * np.arange(size) for size in range(2, 7)]
    strategy = Matrix.from_matrix(matrix_of("dense")[:40, :40], "x")
    assert len(frontier(strategy, patterns_of(40, *several)).entries) == 5
    monkeypatch.setattr("fedray.audit.distribution.MOST_BOUND", 2 * 40**2)
    found = frontier(strategy, patterns_of(40, *several))
    assert len(found.entries) == 2
    assert found.sensitivity >= trace_sensitivity(strategy, patterns_of(40, *several)).value


def test_more_participations_than_a_matrix_can_be_audited_with_are_refused_beforehand() -> None:
    """The rule is checked before the matrix is touched."""
    n = MOST_OF_MATRICES + 1
    patterns = Patterns(n, np.zeros(1, np.uint64), np.array([n]), np.arange(n, dtype=np.uint32))
    with pytest.raises(ValueError, match="at most 8,000 are audited"):
        trace_sensitivity(Matrix.from_matrix(np.eye(3), "C.npy"), patterns)
