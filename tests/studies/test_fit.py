"""Fits of reach and pace: parameters that made runs are found, and open ends are called so."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from lawful_runs import lawful
from scipy import stats

from fedray.base.errors import InputError
from fedray.report.subject import Subject
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.studies import reach_and_pace
from fedray.studies.fit import Fit, ObservedRun, fit_min_sep, read_runs
from fedray.studies.reach_and_pace import TASK_SD
from fedray.studies.simulated import simulated

HERE = Placement(1, "in-process")
SETTINGS = ((600, 2000, 48.0), (400, 4000, 48.0), (300, 2000, 24.0), (1500, 1000, 96.0))
"""Rounds, goal and timer of each run."""


def population(reach: float = 1.0, pace: float = 0.01) -> Scenario:
    return Scenario.from_tables(
        {
            "population": {"devices": 800_000, "reach": reach},
            "rounds": {"count": 600, "report_goal": 2000, "min_minutes_between": pace},
            "participation": {"timer_hours": 48.0},
            "training": {"enabled": False},
        }
    )


def made(
    reach: float, pace: float, settings: Sequence[tuple[int, int, float]], draws=None
) -> list[ObservedRun]:
    """Runs by the made-up law, with scatter if there is a generator."""
    found = []
    for rounds, goal, timer_hours in settings:
        scenario = population(reach, pace).with_overrides(
            f"rounds.count={rounds}",
            f"rounds.report_goal={goal}",
            f"participation.timer_hours={timer_hours}",
        )
        truth = lawful(scenario)
        gap, length = (0.0, 0.0) if draws is None else draws.normal(0.0, TASK_SD, 2)
        min_sep = max(1, round((truth.min_sep or 2 * rounds) * math.exp(gap)))
        is_censored = min_sep >= rounds
        found.append(
            ObservedRun(
                rounds=rounds,
                goal=goal,
                timer_hours=timer_hours,
                min_sep=None if is_censored else min_sep,
                max_participations=1 if is_censored else None,
                days=truth.days * math.exp(length),
            )
        )
    return found


def fitted(runs: Sequence[ObservedRun], vary: str = "both", **scenario: float) -> Fit:
    return fit_min_sep(population(**scenario), runs, vary, placement=HERE)


@pytest.fixture
def by_law(monkeypatch) -> None:
    # Thousands of outcomes by a formula, each of which would be flushed to the disk.
    monkeypatch.setattr("fedray.studies.simulated.keep", lambda *_: None)
    monkeypatch.setattr(reach_and_pace, "simulated_limits", lawful)


def test_parameters_that_made_runs_are_found_again(by_law) -> None:
    """Supply decides runs of a small reach, and the pace those of a long timer; the reach of a slow
    server is open, since more devices would change nothing."""
    reach, pace = fitted(made(0.5, 0.01, SETTINGS)).parameters
    assert reach.low is not None
    assert reach.high is not None
    assert reach.low <= 0.5 <= reach.high
    assert (reach.identified, pace.identified, pace.low) == ("both ends", "one end", None)
    reach, pace = fitted(made(1.0, 60.0, SETTINGS)).parameters
    assert (reach.high, pace.identified) == (None, "both ends")
    assert pace.low is not None
    assert pace.high is not None
    assert pace.low <= 60.0 <= pace.high


def test_intervals_contain_what_made_the_runs_at_their_level(by_law) -> None:
    """40 sets: 90 per cent, or more where an end of the range helps; fewer than the quantile would
    happen once in a thousand."""
    draws = np.random.default_rng(50)
    covered = 0
    for _ in range(40):
        reach, pace = draws.uniform(0.25, 1.0), math.exp(draws.uniform(math.log(3), math.log(90)))
        found = fitted(made(reach, pace, SETTINGS, draws)).parameters
        for value, each in zip((reach, pace), found, strict=True):
            covered += (each.low or 0.0) <= value <= (each.high or math.inf)
    assert covered >= stats.binom.ppf(0.001, 80, 0.9)


def test_a_single_run_identifies_only_what_the_scenario_leaves_open(by_law) -> None:
    """A min-sep is due to a small reach or to a slow pace; if one is known, the other has an
    interval."""
    (run,) = made(0.5, 0.01, SETTINGS[:1])
    run = ObservedRun(**{**run.model_dump(), "days": None})
    assert {each.identified for each in fitted([run]).parameters} == {"one end"}
    (reach,) = fitted([run], "reach").parameters
    assert reach.identified == "both ends"
    assert reach.best == pytest.approx(0.5, rel=0.05)
    (slow,) = made(1.0, 60.0, SETTINGS[:1])
    (pace,) = fitted([slow], "pace").parameters
    assert pace.best == pytest.approx(60.0, rel=0.1)


def test_censored_runs_bound_the_reach_from_below(by_law) -> None:
    """No device came back in 200 rounds: no reach above the bound is refuted."""
    censored = ObservedRun(rounds=200, goal=2000, timer_hours=48.0, max_participations=1)
    (reach,) = fitted([censored], "reach").parameters
    assert reach.high is None
    assert reach.low is not None
    # Of the made-up law 0.6 of the reached devices take part in turn; the scatter is 10 %.
    assert 0.7 < reach.low / (200 * 2000 / (0.6 * 800_000)) < 1.0


def test_runs_that_contradict_each_other_are_called_so(by_law) -> None:
    one, two = made(0.3, 0.01, SETTINGS[:1]), made(1.0, 0.01, SETTINGS[1:2])
    text = "\n".join(each.text(100) for each in fitted([*one, *two]).tables())
    assert "2 of 2 runs are more than 3 standard deviations off" in text
    fine = "\n".join(each.text(100) for each in fitted(one).tables())
    assert "deviations off" not in fine


def test_figures_of_a_fit_are_of_its_population_and_each_run_has_its_settings(by_law) -> None:
    runs, parameters = fitted(made(0.5, 0.01, SETTINGS[:2])).tables()
    assert parameters.subject == Subject(
        "scenario (800,000 devices)", runs="2 observed runs", estimand="estimates"
    )
    assert "simulations at 10 % of the size" in parameters.notes[0]
    assert not runs.mixed
    assert replace(runs, columns=("n", *runs.columns[1:])).mixed == ("condition",)
    for cells, subject in zip(runs.rows, runs.row_subjects, strict=True):
        rounds, goal, timer, *_ = cells
        assert subject.condition == f"if rounds={rounds} and goal={goal} and timer={timer}"


@pytest.mark.slow
def test_the_reach_of_simulated_runs_is_found_again(fedray_command, tmp_path: Path) -> None:
    """Through the command and its file; the reach within its interval."""
    scenario = population(0.6).with_overrides("population.devices=60000")
    lines = ["rounds,goal,timer_hours,min_sep,max_participations,days"]
    for rounds, goal in ((140, 400), (200, 200)):
        own = (f"rounds.count={rounds}", f"rounds.report_goal={goal}")
        truth = simulated(scenario.with_overrides(*own, "participation.timer_hours=24.0"))
        assert truth.participation is not None
        k = truth.participation.max_participations
        lines.append(f"{rounds},{goal},24,{truth.min_sep},{k},{truth.days}")
    (tmp_path / "runs.csv").write_text("\n".join(lines) + "\n")
    given = ["--runs", str(tmp_path / "runs.csv"), "--set", "population.devices=60000"]
    given += ["--scale", "0.5", "--place", "backend=in-process"]
    code, out, err = fedray_command("fit-min-sep", *given, "--json")
    assert code == 0, err
    document = json.loads(out)
    reach = document["parameters"][0]
    assert reach["identified"] == "both ends"
    assert reach["low"] <= 0.6 <= reach["high"]
    assert all(run["misfit"] < 1.5 for run in document["runs"])
    assert [run["goal"] for run in document["runs"]] == [400, 200]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("9,20,24,3,2,", None),
        ("9,20,24,,1,2.5", None),
        ("9,20,24,9,2,", "2 rounds of a device, 9 apart, do not fit into 9 rounds"),
        ("9,20,24,4,4,", "4 rounds of a device, 4 apart"),
        ("9,20,24,4,1,", "leave min_sep empty"),
        ("9,20,24,,3,", "min_sep must be given"),
        ("9,20,x,3,2,", "timer_hours"),
        ("9,20,24,3,2,,7", "unknown key None"),
        ("", "has no rows"),
    ],
)
def test_a_file_of_runs_is_read_or_refused_by_its_line(
    tmp_path: Path, row: str, expected: str | None
) -> None:
    file = tmp_path / "runs.csv"
    file.write_text(f"rounds,goal,timer_hours,min_sep,max_participations,days\n{row}\n")
    if expected is None:
        (run,) = read_runs(file)
        assert (run.rounds, run.goal, run.timer_hours) == (9, 20, 24.0)
        return
    with pytest.raises(InputError) as refused:
        read_runs(file)
    message = str(refused.value)
    assert expected in message
    assert ("line 2" in message) == bool(row)


def test_without_a_scenario_the_observed_run_is_set_key_by_key(fedray_command, monkeypatch) -> None:
    asked = []

    def fit_min_sep(scenario, runs, *others):
        asked.append((scenario, *runs))
        raise InputError("enough")

    monkeypatch.setattr("fedray.studies.fit.fit_min_sep", fit_min_sep)
    observed = ("population.devices=60000", "participation.timer_hours=24", "rounds.count=140")
    sets = [f"--set={each}" for each in observed]
    assert fedray_command("fit-min-sep", "--min-sep", "61", *sets)[0] == 2
    ((scenario, run),) = asked
    assert scenario.population.devices == 60_000
    assert (run.rounds, run.goal, run.timer_hours, run.min_sep) == (140, 6500, 24.0, 61)
    for left_out in observed:
        some = [f"--set={each}" for each in observed if each != left_out]
        code, _, stderr = fedray_command("fit-min-sep", "--min-sep", "61", *some)
        assert (code, stderr.count("\n")) == (2, 1)
        assert f"{left_out.partition('=')[0]} must be set, since no scenario is named" in stderr
    code, _, stderr = fedray_command("fit-min-sep", "--min-sep", "61", *sets, "--set", "seed=x")
    assert (code, stderr.count("\n")) == (2, 1)
    assert "--set 'seed=x'" in stderr
