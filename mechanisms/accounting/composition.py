"""Epsilon of many Poisson-sampled Gaussians: an upper bound that is tight for every delta.

The privacy loss of a step is L(x) = log(1 - q + q e^y), y = (2 x - 1) / (2 z^2). If a device's data
are removed, x is from the mixture (1 - q) N(0, z^2) + q N(1, z^2), and the loss is L. If they are
added, x is from N(0, z^2), and the loss is -L. The result is the larger epsilon of the two.

1. Losses are rounded to multiples of h. The probability of each value is split between its two
   neighbours so that its probability under the other distribution is preserved ("connect the
   dots", Doroshenko et al. 2022). The rounded pair dominates the true one. Epsilon grows by about
   n v (f + 1) / 2, where v <= h^2 / 4 is the variance that rounding adds to a loss, and f is the
   rate at which log of -delta'(epsilon) falls; h shrinks until this is `TIGHTNESS` of epsilon.
   Losses below the grid move to its lower end. Losses above the grid are charged to delta.
2. The distribution of the sum of n losses is computed by FFT of the tilted probabilities
   p_i e^(s l_i) / M(s). The rounding of an FFT is relative to its largest value, which for plain
   probabilities hides everything below 1e-16. With the right s, the largest value is near the sums
   that determine delta. Sums outside the FFT's window are charged by Chernoff's bound.
3. Rounding of floating point is charged, too (`_MASS_ERROR`, `_PLACE_ERROR`, `_fft_error`). These
   bounds are from error analysis, not from interval arithmetic.

Two effects make the result larger than necessary, never smaller. If samples are rare and epsilon is
small, sums near epsilon have little of the tilted probability, and a finer grid raises `_fft_error`
relative to it; so the result is the minimum over all grids. And `MOST_POINTS` limits h.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from fedray.base.arrays import Float64Array
from .gdp import gaussian_epsilon

TIGHTNESS = 2.5e-4
"""Approximate relative increase of epsilon allowed for the rounding of losses."""
MOST_POINTS = 1 << 21
"""Largest number of points in the window; they take 300 MB."""

_CHARGED = 1e-7
"""Share of delta charged for losses above the grid, and the same share again for sums outside the
window."""
_MASS_ERROR = 1e-12
"""Bound on the relative error of a probability, from quadrature and rounding."""
_PLACE_ERROR = 1e-8
"""Bound on the error of a loss in grid steps, from rounding of at most 4e6 steps."""
_PANEL = 0.0625
"""Largest panel of the quadrature, in standard deviations of x. Panels are also limited to z / 2,
so that y changes by half. Six nodes then integrate the density, and its shares of a cell, to 1e-14.
"""
_COARSER = 4.0
"""Step of the grid for choosing s, relative to the grid in use."""
_SCANNED = 1 << 16
"""Number of points below which a window chooses a new s for each finer grid."""
_CHUNK = 1 << 16
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(6)


class _Step(NamedTuple):
    """One sampled Gaussian with x in a range."""

    probability: float
    """q, probability that the device is sampled."""
    noise_multiplier: float
    """z, noise multiplier."""
    tail: float
    """Bound on the probability below `low`, and above `high`, of each distribution."""
    low: float
    high: float

    def loss(self, x: Float64Array) -> Float64Array:
        """Returns L(x) with small relative error."""
        q = self.probability
        y = (2.0 * x - 1.0) / (2.0 * self.noise_multiplier**2)
        if q == 1.0:
            return y
        # Above 500 the other terms are negligible, and the exponential would soon overflow.
        return np.where(y < 500.0, np.log1p(q * np.expm1(np.minimum(y, 500.0))), math.log(q) + y)

    def place(self, loss: Float64Array) -> Float64Array:
        """Returns the x of a loss, or minus infinity for a loss below all losses."""
        q = self.probability
        if q == 1.0:
            return 0.5 + self.noise_multiplier**2 * loss
        with np.errstate(divide="ignore", invalid="ignore"):
            small = np.log1p(np.maximum(np.expm1(np.minimum(loss, 500.0)) / q, -1.0))
        return 0.5 + self.noise_multiplier**2 * np.where(loss < 500.0, small, loss - math.log(q))


@dataclass(frozen=True, slots=True)
class _Losses:
    """Distribution of the rounded loss of one step."""

    start: int
    """Smallest loss, in steps."""
    interval: float
    """h, the step."""
    probabilities: Float64Array
    """Probabilities of the losses (start + 0 .. m - 1) h, [m]."""
    variances: Float64Array
    """Variance that rounding adds, by loss, [m]; the total is their sum."""

    def log_moment(self, order: float) -> float:
        """Returns log M(s) = log E[e^(s L)]."""
        exponents = order * self.interval * (self.start + np.arange(self.probabilities.size))
        top = float(exponents[self.probabilities > 0].max())
        return top + math.log(float(self.probabilities @ np.exp(np.minimum(exponents - top, 0.0))))


class _Bound(NamedTuple):
    """An upper bound on epsilon."""

    epsilon: float
    rounding: float
    """Estimated part of epsilon that is due to the rounding of losses."""
    points: float
    """Number of points in the window."""


def composed_epsilon(
    probability: float, noise_multiplier: float, count: int, delta: float
) -> float:
    """Returns an upper bound on epsilon of `count` Poisson-sampled Gaussians, under zero-out of one
    device.

    It is never below the true epsilon. Its excess was measured against a lower bound, for q from
    1e-6 to 0.2, z from 0.3 to 5, n up to 20,000, delta from 1e-13 to 1e-5 and at most n q / 10, and
    epsilon above q. It is at most a relative 1e-3, or 1e-2 if n q is below 0.05 and n above 1;
    larger if it would need more than `MOST_POINTS`.

    Args:
        probability: q, above 0 and at most 1.
        noise_multiplier: z, from 0.01 to 1e6, at sensitivity 1.
        count: n, at least 1.
        delta: at least 1e-30, below 1.
    """
    # If a device is sampled with probability at most delta, delta covers everything it does.
    is_ever_sampled = -math.expm1(count * math.log1p(-probability)) if probability < 1.0 else 1.0
    if is_ever_sampled * (1.0 + 1e-12) <= delta:
        return 0.0
    step = _step(probability, noise_multiplier, _CHARGED * delta / count)
    if count == 1:
        removing = _once(probability, noise_multiplier, delta)
    else:
        removing = _refined(step, 1, count, delta, 0.0)
    # The loss of adding is at most -log(1 - q) per step.
    largest = -count * math.log1p(-probability) * (1.0 + 1e-12) if probability < 1.0 else math.inf
    if largest <= removing:
        return removing
    return max(removing, min(largest, _refined(step, -1, count, delta, removing)))


def _once(probability: float, noise_multiplier: float, delta: float) -> float:
    """Returns epsilon of a single step with a device's data removed, rounded up.

    The excess of the mixture over e^eps N(0, z^2) is q times the excess of N(1, z^2) over (e^eps -
    1 + q) / q N(0, z^2); so delta is q times that of the Gaussian at log(1 + (e^eps - 1) / q).
    """
    q = probability
    if delta >= q:
        return 0.0
    of_gaussian = gaussian_epsilon(1.0 / noise_multiplier, delta / q)
    # Above 500 the exponential would soon overflow, and the other terms are negligible.
    if of_gaussian > 500.0:
        return (math.log(q) + of_gaussian) * (1.0 + 1e-15)
    return math.log1p(q * math.expm1(of_gaussian)) * (1.0 + 1e-15)


def _refined(step: _Step, sign: int, count: int, delta: float, enough: float) -> float:
    """Returns an upper bound for removing, or for adding if sign is -1: at most `enough`, or tight.

    Every grid gives an upper bound; the result is their minimum.
    """
    order, estimate = _chernoff(step, count, delta, sign)
    # `enough` is the epsilon of the other direction. The grid is fitted to it, because it suffices
    # to show that this direction is not larger.
    guess = (1.0 / enough, enough) if enough else (order, max(estimate, 1.0 / order))
    wanted, least = _interval(*guess, count), 0.0
    best, s, points = math.inf, 0.0, 0.0
    while True:
        # Choosing s takes several coarse compositions, so with many points s stays; every s gives
        # a valid bound.
        if points < _SCANNED:
            coarse = _rounded_losses(step, _COARSER * max(least, wanted), sign)
            s, rough = _best_order(coarse, order, count, delta)
            best = min(best, rough)
        losses = _rounded_losses(step, max(least, wanted), sign)
        h = losses.interval
        least = max(least, h if h > wanted else 0.0)
        found = _epsilon(losses, s, count, delta)
        best, points = min(best, found.epsilon), found.points
        if best <= enough:
            return best
        if found.points > MOST_POINTS:
            # The number of points is nearly inverse to the step; 5 % allow for the difference.
            least = 1.05 * found.points / MOST_POINTS * h
            continue
        excess = found.rounding / (TIGHTNESS * found.epsilon)
        if excess <= 1.5 or h <= least:
            return best
        # The error grows with h^2. The cap keeps a bad estimate from refining the grid too far.
        wanted = h / min(math.sqrt(excess), _COARSER)


def _best_order(losses: _Losses, order: float, count: int, delta: float) -> tuple[float, float]:
    """Returns (s, its epsilon) for the largest s with nearly the least epsilon, which needs the
    fewest points.

    Every s gives an upper bound. Chernoff's `order` is too large if large losses are rare, and far
    below it rounding hides the upper sums. So s decreases until epsilon no longer does.
    """
    best, gained_nothing = (order, math.inf), 0
    for power in range(12):
        s = order * 0.8**power
        epsilon = _epsilon(losses, s, count, delta).epsilon
        if epsilon < best[1] * (1.0 - TIGHTNESS):
            best, gained_nothing = (s, epsilon), 0
        elif math.isfinite(best[1]):
            gained_nothing += 1
        if gained_nothing == 2:
            break
    return best


def _step(probability: float, noise_multiplier: float, tail: float) -> _Step:
    # Imported here, because it takes 0.2 s.
    from scipy.special import ndtri

    z = noise_multiplier
    low = z * float(ndtri(tail))
    without = -z * float(ndtri(tail / 2.0))
    # The upper tail of the mixture is that of q N(1, z^2) and that of N(0, z^2); half of `tail` is
    # for each.
    own = 1.0 - z * float(ndtri(min(0.5, tail / (2.0 * probability))))
    return _Step(probability, z, tail, low, max(own, without))


def _interval(order: float, epsilon: float, count: int) -> float:
    """Returns the h for which n (s + 1) h^2 / 8 is `TIGHTNESS` of epsilon."""
    return math.sqrt(8.0 * TIGHTNESS * epsilon / (count * (order + 1.0)))


def _chernoff(step: _Step, count: int, delta: float, sign: int) -> tuple[float, float]:
    """Returns (s, epsilon) at the minimum of (n log M(s) + log(1 / delta)) / s, precise enough to
    choose s and a grid."""
    edges = np.linspace(step.low, step.high, 2001)
    x = 0.5 * (edges[1:] + edges[:-1])
    losses = sign * step.loss(x)
    with np.errstate(divide="ignore"):
        logs = np.log((edges[1] - edges[0]) * _densities(step, x)[0 if sign > 0 else 1])
    bounds = [
        (
            (count * float(np.logaddexp.reduce(logs + order * losses)) - math.log(delta)) / order,
            order,
        )
        for order in np.exp(np.arange(-14.0, 14.0, 0.25)) / losses.max()
    ]
    epsilon, order = min(bounds)
    return float(order), max(epsilon, 0.0)


def _densities(step: _Step, x: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Returns the densities of the mixture and of N(0, z^2)."""
    q, z = step.probability, step.noise_multiplier
    scale = 1.0 / (z * math.sqrt(2.0 * math.pi))
    without = scale * np.exp(-0.5 * (x / z) ** 2)
    own = scale * np.exp(-0.5 * ((x - 1.0) / z) ** 2)
    return (1.0 - q) * without + q * own, without


