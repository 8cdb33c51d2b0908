"""Forecasts: a continuation starts from the observed state, keeps the rules, and its intervals
contain what simulated deployments then did."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tomli_w

import fedray
from fedray.audit.participation import Patterns
from fedray.base.errors import InputError
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.studies.forecast.devices import Known
from fedray.studies.forecast.forecast import continuations, forecast
from fedray.studies.forecast.history import DAY, History, Ruling, history_of
from fedray.studies.forecast.pace import Pace

HERE = Placement(1, "in-process")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Scenario, fedray.Trace]:
    """240 rounds of 15 devices in 30 days; a quarter is a week."""
    tables = {
        "name": "run",
        "seed": 5,
        "population": {"devices": 3000},
        "participation": {"timer_hours": 24.0},
        "rounds": {"count": 240, "report_goal": 15, "min_minutes_between": 180.0},
        "training": {"enabled": False},
    }
    scenario = Scenario.from_tables(tables)
    return scenario, simulate(scenario, HERE, tmp_path_factory.mktemp("run") / "trace")


SMALL = {
    "name": "small",
    "population": {"devices": 100},
    "rounds": {"count": 60, "report_goal": 4},
    "training": {"enabled": False},
}


@pytest.fixture
def log(tmp_path: Path) -> fedray.ImportedTrace:
    """Every device comes each fifth of 30 rounds, six hours apart."""
    rows = ["device_id,round,time"]
    rows += [f"d{t % 5}-{d},{t},{t * 6 * 3600}" for t in range(30) for d in range(4)]
    (tmp_path / "log.csv").write_text("\n".join(rows) + "\n")
    return fedray.import_log(
        *(tmp_path / "log.csv", "device_id", "round", 30, tmp_path / "trace"),
        time_column="time",
        time_unit="seconds",
    )


@pytest.mark.slow
@pytest.mark.parametrize("cut", [0.25, 0.5])
def test_intervals_contain_the_end_of_a_simulated_deployment(run, cut: float) -> None:
    """One deployment at each cut; the benchmark counts many. An interval that is open to anything
    would fail the second half."""
    scenario, trace = run
    history = history_of(trace, scenario, None)
    _, paths = continuations(history.until(int(cut * 240)), None, 240, 40)
    min_seps = [each.min_seps[-1] for each in paths]
    most = [each.most[-1] for each in paths]
    for values, true in (
        (min_seps, history.patterns.min_sep),
        (most, history.patterns.max_participations),
    ):
        assert min(values) <= true <= max(values)
        assert max(values) - min(values) <= true


@pytest.mark.slow
def test_a_continuation_keeps_the_timer_the_state_and_its_seed(run) -> None:
    scenario, trace = run
    half = history_of(trace, scenario, None).until(120)
    (_, devices), paths = continuations(half, None, 240, 2)
    again = continuations(half, None, 240, 2)[1]
    assert all(np.array_equal(a.counts, b.counts) for a, b in zip(paths, again, strict=True))
    assert not np.array_equal(paths[0].starts, paths[1].starts)
    for each in paths:
        assert each.counts.sum() == devices.sizes.sum() + 15 * 120
        # No device returns sooner than its timer lets it, at the times of the rounds.
        assert each.min_seps[-1] >= min(each.enforced.min_sep, half.patterns.min_sep)
        assert each.most[-1] <= each.enforced.max_participations
        assert (np.diff(each.starts) > 0).all()


def test_the_pace_continues_a_daily_pattern_and_a_slower_server() -> None:
    """Rounds only from 0:00 to 11:00, and from day 10 on every second one."""
    starts = np.array(
        [day * DAY + 3600.0 * h for day in range(20) for h in range(0, 12, 1 if day < 10 else 2)],
        np.float64,
    )
    pace = Pace(starts)
    assert "step" in pace.drift
    found = pace.continued(60, np.random.default_rng(1))
    assert 8.5 < (found[-1] - starts[-1]) / DAY < 12.0
    assert ((found % DAY) / 3600.0 < 13.0).mean() > 0.9


def test_a_server_that_stops_each_day_begins_again_at_its_hour() -> None:
    """From day 3 on, rounds each two hours from 14:00 to 4:00, up to two minutes late."""
    late = np.random.default_rng(3).uniform(0.0, 120.0, 8 * 20)
    hours = np.array([24.0 * day + 14.0 + 2.0 * h for day in range(3, 23) for h in range(8)])
    before = np.arange(0.0, 72.0, 2.0)
    pace = Pace(np.concatenate([before * 3600.0, hours * 3600.0 + late]))
    assert "no rounds from 4.0 h to 14.0 h" in pace.drift
    for seed in range(5):
        found = pace.continued(80, np.random.default_rng(seed))
        hour = found % DAY / 3600.0
        assert not ((hour > 5.5) & (hour < 13.9)).any()
        assert 9.5 < (found[-1] - found[0]) / DAY < 10.5
        first = hour[(hour > 13.9) & (hour < 15.0)]
        assert ((first >= 14.0) & (first < 14.0 + 2.0 / 60)).all()


def test_a_weekend_is_found_after_two_of_them() -> None:
    hours = [24 * day + h for day in range(21) for h in range(0, 24, 6 if day % 7 > 4 else 2)]
    assert "weekends" in Pace(3600.0 * np.array(hours, np.float64)).drift


def test_history_until_a_round_is_that_of_a_shorter_trace() -> None:
    patterns = Patterns(
        4,
        np.array([1, 2, 5], np.uint64),
        np.array([2, 1, 2]),
        np.array([0, 2, 3, 1, 3], np.uint32),
    )
    history = History(
        3600.0 * np.arange(4, dtype=np.float64), patterns, Ruling(7200.0, "the claim")
    )
    early = history.until(3)
    assert early.patterns.device_ids.tolist() == [1, 5]
    assert early.patterns.rounds.tolist() == [0, 2, 1]
    assert early.patterns.counts.tolist() == [2, 1]
    assert history.reopened().tolist() == [2, 3, 4, 4]
    separated = replace(history, rules=Ruling(0.0, "the scenario", separation=3))
    assert separated.reopened().tolist() == [3, 4, 4, 4]


def test_a_log_is_forecast_with_its_least_wait_and_a_broken_claim_is_named(
    log, tmp_path: Path
) -> None:
    """k of 60 rounds is 12."""
    text = 'mechanism = "tree"\nnoise_multiplier = 9.0\nmin_sep = 5\nmax_participations = 8\n'
    (tmp_path / "claim.toml").write_text(text)
    claim = fedray.read_claim(tmp_path / "claim.toml")
    found = forecast(log, 60, claim=claim, seeds=20)
    assert found.timer_source == "the least observed wait"
    assert found.row("max participations").end.contains(12)
    broken = {each.claimed: each for each in found.breaks}
    assert broken["participations <= 8"].probability == 1.0
    day = broken["participations <= 8"].day
    assert day is not None
    assert 9.0 < day.median < 13.0
    with pytest.raises(InputError, match="must be more than the 30 observed rounds"):
        forecast(log, 30)


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"later": {"round_separation": 9}, "from_round": 20}, "later"),
        ({"hold": "hold.csv", "from_round": 20}, "hold"),
        (
            {"policies": [{"kind": "most_per_period", "participations": 2, "hours": 48.0}]},
            "policies",
        ),
        (
            {"policies": [{"kind": "most_per_period", "participations": 1, "period": "local_day"}]},
            "policies",
        ),
    ],
)
def test_a_rule_that_is_not_continued_is_refused(log, tmp_path: Path, changed, key) -> None:
    (tmp_path / "hold.csv").write_text("device_id,first_round\n7,\n")
    file = tmp_path / "scenario.toml"
    file.write_text(tomli_w.dumps({**SMALL, "participation": changed}))
    scenario = Scenario.from_toml(file)
    with pytest.raises(InputError, match=rf"participation\.{key}=.* is not continued .*; give"):
        forecast(log, 60, scenario=scenario)


def test_devices_that_are_not_members_are_not_expected() -> None:
    population = {"devices": 1000, "joins_per_day": 10.0, "unreachable": 0.2}
    tables = {**SMALL, "population": population, "participation": {"members": [0.25, 0.75]}}
    assert Known.of(Scenario.from_tables(tables)) == Known(400.0, 4.0)


def test_one_participation_within_hours_is_continued_as_a_timer(log) -> None:
    once = {"kind": "most_per_period", "participations": 1, "hours": 30.0}
    scenario = Scenario.from_tables({**SMALL, "participation": {"policies": [once]}})
    assert history_of(log, scenario, None).rules.timer_seconds == 30 * 3600.0


def test_stress_names_the_timer_of_a_forecast_and_takes_that_of_a_claim(
    log, tmp_path: Path
) -> None:
    """The least observed wait is 30 h, less the 6 h to which times seem to be rounded."""
    file = tmp_path / "claim.toml"
    file.write_text('mechanism = "tree"\nnoise_multiplier = 9.0\ntimer_hours = 18.0\n')
    claim = fedray.read_claim(file)
    of = partial(fedray.stress, log, rounds=60, estimated=[5], mechanisms=["tree"])
    assert "timer 18 h, from the claim" in of(forecast=True, claim=claim).subject
    assert "timer 24 h, from the least observed wait" in of(forecast=True).subject
    with pytest.raises(InputError, match="applies to the forecast of a log"):
        of(claim=claim)


@pytest.mark.slow
def test_stress_takes_a_forecast_as_its_truths(run) -> None:
    _, trace = run
    found = fedray.stress(trace, rounds=300, estimated=[9], mechanisms=["tree"], forecast=True)
    assert {row.rounds for row in found.rows} == {300}
    assert "timer 24 h, from the scenario" in found.subject
    with pytest.raises(InputError, match="rounds=None must be given"):
        fedray.stress(trace, estimated=[9], forecast=True)
