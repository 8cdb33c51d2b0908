"""The Shakespeare benchmark in small: its split, and a whole study."""

import json
from pathlib import Path

import pytest
from small_roles import written_roles

from fedray.base.errors import InputError
from fedray.runtime.placement import Placement
from fedray.scenarios import shakespeare
from fedray.scenarios.shakespeare import roles_of, scenario_of

SMALL = (
    "training.task.hidden=8",
    "training.evaluate_every=2",
    "training.client.batch_size=2",
)
HERE = Placement(1, "in-process")
SAVING = Placement(1, "in-process", checkpoint_seconds=0.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return written_roles(tmp_path_factory.mktemp("plays"))


def test_the_model_and_the_work_are_those_of_the_paper(data: Path) -> None:
    scenario = scenario_of(data.parent, roles_of(data).trained, 1200, "fedavg")
    task, client = scenario.training.task, scenario.training.client
    assert (task.layers, task.hidden, task.embedding) == (2, 256, 8)
    assert (client.batch_size, client.epochs, client.learning_rate) == (4, 1.0, 1.0)
    assert (scenario.rounds.report_goal, scenario.training.cohort_sample) == (10, 10)
    assert scenario.update_noise_multiplier == 0.0
    assert scenario.privacy.mechanism.kind == "none"


@pytest.mark.slow
def test_a_small_study_trains_ranks_and_continues(data: Path, tmp_path: Path) -> None:
    def study(optimizers: str) -> list:
        return list(
            shakespeare.REPRODUCTION.results(
                data=data,
                rounds=4,
                optimizers=optimizers,
                overrides=SMALL,
                placement=HERE,
                out=tmp_path / "study",
            )
        )

    first = study("fedavg")
    metrics = tmp_path / "study" / "runs" / "fedavg" / "metrics.parquet"
    before = metrics.stat().st_mtime_ns
    *_, last = study("fedavg,fedadam")
    # The first optimiser is read, not trained again.
    assert metrics.stat().st_mtime_ns == before
    document = last.to_json()
    found = {each["optimizer"]: each for each in document["models"]}
    assert found.keys() == {"fedavg", "fedadam"}
    assert found["fedavg"] == first[-1].to_json()["models"][0]
    accuracies = [each["accuracy"] for each in document["models"]]
    assert accuracies == sorted(accuracies, reverse=True)
    assert document["roles"] + document["held_out_roles"] == 40
    # Four rounds do not reach the paper's accuracy, and the exit code says so.
    assert not last.agrees
    assert [line.name for line in last.figures()[0].series][2:] == ["least published"]
    json.dumps(document, allow_nan=False)


@pytest.mark.slow
def test_an_interrupted_training_continues_to_the_same_model(data: Path, tmp_path: Path) -> None:
    def study(folder: str, on_progress=lambda _: None) -> dict:
        given = {"rounds": 4, "optimizers": "fedyogi", "overrides": SMALL, "placement": SAVING}
        (result,) = shakespeare.REPRODUCTION.results(
            data=data, **given, out=tmp_path / folder, on_progress=on_progress
        )
        return result.to_json()

    def interrupt(text: str) -> None:
        if "3 of 4" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study("stopped", interrupt)
    assert not (tmp_path / "stopped" / "runs" / "fedyogi").exists()
    told: list[str] = []
    continued, whole = study("stopped", told.append), study("whole")
    assert not any("1 of 4" in text for text in told)
    for each in (continued, whole):
        each["models"][0].pop("seconds_per_round")
    assert continued == whole


def test_an_unknown_optimiser_and_missing_data_are_refused(data: Path) -> None:
    with pytest.raises(InputError, match="must be among fedavg, fedavgm"):
        next(shakespeare.REPRODUCTION.results(data=data, optimizers="fedsgd"))
    with pytest.raises(InputError, match="name a folder of plays"):
        next(shakespeare.REPRODUCTION.results())
