"""Participation in a trace: exact counts, gaps, min-sep and max participations."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.base.arrays import BoolArray, Float64Array, Int64Array, UInt32Array, UInt64Array
from fedray.base.errors import TraceError
from fedray.mechanisms.participation import MinSep
from fedray.scenario.buffer import Buffer, PolynomialWeighting
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace

CHUNK = 1 << 16
"""Number of devices processed together, which bounds memory and gives threads parts to share; fewer
if each took part more than 32 times."""
ROWS = 1 << 20
"""Number of participations, of whole devices, whose temporary arrays are in memory together."""


class Chosen(NamedTuple):
    """Devices [Q] with the same number of participations c."""

    places: Int64Array
    """Places among all devices, [Q]."""
    rounds: Int64Array
    """Their patterns, [Q, c]."""
    weights: Float64Array | None
    """Factor on each contribution, [Q, c]; None if all are 1."""


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

    @property
    def devices_by_participations(self) -> dict[int, int]:
        """Number of devices by number of participations, from 1."""
        counts = enumerate(np.bincount(self.counts))
        # bincount begins with 0 participations, which no device has.
        return {count: int(devices) for count, devices in counts if count and devices}

    def blocks(self, first: int = 0, end: int | None = None) -> Iterator[tuple[slice, slice]]:
        """Yields neighbouring devices with about ROWS participations: their places among all
        devices, and the places of their participations in `rounds`.

        Args:
            first, end: places in `rounds` of the first participation of a device, and of another
                later device; default: of all devices.
        """
        end = self.rounds.size if end is None else end
        # A block starts with the device of every ROWS-th participation.
        devices = np.searchsorted(self.starts, np.arange(first, end, ROWS), side="right") - 1
        devices = np.append(np.unique(devices), np.searchsorted(self.starts, end))
        rows = [*self.starts[devices[:-1]].tolist(), end]
        for each in zip(pairwise(devices.tolist()), pairwise(rows), strict=True):
            yield slice(*each[0]), slice(*each[1])

    def later_in(self, devices: slice, rows: slice) -> Int64Array:
        """Returns the places [R] in `rounds` of the participations of a block that are not the
        first of their device."""
        is_later = np.ones(rows.stop - rows.start, np.bool_)
        is_later[self.starts[devices] - rows.start] = False
        return rows.start + np.flatnonzero(is_later)

    def pairs(self) -> Iterator[tuple[Int64Array, Int64Array]]:
        """Yields the gaps [R] of consecutive participations of a device, 1 for adjacent rounds, and
        the place [R] in `rounds` of the later participation of each, block by block."""
        for block in self.blocks():
            later = self.later_in(*block)
            # Converted to signed numbers first, since unsigned differences would wrap.
            yield self.rounds[later].astype(np.int64) - self.rounds[later - 1], later

    @cached_property
    def pairs_by_gap(self) -> Int64Array:
        """Number of pairs of consecutive participations of a device by their gap, [n]."""
        counts = np.zeros(self.committed_rounds, np.int64)
        for gaps, _ in self.pairs():
            counts += np.bincount(gaps, minlength=counts.size)
        return counts

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
        n = self.committed_rounds
        return min((int(self._gaps_before(*each).min()) for each in self.blocks()), default=n)

    @property
    def participation(self) -> MinSep | None:
        """(n, b, k), which all devices keep; None if one repeats a round."""
        n, b = self.committed_rounds, self.min_sep
        return MinSep(n, b, self.max_participations) if b else None

    @cached_property
    def least_gaps(self) -> UInt32Array:
        """The least gap of each device, [P]; the number of committed rounds for one
        participation."""
        least = np.empty(self.counts.size, np.uint32)
        for devices, rows in self.blocks():
            first = self.starts[devices] - rows.start
            least[devices] = np.minimum.reduceat(self._gaps_before(devices, rows), first)
        return least

    def _gaps_before(self, devices: slice, rows: slice) -> UInt32Array:
        """Gap before each participation of a block, [R]; the number of committed rounds before a
        device's first."""
        rounds = self.rounds[rows]
        gaps = np.empty_like(rounds)
        # Differences across two devices are meaningless, and unsigned ones may wrap; the next line
        # overwrites them.
        np.subtract(rounds[1:], rounds[:-1], out=gaps[1:])
        gaps[self.starts[devices] - rows.start] = self.committed_rounds
        return gaps

    def rounds_within(self, rounds: int, end: int | None = None) -> Int64Array:
        """Returns the number of different rounds that are a device's own or among the `rounds` - 1
        after one, [P].

        Args:
            rounds: number of rounds from each participation on, at least 1.
            end: number of rounds to count in; None for all.
        """
        end = self.committed_rounds if end is None else end
        found = np.empty(self.counts.size, np.int64)
        for devices, rows in self.blocks():
            own = np.minimum(self.rounds[rows].astype(np.int64), end)
            # Each participation counts until the next one, the last one until the end.
            following = np.append(own[1:], end)
            lasts = self.starts[devices] - rows.start + self.counts[devices] - 1
            following[lasts] = end
            first = self.starts[devices] - rows.start
            found[devices] = np.add.reduceat(np.minimum(rounds, following - own), first)
        return found

    @cached_property
    def starts(self) -> Int64Array:
        """Place in `rounds` of each device's first participation, [P]."""
        return np.cumsum(self.counts) - self.counts

    def with_count(self, count: int) -> Iterator["Chosen"]:
        """Yields the devices with exactly `count` participations, in parts."""
        return self.first_rounds(self.counts, count)

    def first_rounds(self, counts: Int64Array, count: int) -> Iterator["Chosen"]:
        """Yields the first `count` participations of the devices whose entry of `counts` [P] is
        `count`, in parts. Each such device must have at least `count`."""
        # Parts of about equally many rounds each, whatever the count.
        step = max(1, min(CHUNK, 32 * CHUNK // count))
        left = np.empty(0, np.int64)
        for first in range(0, counts.size, ROWS):
            found = first + np.flatnonzero(counts[first : first + ROWS] == count)
            left = np.concatenate([left, found])
            # Parts are full, but for the last one, however devices are searched.
            is_last = first + ROWS >= counts.size
            whole = left.size if is_last else left.size - left.size % step
            for start in range(0, whole, step):
                chosen = left[start : min(start + step, whole)]
                rows = self.starts[chosen][:, None] + np.arange(count)
                weights = None if self.weights is None else self.weights[rows]
                yield Chosen(chosen, self.rounds[rows].astype(np.int64), weights)
            left = left[whole:]

    def so_far(self, numbers: Sequence[int]) -> Iterator["PatternsSoFar"]:
        """Yields the patterns after each of the increasing `numbers` of released rounds. Each is
        valid until the next."""
        # The least gap of the pairs that are complete after each round.
        least = np.full(self.committed_rounds, self.committed_rounds)
        for gaps, later in self.pairs():
            np.minimum.at(least, self.rounds[later].astype(np.intp), gaps)
        least = np.minimum.accumulate(least)
        counts = np.empty_like(self.counts)
        for number in numbers:
            for devices, rows in self.blocks():
                is_released = (self.rounds[rows] < number).astype(np.int64)
                first = self.starts[devices] - rows.start
                np.add.reduceat(is_released, first, out=counts[devices])
            yield PatternsSoFar(self, number, counts, min(int(least[number - 1]), number))


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

    def without(self, is_left_out: BoolArray) -> "PatternsSoFar":
        """Returns the patterns as if some devices [P] had not come."""
        return self._replace(counts=np.where(is_left_out, 0, self.counts))

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
        return self.whole.first_rounds(self.counts, count)


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
    # As many as there are rows; pages that are not written take no memory.
    most = sum(part["rows"] for part in trace.run["parts"])
    columns: dict[str, NDArray] = {}
    sizes = Counter[str]()
    for part in patterns_by_part(trace):
        for name in ("device_ids", "counts", "rounds", "weights", "owner_ids"):
            # Either all parts have weights or owners, or none has.
            if (column := getattr(part, name)) is not None:
                if name not in columns:
                    columns[name] = np.empty(most, column.dtype)
                columns[name][sizes[name] : sizes[name] + column.size] = column
                sizes[name] += column.size
    columns = {name: whole[: sizes[name]] for name, whole in columns.items()}
    return Patterns(trace.committed_rounds, **columns)


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
