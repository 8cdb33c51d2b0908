"""Streams of correlated noise: row t of C^-1 Z (for a tree, of its decoder times Z), in torch, one
class per recurrence of mechanisms/recurrence.py.

    IndependentNoise    Independent: no state
    BuffersNoise        Buffers: one row of state per (theta, omega)
    OutputsNoise        Outputs: the last `bands - 1` rows
    DrawsNoise          Draws: the last draws, one fewer than there are coefficients
    ForestNoise         Forest: one row per height, and the last prefix's noise

The draws Z are standard normals, in float32. If devices add the noise, the opened sums W take their
place, in float64: the rows are then the noised sums Y = C^-1 W.

A stream is made for a number of rounds and refuses to go beyond it: a row that was not accounted
for, or was given twice, would break the guarantee. Rows are written in place, so the next call of
`next` overwrites the result of the last. State is float32 [.., D], and every step reads and writes
it once, near the memory's bandwidth. tests/server/test_noise.py and tests/statistical compare
statistics and recurrences with mechanisms/reference.py.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache, cached_property
from typing import Generic, TypeVar

import numpy as np
import torch
from numba import prange
from numpy.typing import NDArray
from torch import Tensor

from fedray.base.compiled import HAS_TORCH_FOLDER, TORCH_FOLDER, compiled_folder, njit
from fedray.base.errors import InputError, one_line
from fedray.base.rng import Stream
from fedray.mechanisms.recurrence import Buffers, Draws, Forest, Independent, Outputs, Restarting
from fedray.mechanisms.strategy import Strategy
from fedray.runtime import devices
from .draws import VIRTUAL, NormalDraws, Rows

R = TypeVar("R", bound=Restarting)


class NoiseStream(ABC, Generic[R]):
    """Noise of unit scale for rounds 0 .. rounds-1 of one run, on coordinates [first, first + D);
    each row is given once."""

    def __init__(
        self,
        recurrence: R,
        draws: Rows,
        dimension: int,
        device: torch.device,
        rounds: int,
    ) -> None:
        self._recurrence = recurrence
        self._draws, self._rounds = draws, rounds
        self._out = torch.empty(dimension, device=device, dtype=draws.dtype)
        self._state = torch.zeros(self._memory(), dimension, device=device, dtype=draws.dtype)
        self._is_drawn = False
        """Whether `_out` already has the noise of the next round."""
        self.next_round = 0

    def next(self) -> Tensor:
        """Returns the next round's noise [D], in a tensor that the next call reuses. Raises
        InputError after the last round."""
        self.draw_ahead()
        self._is_drawn = False
        self.next_round += 1
        return self._out

    def draw_ahead(self) -> None:
        """Draws the row that `next` will return, unless it is drawn already. Until `next` is
        called, `state` is refused. Raises InputError after the last round."""
        if self._is_drawn:
            return
        if self.next_round >= self._rounds:
            raise InputError(
                f"round {self.next_round} has no noise: this stream was made for {self._rounds} "
                "rounds, the number that was accounted for, and a repeated row would reveal "
                "differences; plan for more rounds"
            )
        # At a restart, noise of earlier rounds must not carry over, because C is block diagonal
        # there.
        start = self._recurrence.start_of(self.next_round)
        if start == self.next_round:
            self._state.zero_()
        self._row(self.next_round, self.next_round - start)
        self._is_drawn = True

    def state(self) -> dict[str, NDArray]:
        """Returns named arrays from which `load` restores the stream. Raises ValueError after
        `draw_ahead`, when the buffers already belong to a later round."""
        if self._is_drawn:
            raise ValueError(
                f"the noise of round {self.next_round} is drawn ahead; take the state after next()"
            )
        return {
            "next_round": np.array(self.next_round),
            "buffers": devices.on_host(self._state).copy(),
        }

    def load(self, state: dict[str, NDArray]) -> None:
        """Restores a state of a stream of the same strategy, rounds, seed and coordinates. Raises
        InputError."""
        # Torch would silently broadcast a state of one row over all of them.
        expected, found = tuple(self._state.shape), state["buffers"].shape
        if expected != found:
            raise InputError(
                f"buffers have shape {found}, this stream has {expected}; load the state of the "
                "same scenario"
            )
        if not 0 <= int(state["next_round"]) <= self._rounds:
            raise InputError.of(
                "next_round",
                int(state["next_round"]),
                f"is not among this stream's {self._rounds} rounds",
                "load a state of the same scenario",
            )
        self.next_round = int(state["next_round"])
        self._is_drawn = False
        self._state.copy_(torch.from_numpy(np.array(state["buffers"])))

    @abstractmethod
    def _row(self, round_index: int, place: int) -> None:
        """Writes the round's noise to `_out`; `place` counts rounds from the latest start."""

    @abstractmethod
    def _memory(self) -> int:
        """Returns the number of rows of the state."""


