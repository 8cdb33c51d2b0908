"""Exponentials for compiled loops: exp, sigmoid and tanh as arithmetic that vectorises.

In float32 they err by at most three units in the last place, and have the same bits on every
machine: each operation is rounded on its own. Calls of a C library would take ten times as long.
"""

import math

import numpy as np
from numba import types
from numba.extending import overload

from fedray.base.compiled import njit

_LOG2_E = np.float32(1.44269504088896341)
# Adding it rounds to a whole number, which is then in the low bits.
_ROUNDER = np.float32(1.5 * 2.0**23)
# ln 2 as a number of few bits, whose products with whole numbers are exact, and the rest.
_LN_2, _LN_2_REST = np.float32(0.693359375), np.float32(-2.12194440e-4)
_LOW, _HIGH = np.float32(-87.0), np.float32(88.0)
# Whole numbers of Python would turn float32 into float64.
_ONE, _TWO = np.float32(1.0), np.float32(2.0)
_ONE_BITS = 127 << 23
# Of exp on |x| <= ln 2 / 2, from Cephes (Moshier, expf.c).
_C7, _C6, _C5, _C4, _C3, _C2 = np.array(
    [1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5],
    np.float32,
)


@njit(inline="always")
def exp(x):
    """Returns e^x; at least e^-87 and at most e^88 in float32. A NaN stays a NaN."""
    power, rest = _parts(x)
    return power + power * rest


@njit(inline="always")
def sigmoid(x):
    """Returns 1 / (1 + e^-x)."""
    power, rest = _parts(-x)
    return _ONE / (_ONE + (power + power * rest))


@njit(inline="always")
def tanh(x):
    """Returns the hyperbolic tangent, with a small relative error near 0 too."""
    power, rest = _parts(x + x)
    minus_one = power * rest + (power - _ONE)
    return minus_one / (minus_one + _TWO)


def _parts(x: float) -> tuple[float, float]:
    """Returns a power p of 2 and a number r such that e^x = p + p r."""
    raise NotImplementedError


@overload(_parts)
def _parts_of(x):
    return _parts_32 if x == types.float32 else _parts_64


def _parts_32(x):
    # These comparisons leave a NaN as it is.
    not_low = _LOW if x < _LOW else x
    bounded = _HIGH if not_low > _HIGH else not_low
    rounded = bounded * _LOG2_E + _ROUNDER
    whole = rounded - _ROUNDER
    r = bounded - whole * _LN_2 - whole * _LN_2_REST
    series = ((((_C7 * r + _C6) * r + _C5) * r + _C4) * r + _C3) * r + _C2
    bits = (np.float32(rounded).view(np.int32) << 23) + _ONE_BITS
    return np.int32(bits).view(np.float32), series * (r * r) + r


def _parts_64(x):
    return 1.0, math.expm1(700.0 if x > 700.0 else x)
