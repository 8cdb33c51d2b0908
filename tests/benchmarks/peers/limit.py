"""The physical limit of a setting: its matrix products alone, at their own sizes, on one thread.

    python limit.py                  every setting, and the training of scenarios/quickstart.toml

A local step has no other work of this kind: forward products, and the two products of each that its
gradients need. Factors are random and results have memory of their own, so nothing else is timed.
"""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from settings import LENGTH, SETTINGS, WORDS

PASSES = 5


def _dense(devices: int, rows: int, read: int, made: int, is_first: bool = False) -> Iterator:
    """Products of a dense layer; the gradient of a first layer's inputs is not needed."""
    inputs, weights = torch.randn(devices, rows, read), torch.randn(devices, read, made)
    slopes = torch.randn(devices, rows, made)
    yield inputs, weights
    yield inputs.transpose(1, 2), slopes
    if not is_first:
        yield slopes, weights.transpose(1, 2)


def _lstm(
    devices: int, texts: int, steps: int, embedding: int, units: int, projected: int, words: int
) -> Iterator:
    """Products of an LSTM with a projection, between an embedding and an output layer."""
    yield from _dense(devices, texts * steps, embedding, 4 * units)
    states, slopes = torch.randn(devices, texts, units), torch.randn(devices, texts, 4 * units)
    recurrent = torch.randn(devices, units, 4 * units)
    # The first step has no state.
    for _ in range(steps - 1):
        yield states, recurrent
        yield slopes, recurrent.transpose(1, 2)
    states, slopes = (
        torch.randn(devices, texts * (steps - 1), each) for each in (units, 4 * units)
    )
    yield states.transpose(1, 2), slopes
    yield from _dense(devices, texts * steps, units, projected)
    yield from _dense(devices, texts * steps, projected, words)


def _convolution(
    images: int, shape: tuple[int, int, int], made: int, is_first: bool
) -> list[Callable[[], object]]:
    """A convolution of 3 x 3 and its gradients, channels last as oneDNN likes them."""
    like = {"memory_format": torch.channels_last}
    inputs = torch.randn(images, *shape).contiguous(**like)
    weights = torch.randn(made, shape[0], 3, 3)
    slopes = torch.randn(images, made, shape[1] - 2, shape[2] - 2).contiguous(**like)
    ones = [1, 1], [0, 0], [1, 1], False, [0, 0], 1
    needs = [not is_first, True, False]
    return [
        lambda: torch.conv2d(inputs, weights),
        lambda: torch.ops.aten.convolution_backward(slopes, inputs, weights, None, *ones, needs),
    ]


def _products(pairs: Iterator[tuple[Tensor, Tensor]]) -> list[Callable[[], object]]:
    def product(left: Tensor, right: Tensor) -> Callable[[], object]:
        result = torch.empty(len(left), left.shape[1], right.shape[2])
        return lambda: torch.bmm(left, right, out=result)

    return [product(*pair) for pair in pairs]


def calls_of(name: str) -> tuple[list[Callable[[], object]], int, int]:
    """The products of a local step of a setting, its devices, and the steps of a device."""
    if name == "quickstart":
        # 32 devices at once, two steps of six sentences of eight words.
        return _products(_lstm(32, 6, 8, 32, 48, 32, 400)), 32, 2
    setting = SETTINGS[name]
    batch, steps = setting.batch, -(-setting.examples // setting.batch)
    if name == "mlp":
        layers = [*_dense(50, batch, 64, 64, is_first=True), *_dense(50, batch, 64, 10)]
        return _products(iter(layers)), 50, steps
    if name == "lstm":
        return _products(_lstm(1, batch, LENGTH, 64, 200, 64, WORDS)), 1, steps
    dense = [*_dense(1, batch, 64 * 14 * 14, 128), *_dense(1, batch, 128, 10)]
    convolutions = [
        *_convolution(batch, (3, 32, 32), 32, is_first=True),
        *_convolution(batch, (32, 30, 30), 64, is_first=False),
    ]
    return [*convolutions, *_products(iter(dense))], 1, steps


def seconds_per_device(name: str, seconds: float = 2.0) -> float:
    """CPU seconds of a device's products: the least of the means over a fifth of a time."""
    torch.set_num_threads(1)
    calls, devices, steps = calls_of(name)
    means: list[float] = []
    for _ in range(PASSES):
        count, started = 0, time.process_time()
        while (taken := time.process_time() - started) < seconds / PASSES:
            for call in calls:
                call()
            count += 1
        means.append(taken * steps / (count * devices))
    return min(means)


if __name__ == "__main__":
    for each in sys.argv[1:] or [*SETTINGS, "quickstart"]:
        taken = seconds_per_device(each)
        print(f"{each:12} {1000 * taken:8.3f} ms a device {1 / taken:10.1f} per CPU s")
