"""Optimizers on the devices and on the server, built-in and as files: one suite for all.

A training is a function of its scenario: not of the trainers, of interruptions, or of a lost aggregator.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest

from fedray.base.errors import InputError, ScenarioError
from fedray.runs.learning import train
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.trace.reader import Trace
from fedray.trace.trained import TrainedRun
from fedray.wire.messages import Progress

TASKS = Path(__file__).parents[1] / "clients/tasks"
HERE = Placement(1, "in-process", checkpoint_seconds=0.0)
TRAINED = (
    "rounds.count=6",
    "training.enabled=true",
    "training.cohort_sample=12",
    "training.devices_at_once=4",
    "training.evaluate_every=3",
    "training.checkpoint_every=2",
)
OPTIMIZERS = {
    "built in": (
        "training.client={epochs=1.0, optimizer='adam', learning_rate=0.01, weight_decay=0.1}",
        "training.server={kind='yogi', weight_decay=0.1}",
    ),
    "with all keys": (
        "training.client={epochs=1.0, momentum=0.5, nesterov=true, gradient_norm=0.5, "
        "step_decay=0.9, schedule={shape='cosine'}}",
        "training.server={kind='sgd', nesterov=true, weight_decay=0.01}",
    ),
    "files": (
        "training.client={epochs=1.0, learning_rate=0.1, step_decay=0.9, "
        f"optimizer={{kind='custom', file='{TASKS / 'device_optimizer.py'}'}}}}",
        f"training.server={{kind='custom', file='{TASKS / 'server_optimizer.py'}'}}",
    ),
}
ALL = pytest.mark.parametrize("name", OPTIMIZERS)


@pytest.fixture(scope="module")
def trace(small, tmp_path_factory) -> Trace:
    return simulate(small(*TRAINED), HERE, tmp_path_factory.mktemp("optimizers") / "t")


@pytest.fixture(scope="module")
def trained(trace: Trace, small, tmp_path_factory) -> dict[str, TrainedRun]:
    folder = tmp_path_factory.mktemp("trained")
    return {
        name: train(trace, small(*TRAINED, *keys), HERE, folder / name.replace(" ", "-"))
        for name, keys in OPTIMIZERS.items()
    }


def assert_same(one: TrainedRun, other: TrainedRun) -> None:
    assert np.array_equal(one.parameters(), other.parameters())
    for name, column in one.metrics.items():
        assert np.array_equal(column, other.metrics[name], equal_nan=True), name


@pytest.mark.slow
@ALL
def test_an_interrupted_training_goes_on_to_the_same_bits(
    trace: Trace, trained: dict[str, TrainedRun], small, tmp_path: Path, name: str
) -> None:
    def interrupt(progress: Progress) -> None:
        if getattr(progress, "trained", 0) == 3:
            raise KeyboardInterrupt

    scenario = small(*TRAINED, *OPTIMIZERS[name])
    with pytest.raises(KeyboardInterrupt):
        train(trace, scenario, HERE, tmp_path / "m", interrupt)
    assert_same(train(trace, scenario, HERE, tmp_path / "m", is_resumed=True), trained[name])


@pytest.mark.slow
@ALL
def test_devices_learn_the_same_one_by_one(
    trace: Trace, trained: dict[str, TrainedRun], small, tmp_path: Path, name: str
) -> None:
    scenario = small(*TRAINED, *OPTIMIZERS[name], "training.devices_at_once=1")
    alone = train(trace, scenario, HERE, tmp_path / "m")
    assert np.allclose(alone.parameters(), trained[name].parameters(), atol=1e-4)
    assert np.array_equal(alone.metrics["trained"], trained[name].metrics["trained"])


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
@ALL
def test_any_number_of_trainers_trains_the_same_model(
    trace: Trace, trained: dict[str, TrainedRun], small, tmp_path: Path, name: str
) -> None:
    """In processes, of which one has the aggregator; the optimizers' files travel to them."""
    scenario = small(*TRAINED, *OPTIMIZERS[name])
    assert_same(train(trace, scenario, Placement(1, trainers=2), tmp_path / "m"), trained[name])


@pytest.mark.slow
def test_files_are_part_of_the_run_and_of_its_digest(
    trace: Trace, trained: dict[str, TrainedRun], small, tmp_path: Path, monkeypatch
) -> None:
    """By their content: a copy trains again without the files."""
    run, scenario = trained["files"], small(*TRAINED, *OPTIMIZERS["files"])
    tables = run.document["scenario"]["training"]
    digests = tables["client"]["optimizer"]["sha256"], tables["server"]["sha256"]
    for digest, file in zip(digests, ("device_optimizer.py", "server_optimizer.py"), strict=True):
        assert (run.path / f"{digest}.py").read_bytes() == (TASKS / file).read_bytes()
        assert digest in str(scenario.to_tables())
    (tmp_path / "device.py").write_text((TASKS / "device_optimizer.py").read_text())
    (tmp_path / "other.py").write_text((TASKS / "device_optimizer.py").read_text() + "\n")
    key = "training.client.optimizer={{kind='custom', file='{}'}}"
    same = scenario.with_overrides(key.format(tmp_path / "device.py"))
    other = scenario.with_overrides(key.format(tmp_path / "other.py"))
    assert same.digest == scenario.digest != other.digest
    # A run of somebody else, of which nothing was run here before.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(run.path, tmp_path / "copy")
    copy = tmp_path / "copy"
    foreign = Scenario.of_document(TrainedRun.open(copy).document, "copy", copy)
    with pytest.raises(
        InputError, match=r"optimizer\.file=.* came with a trace or run.*trust_code"
    ):
        train(trace, foreign, HERE, tmp_path / "m")
    again = train(trace, foreign, HERE, tmp_path / "m", trust_code=True)
    assert np.array_equal(again.parameters(), run.parameters())


@pytest.mark.parametrize(
    ("side", "code", "says"),
    [
        ("client.optimizer", "import torch", "has no function 'optimizer'"),
        (
            "client.optimizer",
            "def optimizer(parameters, rate):\n    return 3",
            "gave a int; return a torch.optim.Optimizer",
        ),
        (
            "client.optimizer",
            "import torch\noptimizer = torch.optim.LBFGS",
            "optimizer: step() failed: TypeError",
        ),
        (
            "client.optimizer",
            "import no_such_thing",
            "imports no_such_thing in line 1, which is not installed: pip install no_such_thing",
        ),
        ("server", "import torch\noptimizer = torch.optim.LBFGS", "step() failed: TypeError"),
        (
            "server",
            "import yaml.no_such_part",
            "imports yaml.no_such_part in line 1, which the installed",
        ),
    ],
)
def test_a_file_that_fails_is_refused_in_one_line_before_the_training(
    trace: Trace, small, tmp_path: Path, side: str, code: str, says: str
) -> None:
    (tmp_path / "own.py").write_text(code)
    own = f"training.{side}={{kind='custom', file='{tmp_path / 'own.py'}'}}"
    with pytest.raises(ScenarioError) as raised:
        train(trace, small(*TRAINED, own), HERE, tmp_path / "m")
    assert says in str(raised.value)
    assert f"training.{side}.file=" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not [each for each in tmp_path.iterdir() if each.name != "own.py"]
