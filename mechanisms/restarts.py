"""Restarts: rounds at which a mechanism resets its noise (Xu et al. 2023, Algorithm 1).

C is then block diagonal, with one block per segment between restarts. The squared sensitivity of a
pattern is the sum of the squared sensitivities of its parts in the segments.
"""

from itertools import pairwise
from typing import Annotated

from pydantic import AfterValidator, Field


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
