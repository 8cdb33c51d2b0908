"""CPU time of rounds whose devices hold different numbers of examples.

    python tests/benchmarks/bench_uneven.py [shakespeare] [zipf] [even] [--rounds 7] [--small]

The same rounds are trained in three ways, by turns: "padded" trains fixed groups of 16 in order of the
devices, each to the end of its longest device, as versions up to this one did; "default" is the default;
"one by one" has devices_at_once = 1. Printed are medians of CPU seconds of a round, and of the ratios of
rounds. "busiest" is the CPU time of the busier of two trainers, hence the time of a round where both have a
core. They train one after the other in this process, so CPU time leaves out other work on the machine.

`shakespeare`: roles of the plays, two layers of 256 on characters, 10 roles a round, batches of 4, one epoch
(skipped without the folder of the data). `zipf`: sizes in proportion to 1 / rank, a small perceptron, 64
devices a round. `even`: the same perceptron and the next-word model, where all devices are alike.
"""

import argparse
import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

from fedray.clients.tasks.gradients import gradients_of
from fedray.clients.tasks.layout import named, repeated
from fedray.clients.trainer import LocalTrainer
from fedray.clients.work import local
from fedray.clients.work.orders import example_orders
from fedray.clients.work.work import WorkOrder, WorkResult
from fedray.clients.workers import TrainerWorker
from fedray.runs import learning
from fedray.runtime.placement import Placement
from fedray.runtime.workers import InProcessWorker
from fedray.scenario import Scenario
from fedray.scenarios.shakespeare import MODEL
from fedray.server.learning import training
from fedray.server.learning.training import Cohort, TrainingLoop
from fedray.server.learning.workers import start_aggregator
from fedray.wire.messages import TrainOrder, TrainReport

HERE = Placement(backend="in-process")
ZIPF = '''
import numpy as np
from fedray.clients.data.source import Field


class Sizes:
    """Gaussian vectors and classes; device d of a population of N holds MOST / (1 + d) examples."""

    fields = {"inputs": Field((64,), "real"), "targets": Field((), "whole", 10)}
    held_out_devices, optimum = 10, {}
    rows = np.random.default_rng(0).standard_normal((1024, 64)).astype(np.float32)

    def examples_on(self, device_ids):
        return np.maximum(SIZES, 1).astype(np.int64)[device_ids.astype(np.int64) % SIZES.size]

    def examples(self, device_ids, positions):
        rows = (positions + device_ids.astype(np.int64)[:, None]) % 1024
        return {"inputs": self.rows[rows], "targets": rows % 10}


def data(seed):
    return Sizes()
'''


