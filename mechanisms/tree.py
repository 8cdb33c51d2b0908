"""Binary trees: C has one row per dyadic node, with ones in the rounds below it. The forest, its
sensitivity, and the online mechanism.

C over four rounds, and over three without and with completion:

    | 1  .  .  . |        | 1  .  . |        | 1  .  . |    leaves
    | .  1  .  . |        | .  1  . |        | .  1  . |
    | .  .  1  . |        | .  .  1 |        | .  .  1 |
    | .  .  .  1 |
    | 1  1  .  . |        | 1  1  . |        | 1  1  . |    pairs
    | .  .  1  1 |                           | .  .  1 |    with a virtual round
    | 1  1  1  1 |                           | 1  1  1 |    root

Without completion, a node exists only once its last round is released, and its noise is drawn then;
unless the number of rounds is a power of two, this gives a forest. With completion, virtual rounds
of zeros fill the tree to the next power of two at its end: its last estimate gets better, the
sensitivity larger. A restart begins a new tree. Source: Kairouz et al. 2021
("Practical and private (deep) learning without sampling or shuffling", section 2 and appendix D);
Honaker 2015; restarts: Xu et al. 2023, Algorithm 1. The published runs of Xu et al. use it without
completion.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.errors import InputError
from .fixed_order import fixed_order_sensitivity
from .participation import MinSep, most_of_device
from .recurrence import Forest
from .strategy import Sensitivity, Strategy
from .tree_nodes import node_matrix, tree_nodes, tree_noise_map
from .workload import PREFIX, Workload

PROGRAM_PARTICIPATIONS = 300
"""Number of participations up to which the exact program over trees takes seconds; its time grows
with its square."""
NO_ROUND = -(2**62)
MOST_MAPPED_ROUNDS = 4096
"""Number of rounds up to which the noise map fits into 1 GB."""


class Subtree(NamedTuple):
    """A complete binary tree over rounds [start, start + 2^height)."""

    start: int
    """First round of the run in the tree."""
    height: int
    """Number of levels above the leaves."""
    real: int
    """Number of real rounds; the later ones are virtual, with updates of zero."""


@dataclass(frozen=True, slots=True)
class Best:
    """Pareto-optimal patterns [N] within a subtree: for each number of participations, those with
    the largest square or the earliest last round. In order of participations and last round."""

    squares: Int64Array
    """Squared sensitivities, [N]: sums over nodes of (participations below the node)^2."""
    lasts: Int64Array
    """Last round of each pattern within the subtree, [N], or NO_ROUND."""
    counts: Int64Array
    """Number of participations of each pattern, [N]."""
    parts: "_Parts | None" = None
    """Patterns of the left and right parts; None for at most one participation."""

    @classmethod
    def of_one(cls, square: int, last: int) -> Self:
        """Returns no participation, and one in the round `last`."""
        squares, lasts = np.array([0, square]), np.array([NO_ROUND, last])
        return cls(squares, lasts, np.array([0, 1]))

    def rounds(self, place: int) -> list[int]:
        """Returns the rounds of a pattern, increasing, counted from the start of the subtree."""
        # Most patterns are never read, so rounds are assembled only here.
        if self.parts is None:
            return [int(self.lasts[place])] if self.counts[place] else []
        left, rights, half = self.parts.left, self.parts.rights, self.parts.half
        of_left, of_right = self.parts.places[:, place].tolist()
        return left.rounds(of_left) + [half + r for r in rights[of_left].rounds(of_right)]


class _Parts(NamedTuple):
    """Left and right parts of patterns [N]."""

    left: Best
    rights: list[Best]
    """Patterns that may follow each of the left part."""
    places: Int64Array
    """Places of the parts' patterns, left and right, [2, N]."""
    half: int
    """Size of the left part."""


NOBODY = Best(np.zeros(1, np.int64), np.array([NO_ROUND]), np.zeros(1, np.int64))


class Segment(NamedTuple):
    """Rounds [start, end) from one restart to the next."""

    start: int
    """First round."""
    end: int
    """Round after the last."""
    is_completed: bool
    """Whether virtual rounds complete the tree at the end."""


def forest(segments: Sequence[Segment]) -> list[Subtree]:
    """Returns the trees of the segments, in order: one for a completed segment, else one for each
    binary digit of its length."""
    return [
        Subtree(segment.start + tree.start, tree.height, tree.real)
        for segment in segments
        for tree in _one_forest(segment.end - segment.start, segment.is_completed)
    ]


def _one_forest(rounds: int, is_completed: bool) -> Iterator[Subtree]:
    if is_completed:
        yield Subtree(0, (rounds - 1).bit_length(), rounds)
        return
    # Largest digit first, because a tree must be whole once its last round is released.
    start = 0
    for height in reversed(range(rounds.bit_length())):
        if rounds >> height & 1:
            yield Subtree(start, height, 1 << height)
            start += 1 << height


