"""Who took part when: exact counts, gaps, min-sep and max participations of a trace."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedray.errors import TraceError
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace

CHUNK = 1 << 18
"""Devices that are looked at together, so that memory stays bounded; fewer where each took part
more than 32 times."""


@dataclass(frozen=True)
class Patterns:
    """Every participating device's rounds, device after device.

    device_ids [P]: sorted. counts [P]: participations of each device, at least 1. rounds [A]: in
    order of (device, round).
    """

    committed_rounds: int
    """n: rounds that released a model."""
    device_ids: NDArray[np.uint64]
    counts: NDArray[np.int64]
    rounds: NDArray[np.uint32]

    @property
    def participations(self) -> int:
        """Accepted updates, A."""
        return int(self.rounds.size)

    @property
    def max_participations(self) -> int:
        """k: most participations of a device."""
        return int(self.counts.max())

    @cached_property
    def gaps(self) -> NDArray[np.int64]:
        """Differences between consecutive rounds of a device, all devices together [A - P]."""
        return self.gaps_and_places[0]

    @cached_property
    def gaps_and_places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The gaps [A - P], and the place in `rounds` of the later participation of each."""
        is_first = np.zeros(self.rounds.size, np.bool_)
        is_first[self.starts] = True
        later = np.flatnonzero(~is_first)
        return self.rounds[later].astype(np.int64) - self.rounds[later - 1], later

    @cached_property
    def min_sep(self) -> int:
        """b: least gap; the number of committed rounds if nobody took part twice."""
        # Where one device's rounds end and the next one's begin, a difference means nothing, and
        # unsigned numbers may wrap; the next line overwrites it.
        differences = self.rounds[1:] - self.rounds[:-1]
        differences[self.starts[1:] - 1] = self.committed_rounds
        return int(differences.min(initial=self.committed_rounds))

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Place in `rounds` of each device's first participation [P]."""
        return np.cumsum(self.counts) - self.counts

    def with_count(self, count: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """(places among the devices [Q], patterns [Q, count]) of those with exactly that many
        participations, in parts."""
        places = np.flatnonzero(self.counts == count)
        step = max(1, min(CHUNK, 32 * CHUNK // count))
        for start in range(0, places.size, step):
            chosen = places[start : start + step]
            yield (
                chosen,
                self.rounds[self.starts[chosen][:, None] + np.arange(count)].astype(np.int64),
            )

    def before(self, round_index: int) -> "Patterns":
        """The participations in rounds 0 .. round_index - 1; devices without any are left out."""
        kept = self.rounds < round_index
        counts = np.add.reduceat(kept.astype(np.int64), self.starts)
        some = counts > 0
        return Patterns(round_index, self.device_ids[some], counts[some], self.rounds[kept])


def read_patterns(trace: Trace | ImportedTrace) -> Patterns:
    """The patterns of a trace. Raises TraceError if no round was committed, TraceCorrupt if its
    rows break an invariant."""
    if trace.committed_rounds == 0:
        raise TraceError(
            f"trace {str(trace.path)!r} has no committed round, so nothing was released; there is "
            "nothing to audit"
        )
    device_ids = []
    counts = []
    rounds = []
    for part in trace.accepted():
        starts = np.flatnonzero(
            np.concatenate([[True], part.device_ids[1:] != part.device_ids[:-1]])[
                : part.device_ids.size
            ]
        )
        device_ids.append(part.device_ids[starts])
        counts.append(np.diff(np.append(starts, part.device_ids.size)))
        rounds.append(part.rounds)
    return Patterns(
        trace.committed_rounds,
        np.concatenate(device_ids),
        np.concatenate(counts),
        np.concatenate(rounds),
    )
