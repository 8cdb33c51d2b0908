"""Privacy over rounds: what had been spent after each of a few rounds, from the trace so far."""

from dataclasses import dataclass

import numpy as np

from fedray.audit.participation import Patterns
from fedray.audit.sensitivity import trace_sensitivity
from mechanisms.accounting.pld import gaussian_epsilon
from mechanisms.accounting.zcdp import gaussian_rho
from mechanisms.strategy import Strategy


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """Privacy spent once `rounds` rounds had been released: exact trace sensitivity of those rounds, rho, epsilon."""

    rounds: int
    sensitivity: float
    rho: float
    epsilon: float


def privacy_over_rounds(
    strategy: Strategy, patterns: Patterns, noise_multiplier: float, delta: float, entries: int = 12
) -> list[LedgerEntry]:
    """Entries at evenly spaced numbers of rounds, the last at the end of the trace."""
    n = patterns.committed_rounds
    ledger = []
    for rounds in np.unique(np.linspace(0, n, entries + 1).round().astype(int))[1:].tolist():
        sensitivity = trace_sensitivity(strategy, patterns.before(rounds)).value
        epsilon = gaussian_epsilon(sensitivity, noise_multiplier, delta)
        ledger.append(LedgerEntry(rounds, sensitivity, gaussian_rho(sensitivity, noise_multiplier), epsilon))
    return ledger
