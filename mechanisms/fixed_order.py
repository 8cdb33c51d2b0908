"""Sensitivity of a strategy if the rounds of a device are exactly b apart.

Only the longest runs of rounds first, first + b, ... matter: one more contribution never lowers the
largest norm over unit contributions, since one of a vector and its negative does not.
"""

from dataclasses import replace

import numpy as np

from .participation import MinSep
from .sensitivity import MOST_CERTIFICATES, PatternSensitivities
from .strategy import Sensitivity, Strategy


def fixed_order_sensitivity(
    strategy: Strategy, participation: MinSep, most_starts: int | None = None
) -> Sensitivity:
    """Returns the largest sensitivity over all first rounds: of equal contributions if G = C'C has
    no negative entry on the pattern, else by a certificate, else a bound.

    Args:
        strategy: the strategy C.
        participation: (n, b, k), in fixed order.
        most_starts: number of first rounds that suffice, from round 0 on; None for all.

    Raises:
        InputError: the strategy has fewer rounds than the participation.
    """
    n, b, k = participation.rounds, participation.min_sep, participation.max_participations
    sensitivities = PatternSensitivities(strategy, n)
    # A run that begins at b or later is part of one that begins b earlier, unless it has k rounds.
    firsts = np.arange(max(min(b, n), n - (k - 1) * b))[:most_starts]
    lengths = np.minimum(k, -(-(n - firsts) // b))
    largest = Sensitivity(0.0, True, "", 0.0, ())
    # Longer patterns first, since they are mostly the worst; shorter ones then need no certificate.
    for length in np.unique(lengths)[::-1].tolist():
        patterns = firsts[lengths == length][:, None] + b * np.arange(length)
        found = sensitivities.of(patterns)
        worst, _ = sensitivities.largest(patterns, None, found, largest.value, MOST_CERTIFICATES)
        if worst is not None:
            exact = sensitivities.exact(patterns[worst.place])
            # Without certificates left, the value bounds other patterns than this one too.
            largest = replace(exact, value=worst.value, is_exact=worst.is_exact)
    theorem = f"Choquette-Choo et al. 2022, section 2 (every first round); {largest.theorem}"
    return replace(largest, theorem=theorem)
