"""Noise streams and the aggregator: the recurrences are the matrices of mechanisms/reference.py, and restarts change nothing."""

import os
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import slow_twins as reference
import torch
from example_mechanisms import MECHANISMS, ROUNDS

from fedray.base.arrays import Float32Array, Float64Array
from fedray.base.errors import CheckpointError, InputError
from fedray.base.rng import Stream, stream_generator
from fedray.encoding.tables import FIXED_POINT_BITS
from fedray.mechanisms import tree_nodes
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.recurrence import Outputs, Recurrence
from fedray.mechanisms.registry import (
    Tree,
)
from fedray.mechanisms.strategy import Sensitivity, Strategy
from fedray.server.learning.aggregator import ModelAggregator
from fedray.server.learning.draws import BLOCK, VIRTUAL, NormalDraws
from fedray.server.learning.noise import (
    BuffersNoise,
    NoiseStream,
    buffered_step,
    compiled_step,
    compiles,
    noise_stream,
)
from fedray.wire.messages import TrainReport

CPU = torch.device("cpu")
BLT_STREAM = MECHANISMS["blt"]
KINDS = pytest.mark.parametrize("strategy", MECHANISMS.values(), ids=MECHANISMS)


def stream_of(
    strategy: Strategy, rounds: int = ROUNDS, seed: int = 3, dimension: int = 17
) -> NoiseStream:
    return noise_stream(strategy, seed, dimension, CPU, rounds)


def draw(round_index: int, level: int = 0, seed: int = 3, dimension: int = 17) -> np.ndarray:
    row = torch.empty(dimension)
    NormalDraws(seed, CPU).fill(row, round_index, level)
    return row.double().numpy()


def reference_rows(strategy: Strategy, rounds: int) -> np.ndarray:
    """The noise map times the very draws that the stream makes, in float64."""
    if isinstance(strategy, Tree):
        nodes = [
            draw(node.end - 1, node.height) for node in tree_nodes.tree_nodes(strategy, rounds)
        ]
        virtual = [
            draw(node.end - 1, VIRTUAL + node.height)
            for node in tree_nodes.virtual_subtrees(strategy, rounds)
        ]
        return reference.noise_map(strategy, rounds) @ np.stack([*nodes, *virtual])
    return reference.noise_map(strategy, rounds) @ np.stack([draw(t) for t in range(rounds)])


@KINDS
def test_a_stream_is_the_reference_map_of_its_own_draws(strategy: Strategy) -> None:
    for rounds in (1, 2, 8, ROUNDS):
        stream = stream_of(strategy, rounds)
        rows = np.stack([stream.next().numpy().copy() for _ in range(rounds)])
        expected = reference_rows(strategy, rounds)
        np.testing.assert_allclose(rows, expected, atol=2e-5)  # float32 state


@KINDS
def test_a_restored_stream_goes_on_with_the_same_rows(strategy: Strategy) -> None:
    stream, other = stream_of(strategy), stream_of(strategy)
    for _ in range(11):
        stream.next()
    state = stream.state()
    rows = [stream.next().numpy().copy() for _ in range(9)]
    other.load(state)
    assert all((other.next().numpy() == row).all() for row in rows)


@KINDS
def test_rows_that_are_drawn_ahead_are_the_same(strategy: Strategy) -> None:
    """Drawn once, however often that is asked for; in between there is no state to take."""
    stream, ahead = stream_of(strategy), stream_of(strategy)
    for _ in range(9):
        ahead.draw_ahead()
        ahead.draw_ahead()
        with pytest.raises(ValueError, match="drawn ahead"):
            ahead.state()
        assert (ahead.next() == stream.next()).all()
    state = ahead.state()
    ahead.draw_ahead()
    ahead.load(state)
    assert (ahead.next() == stream.next()).all()


@KINDS
def test_no_row_is_given_beyond_the_rounds_that_are_accounted_for(strategy: Strategy) -> None:
    stream = stream_of(strategy, 5)
    for _ in range(5):
        stream.next()
    with pytest.raises(ValueError, match="round 5 has no noise"):
        stream.next()


