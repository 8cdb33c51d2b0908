"""Privacy over rounds: the privacy spent after each of a few numbers of rounds, from the trace so
far."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedray.audit.noise import Noise, changed_rounds, released
from fedray.audit.participation import Patterns
from fedray.audit.sensitivity import trace_sensitivity
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.mechanisms.sensitivity import PatternSensitivities, PatternValues
from fedray.mechanisms.strategy import Strategy

POINTS, POINTS_OF_MANY = 12, 3
"""Number of points of the curve, and the same above MANY participations, where 12 would take longer
than the audit."""
MANY = 1 << 22
FIRST_CHECKED = 16
"""Number of devices, those that spent most in the end, whose privacy after some rounds shows which
others need not be checked."""
MOST_UNRULED = 1024
"""Number of devices up to which all are checked."""
ROUNDED = 1e-9
"""Relative difference between sensitivities that is more than their rounding errors."""


@dataclass(frozen=True, slots=True)
class SpentAfter:
    """Privacy spent after a number of released rounds, as an audit of the trace so far would find
    it."""

    rounds: int
    """Number of rounds."""
    sensitivity: float
    """Sensitivity of the trace over these rounds, at clip norm 1."""
    sensitivity_is_exact: bool
    """False for an upper bound."""
    rho: float
    """zCDP of that sensitivity."""
    epsilon: float
    """epsilon at the requested delta."""


def privacy_over_rounds(
    strategy: Strategy,
    patterns: Patterns,
    noise: Noise,
    delta: float,
    entries: int | Sequence[int] | None = None,
    in_the_end: PatternValues | None = None,
) -> list[SpentAfter]:
    """Returns the privacy spent after increasing numbers of rounds.

    Rounds only add rows to C, so no device has spent more after some rounds than in the end.
    Devices that spent less in the end than some device had spent after these rounds are therefore
    not checked.

    Args:
        strategy: the mechanism.
        patterns: every device's rounds.
        noise: noise of the run.
        delta: delta of epsilon.
        entries: the numbers, from 1 to all rounds; or how many, evenly spaced, the last all rounds,
            and fewer if there are fewer rounds; None for POINTS, or POINTS_OF_MANY.
        in_the_end: sensitivity of every device's whole pattern, in order; None to check every
            device.
    """
    n = patterns.committed_rounds
    if entries is None:
        entries = POINTS_OF_MANY if patterns.participations > MANY else POINTS
    if isinstance(entries, int):
        # With few rounds, numbers coincide, and the first is 0 rounds, which spend nothing.
        entries = [int(each) for each in np.unique(np.linspace(0, n, entries + 1).round())[1:]]
    spent = []
    # A release depends on its own round and earlier ones only, so the releases of the first m
    # rounds are those of a run of m rounds. One table of G grows with the rounds, so all entries
    # together cost as much as the last.
    sensitivities = PatternSensitivities(strategy, n, most_rounds=n)
    most, first = None, 0.0
    # A value that is only an upper bound in the end may be larger earlier.
    has_many = patterns.counts.size > MOST_UNRULED
    if in_the_end is not None and has_many and in_the_end.is_exact.all():
        most = in_the_end.values
        first = float(np.partition(most, -FIRST_CHECKED)[-FIRST_CHECKED])
    for so_far in patterns.so_far(entries):
        rounds = so_far.committed_rounds
        sensitivities.grow(rounds)
        if most is not None:
            reached = trace_sensitivity(strategy, so_far.without(most < first), sensitivities).value
            so_far = so_far.without(most < (1 - ROUNDED) * reached)
        found = trace_sensitivity(strategy, so_far, sensitivities)
        changed = int(changed_rounds(noise, patterns, rounds).max())
        event = released(noise, found.value, changed)
        rho = rho_of(event)
        epsilon = epsilon_of(event, delta).epsilon
        spent.append(SpentAfter(rounds, found.value, found.is_exact, rho, epsilon))
    return spent
