"""Exact sensitivity of a trace: the largest sensitivity of any of its devices' patterns."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedray.audit.participation import Chosen, Patterns, PatternsSoFar
from fedray.base.arrays import UInt64Array
from fedray.base.errors import InputError
from fedray.base.threads import in_order
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.sensitivity import (
    MOST_CERTIFICATES,
    PatternSensitivities,
    PatternValues,
)
from fedray.mechanisms.strategy import SensitivityUnknown, Strategy
from fedray.mechanisms.triangular import TriangularStrategy

MOST_OF_MATRICES = 8_000
"""Largest number of participations of a device that is audited with a matrix: 8,000 in 10,000
rounds take under a minute and 1.7 GB."""
WORTH_A_BOUND = 1 << 24
"""Number of pairs of participations that are worth a bound for (b, k), which may take a second."""
MOST_COMPARED = 256
"""Largest number of participations for which the sensitivity for (b, k) is computed, to stop early.
"""


@dataclass(frozen=True, slots=True)
class TraceSensitivity:
    """Sensitivity of a trace at clip norm 1, with a device and its rounds that attain it. It is at
    most the sensitivity of any (b, k) that the trace obeys."""

    value: float
    """The sensitivity, or an upper bound on it."""
    is_exact: bool
    """False for an upper bound, which only strategies with negative Gram entries can leave."""
    device_id: int
    """The device that attains it."""
    rounds: tuple[int, ...]
    """The rounds of that device."""
    weights: tuple[float, ...] = ()
    """Factors on its contributions; empty if all are 1."""


def trace_sensitivity(
    strategy: Strategy,
    patterns: Patterns | PatternsSoFar,
    sensitivities: PatternSensitivities | None = None,
) -> TraceSensitivity:
    """Returns the largest sensitivity over all devices. Of equal ones, the device with more
    participations comes first, then the smaller id.

    Devices are checked by number of participations, most first. Devices with c participations obey
    (b, c). Once the sensitivity for (b, c) is no larger than one already found, no device with c or
    fewer participations can exceed it. (Weights are at most 1, so they do not change that. For
    whole matrices, for Toeplitz ones outside Theorem 3.1, for many participations, and for few
    devices, the bound for (b, k) costs more than checking every device. If no theorem gives it,
    every device is checked.)

    Args:
        strategy: the mechanism.
        patterns: every device's rounds.
        sensitivities: existing sensitivities of this strategy over the patterns' rounds, if any.

    Raises:
        InputError: a device took part more often than can be audited with a matrix, or the strategy
            has fewer rounds.
    """
    # Why the largest over devices is exact: neighbouring data differ in one device, whose
    # contributions become zeros, so those of all others cancel in the difference C (X - X'). Only
    # the device's recorded rounds are left, and if C'C >= 0 on them, equal unit vectors are the
    # worst (Choquette-Choo et al. 2023, Proposition E.1). No (b, k) gives less for this trace.
    n = patterns.committed_rounds
    b = patterns.min_sep
    if isinstance(strategy, TriangularStrategy) and patterns.max_participations > MOST_OF_MATRICES:
        raise InputError(
            f"a device took part {patterns.max_participations:,} times; with a {strategy.kind} "
            "matrix at most "
            f"{MOST_OF_MATRICES:,} are audited, since its Gram matrix would need gigabytes and "
            "many minutes; use a mechanism with "
            "a structure, such as a blt or a tree"
        )
    sensitivities = sensitivities or PatternSensitivities(strategy, n)
    best = TraceSensitivity(0.0, True, 0, ())
    certificates = MOST_CERTIFICATES
    # b is 0 if a device contributed twice to a round.
    can_stop = b >= 1 and strategy.is_quick_under_participation(n)
    devices = np.bincount(patterns.counts)
    pairs = devices * np.arange(devices.size) ** 2
    left, since = int(pairs.sum()), WORTH_A_BOUND
    # Devices that have not taken part yet have no sensitivity.
    for count in np.flatnonzero(devices[1:])[::-1] + 1:
        # A stop needs the result of the devices with most participations. It covers all devices
        # that are left, since a pattern with fewer participations obeys (b, c) too.
        is_worth_it = min(left, since) >= WORTH_A_BOUND
        if can_stop and best.value > 0 and count <= MOST_COMPARED and is_worth_it:
            since = 0
            try:
                most_left = strategy.participation_sensitivity(MinSep(n, b, int(count)))
                if most_left.value <= best.value:
                    break
            except SensitivityUnknown:
                can_stop = False
        left, since = left - int(pairs[count]), since + int(pairs[count])
        for chosen, found in values_of(sensitivities, patterns.with_count(int(count))):
            device_ids = patterns.device_ids[chosen.places]
            best, certificates = _larger(
                best, sensitivities, device_ids, chosen, found, certificates
            )
    return best


def values_of(
    sensitivities: PatternSensitivities, parts: Iterator[Chosen]
) -> Iterator[tuple[Chosen, PatternValues]]:
    """Yields the sensitivities of devices, part by part and in order."""

    def value(chosen: Chosen) -> tuple[Chosen, PatternValues]:
        return chosen, sensitivities.of(chosen.rounds, chosen.weights)

    # The first part runs by itself: it makes the table of G that the threads then share.
    yield from map(value, itertools.islice(parts, 1))
    yield from in_order(value, parts)


def _larger(
    best: TraceSensitivity,
    sensitivities: PatternSensitivities,
    device_ids: UInt64Array,
    chosen: Chosen,
    values: PatternValues,
    certificates: int,
) -> tuple[TraceSensitivity, int]:
    """Returns the larger of the result so far and the largest of these devices, and the number of
    certificates left."""
    rounds, weights = chosen.rounds, chosen.weights
    found, certificates = sensitivities.largest(rounds, weights, values, best.value, certificates)
    if found is None:
        return best, certificates
    # The first of equal ones has the smallest id, so the named device does not depend on how
    # devices are cut into parts.
    device_id = int(device_ids[found.place])
    pattern = tuple(rounds[found.place].tolist())
    scales = () if weights is None else tuple(weights[found.place].tolist())
    return TraceSensitivity(found.value, found.is_exact, device_id, pattern, scales), certificates
