"""The slow, readable twin: materialises C and the noise map, straight from the definitions, in
float64.

Every fast path of the mechanisms, of the aggregator's noise and of the audit is tested against this
file.
"""

import itertools
import math
from collections.abc import Iterator
from decimal import MAX_EMAX, MIN_EMIN, Decimal, localcontext
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.errors import InputError
from mechanisms.band_fhu import BandFHU
from mechanisms.bisr import BISR
from mechanisms.blt import BLT
from mechanisms.identity import Identity
from mechanisms.participation import MinSep
from mechanisms.restarted import Restarted
from mechanisms.strategy import Strategy
from mechanisms.toeplitz import Toeplitz
from mechanisms.tree import Tree
from mechanisms.tree_full import TreeFull
from mechanisms.triangular import MatrixFile


def strategy_matrix(strategy: Strategy, rounds: int) -> NDArray[np.float64]:
    """C, [rounds, rounds] for a square strategy and [nodes, rounds] for a tree."""
    match strategy:
        case Identity():
            return np.eye(rounds)
        case BLT():
            buffers = list(zip(strategy.theta, strategy.omega, strict=True))
            return _toeplitz(
                [1.0, *(sum(w * t ** (i - 1) for t, w in buffers) for i in range(1, rounds))]
            )
        case Toeplitz():
            return _toeplitz([*strategy.coefficients, *([0.0] * rounds)][:rounds])
        case BandFHU():
            return _toeplitz(
                [math.comb(2 * i, i) / 4**i if i < strategy.bands else 0.0 for i in range(rounds)]
            )
        case BISR():
            inverse = [
                Fraction(math.comb(2 * i, i), 4**i * (1 - 2 * i))
                for i in range(min(rounds, strategy.bands))
            ]
            c = [Fraction(1)]
            for i in range(1, rounds):
                c.append(
                    -sum(
                        (inverse[j] * c[i - j] for j in range(1, min(i + 1, len(inverse)))),
                        Fraction(0),
                    )
                )
            return _toeplitz([float(each) for each in c])
        case MatrixFile():
            return strategy.matrix[:rounds, :rounds].copy()
        case Tree():
            return _node_matrix(tree_nodes(strategy, rounds), rounds)
        case TreeFull():
            nodes = _node_matrix(
                tree_nodes(
                    Tree(completion=strategy.completion, rounds=strategy.rounds), strategy.rounds
                ),
                strategy.rounds,
            )
            upper: NDArray[np.float64] = np.linalg.qr(nodes[:, ::-1]).R
            R = upper[::-1, ::-1]  # nodes' nodes = R'R, R lower triangular
            return (np.sign(np.diag(R))[:, None] * R)[:rounds, :rounds]
        case Restarted():
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


def noise_map(strategy: Strategy, rounds: int) -> NDArray[np.float64]:
    """M, [rounds, draws]: the noise added in round t is z * clip_norm * (M Z)[t], Z standard
    normal.

    Draws are the rows of C; of a completed tree, also one per virtual subtree, for the whole of its
    estimate.
    """
    match strategy:
        case Tree():
            columns = [*tree_nodes(strategy, rounds), *virtual_subtrees(strategy, rounds)]
            prefixes = _tree_prefixes(
                strategy, rounds, {column: place for place, column in enumerate(columns)}
            )
            return np.diff(prefixes, axis=0, prepend=np.zeros((1, len(columns))))
        case _:
            return np.linalg.inv(strategy_matrix(strategy, rounds)).astype(np.float64)


class Node(NamedTuple):
    """A dyadic node: its real rounds [start, end), and its height. A virtual subtree has none:
    start = end."""

    start: int
    end: int
    height: int


def tree_nodes(strategy: Tree, rounds: int) -> list[Node]:
    """Nodes with a real round, of every tree of the forest, leaves first."""
    segments = _segments(strategy, rounds)
    return [
        node
        for first, end, is_completed in segments
        for node in _nodes_of_one(first, end, is_completed)
    ]


def virtual_subtrees(strategy: Tree, rounds: int) -> list[Node]:
    """Of completed trees: the subtrees without a real round, as large as they come; known by end
    and height."""
    return [
        Node(end, end, height)
        for first, end, is_completed in _segments(strategy, rounds)
        if is_completed
        for height in range((end - first - 1).bit_length())
        if not (end - first - 1) >> height & 1
    ]


def _toeplitz(coefficients: list[float]) -> NDArray[np.float64]:
    n = len(coefficients)
    return np.array([[coefficients[i - j] if i >= j else 0.0 for j in range(n)] for i in range(n)])


def _node_matrix(nodes: list[Node], rounds: int) -> NDArray[np.float64]:
    return np.array([[float(node.start <= t < node.end) for t in range(rounds)] for node in nodes])


