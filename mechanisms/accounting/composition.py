"""Epsilon of many Poisson-sampled Gaussians: an upper bound that is tight, and relatively accurate
however small delta is.

One step's privacy loss is L(x) = log(1 - q + q e^y), y = (2 x - 1) / (2 z^2). Removing a device's
data: x from the mixture (1 - q) N(0, z^2) + q N(1, z^2), loss L. Adding it: x from N(0, z^2), loss
-L. The larger epsilon of the two is returned.

1. Losses are rounded to multiples of h so that each value's probability is split between its two
   neighbours and the other distribution's probability is kept ("connect the dots", Doroshenko et
   al. 2022): the rounded pair dominates the true one, and epsilon grows by about n (s + 1) h^2 / 8.
   The least loss takes what is below, and a probability that is charged to delta is above all
   losses.
2. Sums of n losses are found by FFT of the tilted probabilities p_i e^(s l_i) / M(s). An FFT's
   rounding is relative to the largest value, which for the plain probabilities hides everything
   below 1e-16; tilted by the right s, the largest value is where the sum decides delta. What lies
   beyond the FFT's window is charged by Chernoff's bound.
3. Everything that floating point may have lost is charged (`_MASS_ERROR`, `_PLACE_ERROR`,
   `_fft_error`).
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

TIGHTNESS = 2.5e-4
"""Relative; about how far above the least epsilon the rounding of losses may take the result, where
`MOST_POINTS` allows it."""
MOST_POINTS = 1 << 21
"""Of the window: 300 MB. With fewer than a result needs, it is larger than it could be, but not
wrong."""

_CHARGED = 1e-7
"""Share of delta that is given up for each: losses beyond the largest, sums beyond the window."""
_MASS_ERROR = 1e-12
"""Relative, of a probability: bounds the quadrature (3e-13) and rounding."""
_PLACE_ERROR = 1e-8
"""Of a loss, in steps of the grid: bounds the rounding of at most 4e6 steps."""
_PANEL = 0.125
"""Widest panel of the quadrature, in standard deviations of x: six nodes integrate the density to
3e-13 there."""
_COARSER = 4.0
"""Steps of the grid on which s is chosen, in steps of the grid that is used."""
_CHUNK = 1 << 16
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(6)


class _Step(NamedTuple):
    """One sampled Gaussian: q, z; x from `low` to `high`; of each distribution at most `tail` is
    below and above."""

    probability: float
    noise_multiplier: float
    tail: float
    low: float
    high: float

    def loss(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """L(x), relatively accurate also where it is small."""
        q, y = self.probability, (2.0 * x - 1.0) / (2.0 * self.noise_multiplier**2)
        if q == 1.0:
            return y
        return np.where(y < 500.0, np.log1p(q * np.expm1(np.minimum(y, 500.0))), math.log(q) + y)

    def place(self, loss: NDArray[np.float64]) -> NDArray[np.float64]:
        """The x of a loss; minus infinity where no loss is so low."""
        q = self.probability
        if q == 1.0:
            return 0.5 + self.noise_multiplier**2 * loss
        with np.errstate(divide="ignore", invalid="ignore"):
            small = np.log1p(np.maximum(np.expm1(np.minimum(loss, 500.0)) / q, -1.0))
        return 0.5 + self.noise_multiplier**2 * np.where(loss < 500.0, small, loss - math.log(q))


@dataclass(frozen=True, slots=True)
class _Losses:
    """Rounded losses of one step: probabilities [m] of (start + 0 .. m - 1) h."""

    start: int
    interval: float
    probabilities: NDArray[np.float64]

    def log_moment(self, order: float) -> float:
        """log M(s) = log E[e^(s L)]."""
        exponents = order * self.interval * (self.start + np.arange(self.probabilities.size))
        top = float(exponents[self.probabilities > 0].max())
        return top + math.log(float(self.probabilities @ np.exp(np.minimum(exponents - top, 0.0))))


def composed_epsilon(
    probability: float, noise_multiplier: float, count: int, delta: float
) -> float:
    """An upper bound on epsilon at `delta` of `count` Gaussians of sensitivity 1, each
    Poisson-sampled; zero-out of one device.

    Args:
        probability: q, above 0 and at most 1.
        noise_multiplier: z, from 0.01 to 1e6.
        count: n, at least 1.
        delta: from 1e-30 to below 1.

    Returns:
        Never less than the true epsilon; about a thousandth more, or one or two hundredths where
        samples are rare; still more where a thousandth would need more than `MOST_POINTS`.
    """
    step = _step(probability, noise_multiplier, _CHARGED * delta / count)
    bounds = [_chernoff(step, count, delta, sign) for sign in (1, -1)]
    wanted = max(_interval(*bound, count) for bound in bounds)
    coarse = _rounded_losses(step, _COARSER * wanted)
    orders = [
        _best_order(each, bound[0], count, delta)
        for each, bound in zip(coarse, bounds, strict=True)
    ]
    least = 0.0
    while True:
        losses = _rounded_losses(step, max(least, wanted))
        h = losses[0].interval
        least = max(least, h if h > wanted else 0.0)
        found = [
            _epsilon(each, order, count, delta) for each, order in zip(losses, orders, strict=True)
        ]
        if (
            excess := max(points for _, points in found) / MOST_POINTS
        ) > 1.0:  # the window does not fit: coarser
            least = 1.05 * excess * h
            continue
        epsilon, order = max(
            (value, order) for (value, _), order in zip(found, orders, strict=True)
        )
        wanted = _interval(order, epsilon, count)
        if epsilon == 0.0 or h <= max(1.2 * wanted, least):
            return epsilon


def _best_order(losses: _Losses, order: float, count: int, delta: float) -> float:
    """The largest s that gives nearly the least epsilon: every s gives an upper bound, and a large
    one needs fewer points.

    Chernoff's own is too large where large losses are rare, and far below it the sums' upper part
    is lost to rounding.
    """
    found = [
        (order * 0.7**power, _epsilon(losses, order * 0.7**power, count, delta)[0])
        for power in range(8)
    ]
    least = min(epsilon for _, epsilon in found)
    return next(s for s, epsilon in found if epsilon <= least * (1.0 + TIGHTNESS))


def _step(probability: float, noise_multiplier: float, tail: float) -> _Step:
    from scipy.special import ndtri  # 0.2 s to import

    z = noise_multiplier
    low, without = z * float(ndtri(tail)), -z * float(ndtri(tail / 2.0))
    own = 1.0 - z * float(ndtri(min(0.5, tail / (2.0 * probability))))
    return _Step(probability, z, tail, low, max(own, without))


def _interval(order: float, epsilon: float, count: int) -> float:
    """h at which n (s + 1) h^2 / 8 is `TIGHTNESS` of epsilon."""
    return math.sqrt(8.0 * TIGHTNESS * epsilon / (count * (order + 1.0)))


def _chernoff(step: _Step, count: int, delta: float, sign: int) -> tuple[float, float]:
    """(s, epsilon): least (n log M(s) + log(1 / delta)) / s, near enough to choose s and a grid.
    sign: -1 for adding."""
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


def _densities(
    step: _Step, x: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of the mixture, and of N(0, z^2)."""
    q, z = step.probability, step.noise_multiplier
    scale = 1.0 / (z * math.sqrt(2.0 * math.pi))
    without, own = scale * np.exp(-0.5 * (x / z) ** 2), scale * np.exp(-0.5 * ((x - 1.0) / z) ** 2)
    return (1.0 - q) * without + q * own, without