class Halves(Strategy):
    """A mechanism that no list knows: C[t, t] = 2."""

    kind: Literal["halves"] = "halves"  # pyright: ignore[reportIncompatibleVariableOverride]

    def recurrence(self, rounds: int) -> Recurrence:
        return Outputs(row=lambda t: np.array([2.0]), bands=1)

    def definition(self, rounds: int) -> Float64Array:
        return 2.0 * np.eye(rounds)

    def gram_entries(self, first, second, rounds: int) -> Float64Array:
        return 4.0 * (first == second)

    def min_sep_sensitivity(self, participation: MinSep) -> Sensitivity:
        raise NotImplementedError

    def fixed_order_sensitivity(self, participation: MinSep) -> Sensitivity:
        raise NotImplementedError


def test_a_mechanism_that_nobody_knows_has_the_noise_of_the_recurrence_that_it_names() -> None:
    stream = stream_of(Halves(), 3)
    for t in range(3):
        np.testing.assert_allclose(stream.next().numpy(), draw(t) / 2.0, rtol=1e-6)


def test_strategies_of_fewer_rounds_have_no_stream() -> None:
    with pytest.raises(
        ValueError, match=f"rounds={ROUNDS + 1} is more than this banded strategy has"
    ):
        stream_of(MECHANISMS["banded"], ROUNDS + 1)


def test_a_state_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="buffers have shape"):
        stream_of(BLT_STREAM, dimension=18).load(stream_of(BLT_STREAM).state())


def test_rounds_seeds_levels_and_blocks_never_share_a_draw() -> None:
    rows = [
        draw(t, level, seed, 2 * BLOCK)[block * BLOCK : block * BLOCK + 4].tobytes()
        for seed in (0, 1)
        for t in range(5)
        for level in (0, 1, VIRTUAL)
        for block in (0, 1)
    ]
    assert len(set(rows)) == len(rows)


@pytest.mark.parametrize("address", [(-1, 0), (1 << 22, 0), (0, 128)])
def test_what_has_no_address_is_refused(address) -> None:
    with pytest.raises(ValueError, match="has no address"):
        draw(*address)


def test_a_long_row_has_a_generator_for_each_block() -> None:
    row = torch.empty(2 * BLOCK + 7)
    NormalDraws(3, CPU).fill(row, 5, level=2)
    for place, part in enumerate(
        row.numpy()[start : start + BLOCK] for start in (0, BLOCK, 2 * BLOCK)
    ):
        generator = stream_generator(3, Stream.NOISE, 5, 2, place)
        assert (part == generator.standard_normal(part.size, np.float32)).all()


def test_the_step_that_a_gpu_compiles_is_the_one_that_a_cpu_takes() -> None:
    stream = stream_of(BLT_STREAM, dimension=10_000)
    S, out = torch.zeros(2, 10_000), torch.empty(10_000)
    for t in range(20):
        NormalDraws(3, CPU).fill(out, t)
        buffered_step(S, out, torch.tensor([0.95, 0.6]), torch.tensor([0.2, 0.3]))
        torch.testing.assert_close(
            stream.next(), out, rtol=0, atol=1e-5
        )  # float32 sums in another order


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@KINDS
def test_on_a_gpu_too_streams_are_restorable_and_correlated_as_the_reference(
    strategy: Strategy,
) -> None:
    """Covariance over 200,000 coordinates: each entry within 6 standard errors."""
    device, dimension, rounds = torch.device("cuda"), 200_000, 9
    stream = noise_stream(strategy, 3, dimension, device, rounds)
    rows = torch.stack([stream.next().clone() for _ in range(rounds)]).double()
    M = reference.noise_map(strategy, rounds)
    expected = M @ M.T
    error = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / dimension)
    assert (np.abs((rows @ rows.T / dimension).cpu().numpy() - expected) < 6 * error).all()
    again = noise_stream(strategy, 3, dimension, device, rounds)
    for _ in range(4):
        again.next()
    other = noise_stream(strategy, 3, dimension, device, rounds)
    other.load(again.state())
    assert torch.equal(other.next(), rows[4].float())


