"""Addressed random draws: a draw is a function of its address, never of earlier draws.

A draw's address is (seed, stream, device, a, b). Nothing is consumed, so a result does not depend
on how devices are split over shards, on the order in which they are visited, or on whether a run
was interrupted. The generator is Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as
easy as 1, 2, 3"), which passes BigCrush: the key comes from (seed, stream), the 128-bit counter is
(device low, device high, a, b), and one call gives four 32-bit words. `tests/fedray/test_rng.py`
compares it with the known answers of the Random123 distribution.
"""

import hashlib
import math
from collections.abc import Callable
from enum import IntEnum, unique
from typing import NamedTuple

import numpy as np

from fedray.base.arrays import Float64Array
from fedray.base.compiled import njit

_MULTIPLIER_0 = np.uint64(0xD2511F53)
_MULTIPLIER_1 = np.uint64(0xCD9E8D57)
_WEYL_0 = np.uint64(0x9E3779B9)
_WEYL_1 = np.uint64(0xBB67AE85)
_LOW_32 = np.uint64(0xFFFFFFFF)
_SHIFT_32 = np.uint64(32)
MAX_NORMAL = 6.34
"""Bound on the absolute value of `normal`: the normal quantile of 2^-33 is -6.338."""


@unique
class Stream(IntEnum):
    """Purposes of draws. Draws of different purposes are independent.

    Numbers are part of every trace's identity: append, never renumber. A gap may have been used
    before: take the number after the last.
    """

    DEVICE = 1
    HABIT = 2
    SESSIONS = 3
    CHECK_IN = 4
    TRAINING_TIME = 5
    COHORT = 6
    TEXT = 7
    LANGUAGE = 8
    MODEL = 9
    NOISE = 10
    THINNING = 11
    RETURN = 12
    PRESENCE = 13
    TIMER = 14
    REPLAY = 15
    EXAMPLE_ORDER = 16
    DATA = 17
    HELD_OUT = 18
    EXAMPLES = 19
    DEVICE_SAMPLE = 20
    CLIP_COUNT = 23
    ROTATION = 24
    ROUNDING = 25
    DISCRETE_NOISE = 26
    HISTORY = 31
    UPLOAD_SHUFFLE = 40
    UPLOAD_DRAW = 41
    UPLOAD_UNRESOLVED = 42
    RESERVOIR = 52
    WIFI_HABIT = 53
    WIFI_SESSIONS = 54
    USES = 55
    OFFER = 60
    LOG_RECORDS = 70
    LOG_BOOTSTRAP = 71
    DEVICE_CLASS = 80
    OWNER = 100
    VALUES = 101
    ANSWER = 102
    CANARY = 120
    PLANTED = 121
    MEMBER = 122
    LOCAL_STEP = 123
    FORECAST = 124
    OPTIMIZER_STEP = 125


class Key(NamedTuple):
    """Philox key: two 32-bit words, held as uint64 so that compiled code never mixes signs."""

    low: np.uint64
    high: np.uint64


def stream_key(seed: int, stream: Stream) -> Key:
    """Returns the key of a stream: the first eight bytes of BLAKE2b over seed and stream, so that
    streams of neighbouring seeds have nothing in common."""
    word = stream_seed(seed, stream)
    return Key(np.uint64(word & 0xFFFFFFFF), np.uint64(word >> 32))


def stream_seed(seed: int, stream: Stream, *address: int) -> int:
    """Returns a 64-bit seed for a generator of another library."""
    return _hash(seed, stream, address, size=8)


def stream_generator(seed: int, stream: Stream, *address: int) -> np.random.Generator:
    """Returns numpy's generator for one address: Philox4x64 under a 128-bit key, so that no two
    addresses share a stream."""
    # A 64-bit seed suffices only for few addresses; torch's CPU generator keeps only 32 bits of its
    # seed.
    return np.random.Generator(np.random.Philox(key=_hash(seed, stream, address, size=16)))


def _hash(seed: int, stream: Stream, address: tuple[int, ...], size: int) -> int:
    # The colons keep addresses apart: (1, 23) is not (12, 3).
    text = ":".join(str(part) for part in (seed, int(stream), *address))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=size).digest(), "little")


