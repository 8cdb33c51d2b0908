"""Participation: the patterns of rounds in which a device may take part."""

import operator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from fedray.base.document import IfAny, Key, NotInJson
from fedray.base.errors import InputError

MOST_ROUNDS = 1 << 22
"""Largest number of rounds supported; draws of the noise have no addresses for later rounds."""


def most_of_device(rounds: int, min_sep: int) -> int:
    """Returns ceil(rounds / min_sep): a device has room in rounds 0, min_sep, 2 min_sep, ..."""
    return -(-rounds // min_sep)


@dataclass(frozen=True, slots=True)
class MinSep:
    """(b, k)-min-sep participation over `rounds` rounds (Choquette-Choo et al. 2023, "(Amplified)
    banded MF", section 2), or in a fixed order.

    Raises:
        TypeError: a value is not a whole number.
        InputError: a value is below 1, a run is longer than MOST_ROUNDS, or
            `max_participations` exceeds ceil(n / b).
    """

    rounds: int
    """n, number of rounds of the run; they are numbered from 0."""
    min_sep: int
    """b, smallest difference between two rounds of the same device; 1 permits every round."""
    max_participations: int
    """k, largest number of rounds of a device; at most ceil(n / b)."""
    is_fixed_order: Annotated[
        NotInJson[bool],
        # Left out at its default, so that events in any order have no such key.
        Field(exclude_if=lambda is_fixed_order: not is_fixed_order),
    ] = False
    """Whether two consecutive rounds of a device are exactly b apart, as in passes of b rounds over
    data in one order: (k, b)-participation (Choquette-Choo et al. 2022, "Multi-epoch matrix
    factorization mechanisms for private machine learning", section 2)."""

    @property
    def fixed_order(self) -> Annotated[IfAny[bool], Key("is_fixed_order")]:
        """Whether consecutive rounds of a device are exactly b apart; absent for any order."""
        return self.is_fixed_order or None

    def __post_init__(self) -> None:
        # Half a round would pass the comparisons below, and no theorem has one.
        for count in (self.rounds, self.min_sep, self.max_participations):
            operator.index(count)
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
        most = most_of_device(self.rounds, self.min_sep)
        if k > most:
            raise InputError.of(
                "max_participations",
                k,
                f"is more than ceil(rounds / min_sep) = {most}: in {self.rounds} rounds no device "
                f"takes part so often {self.min_sep} apart",
                "lower it",
            )
