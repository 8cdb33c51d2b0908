"""The slow, readable twin: builds C and the noise map from their definitions, in float64.

Every fast path in the mechanisms, the aggregator's noise and the audit is tested against this file.
"""

import itertools
import math
from collections.abc import Iterator
from decimal import MAX_EMAX, MIN_EMIN, Decimal, localcontext
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from fedray.base.arrays import Float64Array
from fedray.base.errors import InputError
from fedray.mechanisms.band_fhu import BandFHU
from fedray.mechanisms.bisr import BISR
from fedray.mechanisms.blt import BLT
from fedray.mechanisms.identity import Identity
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.restarted import Restarted
from fedray.mechanisms.strategy import Strategy
from fedray.mechanisms.toeplitz import Toeplitz
from fedray.mechanisms.tree import Tree
from fedray.mechanisms.tree_full import TreeFull
from fedray.mechanisms.triangular import MatrixFile


def strategy_matrix(strategy: Strategy, rounds: int) -> Float64Array:
    """Returns C, [rounds, rounds] for a square strategy and [nodes, rounds] for a tree.

    Every kind follows the definition of its paper, without the code of its own file.

    Raises:
        InputError: the kind has no reference matrix.
    """
    match strategy:
        case Identity():
            return np.eye(rounds)
        case BLT():
            # c_i = sum_j omega_j theta_j^(i-1) (Dvijotham et al. 2024).
            buffers = list(zip(strategy.theta, strategy.omega, strict=True))
            later = [sum(w * t ** (i - 1) for t, w in buffers) for i in range(1, rounds)]
            return _toeplitz([1.0, *later])
        case Toeplitz():
            zeros = [0.0] * rounds
            return _toeplitz([*strategy.coefficients, *zeros][:rounds])
        case BandFHU():
            # The coefficients of (1 - x)^(-1/2), the square root of the prefix sum's 1 / (1 - x).
            kept = min(rounds, strategy.bands)
            c = [math.comb(2 * i, i) / 4**i for i in range(kept)]
            return _toeplitz([*c, *([0.0] * (rounds - kept))])
        case BISR():
            # C is the inverse of the truncated series of (1 - x)^(1/2). Fractions, because the
            # recursion would accumulate rounding errors.
            kept = min(rounds, strategy.bands)
            inverse = [Fraction(math.comb(2 * i, i), 4**i * (1 - 2 * i)) for i in range(kept)]
            c = [Fraction(1)]
            for i in range(1, rounds):
                lags = range(1, min(i + 1, kept))
                products = [inverse[j] * c[i - j] for j in lags]
                c.append(-sum(products, Fraction(0)))
            return _toeplitz([float(each) for each in c])
        case MatrixFile():
            return strategy.matrix[:rounds, :rounds].copy()
        case Tree():
            return _node_matrix(tree_nodes(strategy, rounds), rounds)
        case TreeFull():
            tree = Tree(completion=strategy.completion, rounds=strategy.rounds)
            nodes = _node_matrix(tree_nodes(tree, strategy.rounds), strategy.rounds)
            upper: Float64Array = np.linalg.qr(nodes[:, ::-1]).R
            # The exchanged factor R is lower triangular, and nodes' nodes = R'R. QR does not fix
            # the signs of its rows; the diagonal of C is positive.
            R = upper[::-1, ::-1]
            signs = np.sign(np.diag(R))[:, None]
            return (signs * R)[:rounds, :rounds]
        case Restarted():
            # Each restart resets the mechanism, so C is block diagonal.
            starts = [0, *(each for each in strategy.restarts if each < rounds)]
            C = np.zeros((rounds, rounds))
            for start, end in zip(starts, [*starts[1:], rounds], strict=True):
                C[start:end, start:end] = strategy_matrix(strategy.mechanism, end - start)
            return C
        case _:
            raise InputError(
                f"strategy kind {strategy.kind!r} has no reference matrix; add it to "
                "mechanisms/reference.py"
            )


