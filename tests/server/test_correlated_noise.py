"""Noise for loops of users: the matrix mechanism's own, and its accounting."""

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import slow_twins as reference
import torch
from example_mechanisms import MECHANISMS, ROUNDS
from torch import Tensor

import fedray
from fedray.mechanisms import Toeplitz, Tree
from fedray.mechanisms.strategy import Strategy
from fedray.server.learning.draws import NormalDraws

SHAPES = ((3, 4), (), (5,))
BLT = MECHANISMS["blt"]
KINDS = pytest.mark.parametrize("strategy", MECHANISMS.values(), ids=MECHANISMS)


def zeros(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.zeros(shape) for shape in shapes or SHAPES]


def noise_of(strategy: Strategy | str | Path = BLT, steps: int = ROUNDS, **changed: Any):
    arguments: dict[str, Any] = {"noise_multiplier": 2.0, "clip_norm": 0.5, "seed": 3} | changed
    return fedray.CorrelatedNoise(strategy, steps, zeros(), **arguments)


def flat(tensors: list[Tensor]) -> np.ndarray:
    return torch.cat([each.flatten() for each in tensors]).double().numpy()


@pytest.mark.parametrize("kind", ["blt", "banded", "bisr", "matrix"])
def test_the_steps_are_rows_of_the_inverse_matrix_times_the_draws(kind: str) -> None:
    """To float32's precision, at the scale of noise multiplier times clip norm."""
    strategy = MECHANISMS[kind]
    noise = noise_of(strategy)
    Z = np.empty((ROUNDS, 18), np.float32)
    for t in range(ROUNDS):
        NormalDraws(3, torch.device("cpu")).fill(torch.from_numpy(Z[t]), t)
    C = strategy.definition(ROUNDS)
    rows = np.stack([flat(noise.next_noise()) for _ in range(ROUNDS)])
    np.testing.assert_allclose(rows, 2.0 * 0.5 * np.linalg.solve(C, Z), atol=2e-5)


@KINDS
def test_noise_is_added_to_means_as_to_sums(strategy: Strategy) -> None:
    """Over a divisor, a step's noise is that of the sum divided: one row, whoever asks for it."""
    noise, other = noise_of(strategy), noise_of(strategy)
    for _ in range(5):
        gradients = [torch.full(shape, 2.0) for shape in SHAPES]
        noise.add_(gradients, divisor=8.0)
        np.testing.assert_allclose(flat(gradients), 2.0 + flat(other.next_noise()) / 8, rtol=1e-5)


def test_gradients_of_a_model_are_changed_where_they_are() -> None:
    """Also those that are no contiguous piece of memory, or of another precision."""
    model = torch.nn.Linear(4, 3)
    model(torch.ones(4)).sum().backward()
    assert model.weight.grad is not None
    model.weight.grad = torch.zeros(4, 3).T
    noise, other = (
        fedray.CorrelatedNoise(BLT, 9, model.parameters(), noise_multiplier=1, clip_norm=1, seed=3)
        for _ in range(2)
    )
    noise.add_(each.grad for each in model.parameters())
    weight, bias = other.next_noise()
    assert torch.equal(model.weight.grad, weight)
    assert model.bias.grad is not None
    assert torch.equal(model.bias.grad, 1.0 + bias)


@KINDS
def test_a_restored_noise_goes_on_to_the_same_bits(strategy: Strategy) -> None:
    """Through a file that is read without unpickling anything but values; the seed comes along."""
    noise = noise_of(strategy, seed=None)
    for _ in range(11):
        noise.next_noise()
    file = io.BytesIO()
    torch.save(noise.state_dict(), file)
    file.seek(0)
    other = noise_of(strategy, seed=None)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert other.next_step == 11
    for _ in range(9):
        assert (flat(noise.next_noise()) == flat(other.next_noise())).all()


def test_seeds_that_nobody_gave_differ_and_are_as_long_as_keys() -> None:
    seeds = [noise_of(seed=None).state_dict()["seed"] for _ in range(8)]
    assert len(set(seeds)) == 8
    assert max(seeds).bit_length() > 100


