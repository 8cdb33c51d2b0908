"""The nodes of a tree and the estimates of its prefix sums, from their definitions: the slow,
readable twin of tree.py."""

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np

from fedray.base.arrays import Float64Array


class TreeShape(Protocol):
    """The parameters of a `fedray.mechanisms.tree.Tree`."""

    @property
    def restarts(self) -> tuple[int, ...]: ...
    @property
    def completion(self) -> bool: ...
    @property
    def rounds(self) -> int | None: ...


class Node(NamedTuple):
    """A dyadic node of a tree, or a virtual subtree, which has no real round: start = end."""

    start: int
    """First real round."""
    end: int
    """Round after the last real one."""
    height: int
    """Number of levels above the leaves."""


def tree_nodes(tree: TreeShape, rounds: int) -> list[Node]:
    """Returns the nodes with a real round after `rounds` released rounds, tree by tree, leaves
    first."""
    nodes = []
    for first, end, is_completed in _segments(tree, rounds):
        nodes.extend(_nodes_of_one(first, end, is_completed))
    return nodes


def virtual_subtrees(tree: TreeShape, rounds: int) -> list[Node]:
    """Returns the largest subtrees without a real round in the trees that are completed within
    `rounds`."""
    nodes = []
    for first, end, is_completed in _segments(tree, rounds):
        if not is_completed:
            continue
        # In the path from the last real round to the root, a binary one of its number is a right
        # child; a zero is a left child, whose sibling is virtual.
        last = end - first - 1
        heights = [height for height in range(last.bit_length()) if not last >> height & 1]
        nodes.extend(Node(end, end, height) for height in heights)
    return nodes


def tree_noise_map(tree: TreeShape, rounds: int) -> Float64Array:
    """Returns the weights of the draws of all nodes and virtual subtrees in the noise of each
    round."""
    estimates = _Estimates([*tree_nodes(tree, rounds), *virtual_subtrees(tree, rounds)])
    prefixes = _tree_prefixes(tree, rounds, estimates)
    # The noise of a round is the difference of two consecutive prefix estimates.
    before_first = np.zeros((1, estimates.draws))
    return np.diff(prefixes, axis=0, prepend=before_first)


def node_matrix(nodes: list[Node], rounds: int) -> Float64Array:
    """Returns C of a tree, [nodes, rounds]: ones in the rounds of each node."""
    return np.array([[float(node.start <= t < node.end) for t in range(rounds)] for node in nodes])


def _segments(tree: TreeShape, rounds: int) -> Iterator[tuple[int, int, bool]]:
    """Yields (start, end, is_completed); a tree is completed at a restart and at the planned end,
    but not if a run stops early."""
    ends = [0, *(restart for restart in tree.restarts if restart < rounds), rounds]
    for start, end in itertools.pairwise(ends):
        is_planned = end in tree.restarts or end == tree.rounds
        yield start, end, tree.completion and is_planned


def _nodes_of_one(first: int, end: int, has_completion: bool) -> Iterator[Node]:
    # Without completion, a node exists once its last round is released.
    root_height = (end - first - 1).bit_length()
    for height in range((end - first).bit_length() + 1):
        for start in range(first, end, 1 << height):
            last = start + (1 << height)
            is_in_tree = has_completion and height <= root_height
            if last <= end or is_in_tree:
                yield Node(start, min(last, end), height)


def _tree_prefixes(tree: TreeShape, rounds: int, estimates: "_Estimates") -> Float64Array:
    """Returns the weights of the draws in the estimate of each prefix sum: finished trees, and the
    dyadic parts of the current tree from below."""
    prefixes = np.zeros((rounds, estimates.draws))
    finished = np.zeros(estimates.draws)
    for first, end, is_completed in _segments(tree, rounds):
        for last in range(first + 1, end + 1):
            prefixes[last - 1] += finished
            # Greedily, the largest node that fits.
            start = first
            while start < last:
                height = (last - start).bit_length() - 1
                prefixes[last - 1] += estimates.of(start, end, height)[0]
                start += 1 << height
        if is_completed:
            root_height = (end - first - 1).bit_length()
            root = estimates.of(first, end, root_height)[0]
            prefixes[end - 1] = finished + root
        finished = prefixes[end - 1]
    return prefixes


class _Estimates:
    """Honaker's estimates of nodes, as weights of the draws in `columns`."""

    def __init__(self, columns: list[Node]) -> None:
        self.draws = len(columns)
        self._places = {column: place for place, column in enumerate(columns)}
        self._known: dict[tuple[int, int, int], tuple[Float64Array, float]] = {}

    def of(self, start: int, end: int, height: int) -> tuple[Float64Array, float]:
        """Returns a node's estimate and its variance; `end` is that of its segment."""
        key = (start, end, height)
        # Every node is a part of many prefixes.
        if key not in self._known:
            self._known[key] = self._computed(start, end, height)
        return self._known[key]

    def _computed(self, start: int, end: int, height: int) -> tuple[Float64Array, float]:
        """Combines a node's own noise and the sum of its children's estimates by inverse
        variance."""
        own = np.zeros(self.draws)
        # A virtual subtree has no nodes: one draw of the same variance replaces its estimate.
        if start >= end:
            variance = 1.0
            for _ in range(height):
                variance = 2 * variance / (1 + 2 * variance)
            own[self._places[Node(end, end, height)]] = math.sqrt(variance)
            return own, variance
        node = Node(start, min(start + (1 << height), end), height)
        own[self._places[node]] = 1.0
        if height == 0:
            return own, 1.0
        middle = start + (1 << (height - 1))
        left, left_variance = self.of(start, end, height - 1)
        right, right_variance = self.of(middle, end, height - 1)
        # Two estimates of one sum, of variances 1 and `below`, weighted inversely.
        below = left_variance + right_variance
        # Of two independent unbiased estimates this weighting has the least variance (Gauss and
        # Markov; Honaker 2015).
        weight = below / (1.0 + below)
        estimate = weight * own + (1.0 - weight) * (left + right)
        return estimate, below / (1.0 + below)