def _rounded_losses(step: _Step, interval: float, sign: int) -> _Losses:
    """Returns the losses of one step with a device's data removed, or added if sign is -1."""
    least, most = (float(each) for each in step.loss(np.array([step.low, step.high])))
    # A finer grid would have more points than the window.
    h = max(interval, (most - least) / MOST_POINTS)
    start, end = math.floor(least / h) - 1, math.ceil(most / h) + 1
    # The edges of the cells, in x.
    cells = step.place(h * np.arange(start, end + 1, dtype=np.float64))
    panel = step.noise_multiplier * min(_PANEL, 0.5 * step.noise_multiplier)
    even = np.linspace(step.low, step.high, math.ceil((step.high - step.low) / panel) + 1)
    inner = cells[(cells > step.low) & (cells < step.high)]
    # Each panel of the quadrature is within one cell, so its probability is split between the same
    # two losses.
    edges = np.unique(np.concatenate([inner, even]))
    found, variances = np.zeros(end - start + 1), np.zeros(end - start + 1)
    for first in range(0, edges.size - 1, _CHUNK):
        left, right = (each[first : first + _CHUNK] for each in (edges[:-1], edges[1:]))
        half = 0.5 * (right - left)
        middle = 0.5 * (right + left)
        # A cell has losses from (start + cell) h to one step more.
        cell = np.searchsorted(cells, middle) - 1
        x = middle[:, None] + half[:, None] * _NODES
        above = step.loss(x) - (start + cell[:, None]) * h
        density = _densities(step, x)[0 if sign > 0 else 1]
        probability = half[:, None] * _WEIGHTS * density
        # The share of the larger neighbour (for adding, whose losses are -L, the lower one)
        # preserves the probability under the other distribution, e^-loss: Doroshenko et al. 2022.
        excess = above if sign > 0 else h - above
        raised = probability * np.clip(np.expm1(-excess) / math.expm1(-h), 0.0, 1.0)
        kept = probability - raised
        variance = np.maximum(probability * above * (h - above), 0.0).sum(axis=1)
        variances += np.bincount(cell, variance, found.size)
        to_this, to_next = (kept, raised) if sign > 0 else (raised, kept)
        found += np.bincount(cell, to_this.sum(axis=1), found.size)
        found += np.bincount(cell + 1, to_next.sum(axis=1), found.size)
    # Adding negates the losses, which reverses their order.
    if sign < 0:
        start, found, variances = -end, found[::-1].copy(), variances[::-1].copy()
    # Losses below `low` are raised to a loss of the grid that is not below them.
    found[2] += step.tail
    return _Losses(start, h, found, variances)


