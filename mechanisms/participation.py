"""Participation: which patterns of rounds a device may show."""

from collections.abc import Iterator
from dataclasses import dataclass

from fedray.base.errors import InputError

MOST_ROUNDS = 1 << 22
"""Longest run that has a meaning here; noise has no address beyond."""


def gap_of(rounds_between: int) -> int:
    """Returns the min-sep b of devices that are kept apart by `rounds_between` rounds strictly
    between two participations.

    Published min-seps (MinS of Xu et al. 2023, and their code) count the rounds between; b is the
    difference of the two rounds' numbers, which is one more.
    """
    return rounds_between + 1


@dataclass(frozen=True, slots=True)
class MinSep:
    """(b, k)-min-sep participation over `rounds` rounds (Choquette-Choo et al. 2023, "(Amplified)
    banded MF", section 2).

    Raises:
        InputError: a value is below 1, a run is longer than MOST_ROUNDS, or no device can take part
            so often at that separation.
    """

    rounds: int
    """n, the rounds of the run; they are counted from 0."""
    min_sep: int
    """b, least difference of the numbers of two rounds of one device; 1 permits every round."""
    max_participations: int
    """k, most rounds of one device; at most ceil(n / b)."""

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise InputError.of(
                "rounds", self.rounds, "must be at least 1", "nothing is released in no rounds"
            )
        if max(self.rounds, self.min_sep) > MOST_ROUNDS:
            raise InputError(
                f"rounds={self.rounds}, min_sep={self.min_sep}: neither may exceed "
                f"{MOST_ROUNDS:,}; no run is so long"
            )
        if not self.min_sep >= 1:
            raise InputError.of(
                "min_sep",
                self.min_sep,
                "must be at least 1",
                "1 permits participation in every round",
            )
        if not self.max_participations >= 1:
            raise InputError.of(
                "max_participations",
                self.max_participations,
                "must be at least 1",
                "nobody else needs protection",
            )
        most = -(-self.rounds // self.min_sep)
        if self.max_participations > most:
            raise InputError.of(
                "max_participations",
                self.max_participations,
                f"is more than ceil(rounds / min_sep) = {most}: in {self.rounds} rounds no device "
                f"takes part so often {self.min_sep} apart",
                "lower it",
            )

    def patterns(self) -> Iterator[tuple[int, ...]]:
        """Every permitted pattern, the empty one included, each a tuple of increasing rounds.

        There are exponentially many; this is for checks at small sizes.
        """
        stack: list[tuple[int, ...]] = [()]
        while stack:
            pattern = stack.pop()
            yield pattern
            if len(pattern) < self.max_participations:
                first = pattern[-1] + self.min_sep if pattern else 0
                stack.extend((*pattern, later) for later in range(first, self.rounds))
