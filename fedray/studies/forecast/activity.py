"""Activity of devices: a mixture of Gamma distributions.

A device whose timer is open takes part in a round by its activity, in participations per open round
(the Gamma-Poisson model of Fisher, Corbet and Williams 1943). One Gamma has too thin a tail for the
few devices that come most often, on which the most participations depend. The mixture has fixed
means and fits its shares, as a nonparametric estimate does (Laird 1978), to the returns of each
device after its first participation, which do not depend on when devices joined. Its likelihood
rises in each step of a minorisation (Hunter and Lange 2004). Doubt about the shares is that of the
Bayesian bootstrap over devices (Rubin 1981).
"""

from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from fedray.base.arrays import Float64Array, Int32Array, Int64Array
from fedray.base.compiled import njit

SHAPE = 4.0
"""Shape of each part of the mixture."""
RATIO = 1.5
"""Ratio of neighbouring means."""
FIT_STEPS, DRAW_STEPS = 300, 40
"""Steps of the fit, and of a draw, which starts from the fit."""


class Shares(NamedTuple):
    """Shares of the parts of the mixture."""

    of_all: Float64Array
    """Share of each part of all devices, [J]."""
    of_seen: Float64Array
    """Cumulated shares of each part of the seen devices with a code, [U, J]."""


class Activity:
    """Fitted activity of the devices that took part.

    Args:
        first: first round of each device, [P].
        opened: number of later rounds for which it was open, [P].
        later: number of its later participations, [P].
        rounds: number of observed rounds.
    """

    def __init__(
        self, first: Int64Array, opened: Int64Array, later: Int64Array, rounds: int
    ) -> None:
        parts = 1 + int(np.ceil(np.log(4 * rounds) / np.log(RATIO)))
        self.rates: Float64Array = SHAPE / np.geomspace(1 / (4 * rounds), 1.0, parts)
        self._first = first
        # The likelihood depends on the first round and the open ones by their sum only.
        codes, code = np.unique(later * (2 * rounds) + first + opened, return_inverse=True)
        self.code: Int32Array = code.astype(np.int32)
        returns, passed = np.divmod(codes, 2 * rounds)
        # Half a round, because the first participation is somewhere within its round.
        self._passed = passed + 0.5
        self._count = SHAPE + 1.0 + returns
        a, b = SHAPE, self.rates
        logs = a * np.log(b) - self._count[:, None] * np.log(b + self._passed[:, None])
        logs += (gammaln(self._count) - gammaln(a))[:, None]
        self._likely = np.exp(logs - logs.max(axis=1, keepdims=True))
        self._new = self.chance(np.arange(rounds))
        start = self.rates / self.rates.sum()
        ones = np.ones(first.size)
        self.shares: Float64Array = self._fitted(start, ones, FIT_STEPS)

    def chance(self, before: Int64Array) -> Float64Array:
        """Returns the chance of a device of each part to take part for the first time in the round
        after `before` rounds [R], [R, J]."""
        a, b = SHAPE, self.rates
        return a / b * (b / (b + before[:, None] + 0.5)) ** (a + 1.0)

    def never(self, rounds: Float64Array) -> Float64Array:
        """Returns the chance of a device of each part to take part in none of `rounds` [R], [R,
        J]."""
        return (self.rates / (self.rates + rounds[:, None])) ** SHAPE

    def _fitted(self, start: Float64Array, weights: Float64Array, steps: int) -> Float64Array:
        """Returns shares [J] after a number of steps from `start`, for weights of devices [P]."""
        of_code = np.bincount(self.code, weights)
        of_first = np.bincount(self._first, weights, minlength=self._new.shape[0])
        shares = start
        for _ in range(steps):
            found = (of_code / (self._likely @ shares)) @ self._likely
            shares = shares * found / ((of_first / (self._new @ shares)) @ self._new)
            shares = shares / shares.sum()
        return shares

    def drawn(self, rng: np.random.Generator) -> Shares:
        """Returns shares drawn by the doubt about them."""
        weights = rng.exponential(size=self.code.size)
        shares = self._fitted(self.shares, weights, DRAW_STEPS)
        of_seen = np.cumsum(self._likely * shares, axis=1)
        return Shares(shares, of_seen / of_seen[:, -1:])

    def of_seen(self, shares: Shares, part: slice, rng: np.random.Generator) -> Float64Array:
        """Returns the activity of a part [Q] of the seen devices, drawn given their rounds."""
        code = self.code[part]
        place = chosen(shares.of_seen, code, rng.random(code.size))
        return rng.gamma(self._count[code]) / (self.rates[place] + self._passed[code])

    def of_unseen(
        self, numbers: Int64Array, ages: Float64Array, rng: np.random.Generator
    ) -> Float64Array:
        """Returns the activity of unseen devices, drawn.

        Args:
            numbers: devices by rounds in which they did not take part, and part, [R, J].
            ages: number of these rounds, [R].
            rng: generator of the draws.
        """
        rates = self.rates + ages[:, None]
        return rng.gamma(SHAPE, size=numbers.sum()) / np.repeat(rates.ravel(), numbers.ravel())


@njit(nogil=True)
def chosen(cumulated, row, draw):
    """Returns the first column [Q] in which the cumulated shares of a row [Q] exceed a draw [Q], or
    the last one."""
    found = np.empty(row.size, np.int64)
    for q in range(row.size):
        j = 0
        while j < cumulated.shape[1] - 1 and cumulated[row[q], j] <= draw[q]:
            j += 1
        found[q] = j
    return found
