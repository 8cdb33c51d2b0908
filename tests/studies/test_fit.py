"""Fitting reach and check-in rate: small versions."""

import json
from pathlib import Path

import pytest

from fedray.audit.participation import read_patterns
from fedray.base.errors import FitFailed
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.studies.fit import Fit, FittedRun, fit_min_sep

SUPPLY_LIMITED = (
    "population.devices=60000",
    "rounds.count=140",
    "rounds.report_goal=400",
    "participation.timer_hours=24.0",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("population.reach", 0.6),
        pytest.param("rounds.max_checkins_per_hour", 1.5, marks=pytest.mark.slow),
    ],
)
def test_the_value_that_made_a_min_sep_is_found_again(
    small, tmp_path: Path, key: str, value: float
) -> None:
    """Within the tolerance of min-sep; the value itself within 10 %, since min-sep is coarse (a whole number near 50)."""
    made = simulate(
        small(*SUPPLY_LIMITED, f"{key}={value}"), Placement(1, "in-process"), tmp_path / "t"
    )
    observed = read_patterns(made).min_sep
    fit = fit_min_sep(small(*SUPPLY_LIMITED), observed, key, tolerance=0.02)
    assert abs(fit.relative_error) <= 0.02
    if key == "population.reach":
        assert fit.best.value == pytest.approx(value, rel=0.10)
    assert fit.best in fit.runs


@pytest.mark.slow
def test_what_no_value_gives_is_said(small) -> None:
    with pytest.raises(
        FitFailed, match="min_sep=135 is out of reach: even at population.reach=1 min-sep is"
    ):
        fit_min_sep(small(*SUPPLY_LIMITED), 135)
    with pytest.raises(FitFailed, match="the run starves"):
        fit_min_sep(
            small("participation.timer_hours=9000.0", "rounds.count=400", "rounds.max_days=3.0"), 50
        )


@pytest.mark.slow
def test_fit_prints_what_it_found(fedray_command, small, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(small(*SUPPLY_LIMITED).to_toml())
    arguments = [
        "fit-min-sep",
        str(tmp_path / "s.toml"),
        "--min-sep",
        "60",
        "--scale",
        "0.5",
    ]
    code, out, _ = fedray_command(*arguments)
    assert code == 0
    assert "population.reach=" in out
    code, out, _ = fedray_command(*arguments, "--json")
    document = json.loads(out)
    assert abs(document["relative_error"]) <= 0.05
    assert document["best"] in document["runs"]


def test_without_a_scenario_the_observed_run_is_set_key_by_key(fedray_command, monkeypatch) -> None:
    asked = []

    def fit_min_sep(scenario, min_sep, *others, **options):
        asked.append((scenario, min_sep))
        raise FitFailed("enough")

    monkeypatch.setattr("fedray.studies.fit.fit_min_sep", fit_min_sep)
    observed = ("population.devices=60000", "participation.timer_hours=24", "rounds.count=140")
    sets = [f"--set={each}" for each in observed]
    assert fedray_command("fit-min-sep", "--min-sep", "61", *sets)[0] == 1
    ((scenario, min_sep),) = asked
    assert min_sep == 61
    assert (scenario.population.devices, scenario.rounds.count) == (60_000, 140)
    assert (scenario.participation.timer_hours, scenario.rounds.report_goal) == (24.0, 6500)
    for left_out in observed:
        some = [f"--set={each}" for each in observed if each != left_out]
        code, _, stderr = fedray_command("fit-min-sep", "--min-sep", "61", *some)
        assert (code, stderr.count("\n")) == (2, 1)
        assert f"{left_out.partition('=')[0]} must be set, since no scenario is named" in stderr
    code, _, stderr = fedray_command("fit-min-sep", "--min-sep", "61", *sets, "--set", "seed=x")
    assert (code, stderr.count("\n")) == (2, 1)
    assert "--set 'seed=x'" in stderr


def test_a_run_in_which_nobody_comes_twice_has_no_min_sep() -> None:
    """It is too large for any target, and is shown as none, not as the number of rounds."""
    once, starved, twice = FittedRun(1.0, 140, 1), FittedRun(0.1, None, None), FittedRun(0.5, 60, 2)
    assert [run.min_sep_text for run in (once, starved, twice)] == [
        "none (k = 1)",
        "starved",
        "60",
    ]
    assert [run.to_json()["min_sep"] for run in (once, starved, twice)] == [None, None, 60]


def test_a_fit_shows_what_starved_and_where_nobody_came_twice() -> None:
    runs = (FittedRun(0.1, None, None), FittedRun(1.0, 140, 1), FittedRun(0.5, 60, 2))
    (table,) = Fit("population.reach", 60, runs[-1], runs).tables()
    assert table.columns == ("population.reach", "min-sep (gap)", "max part.")
    assert table.rows == (("0.1", "starved", "-"), ("1", "none (k = 1)", "1"), ("0.5", "60", "2"))
