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

from fedray.clients.workers import start_trainers
from fedray.runtime.placement import Placement
from fedray.runtime.reservation import reserved
from fedray.scenario import Scenario
from fedray.server.learning.training import Cohort, TrainingLoop
from fedray.server.learning.workers import start_aggregator

HERE = Path(__file__).parent
DATA = """
import sys

sys.path.insert(0, {folder!r})
import numpy as np

from fedray.clients.data.source import Field
from settings import WORDS, examples_of


class InMemory:
    held_out_devices, optimum = 1000, {{}}
    fields = {fields}

    def examples_on(self, device_ids):
        return np.full(device_ids.size, {count})

    def examples(self, device_ids, positions):
        own = [self.of(int(device)) for device in device_ids]
        return {{
            name: np.stack([part[name][row] for part, row in zip(own, positions)])
            for name in self.fields
        }}

    kept = {{}}

    def of(self, device):
        device %= 1000
        if device not in self.kept:
            inputs, targets = (part.numpy() for part in examples_of({name!r}, device))
            if {name!r} == "lstm":
                tokens = np.concatenate([inputs, targets[:, -1:]], axis=1)
                self.kept[device] = {{"tokens": tokens}}
            else:
                if {name!r} == "cnn":
                    inputs = np.ascontiguousarray(inputs.transpose(0, 2, 3, 1))
                self.kept[device] = {{"inputs": inputs, "targets": targets}}
        return self.kept[device]


def data(seed):
    return InMemory()
"""
FIELDS = {
    "mlp": "dict(inputs=Field((64,), 'real'), targets=Field((), 'whole', 10))",
    "lstm": "dict(tokens=Field((11,), 'whole', WORDS))",
    "cnn": "dict(inputs=Field((32, 32, 3), 'real'), targets=Field((), 'whole', 10))",
}
TASKS = {
    "mlp": {"kind": "mlp", "hidden": [64]},
    "lstm": {"kind": "keyboard_lstm", "cell": "lstm", "hidden": 200, "embedding": 64},
    "cnn": {"kind": "image_cnn", "architecture": "cifar10"},
}
DEVICES_AT_ONCE = {"mlp": 50, "lstm": 4, "cnn": 1}


def scenario_of(name: str, rounds: int, devices: int, folder: Path) -> Scenario:
    """The setting as a scenario: the same model, data, clipping and noise."""
    sys.path.insert(0, str(HERE))
    from settings import CLIP_NORM, NOISE_DEVIATION, SETTINGS

    setting = SETTINGS[name]
    source = DATA.format(folder=str(HERE), name=name, fields=FIELDS[name], count=setting.examples)
    (folder / "data.py").write_text(source)
    return Scenario.from_tables(
        {
            "population": {"devices": devices},
            "rounds": {"count": rounds, "report_goal": setting.cohort},
            "privacy": {
                "mechanism": {"kind": "identity"},
                "clip_norm": CLIP_NORM,
                "noise_multiplier": NOISE_DEVIATION / CLIP_NORM,
            },
            "data": {"kind": "custom", "file": "data.py"},
            "training": {
                "task": TASKS[name],
                "cohort_sample": setting.cohort,
                "client": {
                    "learning_rate": setting.learning_rate,
                    "batch_size": setting.batch,
                    "epochs": 1,
                },
                "server": {"momentum": 0.0},
                "devices_at_once": DEVICES_AT_ONCE[name],
                "evaluate_every": 10**9,
                "checkpoint_every": 10**9,
            },
        },
        directory=folder,
    )


def main(name: str, rounds: int, trainers: int, devices: int) -> None:
    sys.path.insert(0, str(HERE))
    from settings import DEVICES, examples_of

    placement = Placement(
        shards=1,
        backend="in-process" if trainers == 1 else "ray",
        trainers=trainers,
    )
    about = {"scenario": name, "digest": name}
    with (
        tempfile.TemporaryDirectory() as folder,
        reserved(placement, lambda _: 0, about, print, most_trainers=2) as mine,
    ):
        scenario = scenario_of(name, rounds, devices, Path(folder))
        loop = TrainingLoop(
            scenario,
            start_trainers(scenario.for_trainers(), placement, mine),
            start_aggregator(scenario.for_aggregator(), placement, mine),
        )
        draws = np.random.default_rng(0)
        cohorts = [
            np.sort(draws.choice(min(devices, 10**6), scenario.training.cohort_sample, False))
            for _ in range(rounds)
        ]
        # In memory before the clock starts, as for the others.
        for device in range(min(devices, DEVICES)):
            examples_of(name, device)
        started = time.perf_counter()
        for round_index, cohort in enumerate(cohorts):
            loop.train(round_index, Cohort(cohort.astype(np.uint64)))
        parameters = loop.state()["aggregator.parameters"].size
        seconds = time.perf_counter() - started
    found = {"seconds": seconds, "devices": rounds * cohorts[0].size, "parameters": parameters}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], *(int(float(word)) for word in sys.argv[2:5]))
