"""Rounds of different size with equal noise per mean: paired trainings, and changes by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
from small_study import small

from fedray.scenario import Scenario
from fedray.scenarios.learning import final_value
from fedray.trace.trained import TrainedRun

pytestmark = pytest.mark.slow  # models train for seconds


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "s.toml"
    file.write_text(small().to_toml())
    return file


def test_sizes_share_noise_per_mean_and_changes_are_those_of_the_runs(
    file: Path, tmp_path: Path, fedray_command
) -> None:
    given = ["reproduce", "signal-to-noise", "--place", "backend=in-process", "--seeds", "2"]
    given += ["--scenario", str(file), "--cohorts", "4,12", "--out", str(tmp_path / "out")]
    code, out, _ = fedray_command(*given, "--json")
    assert code == 0
    (study,) = json.loads(out)["studies"]
    folder = tmp_path / "out" / "quickstart"
    assert study == json.loads((folder / "results.json").read_text())
    runs = {
        (size, seed): TrainedRun.open(folder / "runs" / f"blt-{size}-{seed}")
        for size in (4, 12)
        for seed in (1, 2)
    }
    for (size, seed), run in runs.items():
        scenario = Scenario.from_tables(run.document["scenario"])
        assert (scenario.training.cohort_sample, scenario.training.seed) == (size, seed)
        # All have the noise of the full goal; a sample gets its share of it.
        assert scenario.privacy.noise_multiplier / 60 == study["noise_per_mean"]
    accuracy = [each for each in study["cohorts"] if each["name"] == "accuracy"]
    assert [each["devices"] for each in accuracy] == [4, 12]
    changes = [
        final_value(runs[12, seed], "accuracy") - final_value(runs[4, seed], "accuracy")
        for seed in (1, 2)
    ]
    assert accuracy[1]["change"]["mean"] == pytest.approx(np.mean(changes))
    assert accuracy[0]["change"]["mean"] == 0.0
    # What is there is read: text, page and figures are of the same runs.
    code, out, _ = fedray_command(*given, "--figures", str(tmp_path / "figures"))
    assert code == 0
    assert f"{accuracy[1]['change']['mean']:+.4f}" in out
    assert "accuracy" in (folder / "report.html").read_text()
    names = {each.name for each in (tmp_path / "figures" / "quickstart").iterdir()}
    assert {"loss-devices.svg", "accuracy-devices.svg"} <= names


@pytest.mark.parametrize("cohorts", ["x", "12,4", "0,4", "4,61", "4,4", ""])
def test_impossible_sizes_are_refused(file: Path, fedray_command, cohorts: str) -> None:
    code, _, err = fedray_command(
        *("reproduce", "signal-to-noise", "--place", "backend=in-process"),
        *("--scenario", str(file), "--cohorts", cohorts),
    )
    assert code == 2
    assert f"--cohorts={cohorts!r} must be ascending numbers from 1 to" in err