class PaddedTraining(local.LocalTraining):
    """Local training of a whole group until its longest device ends, for plain SGD."""

    def compute(self, order: WorkOrder) -> WorkResult:
        table = self._table
        usable_G = self._usable(order)
        steps_G = self._steps(usable_G)
        devices, size = usable_G.size, table.batch_size
        start = self._start(order)
        parameters = repeated(start, devices)
        steps = int(steps_G.max())
        count = steps * size
        positions = example_orders(self._key, order.round_index, order.device_ids, usable_G, count)
        first_losses_G, examples = torch.zeros(devices), {}
        at_once = max(1, local.MOST_EXAMPLES_HELD // (devices * size)) * size
        for step in range(steps):
            place = step * size % at_once
            if place == 0:
                window = positions[:, step * size : step * size + at_once]
                examples = self._read(order, slice(None), window)
            batch = {name: part[:, place : place + size] for name, part in examples.items()}
            losses_G, gradients = gradients_of(self._task, parameters, batch)
            if step == 0:
                first_losses_G = losses_G
            is_training_G = torch.from_numpy(steps_G > step)
            is_everyone = bool(is_training_G.all())
            parts = list(parameters.values())
            before = [] if is_everyone else [part.clone() for part in parts]
            torch._foreach_add_(  # pyright: ignore[reportPrivateImportUsage]
                parts, list(gradients.values()), alpha=-table.learning_rate
            )
            for part, kept in zip(parts, before, strict=not is_everyone):
                ones = (1,) * (part.dim() - 1)
                part.copy_(torch.where(is_training_G.view(-1, *ones), part, kept))
        updates_GD = order.room()
        for name, update in named(updates_GD, self._task.shapes).items():
            torch.sub(parameters[name], start[name], out=update)
        used_G = np.minimum(usable_G, steps_G * size)
        return WorkResult(updates_GD, first_losses_G.double(), used_G)


@dataclasses.dataclass(frozen=True)
class Case:
    """Scenario of a comparison, without the size of its groups, and its number of devices."""

    tables: dict[str, Any]
    devices: int
    cohort: int


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the command, and a folder for files of data."""

    plays: Path
    is_small: bool
    folder: Path


def case(devices: int, cohort: int, task: Any, data: Any, **client: Any) -> Case:
    training = {
        "task": task,
        "cohort_sample": cohort,
        "evaluate_every": 10**6,
        "checkpoint_every": 10**6,
        "client": client,
    }
    tables = {
        "population": {"devices": devices},
        "rounds": {"count": 100, "report_goal": max(cohort, 10)},
        "privacy": {"mechanism": {"kind": "none"}, "clipping": {"kind": "none"}},
        "data": data,
        "training": training,
    }
    return Case(tables, devices, cohort)


def shakespeare(options: Options) -> dict[str, Case]:
    if not options.plays.exists():
        print(f"shakespeare: skipped, because there is no file {str(options.plays)!r}")
        return {}
    size = {"hidden": 32} if options.is_small else {}
    task = {**MODEL, **size, "projected": False}
    data = {
        "kind": "parquet",
        "file": str(options.plays.resolve()),
        "tokens": "text",
        "unit": "character",
    }
    client = {"learning_rate": 0.1, "batch_size": 4, "epochs": 1}
    return {"shakespeare": case(10_000, 10, task, {**data, "length": 80}, **client)}


def zipf(options: Options) -> dict[str, Case]:
    most = 400 if options.is_small else 10_000
    sizes = f"SIZES = {most} // (1 + np.random.default_rng(1).permutation(1000))\n"
    (options.folder / "zipf.py").write_text(ZIPF + sizes)
    task = {"kind": "mlp", "hidden": [64]}
    client = {"learning_rate": 0.1, "batch_size": 10, "epochs": 1}
    return {"zipf": case(1000, 64, task, {"kind": "custom", "file": "zipf.py"}, **client)}


def even(options: Options) -> dict[str, Case]:
    (options.folder / "even.py").write_text(f"{ZIPF}SIZES = np.full(1000, 200)\n")
    task = {"kind": "mlp", "hidden": [64]}
    data = {"kind": "custom", "file": "even.py"}
    client = {"learning_rate": 0.1, "batch_size": 10}
    return {
        "even, by epochs": case(1000, 64, task, data, epochs=1, **client),
        "even, next_word": case(1000, 64, "next_word", {"kind": "language"}, local_steps=2),
    }


CASES: dict[str, Callable[[Options], dict[str, Case]]] = {
    "shakespeare": shakespeare,
    "zipf": zipf,
    "even": even,
}


class TimedTrainer(LocalTrainer):
    """A trainer that adds up the CPU seconds of its orders."""

    seconds = 0.0

    def train(
        self, order: TrainOrder, parameters: NDArray[np.float32]
    ) -> tuple[TrainReport, NDArray[np.int64]]:
        started = time.process_time()
        trained = super().train(order, parameters)
        self.seconds += time.process_time() - started
        return trained


@dataclasses.dataclass
class TimedLoop:
    """A training loop with its trainers."""

    trainers: list[TimedTrainer]
    loop: TrainingLoop

    def train(self, round_index: int, cohort: NDArray[np.uint64]) -> tuple[float, float]:
        """Returns CPU seconds of a round, and of the busiest trainer in it."""
        for trainer in self.trainers:
            trainer.seconds = 0.0
        started = time.process_time()
        self.loop.train(round_index, Cohort(cohort))
        seconds = time.process_time() - started
        return seconds, max(trainer.seconds for trainer in self.trainers)


def loop_of(way: str, chosen: Case, folder: Path) -> TimedLoop:
    sizes = {"one by one": {"devices_at_once": 1}}
    training = {**chosen.tables["training"], **sizes.get(way, {})}
    scenario = Scenario.from_tables({**chosen.tables, "training": training}, directory=folder)
    loads = None if way == "padded" else learning._loads_of(scenario)
    trainers = [TimedTrainer(scenario.for_trainers()) for _ in range(2)]
    workers = [TrainerWorker(InProcessWorker(lambda each=each: each)) for each in trainers]
    aggregator = start_aggregator(scenario.for_aggregator(), HERE)
    return TimedLoop(trainers, TrainingLoop(scenario, workers, aggregator, loads))


def compare(name: str, chosen: Case, rounds: int, folder: Path) -> None:
    with (
        patch.object(local, "LocalTraining", PaddedTraining),
        patch.object(training, "MOST_PARAMETERS", 1 << 40),
    ):
        loops = {"padded": loop_of("padded", chosen, folder)}
        draws = np.random.default_rng(0)
        drawn = [draws.choice(chosen.devices, chosen.cohort, False) for _ in range(rounds + 1)]
        cohorts = [np.sort(each).astype(np.uint64) for each in drawn]
        # The first round compiles, and starts from the padded way's size of groups.
        loops["padded"].train(0, cohorts[0])
    for way in ("default", "one by one"):
        loops[way] = loop_of(way, chosen, folder)
        loops[way].train(0, cohorts[0])
    spent: dict[str, list[tuple[float, float]]] = {way: [] for way in loops}
    for round_index in range(1, rounds + 1):
        ways = list(loops)
        # By turns, so that no way always follows the same other.
        for way in ways[round_index % 3 :] + ways[: round_index % 3]:
            spent[way].append(loops[way].train(round_index, cohorts[round_index]))
    states = {way: each.loop.state() for way, each in loops.items()}
    models = {way: state["aggregator.parameters"] for way, state in states.items()}
    size = int(states["default"]["devices_at_once"])
    print(
        f"{name}: {models['default'].size:,} parameters, {chosen.cohort} devices, groups of {size}"
    )
    mine = np.array(spent["default"])
    for way, pairs in spent.items():
        seconds, busiest = np.median(pairs, axis=0)
        ratio, busiest_ratio = np.median(np.array(pairs) / mine, axis=0)
        apart = np.abs(models[way] - models["default"]).max()
        print(
            f"  {way:10} {seconds:9.4f} CPU s a round ({ratio:6.3f} x the default), busiest "
            f"{busiest:9.4f} ({busiest_ratio:6.3f} x), parameters within {apart:.1e}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--plays",
        type=Path,
        default="shakespeare.parquet",
        help="Parquet files of roles: OUT/data of `fedray reproduce shakespeare`",
    )
    parser.add_argument("--small", action="store_true", help="small sizes: that it runs")
    chosen = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.cases:
            options = Options(chosen.plays, chosen.small, Path(folder))
            for label, each in CASES[name](options).items():
                compare(label, each, chosen.rounds, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
