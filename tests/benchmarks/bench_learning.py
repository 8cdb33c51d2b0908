"""What training costs beside the devices' own work: time, bytes through the driver, and memory.

    python tests/benchmarks/bench_learning.py [overhead] [driver] [products] [memory] [--devices 100] [--small]

`overhead`: the share of clipping, sums, noise and the server step in a round of the 2.4 M parameter
keyboard LSTM. These are CPU seconds of this process, so that other work on the machine changes
little. `driver`: what the driver sends and receives in a round on Ray, for two models and two
cohorts. `products`: the quickstart's devices beside their matrix products. `memory`: the peak of an aggregator, in units of D float32, beside what its state takes.
"""

import argparse
import contextlib
import io
import os
import pickle
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.wire.messages import TrainReport

MECHANISMS = {
    "identity": {"kind": "identity"},
    "blt": {"kind": "blt", "theta": [0.98, 0.9], "omega": [0.01, 0.1]},
    "tree": {"kind": "tree"},
}


def scenario(hidden: int, vocabulary: int, devices: int, **client: Any) -> Scenario:
    """A keyboard LSTM on source code, which every machine has."""
    return Scenario.from_tables(
        {
            "population": {"devices": 100_000},
            "rounds": {"count": 200, "report_goal": devices},
            "data": {"kind": "source_code", "vocabulary": vocabulary, "length": 10},
            "training": {
                "task": {"kind": "keyboard_lstm", "hidden": hidden},
                "cohort_sample": devices,
                "devices_at_once": 1,
                "evaluate_every": 10**6,
                "checkpoint_every": 10**6,
                "client": client,
            },
            "privacy": {"mechanism": MECHANISMS["blt"]},
        }
    )


def cohort(devices: int, round_index: int) -> Any:
    """The devices of a round, as the training loop takes them."""
    from fedray.server.learning.training import Cohort

    drawn = np.random.default_rng(round_index).choice(100_000, devices, replace=False)
    return Cohort(np.sort(drawn).astype(np.uint64))


