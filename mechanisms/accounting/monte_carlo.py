"""Monte Carlo bounds on epsilon where each device takes part at random rounds.

A device's rounds are a random pattern a, independent of those of others, and C has no negative
entry. Then P = E_a[N(C a / z, I)] against Q = N(0, I) dominates, in both directions, every device
and every adaptive choice of its updates. Proof, backward over the releases: the likelihood ratio is
a mean of exponentials of Gaussian variables whose covariances grow with the inner products of the
updates, which are largest if all updates are the same unit vector, and the mean of a convex
function of such a ratio grows with the covariances (Kahane 1986, "Sur le chaos multiplicatif").

For P against Q and L = log P / Q, with x from P and E an exponential variable of mean 1,

    delta(epsilon) = P(L - E > epsilon),    Q(L > t) = e^-t P(L - E < t < L),

so exact binomial confidence bounds (Clopper and Pearson 1934) on counts of draws bound delta, and
the tail of L under Q at some thresholds. There x is Gaussian and L a function with gradient at most
a, the largest norm of C a / z, so that the probit of Q(L <= t) rises at least at the rate 1 / a
(Borell 1975; Sudakov and Tsirelson 1974). This bounds the tail beyond every threshold, and with it
delta(epsilon) = integral of e^t Q(L > t) from epsilon, however small delta is. For Q against P the
same holds of -L, with x from Q and delta(epsilon) = integral of e^(epsilon - t) Q(-L > t).
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedray.base.arrays import Float64Array, Int64Array
from .events import Event, EventRefused, MinSepSampled
from .limits import check_delta

FALSE_ALARM = 1e-6
"""Largest probability, over the draws, that a bound is below the true value."""
BY_DRAWS = (
    "The epsilon is a bound by Monte Carlo; random draws leave it too small with a probability of "
    f"at most {FALSE_ALARM:g}."
)
"""Condition of a bound, as a sentence."""
DRAWS = 1 << 18
"""Default number of draws in each direction."""
BATCH = 2048
"""Draws that share a random generator."""
_THRESHOLDS = 24
_SLACK = 1e-9
"""Allowance for the rounding of a loss."""
_GRID = 4096
"""Points of the upper sums of integrals."""


class BinLosses:
    """Draws losses L = log P / Q of random allocation: a device's first round is uniform in 0..b-1,
    and it takes part in every b-th round from there (Chua et al. 2024, "Balls-and-Bins Sampling").

    Only the inner products of the b means matter, so a draw has b dimensions.
    """

    def __init__(self, columns: Float64Array, min_sep: int) -> None:
        self._gram = allocation_gram(columns, min_sep)
        self._half_squares = np.diag(self._gram) / 2.0
        values, vectors = np.linalg.eigh(self._gram)
        # The log likelihood ratio of N(m, I) and N(0, I) at x is <x, m> - |m|^2 / 2. The products
        # <x, m_k> are Gaussian with the Gram matrix as covariance, whatever the number of rows.
        self._root = (vectors * np.sqrt(np.maximum(values, 0.0))).T
        self.lipschitz = math.sqrt(2.0 * float(self._half_squares.max()))
        """a, the largest norm of C a / z."""

    def draw(self, random: np.random.Generator, size: int, is_present: bool) -> Float64Array:
        """Returns L at `size` points from P (the device is present) or from Q."""
        bins = self._half_squares.size
        products = random.standard_normal((size, bins)) @ self._root - self._half_squares
        if is_present:
            products += self._gram[random.integers(bins, size=size)]
        return _log_mean_exp(products, np.full(bins, 1.0 / bins))


def _log_mean_exp(losses: Float64Array, shares: Float64Array) -> Float64Array:
    """Returns log sum_k shares[k] e^losses[:, k] for losses [N, K]."""
    largest = losses.max(axis=1)
    return largest + np.log(np.exp(losses - largest[:, None]) @ shares)


def allocation_gram(columns: Float64Array, min_sep: int) -> Float64Array:
    """Returns the inner products of the means of random allocation, [b, b].

    Args:
        columns: C / z, [rows, rounds].
        min_sep: b.
    """
    starts = range(min(min_sep, columns.shape[1]))
    means = np.stack([columns[:, start::min_sep].sum(axis=1) for start in starts], axis=1)
    # A device whose first round never comes takes part in none.
    means = np.pad(means, ((0, 0), (0, min_sep - len(starts))))
    return means.T @ means


class PathLosses:
    """Draws losses of b-min-sep sampling with at most b bands.

    Columns of rounds b apart are orthogonal, so the likelihood ratio of a device that is free in
    round t is V_t = (1 - p) V_(t+1) + p e^(l_t) V_(t+b), where l_t is the loss of round t.
    """

    def __init__(self, columns: Float64Array, min_sep: int, probability: float) -> None:
        from scipy.sparse import csr_array

        self._columns: csr_array = csr_array(columns)
        self._rows = columns.shape[0]
        self._min_sep, self._probability = min_sep, probability
        squares = (columns**2).sum(axis=0)
        self._half_squares = squares / 2.0
        self._rounds = squares.size
        most = np.zeros(self._rounds + min_sep)
        for t in reversed(range(self._rounds)):
            most[t] = max(most[t + 1], squares[t] + most[t + min_sep])
        self.lipschitz = math.sqrt(float(most[0]))

    def draw(self, random: np.random.Generator, size: int, is_present: bool) -> Float64Array:
        points = random.standard_normal((self._rows, size))
        if is_present:
            points += self._columns @ self._patterns(random, size)
        losses = self._columns.T @ points - self._half_squares[:, None]
        b, p = self._min_sep, self._probability
        from_round = np.zeros((self._rounds + b, size))
        for t in reversed(range(self._rounds)):
            takes_part = math.log(p) + losses[t] + from_round[t + b]
            waits = math.log1p(-p) + from_round[t + 1] if p < 1.0 else -np.inf
            from_round[t] = np.logaddexp(waits, takes_part)
        # A cycle is 1 / p free rounds on average, of which the last takes part, and b - 1 rounds of
        # waiting.
        # The stationary state: free, or with 1 to b - 1 rounds to wait.
        shares = np.full(b, p / (1.0 + (b - 1) * p))
        shares[0] = 1.0 / (1.0 + (b - 1) * p)
        return _log_mean_exp(from_round[:b].T, shares)

    def _patterns(self, random: np.random.Generator, size: int) -> Float64Array:
        """Returns whether each of `size` devices takes part in each round, [rounds, size]."""
        b, p = self._min_sep, self._probability
        is_free = random.random(size) * (1.0 + (b - 1) * p) < 1.0
        waits = np.where(is_free, 0, random.integers(1, max(b, 2), size=size))
        takes_part = np.zeros((self._rounds, size))
        for t in range(self._rounds):
            here = (waits <= 0) & (random.random(size) < p)
            takes_part[t] = here
            waits = np.where(here, b - 1, waits - 1)
        return takes_part


LossSampler = BinLosses | PathLosses


@dataclass(frozen=True, slots=True)
class LossTail:
    """Upper confidence bounds on delta, and on a tail of the loss, in one direction."""

    is_present: bool
    """Whether the direction is P against Q."""
    lipschitz: float
    thresholds: Float64Array
    """[K], increasing."""
    deltas: Float64Array
    """Bound on delta(threshold), [K]."""
    tails: Float64Array
    """Bound on the probability of a loss above the threshold for a Gaussian x, [K]."""

    def delta(self, epsilon: float) -> float:
        """Returns a bound on delta(epsilon)."""
        below = self.deltas[self.thresholds <= epsilon]
        return float(min(1.0, below.min(initial=1.0), self._integral(epsilon)))

    def _integral(self, epsilon: float) -> float:
        """Integrates the bound on the tail, by an upper sum."""
        from scipy.special import ndtr, ndtri

        a = self.lipschitz
        # The probit of a tail is at least t / a + intercept beyond each threshold.
        intercepts = np.maximum.accumulate(-ndtri(self.tails) - self.thresholds / a)
        end = max(epsilon, self.thresholds[-1]) + (40.0 + a) * a
        t = np.linspace(epsilon, end, _GRID)
        place = np.searchsorted(self.thresholds, t, side="right") - 1
        tail = np.where(place < 0, 1.0, ndtr(-(t / a + intercepts[np.maximum(place, 0)])))
        # The end is 40 standard deviations out; what is left is below the smallest float.
        if self.is_present:
            # Markov: E_Q[e^L] = 1.
            tail = np.minimum(tail, np.exp(-np.maximum(t, 0.0)))
            # In this order nothing overflows: e^t (e^step - 1).
            weights = np.exp(t[:-1]) * math.expm1(t[1] - t[0])
        else:
            weights = np.exp(epsilon - t[:-1]) * -math.expm1(t[0] - t[1])
        return float(tail[:-1] @ weights)


@dataclass(frozen=True, slots=True)
class LossTails:
    """Bounds of both directions, which hold together with probability 1 - FALSE_ALARM."""

    tails: tuple[LossTail, LossTail]

    def delta(self, epsilon: float) -> float:
        """Returns an upper bound on delta(epsilon), the larger of both directions."""
        return max(tail.delta(epsilon) for tail in self.tails)

    def epsilon(self, delta: float) -> float:
        """Returns the least epsilon whose bound is at most `delta`, to within 1e-6 above it."""
        low, high = 0.0, 1.0
        if self.delta(low) <= delta:
            return 0.0
        while self.delta(high) > delta:
            low, high = high, 2.0 * high
        while high - low > 1e-6:
            middle = (low + high) / 2.0
            low, high = (low, middle) if self.delta(middle) <= delta else (middle, high)
        return high


def monte_carlo_epsilon(event: Event, delta: float) -> float:
    """Returns an upper bound on epsilon at `delta` that holds with probability 1 - FALSE_ALARM over
    its draws, whose seed is fixed.

    Raises:
        EventRefused: the event is not a strategy under b-min-sep sampling, or nothing is proven.
        InputError: delta is outside [1e-30, 1).
    """
    check_delta(delta)
    if not isinstance(event, MinSepSampled):
        raise EventRefused(
            f"a {event.kind} event has no random pattern of rounds; use the accountant renyi"
        )
    return loss_tails(event).epsilon(delta)


@lru_cache(maxsize=16)
def loss_tails(event: MinSepSampled, draws: int = DRAWS, seed: int = 0) -> LossTails:
    """Draws losses in both directions.

    Args:
        event: strategy and sampling.
        draws: number of draws in each direction, rounded up to whole batches.
        seed: seed of the draws.

    Raises:
        EventRefused: C has negative entries, or too many bands.
    """
    sampler = loss_sampler(event)
    count = -(-draws // BATCH)
    present, absent = (_tail(sampler, here, count, seed) for here in (True, False))
    return LossTails((present, absent))


def columns_of(event: MinSepSampled) -> Float64Array:
    """Returns C / z, [rows, rounds]. Raises EventRefused if an entry is negative."""
    columns = event.strategy.definition(event.rounds) / event.noise_multiplier
    if columns.min() < 0.0:
        raise EventRefused(
            f"a {event.strategy.kind} strategy with negative entries: no dominating pair is proven "
            "for random rounds; use a mechanism without any"
        )
    return columns


@lru_cache(maxsize=4)
def loss_sampler(event: MinSepSampled) -> LossSampler:
    """Returns the sampler of an event's losses. Raises EventRefused."""
    columns = columns_of(event)
    if event.probability == 1.0:
        return BinLosses(columns, event.min_sep)
    bands = event.strategy.diagonals(event.rounds)
    if bands > event.min_sep:
        raise EventRefused(
            f"a {event.strategy.kind} strategy of {bands} bands with min_sep={event.min_sep}: the "
            "privacy loss is known for at most min_sep bands, or with probability=1"
        )
    return PathLosses(columns, event.min_sep, event.probability)


