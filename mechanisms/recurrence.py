"""Recurrences of the noise: row t of C^-1 Z from draws and earlier rows.

`Strategy.recurrence` returns one, and the code that generates noise matches on this union. A new
strategy therefore needs a new noise stream only if no recurrence here describes its noise.

    Independent    out_t = z_t
    Buffers        out_t = z_t - omega' S; S = diag(theta) S + 1 out_t'
    Outputs        out_t = (z_t - sum_{j >= 1} C[t, t-j] out_{t-j}) / C[t, t]
    Draws          out_t = sum_j d_j z_{t-j}
    Forest         binary trees, estimated from below

z_t is the draw of round t. At each of its `starts` a recurrence is reset: it forgets its state and
counts rounds from there, so noise before and after a start is independent.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from fedray.base.arrays import Float64Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Restarting:
    """Base of all recurrences."""

    starts: tuple[int, ...] = (0,)
    """Rounds of the resets, increasing; the first is 0."""

    def start_of(self, round_index: int) -> int:
        """Returns the latest start up to the round."""
        return self.starts[bisect_right(self.starts, round_index) - 1]

    def begins_anew(self, round_index: int) -> bool:
        """Whether the noise from this round on is independent of all earlier noise."""
        return self.start_of(round_index) == round_index


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Independent(Restarting):
    """out_t = z_t: no state."""

    def begins_anew(self, round_index: int) -> bool:
        del round_index
        return True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Buffers(Restarting):
    """out_t = z_t - omega' S; S = diag(theta) S + 1 out_t' (McMahan, Xu, Zhang 2024, Algorithm
    3)."""

    theta: tuple[float, ...]
    """Decay of each buffer."""
    omega: tuple[float, ...]
    """Weight of each buffer."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outputs(Restarting):
    """out_t = (z_t - sum_{j >= 1} C[t, t-j] out_{t-j}) / C[t, t]: forward substitution."""

    row: Callable[[int], Float64Array]
    """Function of t, counted from the latest start: C[t, t], C[t, t-1], ..., at most `bands`
    entries, without trailing zeros."""
    bands: int
    """Number of nonzero diagonals of C; the state is the last bands - 1 outputs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draws(Restarting):
    """out_t = sum_j d_j z_{t-j}: C^-1 is banded Toeplitz."""

    coefficients: Float64Array
    """The coefficients d_0 = 1, d_1, ... of C^-1; the state is one draw fewer than these."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forest(Restarting):
    """Difference of the noise of two consecutive prefix sums, each estimated from tree nodes.

    The estimate of a complete node combines its own draw and the estimates of its children by
    inverse variance (Honaker 2015). Each start begins a new tree.
    """

    completed_ends: frozenset[int]
    """Ends of the trees that virtual rounds complete."""
    variances: tuple[float, ...]
    """Variance of the estimate of a complete node, by height."""


Recurrence = Independent | Buffers | Outputs | Draws | Forest
