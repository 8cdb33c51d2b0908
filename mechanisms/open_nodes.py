"""Program over the continuations of binary trees.

A node is open after r released rounds if it has rounds before r and from r on. With a_v past and
f_v future participations below the open node v, the square of a pattern is that of its past, that
of its future, and 2 sum over v of a_v f_v. The future from round r on is a sequence of complete
subtrees, each below the same open nodes as all later ones of its tree or below fewer of them. They
are joined in order, as the halves of a tree are (`tree.py`); the end of an open node adds
2 a_v f_v + f_v^2, which depends on the number of participations so far only.

Bounds of all devices are cheap: the largest square of a future from the same round on, and the
largest f_v of each node. The program runs for devices whose bound exceeds the largest value so far.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedray.base.arrays import Float64Array, Int64Array
from .future import Barred
from .past_groups import Group, Part, best_of_each
from .strategy import Strategy
from .tree import (
    NO_ROUND,
    NOBODY,
    PROGRAM_PARTICIPATIONS,
    Best,
    Segment,
    Subtree,
    Tree,
    forest,
    joined,
)
from .tree_full import TreeFull

MOST_SOLVED = 2_000
"""Number of groups of devices for which the program runs; if more are needed, the result is the
bound of the others."""
MOST_WAITING = 200_000
"""Number of groups that wait for the program, beyond which those below the largest value are
dropped."""


class _Node(NamedTuple):
    """An open node."""

    start: int
    """First round."""
    end: int
    """Round after the last one."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A group of devices with a bound on its square."""

    bound: float
    group: Group
    """Its key is the first allowed round, the participations left, and those of the past below each
    open node."""


def trees_of(strategy: Strategy, rounds: int) -> list[Subtree] | None:
    """Returns the trees whose nodes are the rows of C over `rounds` rounds; None for others."""
    if isinstance(strategy, Tree):
        return strategy.forest(rounds)
    # C'C is that of the nodes over the whole run only.
    if isinstance(strategy, TreeFull) and strategy.rounds == rounds:
        return forest([Segment(0, rounds, strategy.completion)])
    return None


