"""Participation: the patterns of rounds in which a device may take part."""

from collections.abc import Iterator
from dataclasses import dataclass

from fedray.base.errors import InputError

MOST_ROUNDS = 1 << 22
"""Largest number of rounds supported; draws of the noise have no addresses for later rounds."""


@dataclass(frozen=True, slots=True)
class MinSep:
    """(b, k)-min-sep participation over `rounds` rounds (Choquette-Choo et al. 2023, "(Amplified)
    banded MF", section 2).

    Raises:
        InputError: a value is below 1, a run is longer than MOST_ROUNDS, or
            `max_participations` exceeds ceil(n / b).
    """

    rounds: int
    """n, number of rounds of the run; they are numbered from 0."""
    min_sep: int
    """b, smallest difference between two rounds of the same device; 1 permits every round."""
    max_participations: int
    """k, largest number of rounds of a device; at most ceil(n / b)."""

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise InputError.of("rounds", self.rounds, "must be at least 1")
        if max(self.rounds, self.min_sep) > MOST_ROUNDS:
            raise InputError(
                f"rounds={self.rounds}, min_sep={self.min_sep}: neither may exceed {MOST_ROUNDS:,}"
            )
        if not self.min_sep >= 1:
            raise InputError.of(
                "min_sep", self.min_sep, "must be at least 1", "1 permits every round"
            )
        k = self.max_participations
        if not k >= 1:
            raise InputError.of("max_participations", k, "must be at least 1")
        most = -(-self.rounds // self.min_sep)
        if k > most:
            raise InputError.of(
                "max_participations",
                k,
                f"is more than ceil(rounds / min_sep) = {most}: in {self.rounds} rounds no device "
                f"takes part so often {self.min_sep} apart",
                "lower it",
            )

    def patterns(self) -> Iterator[tuple[int, ...]]:
        """Yields every permitted pattern, including the empty one, as a tuple of increasing rounds.

        The number of patterns is exponential; use this only for checks at small sizes.
        """
        stack: list[tuple[int, ...]] = [()]
        while stack:
            pattern = stack.pop()
            yield pattern
            if len(pattern) < self.max_participations:
                # Only later rounds are appended, so every pattern occurs once.
                first = pattern[-1] + self.min_sep if pattern else 0
                stack.extend((*pattern, later) for later in range(first, self.rounds))
