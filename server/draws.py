"""Addressed standard normals for the aggregator's noise: a row is a function of (seed, round,
level, coordinate).

On a CPU, coordinates come in blocks of 2^18, each from numpy's generator under a 128-bit key of its
own: any split of the coordinates into shards at whole blocks gives the same numbers, and two
addresses never share a stream. On a GPU, the device's Philox generator is keyed by (seed, first
coordinate) in 64 bits, and (round, level) are positions 2^34 apart in its stream, so that within a
run no two rows share a draw; the numbers depend on the model of GPU.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import torch
from torch import Tensor

from fedray.rng import Stream, stream_generator, stream_seed
from mechanisms.participation import MOST_ROUNDS

BLOCK = 1 << 18
LEVELS = 128
"""Addresses per round: a tree's nodes by height, and from VIRTUAL on its virtual subtrees."""
VIRTUAL = 64
_POSITIONS = 1 << 34


class NormalDraws:
    """Draws of one run for coordinates [first, first + D), for one purpose."""

    def __init__(
        self,
        seed: int,
        first_coordinate: int,
        device: torch.device,
        stream: Stream = Stream.NOISE,
    ) -> None:
        if first_coordinate % BLOCK:
            raise ValueError(
                f"first_coordinate={first_coordinate} must be a multiple of {BLOCK}; shards are "
                "split at whole blocks"
            )
        self._seed, self._first, self._device = seed, first_coordinate, device
        self._stream = stream
        if device.type == "cuda":
            self._generator = torch.Generator(device)
            self._key = stream_seed(seed, stream, first_coordinate)

    def fill(self, out_D: Tensor, round_index: int, level: int = 0) -> None:
        """Overwrites `out_D`, float32, with the row at (round, level)."""
        if not (0 <= round_index < MOST_ROUNDS and 0 <= level < LEVELS):
            raise ValueError(
                f"round {round_index} or level {level} has no address; at most {MOST_ROUNDS} "
                f"rounds, {LEVELS} levels"
            )
        if self._device.type == "cuda":
            self._generator.set_state(
                _cuda_state(self._key, (round_index * LEVELS + level) * _POSITIONS)
            )
            out_D.normal_(generator=self._generator)
            return
        values = out_D.numpy()
        blocks = [
            (values[start : start + BLOCK], (self._first + start) // BLOCK, round_index, level)
            for start in range(0, values.size, BLOCK)
        ]
        if len(blocks) == 1:
            self._fill_block(blocks[0])
        else:
            list(_threads().map(self._fill_block, blocks))  # numpy draws without Python's lock

    def _fill_block(self, block: tuple[np.ndarray, int, int, int]) -> None:
        values, place, round_index, level = block
        stream_generator(self._seed, self._stream, round_index, level, place).standard_normal(
            out=values, dtype=np.float32
        )


def _cuda_state(key: int, position: int) -> Tensor:
    """torch's CUDA generator state: its seed and its offset, eight bytes each."""
    return torch.from_numpy(np.array([key, position], np.uint64).view(np.uint8).copy())


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="noise")
