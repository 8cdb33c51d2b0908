"""Real trainings: of 20 that learned none is said to have diverged, of 7 that diverged all are, and
the cause that is named agrees with the noise that was printed.

The suite has a few of each; FEDRAY_ALL_SEEDS=1 has all of them.
"""

import os
import re
from pathlib import Path

import own_modules
import pytest

import fedray
from fedray.runs.learning import train
from fedray.runs.noise_ahead import LEARNABLE
from fedray.runs.simulation import simulate
from fedray.scenario import Scenario
from fedray.trace.reader import Trace
from fedray.trace.trained import TrainedRun, metric_of_answer

HERE = fedray.Placement(backend="in-process")
ALL = "FEDRAY_ALL_SEEDS" in os.environ
SIZE = {
    "name": "outcome",
    "seed": 3,
    "population": {"devices": 2_000},
    "rounds": {"count": 30, "report_goal": 12},
    "training": {"cohort_sample": 12, "evaluation_devices": 60},
}
ADAPTERS = '''
import numpy as np
import torch
from torch import nn

from fedray.clients.tasks.module import ModuleTask


class Adapted(nn.Module):
    """A layer that stays as it is, with a correction of rank two that trains (Hu et al. 2022)."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(8, 2).requires_grad_(False)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 2, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs):
        return self.base(inputs) + self.up(self.down(inputs))


def examples(device):
    inputs = torch.from_numpy(np.random.default_rng(device).standard_normal((20, 8), np.float32))
    return inputs, (inputs.sum(dim=1) > 0).long()


def task(seed):
    return ModuleTask(Adapted(), examples, nn.functional.cross_entropy)
'''
BIASED = '''
import numpy as np
import torch
from torch import nn

from fedray.clients.tasks.module import ModuleTask


def examples(device):
    """Two thirds of class 1, whatever the inputs."""
    draws = np.random.default_rng(device)
    inputs = torch.from_numpy(draws.standard_normal((20, 8), np.float32))
    return inputs, torch.from_numpy((draws.random(20) < 0.67).astype(np.int64))


def task(seed):
    """Begins with the best answer and far too sure of it."""
    layer = nn.Linear(8, 2)
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.copy_(torch.tensor([-6.0, 6.0]))
    return ModuleTask(layer, examples, nn.functional.cross_entropy)
'''
SILENT = "privacy.mechanism=none"
TREE, IDENTITY = 'privacy.mechanism={kind="tree"}', 'privacy.mechanism={kind="identity"}'
LOGISTIC = ("training.task.kind=logistic", "data={kind='classes'}")
MLP = ("training.task={kind='mlp', hidden=[16]}", "data={kind='classes'}")
POINTS = ("training.task.kind=quadratic", "data={kind='points', dimension=4}")
WORDS = ("training.client.learning_rate=3.0", "rounds.count=60")
KEYBOARD = ("training.task={kind='keyboard_lstm', hidden=16, embedding=8}", *WORDS)


def noise(multiplier: float) -> str:
    return f"privacy.noise_multiplier={multiplier}"


def server(rate: float) -> str:
    return f"training.server.learning_rate={rate}"


def client(rate: float) -> str:
    return f"training.client.learning_rate={rate}"


OWN = {
    f"own module {each}": (SILENT, client(1.0 if each == "Recurrent" else 0.1))
    for each in own_modules.MODELS
}
LEARNED: dict[str, tuple[str, ...]] = {
    "logistic": (*LOGISTIC, SILENT),
    "logistic, so fast that its loss rises": (*LOGISTIC, SILENT, server(30)),
    "a start that is too sure": (SILENT, client(0.1)),
    "adapters": (SILENT,),
    **OWN,
    "adapters, with noise": (IDENTITY, noise(0.1)),
    "logistic, with noise": (*LOGISTIC, TREE, noise(0.1)),
    "logistic, adaptive clipping": (
        *LOGISTIC, IDENTITY, noise(0.2), "privacy.clipping={kind='adaptive'}"
    ),
    "logistic, adam": (*LOGISTIC, SILENT, "training.server={kind='adam', learning_rate=0.1}"),
    "mlp": (*MLP, SILENT, client(0.1)),
    "mlp, fedprox": (*MLP, SILENT, "training.client={kind='fedprox', learning_rate=0.1}"),
    "quadratic": (*POINTS, SILENT, client(0.1)),
    "quadratic, with noise": (*POINTS, IDENTITY, noise(0.1), client(0.1)),
    "next word": (*WORDS, SILENT),
    "keyboard": (*KEYBOARD, SILENT),
}  # fmt: skip
DIVERGED: dict[str, tuple[str, ...]] = {
    "quadratic, beyond its step": (*POINTS, SILENT, server(50)),
    "logistic, more noise than it bears": (*LOGISTIC, IDENTITY, noise(300)),
    "logistic from a good start, more noise": (*LOGISTIC, IDENTITY, noise(300)),
    "quadratic, beyond its step, and tiny draws": (*POINTS, IDENTITY, noise(0.01), server(50)),
    "mlp, from a good start": (*MLP, SILENT, client(100), server(3000)),
    "mlp, at chance": (*MLP, SILENT, server(3000)),
    "quadratic, noise beside short updates": (
        *POINTS, IDENTITY, noise(1.0), client(1e-4), server(1.5),
    ),
}  # fmt: skip
CODE = {"adapters": ADAPTERS, "a start that is too sure": BIASED}
STARTS = {
    "logistic from a good start, more noise": "logistic",
    "mlp, from a good start": "mlp",
}
"""The training from whose model another one starts."""
SUITE = (*list(LEARNED)[:4], *list(DIVERGED)[:3])


