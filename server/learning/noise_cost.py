"""Memory and time of a mechanism's noise at a number of parameters, measured."""

from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter

import numpy as np
import torch

from fedray.base.errors import InputError
from fedray.mechanisms.figures import Figures, NoiseCost
from fedray.mechanisms.strategy import Strategy
from .noise import noise_stream

MEASURED_ROUNDS = 5
MOST_BYTES = 8 << 30
"""Largest state of the noise that is measured."""


def with_costs(found: Mapping[str, Figures], parameters: int) -> dict[str, Figures]:
    """Returns figures with the `noise_cost` of each mechanism. Raises InputError."""
    return {
        name: replace(
            each, noise_cost=noise_cost(each.strategy, each.participation.rounds, parameters)
        )
        for name, each in found.items()
    }


def noise_cost(strategy: Strategy, rounds: int, parameters: int) -> NoiseCost:
    """Measures the noise of rounds at the end of a run, on the CPU, where its state is full.

    Args:
        strategy: the mechanism.
        rounds: number of rounds of the run.
        parameters: number of parameters D of the model.

    Raises:
        InputError: the state of the noise would have more than MOST_BYTES.
    """
    if parameters < 1:
        raise InputError.of("parameters", parameters, "must be at least 1")
    # A stream of one parameter has the same rows of state; without a state they are empty.
    small = noise_stream(strategy, 0, 1, torch.device("cpu"), rounds).state()["buffers"]
    bytes_ = small.size * parameters * 4
    if bytes_ > MOST_BYTES:
        rule = f"gives this {strategy.kind} strategy {bytes_:,} bytes of noise state"
        raise InputError.of("parameters", parameters, rule, f"give less than {MOST_BYTES:,} in all")
    stream = noise_stream(strategy, 0, parameters, torch.device("cpu"), rounds)
    measured = min(MEASURED_ROUNDS, rounds)
    buffers = np.zeros((len(small), small.shape[1] * parameters), np.float32)
    stream.load({"buffers": buffers, "next_round": np.array(rounds - measured)})
    seconds = []
    for _ in range(measured):
        started = perf_counter()
        stream.next()
        seconds.append(perf_counter() - started)
    return NoiseCost(parameters, bytes_, float(np.median(seconds)))