@KINDS
def test_no_step_beyond_the_plan_has_noise_and_a_refused_one_changes_nothing(strategy) -> None:
    noise = noise_of(strategy, 2)
    noise.next_noise()
    noise.next_noise()
    gradients = zeros()
    with pytest.raises(fedray.InputError, match="round 2 has no noise.*made for 2"):
        noise.add_(gradients)
    assert not flat(gradients).any()


def test_the_accounting_is_that_of_the_mechanism_over_all_planned_steps() -> None:
    """rho = (sensitivity / z)^2 / 2, with the sensitivity that brute force finds."""
    participation = fedray.MinSep(ROUNDS, 15, 3)
    noise = noise_of()
    sensitivity = reference.participation_sensitivity(BLT, participation)
    assert noise.rho(participation) == pytest.approx((sensitivity / 2.0) ** 2 / 2)
    figures = fedray.mechanism_figures(BLT, participation, 2.0, 1e-6)
    assert noise.epsilon(participation, 1e-6) == figures.epsilon
    assert noise.figures(participation, 1e-6) == figures
    with pytest.raises(fedray.InputError, match=r"^participation.rounds=44 must be steps=45"):
        noise.rho(fedray.MinSep(44, 15, 3))
    with pytest.raises(fedray.InputError, match="delta"):
        noise.epsilon(participation, 2.0)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "noise multiplier": ({"noise_multiplier": 0.0}, "^noise_multiplier=0.0 must be"),
    "clip norm": ({"clip_norm": -1.0}, "^clip_norm=-1.0 must be positive"),
    "infinite norm": ({"clip_norm": math.inf}, "^clip_norm=inf must be"),
    "no steps": ({"steps": 0}, "^rounds=0 must be at least 1"),
    "short matrix": (
        {"strategy": MECHANISMS["banded"], "steps": ROUNDS + 1},
        "is more than this banded strategy has",
    ),
    "negative seed": ({"seed": -1}, "^seed=-1 must be a whole number from 0"),
    "fractional seed": ({"seed": 3.0}, "^seed=3.0 must be a whole number from 0"),
    "boolean seed": ({"seed": True}, "^seed=True must be a whole number from 0"),
    "text as seed": ({"seed": "3"}, "^seed='3' must be a whole number from 0"),
    "no such file": ({"strategy": "missing.json"}, r"^mechanism file .*missing\.json"),
    "unstable": (
        {"strategy": Toeplitz(coefficients=(1.0, 9.0))},
        "grows .*-fold within 45 rounds",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_an_impossible_plan_is_refused(what: str) -> None:
    arguments, message = REFUSED[what]
    with pytest.raises(fedray.InputError, match=message):
        noise_of(**arguments)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ([], "0 tensors on devices none"),
        ([torch.zeros(0)], "at least one number"),
        ([torch.zeros(2), torch.zeros(2, device="meta")], "devices cpu, meta"),
        ([torch.zeros(2, device="meta")], "parameters are on 'meta'"),
    ],
)
def test_parameters_that_have_no_noise_are_refused(parameters, message: str) -> None:
    with pytest.raises(fedray.InputError, match=message):
        fedray.CorrelatedNoise(BLT, 9, parameters, noise_multiplier=1.0, clip_norm=1.0)


@pytest.mark.parametrize(
    ("gradients", "message"),
    [
        (zeros()[:2], "^2 gradients for 3 parameters"),
        ([*zeros()[:2], None], "^gradient 2 is None"),
        (zeros((4, 3), (), (5,)), r"^gradient 0 is torch\.float32 of shape \(4, 3\)"),
        (
            [*zeros()[:2], torch.zeros(5, dtype=torch.int64)],
            "^gradient 2 .*must be float32 or float64",
        ),
        ([*zeros()[:2], torch.zeros(5, device="meta")], "^gradient 2 is on 'meta'"),
        ([*zeros()[:2], torch.zeros(5).bfloat16()], r"^gradient 2 is torch\.bfloat16.*in float32"),
        ([*zeros()[:2], torch.zeros(5).half()], r"^gradient 2 is torch\.float16.*in float32"),
    ],
)
def test_gradients_that_are_not_the_parameters_take_no_step(gradients, message: str) -> None:
    noise = noise_of()
    with pytest.raises(fedray.InputError, match=message):
        noise.add_(gradients)
    with pytest.raises(fedray.InputError, match="^divisor=0 must be positive"):
        noise.add_(zeros(), divisor=0)
    assert noise.next_step == 0


