"""The slow, readable twin: materialises C and the noise map, straight from the definitions, in float64.

Every fast path of the mechanisms, of the aggregator's noise and of the audit is tested against this file.
"""

import math

import numpy as np
from numpy.typing import NDArray

from mechanisms.blt import BLT
from mechanisms.identity import Identity
from mechanisms.participation import MinSep
from mechanisms.strategy import Strategy
from mechanisms.tree import Tree


def strategy_matrix(strategy: Strategy, rounds: int) -> NDArray[np.float64]:
    """C, [rounds, rounds] for a square strategy and [nodes, rounds] for a tree."""
    match strategy:
        case Identity():
            return np.eye(rounds)
        case BLT():
            C = np.eye(rounds)
            for row in range(rounds):
                for column in range(row):
                    power = row - column - 1
                    C[row, column] = sum(w * t**power for t, w in zip(strategy.theta, strategy.omega, strict=True))
            return C
        case Tree():
            return np.array([[float(start <= t < end) for t in range(rounds)] for start, end in tree_nodes(rounds)])
        case _:
            raise ValueError(f"strategy kind {strategy.kind!r} has no reference matrix; add it to mechanisms/reference.py")


def noise_map(strategy: Strategy, rounds: int) -> NDArray[np.float64]:
    """M, [rounds, rows of C]: the noise added in round t is z * clip_norm * (M Z)[t], Z standard normal."""
    match strategy:
        case Tree():
            prefixes = np.array([_honaker_prefix(rounds, end) for end in range(1, rounds + 1)])
            return np.diff(prefixes, axis=0, prepend=np.zeros((1, prefixes.shape[1])))
        case _:
            return np.linalg.inv(strategy_matrix(strategy, rounds)).astype(np.float64)


def tree_nodes(rounds: int) -> list[tuple[int, int]]:
    """Complete dyadic nodes [start, end) within [0, rounds), leaves first."""
    heights = range(rounds.bit_length())
    return [(s << h, (s + 1) << h) for h in heights for s in range(rounds >> h)]


def _honaker_prefix(rounds: int, end: int) -> NDArray[np.float64]:
    """Weights on the nodes' noise in the estimate of the sum of rounds [0, end): its dyadic parts, each estimated from below."""
    nodes = {node: index for index, node in enumerate(tree_nodes(rounds))}
    weights = np.zeros(len(nodes))
    start = 0
    while start < end:
        size = 1 << ((end - start).bit_length() - 1)
        weights += _honaker_node(nodes, start, start + size)[0]
        start += size
    return weights


def _honaker_node(nodes: dict[tuple[int, int], int], start: int, end: int) -> tuple[NDArray[np.float64], float]:
    """A node's estimate and its variance: its own noise and the sum of its children's estimates, by inverse variance."""
    own = np.zeros(len(nodes))
    own[nodes[start, end]] = 1.0
    if end - start == 1:
        return own, 1.0
    middle = (start + end) // 2
    (left, left_variance), (right, right_variance) = (
        _honaker_node(nodes, start, middle),
        _honaker_node(nodes, middle, end),
    )
    below = left_variance + right_variance
    weight = below / (1.0 + below)
    return weight * own + (1.0 - weight) * (left + right), below / (1.0 + below)


def pattern_sensitivity(strategy: Strategy, pattern: tuple[int, ...], rounds: int) -> float:
    """Norm of the sum of C's columns in the pattern: what one device adds to C X when all its contributions are alike."""
    return float(np.linalg.norm(strategy_matrix(strategy, rounds)[:, list(pattern)].sum(axis=1)))


def schema_sensitivity(strategy: Strategy, schema: MinSep) -> float:
    """Largest pattern sensitivity over every pattern the schema permits, one by one."""
    C = strategy_matrix(strategy, schema.rounds)
    return max(float(np.linalg.norm(C[:, list(pattern)].sum(axis=1))) for pattern in schema.patterns())


def gaussian_delta(mu: float, epsilon: float) -> float:
    """delta(epsilon) of a Gaussian mechanism with mu = sensitivity / standard deviation (Balle and Wang 2018, Theorem 8)."""

    def phi(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2.0))

    return phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu)
