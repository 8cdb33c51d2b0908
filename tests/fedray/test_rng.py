"""Addressed draws: the published generator, the right distributions, and nothing consumed."""

import math
import statistics

import numpy as np
import pytest
from numba import njit
from scipy import stats

from fedray.base.rng import (
    MAX_NORMAL,
    Stream,
    draw,
    exponential,
    gamma,
    normal,
    philox,
    poisson,
    stream_key,
    stream_seed,
    uniform,
)

KEY = stream_key(1, Stream.HABIT)
DRAWS = 40_000
# Each test below draws with a fixed seed and rejects at p < 1e-4: a false alarm once in 10,000 changes of the generator.
ALARM = 1e-4


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers_of_random123(counter, key, expected) -> None:
    """kat_vectors of the Random123 distribution, philox4x32 with 10 rounds."""

    @njit
    def call(c0, c1, c2, c3, k0, k1):
        return philox(c0, c1, c2, c3, k0, k1)

    words = call(*(np.uint64(word) for word in (*counter, *key)))
    assert tuple(int(word) for word in words) == expected


@njit
def _words(key, count):
    words = np.empty(count, np.uint64)
    for index in range(count):
        words[index] = draw(key, index, 5, 9)[0]
    return words


@njit
def _sample(kind, key, count, parameter):
    values = np.empty(count)
    for index in range(count):
        word = draw(key, index, 5, 9)[0]
        if kind == 0:
            values[index] = uniform(word)
        elif kind == 1:
            values[index] = exponential(word)
        elif kind == 2:
            values[index] = poisson(parameter, math.exp(-parameter), word)
        else:
            values[index] = gamma(parameter, key, index, 5, 100)
    return values


def test_normal_inverts_the_distribution_to_the_last_digit() -> None:
    """Against the standard library's AS 241, at random words and at both ends."""
    words = [*np.random.default_rng(0).integers(0, 2**32, 5000).tolist(), 0, 2**32 - 1]
    exact = [statistics.NormalDist().inv_cdf((word + 0.5) / 2**32) for word in words]
    found = [normal(np.uint64(word)) for word in words]
    np.testing.assert_allclose(found, exact, rtol=1e-14)
    assert max(abs(value) for value in found) < MAX_NORMAL


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "parameter", "law"),
    [
        (0, 0.0, stats.uniform()),
        (1, 0.0, stats.expon()),
        (3, 0.35, stats.gamma(0.35)),
        (3, 0.78, stats.gamma(0.78)),
        (3, 1.85, stats.gamma(1.85)),
    ],
)
def test_draws_follow_their_law_and_no_law_ten_percent_off(kind, parameter, law) -> None:
    sample = _sample(kind, KEY, DRAWS, parameter)
    assert stats.kstest(sample, law.cdf).pvalue > ALARM
    assert stats.kstest(1.1 * sample, law.cdf).pvalue < ALARM


@pytest.mark.slow
def test_poisson_counts_follow_their_law() -> None:
    sample = _sample(2, KEY, DRAWS, 1.05)
    observed = np.bincount(sample.astype(int), minlength=6)
    expected = stats.poisson(1.05).pmf(np.arange(5)) * DRAWS
    observed = np.append(observed[:5], observed[5:].sum())
    assert stats.chisquare(observed, np.append(expected, DRAWS - expected.sum())).pvalue > ALARM


def test_streams_seeds_and_addresses_differ() -> None:
    words = [
        tuple(_words(stream_key(seed, stream), 4))
        for seed in (0, 1)
        for stream in (Stream.HABIT, Stream.SESSIONS)
    ]
    assert len(set(words)) == 4
    seeds = {stream_seed(3, Stream.NOISE, t, level) for t in range(20) for level in range(5)}
    assert len(seeds) == 100


def test_a_draw_does_not_depend_on_what_was_drawn_before() -> None:
    all_words = _words(KEY, 100)
    assert [int(w) for w in _words(KEY, 50)] == [int(w) for w in all_words[:50]]
