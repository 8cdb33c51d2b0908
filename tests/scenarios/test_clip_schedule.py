"""Clip norms by phase: one first phase, equal privacy, changes of paired runs, and its verdicts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_study import refused, studied

import fedray
from fedray.scenarios import clip_schedule
from fedray.scenarios.clip_schedule import ClipNorm, ClipPhases
from fedray.scenarios.learning import RECIPES
from fedray.studies.paired import MeanInterval, mean_interval


def results(folder: Path, **given: Any) -> Any:
    return studied(clip_schedule.REPRODUCTION, folder, **{"norms": "2,0.5", **given})


@pytest.mark.slow
def test_schedules_share_the_first_phase_and_the_privacy_of_the_baseline(
    tmp_path: Path, monkeypatch
) -> None:
    result = results(tmp_path)
    (study,) = result.document["studies"]
    assert study["first_rounds"] == 6
    folder = tmp_path / "language"
    runs = {
        (kind, seed): fedray.TrainedRun.open(folder / "runs" / f"{kind}-{seed}")
        for kind in ("2-2", "0.5-0.5", "2-0.5")
        for seed in (1, 2)
    }
    accuracy = {key: run.metrics["evaluation_accuracy"] for key, run in runs.items()}
    loss = {key: run.metrics["evaluation_loss"] for key, run in runs.items()}
    for seed in (1, 2):
        same = loss["2-2", seed] == loss["2-0.5", seed]
        assert same[:6].all()
        assert not same[6:].any()
        assert loss["2-2", seed][0] != loss["0.5-0.5", seed][0]
    trace = fedray.Trace.open(folder / "trace")
    for kind in ("2-2", "2-0.5"):
        tables = runs[kind, 1].document["scenario"]
        scenario = fedray.Scenario.from_tables(tables, directory=runs[kind, 1].path)
        (audited,) = fedray.audit_trace(trace, scenario=scenario).mechanisms
        assert study["rho"] == [audited.enforced.rho]
    # z 2 at 60 reports.
    assert [each["noise_per_mean"] for each in study["norms"]] == pytest.approx([4 / 60, 1 / 60])
    first = [accuracy["0.5-0.5", seed][5] - accuracy["2-2", seed][5] for seed in (1, 2)]
    later = [accuracy["2-0.5", seed][-1] - accuracy["2-2", seed][-1] for seed in (1, 2)]
    small = study["norms"][1]
    assert small["first_change"]["mean"] == pytest.approx(np.mean(first))
    assert small["later_change"]["mean"] == pytest.approx(np.mean(later))
    assert small["fixed"]["mean"] == pytest.approx(
        np.mean([accuracy["0.5-0.5", seed][-1] for seed in (1, 2)])
    )
    monkeypatch.setattr("fedray.runs.learning._train_one", refused)
    assert results(tmp_path).document == result.document


@pytest.mark.parametrize("norms", ["x", "1,2", "1,1", "1", "", "1,0", "1,-1", "nan,1"])
def test_impossible_norms_are_refused(tmp_path: Path, norms: str) -> None:
    with pytest.raises(fedray.InputError, match="must be two or more descending numbers above 0"):
        results(tmp_path / "o", norms=norms)
    assert not (tmp_path / "o").exists()


def test_rounds_must_have_an_evaluation_in_each_phase(tmp_path: Path) -> None:
    scenario = fedray.Scenario.from_toml(RECIPES / "language.toml")
    for count, first in ((20, 10), (50, 20), (200, 100)):
        assert (
            clip_schedule._first_rounds(scenario.with_overrides(f"rounds.count={count}")) == first
        )
    with pytest.raises(fedray.InputError, match="rounds.count=19 must be at least twice the 10"):
        results(tmp_path / "o", overrides=["rounds.count=19"])
    assert not (tmp_path / "o").exists()


def phases(first: list[float], gain: float, rho: tuple[float, ...] = (0.1,)) -> ClipPhases:
    """A study whose norms have these accuracies at first, and this gain later, plus or minus 0.01."""
    nothing: Any = None
    at = [mean_interval([each - 0.001, each, each + 0.001]) for each in first]
    rows = (
        ClipNorm(2.0**-place, 0.1, each, each, each, _about(mean - first[0]), _about(0.0))
        for place, (each, mean) in enumerate(zip(at, first, strict=True))
    )
    return ClipPhases("language", rho, 6, tuple(rows), _about(gain), nothing)


def _about(mean: float) -> MeanInterval:
    return MeanInterval(mean, 3, mean - 0.01, mean + 0.01)


@pytest.mark.parametrize(
    ("study", "verdicts"),
    [
        (phases([0.3, 0.4, 0.35], 0.02), ["confirmed", "confirmed", "confirmed"]),
        (phases([0.3, 0.305], 0.0), ["confirmed", "not decided", "not decided"]),
        (phases([0.3, 0.2], -0.02), ["confirmed", "reversed", "reversed"]),
        (phases([0.3, 0.4], 0.02, (0.1, 0.2)), ["reversed", "confirmed", "confirmed"]),
    ],
)
def test_intervals_off_zero_decide(study: ClipPhases, verdicts: list[str]) -> None:
    assert study.verdicts == verdicts


def test_the_best_norms_are_those_of_the_largest_accuracies() -> None:
    study = phases([0.3, 0.4, 0.35], 0.02)
    assert study.best_first == 0.5
    assert study.best_later == 0.5