def forest_gram(trees: list[Subtree], rounds: int) -> Float64Array:
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
            # Nodes end with the real rounds; nodes over virtual rounds only have no participation.
            for start in range(tree.start, tree_end, width):
                end = min(start + width, tree_end)
                G[start:end, start:end] += 1.0
    return G


def forest_sensitivity(trees: tuple[Subtree, ...], participation: MinSep) -> Sensitivity:
    """Returns the largest sum over nodes of (participations below the node)^2 (Kairouz et al. 2021,
    appendix D), exact up to PROGRAM_PARTICIPATIONS participations, else a bound."""
    if participation.max_participations > PROGRAM_PARTICIPATIONS:
        return _counted_bound(trees, participation)
    limits = participation.min_sep, participation.max_participations
    square, rounds = _largest_square(trees, *limits)
    value = square**0.5
    theorem = "Kairouz et al. 2021, appendix D (dynamic program over the tree)"
    return Sensitivity(value, True, theorem, value, tuple(rounds))


def _counted_bound(trees: tuple[Subtree, ...], participation: MinSep) -> Sensitivity:
    """Bounds the sensitivity by the number of rounds below a node and the k participations at each
    height."""
    k = participation.max_participations
    square = 0
    highest = max(tree.height for tree in trees)
    for height in range(highest + 1):
        # The most real rounds below a node of this height.
        room = max(min(tree.real, 1 << height) for tree in trees if tree.height >= height)
        most_under_one = min(k, most_of_device(room, participation.min_sep))
        # Loose: each height has a worst pattern of its own, and no pattern need be the worst of all
        # of them.
        # sum c^2 <= max(c) sum(c), and the counts of one height sum to at most k.
        square += k * most_under_one
    pattern = np.arange(k) * participation.min_sep
    theorem = (
        "by counting, height by height (upper bound; the exact program takes at most "
        f"{PROGRAM_PARTICIPATIONS} participations)"
    )
    attained = float(_squares_of(trees, pattern[None])[0]) ** 0.5
    return Sensitivity(square**0.5, False, theorem, attained, tuple(pattern.tolist()))


