"""Tree aggregation, online: binary-tree noise with Honaker's estimate from below (DP-FTRL as deployed).

C has one row per complete dyadic node: 1 in the rounds under it. Without completion, only nodes whose whole range lies in
[0, rounds) exist, a forest when rounds is no power of two; so a node's noise is drawn when its last round is.
Source: Kairouz et al. 2021 ("Practical and private (deep) learning without sampling or shuffling", section 2 and appendix
D); Honaker 2015; the published runs of Xu et al. 2023 use this accounting.
"""

from functools import cache
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from mechanisms.participation import MinSep
from mechanisms.strategy import Sensitivity, Strategy

NO_ROUND = -(2**62)
Frontier = tuple[tuple[tuple[int, int], ...], ...]
"""Per number of participations: (squared sensitivity, last round) pairs, none of which beats another in both."""


class Tree(Strategy):
    """Tree aggregation with Honaker's estimate; without restarts and without completion."""

    kind: Literal["tree"] = "tree"  # pyright: ignore[reportIncompatibleVariableOverride]  (frozen, so narrowing is safe)
    """Binary tree, online."""
    paper: ClassVar[str] = "Kairouz et al. 2021"

    def gram_entries(self, first: NDArray[np.int64], second: NDArray[np.int64], rounds: int) -> NDArray[np.float64]:
        """G[i, j] = number of complete nodes that have both rounds under them."""
        entries = np.zeros(np.broadcast_shapes(first.shape, second.shape))
        for height in range(rounds.bit_length()):
            node = second >> height
            entries += (node == first >> height) & ((node + 1) << height <= rounds)
        return entries

    def schema_sensitivity(self, schema: MinSep) -> Sensitivity:
        squared = _largest_square(schema.rounds, schema.min_sep, schema.effective_participations)
        return Sensitivity(squared**0.5, True, "Kairouz et al. 2021, appendix D (dynamic program over the tree)")


def _largest_square(rounds: int, min_sep: int, max_participations: int) -> int:
    """Largest sum over nodes of (participations under the node)^2, over all patterns of the schema.

    Nodes of one height look alike, so a subtree's answer depends only on its height and on how many of its first rounds are
    barred by an earlier participation. The forest's trees, largest first, are the binary digits of `rounds`.
    """

    @cache
    def subtree(height: int, barred: int) -> Frontier:
        size = 1 << height
        if barred >= size:
            return (((0, NO_ROUND),),)
        if size <= min_sep:  # room for one participation, which every level of the subtree counts once
            return (((0, NO_ROUND),), ((height + 1, barred),))
        half = size >> 1
        joined = _join(subtree(height - 1, barred), half, lambda start: subtree(height - 1, start), barred)
        return tuple(tuple((square + count * count, last) for square, last in pairs) for count, pairs in enumerate(joined))

    def _join(left: Frontier, half: int, right_of, barred: int) -> Frontier:
        best: list[list[tuple[int, int]]] = [[] for _ in range(max_participations + 1)]
        for left_count, pairs in enumerate(left):
            for left_square, left_last in pairs:
                start = max(barred if left_count == 0 else left_last + min_sep, half) - half
                for right_count, right_pairs in enumerate(right_of(start)):
                    if left_count + right_count > max_participations:
                        break
                    for right_square, right_last in right_pairs:
                        last = left_last if right_count == 0 else half + right_last
                        best[left_count + right_count].append((left_square + right_square, last))
        while len(best) > 1 and not best[-1]:
            best.pop()
        return tuple(_undominated(pairs) for pairs in best)

    total: Frontier = (((0, NO_ROUND),),)
    offset = 0
    for height in reversed(range(rounds.bit_length())):
        if rounds >> height & 1:
            total = _join(total, offset, lambda start, height=height: subtree(height, start), 0)
            offset += 1 << height
    return max(square for pairs in total for square, _ in pairs)


def _undominated(pairs: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    kept: list[tuple[int, int]] = []
    for square, last in sorted(pairs, key=lambda pair: (pair[1], -pair[0])):
        if not kept or square > kept[-1][0]:
            kept.append((square, last))
    return tuple(kept)
