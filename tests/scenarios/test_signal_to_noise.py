"""Rounds of different size: equal noise on the mean, changes of paired runs, and its verdict."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_study import refused, studied

import fedray
from fedray.scenarios import signal_to_noise
from fedray.scenarios.signal_to_noise import RoundSizes, SampleSize
from fedray.studies.paired import MeanInterval


def results(folder: Path, **given: Any) -> Any:
    return studied(signal_to_noise.REPRODUCTION, folder, **{"sizes": "4,12", **given})


@pytest.mark.slow
def test_sizes_share_the_noise_on_the_mean_and_changes_are_those_of_the_runs(
    tmp_path: Path, monkeypatch
) -> None:
    result = results(tmp_path)
    (study,) = result.document["studies"]
    runs = {
        (size, seed): fedray.TrainedRun.open(tmp_path / "language" / "runs" / f"{size}-{seed}")
        for size in (4, 12)
        for seed in (1, 2)
    }
    for (size, seed), run in runs.items():
        tables = run.document["scenario"]
        assert (tables["training"]["cohort_sample"], tables["training"]["seed"]) == (size, seed)
        # All have the noise of the whole goal, of which a sample gets its share.
        assert tables["privacy"]["noise_multiplier"] / 60 == study["noise_per_mean"]
        assert tables["privacy"]["mechanism"]["kind"] == "blt"
    values = {
        size: [runs[size, seed].last_evaluation()["accuracy"].value for seed in (1, 2)]
        for size in (4, 12)
    }
    assert [each["devices"] for each in study["sizes"]] == [4, 12]
    change = study["sizes"][1]["change"]["mean"]
    assert change == pytest.approx(np.subtract(values[12], values[4]).mean())
    assert study["sizes"][0]["change"]["mean"] == 0.0
    assert f"{100 * change:+.1f} points" in result.verdict

    monkeypatch.setattr("fedray.runs.learning._train_one", refused)
    assert results(tmp_path).document == result.document


@pytest.mark.parametrize("sizes", ["x", "12,4", "0,4", "4,61", "4,4", "4", ""])
def test_impossible_sizes_are_refused(tmp_path: Path, sizes: str) -> None:
    with pytest.raises(fedray.InputError, match="must be ascending numbers from 1 to"):
        results(tmp_path / "o", sizes=sizes)
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("low", "high", "agrees"),
    [(0.002, 0.01, True), (-0.01, 0.01, True), (-0.02, -0.001, False), (0.01, 0.04, False)],
)
def test_a_large_round_is_similar_or_slightly_better(low: float, high: float, agrees: bool) -> None:
    change = MeanInterval((low + high) / 2, 3, low, high)
    nothing: Any = None
    sizes = (SampleSize(50, change, change), SampleSize(650, change, change))
    assert RoundSizes("language", 0.01, sizes, nothing).agrees == agrees
