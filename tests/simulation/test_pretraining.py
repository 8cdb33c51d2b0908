"""Pretraining on public data: what it learns, whom it learns from, its file, and what is refused."""

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import safetensors
import torch
from document_schema import found_keys

from fedray.base.errors import InputError, RunFailed, ScenarioError
from fedray.clients.data.classes import Classes
from fedray.clients.data.factory import source_of
from fedray.clients.data.source import FIRST_HELD_OUT, DamagedExamples
from fedray.clients.pretraining import Pretrainer
from fedray.clients.trainer import LocalTrainer
from fedray.runs.pretraining import pretrain
from fedray.scenario import Scenario
from fedray.scenario.data import ClassesData, LanguageData, PointsData, SourceCodeData
from fedray.scenario.pretraining import Pretraining

CLASSES = ("training.enabled=true", "data.kind=classes", "training.task.kind=logistic")
POINTS = ("training.enabled=true", "data.kind=points", "training.task.kind=quadratic")
TABLE = Pretraining(data=ClassesData(), clients=50, steps=60, learning_rate=0.5, evaluate_every=20)
TOML = (
    "clients = 50\nsteps = 60\nlearning_rate = 0.5\nevaluate_every = 20\n[data]\nkind = 'classes'\n"
)


def test_the_loss_falls_and_a_training_starts_from_the_file(small, tmp_path: Path) -> None:
    found = pretrain(small(*CLASSES), TABLE, tmp_path / "m.safetensors")
    found_keys(json.loads(json.dumps(found.to_json())), type(found))
    assert [step.number for step in found.steps] == [0, 20, 40, 60]
    losses = [step.evaluation.metrics["loss"].value for step in found.steps]
    assert losses[-1] < 0.5 * losses[0]
    assert found.steps[-1].train_loss < found.steps[1].train_loss
    fine = small(*CLASSES, f"training.initial.file={found.path}")
    assert fine.training.initial is not None
    assert fine.training.initial.sha256 == found.sha256
    trainer = LocalTrainer(fine.for_trainers())
    evaluation = trainer.evaluate(trainer.initial_parameters())
    assert evaluation.metrics["loss"].value == pytest.approx(losses[-1], rel=1e-6)
    with safetensors.safe_open(found.path, "numpy") as file:
        assert json.loads(file.metadata()["fedray.runs.pretraining"])["steps"] == 60
    again = pretrain(small(*CLASSES), TABLE, tmp_path / "again.safetensors")
    assert again.sha256 == found.sha256
    onwards = pretrain(fine, TABLE, tmp_path / "onwards.safetensors")
    assert onwards.steps[0].evaluation == found.steps[-1].evaluation


def test_descent_ends_at_the_mean_of_all_public_examples(small, tmp_path: Path) -> None:
    """The mean is that of examples and not of clients, also of clients that no population reaches."""
    scenario = small(*POINTS)
    pretrainer = Pretrainer(
        scenario,
        Pretraining(data=PointsData(), clients=7, steps=200, batch_size=1, learning_rate=1.0),
    )
    size = pretrainer.examples
    table = Pretraining(
        data=PointsData(), clients=7, steps=40, batch_size=size, learning_rate=0.5, momentum=0.1
    )
    pretrainer = Pretrainer(scenario, table)
    *_, last = pretrainer.steps()
    source, ids = source_of(scenario), FIRST_HELD_OUT - np.arange(1, 8).astype(np.uint64)
    assert ids.max() >= scenario.device_ids
    counts = source.examples_on(ids)
    assert counts.sum() == size
    assert np.unique(counts).size > 1
    own = [
        source.examples(ids[row : row + 1], np.arange(count)[None, :])["inputs"][0]
        for row, count in enumerate(counts)
    ]
    np.testing.assert_allclose(pretrainer.parameters(), np.concatenate(own).mean(0), atol=1e-5)
    assert last.number == 40


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_every_example_is_used_once_in_a_pass(small, batch_size: int, monkeypatch) -> None:
    table = Pretraining(data=ClassesData(), clients=9, steps=1, batch_size=batch_size)
    pretrainer = Pretrainer(small(*CLASSES), table)
    monkeypatch.setattr(
        pretrainer, "_read", lambda ids, positions: list(zip(ids, positions, strict=True))
    )
    batches, used = pretrainer._batches(), []
    while len(used) < 2 * pretrainer.examples:
        used += next(batches)
    passes = [used[start : start + pretrainer.examples] for start in (0, pretrainer.examples)]
    assert passes[0] != passes[1]
    for each in passes:
        assert len(set(each)) == pretrainer.examples
    counts = source_of(small(*CLASSES)).examples_on(np.array(sorted({id for id, _ in used})))
    assert counts.sum() == pretrainer.examples


@pytest.mark.parametrize("own", [{"momentum": 0.9}, {"optimizer": "adam"}])
def test_optimisers_keep_their_state_over_evaluations(small, own, tmp_path: Path) -> None:
    tables = [
        Pretraining(data=ClassesData(), clients=20, steps=12, evaluate_every=every, **own)
        for every in (1, 12)
    ]
    made = [Pretrainer(small(*CLASSES), table) for table in tables]
    for each in made:
        list(each.steps())
    assert (made[0].parameters() == made[1].parameters()).all()


