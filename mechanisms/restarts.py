"""Restarts: rounds at which a mechanism resets its noise (Xu et al. 2023, Algorithm 1).

C is then block diagonal, with one block per segment between restarts. The squared sensitivity of a
pattern is the sum of the squared sensitivities of its parts in the segments.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Annotated, Protocol, TypeVar

from pydantic import AfterValidator, Field

PROGRAM_PARTICIPATIONS = 300
"""Number of participations up to which the exact programs over trees and segments take seconds;
their time grows with its square."""


class _Pattern(Protocol):
    @property
    def square(self) -> float: ...


_Best = TypeVar("_Best", bound=_Pattern)


def _increase(restarts: tuple[int, ...]) -> tuple[int, ...]:
    if any(later <= earlier for earlier, later in pairwise(restarts)):
        raise ValueError(f"restarts={list(restarts)} must increase; sort them without repeats")
    return restarts


Restarts = Annotated[
    tuple[Annotated[int, Field(ge=1)], ...], Field(strict=False), AfterValidator(_increase)
]
"""Rounds of restarts, increasing; restarts after the last round have no effect."""


def segments_of(restarts: tuple[int, ...], rounds: int) -> list[tuple[int, int]]:
    """Returns (start, end) of each segment of a run, in order."""
    inside = [restart for restart in restarts if restart < rounds]
    return list(pairwise([0, *inside, rounds]))


def undominated(candidates: Iterable[_Best], position: Callable[[_Best], int]) -> list[_Best]:
    """Returns the patterns that are Pareto-optimal in a large square and an early position."""
    kept: list[_Best] = []
    # Sorted by position, so a pattern that does not exceed the previous square is dominated.
    for best in sorted(candidates, key=lambda best: (position(best), -best.square)):
        if not kept or best.square > kept[-1].square:
            kept.append(best)
    return kept
