"""Trainings that start from a model in a file."""

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from fedray.audit.assumptions import assumptions_of
from fedray.base.errors import InputError, ScenarioError
from fedray.clients.trainer import LocalTrainer
from fedray.runs.learning import train
from fedray.runs.pipeline import run_scenario
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.trace.trained import TrainedRun

HERE = Placement(1, "in-process")


@pytest.fixture(scope="module")
def first(small, tmp_path_factory) -> TrainedRun:
    """A short training."""
    scenario = small("training.enabled=true", "rounds.count=3")
    trained = run_scenario(scenario, HERE, tmp_path_factory.mktemp("initial") / "t").trained
    assert trained is not None
    return trained


@pytest.mark.slow
def test_a_training_starts_from_the_model_of_another(first: TrainedRun, small, tmp_path) -> None:
    scenario = small(
        "training.enabled=true",
        "rounds.count=3",
        f"training.initial.file={first.path / 'model.safetensors'}",
    )
    start = LocalTrainer(scenario.for_trainers()).initial_parameters()
    assert (start == first.parameters()).all()
    second = train(first.path.parent, scenario, HERE, tmp_path / "second")
    assert not (second.parameters() == first.parameters()).any()
    initial = second.document["scenario"]["training"]["initial"]
    assert initial["sha256"] == first.document["model_sha256"]
    told = [each for each in assumptions_of(scenario, None) if "given model" in each.text]
    assert len(told) == 1
    moved = Path(tmp_path / "moved.safetensors")
    moved.write_bytes((first.path / "model.safetensors").read_bytes())
    same = small("training.enabled=true", "rounds.count=3", f"training.initial.file={moved}")
    assert same.digest == scenario.digest != small("training.enabled=true", "rounds.count=3").digest


def test_a_model_that_does_not_fit_is_refused_in_one_line(
    first: TrainedRun, small, tmp_path: Path
) -> None:
    def scenario_of(file: Path) -> Scenario:
        return small("training.enabled=true", f"training.initial.file={file}")

    with pytest.raises(ScenarioError, match="cannot be read"):
        scenario_of(tmp_path / "none.safetensors")
    text = tmp_path / "text"
    text.write_text("no model")
    parts = first.named_parameters()
    others = {
        "is not a safetensors file": text,
        "is the model of another task": tmp_path / "other",
        "not finite": tmp_path / "nan",
    }
    (tmp_path / "other").write_bytes(safetensors.numpy.save({"w": np.zeros(3, np.float32)}))
    spoiled = {**parts, "word_bias": np.full(400, np.nan, np.float32)}
    (tmp_path / "nan").write_bytes(safetensors.numpy.save(spoiled))
    for says, file in others.items():
        trainer = LocalTrainer(scenario_of(file).for_trainers())
        with pytest.raises(ScenarioError, match=says) as caught:
            trainer.initial_parameters()
        assert "\n" not in str(caught.value)
    kept = scenario_of(tmp_path / "other")
    (tmp_path / "other").write_text("changed")
    with pytest.raises(InputError, match="is not the file of this run"):
        LocalTrainer(kept.for_trainers()).initial_parameters()


def test_a_task_may_be_set_by_its_kind_alone(small, tmp_path: Path) -> None:
    """Over a table, over a kind, and where nothing was said."""
    scenario = small("training.task=mlp", "training.task.hidden=[8]")
    assert scenario.to_tables()["training"]["task"] == {"kind": "mlp", "hidden": [8]}
    assert scenario.with_overrides("training.task=next_word").training.task.kind == "next_word"
    written = Scenario.from_tables(
        {
            "population": {"devices": 1000},
            "rounds": {"count": 1, "report_goal": 64},
            "training": {"task": "next_word"},
        }
    ).to_toml()
    for task in ('task = "next_word"', '[training.task]\nkind = "next_word"'):
        file = tmp_path / "s.toml"
        head = "[population]\ndevices = 1000\n[rounds]\ncount = 1\nreport_goal = 64\n[training]\n"
        file.write_text(head + task)
        assert Scenario.from_toml(file).to_toml().splitlines()[1:] == written.splitlines()[1:]
        changed = Scenario.from_toml(file, ["training.task=mlp", "training.task.hidden=[8]"])
        assert changed.training.task == scenario.training.task