class Clock:
    """CPU seconds of this process by part. A part within another counts for itself alone."""

    def __init__(self) -> None:
        self.seconds = defaultdict[str, float](float)
        self._inner = [0.0]

    def around(self, owner: Any, name: str, part: str) -> None:
        """Counts the calls of a method or function for a part."""
        inner: Callable[..., Any] = getattr(owner, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            self._inner.append(0.0)
            started = time.process_time()
            try:
                return inner(*arguments, **named)
            finally:
                spent = time.process_time() - started
                self.seconds[part] += spent - self._inner.pop()
                self._inner[-1] += spent

        setattr(owner, name, timed)


def overhead(devices: int, small: bool) -> None:
    from fedray.clients.clipping import Clipper
    from fedray.clients.work.local import LocalTraining
    from fedray.clients.workers import start_trainers
    from fedray.encoding.fixed_point import FixedPointEncoding
    from fedray.server.learning import aggregator, noise, optimizers
    from fedray.server.learning.training import TrainingLoop
    from fedray.server.learning.workers import start_aggregator

    hidden, vocabulary = (20, 100) if small else (670, 10_000)
    value = scenario(hidden, vocabulary, devices, local_steps=2, batch_size=16)
    here = Placement(backend="in-process")
    loop = TrainingLoop(value, start_trainers(value, here, None), start_aggregator(value, here))
    loop.train(0, cohort(devices, 0))  # compiles, and reads the data
    clock, rounds = Clock(), 1 if small else 3
    clock.around(LocalTraining, "compute", "local steps")
    clock.around(Clipper, "clip", "clip")
    clock.around(FixedPointEncoding, "encode_into", "encode and sum")
    clock.around(aggregator.ModelAggregator, "add", "add sums")
    clock.around(aggregator.ModelAggregator, "release", "decode, add noise")
    clock.around(noise.BuffersNoise, "next", "noise")
    clock.around(optimizers.SGDStep, "apply", "server step")
    clock.around(loop, "train", "rest")
    for round_index in range(1, rounds + 1):
        loop.train(round_index, cohort(devices, round_index))
    total, size = sum(clock.seconds.values()), loop.state()["aggregator.parameters"].size
    print(
        f"overhead: {size:,} parameters, {devices} devices a round, {total / rounds:.2f} CPU s each"
    )
    for part, seconds in sorted(clock.seconds.items(), key=lambda each: -each[1]):
        print(f"  {part:26} {1000 * seconds / rounds:10.1f} ms {100 * seconds / total:7.2f} %")
    beside = 100 - 100 * clock.seconds["local steps"] / total
    print(f"overhead beside the local steps: {beside:.2f} %", flush=True)


class _Sizer(pickle.Pickler):
    """Pickles as Ray does it: a reference stands for what it refers to."""

    def persistent_id(self, obj: Any) -> bytes | None:
        import ray

        return obj.binary() if isinstance(obj, ray.ObjectRef) else None


def _size(value: Any) -> int:
    buffer = io.BytesIO()
    _Sizer(buffer, 5).dump(value)
    return buffer.tell()


@contextlib.contextmanager
def _counted() -> Iterator[Counter[str]]:
    """Within: bytes that calls of Ray workers send from here and bring here."""
    from fedray.runtime.workers import RayAnswer, RayWorker

    before, found = (RayWorker.call, RayWorker.call_and_keep, RayAnswer.result), Counter()

    def sends(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(self: Any, method: str, *arguments: Any) -> Any:
            found["sent"] += _size(arguments)
            return call(self, method, *arguments)

        return counted

    def result(self: Any) -> Any:
        answer = before[2](self)
        found["received"] += _size(answer)
        return answer

    RayWorker.call, RayWorker.call_and_keep = sends(before[0]), sends(before[1])
    RayAnswer.result = result
    try:
        yield found
    finally:
        RayWorker.call, RayWorker.call_and_keep, RayAnswer.result = before


def driver(devices: int, small: bool) -> None:
    from fedray.clients.workers import start_trainers
    from fedray.runtime.reservation import reserved
    from fedray.server.learning.training import TrainingLoop
    from fedray.server.learning.workers import start_aggregator

    # A process that trains takes seconds to start, so that one is enough to see that it runs.
    here = Placement(backend="ray", trainers=1 if small else 2)
    models = [(20, 100)] if small else [(100, 1000), (670, 10_000)]
    cohorts = [devices] if small else [devices, 4 * devices]
    about = {"scenario": "bench", "digest": "0"}
    with reserved(here, lambda _: 0, about, print, most_trainers=2) as reservation:
        for hidden, vocabulary in models:
            for many in cohorts:
                value = scenario(hidden, vocabulary, many, local_steps=1, batch_size=1)
                trainers = start_trainers(value, here, reservation)
                aggregator = start_aggregator(value, here, reservation)
                loop = TrainingLoop(value, trainers, aggregator)
                loop.train(0, cohort(many, 0))
                with _counted() as found:
                    for round_index in (1, 2):
                        loop.train(round_index, cohort(many, round_index))
                with _counted() as at_checkpoint:
                    size = loop.state()["aggregator.parameters"].size
                for each in (*trainers, aggregator):
                    each.worker.close()
                print(
                    f"driver: {size:>9,} parameters, {many:>5,} devices: "
                    f"{found['sent'] / 2:>9,.0f} bytes sent and {found['received'] / 2:>7,.0f} "
                    f"received a round; {at_checkpoint['received']:,} at a checkpoint",
                    flush=True,
                )


def products(devices: int, small: bool) -> None:
    """CPU seconds of the devices of the quickstart, by one trainer on one thread, and of their matrix
    products alone: medians of pairs in one run."""
    del devices
    sys.path.insert(0, str(Path(__file__).parent / "peers"))
    from limit import seconds_per_device  # pyright: ignore[reportMissingImports]

    from fedray.clients.trainer import LocalTrainer
    from fedray.wire.messages import TrainOrder

    value = Scenario.from_toml(Path(__file__).parents[2] / "scenarios" / "quickstart.toml")
    trained = value.training.cohort_sample
    device_ids = np.arange(trained, dtype=np.uint64)
    groups = np.split(device_ids, range(32, trained, 32))
    trainer = LocalTrainer(value)
    parameters = trainer.initial_parameters()
    rounds, pairs = (1, 1) if small else (20, 9)
    trainer.train(TrainOrder(0, groups), parameters)  # compiles, and reads the data
    mine: list[float] = []
    alone: list[float] = []
    for _ in range(pairs):
        started = time.process_time()
        for round_index in range(rounds):
            trainer.train(TrainOrder(round_index, groups), parameters)
        mine.append((time.process_time() - started) / (rounds * trained))
        alone.append(seconds_per_device("quickstart", 0.01 if small else 0.5))
    whole = value.rounds.count * trained
    ratio = statistics.median(a / b for a, b in zip(mine, alone, strict=True))
    print(
        f"products: a quickstart of {whole:,} trained devices, {whole * statistics.median(mine):.1f} CPU s; "
        f"their products alone, {whole * statistics.median(alone):.1f} CPU s; ratio {ratio:.2f}",
        flush=True,
    )


def memory(devices: int, small: bool) -> None:
    """The peak memory of each mechanism, in a process of its own, since the peak is never lowered."""
    dimension = 200_000 if small else 10_000_000
    for name in ["blt"] if small else MECHANISMS:
        code = f"import bench_learning; bench_learning.measure_memory({name!r}, {dimension})"
        subprocess.run([sys.executable, "-c", code], cwd=os.path.dirname(__file__), check=True)


def measure_memory(mechanism: str, dimension: int) -> None:
    """Peak memory of three rounds of an aggregator, beyond what the process had before."""
    from fedray.server.learning.aggregator import ModelAggregator

    tables = scenario(8, 10, 10).to_tables()
    value = Scenario.from_tables({**tables, "privacy": {"mechanism": MECHANISMS[mechanism]}})

    def rounds(size: int) -> int:
        """Rows of [D] that the noise keeps."""
        made = ModelAggregator(value)
        made.start(np.zeros(size, np.float32))
        total = np.ones(size, np.int64)
        for round_index in range(3):
            made.add(total)
            made.commit(TrainReport(round_index=round_index, devices=10))
        return made._noise._state.numel() // size

    rounds(10_000)  # compiles, and starts threads
    before = _peak_bytes()
    rows = rounds(dimension)
    used = (_peak_bytes() - before) / (4 * dimension)
    print(
        f"memory: {mechanism:9} {dimension:,} parameters: {used:.2f} x 4 D bytes at the peak, of "
        f"which 2 are the sum that a trainer sends; 6 + noise state are {6 + rows}",
        flush=True,
    )


def _peak_bytes() -> int:
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["overhead", "driver", "products", "memory"])
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--small", action="store_true", help="small models: that it runs")
    chosen = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    for what in chosen.what:
        parts = {"overhead": overhead, "driver": driver, "products": products, "memory": memory}
        parts[what](chosen.devices, chosen.small)


if __name__ == "__main__":
    main()