@pytest.mark.parametrize(
    ("edit", "arguments", "says"),
    [
        ("steps = 0\n[data]\nkind = 'classes'\n", [], "steps = 0: input should be greater"),
        ("steps = 5\n", [], "data"),
        ("steps = 5\nstep = 3\n[data]\nkind = 'classes'\n", [], "step"),
        ("steps = 5\n[data]\nkind = 'points'\n", [], "give both the same columns, shapes"),
        ("steps = 5\n[data]\nkind = 'classes'\nclasses = 4\n", [], "numbers of classes or words"),
        ("steps = 5\noptimizer='adam'\nmomentum=0.5\n[data]\nkind='classes'\n", [], "has its own"),
        ("steps = [", [], "is not valid TOML"),
        (TOML, ["--set", "training.task=chess"], "is not one of"),
        (TOML, ["--out", "there.toml"], "--out='there.toml' exists already"),
        (TOML, ["--out", "no/where.safetensors"], "is not in an existing directory"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_file(
    small, edit: str, arguments, says: str, tmp_path: Path, monkeypatch, fedray_command
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(small(*CLASSES).to_toml())
    (tmp_path / "public.toml").write_text(edit)
    (tmp_path / "there.toml").write_text("kept")
    given = arguments if "--out" in arguments else [*arguments, "--out", "m.safetensors"]
    code, out, err = fedray_command("pretrain", "s.toml", "public.toml", *given)
    assert (code, out) == (2, ""), err
    assert says in err
    assert len(err.splitlines()) == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "public.toml",
        "s.toml",
        "there.toml",
    ]
    assert (tmp_path / "there.toml").read_text() == "kept"


def test_words_with_other_numbers_and_the_devices_own_data_are_refused(small, tmp_path) -> None:
    """Counted vocabularies differ where the data does, although both have as many words."""
    text = {"length": 6, "held_out_share": 0.3}
    lstm = "training.task={kind='keyboard_lstm', hidden=4, embedding=4}"
    words = tmp_path / "words.txt"
    words.write_text("def\nself\nreturn\n")
    private = SourceCodeData(vocabulary_file=str(words), **text)
    scenario = small("training.enabled=true", lstm).model_copy(update={"data": private})
    public = SourceCodeData(vocabulary=3, **text)
    with pytest.raises(ScenarioError, match="give both tables the same vocabulary_file"):
        pretrain(scenario, Pretraining(data=public, steps=1), tmp_path / "m")
    with pytest.raises(InputError, match="data is the scenario's own"):
        pretrain(scenario, Pretraining(data=private, steps=1), tmp_path / "m")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["words.txt"]


def test_what_fails_under_way_leaves_no_file(small, tmp_path: Path, monkeypatch) -> None:
    wild = TABLE.model_copy(update={"learning_rate": 1e30, "steps": 5})
    with pytest.raises(RunFailed, match=r"not finite after 5 steps with learning_rate=1e\+30"):
        pretrain(small(*POINTS), wild.model_copy(update={"data": PointsData()}), tmp_path / "m")

    def damaged(self, ids, positions):
        raise DamagedExamples({int(ids[0]): "the record is cut"})

    with monkeypatch.context() as patched:
        patched.setattr(Classes, "examples", damaged)
        with pytest.raises(InputError, match=r"cannot be read \(device \d+: the record is cut\)"):
            pretrain(small(*CLASSES), TABLE, tmp_path / "m")

    def stop(text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain(small(*CLASSES), TABLE, tmp_path / "m", stop)
    assert list(tmp_path.iterdir()) == []


def test_the_example_of_the_documentation_runs(tmp_path: Path, monkeypatch, fedray_command) -> None:
    """With fewer steps; the training that it shows takes the file."""
    root = Path(__file__).parents[2]
    written = (root / "docs" / "training.md").read_text()
    found = re.search(r'```toml title="public.toml"\n(.*?)```', written, flags=re.DOTALL)
    assert found is not None
    shown = found[1]
    assert isinstance(Pretraining.model_validate(tomllib.loads(shown)).data, LanguageData)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "public.toml").write_text(re.sub(r"steps = \d+", "steps = 8", shown))
    command = next(line for line in written.splitlines() if line.startswith("fedray pretrain scen"))
    arguments = command.replace("scenarios/", f"{root}/scenarios/").split()[1:]
    code, out, err = fedray_command(*arguments, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert [step["step"] for step in found["steps"]] == [0, 8]
    name = re.search(r"--set training.initial.file=(\S+)", written)
    assert name is not None
    overrides = [f"training.initial.file={name[1]}"]
    quickstart = Scenario.from_toml(root / "scenarios" / "quickstart.toml")
    scenario = quickstart.with_overrides(*overrides)
    assert scenario.training.initial is not None
    assert scenario.training.initial.sha256 == found["sha256"]
    assert np.isfinite(LocalTrainer(scenario).initial_parameters()).all()
    (tmp_path / "public.safetensors").unlink()
    code, out, err = fedray_command(*arguments)
    assert code == 0, err
    assert "Pretrained on 70,285 examples" in out
    assert torch.get_num_threads() == 1
