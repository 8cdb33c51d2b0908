"""TensorBoard's event files have what metrics.parquet has, as TensorBoard's own reader reads them."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.trace.reader import Trace
from fedray.trace.trained import TrainedRun

TRAINED = ("training.enabled=true", "training.cohort_sample=8", "training.evaluate_every=5")


@pytest.fixture(scope="module")
def trace(small, tmp_path_factory) -> Trace:
    here = Placement(1, "in-process")
    return simulate(small(*TRAINED), here, tmp_path_factory.mktemp("events") / "t")


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """By tag: values by step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    events = EventAccumulator(str(folder), size_guidance={"tensors": 0}).Reload()  # 0: all
    return {
        tag: {each.step: float(make_ndarray(each.tensor_proto)) for each in events.Tensors(tag)}
        for tag in events.Tags()["tensors"]
    }


def test_event_files_have_every_round_and_every_evaluation(
    trace: Trace, tmp_path: Path, fedray_command
) -> None:
    folder, out = tmp_path / "events", tmp_path / "m"
    arguments = [
        "--place",
        "backend=in-process",
        "--out",
        str(out),
        "--tensorboard",
        str(folder),
        "--json",
    ]
    code, _, err = fedray_command("train", str(trace.path), *arguments)
    assert code == 0, err
    metrics = TrainedRun.open(out).metrics
    found = scalars(folder)
    names = {"loss", "accuracy", "loss_error", "accuracy_error"}
    assert found.keys() == {
        "train_loss",
        "clipped_share",
        *(f"evaluation_{name}" for name in names),
    }
    for tag, by_step in found.items():
        is_known = ~np.isnan(metrics[tag])
        assert list(by_step) == (metrics["round"][is_known] + 1).tolist()
        np.testing.assert_allclose(list(by_step.values()), metrics[tag][is_known], rtol=1e-6)
    assert list(found["evaluation_loss"]) == [5, 10, 12]


def test_a_run_writes_them_too(small, tmp_path: Path, fedray_command) -> None:
    (tmp_path / "s.toml").write_text(small(*TRAINED, "rounds.count=3").to_toml())
    folder = tmp_path / "events"
    arguments = [
        "--place",
        "backend=in-process",
        "--out",
        str(tmp_path / "t"),
        "--tensorboard",
        str(folder),
    ]
    code, out, err = fedray_command("run", str(tmp_path / "s.toml"), *arguments, "--json")
    assert code == 0, err
    last = json.loads(out)["training"]["last_metrics"]
    found = scalars(folder)
    assert list(found["train_loss"]) == [1, 2, 3]
    assert found["evaluation_loss"] == {3: pytest.approx(last["evaluation_loss"])}


def test_what_cannot_be_written_is_refused_before_anything_runs(
    trace: Trace, tmp_path: Path, monkeypatch, fedray_command
) -> None:
    (tmp_path / "file").write_text("x")
    arguments = ["train", str(trace.path), "--out", str(tmp_path / "m"), "--tensorboard"]
    code, out, err = fedray_command(*arguments, str(tmp_path / "file" / "events"))
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "cannot be written (Not a directory); name another" in err
    monkeypatch.setitem(sys.modules, "tensorboard.summary", None)
    code, out, err = fedray_command(*arguments, str(tmp_path / "events"))
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert "'tensorboard' is not installed" in err
    assert "`pip install 'fedray[tensorboard]'` installs it" in err
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
