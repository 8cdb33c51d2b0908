"""Restarts: rounds at which a mechanism restarts, so that the releases before and after are
    independent (Xu et al. 2023, Algorithm 1).

C is then block diagonal, one block per segment between restarts, and the squared sensitivity of a
pattern is the sum over its parts in the segments.
"""

from itertools import pairwise
from typing import Annotated

from pydantic import AfterValidator, Field


def _increase(restarts: tuple[int, ...]) -> tuple[int, ...]:
    if any(later <= earlier for earlier, later in pairwise(restarts)):
        raise ValueError(f"restarts={list(restarts)} must increase; sort them, drop repeats")
    return restarts


Restarts = Annotated[
    tuple[Annotated[int, Field(ge=1)], ...], Field(strict=False), AfterValidator(_increase)
]
"""Rounds of restarts, increasing; those beyond the rounds that happen do nothing."""


def segments_of(restarts: tuple[int, ...], rounds: int) -> list[tuple[int, int]]:
    """Returns (start, end) of each segment of `rounds` rounds, in order."""
    return list(pairwise([0, *(restart for restart in restarts if restart < rounds), rounds]))