@njit(inline="always")
def philox(c0, c1, c2, c3, k0, k1):
    """Philox4x32-10: returns four words for the counter (c0, c1, c2, c3) and the key (k0, k1). All
    are 32-bit words held as uint64."""
    for _ in range(10):
        # A round multiplies two words to 64 bits each, and swaps the halves.
        product_0 = _MULTIPLIER_0 * c0
        product_1 = _MULTIPLIER_1 * c2
        c0 = (product_1 >> _SHIFT_32) ^ c1 ^ k0
        c1 = product_1 & _LOW_32
        c2 = (product_0 >> _SHIFT_32) ^ c3 ^ k1
        c3 = product_0 & _LOW_32
        k0 = (k0 + _WEYL_0) & _LOW_32
        k1 = (k1 + _WEYL_1) & _LOW_32
    return c0, c1, c2, c3


@njit(inline="always")
def draw(key, device, a, b):
    """Returns four words at address (device, a, b) of a stream; a and b are taken modulo 2^32, so
    negative days are addresses too."""
    # Numba turns mixed signed and unsigned numbers into floats, so all are unsigned.
    d = np.uint64(device)
    a32 = np.uint64(a) & _LOW_32
    b32 = np.uint64(b) & _LOW_32
    return philox(d & _LOW_32, d >> _SHIFT_32, a32, b32, key[0], key[1])


@njit(cache=True, nogil=True)
def draw_many(key, device_ids, a, b, size, words):
    """Fills words [4, R] with the first `size` draws at addresses (device_ids, a, b), [R] each.

    The loop contains nothing else, so that it becomes vector instructions: several times as fast as
    single draws.
    """
    key_low, key_high = key[0], key[1]
    w0, w1, w2, w3 = words[0], words[1], words[2], words[3]
    for place in range(size):
        v0, v1, v2, v3 = draw((key_low, key_high), device_ids[place], a[place], b[place])
        w0[place] = v0
        w1[place] = v1
        w2[place] = v2
        w3[place] = v3


@njit(cache=True, nogil=True)
def long_words(key, device_ids, a):
    """Returns a word of 64 bits for each device at address (device, a, 0), [R]."""
    words = np.empty(device_ids.size, np.uint64)
    for place in range(device_ids.size):
        w0, w1, _, _ = draw(key, device_ids[place], a, 0)
        words[place] = (w0 << np.uint64(32)) | w1
    return words


@njit(inline="always")
def address_within(time, start_time, end_time):
    """Returns the part of an address that stands for a time: its position in [start_time,
    end_time), in units of 2^-32 of the window's length. Times at least one unit apart have
    different addresses."""
    return int((time - start_time) / (end_time - start_time) * 2.0**32)


@njit(inline="always")
def uniform(word):
    """Converts a word of 32 bits to (word + 1/2) / 2^32, never 0 nor 1, so that its logarithm and
    quantiles are finite."""
    # A signed integer takes one instruction to convert, an unsigned one several.
    return (np.float64(np.int64(word)) + 0.5) * (1.0 / 4294967296.0)


@njit(forceinline=True)
def share_at(edges, word):
    """Returns the position of the share that a word draws; `edges` are the upper edges of the
    shares and rise to 1."""
    u = uniform(word)
    place = 0
    # The last share takes what rounding leaves between its edge and 1.
    while place < edges.size - 1 and edges[place] < u:
        place += 1
    return place


@njit(forceinline=True)
def normal(word):
    """Returns a standard normal by inversion of one word (Wichura 1988, algorithm AS 241, PPND16);
    at most MAX_NORMAL in absolute value."""
    # Both polynomials of each ratio are evaluated by Horner's rule.
    p = uniform(word)
    q = p - 0.5
    # In the middle the quantile is q times a ratio of polynomials in q^2.
    if abs(q) <= 0.425:
        r = 0.180625 - q * q
        above = 2.5090809287301226727e3
        above = above * r + 3.3430575583588128105e4
        above = above * r + 6.7265770927008700853e4
        above = above * r + 4.5921953931549871457e4
        above = above * r + 1.3731693765509461125e4
        above = above * r + 1.9715909503065514427e3
        above = above * r + 1.3314166789178437745e2
        above = above * r + 3.3871328727963666080e0
        below = 5.2264952788528545610e3
        below = below * r + 2.8729085735721942674e4
        below = below * r + 3.9307895800092710610e4
        below = below * r + 2.1213794301586595867e4
        below = below * r + 5.3941960214247511077e3
        below = below * r + 6.8718700749205790830e2
        below = below * r + 4.2313330701600911252e1
        below = below * r + 1.0
        return q * above / below
    # In the tails it is a ratio of polynomials in r.
    r = math.sqrt(-math.log(p if q < 0.0 else 1.0 - p))
    if r <= 5.0:
        r -= 1.6
        above = 7.74545014278341407640e-4
        above = above * r + 2.27238449892691845833e-2
        above = above * r + 2.41780725177450611770e-1
        above = above * r + 1.27045825245236838258e0
        above = above * r + 3.64784832476320460504e0
        above = above * r + 5.76949722146069140550e0
        above = above * r + 4.63033784615654529590e0
        above = above * r + 1.42343711074968357734e0
        below = 1.05075007164441684324e-9
        below = below * r + 5.47593808499534494600e-4
        below = below * r + 1.51986665636164571966e-2
        below = below * r + 1.48103976427480074590e-1
        below = below * r + 6.89767334985100004550e-1
        below = below * r + 1.67638483018380384940e0
        below = below * r + 2.05319162663775882187e0
        below = below * r + 1.0
    else:
        # A 32-bit uniform is at least 2^-33, so r is at most 4.78: the far tail is never needed.
        raise AssertionError
    return -above / below if q < 0.0 else above / below


