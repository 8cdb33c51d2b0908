"""Renyi DP, by dp_accounting: what most other tools compute.

It is an upper bound too, and looser than `pld.py`. It stands beside that figure so that a reader
who knows the one can place the other. It takes every event.
"""

import logging

from fedray.mechanisms.accounting.events import Event
from fedray.mechanisms.accounting.limits import check_delta
from fedray.mechanisms.accounting.peer import peer_event


def renyi_epsilon(event: Event, delta: float) -> float:
    """Returns an upper bound on epsilon at `delta`.

    Moments by Mironov, Talwar, Zhang 2019; conversion by Canonne, Kamath, Steinke 2020.

    Raises:
        EventRefused: the event is unknown.
        InputError: delta is impossible.
    """
    check_delta(delta)
    composed = peer_event(event)
    from dp_accounting.rdp import RdpAccountant

    logger = logging.getLogger("absl")
    level = logger.level
    # A warning for each order that does not converge: without it the bound is looser, and valid.
    logger.setLevel(logging.ERROR)
    try:
        return float(RdpAccountant().compose(composed).get_epsilon(delta))
    finally:
        logger.setLevel(level)
