"""Renyi DP, by dp_accounting: the accountant of most other tools.

It is an upper bound, looser than `pld.py`, reported next to it for comparison. It accepts every
event.
"""

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from fedray.mechanisms.accounting.events import Event
from fedray.mechanisms.accounting.limits import check_delta
from fedray.mechanisms.accounting.peer import peer_event

if TYPE_CHECKING:
    from dp_accounting import DpEvent


def renyi_epsilon(event: Event, delta: float) -> float:
    """Returns an upper bound on epsilon at `delta`.

    Moments by Mironov, Talwar, Zhang 2019; conversion by Canonne, Kamath, Steinke 2020.

    Raises:
        EventRefused: the event is unknown.
        InputError: delta is outside [1e-30, 1).
    """
    return _epsilon(peer_event(event), delta)


def best_of_epsilon(
    event: Event,
    mean: float,
    shape: float | Literal["poisson"],
    delta: float,
    others: Sequence[Event] = (),
) -> float:
    """Returns an upper bound on epsilon of the best of a random number of runs of an event, and of
    other events (Papernot and Steinke 2022, Theorem 2 with eta = shape, or Theorem 6)."""
    # dp_accounting does not export the event with the others.
    from dp_accounting import ComposedDpEvent
    from dp_accounting.dp_event import RepeatAndSelectDpEvent

    eta = math.inf if shape == "poisson" else shape
    best = RepeatAndSelectDpEvent(peer_event(event), mean, eta)
    return _epsilon(ComposedDpEvent([best, *map(peer_event, others)]), delta)


def _epsilon(composed: "DpEvent", delta: float) -> float:
    check_delta(delta)
    from dp_accounting.rdp import RdpAccountant

    logger = logging.getLogger("absl")
    level = logger.level
    # dp_accounting warns of each order that does not converge; the bound is valid without it.
    logger.setLevel(logging.ERROR)
    try:
        return float(RdpAccountant().compose(composed).get_epsilon(delta))
    finally:
        logger.setLevel(level)