def _epsilon(losses: _Losses, s: float, count: int, delta: float) -> _Bound:
    """Returns a bound on epsilon of n losses with the tilt s; infinity if the window has more than
    `MOST_POINTS`."""
    from scipy.fft import irfft, next_fast_len, rfft

    h = losses.interval
    log_moment = losses.log_moment(s)
    budget = math.log(delta) + math.log1p(-2.0 * _CHARGED) - (count + 100) * _MASS_ERROR
    # By Chernoff's bound every f gives a valid end of the window; the narrowest is used.
    top = min(
        (count * losses.log_moment(f * s) - math.log(_CHARGED * delta)) / (f * s)
        for f in (1.0, 1.2, 1.5, 2.0, 3.0)
    )
    bottom = max(
        (-30.0 - count * (losses.log_moment(s - f * s) - log_moment)) / (f * s)
        for f in (0.3, 0.6, 1.0, 1.5, 2.5, 5.0)
    )
    first = math.floor(bottom / h)
    if top / h - first > MOST_POINTS:
        return _Bound(math.inf, math.inf, top / h - first)
    points = cast(int, next_fast_len(max(8, math.ceil(top / h) - first + 2), real=True))
    places = losses.start + np.arange(losses.probabilities.size)
    # Exponents above 700 occur only if the probability is 0.
    tilts = np.exp(np.minimum(s * h * places - log_moment, 700.0))
    tilted = np.bincount(places % points, losses.probabilities * tilts, points)
    # Long double, because the power multiplies the relative error by n; see `_fft_error`.
    transform: NDArray[np.clongdouble] = np.asarray(rfft(tilted.astype(np.longdouble)))
    powers: NDArray[np.clongdouble] = transform**count
    # Each entry is raised by its largest possible rounding error, and is at least zero.
    sums = np.maximum(np.asarray(irfft(powers, points), np.float64), 0.0) + _fft_error(
        transform, count
    )
    # The sums are modulo the number of points; this puts the value `first` in front.
    sums = np.roll(sums, -(first % points))
    values = (first + np.arange(points)) * h
    beyond = 1e-26 * float(sums.sum())

    def log_delta(epsilon: float) -> float:
        """Returns log of the sum over l > epsilon of M(s)^n e^(-s l) t_l (1 - e^(epsilon - l)),
        with a bound on the terms with s l > 60 + s epsilon."""
        begin, end = np.searchsorted(values, [epsilon, epsilon + 60.0 / s], side="right")
        above = values[begin:end] - epsilon
        weighed = float(sums[begin:end] @ (np.exp(-s * above) * -np.expm1(-above)))
        return count * log_moment - s * epsilon + math.log(weighed + beyond)

    def log_slope(epsilon: float) -> float:
        """Returns log of -delta'(epsilon): as `log_delta`, with e^(epsilon - l) as last factor."""
        begin, end = np.searchsorted(values, [epsilon, epsilon + 60.0 / s], side="right")
        weighed = float(sums[begin:end] @ np.exp(-(s + 1.0) * (values[begin:end] - epsilon)))
        return count * log_moment - s * epsilon + math.log(weighed + beyond)

    # Errors of the positions of losses add up over the steps.
    moved = count * h * _PLACE_ERROR
    low, high = -moved, max(top, 0.0)
    # Here delta is met at epsilon 0.
    if log_delta(low) <= budget:
        return _Bound(0.0, 0.0, points)
    while (
        high - low > 1e-3 * TIGHTNESS * (high + moved)
        and low < (middle := 0.5 * (low + high)) < high
    ):
        low, high = (middle, high) if log_delta(middle) > budget else (low, middle)
    # Rounding adds n v to the variance, and half as much to the mean: delta(epsilon) grows by n v
    # (delta'' - delta') / 2. -delta' is the probability of a loss above epsilon under the other
    # distribution. The variance is at least that of one step, because if samples are rare, few
    # tilted losses reach epsilon.
    variance = max(count * float(losses.variances @ tilts), 0.25 * h * h)
    span = 2.0 * h + 0.01 * high
    fall = max((log_slope(high) - log_slope(high + span)) / span, 0.0)
    # The upper end of the bracket, so that the result is an upper bound.
    return _Bound(high + moved, 0.5 * variance * (fall + 1.0), points)


def _fft_error(transform: NDArray[np.clongdouble], count: int) -> float:
    """Returns a bound on the rounding error of an entry of the composed tilted probabilities, whose
    sum is 1.

    A transform of N numbers adds each of them once, in log2(N) steps, so the error of each entry is
    at most 8 log2(N) ulp of the sum of their sizes (Higham 2002, section 24.1, with the 1-norm).
    Raising to the n-th power multiplies the error of an entry f by n |f|^(n-1). The inverse
    transform has the same bound, with the mean over all entries.
    """
    ulp = float(np.finfo(np.longdouble).eps)
    points = 2 * transform.size
    forward = 8.0 * math.log2(points) * ulp
    sizes = np.minimum(np.abs(transform), 1.0).astype(np.float64) + forward
    mean = 2.0 * float((sizes ** (count - 1)).sum()) / (points - 2)
    return (count * (forward + 16.0 * ulp) + forward) * mean
