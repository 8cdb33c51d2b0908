"""A Toeplitz mechanism with restarts at given rounds, like the published tree runs with adaptive
clipping (Xu et al. 2023, Algorithm 1).

C is block diagonal; each block is the Toeplitz matrix of its segment's length. Trees have a key
`restarts` of their own; a matrix from a file contains its blocks.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from fedray.base.arrays import Float64Array, Int64Array
from .band_fhu import BandFHU
from .bisr import BISR
from .blt import BLT
from .fixed_order import fixed_order_sensitivity
from .participation import MinSep
from .recurrence import Recurrence
from .restarts import PROGRAM_PARTICIPATIONS, Restarts, segments_of, undominated
from .sensitivity import any_strategy_sensitivity, orthogonal_sensitivity
from .strategy import Sensitivity, Strategy
from .toeplitz import Toeplitz, ToeplitzStrategy
from .workload import PREFIX, Workload


class Restarted(Strategy):
    """A Toeplitz mechanism with restarts, for any number of rounds."""

    kind: Literal["restarted"] = "restarted"  # pyright: ignore[reportIncompatibleVariableOverride]  (frozen, so narrowing is safe)
    """A Toeplitz mechanism with restarts."""
    mechanism: Annotated[BLT | Toeplitz | BandFHU | BISR, Field(discriminator="kind")]
    """The mechanism to restart: a table with `kind` blt, toeplitz, band-fhu or bisr."""
    restarts: Annotated[Restarts, Field(min_length=1)]
    """Rounds of the restarts, increasing; restarts after the last round have no effect."""
    paper: ClassVar[str] = "Xu et al. 2023"

    def segments(self, rounds: int) -> list[tuple[int, int]]:
        """Returns (start, end) of each segment between restarts, in order."""
        self.check_rounds(rounds)
        return segments_of(self.restarts, rounds)

    def longest_segment(self, rounds: int) -> int:
        """Returns the number of rounds of the longest segment."""
        return max(end - start for start, end in self.segments(rounds))

    def definition(self, rounds: int) -> Float64Array:
        # Each restart resets the mechanism, so C is block diagonal.
        starts = [0, *(each for each in self.restarts if each < rounds)]
        C = np.zeros((rounds, rounds))
        for start, end in zip(starts, [*starts[1:], rounds], strict=True):
            C[start:end, start:end] = self.mechanism.definition(end - start)
        return C

    def gram_entries(self, first: Int64Array, second: Int64Array, rounds: int) -> Float64Array:
        entries = np.zeros(np.shape(first))
        for start, end in self.segments(rounds):
            # first <= second, so both are in the segment. Entries between segments stay zero.
            inside = np.nonzero((first >= start) & (second < end))
            entries[inside] = self.mechanism.gram_entries(
                first[inside] - start, second[inside] - start, end - start
            )
        return entries

    def gram(self, rounds: int) -> Float64Array:
        G = np.zeros((rounds, rounds))
        for start, end in self.segments(rounds):
            G[start:end, start:end] = self.mechanism.gram(end - start)
        return G

    def pattern_square(self, pattern: Int64Array, rounds: int) -> float | None:
        square = 0.0
        for start, end in self.segments(rounds):
            inside = pattern[(pattern >= start) & (pattern < end)] - start
            part = self.mechanism.pattern_square(inside, end - start)
            if part is None:
                return None
            square += part
        return square

    def diagonals(self, rounds: int) -> int:
        return self.mechanism.diagonals(self.longest_segment(rounds))

    def is_quick_under_participation(self, rounds: int) -> bool:
        return self.mechanism.is_non_increasing(self.longest_segment(rounds))

    def noise_growth(self, rounds: int) -> float:
        return self.mechanism.noise_growth(self.longest_segment(rounds))

    def recurrence(self, rounds: int) -> Recurrence:
        # The recurrence of the longest segment covers all segments, with a reset at each start.
        within = self.mechanism.recurrence(self.longest_segment(rounds))
        return replace(within, starts=tuple(start for start, _ in self.segments(rounds)))

    def fixed_order_sensitivity(self, participation: MinSep) -> Sensitivity:
        return fixed_order_sensitivity(self, participation)

    def min_sep_sensitivity(self, participation: MinSep) -> Sensitivity:
        n, k = participation.rounds, participation.max_participations
        is_ordered = self.mechanism.is_non_increasing(self.longest_segment(n))
        # The program is exact if the earliest rounds are the worst; else the value is exact only if
        # columns b rounds apart are orthogonal (bands <= b).
        if is_ordered and k <= PROGRAM_PARTICIPATIONS:
            segments = tuple(self.segments(n))
            best = _largest_square(self.mechanism, segments, participation)  # pyright: ignore[reportArgumentType]  (frozen, so it has a hash)
            theorem = (
                "McMahan, Xu, Zhang 2024, Theorem 3.1 in each segment (dynamic program over the "
                "segments)"
            )
            value = best.square**0.5
            return Sensitivity(value, True, theorem, value, best.pattern)
        if self.diagonals(n) <= participation.min_sep:
            rounds = np.arange(n)
            return orthogonal_sensitivity(self.gram_entries(rounds, rounds, n), participation)
        return any_strategy_sensitivity(self, participation)  # pyright: ignore[reportArgumentType]  (frozen, so it has a hash)

    def noise_blocks(self, rounds: int) -> Iterator[tuple[int, Float64Array]]:
        for start, end in self.segments(rounds):
            for first, block in self.mechanism.noise_blocks(end - start):
                later = np.zeros((rounds - end, block.shape[1]))
                yield start + first, np.concatenate([block, later])

    def error_variances(self, rounds: int, workload: Workload = PREFIX) -> Float64Array:
        if not workload.is_prefix:
            return super().error_variances(rounds, workload)
        variances = np.zeros(rounds)
        finished = 0.0
        for start, end in self.segments(rounds):
            variances[start:end] = finished + self.mechanism.error_variances(end - start)
            # Every later prefix has the noise of the whole sum of a finished segment.
            finished = variances[end - 1]
        return variances


class _Best(NamedTuple):
    """A pattern within the segments so far."""

    square: float
    """Squared sensitivity."""
    free: int
    """First round that may follow the pattern."""
    pattern: tuple[int, ...]


@lru_cache(maxsize=64)
def _largest_square(
    mechanism: ToeplitzStrategy, segments: tuple[tuple[int, int], ...], participation: MinSep
) -> _Best:
    """Returns the worst pattern for a mechanism with non-increasing coefficients.

    G[i, j] of a segment then decreases in j and in j - i. So among patterns with given numbers of
    participations per segment, the one with the earliest rounds is the worst, as each of its
    entries is the largest. The dynamic program chooses these numbers.
    """
    b, k = participation.min_sep, participation.max_participations
    by_count: list[list[_Best]] = [[_Best(0.0, 0, ())]]
    for start, end in segments:
        found: list[list[_Best]] = [[] for _ in range(k + 1)]
        # Keyed by first round, which many patterns share.
        squares: dict[int, list[float]] = {}
        for count, each in enumerate(by_count):
            for best in each:
                first = max(best.free, start)
                if first not in squares:
                    squares[first] = _regular_squares(mechanism, end - first, b, k)
                for own, square in enumerate(squares[first][: k + 1 - count]):
                    rounds = tuple(range(first, first + own * b, b))
                    # Theorem 3.1 holds within a segment; a dynamic program chooses how many
                    # participations each segment gets.
                    # Segments are orthogonal, so their squares add up.
                    # A device in the last rounds of this segment must wait beyond its end.
                    free = max(end, first + own * b)
                    longer = _Best(best.square + square, free, best.pattern + rounds)
                    found[count + own].append(longer)
        by_count = [undominated(each, lambda best: best.free) for each in found]
    return max((best for each in by_count for best in each), key=lambda best: best.square)


def _regular_squares(
    mechanism: ToeplitzStrategy, rounds: int, min_sep: int, most: int
) -> list[float]:
    """Returns the squared sensitivities of 0, 1, 2, ... participations, min_sep apart from round 0
    on; at most `most`, and no more than fit into the rounds."""
    squares = [0.0]
    if rounds <= 0:
        return squares
    c = mechanism.first_column(rounds)
    column = np.zeros(rounds)
    for start in range(0, min(rounds, most * min_sep), min_sep):
        column[start:] += c[: rounds - start]
        squares.append(float(column @ column))
    return squares
