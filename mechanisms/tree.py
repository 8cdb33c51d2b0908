"""Binary trees: C has one row per dyadic node, 1 in the rounds under it. The forest and its
sensitivity; the online mechanism.

Without completion, only nodes whose whole range has been released exist, a forest unless the number
of rounds is a power of two; so a node's noise is drawn in its last round. With completion, virtual
rounds of zeros fill the tree to the next power of two at its end: the last estimate of the tree
gets better, the sensitivity larger. A restart begins a new tree. Source: Kairouz et al. 2021
("Practical and private (deep) learning without sampling or shuffling", section 2 and appendix D);
Honaker 2015; restarts: Xu et al. 2023, Algorithm 1. The published runs of Xu et al. use it without
completion.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.recurrence import Forest
from fedray.mechanisms.restarts import Restarts, segments_of
from fedray.mechanisms.strategy import Sensitivity, Strategy

NO_ROUND = -(2**62)
PROGRAM_PARTICIPATIONS = 300
"""Up to this many, the exact program over the tree takes seconds; its time grows with their square,
and minutes follow soon."""


class Subtree(NamedTuple):
    """A complete binary tree over rounds [start, start + 2^height), of which the first `real`
    happen."""

    start: int
    """First round, counted from the run's first."""
    height: int
    """Levels above the leaves."""
    real: int
    """Rounds that happen; the others are virtual, with updates of zero."""


class Best(NamedTuple):
    """A pattern within a subtree: squared sensitivity, last round (or one long before), and its
    parts."""

    square: int
    """Sum over nodes of (participations under the node)^2."""
    last: int
    """Last round of the pattern within the subtree, or NO_ROUND."""
    parts: "tuple[Best, Best, int] | None"
    """Patterns of the left and the right part, and the left part's size; None for a single round.
    """

    def rounds(self) -> list[int]:
        """The rounds of the pattern, increasing, counted from the subtree's first round."""
        # Patterns are joined from parts and seldom read, so that rounds are put together here.
        if self.parts is None:
            return [] if self.last == NO_ROUND else [self.last]
        left, right, half = self.parts
        return left.rounds() + [half + r for r in right.rounds()]


NOBODY = Best(0, NO_ROUND, None)
Frontier = tuple[tuple[Best, ...], ...]
"""Per number of participations: patterns of which none beats another in both square and earlier
last round."""


class Segment(NamedTuple):
    """Rounds [start, end) from one restart to the next, and whether virtual rounds complete their
    tree at the end."""

    start: int
    """First round."""
    end: int
    """Round after the last."""
    is_completed: bool
    """Whether virtual rounds complete the tree at the end."""


def forest(segments: Sequence[Segment]) -> list[Subtree]:
    """The trees over the segments, in order: one of a completed segment, else the binary digits of
    its rounds."""
    return [
        Subtree(segment.start + tree.start, tree.height, tree.real)
        for segment in segments
        for tree in _one_forest(segment.end - segment.start, segment.is_completed)
    ]


def _one_forest(rounds: int, is_completed: bool) -> Iterator[Subtree]:
    if is_completed:
        yield Subtree(0, (rounds - 1).bit_length(), rounds)
        return
    # The binary digits of the rounds, the largest first: rounds come in the order of time, and a
    # tree is whole as soon as its last round is released.
    start = 0
    for height in reversed(range(rounds.bit_length())):
        if rounds >> height & 1:
            yield Subtree(start, height, 1 << height)
            start += 1 << height


def forest_gram(trees: list[Subtree], rounds: int) -> NDArray[np.float64]:
    """Returns the Gram matrix G of a forest, [rounds, rounds]: the number of nodes above both
    rounds.

    Args:
        trees: trees of the forest.
        rounds: size of G; at least the end of the last tree.
    """
    G = np.zeros((rounds, rounds))
    for tree in trees:
        tree_end = tree.start + tree.real
        for height in range(tree.height + 1):
            width = 1 << height
            # A node over virtual rounds has no participation under it, and other nodes end with the
            # real rounds.
            for start in range(tree.start, tree_end, width):
                end = min(start + width, tree_end)
                G[start:end, start:end] += 1.0
    return G


def forest_sensitivity(trees: tuple[Subtree, ...], participation: MinSep) -> Sensitivity:
    """Exact: the largest sum over nodes of (participations under the node)^2 (Kairouz et al. 2021,
    appendix D)."""
    if participation.max_participations > PROGRAM_PARTICIPATIONS:
        return _counted_bound(trees, participation)
    best = _largest_square(trees, participation.min_sep, participation.max_participations)
    value = best.square**0.5
    theorem = "Kairouz et al. 2021, appendix D (dynamic program over the tree)"
    return Sensitivity(value, True, theorem, value, tuple(best.rounds()))