def _rounded_losses(step: _Step, interval: float) -> tuple[_Losses, _Losses]:
    """Of one step, removing and adding."""
    least, most = (float(each) for each in step.loss(np.array([step.low, step.high])))
    h = max(interval, (most - least) / MOST_POINTS)
    start, end = math.floor(least / h) - 1, math.ceil(most / h) + 1
    cells = step.place(h * np.arange(start, end + 1, dtype=np.float64))  # their edges, in x
    even = np.linspace(
        step.low,
        step.high,
        math.ceil((step.high - step.low) / (_PANEL * step.noise_multiplier)) + 1,
    )
    edges = np.unique(np.concatenate([cells[(cells > step.low) & (cells < step.high)], even]))
    remove, add = np.zeros(end - start + 1), np.zeros(end - start + 1)
    for first in range(0, edges.size - 1, _CHUNK):
        left, right = edges[:-1][first : first + _CHUNK], edges[1:][first : first + _CHUNK]
        half, middle = 0.5 * (right - left), 0.5 * (right + left)
        cell = (
            np.searchsorted(cells, middle) - 1
        )  # its losses are from (start + cell) h to one step more
        x = middle[:, None] + half[:, None] * _NODES
        above = step.loss(x) - (start + cell[:, None]) * h
        mixture, without = (half[:, None] * _WEIGHTS * density for density in _densities(step, x))
        # The share w of the larger neighbour keeps e^-loss (of adding, whose losses are -L, e^L):
        # Doroshenko et al. 2022.
        to_next = mixture * np.clip(np.expm1(-above) / math.expm1(-h), 0.0, 1.0)
        to_this = without * np.clip(np.expm1(above - h) / math.expm1(-h), 0.0, 1.0)
        remove += np.bincount(cell, (mixture - to_next).sum(axis=1), remove.size)
        remove += np.bincount(cell + 1, to_next.sum(axis=1), remove.size)
        add += np.bincount(cell, to_this.sum(axis=1), add.size)
        add += np.bincount(cell + 1, (without - to_this).sum(axis=1), add.size)
    add = add[::-1].copy()
    for losses in (remove, add):
        losses[2] += step.tail  # what is below the least loss is raised to one that is not below it
    return _Losses(start, h, remove), _Losses(-end, h, add)


