"""Recurrences: the noise of a round, row t of C^-1 Z, from draws and earlier rows.

Every strategy returns one (`Strategy.recurrence`), and noise streams match only on this union. So a
new strategy needs no new noise stream, unless its noise follows no recurrence here.

    Independent    out_t = z_t
    Buffers        out_t = z_t - omega' S; S = diag(theta) S + 1 out_t'
    Outputs        out_t = (z_t - sum_{j >= 1} C[t, t-j] out_{t-j}) / C[t, t]
    Draws          out_t = sum_j d_j z_{t-j}
    Forest         binary trees, estimated from below

z_t is the draw of round t. At each of its `starts` a recurrence restarts: it drops its state and
counts its rounds from there, so that the releases before and after are independent.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Restarting:
    """Base class of recurrences.

    starts: rounds at which it restarts, increasing; the first is 0.
    """

    starts: tuple[int, ...] = (0,)

    def start_of(self, round_index: int) -> int:
        """The latest start that is not after the round."""
        return self.starts[bisect_right(self.starts, round_index) - 1]

    def begins_anew(self, round_index: int) -> bool:
        """Whether the noise of this round and of later ones is independent of all before."""
        return self.start_of(round_index) == round_index


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Independent(Restarting):
    """out_t = z_t: no state."""

    def begins_anew(self, round_index: int) -> bool:
        """Always."""
        del round_index
        return True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Buffers(Restarting):
    """out_t = z_t - omega' S; S = diag(theta) S + 1 out_t' (McMahan, Xu, Zhang 2024, Algorithm 3).

    theta: decay of each buffer.
    omega: weight of each buffer.
    """

    theta: tuple[float, ...]
    omega: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outputs(Restarting):
    """out_t = (z_t - sum_{j >= 1} C[t, t-j] out_{t-j}) / C[t, t]: forward substitution.

    row: function of t, counted from the latest start: C[t, t], C[t, t-1], ..., at most `bands` of
        them. Missing ones at the end are zero.
    bands: nonzero diagonals of C; the state is the last bands - 1 rows.
    """

    row: Callable[[int], NDArray[np.float64]]
    bands: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draws(Restarting):
    """out_t = sum_j d_j z_{t-j}.

    coefficients: d_0 = 1, d_1, ..., of C^-1, Toeplitz; the state is as many draws, less one.
    """

    coefficients: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forest(Restarting):
    """The noise of a prefix sum, estimated from the trees' nodes, less that of the prefix before.

    The estimate of a complete node combines its own draw and its children's estimates by inverse
    variance (Honaker 2015). Each start begins a new tree.

    completed_ends: ends of the trees that virtual rounds complete.
    variances: variance of a complete node's estimate, by height.
    """

    completed_ends: frozenset[int]
    variances: tuple[float, ...]


Recurrence = Independent | Buffers | Outputs | Draws | Forest
