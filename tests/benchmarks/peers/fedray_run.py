"""Federated averaging by fedray: `python fedray_run.py SETTING ROUNDS TRAINERS DEVICES`.

One trainer runs in this process, several run on Ray. The population has DEVICES devices, of which
a cohort of each round trains; the others are idle. Prints one JSON line.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from clients.workers import start_trainers
from fedray.cluster import cluster
from fedray.placement import Placement
from fedray.scenario import Scenario
from server.training import TrainingLoop
from server.workers import start_aggregator

HERE = Path(__file__).parent
TASK = """
import sys

sys.path.insert(0, {folder!r})
from torch.nn.functional import cross_entropy

from clients.tasks.module import ModuleTask
from settings import examples_of, model_of


def task(seed):
    return ModuleTask(model_of({name!r}), lambda device: examples_of({name!r}, device), cross_entropy)
"""


def scenario_of(name: str, rounds: int, devices: int, folder: Path) -> Scenario:
    """The setting as a scenario: the same model, data, clipping and noise."""
    sys.path.insert(0, str(HERE))
    from settings import CLIP_NORM, NOISE_DEVIATION, SETTINGS

    setting = SETTINGS[name]
    (folder / "task.py").write_text(TASK.format(folder=str(HERE), name=name))
    return Scenario.from_tables(
        {
            "population": {"devices": devices},
            "rounds": {"count": rounds, "report_goal": setting.cohort},
            "privacy": {
                "mechanism": {"kind": "identity"},
                "clip_norm": CLIP_NORM,
                "noise_multiplier": NOISE_DEVIATION / CLIP_NORM,
            },
            "training": {
                "task": {"kind": "custom", "file": "task.py"},
                "cohort_sample": setting.cohort,
                "client": {
                    "learning_rate": setting.learning_rate,
                    "batch_size": setting.batch,
                    "epochs": 1,
                },
                "server": {"momentum": 0.0},
                "devices_at_once": {"mlp": 50}.get(name, 1),
                "evaluate_every": 10**9,
                "checkpoint_every": 10**9,
            },
        },
        directory=folder,
    )


def main(name: str, rounds: int, trainers: int, devices: int) -> None:
    placement = Placement(
        shards=1,
        backend="in-process" if trainers == 1 else "ray",
        trainers=trainers,
    )
    with tempfile.TemporaryDirectory() as folder, cluster(placement) as cpus:
        scenario = scenario_of(name, rounds, devices, Path(folder))
        loop = TrainingLoop(
            scenario,
            start_trainers(scenario.for_trainers(), placement, cpus),
            start_aggregator(scenario.for_aggregator(), placement),
        )
        draws = np.random.default_rng(0)
        cohorts = [
            np.sort(draws.choice(min(devices, 10**6), scenario.training.cohort_sample, False))
            for _ in range(rounds)
        ]
        started = time.perf_counter()
        for round_index, cohort in enumerate(cohorts):
            loop.train(round_index, cohort.astype(np.uint64))
        loop.state()
        seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "devices": rounds * cohorts[0].size}))


if __name__ == "__main__":
    main(sys.argv[1], *(int(float(word)) for word in sys.argv[2:5]))
