"""Participation in a trace: exact counts, gaps, min-sep and max participations."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fedray.base.arrays import Float64Array, Int64Array, UInt32Array, UInt64Array
from fedray.base.errors import TraceError
from fedray.mechanisms.participation import MinSep
from fedray.scenario.buffer import Buffer, PolynomialWeighting
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace

CHUNK = 1 << 16
"""Number of devices processed together, which bounds memory and gives threads parts to share; fewer
if each took part more than 32 times."""


class Chosen(NamedTuple):
    """Devices [Q] with the same number of participations c.

    places: places among all devices, [Q].
    rounds: their patterns, [Q, c].
    weights: factor on each contribution, [Q, c]; None if all are 1.
    """

    places: Int64Array
    rounds: Int64Array
    weights: Float64Array | None


@dataclass(frozen=True)
class Patterns:
    """Rounds of every participating device, device after device: P devices, A participations.

    An audit needs nothing else of a trace: 4 bytes per participation and 16 per device.
    """

    committed_rounds: int
    """n: number of rounds that released a model."""
    device_ids: UInt64Array
    """Devices that took part at least once, [P], sorted."""
    counts: Int64Array
    """Number of participations of each device, [P], at least 1."""
    rounds: UInt32Array
    """Rounds of the participations, [A], in order of (device, round)."""
    weights: Float64Array | None = None
    """Factor on each contribution, [A], at most 1; None if all are 1."""
    owner_ids: UInt64Array | None = None
    """Owner of each device, [P]; None if owners are unknown."""

    @property
    def participations(self) -> int:
        """A: number of accepted updates in committed rounds, over all devices."""
        return int(self.rounds.size)

    @property
    def max_participations(self) -> int:
        """k: largest number of participations of a device. Two contributions to one round count
        twice."""
        return int(self.counts.max())

    @cached_property
    def gaps(self) -> Int64Array:
        """Differences between consecutive rounds of a device, over all devices [A - P]; 1 for
        adjacent rounds."""
        return self.gaps_and_places[0]

    @cached_property
    def gaps_and_places(self) -> tuple[Int64Array, Int64Array]:
        """The gaps [A - P], and the place in `rounds` of the later participation of each."""
        is_first = np.zeros(self.rounds.size, np.bool_)
        is_first[self.starts] = True
        later = np.flatnonzero(~is_first)
        # Converted to signed numbers first, since unsigned differences would wrap.
        later_rounds = self.rounds[later].astype(np.int64)
        return later_rounds - self.rounds[later - 1], later

    def devices_at(self, places: Int64Array) -> UInt64Array:
        """Returns the devices [R] of participations at places [R] in `rounds`."""
        # The device of a row is the last one whose rows start at it or before.
        return self.device_ids[np.searchsorted(self.starts, places, side="right") - 1]

    def pairs_at(self, later: Int64Array) -> tuple[UInt64Array, UInt32Array]:
        """Returns pairs of consecutive participations: their devices [R], and their rounds [R, 2].

        Args:
            later: places [R] in `rounds` of the later participation of each pair.
        """
        pairs = np.column_stack([self.rounds[later - 1], self.rounds[later]])
        return self.devices_at(later), pairs

    @cached_property
    def min_sep(self) -> int:
        """b: the least gap, in rounds. The number of committed rounds if no device took part twice,
        and 0 if a device contributed twice to a round."""
        return int(self._gaps_before().min(initial=self.committed_rounds))

    @property
    def participation(self) -> MinSep | None:
        """(n, b, k), which all devices keep; None if one repeats a round."""
        n, b = self.committed_rounds, self.min_sep
        return MinSep(n, b, self.max_participations) if b else None

    @cached_property
    def least_gaps(self) -> UInt32Array:
        """The least gap of each device, [P]; the number of committed rounds for one
        participation."""
        return np.minimum.reduceat(self._gaps_before(), self.starts)

    def _gaps_before(self) -> UInt32Array:
        """Gap before each participation, [A]; the number of committed rounds before a device's
        first."""
        gaps = np.empty_like(self.rounds)
        # Differences across two devices are meaningless, and unsigned ones may wrap; the next line
        # overwrites them.
        np.subtract(self.rounds[1:], self.rounds[:-1], out=gaps[1:])
        gaps[self.starts] = self.committed_rounds
        return gaps

    @cached_property
    def starts(self) -> Int64Array:
        """Place in `rounds` of each device's first participation, [P]."""
        return np.cumsum(self.counts) - self.counts

    def with_count(self, count: int) -> Iterator["Chosen"]:
        """Yields the devices with exactly `count` participations, in parts."""
        return self.first_rounds(np.flatnonzero(self.counts == count), count)

    def first_rounds(self, places: Int64Array, count: int) -> Iterator["Chosen"]:
        """Yields the first `count` participations of the devices at `places` [Q], in parts. Each
        device must have at least `count`."""
        # Parts of about equally many rounds each, whatever the count.
        step = max(1, min(CHUNK, 32 * CHUNK // count))
        for start in range(0, places.size, step):
            chosen = places[start : start + step]
            rows = self.starts[chosen][:, None] + np.arange(count)
            weights = None if self.weights is None else self.weights[rows]
            yield Chosen(chosen, self.rounds[rows].astype(np.int64), weights)

    def so_far(self, numbers: Sequence[int]) -> Iterator["PatternsSoFar"]:
        """Yields the patterns after each of the increasing `numbers` of released rounds. Each is
        valid until the next."""
        gaps = self._gaps_before()
        owners = np.repeat(np.arange(self.counts.size), self.counts)
        counts = np.zeros_like(self.counts)
        least, before = self.committed_rounds, 0
        for number in numbers:
            # Each participation is counted once, after its round is released.
            released = np.flatnonzero((self.rounds >= before) & (self.rounds < number))
            np.add.at(counts, owners[released], 1)
            least = int(gaps[released].min(initial=least))
            yield PatternsSoFar(self, number, counts, min(least, number))
            before = number


class PatternsSoFar(NamedTuple):
    """Patterns before all rounds were released."""

    whole: Patterns
    """The complete patterns."""
    committed_rounds: int
    """Number of rounds released so far."""
    counts: Int64Array
    """Number of participations so far of each device of `whole`, [P]; 0 for devices that came
    later."""
    min_sep: int
    """As `Patterns.min_sep`."""

    @property
    def device_ids(self) -> UInt64Array:
        """The devices of `whole`, [P]."""
        return self.whole.device_ids

    @property
    def max_participations(self) -> int:
        """As `Patterns.max_participations`."""
        return int(self.counts.max())

    def with_count(self, count: int) -> Iterator[Chosen]:
        """As `Patterns.with_count`."""
        return self.whole.first_rounds(np.flatnonzero(self.counts == count), count)


def read_patterns(trace: Trace | ImportedTrace) -> Patterns:
    """Returns the patterns of a trace: accepted participations in committed rounds.

    Args:
        trace: read part by part; the patterns take 4 bytes per participation and 16 per device.

    Raises:
        TraceError: no round was committed.
        TraceCorrupt: rows break an invariant of the format.
    """
    if trace.committed_rounds == 0:
        raise TraceError(
            f"trace {str(trace.path)!r} has no committed round, so nothing was released; there is "
            "nothing to audit"
        )
    parts = list(patterns_by_part(trace))

    def joined(name: str) -> Any:
        columns = [getattr(part, name) for part in parts]
        # Either all parts have weights or owners, or none has.
        return None if columns[0] is None else np.concatenate(columns)

    names = ("device_ids", "counts", "rounds", "weights", "owner_ids")
    return Patterns(trace.committed_rounds, *map(joined, names))


def patterns_by_part(trace: Trace | ImportedTrace) -> Iterator[Patterns]:
    """Yields the patterns of a trace, part by part: parts hold whole devices, in order. Raises
    TraceCorrupt."""
    weighting = _weighting_of(trace)
    for part in trace.accepted():
        is_other = part.device_ids[1:] != part.device_ids[:-1]
        # A part without rows has no first device, hence the slice.
        is_first = np.concatenate([[True], is_other])[: part.device_ids.size]
        starts = np.flatnonzero(is_first)
        weights = None
        if weighting is not None:
            assert part.versions is not None
            # The reader has checked that no version exceeds its round.
            weights = weighting.weights(part.rounds - part.versions)
        yield Patterns(
            trace.committed_rounds,
            part.device_ids[starts],
            np.diff(np.append(starts, part.device_ids.size)),
            part.rounds,
            weights,
            None if part.owner_ids is None else part.owner_ids[starts],
        )


def _weighting_of(trace: Trace | ImportedTrace) -> PolynomialWeighting | None:
    """Returns the weighting of updates by their staleness, or None if all weights are equal."""
    if not isinstance(trace, Trace) or not trace.is_buffered:
        return None
    buffer = Buffer.model_validate(trace.scenario["rounds"].get("buffer"))
    return buffer.weighting if isinstance(buffer.weighting, PolynomialWeighting) else None