def _counted_bound(trees: tuple[Subtree, ...], participation: MinSep) -> Sensitivity:
    """Upper bound: of each height, no node has more participations under it than have room, and all
    together have k."""
    k = participation.max_participations
    square = 0
    highest = max(tree.height for tree in trees)
    for height in range(highest + 1):
        # Number of rounds under a node of this height, in any tree that is high enough.
        room = max(min(tree.real, 1 << height) for tree in trees if tree.height >= height)
        most_under_one = min(k, -(-room // participation.min_sep))
        # sum c^2 <= max(c) sum(c), and the counts of one height sum to at most k.
        square += k * most_under_one
    pattern = np.arange(k) * participation.min_sep
    theorem = (
        "by counting, height by height (upper bound; the exact program takes at most "
        f"{PROGRAM_PARTICIPATIONS} participations)"
    )
    attained = _square_of(trees, pattern) ** 0.5
    return Sensitivity(square**0.5, False, theorem, attained, tuple(pattern.tolist()))


def _square_of(trees: Sequence[Subtree], pattern: NDArray[np.int64]) -> float:
    """Sum over nodes of (participations under the node)^2 of one pattern."""
    square = 0
    for tree in trees:
        is_inside = (pattern >= tree.start) & (pattern < tree.start + tree.real)
        inside = pattern[is_inside] - tree.start
        if not inside.size:
            continue
        for height in range(tree.height + 1):
            # Rounds under one node of this height agree in all but their last `height` bits.
            counts = np.bincount(inside >> height)
            square += int((counts**2).sum())
    return float(square)


class Tree(Strategy):
    """Tree aggregation with Honaker's estimate from below (TreeAgg).

    It can be streamed: a round needs the nodes on one path of the tree. The best linear estimate,
    which weighs all nodes released so far, is `fedray.mechanisms.tree_full`.
    """

    kind: Literal["tree"] = "tree"  # pyright: ignore[reportIncompatibleVariableOverride]  (frozen, so narrowing is safe)
    """Binary tree, online."""
    restarts: Restarts = ()
    """Rounds at which a new tree starts, increasing; those beyond the rounds that happen do
    nothing."""
    completion: bool = False
    """Whether virtual rounds of zeros complete each tree at its end; a larger sensitivity for a
    better last estimate."""
    rounds: Annotated[int, Field(ge=1)] | None = None
    """Rounds planned; required with completion, since the last tree is completed there and not
    before."""
    paper: ClassVar[str] = "Kairouz et al. 2021; Honaker 2015"

    @model_validator(mode="after")
    def _completion_is_planned(self) -> Self:
        if self.completion and self.rounds is None:
            raise ValueError(
                "completion=true needs rounds, the number planned: the last tree is completed there"
            )
        return self

    @property
    def most_rounds(self) -> int | None:
        return self.rounds

    def segments(self, rounds: int) -> list[Segment]:
        """Returns the segments released after `rounds` rounds; a segment in progress is not
        completed."""
        self.check_rounds(rounds)
        planned = {*self.restarts, self.rounds}
        return [
            Segment(start, end, self.completion and end in planned)
            for start, end in segments_of(self.restarts, rounds)
        ]

    def forest(self, rounds: int) -> list[Subtree]:
        """Returns the trees after `rounds` rounds: one for each completed segment, else one for
        each binary digit of its length."""
        return forest(self.segments(rounds))

    def is_quick_under_participation(self, rounds: int) -> bool:
        del rounds
        return True

    def recurrence(self, rounds: int) -> Forest:
        segments = self.segments(rounds)
        return Forest(
            starts=tuple(segment.start for segment in segments),
            completed_ends=frozenset(each.end for each in segments if each.is_completed),
            variances=tuple(honaker_variances(rounds.bit_length() + 2)),
        )

    def gram_entries(
        self, first: NDArray[np.int64], second: NDArray[np.int64], rounds: int
    ) -> NDArray[np.float64]:
        """Returns G[i, j], the number of nodes above both rounds, for pairs `first` <= `second`
        over `rounds` rounds."""
        entries = np.zeros(np.broadcast_shapes(first.shape, second.shape))
        for tree in self.forest(rounds):
            is_inside = (first >= tree.start) & (second < tree.start + tree.real)
            for height in range(tree.height + 1):
                # Rounds lie under one node of this height if they agree in all but their last bits.
                first_node = (first - tree.start) >> height
                second_node = (second - tree.start) >> height
                entries += is_inside & (first_node == second_node)
        return entries

    def gram(self, rounds: int) -> NDArray[np.float64]:
        return forest_gram(self.forest(rounds), rounds)

    def pattern_square(self, pattern: NDArray[np.int64], rounds: int) -> float | None:
        return _square_of(self.forest(rounds), pattern)

    def participation_sensitivity(self, participation: MinSep) -> Sensitivity:
        return forest_sensitivity(tuple(self.forest(participation.rounds)), participation)

    def error_variances(self, rounds: int) -> NDArray[np.float64]:
        """Variance of each prefix's estimate: a sum over its dyadic parts and the finished trees,
        each from below.

        A node of height h estimated from below has variance v_h = 2 v_(h-1) / (1 + 2 v_(h-1)), v_0
        = 1 (Honaker 2015).
        """
        v = honaker_variances(rounds.bit_length() + 1)
        variances = np.zeros(rounds)
        finished = 0.0
        for start, end, is_completed in self.segments(rounds):
            # A prefix of some length is the sum of one node for each binary digit of the length.
            lengths = np.arange(1, end - start + 1)
            parts = [np.where(lengths >> h & 1, v[h], 0.0) for h in range(len(v))]
            present = np.sum(parts, axis=0)
            if is_completed:
                # At its end a completed tree is one node, the root.
                present[-1] = v[(end - start - 1).bit_length()]
            # Trees that are finished keep their noise in every later prefix.
            variances[start:end] = finished + present
            finished = variances[end - 1]
        return variances


def honaker_variances(heights: int) -> list[float]:
    """v_0 .. v_(heights-1): variance of a complete node's estimate from below, at noise of unit
    scale.

    A node has a measurement of its own, of variance 1, and the sum of its two children's
    estimates, of variance 2 v; weighted by inverse variance, the two make 2 v / (1 + 2 v) (Honaker
    2015).
    """
    v = [1.0]
    for _ in range(heights - 1):
        of_children = 2.0 * v[-1]
        v.append(of_children / (1.0 + of_children))
    return v


@lru_cache(maxsize=64)
def _largest_square(trees: tuple[Subtree, ...], min_sep: int, max_participations: int) -> Best:
    """Nodes of one height look alike, so a subtree's answer depends only on its height, on how many
    of its first rounds are barred by an earlier participation, and on how many of its rounds are
    real."""
    known: dict[tuple[int, int, int], Frontier] = {}

    def subtree(height: int, barred: int, real: int) -> Frontier:
        size = 1 << height
        real = min(real, size)
        barred = max(barred, 0)
        # No round is both free and real.
        if barred >= real:
            return ((NOBODY,),)
        key = (height, barred, real)
        if key not in known:
            known[key] = solve(height, barred, real)
        return known[key]

    def solve(height: int, barred: int, real: int) -> Frontier:
        # There is room for one participation, which every level of the subtree counts once.
        if 1 << height <= min_sep:
            return ((NOBODY,), (Best(height + 1, barred, None),))
        half = 1 << (height - 1)
        # Both halves are solved before they are joined, and halves that look alike only once.
        left = subtree(height - 1, barred, real)

        def right_of(start: int) -> Frontier:
            return subtree(height - 1, start, real - half)

        joined = join(left, half, real - min_sep, barred, right_of)
        # The node itself adds the square of the participations under it.
        return tuple(
            tuple(best._replace(square=best.square + count**2) for best in each)
            for count, each in enumerate(joined)
        )

    def join(
        left: Frontier, half: int, free: int, barred: int, right_of: Callable[[int], Frontier]
    ) -> Frontier:
        """Patterns of the left part, whose size is `half`, with what may follow them in the right
        part."""
        joined: list[list[Best]] = [[] for _ in range(max_participations + 1)]
        for left_count, each in enumerate(left):
            for a in each:
                # The left part's last round, or a round before both, bars the right part.
                first_free = max(a.last + min_sep, barred)
                rights = right_of(first_free - half)
                most_right = max_participations - left_count
                for count, others in enumerate(rights[: most_right + 1], start=left_count):
                    joined[count] += [
                        Best(a.square + b.square, max(a.last, half + b.last), (a, b, half))
                        for b in others
                    ]
        # A frontier ends at the most participations for which there is a pattern.
        while len(joined) > 1 and not joined[-1]:
            joined.pop()
        return tuple(_undominated(each, free) for each in joined)

    # The trees of the forest are joined from left to right, as the halves of one tree are, but
    # without a node above them.
    total: Frontier = ((NOBODY,),)
    for tree in trees:
        end = tree.start + tree.real
        total = join(
            total,
            tree.start,
            end - min_sep,
            0,
            lambda start, tree=tree: subtree(tree.height, start, tree.real),
        )
    return max((best for each in total for best in each), key=lambda best: best.square)


def _undominated(candidates: list[Best], free: int) -> tuple[Best, ...]:
    """The best by last round; last rounds up to `free` bar nothing that follows."""
    kept: list[Best] = []
    # By last round, and the better first: whoever beats no earlier one is dominated.
    for best in sorted(candidates, key=lambda best: (max(best.last, free), -best.square)):
        if not kept or best.square > kept[-1].square:
            kept.append(best)
    return tuple(kept)
