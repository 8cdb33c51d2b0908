"""Training and noise on a GPU, without Ray: a line per case.

    python tests/benchmarks/bench_gpu.py [--device cuda|cpu] [--small] [--rounds 3]

`lstm`: the keyboard LSTM with 2.4 M parameters, 500 devices a round. `cnn`: the CIFAR-10 CNN, 50
devices a round. Trainer and aggregator are on the device; groups are as large as its memory allows
(on a CPU, as large as by default). The first round compiles and is not counted. `noise`: a row of a
BLT with four buffers for 10^9 parameters. Seconds are medians.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedray.clients.trainer import LocalTrainer
from fedray.clients.workers import TrainerWorker
from fedray.mechanisms.blt import BLT
from fedray.runtime.devices import device_of, kind_of_device
from fedray.runtime.workers import InProcessWorker
from fedray.scenario import Scenario
from fedray.server.learning.aggregator import ModelAggregator
from fedray.server.learning.noise import noise_stream
from fedray.server.learning.training import Cohort, TrainingLoop
from fedray.server.learning.workers import AggregatorWorker

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


def scenario_of(name: str, is_small: bool, device: str, folder: Path) -> Scenario:
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
                "devices_at_once": 16 if device == "cpu" else 64,
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


def bench_training(name: str, is_small: bool, rounds: int, device: torch.device) -> None:
    with tempfile.TemporaryDirectory() as folder:
        scenario = scenario_of(name, is_small, device.type, Path(folder))
        trainer = TrainerWorker(InProcessWorker(LocalTrainer, scenario, device.type))
        aggregator = AggregatorWorker(InProcessWorker(ModelAggregator, scenario, device.type))
        loop = TrainingLoop(scenario, [trainer], aggregator, trainer_kind=kind_of_device(device))
        cohort = scenario.training.cohort_sample
        seconds = []
        for index in range(rounds + 1):
            device_ids = np.arange(index * cohort, (index + 1) * cohort, dtype=np.uint64)
            work = lambda index=index, ids=device_ids: loop.train(index, Cohort(ids))  # noqa: E731
            seconds.append(seconds_of(work, device))
        size = loop.state()["aggregator.parameters"].size
    median = statistics.median(seconds[1:])
    print(
        f"{name}: {size:,} parameters, {cohort} devices a round in groups of "
        f"{loop.devices_at_once}: {median:.3f} s a round, {cohort / median:,.1f} devices a second"
        f"{memory_of(device)}",
        flush=True,
    )


def bench_noise(is_small: bool, rounds: int, device: torch.device) -> None:
    dimension = 1_000_000 if is_small else 1_000_000_000
    stream = noise_stream(BUFFERS, 0, dimension, device, 1000)
    seconds = [seconds_of(stream.next, device) for _ in range(rounds + 1)]
    median = statistics.median(seconds[1:])
    moved = 4 * dimension * (2 * len(BUFFERS.theta) + 2)
    print(
        f"noise: {dimension:,} parameters, {len(BUFFERS.theta)} buffers: {median:.3f} s a row, "
        f"{moved / median / 1e9:,.0f} GB/s{memory_of(device)}",
        flush=True,
    )


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
    print(f"on {kind_of_device(device)}, torch {torch.__version__}")
    for name in CASES:
        bench_training(name, chosen.small, chosen.rounds, device)
    bench_noise(chosen.small, chosen.rounds, device)
    assert "ray" not in sys.modules, "Ray was loaded"


if __name__ == "__main__":
    main()