def _squares_of(trees: Sequence[Subtree], patterns: Int64Array) -> Float64Array:
    """Returns the sum over nodes of (participations below the node)^2, [P], for sorted patterns
    [P, c] within the trees."""
    squares = np.zeros(len(patterns))
    rounds = patterns.ravel()
    place = np.searchsorted([tree.start for tree in trees], rounds, side="right") - 1
    within = rounds - np.array([tree.start for tree in trees])[place]
    heights = np.array([tree.height for tree in trees])[place]
    # No node is below two patterns.
    is_first = np.arange(rounds.size) % patterns.shape[1] == 0
    for height in range(int(heights.max(initial=-1)) + 1):
        # Rounds below one node of this height differ only in their last `height` bits. Patterns are
        # sorted, so the rounds below a node are neighbours.
        node = within >> height
        begins = is_first.copy()
        begins[1:] |= (node[1:] != node[:-1]) | (place[1:] != place[:-1])
        starts = np.flatnonzero(begins)
        below = np.diff(starts, append=rounds.size)
        # Lower trees have no node of this height.
        below[heights[starts] < height] = 0
        squares += np.bincount(starts // patterns.shape[1], below**2, len(patterns))
    return squares


def _increasing(restarts: tuple[int, ...]) -> tuple[int, ...]:
    if any(later <= earlier for earlier, later in pairwise(restarts)):
        raise ValueError(f"restarts={list(restarts)} must increase; sort them without repeats")
    return restarts


class Tree(Strategy):
    """Tree aggregation with Honaker's estimate from below (TreeAgg).

    It can be streamed: a round needs only the nodes on one path of the tree. For the best linear
    estimate, from all nodes released so far, see `fedray.mechanisms.tree_full`.
    """

    kind: Literal["tree"] = "tree"  # pyright: ignore[reportIncompatibleVariableOverride]  (frozen, so narrowing is safe)
    """Binary tree, online."""
    restarts: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...], Field(strict=False), AfterValidator(_increasing)
    ] = ()
    """Rounds at which a new tree starts, increasing; restarts after the last round have no
    effect."""
    completion: bool = False
    """Whether virtual rounds of zeros complete each tree at its end, which improves its last
    estimate and raises the sensitivity."""
    rounds: Annotated[int, Field(ge=1)] | None = None
    """Planned number of rounds, at which the last tree is completed; required with completion."""
    paper: ClassVar[str] = "Kairouz et al. 2021; Honaker 2015"

    @model_validator(mode="after")
    def _completion_is_planned(self) -> Self:
        if self.completion and self.rounds is None:
            raise ValueError(
                "completion=true needs the planned number of rounds, to complete the last tree"
            )
        return self

    @property
    def most_rounds(self) -> int | None:
        return self.rounds

    def segments(self, rounds: int) -> list[Segment]:
        """Returns the segments of the first `rounds` rounds; an unfinished one is not completed."""
        self.check_rounds(rounds)
        # A run that stops early leaves its last tree as it is: it stays incomplete.
        planned = {*self.restarts, self.rounds}
        inside = [restart for restart in self.restarts if restart < rounds]
        return [
            Segment(start, end, self.completion and end in planned)
            for start, end in pairwise([0, *inside, rounds])
        ]

    def forest(self, rounds: int) -> list[Subtree]:
        """Returns the trees of the first `rounds` rounds."""
        return forest(self.segments(rounds))

    def definition(self, rounds: int) -> Float64Array:
        return node_matrix(tree_nodes(self, rounds), rounds)

    def is_quick_under_participation(self, rounds: int) -> bool:
        del rounds
        return True

    def recurrence(self, rounds: int) -> Forest:
        segments = self.segments(rounds)
        return Forest(
            starts=tuple(segment.start for segment in segments),
            completed_ends=frozenset(each.end for each in segments if each.is_completed),
            # Completion adds levels above the highest complete node of the real rounds.
            variances=tuple(honaker_variances(rounds.bit_length() + 2)),
        )

    def gram_entries(self, first: Int64Array, second: Int64Array, rounds: int) -> Float64Array:
        entries = np.zeros(np.broadcast_shapes(first.shape, second.shape))
        for tree in self.forest(rounds):
            is_inside = (first >= tree.start) & (second < tree.start + tree.real)
            for height in range(tree.height + 1):
                # Rounds below one node of this height differ only in their last bits.
                first_node = (first - tree.start) >> height
                second_node = (second - tree.start) >> height
                entries += is_inside & (first_node == second_node)
        return entries

    def gram(self, rounds: int) -> Float64Array:
        return forest_gram(self.forest(rounds), rounds)

    def pattern_square(self, pattern: Int64Array, rounds: int) -> float | None:
        return float(_squares_of(self.forest(rounds), pattern[None])[0])

    def pattern_squares(self, patterns: Int64Array, rounds: int) -> Float64Array:
        # Whole numbers, so the order of the sum does not matter.
        return _squares_of(self.forest(rounds), patterns)

    def fixed_order_sensitivity(self, participation: MinSep) -> Sensitivity:
        return fixed_order_sensitivity(self, participation)

    def min_sep_sensitivity(self, participation: MinSep) -> Sensitivity:
        return forest_sensitivity(tuple(self.forest(participation.rounds)), participation)

    def noise_blocks(self, rounds: int) -> Iterator[tuple[int, Float64Array]]:
        if rounds > MOST_MAPPED_ROUNDS:
            rule = f"is more than {MOST_MAPPED_ROUNDS:,}, the most for a tree with this workload"
            raise InputError.of("rounds", rounds, rule, "use workload prefix")
        yield 0, tree_noise_map(self, rounds)

    def error_variances(self, rounds: int, workload: Workload = PREFIX) -> Float64Array:
        """Returns the variance of each prefix's estimate: the sum of `honaker_variances` over the
        prefix's dyadic parts and the finished trees. Other workloads need the whole noise map."""
        if not workload.is_prefix:
            return super().error_variances(rounds, workload)
        v = honaker_variances(rounds.bit_length() + 1)
        variances = np.zeros(rounds)
        finished = 0.0
        for start, end, is_completed in self.segments(rounds):
            # A prefix is the sum of one node for each binary digit of its length.
            lengths = np.arange(1, end - start + 1)
            # Estimates from below of disjoint nodes share no draw, so their variances add up.
            parts = [np.where(lengths >> h & 1, v[h], 0.0) for h in range(len(v))]
            present = np.sum(parts, axis=0)
            if is_completed:
                # At its end a completed tree is estimated by its root.
                present[-1] = v[(end - start - 1).bit_length()]
            # Every later prefix has the noise of a finished tree.
            variances[start:end] = finished + present
            finished = variances[end - 1]
        return variances


def honaker_variances(heights: int) -> list[float]:
    """Returns v_0 .. v_(heights-1), the variance of a complete node's estimate from below, by
    height, at noise of unit scale.

    A node has its own measurement, of variance 1, and the sum of its children's estimates, of
    variance 2 v. Combined by inverse variance, they have variance 2 v / (1 + 2 v) (Honaker 2015).
    """
    # v falls from 1 towards its fixed point 1/2, so an estimate of any height is at most twice as
    # good as its own measurement.
    v = [1.0]
    for _ in range(heights - 1):
        of_children = 2.0 * v[-1]
        v.append(of_children / (1.0 + of_children))
    return v