@pytest.fixture(scope="module")
def trained_as(tmp_path_factory):
    """Trains a case once, on a trace of its number of rounds."""
    folder = tmp_path_factory.mktemp("outcomes")
    traces: dict[int, Trace] = {}
    made: dict[str, TrainedRun] = {}

    def trained(name: str) -> TrainedRun:
        if name in made:
            return made[name]
        keys = [*(LEARNED | DIVERGED)[name]]
        code = next((text for case, text in CODE.items() if name.startswith(case)), "")
        if name in OWN:
            model = name.removeprefix("own module ")
            code = f"MODEL = {model!r}\n{Path(own_modules.__file__).read_text()}"
        if code:
            file = folder / f"own-{len(made)}.py"
            file.write_text(code)
            keys += ["training.task=custom", f"training.file={file}"]
        if name in STARTS:
            start = trained(STARTS[name]).path / "model.safetensors"
            keys.append(f"training.initial.file={start}")
        scenario = Scenario.from_tables(SIZE).with_overrides(*keys)
        rounds = scenario.rounds.count
        if rounds not in traces:
            plain = Scenario.from_tables(SIZE).with_overrides(f"rounds.count={rounds}")
            bare = plain.with_overrides("training.enabled=false")
            traces[rounds] = simulate(bare, HERE, folder / f"trace-{rounds}")
        out = folder / f"trained-{len(made)}"
        made[name] = train(traces[rounds], scenario, HERE, out, trust_code=True)
        return made[name]

    return trained


def cases(names):
    """Parameters for names; those that are not in the suite are skipped there."""
    skipped = pytest.mark.skipif(not ALL, reason="FEDRAY_ALL_SEEDS=1 has it")
    return [pytest.param(each, marks=() if each in SUITE else skipped) for each in names]


def noise_of(trained: TrainedRun) -> float:
    """Noise in effect in norms of an update, which is at most the clip norm."""
    mean, privacy = trained.document["mean_norm"], trained.document["scenario"]["privacy"]
    bears = min(1.0, mean / privacy["clip_norm"]) if mean else 1.0
    return trained.document["update_noise"] / bears


def test_there_are_20_that_learned_and_7_that_diverged() -> None:
    assert (len(LEARNED), len(DIVERGED)) == (20, 7)
    assert {*SUITE} <= {*LEARNED, *DIVERGED}


@pytest.mark.slow
@pytest.mark.parametrize("name", cases(LEARNED))
def test_a_training_that_learned_is_not_said_to_have_diverged(name: str, trained_as) -> None:
    trained = trained_as(name)
    start, finals = trained.document["start"], trained.last_evaluation()
    gains = {
        each.name: each.sign * (finals[each.name].value - start[each.name])
        / finals[each.name].standard_error
        for each in trained.task_metrics
    }  # fmt: skip
    assert max(gains.values()) > 5, "it learned"
    assert trained.divergence == ""
    assert not any("diverged" in each for each in trained.warnings)
    answer = metric_of_answer(trained.task_metrics).name
    if name == "logistic, so fast that its loss rises":
        assert gains[answer] > 5
        assert re.match(
            r"The .*loss .* while .*accuracy rose from 0\.\d+ to 0\.\d+\.", trained.seen
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", cases(DIVERGED))
def test_a_training_that_diverged_is_said_to_have_and_its_cause_is_that_of_the_printed_noise(
    name: str, trained_as
) -> None:
    trained = trained_as(name)
    said = trained.divergence
    assert said.startswith("The training diverged: ")
    assert trained.seen == ""
    printed = trained.document["update_noise"]
    # The noise is the cause where it is named first, and the rates only after it.
    is_noise = "If it still diverges then, lower training.client.learning_rate" in said
    assert is_noise == (noise_of(trained) > LEARNABLE)
    if printed:
        assert f"{printed:.2g} times the clip norm" in said
    assert (" is not the cause" in said) == (0 < noise_of(trained) <= LEARNABLE)
    assert is_noise == ("noise" in name), "as the case was made"
