"""Mechanisms: optimisers against jax-privacy's, a streaming step against the memory's bandwidth, sensitivities of many patterns.

    make bench                                              everything but what takes jax-privacy a quarter of an hour
    python tests/benchmarks/bench_mechanisms.py --small     a small version of each, as the test suite runs it
    python tests/benchmarks/bench_mechanisms.py --only banded  one of: banded, stream, patterns, gpu

Paired in one run; prints medians and ratios, asserts nothing.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from fedray.mechanisms.blt import BLT
from fedray.mechanisms.loss import loss
from fedray.mechanisms.optimize.gram import optimize_banded
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.sensitivity import PatternSensitivities
from fedray.server.learning.noise import BuffersNoise, noise_stream

FOUR = BLT(theta=(0.99, 0.9, 0.6, 0.2), omega=(0.1, 0.1, 0.1, 0.1))


def seconds_of(function: Callable[[], object]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def bench_banded(is_small: bool) -> None:
    """Banded at n = 2052 with 342 bands: seconds until RmsLoss 8.600, and to the end of the search."""
    participation, goal = (
        (MinSep(64, 16, 4), math.inf) if is_small else (MinSep(2052, 342, 6), 8.600)
    )
    started, reached = time.perf_counter(), []

    def watch(message: str) -> None:
        error = float(message.rpartition("error ")[2]) if "error" in message else math.inf
        if error * math.sqrt(participation.max_participations) <= goal:
            reached.append(time.perf_counter() - started)

    strategy = optimize_banded(participation, participation.min_sep, "rms", watch)
    total = time.perf_counter() - started
    first = f"{reached[0]:.0f} s" if reached else "not reported"
    print(
        f"banded: {participation}, RmsLoss {goal:.3f} after {first}; {loss(strategy, participation).rms_loss:.4f} after {total:.0f} s",
        flush=True,
    )


def bench_stream(is_small: bool) -> None:
    """One step with 2.4 million parameters and 4 buffers: against a copy of as many bytes, and against torch's draw alone."""
    dimension, repeats = (100_000, 3) if is_small else (2_400_000, 41)
    stream = noise_stream(FOUR, 0, dimension, torch.device("cpu"), 10_000)
    assert isinstance(stream, BuffersNoise)
    stream.next()
    moved = (
        4 * dimension * (2 * len(FOUR.theta) + 2)
    )  # every buffer and the row are read and written
    source, sink = torch.zeros(moved // 8), torch.empty(moved // 8)
    row, generator = torch.empty(dimension), torch.Generator()
    times: dict[str, list[float]] = {
        "step": [],
        "copy": [],
        "torch draw": [],
        "torch draw + step": [],
        "own draw + step": [],
    }
    for _ in range(repeats):
        times["copy"].append(seconds_of(lambda: sink.copy_(source)))
        times["step"].append(seconds_of(stream.step))
        times["torch draw"].append(seconds_of(lambda: row.normal_(generator=generator)))
        times["torch draw + step"].append(
            seconds_of(lambda: (row.normal_(generator=generator), stream.step()))
        )
        times["own draw + step"].append(seconds_of(stream.next))
    median = {name: statistics.median(values) for name, values in times.items()}
    print(", ".join(f"{name} {1000 * value:.2f} ms" for name, value in median.items()))
    print(
        f"stream: D = {dimension:,}, 4 buffers: step without draw {median['step'] / median['copy']:.2f}x the copy of its bytes "
        f"({moved / median['copy'] / 1e9:.1f} GB/s); draw + step {median['torch draw + step'] / median['torch draw']:.2f}x torch's draw",
        flush=True,
    )


def bench_patterns(is_small: bool) -> None:
    """Sensitivities of a million patterns of 6 participations at 3600 rounds, the Gram table included."""
    rounds, count = (300, 1000) if is_small else (3600, 1_000_000)
    starts = np.random.default_rng(0).integers(0, rounds // 6, size=(count, 6))
    patterns = np.arange(6) * (rounds // 6) + starts
    found = [seconds_of(lambda: PatternSensitivities(FOUR, rounds).of(patterns)) for _ in range(3)]
    print(f"patterns: {count:,} at {rounds} rounds in {statistics.median(found):.2f} s", flush=True)


def bench_gpu(is_small: bool) -> None:
    """A step with a billion parameters and 4 buffers on a GPU: bytes per second against a device copy. Skipped without one."""
    if not torch.cuda.is_available():
        print("gpu: none here")
        return
    device, dimension = torch.device("cuda"), 1_000_000 if is_small else 1_000_000_000
    stream = noise_stream(FOUR, 0, dimension, device, 10_000)
    assert isinstance(stream, BuffersNoise)
    stream.next()
    moved = 4 * dimension * (2 * len(FOUR.theta) + 2)
    source = torch.zeros(dimension, device=device)
    sink = torch.empty_like(source)

    def timed(function: Callable[[], object]) -> float:
        torch.cuda.synchronize()
        return seconds_of(lambda: (function(), torch.cuda.synchronize()))

    step = statistics.median(timed(stream.step) for _ in range(11))
    copy = statistics.median(timed(lambda: sink.copy_(source)) for _ in range(11))
    own, their = moved / step, 8 * dimension / copy
    print(
        f"gpu: step {own / 1e9:.0f} GB/s, copy {their / 1e9:.0f} GB/s, ratio {own / their:.2f}",
        flush=True,
    )


BENCHMARKS = {
    "banded": bench_banded,
    "stream": bench_stream,
    "patterns": bench_patterns,
    "gpu": bench_gpu,
}


def main() -> None:
    """Runs them, or one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="small sizes")
    parser.add_argument("--only", choices=BENCHMARKS, help="one benchmark")
    arguments = parser.parse_args()
    for name, bench in BENCHMARKS.items():
        if arguments.only in (None, name):
            bench(arguments.small)


if __name__ == "__main__":
    main()