class IndependentNoise(NoiseStream[Independent]):
    """C = I."""

    def _row(self, round_index: int, place: int) -> None:
        del place
        self._draws.fill(self._out, round_index)

    def _memory(self) -> int:
        return 0


class Silence(IndependentNoise):
    """No noise: rows of zeros, without draws."""

    def _row(self, round_index: int, place: int) -> None:
        del round_index, place
        self._out.zero_()


class BuffersNoise(NoiseStream[Buffers]):
    """out_t = z_t - omega' S; S = diag(theta) S + out_t. S is [buffers, D]."""

    def _memory(self) -> int:
        return len(self._recurrence.theta)

    @cached_property
    def _weights(self) -> tuple[Tensor, Tensor]:
        # Of the type of the state, so that the loops stay in float32. As tensors, so that one
        # compiled function serves all settings: torch compiles a function only a few times.
        given = self._recurrence.theta, self._recurrence.omega
        theta, omega = torch.tensor(given, dtype=torch.float32, device=self._out.device)
        return theta, omega

    @cached_property
    def _is_compiled(self) -> bool:
        return self._can_compile()

    def _can_compile(self) -> bool:
        return self._out.device.type == "cuda" and compiles(str(self._out.device))

    def state(self) -> dict[str, NDArray]:
        # The last bits of the two differ. A CPU has one of them only.
        step = {} if self._out.device.type == "cpu" else {"is_compiled": self._is_compiled}
        return super().state() | {name: np.array(each) for name, each in step.items()}

    def load(self, state: dict[str, NDArray]) -> None:
        super().load(state)
        if "is_compiled" not in state:
            return
        was_compiled = bool(state["is_compiled"])
        if was_compiled and not self._can_compile():
            raise InputError(
                "the noise was computed by a compiled function, and torch cannot compile here; "
                "resume where there is a C compiler, such as gcc"
            )
        self._is_compiled = was_compiled

    def _row(self, round_index: int, place: int) -> None:
        del place
        self._draws.fill(self._out, round_index)
        self.step()

    def step(self) -> None:
        """Applies the recurrence to the draw in `_out`."""
        theta, omega = self._weights
        if self._out.device.type == "cpu":
            try:
                _buffered_step(self._state.numpy(), self._out.numpy(), theta.numpy(), omega.numpy())
            except ValueError as error:  # of NUMBA_THREADING_LAYER
                raise InputError(f"numba cannot start its threads: {error}") from None
        else:
            step = compiled_step() if self._is_compiled else buffered_step
            step(self._state, self._out, theta, omega)


CHUNK = 4096
"""Number of coordinates per pass: the buffers' chunk stays in the core's cache between reading and
writing."""


