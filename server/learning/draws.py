"""Addressed standard normals for the aggregator's noise: a row is a function of (seed, round,
level, coordinate).

On a CPU, coordinates come in blocks of 2^18, each from numpy's generator under a 128-bit key of its
own, so that two addresses never share a stream. On a GPU, the device's Philox generator is keyed by
the seed in 64 bits, and (round, level) are positions 2^34 apart in its stream, so that within a
run no two rows share a draw; the numbers depend on the model of GPU.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from fedray.base.arrays import Float64Array
from fedray.base.rng import Stream, stream_generator, stream_seed
from fedray.mechanisms.participation import MOST_ROUNDS

BLOCK = 1 << 18
LEVELS = 128
"""Addresses per round: a tree's nodes by height, and from VIRTUAL on its virtual subtrees."""
VIRTUAL = 64
_POSITIONS = 1 << 34


class Rows(Protocol):
    """Rows [D] to which a recurrence applies C^-1."""

    dtype: ClassVar[torch.dtype]
    """Type of the rows and of everything computed from them."""

    def fill(self, out_D: Tensor, round_index: int, level: int = 0) -> None:
        """Overwrites a row with that of (round, level)."""
        ...


class OpenedSums:
    """Opened sums of rounds in which devices add the noise: W / c_0 [D], in steps, put here one by
    one."""

    dtype: ClassVar[torch.dtype] = torch.float64

    def put(self, row_D: Float64Array) -> None:
        """Sets the row of the next round."""
        self._row_D = row_D

    def fill(self, out_D: Tensor, round_index: int, level: int = 0) -> None:
        del round_index, level
        out_D.copy_(torch.from_numpy(self._row_D).to(out_D.device))


class NormalDraws:
    """Draws of one run for one purpose.

    Args:
        seed: seed of the run's noise.
        device: device that draws and adds the noise.
        stream: the purpose.
    """

    dtype: ClassVar[torch.dtype] = torch.float32

    def __init__(self, seed: int, device: torch.device, stream: Stream = Stream.NOISE) -> None:
        self._seed = seed
        self._device = device
        self._stream = stream
        if device.type == "cuda":
            self._generator = torch.Generator(device)
            self._key = stream_seed(seed, stream, 0)

    def fill(self, out_D: Tensor, round_index: int, level: int = 0) -> None:
        """Overwrites a row with the standard normals of (round, level).

        Args:
            out_D: the row, float32 [D], on the device of the draws.
            round_index: the round, below MOST_ROUNDS.
            level: number of the row within the round, below LEVELS.

        Raises:
            ValueError: the round or the level has no address.
        """
        has_address = 0 <= round_index < MOST_ROUNDS and 0 <= level < LEVELS
        if not has_address:
            raise ValueError(
                f"round {round_index} or level {level} has no address; at most {MOST_ROUNDS} "
                f"rounds, {LEVELS} levels"
            )
        if self._device.type == "cuda":
            row = round_index * LEVELS + level
            # The position is set for every row, so that a row does not depend on which rows were
            # drawn before.
            self._generator.set_state(_cuda_state(self._key, row * _POSITIONS))
            out_D.normal_(generator=self._generator)
            return
        values = out_D.numpy()
        blocks = [
            (values[start : start + BLOCK], start // BLOCK, round_index, level)
            for start in range(0, values.size, BLOCK)
        ]
        if len(blocks) == 1:
            self._fill_block(blocks[0])
        else:
            # In threads, because numpy releases Python's lock while drawing. The list waits for
            # all.
            list(_threads().map(self._fill_block, blocks))

    def _fill_block(self, block: tuple[np.ndarray, int, int, int]) -> None:
        values, place, round_index, level = block
        # One generator per block, so that threads may fill blocks in any order and get the same
        # numbers.
        generator = stream_generator(self._seed, self._stream, round_index, level, place)
        generator.standard_normal(out=values, dtype=np.float32)


def _cuda_state(key: int, position: int) -> Tensor:
    """Returns the state of torch's CUDA generator: its seed and its offset, eight bytes each."""
    words = np.array([key, position], np.uint64)
    return torch.from_numpy(words.view(np.uint8).copy())


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="noise")
