"""Participation in a fixed order, exactly b rounds apart: against brute force, and the gap to min-sep."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import slow_twins as reference
import torch
from example_mechanisms import MECHANISMS, ROUNDS
from hypothesis import given, settings
from hypothesis import strategies as st

import fedray
from fedray.mechanisms import fixed_order
from fedray.mechanisms.accounting.events import StrategyRelease, read_event
from fedray.mechanisms.loss import loss
from fedray.mechanisms.optimize.gram import optimize_dense
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import Dense, Matrix, Toeplitz, Tree
from fedray.mechanisms.strategy import Strategy

rng = np.random.default_rng(7)
SIGNED = Matrix.from_matrix(
    np.tril(rng.normal(size=(ROUNDS, ROUNDS)), -1) + np.diag(1 + rng.random(ROUNDS)), "signed.npy"
)
RANDOM = Dense.from_matrix(np.tril(rng.random((ROUNDS, ROUNDS))) + np.eye(ROUNDS), "dense.npy")
NEGATIVE = Toeplitz(coefficients=(1.0, -0.4, 0.3, 0.2))
STRATEGIES = [*MECHANISMS.values(), SIGNED, RANDOM, NEGATIVE]


def in_order(rounds: int, min_sep: int, most: int) -> MinSep:
    return MinSep(rounds, min_sep, min(most, -(-rounds // min_sep)), is_fixed_order=True)


def largest_by_signs(strategy: Strategy, participation: MinSep) -> float:
    """Over every pattern and every choice of signs: exact if G >= 0, else a lower bound."""
    C = strategy.definition(participation.rounds)
    return max(
        float(np.linalg.norm(C[:, list(pattern)] @ np.array(signs)))
        for pattern in reference.patterns_of(participation)
        for signs in itertools.product((1.0, -1.0), repeat=len(pattern))
    )


def test_the_patterns_are_regular() -> None:
    patterns = set(reference.patterns_of(in_order(7, 3, 2)))
    assert patterns == {(), *((i,) for i in range(7)), *((i, i + 3) for i in range(4))}


@given(st.sampled_from(STRATEGIES), st.integers(1, 14), st.integers(1, 14), st.integers(1, 5))
@settings(max_examples=400, deadline=None)
def test_the_sensitivity_is_the_largest_over_all_regular_patterns(
    strategy: Strategy, rounds: int, min_sep: int, most: int
) -> None:
    participation = in_order(rounds, min_sep, most)
    found = strategy.participation_sensitivity(participation)
    brute = largest_by_signs(strategy, participation)
    G = strategy.gram(rounds)
    bound = max(
        np.abs(G[np.ix_(each, each)]).sum()
        for each in map(list, reference.patterns_of(participation))
    )
    assert found.worst_pattern in reference.patterns_of(participation)
    assert brute * (1 - 1e-9) <= found.value <= bound**0.5 * (1 + 1e-9)
    assert found.lower_bound <= found.value * (1 + 1e-9)
    if (G >= -1e-12).all():
        assert found.is_exact
        assert found.value == pytest.approx(brute, rel=1e-9)
        aligned = reference.participation_sensitivity(strategy, participation)
        assert aligned == pytest.approx(brute, rel=1e-9)
    # Every regular pattern is one of the min-sep.
    any_order = MinSep(rounds, min_sep, participation.max_participations)
    assert found.value <= strategy.participation_sensitivity(any_order).value * (1 + 1e-9)


def test_a_bound_covers_patterns_that_got_no_certificate(monkeypatch) -> None:
    participation = in_order(ROUNDS, 3, 4)
    certified = SIGNED.participation_sensitivity(participation)
    assert certified.is_exact
    monkeypatch.setattr(fixed_order, "MOST_CERTIFICATES", 1)
    found = SIGNED.participation_sensitivity(participation)
    assert not found.is_exact
    assert found.value > certified.value


def test_order_lowers_the_loss_of_a_dense_matrix_and_not_that_of_a_blt() -> None:
    """At 60 rounds, 6 passes of 10: 13 % between the exact value and the bound; a pattern attains 10 %."""
    ordered, free = in_order(60, 10, 6), MinSep(60, 10, 6)
    dense = optimize_dense(ordered)
    exact, bound = (loss(dense, each).sensitivity for each in (ordered, free))
    assert exact.is_exact
    assert exact.value == pytest.approx(1.0, rel=1e-9)
    assert not bound.is_exact
    assert bound.value == pytest.approx(1.128787, abs=1e-4)
    assert bound.lower_bound == pytest.approx(1.103352, abs=1e-4)
    # By Theorem 3.1 the worst pattern of a BLT is regular.
    values = [MECHANISMS["blt"].participation_sensitivity(each).value for each in (ordered, free)]
    assert values[0] == pytest.approx(values[1], rel=1e-12)


def test_events_keep_the_order_and_older_ones_their_json() -> None:
    for participation in (in_order(9, 3, 3), MinSep(9, 3, 3)):
        event = StrategyRelease.under(Tree(), participation, 2.0)
        document = event.to_json()
        assert ("is_fixed_order" in document["participation"]) == participation.is_fixed_order
        assert read_event(json.loads(json.dumps(document))) == event


def test_the_noise_of_a_training_loop_takes_the_order() -> None:
    dense = optimize_dense(in_order(60, 10, 6))
    parameters = [torch.zeros(3)]
    noise = fedray.CorrelatedNoise(dense, 60, parameters, noise_multiplier=2.0, clip_norm=1.0)
    assert noise.rho(in_order(60, 10, 6)) == pytest.approx(1 / 8, rel=1e-9)
    assert noise.rho(MinSep(60, 10, 6)) > 1.25 / 8


SETTING = ("--rounds", "60", "--min-sep", "10", "--max-participations", "6", "--fixed-order")


def test_the_command_says_the_order(fedray_command) -> None:
    code, out, _ = fedray_command("mechanism", "tree", *SETTING, "--epsilon", "2")
    assert code == 0
    assert "60, 10, 6, in a fixed order" in out
    assert "(exact)" in out
    code, out, _ = fedray_command("mechanism", "tree", *SETTING, "--json")
    assert json.loads(out)["is_fixed_order"] is True
    code, out, _ = fedray_command("mechanism", "tree", *SETTING[:-1], "--json")
    assert "is_fixed_order" not in json.loads(out)


def test_the_optimiser_takes_the_order(fedray_command, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    out = ("--workload", "prefix", "--json")
    code, text, _ = fedray_command("optimize", "dense", *SETTING, *out)
    assert code == 0
    found = json.loads(text)
    assert found["sensitivity_is_exact"]
    assert found["sensitivity"] == pytest.approx(1.0, rel=1e-9)