@njit(parallel=True, cache=True, error_model="numpy")
def _buffered_step(S, out, theta, omega):
    for chunk in prange((out.size + CHUNK - 1) // CHUNK):
        low, high = chunk * CHUNK, min(out.size, (chunk + 1) * CHUNK)
        o = out[low:high]
        # All buffers are subtracted before any of them changes, because each then adds the whole
        # row.
        # The recurrence of C^-1 for a buffered linear Toeplitz C (McMahan, Xu and Zhang 2024):
        # memory is one row per buffer, whatever the number of rounds.
        for b in range(S.shape[0]):
            s, weight = S[b, low:high], omega[b]
            for i in range(high - low):
                o[i] -= weight * s[i]
        for b in range(S.shape[0]):
            s, weight = S[b, low:high], theta[b]
            for i in range(high - low):
                s[i] = weight * s[i] + o[i]


def buffered_step(S_bD: Tensor, out_D: Tensor, theta_b: Tensor, omega_b: Tensor) -> None:
    """Takes the step of the recurrence in a form that a compiler can fuse: elementwise over
    coordinates."""
    total_D = out_D
    for buffer_D, weight in zip(S_bD, omega_b, strict=True):
        total_D = total_D - weight * buffer_D
    for buffer_D, weight in zip(S_bD, theta_b, strict=True):
        buffer_D.copy_(weight * buffer_D + total_D)
    out_D.copy_(total_D)


@cache
def compiled_step() -> Callable[[Tensor, Tensor, Tensor, Tensor], None]:
    """Returns `buffered_step` as one kernel, which reads and writes every buffer once.

    Raises:
        InputError: there is no private folder for compiled code.
    """
    if not HAS_TORCH_FOLDER:
        # It says which variable to set, since torch's own folder could be another user's.
        compiled_folder("torch", TORCH_FOLDER)
    # It is compiled once for each number of buffers, and not for each length.
    return torch.compile(buffered_step, dynamic=True)


@cache
def compiles(device: str) -> bool:
    """Tries `compiled_step` on a device, and warns if torch cannot compile it, as without a C
    compiler.

    Raises:
        InputError: there is no private folder for compiled code.
    """
    step = compiled_step()
    try:
        step(*(torch.ones(shape, device=device) for shape in ((2, 64), (64,), (2,), (2,))))
    except Exception as error:  # torch's compilers have no common class of errors
        why = one_line(str(error)) or type(error).__name__
        warnings.warn(
            f"torch cannot compile the noise ({why}), which then takes several times as long; "
            "install a C compiler, such as gcc",
            stacklevel=2,
        )
        return False
    return True


class _Ring(NoiseStream[R]):
    """A stream whose state is its last rows: row r stands in slot r modulo their number."""

    def _add_weighted(self, place: int, weights: NDArray[np.float64]) -> None:
        """Adds weights[j - 1] times the row of place - j, for j = 1 .. min(place, memory)."""
        memory = len(self._state)
        # Weights are put in the order of the slots, so that a single product adds all rows.
        by_slot = np.zeros(memory)
        lags = np.arange(1, min(place, memory) + 1)
        by_slot[(place - lags) % memory] = weights[: lags.size]
        self._out.addmv_(
            self._state.T, torch.tensor(by_slot, dtype=self._out.dtype, device=self._out.device)
        )

    def _keep(self, place: int, row_D: Tensor) -> None:
        self._state[place % len(self._state)].copy_(row_D)


class OutputsNoise(_Ring[Outputs]):
    """out_t = (z_t - sum_{j >= 1} C[t, t-j] out_{t-j}) / C[t, t]: forward substitution."""

    def _memory(self) -> int:
        return self._recurrence.bands - 1

    def _row(self, round_index: int, place: int) -> None:
        weights = self._recurrence.row(place)
        self._draws.fill(self._out, round_index)
        if len(self._state):
            self._add_weighted(place, -weights[1:])
        if weights[0] != 1.0:
            self._out.div_(float(weights[0]))
        if len(self._state):
            # Later rounds substitute the noise that was given out, so it is kept after the
            # division.
            self._keep(place, self._out)


class DrawsNoise(_Ring[Draws]):
    """out_t = sum_j d_j z_{t-j}, d_0 = 1."""

    def _memory(self) -> int:
        # A ring without slots has no position modulo its length; one slot with weight 0 changes
        # nothing.
        return max(1, len(self._recurrence.coefficients) - 1)

    @cached_property
    def _draw(self) -> Tensor:
        return torch.empty_like(self._out)

    def _row(self, round_index: int, place: int) -> None:
        self._draws.fill(self._draw, round_index)
        # The coefficient d_0 is 1, so the round's own draw is taken as it is.
        self._out.copy_(self._draw)
        weights = np.append(self._recurrence.coefficients[1:], [0.0])
        self._add_weighted(place, weights[: len(self._state)])
        # Later rounds weigh draws, so the draw is kept and not the noise.
        self._keep(place, self._draw)


class ForestNoise(NoiseStream[Forest]):
    """Binary tree with Honaker's estimate from below: the noise of a prefix sum minus that of the
    prefix before.

    A complete node's estimate joins its own noise and its children's estimates by inverse variance.
    Buffer h holds the estimate of the complete node of height h that the present prefix uses; the
    last buffer holds the previous prefix's noise.
    """

    def _memory(self) -> int:
        return len(self._recurrence.variances)

    def _row(self, round_index: int, place: int) -> None:
        previous = self._state[-1]
        # The node is built in the memory of the row. The other vector is freed when this call ends:
        # the peak of a round's memory comes later, and is lower without it.
        other = torch.empty_like(self._out)
        self._draws.fill(self._out, round_index)
        height = 0
        while place >> height & 1:  # the node's left sibling is complete: so is their parent
            self._join(round_index, height, self._state[height], other)
            height += 1
        self._state[height].copy_(self._out)
        if round_index + 1 in self._recurrence.completed_ends:
            self._complete(round_index, place, height, other)
        else:
            # The other complete nodes of the prefix are the higher bits that are set.
            for higher in range(height + 1, place.bit_length()):
                if place >> higher & 1:
                    self._out.add_(self._state[higher])
        other.copy_(self._out)
        # The tree noises prefix sums, and a round releases the difference of two (DP-FTRL, Kairouz
        # et al. 2021, Algorithm 1).
        self._out.sub_(previous)
        previous.copy_(other)

    def _join(self, round_index: int, height: int, sibling_D: Tensor, draw_D: Tensor) -> None:
        """Joins the node at `height`, in `_out`, and its sibling into their parent."""
        # Own draw: variance 1; the sum of two children: 2 v_h. Hence v_{h+1} = 1 / (1 + 1 / (2
        # v_h)), the estimate from below of Honaker 2015.
        # The node's own draw has variance 1: its weight is the variance of the joint estimate.
        weight = self._recurrence.variances[height + 1]
        self._out.add_(sibling_D).mul_(1.0 - weight)
        self._draws.fill(draw_D, round_index, height + 1)
        self._out.add_(draw_D, alpha=weight)

    def _complete(self, round_index: int, place: int, height: int, draw_D: Tensor) -> None:
        """Completes the tree up to the root of the next power of two. The whole estimate of a
        virtual sibling is one draw of its variance."""
        while place >> height:
            if place >> height & 1:
                sibling = self._state[height]
            else:
                sibling = torch.empty_like(self._out)
                self._draws.fill(sibling, round_index, VIRTUAL + height)
                sibling.mul_(self._recurrence.variances[height] ** 0.5)
            self._join(round_index, height, sibling, draw_D)
            height += 1


def noise_stream(
    strategy: Strategy | None,
    seed: int,
    dimension: int,
    device: torch.device,
    rounds: int,
    stream: Stream = Stream.NOISE,
    draws: Rows | None = None,
) -> NoiseStream:
    """Returns the noise stream of a strategy for `rounds` rounds, from the draws of one purpose, or
    from `draws`; without a strategy, zeros.

    Raises InputError for a strategy of fewer rounds.
    """
    where = (draws or NormalDraws(seed, device, stream), dimension, device, rounds)
    if strategy is None:
        return Silence(Independent(), *where)
    strategy.check_rounds(rounds)
    recurrence = strategy.recurrence(rounds)
    match recurrence:
        case Independent():
            return IndependentNoise(recurrence, *where)
        case Buffers():
            return BuffersNoise(recurrence, *where)
        case Outputs():
            return OutputsNoise(recurrence, *where)
        case Draws():
            return DrawsNoise(recurrence, *where)
        case Forest():
            return ForestNoise(recurrence, *where)