def _segments(strategy: Tree, rounds: int) -> Iterator[tuple[int, int, bool]]:
    """(start, end, whether completed there): at a restart, and at the planned end, but not where a
    run stopped early."""
    ends = [0, *(restart for restart in strategy.restarts if restart < rounds), rounds]
    for start, end in itertools.pairwise(ends):
        yield (
            start,
            end,
            strategy.completion and (end in strategy.restarts or end == strategy.rounds),
        )


def _nodes_of_one(first: int, end: int, has_completion: bool) -> Iterator[Node]:
    for height in range((end - first).bit_length() + 1):
        for start in range(first, end, 1 << height):
            last = start + (1 << height)
            if last <= end or (has_completion and height <= (end - first - 1).bit_length()):
                yield Node(start, min(last, end), height)


def _tree_prefixes(strategy: Tree, rounds: int, columns: dict[Node, int]) -> NDArray[np.float64]:
    """Weights on the draws in the estimate of each prefix sum: finished trees, and the present
    one's dyadic parts from below."""
    prefixes, finished = np.zeros((rounds, len(columns))), np.zeros(len(columns))
    for first, end, is_completed in _segments(strategy, rounds):
        for last in range(first + 1, end + 1):
            prefixes[last - 1] += finished
            start = first
            while start < last:
                height = (last - start).bit_length() - 1
                prefixes[last - 1] += _honaker_node(columns, start, end, height)[0]
                start += 1 << height
        if is_completed:
            prefixes[end - 1] = (
                finished + _honaker_node(columns, first, end, (end - first - 1).bit_length())[0]
            )
        finished = prefixes[end - 1]
    return prefixes


def _honaker_node(
    columns: dict[Node, int], start: int, end: int, height: int
) -> tuple[NDArray[np.float64], float]:
    """A node's estimate and its variance: its own noise and the sum of its children's estimates, by
    inverse variance."""
    own = np.zeros(len(columns))
    if start >= end:  # virtual: one draw stands for the whole estimate
        variance = 1.0
        for _ in range(height):
            variance = 2 * variance / (1 + 2 * variance)
        own[columns[Node(end, end, height)]] = math.sqrt(variance)
        return own, variance
    own[columns[Node(start, min(start + (1 << height), end), height)]] = 1.0
    if height == 0:
        return own, 1.0
    (left, left_variance), (right, right_variance) = (
        _honaker_node(columns, start, end, height - 1),
        _honaker_node(columns, start + (1 << (height - 1)), end, height - 1),
    )
    below = left_variance + right_variance
    weight = below / (1.0 + below)
    return weight * own + (1.0 - weight) * (left + right), below / (1.0 + below)


def pattern_sensitivity(strategy: Strategy, pattern: tuple[int, ...], rounds: int) -> float:
    """Norm of the sum of C's columns in the pattern: what one device adds to C X when all its
    contributions are alike."""
    return float(np.linalg.norm(strategy_matrix(strategy, rounds)[:, list(pattern)].sum(axis=1)))


def participation_sensitivity(strategy: Strategy, participation: MinSep) -> float:
    """Largest pattern sensitivity over every pattern the participation permits, one by one."""
    C = strategy_matrix(strategy, participation.rounds)
    return max(
        float(np.linalg.norm(C[:, list(pattern)].sum(axis=1)))
        for pattern in participation.patterns()
    )


def error_variances(strategy: Strategy, rounds: int) -> NDArray[np.float64]:
    """Variance of each prefix sum's noise at unit scale: squared row norms of A M."""
    return (np.cumsum(noise_map(strategy, rounds), axis=0) ** 2).sum(axis=1)


def gaussian_delta(mu: float, epsilon: float) -> Decimal:
    """delta(epsilon) of a Gaussian mechanism with mu = sensitivity / standard deviation (Balle and
    Wang 2018, Theorem 8).

    Phi(-a) - e^epsilon Phi(-b), a and b = epsilon / mu -+ mu / 2, in so many digits that nothing
    overflows or cancels.
    """
    exact_mu, exact_epsilon = Decimal(mu), Decimal(epsilon)
    with localcontext(prec=80 + int(mu * mu), Emax=MAX_EMAX, Emin=MIN_EMIN):
        a, b = exact_epsilon / exact_mu - exact_mu / 2, exact_epsilon / exact_mu + exact_mu / 2
        return _normal_tail(a) - exact_epsilon.exp() * _normal_tail(b)


def _normal_tail(x: Decimal) -> Decimal:
    """1 - Phi(x), to 60 relative digits: by its series (Marsaglia 2004), or above 6 by Laplace's
    continued fraction."""
    density = (-x * x / 2).exp() / (2 * _PI).sqrt()
    if x > 6:
        tail = Decimal(0)
        for term in range(300, 0, -1):
            tail = term / (x + tail)
        return density / (x + tail)
    power, total, odd = x, x, 1
    while abs(power) > Decimal(10) ** -110:
        odd += 2
        power = power * x * x / odd
        total += power
    return Decimal("0.5") - density * total


_PI = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798214808651"
)
