"""TreeAgg-Full: the binary tree with the best linear decoder, A C^+ (Moore-Penrose).

The tree's matrix T has one row per node. Its mechanism is the square one with C'C = T'T, C lower
triangular: the same sensitivity for every pattern, and A C^-1 (A C^-1)' = A (T'T)^-1 A' = A T^+ (A
T^+)', so the same error; and C can be streamed. Source: Denisov et al. 2022, section 5 and
appendix; Honaker 2015 ("Efficient use of differentially private binary trees").
"""

from functools import lru_cache
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.strategy import Sensitivity
from fedray.mechanisms.tree import Segment, forest, forest_gram, forest_sensitivity
from fedray.mechanisms.triangular import MOST_ROUNDS, TriangularStrategy, lower_factor


class TreeFull(TriangularStrategy):
    """Tree aggregation with the full estimate, for a fixed number of rounds: the estimate of least
    variance that the tree's noise allows."""

    kind: Literal["tree-full"] = "tree-full"  # pyright: ignore[reportIncompatibleVariableOverride]  (frozen, so narrowing is safe)
    """Binary tree, full decoder."""
    rounds: Annotated[int, Field(ge=1, le=MOST_ROUNDS)]
    """Rounds of the run; the decoder depends on them."""
    completion: bool = False
    """Whether virtual rounds of zeros fill the tree to the next power of two."""
    paper: ClassVar[str] = "Denisov et al. 2022; Honaker 2015"

    @property
    def most_rounds(self) -> int:
        return self.rounds

    @property
    def matrix(self) -> NDArray[np.float64]:
        return _factor(self.rounds, self.completion)

    def participation_sensitivity(self, participation: MinSep) -> Sensitivity:
        """By the tree's own program, where the whole run is asked for; else as for any matrix."""
        self.check_rounds(participation.rounds)
        # C'C = T'T, so over the whole run every pattern has the tree's own sensitivity. The
        # leading block of C belongs to no tree.
        if participation.rounds == self.rounds:
            trees = forest([Segment(0, self.rounds, self.completion)])
            return forest_sensitivity(tuple(trees), participation)
        return super().participation_sensitivity(participation)


@lru_cache(maxsize=4)
def _factor(rounds: int, has_completion: bool) -> NDArray[np.float64]:
    trees = forest([Segment(0, rounds, has_completion)])
    return lower_factor(forest_gram(trees, rounds))
