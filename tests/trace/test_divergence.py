"""That a training diverged is said of those that did, and of no healthy one."""

from pathlib import Path

import numpy as np
import pytest

from fedray.encoding.tables import FIXED_POINT_BITS
from fedray.trace.trained import TrainedRun, TrainedRunWriter
from fedray.wire.messages import TaskDescription, TrainingMetrics, TrainReport


def trained_with(directory: Path, losses, not_finite: int = 0, **left_out: int) -> TrainedRun:
    """A trained run whose rounds had these losses, of 10 devices each; NaN: of none."""
    rows = [
        TrainingMetrics(
            TrainReport(
                round_index=place,
                devices=10,
                trained=0 if np.isnan(loss) else 10,
                not_finite=not_finite,
                **left_out,
                loss_sum=0 if np.isnan(loss) else round(10 * loss * 2.0**FIXED_POINT_BITS),
            )
        )
        for place, loss in enumerate(losses)
    ]
    document = {
        "trace_digest": "0" * 64,
        "trace": "..",
        "noise_warning": "",
        "start": {},
        "rounds": len(rows),
        "seed": 0,
        "scenario": {"privacy": {"mechanism": {"kind": "tree"}, "clipping": {"kind": "adaptive"}}},
        "encoding": {},
        "notes": [],
    }
    with TrainedRunWriter(directory) as writer:
        description = TaskDescription({"w": (2,)}, (), {})
        path = writer.finish(rows, description, np.zeros(2, np.float32), document)
    return TrainedRun.open(path)


ROUNDS = np.arange(120.0)
DIVERGED = {
    "at once, and stays there": np.where(ROUNDS < 4, 2.3 * (1 + 4 * ROUNDS), 38.0),
    "after it had learned": np.where(ROUNDS < 60, 2.3 / (1 + ROUNDS), 0.2 * (ROUNDS - 59)),
    "of a task whose losses are negative": -4.0 + 0.2 * ROUNDS,
    "in twenty rounds": 2.3 * (1 + np.arange(20)),
}
HEALTHY = {
    "learns": 2.3 / (1 + ROUNDS / 10),
    "learns nothing": np.full(120, 2.3),
    "forgets a little": 2.3 + 0.01 * ROUNDS,
    "starts where another training ended": np.full(120, 1e-4),
    "has negative losses": -1.0 - 0.01 * ROUNDS,
    "rises in too few rounds to tell": 2.3 * (1 + np.arange(19)),
    "has a device with examples in one round only": np.array([np.nan] * 119 + [2.3]),
}


@pytest.mark.parametrize("name", DIVERGED)
def test_a_loss_far_above_the_initial_model_s_is_told_with_remedies(tmp_path, name: str) -> None:
    trained = trained_with(tmp_path / "t", DIVERGED[name])
    first, last = (
        DIVERGED[name][0],
        np.median(DIVERGED[name][-max(10, len(DIVERGED[name]) // 10) :]),
    )
    assert (
        f"the loss on the devices was {first:.4f} in the first round and {last:.4f} in"
        in trained.divergence
    )
    for key in ("client.learning_rate", "server.learning_rate", "noise_multiplier"):
        assert key in trained.divergence
    assert trained.to_json()["notes"] == [trained.divergence]
    # Noise that is too much is named before the rates.
    trained.document["noise_warning"] = "Much noise."
    del trained.divergence
    said = trained.divergence
    assert said.find("Much noise.") < said.find("lower training.client.learning_rate")
    assert trained.to_json()["notes"] == [said]


@pytest.mark.parametrize("name", HEALTHY)
def test_of_a_healthy_training_nothing_is_told(tmp_path: Path, name: str) -> None:
    trained = trained_with(tmp_path / "t", HEALTHY[name])
    assert trained.divergence == ""
    assert trained.to_json()["notes"] == []


@pytest.mark.parametrize(
    ("left_out", "said"),
    [
        ({"without_examples": 10}, "(30 without examples)"),
        (
            {"without_examples": 4, "damaged": 6},
            "(12 without examples, 18 with damaged data)",
        ),
        ({}, "(none took part)"),
    ],
)
def test_a_model_that_no_device_changed_is_named_so(tmp_path: Path, left_out, said: str) -> None:
    trained = trained_with(tmp_path / "t", np.full(3, np.nan), **left_out)
    expected = f"The model was never trained: no device added an update {said}."
    assert trained.divergence == expected
    assert trained.to_json()["notes"] == [expected]
    assert not any("nan" in cell for pair in trained.finals for cell in pair)


def test_rounds_of_few_and_unlike_devices_are_no_divergence(tmp_path: Path) -> None:
    """Losses that do not change but differ from round to round by factors: 200 such runs."""
    rng = np.random.default_rng(5)
    drawn = (rng.lognormal(0.0, 0.4, size=rounds) for rounds in [20, 60, 120, 200] * 50)
    said = [trained_with(tmp_path / str(i), each).divergence for i, each in enumerate(drawn)]
    assert len(said) == 200
    assert not any(said)


@pytest.mark.parametrize(("not_finite", "is_told"), [(0, False), (1, True), (5, True)])
def test_updates_that_are_not_finite_are_counted(tmp_path, not_finite: int, is_told: bool) -> None:
    trained = trained_with(tmp_path / "t", np.full(4, 2.3), not_finite)
    said = f"{4 * not_finite} of {4 * (10 + not_finite)} updates were not finite"
    assert (said in trained.divergence) == is_told
    assert bool(trained.divergence) == is_told


def test_one_update_of_a_thousand_that_is_not_finite_is_not_many(tmp_path: Path) -> None:
    trained = trained_with(tmp_path / "t", np.full(1000, 2.3))
    trained.metrics["not_finite"] = np.arange(1000) == 7
    assert trained.divergence == ""


@pytest.mark.slow
def test_the_command_and_the_page_warn_of_a_real_one(tmp_path: Path, fedray_command) -> None:
    overrides = ("rounds.count=40", "population.devices=5_000", "rounds.report_goal=20")
    options = [part for each in overrides for part in ("--set", each)]
    for name, rate, is_told in (("good", 1, False), ("bad", 300, True)):
        rates = ("--set", f"training.server.learning_rate={rate}", "--set", f"name={name}")
        noise = ("--set", "privacy.noise_multiplier=0.1")
        code, out, _ = fedray_command(
            *("run", "small", *options, *rates, *noise, "--out", str(tmp_path / name)),
            *("--place", "backend=in-process"),
        )
        assert code == 0
        assert ("WARNING   The training diverged: the loss" in out) == is_told
        page = (tmp_path / name / "report.html").read_text()
        assert ("The training diverged" in page) == is_told
    _, out, _ = fedray_command("report", str(tmp_path / "bad" / "training"))
    assert "The training diverged" in Path(out.strip()).read_text()