def noise_map(strategy: Strategy, rounds: int) -> Float64Array:
    """Returns M, [rounds, draws]: the noise of round t is z * clip_norm * (M Z)[t], Z standard
    normal.

    There is a draw per row of C, and for completed trees one per virtual subtree, for its whole
    estimate.
    """
    match strategy:
        case Tree():
            columns = [*tree_nodes(strategy, rounds), *virtual_subtrees(strategy, rounds)]
            places = {column: place for place, column in enumerate(columns)}
            prefixes = _tree_prefixes(strategy, rounds, places)
            # The noise of a round is the difference of two consecutive prefix estimates.
            before_first = np.zeros((1, len(columns)))
            return np.diff(prefixes, axis=0, prepend=before_first)
        case _:
            return np.linalg.inv(strategy_matrix(strategy, rounds)).astype(np.float64)


class Node(NamedTuple):
    """A dyadic node of a tree, or a virtual subtree, which has no real round: start = end."""

    start: int
    """First real round."""
    end: int
    """Round after the last real one."""
    height: int
    """Number of levels above the leaves."""


def tree_nodes(strategy: Tree, rounds: int) -> list[Node]:
    """Returns the nodes with a real round after `rounds` released rounds, tree by tree, leaves
    first."""
    nodes = []
    for first, end, is_completed in _segments(strategy, rounds):
        nodes.extend(_nodes_of_one(first, end, is_completed))
    return nodes


def virtual_subtrees(strategy: Tree, rounds: int) -> list[Node]:
    """Returns the largest subtrees without a real round of the trees completed by then."""
    nodes = []
    for first, end, is_completed in _segments(strategy, rounds):
        if not is_completed:
            continue
        # In the path from the last real round to the root, a binary one of its number is a right
        # child; a zero is a left child, whose sibling is virtual.
        last = end - first - 1
        heights = [height for height in range(last.bit_length()) if not last >> height & 1]
        nodes.extend(Node(end, end, height) for height in heights)
    return nodes


def _toeplitz(coefficients: list[float]) -> Float64Array:
    n = len(coefficients)
    return np.array([[coefficients[i - j] if i >= j else 0.0 for j in range(n)] for i in range(n)])


def _node_matrix(nodes: list[Node], rounds: int) -> Float64Array:
    return np.array([[float(node.start <= t < node.end) for t in range(rounds)] for node in nodes])


def _segments(strategy: Tree, rounds: int) -> Iterator[tuple[int, int, bool]]:
    """Yields (start, end, is_completed); a tree is completed at a restart and at the planned end,
    but not if a run stops early."""
    ends = [0, *(restart for restart in strategy.restarts if restart < rounds), rounds]
    for start, end in itertools.pairwise(ends):
        is_planned = end in strategy.restarts or end == strategy.rounds
        yield start, end, strategy.completion and is_planned


def _nodes_of_one(first: int, end: int, has_completion: bool) -> Iterator[Node]:
    # Without completion, a node exists once its last round is released.
    root_height = (end - first - 1).bit_length()
    for height in range((end - first).bit_length() + 1):
        for start in range(first, end, 1 << height):
            last = start + (1 << height)
            is_in_tree = has_completion and height <= root_height
            if last <= end or is_in_tree:
                yield Node(start, min(last, end), height)


def _tree_prefixes(strategy: Tree, rounds: int, columns: dict[Node, int]) -> Float64Array:
    """Returns the weights of the draws in the estimate of each prefix sum: finished trees, and the
    dyadic parts of the current tree from below."""
    prefixes = np.zeros((rounds, len(columns)))
    finished = np.zeros(len(columns))
    for first, end, is_completed in _segments(strategy, rounds):
        for last in range(first + 1, end + 1):
            prefixes[last - 1] += finished
            # Greedily, the largest node that fits.
            start = first
            while start < last:
                height = (last - start).bit_length() - 1
                prefixes[last - 1] += _honaker_node(columns, start, end, height)[0]
                start += 1 << height
        if is_completed:
            root_height = (end - first - 1).bit_length()
            root = _honaker_node(columns, first, end, root_height)[0]
            prefixes[end - 1] = finished + root
        finished = prefixes[end - 1]
    return prefixes