def _epsilon(losses: _Losses, s: float, count: int, delta: float) -> tuple[float, float]:
    """(epsilon, points of the window), by the tilt s; where there are more than `MOST_POINTS`,
    infinity."""
    from scipy.fft import irfft, next_fast_len, rfft

    h = losses.interval
    log_moment = losses.log_moment(s)
    budget = math.log(delta) + math.log1p(-2.0 * _CHARGED) - (count + 100) * _MASS_ERROR
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
        return math.inf, top / h - first
    points = cast(int, next_fast_len(max(8, math.ceil(top / h) - first + 2), real=True))
    places = losses.start + np.arange(losses.probabilities.size)
    tilts = np.exp(
        np.minimum(s * h * places - log_moment, 700.0)
    )  # above only where the probability is 0
    tilted = np.bincount(places % points, losses.probabilities * tilts, points)
    transform: NDArray[np.clongdouble] = np.asarray(rfft(tilted.astype(np.longdouble)))
    powers: NDArray[np.clongdouble] = transform**count
    sums = np.maximum(np.asarray(irfft(powers, points), np.float64), 0.0) + _fft_error(
        transform, count
    )
    sums = np.roll(sums, -(first % points))
    values = (first + np.arange(points)) * h

    def log_delta(epsilon: float) -> float:
        """log of sum over l > epsilon of M(s)^n e^(-s l) t_l (1 - e^(epsilon - l)); terms below
        e^-60 of the rest are one bound."""
        begin, end = np.searchsorted(values, [epsilon, epsilon + 60.0 / s], side="right")
        above = values[begin:end] - epsilon
        return (
            count * log_moment
            - s * epsilon
            + math.log(float(sums[begin:end] @ (np.exp(-s * above) * -np.expm1(-above))) + 1e-26)
        )

    moved = count * h * _PLACE_ERROR
    low, high = -moved, max(top, 0.0)
    if log_delta(low) <= budget:
        return 0.0, points
    while (
        high - low > 1e-3 * TIGHTNESS * (high + moved)
        and low < (middle := 0.5 * (low + high)) < high
    ):
        low, high = (middle, high) if log_delta(middle) > budget else (low, middle)
    return high + moved, points


def _fft_error(transform: NDArray[np.clongdouble], count: int) -> float:
    """Most that rounding may have changed an entry of the composed tilted probabilities, whose sum
    is 1.

    A transform of N numbers adds each of them once, in log2(N) steps, so each of its entries is off
    by at most 8 log2(N) ulp of the sum of their sizes (Higham 2002, section 24.1, with the 1-norm).
    Raising to the n-th power multiplies the error of an entry f by n |f|^(n-1); the way back has
    the same bound, with the mean over all entries.
    """
    ulp, points = float(np.finfo(np.longdouble).eps), 2 * transform.size
    forward = 8.0 * math.log2(points) * ulp
    sizes = np.minimum(np.abs(transform), 1.0).astype(np.float64) + forward
    mean = 2.0 * float((sizes ** (count - 1)).sum()) / (points - 2)
    return (count * (forward + 16.0 * ulp) + forward) * mean