def _tail(sampler: LossSampler, is_present: bool, count: int, seed: int) -> LossTail:
    from scipy.special import betainccinv

    thresholds = _pilot(sampler, is_present, count, seed)
    found = _counts(sampler, is_present, thresholds, count, seed)
    draws = count * BATCH
    # Both directions have two counts at each threshold.
    share = FALSE_ALARM / (4 * thresholds.size)
    # The upper end of Clopper and Pearson for k of n is a quantile of Beta(k + 1, n - k).
    bounds = betainccinv(found + 1.0, np.maximum(draws - found, 1e-300), share)
    deltas, tails = np.where(found < draws, bounds, 1.0)
    if is_present:
        tails = np.minimum(tails * np.exp(-thresholds), 1.0)
    return LossTail(is_present, sampler.lipschitz, thresholds, deltas, tails)


def _counts(
    sampler: LossSampler, is_present: bool, thresholds: Float64Array, count: int, seed: int
) -> Int64Array:
    """Counts the draws of delta and of the tail above each threshold, [2, K]."""
    deltas, tails = np.zeros((2, thresholds.size), np.int64)
    for batch in range(count):
        random = np.random.default_rng([seed, is_present, batch])
        loss = _loss(sampler, random, is_present)[:, None]
        less = loss - random.exponential(size=BATCH)[:, None]
        deltas += np.count_nonzero(less > thresholds, axis=0)
        is_above = loss > thresholds
        if is_present:
            is_above &= less <= thresholds
        tails += np.count_nonzero(is_above, axis=0)
    return np.stack([deltas, tails])