def _honaker_node(
    columns: dict[Node, int], start: int, end: int, height: int
) -> tuple[Float64Array, float]:
    """Returns a node's estimate and its variance, from its own noise and the sum of its children's
    estimates, by inverse variance."""
    own = np.zeros(len(columns))
    # A virtual subtree has no nodes: one draw of the same variance replaces its estimate.
    if start >= end:
        variance = 1.0
        for _ in range(height):
            variance = 2 * variance / (1 + 2 * variance)
        own[columns[Node(end, end, height)]] = math.sqrt(variance)
        return own, variance
    node = Node(start, min(start + (1 << height), end), height)
    own[columns[node]] = 1.0
    if height == 0:
        return own, 1.0
    middle = start + (1 << (height - 1))
    left, left_variance = _honaker_node(columns, start, end, height - 1)
    right, right_variance = _honaker_node(columns, middle, end, height - 1)
    # Two estimates of one sum, of variances 1 and `below`, weighted inversely.
    below = left_variance + right_variance
    weight = below / (1.0 + below)
    estimate = weight * own + (1.0 - weight) * (left + right)
    return estimate, below / (1.0 + below)


def pattern_sensitivity(strategy: Strategy, pattern: tuple[int, ...], rounds: int) -> float:
    """Returns the norm of the sum of C's columns in the pattern: the contribution of one device to
    C X if its contributions are equal.

    Exact if C'C has no negative entry on the pattern.
    """
    C = strategy_matrix(strategy, rounds)
    return _aligned_norm(C, pattern)


def participation_sensitivity(strategy: Strategy, participation: MinSep) -> float:
    """Returns the largest pattern sensitivity by enumeration of all permitted patterns, whose
    number is exponential: for runs of a dozen rounds."""
    C = strategy_matrix(strategy, participation.rounds)
    return max(_aligned_norm(C, pattern) for pattern in participation.patterns())


def _aligned_norm(C: Float64Array, pattern: tuple[int, ...]) -> float:
    columns = C[:, list(pattern)]
    return float(np.linalg.norm(columns.sum(axis=1)))


def error_variances(strategy: Strategy, rounds: int) -> Float64Array:
    """Returns the variance of each prefix sum's noise at unit scale, [rounds]: squared row norms of
    A M, with the prefix sum A and the `noise_map` M."""
    B = np.cumsum(noise_map(strategy, rounds), axis=0)
    return (B**2).sum(axis=1)


def gaussian_delta(mu: float, epsilon: float) -> Decimal:
    """Returns delta(epsilon) of a Gaussian mechanism with mu = sensitivity / standard deviation
    (Balle and Wang 2018, Theorem 8).

    Phi(-a) - e^epsilon Phi(-b), a and b = epsilon / mu -+ mu / 2, with enough digits to avoid
    overflow and cancellation.
    """
    # The exponent of the terms that cancel grows with mu^2.
    exact_mu = Decimal(mu)
    exact_epsilon = Decimal(epsilon)
    with localcontext(prec=80 + int(mu * mu), Emax=MAX_EMAX, Emin=MIN_EMIN):
        a = exact_epsilon / exact_mu - exact_mu / 2
        b = exact_epsilon / exact_mu + exact_mu / 2
        return _normal_tail(a) - exact_epsilon.exp() * _normal_tail(b)


def _normal_tail(x: Decimal) -> Decimal:
    """Returns 1 - Phi(x), to 60 relative digits, by its series (Marsaglia 2004), or above 6 by
    Laplace's continued fraction."""
    density = (-x * x / 2).exp() / (2 * _PI).sqrt()
    # For large x the sum of the series is nearly 1/2, so the difference would lose digits, while
    # the fraction converges faster.
    if x > 6:
        tail = Decimal(0)
        for term in range(300, 0, -1):
            tail = term / (x + tail)
        return density / (x + tail)
    power = x
    total = x
    odd = 1
    # Marsaglia: Phi(x) = 1/2 + density (x + x^3 / 3 + x^5 / (3 5) + ...).
    while abs(power) > Decimal(10) ** -110:
        odd += 2
        power = power * x * x / odd
        total += power
    return Decimal("0.5") - density * total


_PI = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798214808651"
)
