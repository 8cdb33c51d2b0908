"""The forward guarantee of a log rests on the rounds of its devices, and what is spent is that of the trace."""

import numpy as np
import pytest

from fedray.audit.forward import forward_sensitivity, least_noise_growth
from fedray.audit.participation import Patterns
from fedray.audit.sensitivity import trace_sensitivity
from fedray.mechanisms.band_fhu import BandFHU
from fedray.mechanisms.continuation import Future
from fedray.mechanisms.tree import Tree


def patterns(weights: bool = False) -> Patterns:
    rounds = np.array([3, 0, 4, 1, 2, 3], np.uint32)
    return Patterns(
        committed_rounds=5,
        device_ids=np.array([7, 8, 9], np.uint64),
        counts=np.array([1, 2, 3]),
        rounds=rounds,
        weights=np.full(rounds.size, 0.5) if weights else None,
    )


@pytest.mark.parametrize("strategy", [BandFHU(bands=4), Tree()])
def test_spent_is_the_sensitivity_of_the_trace(strategy: BandFHU | Tree) -> None:
    # No round is left.
    spent = forward_sensitivity(strategy, patterns(), Future(5, 5, np.arange(1, 6)))
    assert spent.value == pytest.approx(trace_sensitivity(strategy, patterns()).value)
    assert (spent.place, spent.past, spent.future) == (2, (1, 2, 3), ())


def test_devices_that_must_wait_for_ever_keep_their_past_over_all_planned_rounds() -> None:
    following = np.minimum(np.arange(12) + 4, 12)
    free = forward_sensitivity(BandFHU(bands=4), patterns(), Future(5, 12, following))
    assert (free.place, free.past, free.future) == (2, (1, 2, 3), (7, 11))
    held = Future(5, 12, following, first=np.array([5, 8, 12]))
    waiting = forward_sensitivity(BandFHU(bands=4), patterns(), held)
    assert waiting.place == 2
    assert waiting.future == ()
    assert waiting.value < free.value
    found = least_noise_growth(BandFHU(bands=4), patterns(), held, 0.99 * waiting.value)
    assert found is None or found[1].value <= 0.99 * waiting.value


def test_weights_make_the_forward_guarantee_a_bound() -> None:
    future = Future(5, 12, np.minimum(np.arange(12) + 4, 12))
    whole, half = (
        forward_sensitivity(BandFHU(bands=4), patterns(each), future) for each in (False, True)
    )
    assert whole.is_exact
    assert not half.is_exact
    assert half.value == whole.value
