"""Statistical tests of whitened noise [rounds, coordinates], each for one kind of fault.

Right noise is independent standard normals, and all p-values are exact for it or too large: laws
are chi-square, Kolmogorov-Smirnov and that of a correlation, and a worst round, coordinate or pair
has Bonferroni's correction. A p-value below `ALARM` is called a problem.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from fedray.base.arrays import Float64Array

ALARM = 5e-5
"""The p-value below which a test finds a problem. Of at most 19 tests, ten of sums and nine of
counts, one or more err with a probability below 1e-3 together."""
LEAST_ROUNDS = 4
"""Least rounds for a test of single coordinates: in fewer, discrete noise may be zero in all."""
MOST_COMPARED = 8192
"""Most coordinates that are compared pair by pair; from more, evenly spaced ones are taken."""
_EPSILON = 1e-14
"""Rounding of 1 - r^2: models are float32, and so is the noise that they reveal."""
_BLOCK = 1024
_MOST_SHIFTED = 1 << 15
"""Bounds the work of comparing rows at all shifts: rounds times the root of coordinates, in one
group."""

Values = Float64Array


@dataclass(frozen=True, slots=True)
class CanaryTest:
    """One test and its result."""

    name: str
    """The tested property of signal or noise."""
    p: float
    """p-value, corrected for the rounds, coordinates or pairs among which the test takes the worst;
    below 5e-5 the property does not hold."""
    measured: str
    """The measured value, at its worst place."""
    check: str
    """The part of the code to check if the p-value is below 5e-5."""

    @property
    def problem(self) -> str | None:
        """The problem in words, or None."""
        return f"{self.measured} (p = {self.p:.1e}): check {self.check}" if self.p < ALARM else None


def examine_noise(silent: Values, noise: Values, grain: float) -> tuple[CanaryTest, ...]:
    """Tests noise for size, law and independence.

    Args:
        silent: whitened noise of coordinates without a canary, [n, D/2].
        noise: whitened noise of all coordinates, canaries subtracted, [n, D].
        grain: distance between the values that discrete noise can have; 0 for continuous noise.
    """
    return (
        _size(silent),
        _size_of_rounds(silent),
        _size_of_coordinates(noise),
        _law(silent, grain),
        _independence_of_rounds(silent),
        _independence_of_coordinates(noise),
        _independence_at_shifts(noise),
    )


def worst_square(squares: Values, freedom: int) -> tuple[float, int]:
    """Two-sided p-value of the sum of squares that is least like a chi-square, and its index."""
    law = stats.chi2(freedom)
    p = np.minimum(1.0, 2.0 * np.minimum(law.cdf(squares), law.sf(squares)))
    worst = int(p.argmin())
    return min(1.0, float(p[worst]) * p.size), worst


def _size(silent: Values) -> CanaryTest:
    square = float(np.vdot(silent, silent))
    p, _ = worst_square(np.array([square]), silent.size)
    measured = f"the noise is {math.sqrt(square / silent.size):.4f} of what it should be"
    return CanaryTest("size", p, measured, "the noise multiplier and the norm that scales it")


def _size_of_rounds(silent: Values) -> CanaryTest:
    squares = np.einsum("td,td->t", silent, silent)
    p, worst = worst_square(squares, silent.shape[1])
    times = math.sqrt(squares[worst] / silent.shape[1])
    measured = f"the noise of round {worst} is {times:.4f} of what it should be"
    check = "the state of the noise between rounds, and the norm of single rounds"
    return CanaryTest("size of rounds", p, measured, check)


def _size_of_coordinates(noise: Values) -> CanaryTest:
    squares = np.einsum("td,td->d", noise, noise)
    p, worst = worst_square(squares, len(noise))
    times = math.sqrt(squares[worst] / len(noise))
    measured = (
        f"the noise of coordinate {worst} is {times:.4f} of what it should be, over all rounds"
    )
    p = p if len(noise) >= LEAST_ROUNDS else 1.0
    return CanaryTest(
        "size of coordinates", p, measured, "whether noise reaches every coordinate alike"
    )


def _law(silent: Values, grain: float) -> CanaryTest:
    levels = special.ndtr(np.sort(silent, axis=None))
    ranks = np.arange(1, levels.size + 1) / levels.size
    # Kolmogorov-Smirnov: the steps of the distribution function lie between both.
    distance = max((ranks - levels).max(), (levels - ranks).max() + 1.0 / levels.size)
    # A jump of a discrete distribution is the density times the grain at most, half on each side.
    excess = max(0.0, distance - 0.5 * grain / math.sqrt(2.0 * math.pi))
    measured = f"the noise differs from a normal by {distance:.4f} in its distribution function"
    p = float(stats.kstwo.sf(excess, silent.size))
    return CanaryTest("law", p, measured, "the sampler of the noise")


def _independence_of_rounds(silent: Values) -> CanaryTest:
    r, first, second = _most_alike(silent)
    measured = f"the noise of rounds {first} and {second} has a correlation of {r:.3f}"
    p = _p_of_correlation(r, silent.shape[1], len(silent) * (len(silent) - 1) / 2)
    check = "whether draws are used twice, and the mechanism's matrix"
    return CanaryTest("independence of rounds", p, measured, check)


def _independence_of_coordinates(noise: Values) -> CanaryTest:
    step = math.ceil(noise.shape[1] / MOST_COMPARED)
    compared = noise[:, ::step].T
    r, first, second = _most_alike(compared)
    measured = (
        f"the noise of coordinates {first * step} and {second * step} has a correlation of "
        f"{r:.3f}, over all rounds"
    )
    p = _p_of_correlation(r, len(noise), len(compared) * (len(compared) - 1) / 2)
    p = p if len(noise) >= LEAST_ROUNDS else 1.0
    return CanaryTest("independence of coordinates", p, measured, "whether coordinates share draws")


def _independence_at_shifts(noise: Values) -> CanaryTest:
    """Compares rows with each other and with themselves at every circular shift."""
    rounds, size = noise.shape
    # Sums of several rows keep a repeated one visible, and are quicker to compare in pairs.
    several = min(max(1, math.isqrt(size) // 20), math.ceil(rounds * size**0.5 / _MOST_SHIFTED))
    starts = np.arange(0, rounds, several)
    sums = np.add.reduceat(noise, starts, axis=0).astype(np.float32)
    sums /= np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), np.float32(_EPSILON))
    spectra = np.fft.rfft(sums, axis=1)
    largest, place = 0.0, (0, 0, 0)
    for first in range(len(sums)):
        r = np.abs(np.fft.irfft(spectra[first].conj() * spectra[first:], size, axis=1))
        # Rows that are alike without a shift have a test of their own.
        r[:, 0] = 0.0
        # At half of its length a row meets itself twice, so that the variance is twice as large.
        r[0, size // 2] /= math.sqrt(2.0)
        index, shift = divmod(int(r.argmax()), size)
        if r[index, shift] > largest:
            largest, place = float(r[index, shift]), (first, first + index, shift)
    first, second, shift = place
    rows = [_span(starts[each], min(rounds, starts[each] + several)) for each in (first, second)]
    measured = (
        f"the noise of {rows[0]} and that of {rows[1]}, at a shift of {min(shift, size - shift)} "
        f"coordinates, have a correlation of {largest:.3f}"
    )
    # A row against itself has the same correlation at a shift and back.
    p = _p_of_correlation(largest, size, len(sums) ** 2 * size / 2)
    return CanaryTest("independence at shifts", p, measured, "whether draws are used twice")


def _span(first: int, end: int) -> str:
    return f"round {first}" if end == first + 1 else f"rounds {first} to {end - 1}"


def _most_alike(rows: Values) -> tuple[float, int, int]:
    """The largest correlation of two rows, by size, and the two."""
    # Means are known to be zero, so nothing is subtracted. A row may be without noise.
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), _EPSILON)
    largest, place = 0.0, (0, 0)
    for start in range(0, len(unit), _BLOCK):
        block = unit[start : start + _BLOCK] @ unit[start:].T
        # Rows before and on the diagonal were seen, or are the row itself.
        np.copyto(block, 0.0, where=np.tri(*block.shape, dtype=bool))
        index = int(np.abs(block).argmax())
        first, second = divmod(index, block.shape[1])
        if abs(block[first, second]) > abs(largest):
            largest, place = float(block[first, second]), (start + first, start + second)
    return largest, *place


def _p_of_correlation(r: float, size: int, pairs: float) -> float:
    """Returns the p-value of the largest correlation of `pairs` pairs of vectors of a size."""
    # r^2 has the law Beta(1/2, (size - 1) / 2), because means are known and not measured.
    rest = max(_EPSILON, 1.0 - r * r)
    return min(1.0, max(1.0, pairs) * float(special.betainc((size - 1) / 2, 0.5, rest)))
