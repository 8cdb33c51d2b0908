"""Exact discrete Gaussian noise N_Z(0, sigma^2), whose probability at a whole number x is
proportional to exp(-x^2 / (2 sigma^2)) (Canonne, Kamath, Steinke 2020, Algorithms 1 to 3).

Nothing here is a float: every decision compares random bits with a ratio of whole numbers, so the
distribution is exactly that of the paper, including its tail. The variance is a ratio too, sigma^2
= (r / q)^2 / 2 with whole r and q. For such a variance the acceptance of Algorithm 3 is

    exp(-(|y| - sigma^2 / t)^2 / (2 sigma^2)) = exp(-(a / b)^2),
    a = ||y| 2 q^2 t - r^2|,   b = 2 q t r,

and all numbers stay below 2^63. A ratio a / b is compared with random bits by long division,
sixteen bits at a time, until they differ.

A number is a function of (key, device, round, coordinate): its bits are consecutive blocks of four
words of the stream at that address.
"""

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from fedray.base.compiled import njit
from fedray.base.rng import draw

FINENESS = 1 << 15
"""Least number of steps 1 / q in a standard deviation, unless q reaches its limit. A standard
deviation is rounded up by at most one step."""
MOST_FINENESS = 1 << 20
"""Largest q."""
MOST_DEVIATION = 1 << 21
"""Largest sigma for which a and b fit."""
_ONE, _SHIFT_16, _SHIFT_48 = np.uint64(1), np.uint64(16), np.uint64(48)
_LOW_16, _MOST_BLOCKS = np.uint64(0xFFFF), np.uint64(0xFFFF)
_WORDS, _PLACE, _BLOCK, _DEVICE, _ROUND, _COORDINATE, _SIZE = 4, 4, 5, 6, 7, 8, 9
"""Layout of a source of bits: four words, index of the next word, next block, address."""


class NoiseScale(NamedTuple):
    """A variance of the form (r / q)^2 / 2 with whole r and q."""

    r: int
    q: int
    t: int
    """floor(sigma) + 1, scale of the discrete Laplace proposals."""

    @classmethod
    def at_least(cls, variance: Fraction) -> "NoiseScale":
        """Returns the least variance of this form that is at least a given one."""
        q = 1
        while q < MOST_FINENESS and variance * q * q < FINENESS**2:
            q *= 2
        # Both roundings are upwards, so the noise is never too small.
        square = math.ceil(2 * variance * q * q)
        r = math.isqrt(square - 1) + 1
        return cls(r, q, math.isqrt(r * r // (2 * q * q)) + 1)

    @property
    def variance(self) -> Fraction:
        """sigma^2."""
        return Fraction(self.r * self.r, 2 * self.q * self.q)


@njit(cache=True)
def add_noise(steps, key, device_id, round_index, r, q, t):
    """Adds noise of the `NoiseScale` (r, q, t) to whole numbers [P], in place. The address of a
    number is (key, device, round, index)."""
    source = np.zeros(_SIZE, np.uint64)
    source[_DEVICE], source[_ROUND] = np.uint64(device_id), np.uint64(round_index)
    for coordinate in range(steps.size):
        source[_PLACE], source[_BLOCK] = np.uint64(_WORDS), np.uint64(0)
        source[_COORDINATE] = np.uint64(coordinate)
        steps[coordinate] += _gaussian(source, key, r, q, t)


@njit(cache=True)
def _gaussian(source, key, r, q, t):
    """Draws a number by Algorithm 3."""
    while True:
        # Rejection sampling of a discrete Gaussian from a discrete Laplace proposal.
        y = _laplace(source, key, t)
        if _is_exp_of_square(source, key, abs(abs(y) * 2 * q * q * t - r * r), 2 * q * t * r):
            return y


@njit(cache=True)
def _laplace(source, key, t):
    """Draws a discrete Laplace number of whole scale t by Algorithm 2."""
    while True:
        rest = _below(source, key, t)
        if not _is_exp(source, key, rest, t):
            continue
        # From 2^16 on numbers in `_gaussian` would overflow, with a probability of exp(-2^16).
        whole = 0
        while _is_exp(source, key, 1, 1):
            whole += 1
        size = rest + t * whole
        is_negative = _word(source, key) & _ONE
        # Rejecting -0, because zero would otherwise have twice its probability.
        if is_negative and size == 0:
            continue
        return -size if is_negative else size


@njit(cache=True)
def _is_exp_of_square(source, key, a, b):
    """Returns True with probability exp(-(a / b)^2) = exp(-i^2) exp(-2 i f) exp(-f^2), with a / b =
    i + f."""
    whole = a // b
    rest = a - whole * b
    # Each of these holds with probability exp(-1), and all of them with exp(-i^2).
    for _ in range(whole * whole):
        if not _is_exp(source, key, 1, 1):
            return False
    # Each of these holds with probability exp(-f), and all of them with exp(-2 i f).
    for _ in range(2 * whole):
        if not _is_exp(source, key, rest, b):
            return False
    # As `_is_exp`, with two draws of f per step for the series of exp(-f^2).
    k = 1
    while (
        _is_ratio(source, key, rest, b)
        and _is_ratio(source, key, rest, b)
        and _is_ratio(source, key, 1, k)
    ):
        k += 1
    return k % 2 == 1


@njit(cache=True)
def _is_exp(source, key, a, b):
    """Returns True with probability exp(-a / b), for a <= b, by Algorithm 1."""
    k = 1
    while _is_ratio(source, key, a, b) and _is_ratio(source, key, 1, k):
        k += 1
    # By the series of the exponential, k is odd with probability exp(-a / b).
    return k % 2 == 1


@njit(cache=True)
def _is_ratio(source, key, a, b):
    """Returns True with probability a / b, for a <= b < 2^47."""
    if a == b:
        return True
    if a == 0:
        return False
    while True:
        word = _word(source, key)
        for digit in (word >> _SHIFT_16, word & _LOW_16):
            # The next digit of a / b in base 2^16, by long division.
            a <<= 16
            expected = a // b
            if np.int64(digit) != expected:
                return np.int64(digit) < expected
            a -= expected * b


@njit(cache=True)
def _below(source, key, end):
    """Draws a uniform whole number below `end`, at most 2^31."""
    bits = 0
    while (1 << bits) < end:
        bits += 1
    if bits == 0:
        return 0
    while True:
        # Rejection keeps the others equally likely.
        number = np.int64(_word(source, key) >> np.uint64(32 - bits))
        if number < end:
            return number


@njit(cache=True)
def _word(source, key):
    """Returns the next 32 bits."""
    if source[_PLACE] == np.uint64(_WORDS):
        # A number takes about ten blocks.
        if source[_BLOCK] > _MOST_BLOCKS:
            raise AssertionError
        # Device ids are below 2^48, so no two blocks share an address.
        address = source[_DEVICE] | (source[_BLOCK] << _SHIFT_48)
        words = draw(key, address, source[_ROUND], source[_COORDINATE])
        for place in range(_WORDS):
            source[place] = words[place]
        source[_PLACE] = np.uint64(0)
        source[_BLOCK] += _ONE
    word = source[np.int64(source[_PLACE])]
    source[_PLACE] += _ONE
    return word
