"""Algorithm 5 and its brute force, by numpy's inverse; statements that can fail."""

from dataclasses import replace

import numpy as np
import pytest

import fedray
from fedray.mechanisms import BLT
from fedray.scenarios import blt_cost
from fedray.scenarios.blt_cost import Cost, CostsOfBLTs, Inverse


@pytest.mark.parametrize("buffers", [1, 2, 4])
def test_closed_form_and_brute_force_are_the_inverse_of_the_matrix(buffers: int) -> None:
    draw = np.random.default_rng(buffers)
    decays = np.sort(draw.uniform(0.1, 1.0, 2 * buffers))[::-1]
    theta, theta_hat = decays[0::2], decays[1::2]
    column = blt_cost.coefficients_of(theta, blt_cost.weights_of(theta, theta_hat), 40)
    lags = np.subtract.outer(np.arange(40), np.arange(40))
    matrix = np.where(lags >= 0, column[np.abs(lags)], 0.0)
    inverse = np.linalg.inv(matrix)[:, 0]
    np.testing.assert_allclose(blt_cost.inverse_by_brute_force(column), inverse, atol=1e-12)
    weights = blt_cost.weights_of(theta_hat, theta)
    assert (weights < 0).all()
    np.testing.assert_allclose(
        blt_cost.coefficients_of(theta_hat, weights, 40), inverse, atol=1e-12
    )


def test_a_wrong_weight_shows_in_the_difference(monkeypatch) -> None:
    blt = fedray.read_strategy("blt-400")
    assert isinstance(blt, BLT)
    assert blt_cost.inverse_of("blt-400", blt).agrees
    own = blt_cost.weights_of
    monkeypatch.setattr(blt_cost, "weights_of", lambda *each: own(*each) * (1 + 1e-6))
    assert not blt_cost.inverse_of("blt-400", blt).agrees


COSTS = (
    Cost("banded", 40_000, 9.0, 85, 8.6),
    Cost("banded-toeplitz", 85, 1.0, 85, 8.8),
    Cost("blt", 6, 1.0, 3, 9.3),
    Cost("tree-full", 0, 0.0, 512, 12.0),
    Cost("tree", 0, 0.0, 10, 19.0),
    Cost("identity", 0, 0.0, 0, 78.0),
)
INVERSE = Inverse("blt", 3, (0.9, 0.5, 0.1), 1e-15, 1e-15)


@pytest.mark.parametrize(
    ("place", "changed", "wrong"),
    [
        (0, {}, []),
        (3, {"rms_loss": 20.0}, [0]),
        (2, {"rms_loss": 9.5}, [1]),
        (2, {"searched": 90}, [2]),
        (2, {"memory": 11}, [3]),
    ],
)
def test_each_statement_can_fail(place: int, changed: dict[str, float], wrong: list[int]) -> None:
    costs = list(COSTS)
    costs[place] = replace(costs[place], **changed)
    found = blt_cost._reproduced(CostsOfBLTs(tuple(costs), (INVERSE,)))
    said = [holds for _, holds in found.shown[-1].rows]
    assert [each for each, holds in enumerate(said) if holds == "NO"] == wrong
    assert found.agrees == (not wrong)


def test_an_inverse_that_differs_fails() -> None:
    off = replace(INVERSE, of_inverse=1e-9)
    found = blt_cost._reproduced(CostsOfBLTs(COSTS, (INVERSE, off)))
    assert not found.agrees
    assert found.verdict == "4 of 5 statements hold."