def test_a_coarse_sum_moves_by_more_than_one_contribution_and_a_float32_sum_does_not() -> None:
    """Why coarse gradients are refused: a contribution of norm 1 to a million coordinates moves a
    bfloat16 sum by 2.8, so noise for norm 1 does not hide it. In float32 it moves it by 1."""
    others = torch.rand(1_000_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    others += 1.0
    contribution = torch.full_like(others, 1e-3)
    moved = {
        dtype: float(((others + contribution).to(dtype) - others.to(dtype)).double().norm())
        for dtype in (torch.bfloat16, torch.float32, torch.float64)
    }
    assert moved[torch.bfloat16] > 2.5
    assert moved[torch.float32] == pytest.approx(1.0, rel=1e-4)
    noise = fedray.CorrelatedNoise(BLT, 9, [others], noise_multiplier=1.0, clip_norm=1.0)
    with pytest.raises(fedray.InputError, match="in float32"):
        noise.add_([others.bfloat16()])
    noise.add_([others])
    assert noise.next_step == 1


def test_a_bfloat16_model_trains_with_float32_sums_as_the_refusal_says() -> None:
    """Only the released step is rounded, which is a function of what was released."""
    model = torch.nn.Linear(4, 3).bfloat16()
    noise = fedray.CorrelatedNoise(BLT, 9, model.parameters(), noise_multiplier=1.0, clip_norm=1.0)
    sums = [torch.zeros_like(each, dtype=torch.float32) for each in model.parameters()]
    noise.add_(sums)
    for parameter, total in zip(model.parameters(), sums, strict=True):
        parameter.grad = total.to(parameter.dtype)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert flat(sums).any()


def test_a_mechanism_is_given_by_the_path_of_its_file(tmp_path) -> None:
    """A string or a Path, with the noise of the strategy that the file describes."""
    file = tmp_path / "tree.json"
    file.write_text('{"kind": "tree"}')
    expected = flat(noise_of(Tree()).next_noise())
    for path in (file, str(file)):
        assert (flat(noise_of(path).next_noise()) == expected).all()


def test_a_state_with_a_seed_that_is_not_a_whole_number_is_refused() -> None:
    state = noise_of().state_dict()
    noise = noise_of()
    with pytest.raises(fedray.InputError, match=r"^seed=3.5 must be a whole number"):
        noise.load_state_dict({**state, "seed": 3.5})
    assert noise.state_dict()["seed"] == 3


def test_a_state_is_loaded_once_and_only_into_the_same_plan() -> None:
    """Rows of two states, or of another matrix, would be no noise of the mechanism."""
    noise = noise_of()
    noise.next_noise()
    state = noise.state_dict()
    with pytest.raises(
        fedray.InputError, match="^next_step=1 is not 0: this object already gave noise"
    ):
        noise.load_state_dict(state)
    for changed in ({"clip_norm": 0.6}, {"steps": 44}, {"strategy": Tree()}):
        with pytest.raises(fedray.InputError, match=f"^the state is of {next(iter(changed))}="):
            noise_of(**changed).load_state_dict(state)
    with pytest.raises(fedray.InputError, match="^the state is of device='cuda"):
        noise_of().load_state_dict({**state, "device": "cuda NVIDIA A100"})
    with pytest.raises(fedray.InputError, match="^the state has no buffers, seed"):
        noise_of().load_state_dict({k: v for k, v in state.items() if k not in ("seed", "buffers")})
    other = noise_of(seed=4)
    with pytest.raises(fedray.InputError, match="^next_round=46 is not among"):
        other.load_state_dict({**state, "next_step": 46})
    assert other.state_dict()["seed"] == 4


def test_the_line_of_a_noise_tells_how_far_it_is_and_not_its_seed() -> None:
    noise = noise_of(seed=123454321)
    noise.next_noise()
    assert repr(noise) == (
        "<CorrelatedNoise of blt, 18 parameters, noise multiplier 2, clip norm 0.5: step 1 of 45>"
    )