def committed(aggregator: ModelAggregator, round_index: int, *updates: np.ndarray) -> Float32Array:
    """The parameters after a round in which devices sent these updates; the clip norm is 1."""
    for update in updates:
        aggregator.add(np.trunc(update * 2.0**FIXED_POINT_BITS).astype(np.int64))
    report = TrainReport(round_index=round_index, devices=len(updates), accepted=4 * len(updates))
    return aggregator.commit(report)[1].copy()


@pytest.fixture
def aggregator(small) -> ModelAggregator:
    made = ModelAggregator(small("training.enabled=true", "privacy.noise_multiplier=0.01"))
    made.start(np.zeros(6, np.float32))
    return made


def test_a_round_is_the_mean_update_with_momentum(aggregator) -> None:
    """Two rounds of mean update u from zero: u after one, u + 0.9 u + u after two (noise deviation 0.01 / 4 / 2 = 0.0013)."""
    update = np.array([0.5, -0.25, 0, 0, 0, 0.125])
    once = committed(aggregator, 0, update, update)
    twice = committed(aggregator, 1, update, update)
    np.testing.assert_allclose(once, update, atol=0.01)
    np.testing.assert_allclose(twice, 2.9 * update, atol=0.03)


def test_rounds_are_neither_skipped_nor_repeated(aggregator) -> None:
    committed(aggregator, 0, np.zeros(6))
    for wrong in (0, 2):
        with pytest.raises(ValueError, match=f"round_index={wrong} but round 1 is next"):
            committed(aggregator, wrong, np.zeros(6))


def test_sums_do_not_depend_on_the_order_of_the_groups(small) -> None:
    rng = np.random.default_rng(0)
    updates = [rng.normal(size=6) for _ in range(9)]
    results = []
    for order in (updates, updates[::-1]):
        aggregator = ModelAggregator(small("training.enabled=true"))
        aggregator.start(np.zeros(6, np.float32))
        results.append(committed(aggregator, 0, *order))
    assert (results[0] == results[1]).all()


def test_the_sum_is_that_of_exact_integers_rounded_once(small) -> None:
    """Beyond 2^53 too, where a sum of floats would lose bits; without noise, which is what the sums' difference leaves."""
    rng = np.random.default_rng(1)
    totals = [rng.integers(-(2**60), 2**60, 6) for _ in range(7)]
    exact = [sum(int(total[place]) for total in totals) for place in range(6)]
    aggregator, silent = (ModelAggregator(small("training.enabled=true")) for _ in range(2))
    for each in (aggregator, silent):
        each.start(np.zeros(6, np.float32))
    for total in totals:
        aggregator.add(total)
    released, noise = aggregator.release(), silent.release()
    expected = (
        torch.tensor(
            [float(total) / 2.0**FIXED_POINT_BITS for total in exact], dtype=torch.float64
        ).float()
        + noise
    )
    assert torch.equal(released, expected)


def test_a_state_of_another_kind_of_device_is_refused(aggregator) -> None:
    """Its noise would not go on with the same draws."""
    state = aggregator.state()
    assert state["device"] == "cpu"
    with pytest.raises(
        CheckpointError, match="trained on 'cuda NVIDIA A100'.*this aggregator is on 'cpu'"
    ):
        aggregator.load({**state, "device": np.array("cuda NVIDIA A100")})


def test_an_aggregator_without_a_gpu_of_its_own_sees_none(small, monkeypatch) -> None:
    """Whatever the node has. One that reserves a GPU is left what Ray gives it, and refuses to run where torch has none."""
    from fedray.runtime.session import own_code
    from fedray.runtime.workers import _ActorBody

    def load(body: _ActorBody, device: str) -> None:
        scenario = small("training.enabled=true")
        body.load("a", ("Aggregator", {}), ModelAggregator, scenario, device)

    # Ray would start a cluster to name the node.
    node = SimpleNamespace(get_node_id=lambda: "node")
    monkeypatch.setattr("ray.get_runtime_context", lambda: node)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    body = _ActorBody(own_code(), gpus=1.0)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="torch sees no GPU"):
            load(body, "cuda")
    body = _ActorBody(own_code(), gpus=0.0)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    load(body, "cpu")
    body.call("a", "start", np.zeros(6, np.float32))
    assert body.call("a", "state")["device"] == "cpu"


