"""Streams of correlated noise: row t of C^-1 Z (of a tree: of its decoder times Z), in torch, one class per recurrence.

Z's rows are addressed by (seed, round, level) under 128-bit keys, so round t's noise is the same after a restart and on any
device, and no two rows share draws. State is float32 [.., D].
Statistics and recurrences are held to mechanisms/reference.py by tests/server/test_noise.py.
"""

from abc import ABC, abstractmethod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedray.rng import Stream, stream_generator
from mechanisms.blt import BLT
from mechanisms.identity import Identity
from mechanisms.strategy import Strategy
from mechanisms.tree import Tree


class NoiseStream(ABC):
    """Noise of unit scale for rounds 0, 1, 2, ... of one run; each row is given once."""

    def __init__(self, seed: int, dimension: int, device: torch.device) -> None:
        self._seed, self._dimension, self._device = seed, dimension, device
        self.next_round = 0

    def next(self) -> Tensor:
        """The next round's noise [D]."""
        row = self._row(self.next_round)
        self.next_round += 1
        return row

    def state(self) -> dict[str, NDArray]:
        """Named arrays from which `load` restores the stream."""
        return {"next_round": np.array(self.next_round), "buffers": self._buffers().cpu().numpy().copy()}

    def load(self, state: dict[str, NDArray]) -> None:
        """Restores a state of a stream of the same strategy, seed and dimension. Raises ValueError."""
        expected, found = tuple(self._buffers().shape), state["buffers"].shape
        if expected != found:
            raise ValueError(f"buffers have shape {found}, this stream has {expected}; load the state of the same scenario")
        self.next_round = int(state["next_round"])
        self._buffers().copy_(torch.from_numpy(np.array(state["buffers"])))

    def _normal(self, round_index: int, level: int) -> Tensor:
        """Independent standard normals [D] at address (round, level)."""
        generator = stream_generator(self._seed, Stream.NOISE, round_index, level)
        return torch.from_numpy(generator.standard_normal(self._dimension, np.float32)).to(self._device)

    @abstractmethod
    def _row(self, round_index: int) -> Tensor: ...

    @abstractmethod
    def _buffers(self) -> Tensor: ...


class IndependentNoise(NoiseStream):
    """C = I."""

    def _row(self, round_index: int) -> Tensor:
        return self._normal(round_index, 0)

    def _buffers(self) -> Tensor:
        return torch.empty(0, self._dimension, device=self._device)


class BLTNoise(NoiseStream):
    """out_t = z_t - omega' S; S = diag(theta) S + out_t (multi-participation BLT, Algorithm 3). S is [buffers, D]."""

    def __init__(self, strategy: BLT, seed: int, dimension: int, device: torch.device) -> None:
        super().__init__(seed, dimension, device)
        self._theta_b = torch.tensor(strategy.theta, dtype=torch.float32, device=device)
        self._omega_b = torch.tensor(strategy.omega, dtype=torch.float32, device=device)
        self._S = torch.zeros(len(strategy.theta), dimension, device=device)

    def _row(self, round_index: int) -> Tensor:
        out = self._normal(round_index, 0)
        out.addmv_(self._S.T, self._omega_b, alpha=-1.0)
        self._S.mul_(self._theta_b[:, None]).add_(out)
        return out

    def _buffers(self) -> Tensor:
        return self._S


class TreeNoise(NoiseStream):
    """Binary tree with Honaker's estimate from below: the noise of the prefix sum minus that of the one before.

    A complete node's estimate joins its own noise and its children's estimates by inverse variance. Slot h of the buffers holds
    the estimate of the complete node of height h that the present prefix uses; the last slot holds the previous prefix's noise.
    """

    LEVELS = 32

    def __init__(self, seed: int, dimension: int, device: torch.device) -> None:
        super().__init__(seed, dimension, device)
        self._slots = torch.zeros(1, dimension, device=device)
        self._weights = [1.0]
        variance = 1.0
        for _ in range(self.LEVELS):
            below = 2.0 * variance
            variance = below / (1.0 + below)
            self._weights.append(variance)

    def _row(self, round_index: int) -> Tensor:
        node = self._normal(round_index, 0)
        height = 0
        while round_index >> height & 1:  # the node's left sibling is complete: so is their parent
            weight = self._weights[height + 1]
            node = weight * self._normal(round_index, height + 1) + (1.0 - weight) * (self._slots[height] + node)
            height += 1
        prefix = node.clone()
        for higher in range(height + 1, self._slots.shape[0] - 1):
            if round_index >> higher & 1:
                prefix += self._slots[higher]
        out = prefix - self._slots[-1]
        self._store(height, node, prefix)
        return out

    def _store(self, height: int, node: Tensor, prefix: Tensor) -> None:
        while self._slots.shape[0] <= height + 1:
            self._slots = torch.cat([self._slots[:-1], torch.zeros(1, self._dimension, device=self._device), self._slots[-1:]])
        self._slots[height] = node
        self._slots[-1] = prefix

    def load(self, state: dict[str, NDArray]) -> None:
        self._slots = torch.zeros(len(state["buffers"]), self._dimension, device=self._device)
        super().load(state)

    def _buffers(self) -> Tensor:
        return self._slots


def noise_stream(strategy: Strategy, seed: int, dimension: int, device: torch.device) -> NoiseStream:
    """The stream of a strategy. Raises ValueError for a strategy without one."""
    match strategy:
        case Identity():
            return IndependentNoise(seed, dimension, device)
        case BLT():
            return BLTNoise(strategy, seed, dimension, device)
        case Tree():
            return TreeNoise(seed, dimension, device)
        case _:
            raise ValueError(f"strategy kind {strategy.kind!r} has no noise stream; add one to server/noise.py")
