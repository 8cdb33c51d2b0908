"""The accountants: each computes epsilon at a delta from an event, or refuses the event.

To add one: docs/extending.md.
"""

from collections.abc import Callable
from typing import NamedTuple

from .events import Event, EventRefused
from .gdp import gdp_epsilon
from .monte_carlo import monte_carlo_epsilon
from .pld import pld_epsilon
from .renyi import renyi_epsilon
from .zcdp import zcdp_epsilon

ACCOUNTANTS: dict[str, Callable[[Event, float], float]] = {
    "gdp": gdp_epsilon,
    "pld": pld_epsilon,
    "zcdp": zcdp_epsilon,
    "monte-carlo": monte_carlo_epsilon,
    "renyi": renyi_epsilon,
}
"""Accountants by name, in order of preference: the first one that accepts an event gives the
smallest epsilon, or nearly so."""


class Spent(NamedTuple):
    """An epsilon and the accountant that computed it."""

    epsilon: float
    """Epsilon at the given delta."""
    accountant: str
    """Key of `ACCOUNTANTS`."""


def epsilon_of(event: Event, delta: float) -> Spent:
    """Returns the epsilon of the first accountant that accepts an event, the best bound proven
    here.

    Raises:
        EventRefused: no accountant accepts the event; the message is that of the first one.
        InputError: delta is outside [1e-30, 1).
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
    """Returns the epsilon of every accountant by name, or the reason for its refusal."""
    found: dict[str, float | str] = {}
    for name, epsilon in ACCOUNTANTS.items():
        try:
            found[name] = epsilon(event, delta)
        except EventRefused as error:
            found[name] = str(error)
    return found
