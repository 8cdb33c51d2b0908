"""Mechanisms at equal privacy: what the comparison says, and that it cannot be misread as the noise multiplier can."""

import json
import math

import numpy as np
import pytest
import slow_twins as reference

from fedray.mechanisms.accounting.events import Gaussian
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.mechanisms.comparison import NOT_COMPARABLE, utility
from fedray.mechanisms.loss import loss
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import BLT, Identity, Tree

PARTICIPATION = MinSep(200, 40, 5)
GOLDEN = BLT(
    theta=(0.9953348970002772, 0.8122920858683399), omega=(0.12828660029532482, 0.32906048602262866)
)


@pytest.mark.parametrize("strategy", [Identity(), GOLDEN, Tree()], ids=lambda s: s.kind)
def test_the_prefix_error_is_that_of_the_noise_that_the_common_rho_needs(strategy) -> None:
    """z has the rho asked for, and z times the rows of B (materialised) has the deviations that are named."""
    sensitivity = strategy.participation_sensitivity(PARTICIPATION).value
    found = utility(strategy, PARTICIPATION.rounds, sensitivity, 0.4)
    released = Gaussian(noise_multiplier=found.noise_multiplier, sensitivity=sensitivity)
    assert rho_of(released) == pytest.approx(0.4, rel=1e-14)
    deviations = found.noise_multiplier * np.sqrt(
        reference.error_variances(strategy, PARTICIPATION.rounds)
    )
    assert found.max_prefix_error == pytest.approx(deviations.max(), rel=1e-9)
    assert found.rms_prefix_error == pytest.approx(math.sqrt((deviations**2).mean()), rel=1e-9)
    losses = loss(strategy, PARTICIPATION)
    assert (found.rms_loss, found.max_loss) == (losses.rms_loss, losses.max_loss)
    assert found.name == strategy.kind
    assert json.loads(json.dumps(found.to_json()))["rms_prefix_error"] == found.rms_prefix_error


def test_the_order_by_error_is_not_that_by_noise_multiplier() -> None:
    """Independent noise needs the smallest multiplier and gives the largest error; the sentence warns of it."""
    kinds = [
        utility(s, PARTICIPATION.rounds, s.participation_sensitivity(PARTICIPATION).value, 0.4)
        for s in (Identity(), GOLDEN, Tree())
    ]
    assert min(kinds, key=lambda each: each.noise_multiplier).name == "identity"
    assert max(kinds, key=lambda each: each.rms_prefix_error).name == "identity"
    assert "the same rho" in NOT_COMPARABLE


@pytest.mark.parametrize(
    ("sensitivity", "rho"), [(0.0, 1.0), (math.inf, 1.0), (1.0, 0.0), (1.0, math.nan)]
)
def test_comparisons_without_a_privacy_to_share_are_refused(sensitivity: float, rho: float) -> None:
    with pytest.raises(ValueError, match="must be positive and finite"):
        utility(Identity(), 10, sensitivity, rho)