@KINDS
def test_a_restored_aggregator_goes_on_to_the_same_bits(small, strategy: Strategy) -> None:
    scenario = small("training.enabled=true")
    scenario = scenario.model_copy(
        update={"privacy": scenario.privacy.model_copy(update={"mechanism": strategy})}
    )
    one, other = ModelAggregator(scenario), ModelAggregator(scenario)
    one.start(np.zeros(6, np.float32))
    for t in range(7):
        committed(one, t, np.full(6, 0.1))
    other.load(one.state())
    for t in range(7, 12):
        assert (committed(one, t, np.full(6, 0.1)) == committed(other, t, np.full(6, 0.1))).all()


def test_between_rounds_tree_noise_keeps_its_row_and_its_state_alone() -> None:
    """An aggregator's peak, in vectors of the model, is then six and the state."""
    stream = noise_stream(Tree(), 3, 50, torch.device("cpu"), 8)
    stream.next()
    kept = [each.numel() for each in vars(stream).values() if isinstance(each, torch.Tensor)]
    assert sum(kept) == 50 + stream.state()["buffers"].size


def test_twenty_settings_of_a_blt_share_one_compiled_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch compiles a function eight times and then no more. Any backend shows how often."""
    compiled: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(len(inputs))
        return graph.forward

    compile_with = torch.compile
    monkeypatch.setattr(torch, "compile", lambda *a, **k: compile_with(*a, **k, backend=backend))
    compiled_step.cache_clear()
    draws = np.random.default_rng(0)
    try:
        for dimension in range(50, 90, 2):
            theta, omega = torch.tensor(draws.uniform(0.1, 0.9, (2, 3)), dtype=torch.float32)
            S, out = torch.tensor(draws.normal(size=(4, dimension)), dtype=torch.float32).split(3)
            states = [(S.clone(), out[0].clone()) for _ in range(2)]
            compiled_step()(*states[0], theta, omega)
            buffered_step(*states[1], theta, omega)
            for found, expected in zip(*states, strict=True):
                assert torch.equal(found, expected)
    finally:
        compiled_step.cache_clear()
    assert len(compiled) == 1


def test_without_a_c_compiler_noise_is_computed_plainly_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*given: Any) -> None:
        raise RuntimeError(
            "Failed to find C compiler. Please specify via CC environment variable.\n"
        )

    monkeypatch.setattr("fedray.server.learning.noise.compiled_step", lambda: fails)
    compiles.cache_clear()
    try:
        with pytest.warns(
            UserWarning, match=r"^torch cannot compile the noise \(Failed to find C co"
        ):
            assert not compiles("cpu")
        # Asked once in a process.
        assert not compiles("cpu")
    finally:
        compiles.cache_clear()


def test_a_stream_goes_on_as_it_began_compiled_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last bits of the two differ."""
    monkeypatch.setattr(BuffersNoise, "_can_compile", lambda self: has_compiler)
    monkeypatch.setattr(NormalDraws, "fill", lambda self, out_D, *given: out_D.normal_())
    monkeypatch.setattr("fedray.runtime.devices.on_host", lambda tensor: np.zeros(tensor.shape))

    def stream() -> Any:
        return noise_stream(BLT_STREAM, 3, 17, torch.device("meta"), ROUNDS)

    has_compiler = True
    compiled = stream().state()
    has_compiler = False
    plain = stream().state()
    assert (bool(compiled["is_compiled"]), bool(plain["is_compiled"])) == (True, False)
    with pytest.raises(InputError, match="torch cannot compile here; resume where there is a C co"):
        stream().load(compiled)
    has_compiler = True
    resumed = stream()
    resumed.load(plain)
    assert not resumed._is_compiled
    resumed.load(compiled)
    assert resumed._is_compiled


def test_without_a_private_folder_nothing_is_compiled_by_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own folder in /tmp has a name that another user can take first."""
    monkeypatch.setattr("fedray.server.learning.noise.HAS_TORCH_FOLDER", False)
    monkeypatch.setattr("fedray.base.compiled.can_write", lambda folder: False)
    compiled_step.cache_clear()
    with pytest.raises(InputError, match="set TORCHINDUCTOR_CACHE_DIR to a folder that only you"):
        compiled_step()