class OpenNodes:
    """The program for one set of rules, which must concern the last participation only.

    Args:
        trees: the trees of R rounds.
        rules: the rules from now on.
    """

    theorem = "dynamic program over the tree, with the past participations below each open node"
    bound = "counts below each open node (upper bound; too many devices for the dynamic program)"

    def __init__(self, trees: list[Subtree], rules: Barred) -> None:
        self._rules = rules
        self._following = rules.barred[0]
        future = np.arange(rules.released, rules.rounds)
        following = self._following[future]
        self._gap = int(following[0] - future[0]) if future.size else rules.rounds
        # With equal gaps, equal subtrees have equal patterns wherever they are.
        equal = np.minimum(future + self._gap, rules.rounds)
        self._has_equal_gaps = bool((following == equal).all())
        self._pieces = list(_pieces(trees, rules.released))
        self._open = _open_nodes(trees, rules.released)
        self._known: dict[tuple[int, int, int, int], Best] = {}
        self._entered: dict[int, tuple[Float64Array, Int64Array]] = {}
        self._waiting: list[_Waiting] = []
        self._best: tuple[float, Group, list[int]] | None = None
        self._most_left = rules.least_lags.size

    @classmethod
    def can(cls, rules: Barred) -> bool:
        """Returns whether the program is exact and quick under these rules."""
        return len(rules.barred) == 1 and rules.least_lags.size <= PROGRAM_PARTICIPATIONS

    def add(self, part: Part) -> None:
        """Takes devices with equally many participations."""
        left = self._rules.left(part.rounds.shape[1])
        left = self._most_left if left is None else min(left, self._most_left)
        below = [(part.rounds >= node.start).sum(axis=1) for node in self._open]
        counts = np.array(below, np.int64).reshape(len(below), len(part.places))
        distinct, group = np.unique(part.entries, return_inverse=True)
        bounds = part.squares.copy()
        for place, entry in enumerate(distinct.tolist()):
            rows = np.flatnonzero(group == place)
            square, most = self._bound(entry, left)
            bounds[rows] += square + 2.0 * (most @ counts[:, rows])
        is_near = bounds > self._largest
        keys = np.column_stack([part.entries, np.full(len(bounds), left), counts.T])[is_near]
        places = np.flatnonzero(is_near)
        new: list[_Waiting] = []
        for chosen in places[best_of_each(keys, part.squares[is_near])].tolist():
            key = int(part.entries[chosen]), left, *counts[:, chosen].tolist()
            past = tuple(part.rounds[chosen].tolist())
            device = Group(key, float(part.squares[chosen]), int(part.places[chosen]), past)
            new.append(_Waiting(float(bounds[chosen]), device))
        if new:
            # The most promising device of a part raises the value that others must exceed.
            new.sort(key=lambda each: each.bound)
            self._solve(new.pop().group)
        self._waiting += new
        if len(self._waiting) > MOST_WAITING:
            self._waiting = self._near()

    def best(self) -> tuple[float, Group, list[int], str]:
        """Returns the largest square, the device that attains it, its continuation, and the
        theorem."""
        solved: set[tuple[tuple[int, ...], float]] = set()
        for waiting in sorted(self._near(), key=lambda each: -each.bound):
            if waiting.bound <= self._largest:
                break
            if len(solved) >= MOST_SOLVED:
                assert self._best is not None
                return waiting.bound, *self._best[1:], self.bound
            # Only the largest past of a group matters, and parts have groups in common.
            key = waiting.group.key, waiting.group.square
            if key not in solved:
                solved.add(key)
                self._solve(waiting.group)
        assert self._best is not None
        return *self._best, self.theorem

    @property
    def _largest(self) -> float:
        return -1.0 if self._best is None else self._best[0]

    def _near(self) -> list[_Waiting]:
        return [each for each in self._waiting if each.bound > self._largest]

    def _solve(self, group: Group) -> None:
        entry, left, *counts = group.key
        found = self._continued(entry, counts)
        allowed = int(np.searchsorted(found.counts, left, side="right"))
        place = int(found.squares[:allowed].argmax())
        square = group.square + float(found.squares[place])
        if square > self._largest:
            self._best = square, group, found.rounds(place)

    def _bound(self, entry: int, left: int) -> tuple[float, Int64Array]:
        """Returns the largest square of a future from a round on, and the largest number of its
        participations below each open node, [V]."""
        if entry not in self._entered:
            found = self._continued(entry, [0] * len(self._open))
            squares = np.zeros(self._most_left + 1)
            inside = found.counts <= self._most_left
            np.maximum.at(squares, found.counts[inside], found.squares[inside].astype(np.float64))
            earliest = np.array(replace(self._rules, most=None).earliest((), entry), np.int64)
            most = np.array([(earliest < node.end).sum() for node in self._open], np.int64)
            self._entered[entry] = np.maximum.accumulate(squares), most
        squares, most = self._entered[entry]
        return float(squares[left]), np.minimum(most, left)

    def _continued(self, entry: int, counts: list[int]) -> Best:
        """Returns the best continuations from round `entry` on, after past participations below
        each open node."""
        total = NOBODY
        # A round that is not allowed yet bars like a participation.
        for piece in self._pieces:
            end = piece.start + piece.real

            def right_of(start: int, piece: Subtree = piece) -> Best:
                return self._subtree(piece.height, piece.start, start, piece.real)

            total = self._joined(total, 0, piece.start, end, entry, right_of)
            ending = [a for node, a in zip(self._open, counts, strict=True) if node.end == end]
            if ending:
                gained = 2 * sum(ending) * total.counts + len(ending) * total.counts**2
                total = replace(total, squares=total.squares + gained)
        return total

    def _subtree(self, height: int, start: int, barred: int, real: int) -> Best:
        """Returns the best patterns of a subtree whose first `barred` rounds are barred; rounds
        count from its start."""
        real = min(real, 1 << height)
        barred = max(barred, 0)
        if barred >= real:
            return NOBODY
        key = height, 0 if self._has_equal_gaps else start, barred, real
        if key not in self._known:
            self._known[key] = self._solved(height, start, barred, real)
        return self._known[key]

    def _solved(self, height: int, start: int, barred: int, real: int) -> Best:
        # There is room for one participation, which each level counts once.
        if self._next(start, np.array([barred]))[0] >= real:
            return Best.of_one(height + 1, barred)
        half = 1 << (height - 1)
        left = self._subtree(height - 1, start, barred, real)

        def right_of(first: int) -> Best:
            return self._subtree(height - 1, start + half, first, real - half)

        both = self._joined(left, start, half, start + real, barred, right_of)
        return replace(both, squares=both.squares + both.counts**2)

    def _joined(
        self,
        left: Best,
        start: int,
        half: int,
        end: int,
        barred: int,
        right_of: Callable[[int], Best],
    ) -> Best:
        """Joins patterns that count rounds from `start` on, the right part from start + half."""
        first_free = np.maximum(self._next(start, left.lasts), barred) - half
        # Last rounds up to `free` bar no round from `end` on.
        free = self._free(start, end)
        return joined(left, half, first_free, free, self._most_left, right_of)

    def _next(self, start: int, lasts: Int64Array) -> Int64Array:
        """Returns the first rounds that are allowed after last rounds [N], from `start` on."""
        if self._has_equal_gaps:
            return lasts + self._gap
        found = np.full(lasts.size, NO_ROUND)
        is_any = lasts >= 0
        found[is_any] = self._following[start + lasts[is_any]] - start
        return found

    def _free(self, start: int, end: int) -> int:
        if self._has_equal_gaps:
            return end - start - self._gap
        return int(np.searchsorted(self._following, end, side="right")) - 1 - start


def _open_nodes(trees: list[Subtree], released: int) -> list[_Node]:
    found = []
    for tree in trees:
        end = tree.start + tree.real
        if not tree.start < released < end:
            continue
        for height in range(1, tree.height + 1):
            start = tree.start + ((released - tree.start) >> height << height)
            node = _Node(start, min(start + (1 << height), end))
            if node.start < released < node.end:
                found.append(node)
    return found


def _pieces(trees: list[Subtree], released: int) -> Iterator[Subtree]:
    """Yields the largest complete subtrees from round `released` on, in order."""
    for tree in trees:
        end = tree.start + tree.real
        if released >= end:
            continue
        at = max(0, released - tree.start)
        while at < tree.real:
            height = tree.height if at == 0 else (at & -at).bit_length() - 1
            size = 1 << height
            yield Subtree(tree.start + at, height, min(size, tree.real - at))
            at += size
