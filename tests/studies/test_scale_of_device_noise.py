"""A scale that is too coarse or too fine for the noise of devices is refused before a run and before
a training, and named by calibrations; plans, stress tests and recorded runs are not refused."""

from pathlib import Path

import pytest

from fedray.audit.calibration import calibrate_trace
from fedray.base.errors import InputError, ScenarioError
from fedray.runs import learning
from fedray.runs.calibrated import calibrated
from fedray.runs.pipeline import run_scenario
from fedray.runs.preflight import preflight
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.studies.stress.run import stress

HERE = Placement(1, "in-process")
IDENTITY = "privacy.mechanism={kind='identity'}"
RULES = ("participation.round_separation=2", "participation.max_participations=3")


def trust(scale: int, kind: str = "devices", parameters: int = 6) -> str:
    return f"privacy.trust={{kind='{kind}', parameters={parameters}, scale={scale}}}"


@pytest.fixture
def small() -> Scenario:
    tables = {
        "name": "small",
        "population": {"devices": 600},
        "rounds": {"count": 8, "report_goal": 25, "max_days": 90.0},
        "participation": {"timer_hours": 0.0},
        "training": {"enabled": False},
    }
    return Scenario.from_tables(tables).with_overrides(IDENTITY, *RULES)


@pytest.mark.parametrize("trained", ["true", "false"])
@pytest.mark.parametrize(
    ("z", "scale", "said"),
    [
        # The least scale: D^2 = S^2 + S + 3, padded to 8 coordinates, and 4 z^2 D^2 / 25 = 1.
        ("0.1", 22, "is too coarse: one of 25 devices would add noise of variance 0.204 steps"),
        ("1e5", 4096, "is too fine: the noise of a device deviates by 8.19e+07 steps"),
    ],
)
def test_a_run_is_refused_before_it_starts(
    small: Scenario, tmp_path: Path, trained: str, z: str, scale: int, said: str
) -> None:
    sample = ("training.cohort_sample=25", f"training.enabled={trained}")
    scenario = small.with_overrides(trust(scale), f"privacy.noise_multiplier={z}", *sample)
    with pytest.raises(ScenarioError, match=r"privacy\.trust\.scale=") as caught:
        run_scenario(scenario, HERE, tmp_path / "t")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "t").exists()
    # The remedy works, and nothing less was refused.
    (least,) = (int(word.replace(",", "")) for word in str(caught.value).split()[-1:])
    preflight(scenario.with_overrides(f"privacy.trust.scale={least}"))


def test_a_training_is_refused_before_its_data_is_read(
    small: Scenario, tmp_path: Path, monkeypatch
) -> None:
    trace = simulate(small, HERE, tmp_path / "t")
    scenario = small.with_overrides(
        trust(22), "privacy.noise_multiplier=0.1", "training.cohort_sample=25"
    )

    def read(*_: object) -> None:
        raise AssertionError("data was read")

    monkeypatch.setattr(learning, "build_index", read)
    with pytest.raises(ScenarioError, match=r"privacy\.trust\.scale=22 is too coarse"):
        learning.train(trace, scenario, HERE, tmp_path / "m")
    with pytest.raises(AssertionError):
        learning.train(trace, scenario.with_overrides(trust(40)), HERE, tmp_path / "m")


def test_stress_tests_replace_the_noise_that_a_run_would_be_refused_for(
    small: Scenario, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    scenario = small.with_overrides(trust(22), "privacy.noise_multiplier=0.1")
    with pytest.raises(ScenarioError):
        preflight(scenario)
    found = stress(
        scenario, estimated=[2], mechanisms=["identity"], seeds=1, epsilon=5.0, placement=HERE
    )
    (row,) = (each for each in found.rows if each.estimated_min_sep == 2)
    assert row.noise_multiplier is not None
    preflight(scenario.with_overrides(f"privacy.noise_multiplier={row.noise_multiplier!r}"))


def test_targets_and_calibrations_say_that_the_scale_decides(
    small: Scenario, tmp_path: Path
) -> None:
    """With 25 devices and D^2 = 4 nothing is proven below z = 1.25, which is more noise than the
    target needs."""
    coarse = small.with_overrides(trust(1, parameters=2), "privacy.noise_multiplier=5.0")
    told: list[str] = []
    needed = coarse.with_overrides("privacy.target_epsilon=900.0")
    calibrated(needed, None, told.append)
    assert any("The scale decides the noise multiplier" in each for each in told), told
    found = calibrate_trace(simulate(coarse, HERE, tmp_path / "t"), epsilon=900.0)
    assert any("The scale decides the noise multiplier" in each for each in found.notes)
    # Less noise than the target's own is possible at a finer scale, and nothing is said.
    told.clear()
    calibrated(small.with_overrides(trust(4096), "privacy.target_epsilon=8.0"), None, told.append)
    assert len(told) == 1


def test_a_target_whose_noise_the_scale_cannot_hold_is_refused(small: Scenario) -> None:
    fine = small.with_overrides(trust(1 << 30), "privacy.target_epsilon=8.0")
    told: list[str] = []
    with pytest.raises(InputError, match=r"privacy\.trust\.scale=1073741824 is too fine"):
        preflight(fine, told.append)
    assert any(each.startswith("No run can have that noise") for each in told)