@njit(inline="always")
def exponential(word):
    """Returns a standard exponential (mean 1) by inversion of one word; never 0, at most 22.9."""
    return -math.log(uniform(word))


@njit(forceinline=True)
def poisson(mean, none_probability, word):
    """Returns a Poisson count with a mean of a few units, by inversion of one word;
    none_probability is exp(-mean). The tail past 2^-32 is cut."""
    u = uniform(word)
    term = none_probability
    cumulative = term
    count = 0
    # The limit ends the loop if rounding keeps the sum below u.
    while u > cumulative and count < 1000:
        count += 1
        term *= mean / count
        cumulative += term
    return count


_CELLS = 1 << 16
_LOW_16 = np.uint64(0xFFFF)
_SHIFT_16 = np.uint64(16)


def tabulated_quantiles(
    quantile: Callable[[Float64Array], Float64Array],
) -> Float64Array:
    """Tabulates a quantile function for `tabulated`, [2^17 + 1]: quantiles at k / 2^16, then at the
    2^16 words of the last cell.

    Draws are linear between two entries, so their distribution function is off by less than 2^-16
    anywhere. The last cell has an entry per word, so that tails are as long as 32 bits allow.
    """
    edges = np.arange(_CELLS, dtype=np.float64) / _CELLS
    # The last cell's words as uniforms: (word + 1/2) / 2^32, counted down from 1.
    from_one = np.arange(_CELLS, 0, -1, dtype=np.float64) - 0.5
    last = 1.0 - from_one / 2.0**32
    body = quantile(edges)
    tail = quantile(last)
    return np.concatenate([body, tail[:1], tail])


@njit(forceinline=True)
def tabulated(table, word):
    """Returns a draw by inversion of one word with a table of `tabulated_quantiles`; one or two
    loads from memory, whatever the distribution."""
    cell = word >> _SHIFT_16
    rest = word & _LOW_16
    # The last cell has an entry for every word.
    if cell == _LOW_16:
        return table[_CELLS + 1 + np.int64(rest)]
    low = table[np.int64(cell)]
    high = table[np.int64(cell) + 1]
    share = (np.float64(np.int64(rest)) + 0.5) * (1.0 / 65536.0)
    return low + (high - low) * share


@njit
def gamma(shape, key, device, a, b):
    """Returns a draw from Gamma(shape, scale 1) at address (device, a, b) of a stream.

    Exact, by rejection (Marsaglia and Tsang 2000, with their power step for shapes below 1):
    attempt j reads address (device, a, b + j), so b must leave room for a few dozen attempts.
    """
    # Gamma(a) is Gamma(a + 1) times U^(1/a); the rejection needs a shape of at least 1.
    boosted = shape + 1.0 if shape < 1.0 else shape
    d = boosted - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    attempt = 0
    while True:
        w0, w1, w2, _ = draw(key, device, a, b + attempt)
        attempt += 1
        x = normal(w0)
        # The candidate is d v^3, so v must be positive.
        v = 1.0 + c * x
        if v <= 0.0:
            continue
        v = v * v * v
        # This test makes the draw exact; the paper's quicker test before it is left out.
        if math.log(uniform(w1)) < 0.5 * x * x + d - d * v + d * math.log(v):
            value = d * v
            return value * math.pow(uniform(w2), 1.0 / shape) if shape < 1.0 else value
