"""Exact sensitivity of a trace: the largest sensitivity of any of its devices' patterns."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedray.audit.participation import Patterns
from fedray.errors import InputError
from mechanisms.participation import MinSep
from mechanisms.sensitivity import PatternSensitivities
from mechanisms.strategy import SensitivityUnknown, Strategy
from mechanisms.triangular import TriangularStrategy

MOST_OF_MATRICES = 8_000
"""Participations of one device that are audited with a matrix: 8,000 in 10,000 rounds take under a
minute and 1.7 GB."""
MOST_CERTIFICATES = 200
"""Patterns with negative Gram entries whose bound is made exact; were more needed, the bound
stands."""
MOST_COMPARED = 256
"""Participations up to which the sensitivity under (b, k) is asked for, to stop early."""


@dataclass(frozen=True, slots=True)
class TraceSensitivity:
    """At clip norm 1; no (b, k) that this trace obeys gives less. With a device and the
    rounds that attain it.

    is_exact: False marks an upper bound, which only strategies with negative Gram entries can
        leave.
    """

    value: float
    """The sensitivity, or an upper bound of it."""
    is_exact: bool
    device_id: int
    """The device that attains it."""
    rounds: tuple[int, ...]


def trace_sensitivity(
    strategy: Strategy, patterns: Patterns, sensitivities: PatternSensitivities | None = None
) -> TraceSensitivity:
    """The largest sensitivity over all devices; of equal ones the first in order of (more
    participations, device id).

    Devices are looked at by number of participations, most first. Devices with c participations
    obey (b, c), so once its sensitivity is no larger than one already found, neither
    theirs nor those of devices with fewer can be. (Of whole matrices, of Toeplitz ones outside
    Theorem 3.1, and of many participations, the bound under (b, k) costs more than looking at every
    device. Where no theorem gives it, every device is looked at.)

    Args:
        sensitivities: of this strategy over the patterns' rounds, where there are some already.
    """
    n, b = patterns.committed_rounds, patterns.min_sep
    if isinstance(strategy, TriangularStrategy) and patterns.max_participations > MOST_OF_MATRICES:
        raise InputError(
            f"a device took part {patterns.max_participations:,} times; with a {strategy.kind} "
            "matrix at most "
            f"{MOST_OF_MATRICES:,} are audited, since its Gram matrix would need gigabytes and "
            "many minutes; use a mechanism with "
            "a structure, such as a blt or a tree"
        )
    sensitivities = sensitivities or PatternSensitivities(strategy, n)
    best, certificates = TraceSensitivity(0.0, True, 0, ()), MOST_CERTIFICATES
    # b is 0 if a device contributed twice to a round.
    can_stop = b >= 1 and strategy.is_quick_under_participation(n)
    for count in np.flatnonzero(np.bincount(patterns.counts))[::-1]:
        if can_stop and best.value > 0 and count <= MOST_COMPARED:
            try:
                if strategy.participation_sensitivity(MinSep(n, b, int(count))).value <= best.value:
                    break
            except SensitivityUnknown:
                can_stop = False
        for places, rounds in patterns.with_count(int(count)):
            best, certificates = _larger(
                best, sensitivities, patterns.device_ids[places], rounds, certificates
            )
    return best


def _larger(
    best: TraceSensitivity,
    sensitivities: PatternSensitivities,
    device_ids: NDArray[np.uint64],
    rounds: NDArray[np.int64],
    certificates: int,
) -> tuple[TraceSensitivity, int]:
    """The larger of what was found so far and these devices' largest, and how many certificates are
    left."""
    found = sensitivities.of(rounds)
    if found.is_exact.all():
        place = int(found.values.argmax())
        larger = TraceSensitivity(
            float(found.values[place]), True, int(device_ids[place]), tuple(rounds[place].tolist())
        )
        return (larger if larger.value > best.value else best), certificates
    tried: set[tuple[int, ...]] = set()
    for place in np.argsort(-found.values, kind="stable").tolist():
        if found.values[place] <= best.value:
            break
        pattern = tuple(rounds[place].tolist())
        if len(tried) == certificates:
            best = TraceSensitivity(
                float(found.values[place]), False, int(device_ids[place]), pattern
            )
            break
        if pattern not in tried:
            tried.add(pattern)
            exact = sensitivities.exact(rounds[place])
            if exact.value > best.value:
                best = TraceSensitivity(
                    exact.value, exact.is_exact, int(device_ids[place]), pattern
                )
    return best, certificates - len(tried)
