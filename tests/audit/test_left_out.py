"""The worst case of rows that were left out, against every way in which a device could own them."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedray.audit import left_out
from fedray.audit.auditing import audit_trace
from fedray.audit.claims import Claim
from fedray.audit.distribution import device_sensitivities
from fedray.audit.left_out import worst_case
from fedray.audit.participation import Patterns
from fedray.imports.importer import import_log
from fedray.mechanisms.accounting.gdp import gaussian_epsilon
from fedray.mechanisms.registry import BLT, Dense, Identity, Tree
from fedray.mechanisms.sensitivity import unit_vector_sensitivity
from fedray.mechanisms.strategy import Strategy

SIGNED = np.tril(np.random.default_rng(7).normal(size=(5, 5))) + 2 * np.eye(5)
STRATEGIES = [
    Identity(),
    Tree(),
    BLT(theta=(0.9, 0.4), omega=(0.3, 0.5)),
    Dense.from_matrix(SIGNED, "signed.npy"),
]


def as_patterns(devices: list[list[int]], rounds: int) -> Patterns:
    return Patterns(
        rounds,
        np.arange(len(devices), dtype=np.uint64),
        np.array([len(each) for each in devices]),
        np.concatenate([np.array(sorted(each), np.uint32) for each in devices]),
    )


def brute(strategy: Strategy, devices: list[list[int]], n: int, rows: int, is_once: bool) -> float:
    """The largest sensitivity over devices, a new one among them, and rounds of at most so many rows."""
    gram, worst = strategy.gram(n), 0.0
    for own in [*devices, []]:
        if is_once:
            free = [each for each in range(n) if each not in own]
            most = min(rows, len(free))
            more = itertools.combinations(free, most)
        else:
            more = itertools.combinations_with_replacement(range(n), rows)
        for each in more:
            pattern = np.array([*own, *each])
            own_gram = gram[np.ix_(pattern, pattern)]
            square = own_gram.sum()
            if (own_gram >= 0).all():
                worst = max(worst, float(np.sqrt(square)))
            else:
                worst = max(worst, unit_vector_sensitivity(own_gram)[1])
    return worst


@st.composite
def cases(draw):
    n = draw(st.integers(1, 5))
    patterns = st.sets(st.integers(0, n - 1), min_size=1)
    devices = draw(st.lists(patterns, min_size=1, max_size=3))
    return n, [sorted(each) for each in devices], draw(st.integers(1, 3)), draw(st.booleans())


@pytest.mark.slow
@given(cases(), st.sampled_from(STRATEGIES))
@settings(max_examples=150, deadline=None)
def test_no_assignment_of_the_rows_exceeds_the_worst_case_and_one_attains_an_exact_one(
    case, strategy: Strategy
) -> None:
    n, devices, rows, is_once = case
    patterns = as_patterns(devices, n)
    values = device_sensitivities(strategy, patterns)
    found = worst_case(strategy, patterns, values, rows, is_once)
    worst = brute(strategy, devices, n, rows, is_once)
    assert worst <= found.value * (1 + 1e-9)
    if found.is_exact:
        assert worst == pytest.approx(found.value, rel=1e-9)
    norms = np.sqrt(np.diag(strategy.gram(n)))
    assert found.value <= (values.values.max() + rows * norms.max()) * (1 + 1e-12)


@pytest.mark.parametrize("strategy", STRATEGIES[:3])
@pytest.mark.parametrize(("rows", "is_once"), [(1, False), (3, False), (1, True)])
def test_the_worst_case_is_exact_without_negative_entries(
    strategy: Strategy, rows: int, is_once: bool
) -> None:
    """Power of the comparison above: most cases of these claim to be exact."""
    patterns = as_patterns([[0, 3], [1], [2, 4]], 5)
    values = device_sensitivities(strategy, patterns)
    found = worst_case(strategy, patterns, values, rows, is_once)
    assert found.is_exact
    devices = [[0, 3], [1], [2, 4]]
    expected = brute(strategy, devices, 5, rows, is_once)
    assert found.value == pytest.approx(expected, rel=1e-9)


def test_devices_beyond_the_limit_of_the_search_have_the_triangle_inequality(monkeypatch) -> None:
    patterns = as_patterns([[0, 3], [1], [2, 4]], 5)
    values = device_sensitivities(Identity(), patterns)
    whole = worst_case(Identity(), patterns, values, 2, False)
    monkeypatch.setattr(left_out, "MOST_ENTRIES", 9)
    cut = worst_case(Identity(), patterns, values, 2, False)
    assert cut == left_out.WorstCase(values.values.max() + 2.0, False)
    # A device with rounds 0 and 3, and two more contributions in round 0.
    assert whole.value == pytest.approx(np.sqrt(9 + 1))


@pytest.mark.parametrize(("repeats", "squared"), [("refuse", 9 + 1), ("once", 2 + 2)])
def test_the_audit_states_the_worst_case_by_the_meaning_of_repeated_rows(
    repeats: str, squared: int, tmp_path: Path
) -> None:
    """Of independent noise: two rows more in one round make a contribution of norm 3."""
    (tmp_path / "log.csv").write_text("d,r\na,0\na,2\nb,1\nb,3\n,0\n,3\n")
    trace = import_log(
        tmp_path / "log.csv", "d", "r", 4, tmp_path / "t", leave_out_invalid=True, repeats=repeats
    )
    audit = audit_trace(trace, claim=Claim(mechanism=Identity(), noise_multiplier=4.0))
    first, second = map(float, re.findall(r"at most (\d+\.\d+)", audit.left_out_bound))
    of_one = 2 + 1 if repeats == "once" else 4 + 1
    for found, square in ((first, squared), (second, of_one)):
        assert found == pytest.approx(gaussian_epsilon(np.sqrt(square) / 4.0, 1e-10), abs=2e-4)


@pytest.mark.parametrize("repeats", ["once", "each"])
def test_no_epsilon_is_stated_if_the_rows_may_be_of_a_round_without_a_number(
    repeats: str, tmp_path: Path
) -> None:
    """Only a row without a device is of round 3, so three rounds are numbered. A device with them
    would have epsilon 4.2288, and 4.2549 with rounds 0, 2 and 3 of four."""
    (tmp_path / "log.csv").write_text("d,r\na,0\nb,1\na,2\n,3\n")
    options = {"leave_out_invalid": True, "repeats": repeats}
    blt = BLT(theta=(0.95,), omega=(0.5,))
    claim = Claim(mechanism=blt, noise_multiplier=4.0)
    log, ranked = tmp_path / "log.csv", tmp_path / "ranked"
    by_rank = import_log(log, "d", "r", None, ranked, renumber=True, **options)
    said = audit_trace(by_rank, claim=claim).left_out_bound
    assert "at most 3 participations. The epsilon is unknown" in said
