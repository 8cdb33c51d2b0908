"""The accountants: each turns an event into epsilon at a delta, or refuses it.

To add one: ARCHITECTURE.md, "To add".
"""

from collections.abc import Callable
from typing import NamedTuple

from fedray.mechanisms.accounting.events import Event, EventRefused
from fedray.mechanisms.accounting.gdp import gdp_epsilon
from fedray.mechanisms.accounting.moments import moments_epsilon
from fedray.mechanisms.accounting.pld import pld_epsilon
from fedray.mechanisms.accounting.renyi import renyi_epsilon
from fedray.mechanisms.accounting.zcdp import zcdp_epsilon

ACCOUNTANTS: dict[str, Callable[[Event, float], float]] = {
    "gdp": gdp_epsilon,
    "pld": pld_epsilon,
    "zcdp": zcdp_epsilon,
    "renyi": renyi_epsilon,
    "moments": moments_epsilon,
}
"""By name; whichever of the first comes first and takes an event gives its least epsilon, or nearly
so."""


class Spent(NamedTuple):
    """An epsilon, and who found it."""

    epsilon: float
    """At the delta that was asked for."""
    accountant: str
    """A name of `ACCOUNTANTS`."""


def epsilon_of(event: Event, delta: float) -> Spent:
    """Returns the epsilon of the first accountant that takes an event: the best proven here.

    Args:
        event: the release.
        delta: from 1e-30 to below 1.

    Raises:
        EventRefused: no accountant takes it; the message is the first one's.
        InputError: delta is impossible.
    """
    refusal: EventRefused | None = None
    for name, epsilon in ACCOUNTANTS.items():
        try:
            return Spent(epsilon(event, delta), name)
        except EventRefused as error:
            refusal = refusal or error
    assert refusal is not None
    raise refusal


def every_epsilon_of(event: Event, delta: float) -> dict[str, float | str]:
    """By accountant, the epsilon of an event at a delta, or why it is refused."""
    found: dict[str, float | str] = {}
    for name, epsilon in ACCOUNTANTS.items():
        try:
            found[name] = epsilon(event, delta)
        except EventRefused as error:
            found[name] = str(error)
    return found
