"""A check of fedray on a GPU, without Ray, in at most five minutes: a table to paste into docs/training.md.

    python tests/benchmarks/bench_gpu.py [--device cuda|cpu] [--small] [--rounds 3]

Speed: `lstm`, the keyboard LSTM with 2.4 M parameters, 500 devices a round, in groups as large as the memory allows and one at a
time; `cnn`, the CIFAR-10 CNN, 50 devices a round; `noise`, a row of a BLT with four buffers for 10^9 parameters, beside the time of
copying as many bytes. The first round compiles and is not counted. Seconds are medians.

Right: sums of a GPU beside those of a CPU, two rounds again to the same bits, a state that is restored, memory that is too small, an
operation without a deterministic kernel. With `--device cpu` the last two need a GPU and are left out.
"""

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedray.base.errors import FedrayError
from fedray.clients.trainer import LocalTrainer
from fedray.clients.workers import TrainerWorker
from fedray.mechanisms.band_fhu import BandFHU
from fedray.mechanisms.blt import BLT
from fedray.mechanisms.registry import Tree
from fedray.runtime.devices import device_of, kind_of_device
from fedray.runtime.workers import InProcessWorker
from fedray.scenario import Scenario
from fedray.server.learning.aggregator import ModelAggregator
from fedray.server.learning.draws import NormalDraws
from fedray.server.learning.noise import noise_stream
from fedray.server.learning.training import Cohort, TrainingLoop
from fedray.server.learning.workers import AggregatorWorker
from fedray.wire.messages import TrainOrder

DATA = """
import numpy as np
from fedray.clients.data.source import Field

class Random:
    fields = dict({fields})
    held_out_devices = 1 << 20
    optimum = dict()

    def examples_on(self, device_ids):
        return np.full(device_ids.size, {examples})

    def examples(self, device_ids, positions):
        rng = np.random.default_rng(int(device_ids[0]))
        def drawn(field):
            shape = (*positions.shape, *field.shape)
            if field.kind == "real":
                return rng.standard_normal(shape, np.float32)
            return rng.integers(0, field.values, shape)
        return {{name: drawn(field) for name, field in self.fields.items()}}

def data(seed):
    return Random()
"""
POOLED = """
import numpy as np
import torch
from fedray.clients.tasks.module import ModuleTask

def examples(device):
    draws = np.random.default_rng(device)
    return draws.standard_normal((8, 3, 7, 7), np.float32), draws.integers(0, 2, 8)

def task(seed):
    layers = torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(12, 2)
    return ModuleTask(torch.nn.Sequential(*layers), examples, torch.nn.functional.cross_entropy)
"""
PIXELS = "inputs=Field((32, 32, 3), 'real'), targets=Field((), 'whole', 10)"
CASES: dict[str, tuple[dict[str, Any], str, dict[str, Any], int]] = {
    "lstm": (
        {"kind": "keyboard_lstm", "hidden": 670, "embedding": 96},
        "tokens=Field((20,), 'whole', {words}, padding=0, unknown=1)",
        {"batch_size": 16, "epochs": 1},
        500,
    ),
    "cnn": (
        {"kind": "image_cnn", "architecture": "cifar10"},
        PIXELS,
        {"batch_size": 10, "epochs": 1},
        50,
    ),
}
BUFFERS = BLT(theta=(0.999, 0.98, 0.9, 0.5), omega=(0.01, 0.02, 0.05, 0.1))


Row = tuple[str, str, str]
"""What was checked, what was found, and what is right."""


def scenario_of(
    name: str, is_small: bool, device: str, folder: Path, at_once: int | None = None
) -> Scenario:
    task, fields, client, cohort = CASES[name]
    if is_small:
        task, cohort = task | ({"hidden": 8} if name == "lstm" else {}), 4
    words = 50 if is_small else 10_000
    source = DATA.format(fields=fields.format(words=words), examples=10 if is_small else 50)
    (folder / "data.py").write_text(source)
    return Scenario.from_tables(
        {
            "population": {"devices": 100_000},
            "rounds": {"count": 1000, "report_goal": cohort},
            "data": {"kind": "custom", "file": "data.py"},
            "privacy": {"mechanism": {"kind": "tree"}},
            "training": {
                "task": task,
                "client": client,
                "cohort_sample": cohort,
                "devices_at_once": at_once or (16 if device == "cpu" else 64),
                "evaluate_every": 10**6,
                "checkpoint_every": 10**6,
            },
        },
        directory=folder,
    )


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def rate_of(scenario: Scenario, cohort: int, rounds: int, device: torch.device) -> Row:
    """Returns devices a second of whole rounds: training, noise and the server's step."""
    trainer = TrainerWorker(InProcessWorker(LocalTrainer, scenario, device.type))
    aggregator = AggregatorWorker(InProcessWorker(ModelAggregator, scenario, device.type))
    loop = TrainingLoop(scenario, [trainer], aggregator, trainer_kind=kind_of_device(device))
    seconds = []
    for index in range(rounds + 1):
        device_ids = np.arange(index * cohort, (index + 1) * cohort, dtype=np.uint64)
        work = lambda index=index, ids=device_ids: loop.train(index, Cohort(ids))  # noqa: E731
        seconds.append(seconds_of(work, device))
    size = loop.state()["aggregator.parameters"].size
    median = statistics.median(seconds[1:])
    return (
        f"{size:,} parameters, {cohort} devices in groups of {loop.devices_at_once}",
        f"{cohort / median:,.1f} devices a second{memory_of(device)}",
        "",
    )


