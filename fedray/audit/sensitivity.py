"""Exact sensitivity of a trace: the largest sensitivity of any of its devices' patterns."""

from dataclasses import dataclass

import numpy as np

from fedray.audit.participation import Patterns
from mechanisms.participation import MinSep
from mechanisms.sensitivity import PatternSensitivities
from mechanisms.strategy import Strategy

CHUNK = 1 << 18


@dataclass(frozen=True, slots=True)
class TraceSensitivity:
    """Exact, at clip norm 1: no (b, k) schema that this trace obeys gives less. With a device and the rounds that attain it."""

    value: float
    device_id: int
    rounds: tuple[int, ...]


def trace_sensitivity(strategy: Strategy, patterns: Patterns) -> TraceSensitivity:
    """The largest sensitivity over all devices; of equal ones the first in order of (more participations, device id).

    Devices are looked at by number of participations, most first. Devices with c participations obey the (b, c) schema, so
    once its sensitivity is no larger than one already found, neither theirs nor those of devices with fewer can be.
    """
    n, b = patterns.committed_rounds, patterns.min_sep
    sensitivities = PatternSensitivities(strategy, n)
    best = TraceSensitivity(0.0, 0, ())
    for count in np.flatnonzero(np.bincount(patterns.counts))[::-1]:
        if best.value > 0 and strategy.schema_sensitivity(MinSep(n, b, int(count))).value <= best.value:
            break
        device_ids, rounds = patterns.with_count(int(count))
        for start in range(0, len(rounds), CHUNK):
            values = sensitivities.of(rounds[start : start + CHUNK])
            place = int(values.argmax())
            if values[place] > best.value:
                row = start + place
                best = TraceSensitivity(float(values[place]), int(device_ids[row]), tuple(rounds[row].tolist()))
    return best