def _pilot(sampler: LossSampler, is_present: bool, count: int, seed: int) -> Float64Array:
    """Returns thresholds from draws of their own: the bounds need ones that are fixed."""
    from scipy.special import ndtr, ndtri

    batches = max(4, count // 16)
    losses = np.sort(
        np.concatenate(
            [
                _loss(sampler, np.random.default_rng([seed, is_present, k, 1]), is_present)
                for k in range(batches)
            ]
        )
    )
    # Heuristic, and harmless: thresholds decide how tight the bound is, and never whether it holds.
    # Evenly spaced on the scale of the normal law; 16 draws are expected above the last one.
    probits = np.linspace(-2.5, -ndtri(16.0 / (count * BATCH)), _THRESHOLDS)
    # The pilot has too few draws for the last ones, which continue its line.
    last, before = -ndtri([32.0 / losses.size, 512.0 / losses.size])
    found = np.quantile(losses, ndtr(np.array([*np.minimum(probits, last), before])))
    slope = (found[-2] - found[-1]) / (last - before)
    return np.maximum.accumulate(found[:-1] + slope * np.maximum(probits - last, 0.0))


def _loss(sampler: LossSampler, random: np.random.Generator, is_present: bool) -> Float64Array:
    losses = sampler.draw(random, BATCH, is_present)
    return (losses if is_present else -losses) + _SLACK