def bench_training(name: str, is_small: bool, rounds: int, device: torch.device) -> Iterator[Row]:
    sizes = (None, 1) if name == "lstm" else (None,)
    for at_once in sizes:
        with tempfile.TemporaryDirectory() as folder:
            scenario = scenario_of(name, is_small, device.type, Path(folder), at_once)
            # One at a time, a round of 500 would take minutes.
            cohort = min(20, scenario.training.cohort_sample) if at_once else None
            what, found, right = rate_of(
                scenario, cohort or scenario.training.cohort_sample, rounds, device
            )
        yield f"{name}: {what}", found, right


def bench_noise(is_small: bool, rounds: int, device: torch.device) -> Iterator[Row]:
    dimension = 1_000_000 if is_small else 1_000_000_000
    stream = noise_stream(BUFFERS, 0, dimension, device, 1000)
    row = statistics.median([seconds_of(stream.next, device) for _ in range(rounds + 1)][1:])
    draws = NormalDraws(0, device)
    out = torch.empty(dimension, device=device)
    drawn = statistics.median(
        [seconds_of(lambda t=t: draws.fill(out, t), device) for t in range(rounds + 1)][1:]
    )
    copied = copy_seconds(out, rounds, device)
    # The step reads and writes every buffer and the row; a copy reads and writes one vector.
    least = (len(BUFFERS.theta) + 1) * copied
    yield (
        f"noise: {dimension:,} parameters, {len(BUFFERS.theta)} buffers",
        f"{row:.3f} s a row, of which draws {drawn:.3f} s{memory_of(device)}",
        f"{least:.3f} s for copying as many bytes as the step reads and writes",
    )


def copy_seconds(out: torch.Tensor, rounds: int, device: torch.device) -> float:
    other = torch.ones_like(out)
    return statistics.median(
        [seconds_of(lambda: out.copy_(other), device) for _ in range(rounds + 1)][1:]
    )


def check_sums(name: str, device: torch.device) -> Iterator[Row]:
    """The sum of a round beside that of a CPU, and again."""
    with tempfile.TemporaryDirectory() as folder:
        scenario = scenario_of(name, True, device.type, Path(folder))
        order = TrainOrder(0, [np.arange(4, dtype=np.uint64)])
        trainers = [LocalTrainer(scenario, each) for each in (device.type, device.type, "cpu")]
        start = trainers[0].initial_parameters()
        first, again, here = (each.train(order, start)[1] for each in trainers)
    apart = np.abs(first - here).max() / np.abs(here).max()
    yield f"{name}: sum beside a CPU's", f"{apart:.1e} of its largest entry apart", "at most 1e-4"
    yield (
        f"{name}: sum again",
        "same bits" if np.array_equal(first, again) else "OTHER",
        "same bits",
    )


def check_state(device: torch.device) -> Iterator[Row]:
    """A stream that is restored goes on with the same bits."""
    for name, strategy in (("blt", BUFFERS), ("tree", Tree()), ("band-fhu", BandFHU(bands=8))):
        one, other = (noise_stream(strategy, 0, 100_000, device, 100) for _ in range(2))
        for _ in range(5):
            one.next()
        other.load(one.state())
        equal = torch.equal(one.next(), other.next())
        yield f"{name}: noise of a restored state", "same bits" if equal else "OTHER", "same bits"


def check_errors(device: torch.device) -> Iterator[Row]:
    """What a GPU cannot do is said in one line."""
    if device.type != "cuda":
        return
    with tempfile.TemporaryDirectory() as folder:
        scenario = scenario_of("lstm", False, device.type, Path(folder))
        trainer = LocalTrainer(scenario, device.type)
        order = TrainOrder(0, [np.arange(100_000, dtype=np.uint64)])
        yield (
            "memory is too small",
            refusal(trainer, order),
            "a RunFailed that names devices_at_once",
        )
        (Path(folder) / "module.py").write_text(POOLED)
        tables = scenario.to_document()["scenario"]
        tables["training"]["task"] = {"kind": "custom", "file": "module.py"}
        tables["data"] = {}
        pooled = LocalTrainer(Scenario.from_tables(tables, directory=folder), device.type)
        order = TrainOrder(0, [np.arange(2, dtype=np.uint64)])
        yield "no deterministic kernel", refusal(pooled, order), "an InputError that names it"


def refusal(trainer: LocalTrainer, order: TrainOrder) -> str:
    try:
        trainer.train(order, trainer.initial_parameters())
    except FedrayError as error:
        return f"{type(error).__name__}: {error}"
    return "NO ERROR"


def memory_of(device: torch.device) -> str:
    if device.type != "cuda":
        return ""
    peak = torch.cuda.max_memory_allocated(device) / 2**30
    torch.cuda.reset_peak_memory_stats(device)
    return f", {peak:.1f} GiB at the peak"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true", help="small models: that it runs")
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    if chosen.device == "cuda" and not torch.cuda.is_available():
        print("no GPU: torch sees no CUDA device here; `--device cpu` runs the same on the CPU")
        return
    # The same settings as of a trainer: deterministic, without TF32.
    device = device_of(chosen.device, "--device")
    print(
        f"| on {kind_of_device(device)}, torch {torch.__version__} | found | right |\n|---|---|---|"
    )
    for row in itertools.chain(
        *(bench_training(name, chosen.small, chosen.rounds, device) for name in CASES),
        *(check_sums(name, device) for name in CASES),
        check_state(device),
        check_errors(device),
        bench_noise(chosen.small, chosen.rounds, device),
    ):
        print(f"| {' | '.join(row)} |", flush=True)
    assert "ray" not in sys.modules, "Ray was loaded"


if __name__ == "__main__":
    main()
