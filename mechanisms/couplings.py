"""Gram entries of a run that is not finished, and a majorant of them that falls with rounds.

An entry *falls* if it does not grow when both rounds move later by the same number of rounds, nor
when the later round of the two moves later. A non-increasing Toeplitz C >= 0 has such entries: with
w_t the inverse noise variance of row t, non-increasing,

    G[i, j] = sum over s < n - j of w_(j+s) c_s c_(s+j-i),

and a later j has fewer terms, each with a smaller w; a larger j - i has a smaller second factor.
"""

import numpy as np

from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.errors import InputError
from .sensitivity import GRAM_TABLE_ROUNDS, PatternSensitivities
from .strategy import SensitivityUnknown, Strategy
from .toeplitz import ToeplitzStrategy
from .tree import Tree
from .triangular import TriangularStrategy

MOST_SCALED_ROUNDS = 5_000
"""Number of rounds up to which the Gram matrix under growing noise is computed, in seconds."""


def scaled_gram(strategy: Strategy, scales: Float64Array) -> Float64Array:
    """Returns C' S^-2 C, [R, R]: the Gram matrix of the view C X + S Z.

    Args:
        strategy: the strategy C.
        scales: noise of each row relative to the first, [R].

    Raises:
        InputError: the strategy is a tree, or has too many rounds.
    """
    n = scales.size
    if isinstance(strategy, Tree):
        raise InputError(
            "scales: a tree's nodes mix released and later rounds, so its noise cannot grow from a "
            "round on; keep its noise, or use a mechanism with one row per round, such as a blt"
        )
    if n > MOST_SCALED_ROUNDS:
        rule = f"is more than {MOST_SCALED_ROUNDS:,}, the most for noise that grows"
        raise InputError.of("rounds", n, rule, "keep the noise constant")
    if isinstance(strategy, TriangularStrategy):
        C = np.array(strategy.matrix[:n, :n])
    elif isinstance(strategy, ToeplitzStrategy):
        c = strategy.first_column(n)
        # Row t of C has c_t, c_(t-1), ..., which is a window on the reversed coefficients.
        padded = np.concatenate([c[::-1], np.zeros(n - 1)])
        C = np.lib.stride_tricks.sliding_window_view(padded, n)[::-1] / 1.0
    else:
        raise InputError.of("kind", strategy.kind, "has no rows of rounds", "keep its noise")
    C /= scales[:, None]
    return C.T @ C


class Couplings:
    """Bounds H >= |G| on the Gram entries of R rounds of which r are released, such that H falls.

    Args:
        strategy: the strategy C.
        released: r.
        rounds: R.
        scales: noise of each row relative to the first, [R], non-decreasing; None if constant.

    Raises:
        InputError: the strategy has fewer rounds, or does not admit growing noise.
        SensitivityUnknown: the majorant of so many rounds would not fit into memory.
    """

    def __init__(
        self, strategy: Strategy, released: int, rounds: int, scales: Float64Array | None = None
    ) -> None:
        G = None if scales is None else scaled_gram(strategy, scales)
        self.sensitivities = PatternSensitivities(strategy, rounds, G=G)
        """Sensitivities of whole patterns, at most constant noise."""
        self.falls = isinstance(strategy, ToeplitzStrategy) and strategy.is_non_increasing(rounds)
        """Whether G itself falls."""
        self.is_scaled = scales is not None
        """Whether noise grows."""
        self._strategy, self._rounds, self._G = strategy, rounds, G
        self._released = released
        self._majorant: Float64Array | None = None
        self._past: Float64Array | None = None

    def _majorise(self) -> None:
        strategy, rounds = self._strategy, self._rounds
        if rounds > GRAM_TABLE_ROUNDS:
            raise SensitivityUnknown(
                f"rounds={rounds}: the bound for what devices may still do with this "
                f"{strategy.kind} strategy takes at most {GRAM_TABLE_ROUNDS:,} rounds; plan fewer, "
                "or use a mechanism with non-increasing coefficients"
            )
        G = strategy.gram(rounds) if self._G is None else self._G
        r = self._released
        past = np.abs(G[:r, r:])
        self._past = np.maximum.accumulate(past[:, ::-1], axis=1)[:, ::-1]
        H = np.abs(G[r:, r:])
        for i in range(len(H) - 1, -1, -1):
            # H[i, j] bounds the entry, that of both rounds one later, and that of a larger lag.
            if i + 1 < len(H):
                np.maximum(H[i, i:-1], H[i + 1, i + 1 :], out=H[i, i:-1])
            H[i, i:] = np.maximum.accumulate(H[i, i:][::-1])[::-1]
        self._majorant = H

    def of_past(self, past: Int64Array, later: Int64Array) -> Float64Array:
        """Returns H elementwise for released rounds and future ones, of shapes that broadcast."""
        if self._past is None:
            self._majorise()
        assert self._past is not None
        return self._past[past, later - self._released]

    def of_future(self, earlier: Int64Array, later: Int64Array) -> Float64Array:
        """Returns H elementwise for two future rounds, earlier <= later."""
        if self._majorant is None:
            self._majorise()
        assert self._majorant is not None
        return self._majorant[earlier - self._released, later - self._released]

    def entries(self, earlier: Int64Array, later: Int64Array) -> Float64Array:
        """Returns |G| elementwise, earlier <= later, of shapes that broadcast."""
        return np.abs(self.sensitivities.entries(*np.broadcast_arrays(earlier, later)))
