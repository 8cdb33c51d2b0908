"""The base class of statements about participation, and the facts that they are checked against."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.audit.findings import Evidence, Finding, Verdict
from fedray.audit.participation import CHUNK, Patterns
from fedray.base.arrays import BoolArray, Int64Array, UInt64Array
from fedray.mechanisms.participation import MinSep
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace

MOST_EVIDENCE = 10
"""Largest number of devices that a finding shows."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A trace that a claim is checked against."""

    trace: Trace | ImportedTrace
    """The trace."""
    patterns: Patterns
    """Rounds of every device."""
    name_of: Callable[[int], str]
    """Function that returns the shown name of a device id."""

    def evidence(self, device_id: int, rounds: Sequence[int], shows: str, of: int = 1) -> Evidence:
        """Returns evidence, the closest `of` several pairs; for an imported log, it also has the
        log's numbers of the rounds."""
        pattern = tuple(rounds)
        if of > 1:
            shows += f", the closest of {of:,} pairs"
        own = pattern
        if isinstance(self.trace, ImportedTrace):
            own = tuple(self.trace.round_labels(np.array(pattern)).tolist())
            if any(np.diff(own) != np.diff(pattern)):  # the log also numbers rounds without a model
                shows = shows.replace("round", "released round")
        return Evidence(self.name_of(device_id), pattern, shows, own if own != pattern else ())


class Breaches(NamedTuple):
    """Rows of an evidence file."""

    device_ids: UInt64Array | None
    """[R]; None if no device is at fault."""
    rounds: NDArray
    """First and last round, [R, 2]."""
    found: NDArray
    """Figure that breaks the statement, [R]."""


class Statement(ABC):
    """A statement about participation. Its methods get the claimed value, which is not None."""

    key: ClassVar[str]
    """Key of the claim."""

    @abstractmethod
    def check(self, claimed: Any, subject: Subject) -> Finding:
        """Returns the finding, with the worst breaches or the binding devices as evidence.

        A log may lack participations (`ImportedTrace.incompleteness`). BROKEN stands even then, so
        return UNCHECKED where further participations could mend a breach.
        """

    @abstractmethod
    def breaches(self, claimed: Any, subject: Subject) -> Iterator[Breaches]:
        """Yields every breach, in the order of devices and rounds, at most CHUNK at a time."""

    def without_pairs(self, claimed: Any, advised: str) -> Finding:
        """Returns the finding on a trace in which no device took part twice."""
        return Finding(
            statement=self.key,
            verdict=Verdict.HOLDS,
            claimed=claimed,
            should_say=advised,
            explanation="no device took part twice",
        )

    def words(self, claimed: Any, rounds: int, trace: Trace | ImportedTrace) -> str:
        """Returns the statement over `rounds` rounds as "key = value", with doubts in brackets;
        empty if it states no limit."""
        del rounds, trace
        return f"{self.key} = {claimed:,}"

    def implied(self, claimed: Any, rounds: int, trace: Trace | ImportedTrace) -> MinSep | None:
        """Returns the participation that the statement permits over `rounds` rounds; None if it
        limits nothing."""
        del claimed, rounds, trace
        return None


def worst_pairs(
    apart: NDArray, is_close: BoolArray, devices_at: Callable[[Int64Array], UInt64Array]
) -> tuple[int, list[tuple[int, int]]]:
    """Returns the number of devices with close pairs, and of the worst MOST_EVIDENCE the place of
    the closest pair and their number. If no pair is close, the closest of all stands there.

    Args:
        apart: distances of pairs, [R].
        is_close: whether a pair breaks the claim, [R].
        devices_at: function that returns the devices of the pairs at some places.
    """
    close = np.flatnonzero(is_close)
    places = close if close.size else np.argsort(apart, kind="stable")[:1]
    # In order of distance, so that the first of a device is its closest.
    places = places[np.argsort(apart[places], kind="stable")]
    _, first, counts = np.unique(devices_at(places), return_index=True, return_counts=True)
    worst = np.lexsort((-counts, apart[places[first]]))[:MOST_EVIDENCE]
    found = zip(places[first[worst]].tolist(), counts[worst].tolist(), strict=True)
    return first.size if close.size else 0, [*found]


def of_devices(patterns: Patterns, is_breach: BoolArray) -> Iterator[Breaches]:
    """Yields breaches by all participations of a device, [P] marks those devices."""
    for chosen in in_parts(is_breach):
        first, counts = patterns.starts[chosen], patterns.counts[chosen]
        rounds = np.column_stack([patterns.rounds[first], patterns.rounds[first + counts - 1]])
        yield Breaches(patterns.device_ids[chosen], rounds, counts)


def in_parts(is_breach: BoolArray) -> Iterator[Int64Array]:
    """Yields the places of breaches, at most CHUNK at a time."""
    places = np.flatnonzero(is_breach)
    for start in range(0, places.size, CHUNK):
        yield places[start : start + CHUNK]