@lru_cache(maxsize=64)
def _largest_square(
    trees: tuple[Subtree, ...], min_sep: int, max_participations: int
) -> tuple[int, list[int]]:
    """Returns the largest sum over nodes of (participations below the node)^2, and the rounds of a
    pattern that has it."""
    # The state of the program is all that later rounds see of a pattern: how often it took part,
    # and when last.
    # Equal keys (height, first rounds barred by an earlier participation, real rounds) mean equal
    # subtrees.
    known: dict[tuple[int, int, int], Best] = {}

    def subtree(height: int, barred: int, real: int) -> Best:
        size = 1 << height
        real = min(real, size)
        barred = max(barred, 0)
        if barred >= real:
            return NOBODY
        key = (height, barred, real)
        if key not in known:
            known[key] = solve(height, barred, real)
        return known[key]

    def solve(height: int, barred: int, real: int) -> Best:
        # There is room for one participation, which each level counts once.
        if 1 << height <= min_sep:
            return Best.of_one(height + 1, barred)
        half = 1 << (height - 1)
        left = subtree(height - 1, barred, real)

        def right_of(start: int) -> Best:
            return subtree(height - 1, start, real - half)

        # The last round of the left part, or an earlier participation, bars rounds of the right
        # part.
        first_free = np.maximum(left.lasts + min_sep, barred) - half
        both = joined(left, half, first_free, real - min_sep, max_participations, right_of)
        # Squares decide between patterns of equal count only, so the node's own term, which
        # depends only on the count, can be added after joining.
        # The node itself adds the square of the participations below it.
        return replace(both, squares=both.squares + both.counts**2)

    # Trees are joined from left to right, like the halves of one tree, but without a node above.
    total = NOBODY
    for tree in trees:
        end = tree.start + tree.real
        total = joined(
            total,
            tree.start,
            np.maximum(total.lasts + min_sep, 0) - tree.start,
            end - min_sep,
            max_participations,
            lambda start, tree=tree: subtree(tree.height, start, tree.real),
        )
    largest = int(total.squares.argmax())
    return int(total.squares[largest]), total.rounds(largest)


def joined(
    left: Best,
    half: int,
    first_free: Int64Array,
    free: int,
    max_participations: int,
    right_of: Callable[[int], Best],
) -> Best:
    """Joins patterns of the left part, of size `half`, with patterns that may follow them in the
    right part.

    Args:
        left: best patterns of the left part, N.
        half: first round of the right part; its rounds count from there.
        first_free: first round of the right part that each left pattern allows, [N].
        free: last rounds up to this one bar no round after both parts, so they count as equal.
        max_participations: largest number of participations of a pattern.
        right_of: best patterns of the right part, by the first round that is allowed.
    """
    rights = [right_of(start) for start in first_free.tolist()]
    # Patterns are in order of participations, so those that are too many come last.
    most_right = (max_participations - left.counts).tolist()
    sizes = [
        int(np.searchsorted(right.counts, most, side="right"))
        for right, most in zip(rights, most_right, strict=True)
    ]

    def following(name: str) -> Int64Array:
        found = zip(rights, sizes, strict=True)
        return np.concatenate([getattr(right, name)[:size] for right, size in found])

    of_left = np.repeat(np.arange(len(sizes)), sizes)
    of_right = np.concatenate([np.arange(size) for size in sizes])
    squares = left.squares[of_left] + following("squares")
    lasts = np.maximum(left.lasts[of_left], half + following("lasts"))
    counts = left.counts[of_left] + following("counts")
    kept = _undominated(squares, np.maximum(lasts, free), counts)
    parts = _Parts(left, rights, np.stack([of_left, of_right])[:, kept], half)
    return Best(squares[kept], lasts[kept], counts[kept], parts)


def _undominated(squares: Int64Array, lasts: Int64Array, counts: Int64Array) -> Int64Array:
    """Returns the places of the patterns that are Pareto-optimal in a large square and an early
    last round among those of equal counts, in order of count and last round."""
    order = np.lexsort((-squares, lasts, counts))
    # A step from count to count is larger than any square, so the running maximum starts again.
    ranked = squares[order] + counts[order] * (int(squares.max()) + 1)
    # A pattern that does not exceed the squares of earlier last rounds is dominated.
    before = np.maximum.accumulate(ranked)[:-1]
    return order[np.insert(ranked[1:] > before, 0, True)]
