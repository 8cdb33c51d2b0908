"""TreeAgg-Full: the binary tree with the best linear decoder, A T^+ (Moore-Penrose).

The matrix T of the tree has one row per node. The equivalent square mechanism is the
lower-triangular C with C'C = T'T, which can be streamed. Every pattern has the same sensitivity
under both, and the error is the same: A C^-1 (A C^-1)' = A (T'T)^-1 A' = A T^+ (A T^+)'. Source:
Denisov et al. 2022, section 5 and appendix; Honaker 2015 ("Efficient use of differentially private
binary trees").
"""

from functools import lru_cache
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedray.base.arrays import Float64Array
from .participation import MinSep
from .strategy import Sensitivity
from .tree import Segment, Tree, forest, forest_gram, forest_sensitivity
from .triangular import MOST_MATRIX_ROUNDS, TriangularStrategy, lower_factor


class TreeFull(TriangularStrategy):
    """Tree aggregation with the full estimate, the linear estimate of least variance, for a fixed
    number of rounds."""

    kind: Literal["tree-full"] = "tree-full"  # pyright: ignore[reportIncompatibleVariableOverride]  (frozen, so narrowing is safe)
    """Binary tree, full decoder."""
    rounds: Annotated[int, Field(ge=1, le=MOST_MATRIX_ROUNDS)]
    """Number of rounds of the run, on which the decoder depends."""
    completion: bool = False
    """Whether virtual rounds of zeros fill the tree to the next power of two."""
    paper: ClassVar[str] = "Denisov et al. 2022; Honaker 2015"

    @property
    def most_rounds(self) -> int:
        return self.rounds

    @property
    def matrix(self) -> Float64Array:
        return _factor(self.rounds, self.completion)

    def definition(self, rounds: int) -> Float64Array:
        tree = Tree(completion=self.completion, rounds=self.rounds)
        nodes = tree.definition(self.rounds)
        upper: Float64Array = np.linalg.qr(nodes[:, ::-1]).R
        # The exchanged factor R is lower triangular, and nodes' nodes = R'R. QR does not fix the
        # signs of its rows; the diagonal of C is positive.
        R = upper[::-1, ::-1]
        signs = np.sign(np.diag(R))[:, None]
        return (signs * R)[:rounds, :rounds]

    def min_sep_sensitivity(self, participation: MinSep) -> Sensitivity:
        self.check_rounds(participation.rounds)
        # C'C = T'T only over the whole run. A leading block of C does not belong to a tree.
        if participation.rounds == self.rounds:
            trees = forest([Segment(0, self.rounds, self.completion)])
            return forest_sensitivity(tuple(trees), participation)
        return super().min_sep_sensitivity(participation)


@lru_cache(maxsize=4)
def _factor(rounds: int, has_completion: bool) -> Float64Array:
    # T = Q C, where Q has orthonormal columns. So Q'(T X + Z) = C X + N(0, I), what Q' drops of Z
    # is independent of X, and A T^+ = A C^-1 Q': both mechanisms release the same.
    trees = forest([Segment(0, rounds, has_completion)])
    return lower_factor(forest_gram(trees, rounds))
