"""Noise streams and the aggregator: the recurrences are the matrices of mechanisms/reference.py, and restarts change nothing."""

import numpy as np
import pytest
import torch

from fedray.messages import FIXED_POINT_BITS, TrainReport
from mechanisms import reference
from mechanisms.blt import BLT
from mechanisms.identity import Identity
from mechanisms.strategy import Strategy
from mechanisms.tree import Tree
from server.aggregator import ModelAggregator
from server.noise import noise_stream

CPU = torch.device("cpu")
STRATEGIES = [Identity(), BLT(theta=(0.95, 0.6), omega=(0.2, 0.3)), Tree()]
KINDS = pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.kind)


def reference_rows(strategy: Strategy, rounds: int, seed: int, dimension: int) -> np.ndarray:
    """The noise map times the very draws that the stream makes, in float64."""
    stream = noise_stream(strategy, seed, dimension, CPU)
    if isinstance(strategy, Tree):
        nodes = reference.tree_nodes(rounds)
        Z = np.stack([stream._normal(end - 1, (end - start).bit_length() - 1).double().numpy() for start, end in nodes])
    else:
        Z = np.stack([stream._normal(t, 0).double().numpy() for t in range(rounds)])
    return reference.noise_map(strategy, rounds) @ Z


@KINDS
@pytest.mark.parametrize("rounds", [1, 2, 8, 45])
def test_a_stream_is_the_reference_map_of_its_own_draws(strategy: Strategy, rounds: int) -> None:
    stream = noise_stream(strategy, 3, 17, CPU)
    rows = np.stack([stream.next().numpy() for _ in range(rounds)])
    np.testing.assert_allclose(rows, reference_rows(strategy, rounds, 3, 17), atol=2e-5)  # float32 state


@KINDS
def test_a_restored_stream_goes_on_with_the_same_rows(strategy: Strategy) -> None:
    stream = noise_stream(strategy, 3, 17, CPU)
    for _ in range(11):
        stream.next()
    state = stream.state()
    rows = [stream.next().numpy().copy() for _ in range(9)]
    other = noise_stream(strategy, 3, 17, CPU)
    other.load(state)
    assert all((other.next().numpy() == row).all() for row in rows)


def test_a_state_of_another_shape_is_refused() -> None:
    state = noise_stream(STRATEGIES[1], 3, 17, CPU).state()
    with pytest.raises(ValueError, match="buffers have shape"):
        noise_stream(STRATEGIES[1], 3, 18, CPU).load(state)


@KINDS
def test_rounds_seeds_and_nodes_never_share_a_draw(strategy: Strategy) -> None:
    rows = [
        noise_stream(strategy, seed, 4, CPU)._normal(t, level).numpy().tobytes()
        for seed in (0, 1)
        for t in range(30)
        for level in (0, 1, 2)
    ]
    assert len(set(rows)) == len(rows)


def reports(*updates: np.ndarray, clip_norm: float = 1.0, round_index: int = 0) -> list[TrainReport]:
    fixed = [np.trunc(update * 2.0**FIXED_POINT_BITS / clip_norm).astype(np.int64) for update in updates]
    return [TrainReport(round_index, group, 1, total, 0.0, 1, 0) for group, total in enumerate(fixed)]


@pytest.fixture
def aggregator(small) -> ModelAggregator:
    made = ModelAggregator(small("training.enabled=true", "privacy.noise_multiplier=0.01"))
    made.start(np.zeros(6, np.float32))
    return made


def test_a_round_is_the_mean_update_with_momentum(aggregator) -> None:
    """Two rounds of mean update u from zero: u after one, u + 0.9 u + u after two (noise deviation 0.01 x 64 / 200 / 2 = 0.0016)."""
    update = np.array([0.5, -0.25, 0, 0, 0, 0.125])
    once = aggregator.commit(0, reports(update, update))
    twice = aggregator.commit(1, reports(update, update))
    np.testing.assert_allclose(once, update, atol=0.01)
    np.testing.assert_allclose(twice, 2.9 * update, atol=0.03)


def test_rounds_are_neither_skipped_nor_repeated(aggregator) -> None:
    aggregator.commit(0, reports(np.zeros(6)))
    for wrong in (0, 2):
        with pytest.raises(ValueError, match=f"round_index={wrong} but round 1 is next"):
            aggregator.commit(wrong, reports(np.zeros(6)))


def test_sums_do_not_depend_on_the_order_of_the_groups(small) -> None:
    rng = np.random.default_rng(0)
    updates = [rng.normal(size=6) for _ in range(9)]
    results = []
    for order in (updates, updates[::-1]):
        aggregator = ModelAggregator(small("training.enabled=true"))
        aggregator.start(np.zeros(6, np.float32))
        results.append(aggregator.commit(0, reports(*order)))
    assert (results[0] == results[1]).all()


@KINDS
def test_a_restored_aggregator_goes_on_to_the_same_bits(small, strategy: Strategy) -> None:
    scenario = small("training.enabled=true").model_copy(update={})
    scenario = scenario.model_copy(update={"privacy": scenario.privacy.model_copy(update={"mechanism": strategy})})
    one, other = ModelAggregator(scenario), ModelAggregator(scenario)
    one.start(np.zeros(6, np.float32))
    for t in range(7):
        one.commit(t, reports(np.full(6, 0.1)))
    other.restore(one.checkpoint())
    for t in range(7, 12):
        assert (one.commit(t, reports(np.full(6, 0.1))) == other.commit(t, reports(np.full(6, 0.1)))).all()
