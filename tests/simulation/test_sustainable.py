"""Runs that rules and population cannot sustain are refused, and no run that could finish is."""

import re
import tempfile
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import fedray.runs.simulation
from fedray.base.errors import Starved, Unsustainable
from fedray.runs.pipeline import resume_run
from fedray.runs.simulation import simulate
from fedray.runs.sustainable import (
    check_sustainable,
    contributions_of_a_device,
    why_tight,
    why_unsustainable,
)
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario, SeveralTasks
from fedray.wire.messages import RunProgress

HERE = Placement(1, "in-process")
RANDOM_RUNS = 60
DAY = 86_400.0


def random_scenario(rng: np.random.Generator) -> Scenario:
    """A small scenario near the limit of what its rules allow, whose devices are always there."""
    mode = str(rng.choice(["on-device", "buffered", "upload-then-train"]))
    devices, goal = int(rng.integers(20, 60)), int(rng.integers(2, 9))
    # From somewhat fewer to somewhat more rounds or contributions than the devices allow.
    near = max(2, round(devices / goal * rng.uniform(0.5, 1.3)))
    rounds: dict[str, Any] = {"mode": mode, "count": near, "report_goal": goal, "max_days": 3.0}
    participation: dict[str, Any] = {"timer_hours": 0.0}
    match rng.choice(["separation", "min_sep", "cap", "timer", "swor", "apart"]):
        case "separation" if mode != "upload-then-train":
            participation["round_separation"] = near
            rounds["count"] = int(rng.integers(near, 2 * near))
        case "min_sep" if mode != "upload-then-train":
            policy = {"kind": "min_sep", "minimum_separation": near, "counts": "gap"}
            participation = {"policies": [policy]}
        case "cap":
            participation["max_participations"] = int(rng.integers(1, 4))
            rounds["count"] *= participation["max_participations"]
        case "timer":
            participation["timer_hours"] = float(rng.choice([30.0, 100.0]))
            rounds["count"] *= 1 + int(72 // participation["timer_hours"])
        case "swor":
            participation = {"policies": [{"kind": "swor", "period_hours": 30.0}]}
            rounds["count"] *= 3
        case _ if mode == "on-device":
            rounds["min_minutes_between"] = 3.0 * 1440.0 / (near - 1) * rng.uniform(0.9, 1.2)
    if mode == "on-device":
        rounds |= {"over_selection": 1.0, "selection_timeout_minutes": 60.0}
    if mode == "buffered":
        rounds["buffer"] = {"concurrency": goal, "max_staleness": 0}
    if mode == "upload-then-train":
        groups = int(min(near, rounds["count"]))
        windows = int(rng.integers(1, 4))
        rounds |= {"count": max(windows, rounds["count"])}
        schedule = {"kind": "cyclic", "min_sep": groups}
        rounds["uploads"] = {"window_hours": 12.0, "windows": windows, "schedule": schedule}
    # What loosens rules: devices that come late, forget, ignore the timer or have wrong clocks.
    if rng.random() < 0.2:
        participation["history_loss_per_day"] = 12.0
    if rng.random() < 0.2 and "policies" not in participation:
        participation |= {"timer_violators": 0.5, "clock_skew_hours": 10.0}
    joins = float(rng.choice([0.0, 0.0, 5.0]))
    return Scenario.from_tables(
        {
            "seed": int(rng.integers(1000)),
            "population": {
                "devices": devices,
                "joins_per_day": joins,
                "unreachable": float(rng.choice([0.0, 0.0, 0.2])),
            },
            "availability": {"model": "always_on"},
            "latency": {"failure_probability": 0.0},
            "participation": participation,
            "rounds": rounds,
            "training": {"enabled": False},
        }
    )


def completes(scenario: Scenario) -> bool:
    """Whether a simulation that is not refused commits all rounds."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            trace = simulate(scenario, HERE, Path(folder) / "t")
        except Starved:
            return False
        return trace.run["ended"] == "completed"


@pytest.mark.slow
def test_no_scenario_that_can_finish_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random scenarios of every mode and rule near their limit: none completes that is refused, and most others do."""
    monkeypatch.setattr(fedray.runs.simulation, "check_sustainable", lambda scenario: None)
    rng = np.random.default_rng(31)
    outcomes = {True: [], False: []}
    for _ in range(RANDOM_RUNS):
        scenario = random_scenario(rng)
        outcomes[why_unsustainable(scenario) is not None].append(completes(scenario))
    assert not any(outcomes[True])
    # Without these the claim would hold of a check that refuses everything, or nothing.
    assert len(outcomes[True]) >= RANDOM_RUNS // 5
    assert np.mean(outcomes[False]) > 0.5


def at_the_limit(participation: dict[str, Any], **rounds: Any) -> Scenario:
    """60 devices that are always there, in rounds of 6 that start with six of them."""
    return Scenario.from_tables(
        {
            "population": {"devices": 60},
            "availability": {"model": "always_on"},
            "latency": {"failure_probability": 0.0},
            "participation": {"timer_hours": 0.0, **participation},
            "rounds": {
                "count": 20,
                "report_goal": 6,
                "over_selection": 1.0,
                **rounds,
            },
            "training": {"enabled": False},
        }
    )


@pytest.mark.parametrize(
    ("last", "beyond", "says"),
    [
        (
            at_the_limit({"round_separation": 10}),
            at_the_limit({"round_separation": 11}),
            r"11 x 6 = 66, but population.devices=60 has at most 60 usable ones; lower the separation to 10 or the goal to 5",
        ),
        (
            at_the_limit({"max_participations": 1}, count=10),
            at_the_limit({"max_participations": 1}, count=11),
            r"11 rounds of rounds.report_goal=6 need 66 contributions, .* at most 60 x 1 = 60; raise the cap",
        ),
        (
            at_the_limit({"timer_hours": 30.0}, max_days=2.0),
            at_the_limit({"timer_hours": 30.0}, max_days=2.0, count=21),
            r"participation.timer_hours=30 lets a device take part at most 2 times in rounds.max_days=2: ",
        ),
        (
            at_the_limit({}, min_minutes_between=150.0, max_days=2.0),
            at_the_limit({}, min_minutes_between=160.0, max_days=2.0),
            r"the last of 20 rounds starts on day 2.1 at the earliest",
        ),
    ],
    ids=["separation", "cap", "timer", "pace"],
)
def test_the_last_scenario_that_can_finish_does_and_the_next_is_refused(
    last: Scenario, beyond: Scenario, says: str, tmp_path: Path
) -> None:
    assert completes(last)
    with pytest.raises(Unsustainable, match=says):
        simulate(beyond, HERE, tmp_path / "t")
    assert list(tmp_path.iterdir()) == []


def test_a_rule_that_is_broken_and_a_run_that_may_stop_are_not_refused() -> None:
    impossible = at_the_limit({"round_separation": 11, "timer_hours": 9000.0})
    assert why_unsustainable(impossible) is not None
    for loosened in ("participation.history_loss_per_day=0.1", "privacy.stop_at={rho=1.0}"):
        assert why_unsustainable(impossible.with_overrides(loosened)) is None
    # The budget excludes devices here, and the run goes on without them.
    strict = impossible.with_overrides("privacy.stop_at={rho=1.0}", "privacy.at_limit=exclude")
    assert why_unsustainable(strict) is not None
    timer = impossible.with_overrides("participation.round_separation=0")
    assert why_unsustainable(timer) is not None
    assert why_unsustainable(timer.with_overrides("participation.timer_violators=0.1")) is None


def test_rounds_that_select_more_devices_than_there_are_are_warned_of(small, numbers_in) -> None:
    given = ["population.devices=4000", "rounds.report_goal=50", "rounds.over_selection=1.3"]
    given += ["rounds.count=100", "participation.round_separation=79"]
    scenario = small(*given)
    assert why_tight(scenario) is None
    tight = scenario.with_overrides("participation.round_separation=80")
    assert why_unsustainable(tight) is None
    found = why_tight(tight)
    # Devices selected, barred, in all, and usable.
    assert numbers_in(found)[-5:] == [65, 79, 50, 4015, 4000]
    assert "lower the separation, the goal or over_selection" in found
    assert why_tight(tight.with_overrides("participation.history_loss_per_day=0.1")) is None
    assert why_tight(tight.with_overrides("rounds.count=79")) is None


def test_the_task_that_cannot_finish_is_named() -> None:
    tables = {**at_the_limit({}).to_tables(), "tasks": {"a": {}, "b": {}}}
    tables["tasks"]["b"] = {"participation": {"round_separation": 11}}
    with pytest.raises(Unsustainable, match=r"^task b: participation.round_separation=11: "):
        check_sustainable(SeveralTasks.from_tables(tables))


@pytest.mark.slow
def test_millions_of_devices_are_too_few_for_a_long_separation(fedray_command, tmp_path) -> None:
    (tmp_path / "s.toml").write_text(
        "population.devices = 3500000\nparticipation.round_separation = 910\n"
        "rounds = {count = 980, report_goal = 3908}\nprivacy.noise_multiplier = 4.2\n"
    )
    arguments = "run", str(tmp_path / "s.toml"), "--out", str(tmp_path / "t")
    code, _, err = fedray_command(*arguments)
    assert code == 2
    assert (
        "910 x 3,908 = 3,556,280, but population.devices=3500000 has at most 3,500,000 usable"
        in err
    )


STARVES_ON_ITS_FOURTH_DAY = (
    "rounds.min_minutes_between=60.0",
    "rounds.count=1000",
    "rounds.max_starved_days=2.0",
    "participation.timer_hours=0.0",
    "participation.round_separation=1000",
    # Without losses of history it would be certain before the run that it starves.
    "participation.history_loss_per_day=1e-9",
)


@pytest.mark.slow
def test_a_run_that_starves_says_why_within_a_simulated_day_and_ends(small, tmp_path: Path) -> None:
    told: list[RunProgress] = []
    trace = simulate(
        small(*STARVES_ON_ITS_FOURTH_DAY), HERE, tmp_path / "t", cast(Any, told.append)
    )
    closed = trace.rounds["closed"][trace.rounds["state"] == 0]
    # On its fourth day rounds stop for most of a day, and later there is one a day.
    assert np.diff(closed[closed < 3 * DAY]).max() < DAY / 2
    first = next(each for each in told if each.starving)
    assert 3 * DAY < first.simulated_seconds < 4 * DAY
    assert first.simulated_seconds - closed[closed < first.simulated_seconds][-1] < DAY
    cause = (
        r"the round separation 9\d %, so lower participation.round_separation=1000 or "
        r"rounds.report_goal=200, or raise"
    )
    assert re.search(rf"^no round for 1\d.\d hours: of the eligible .*{cause}", first.starving)
    # Devices that are held back are not counted among those that may come.
    assert first.may_come < 0.2 * first.eligible_estimate
    assert any(each.may_come > 0.5 * each.eligible_estimate > 0 for each in told)
    # Two starved days, and a day for which a round may wait for its devices.
    assert 3 * DAY <= told[-1].simulated_seconds - closed[-1] < 3.1 * DAY
    ended = r"starved: rounds.max_starved_days=2 ran out with \d+ of 1000 rounds committed, .*"
    assert re.search(ended + cause, trace.run["ended"])


@pytest.mark.slow
def test_a_run_that_waits_for_a_timer_does_not_starve(small, tmp_path: Path) -> None:
    """Devices come back after 40 days without a round, which is longer than starved days are allowed to be."""
    scenario = small("population.devices=1500", "rounds.count=7", "participation.timer_hours=960.0")
    trace = simulate(scenario, HERE, tmp_path / "t")
    assert trace.run["ended"] == "completed"
    assert np.diff(trace.rounds["closed"][trace.rounds["state"] == 0]).max() > 30 * DAY


@pytest.mark.slow
def test_tasks_starve_one_by_one_and_a_resumed_run_ends_as_the_whole_one(
    small, tmp_path: Path
) -> None:
    often = Placement(1, "in-process", checkpoint_seconds=0.0)
    scenario = small(*STARVES_ON_ITS_FOURTH_DAY[2:], "rounds.report_goal=2000")
    tables = {**scenario.to_tables(), "tasks": {"short": {}, "long": {}}}
    tables["tasks"]["long"] = {
        "rounds": {"count": 9, "min_minutes_between": 1440.0, "report_goal": 20},
        "participation": {"round_separation": 0},
    }
    several = SeveralTasks.from_tables(tables)
    whole = simulate(several, HERE, tmp_path / "whole")
    ended = {name: trace.run["ended"] for name, trace in whole.traces.items()}
    assert ended["short"].startswith("starved: rounds.max_starved_days=2 ran out")
    assert ended["long"] == "completed"

    def interrupt(progress: Any) -> None:
        if progress.simulated_seconds > 6 * DAY:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(several, often, tmp_path / "t", interrupt)
    resumed = resume_run(tmp_path / "t", HERE)
    assert {name: trace.run["ended"] for name, trace in resumed.traces.items()} == ended
    for name, trace in whole.traces.items():
        assert resumed.traces[name].digest == trace.digest


@pytest.mark.slow
def test_a_round_that_started_with_too_few_devices_does_not_blame_the_report_timeout(
    small, tmp_path: Path
) -> None:
    """At its selection timeout a round starts with fewer devices than it wants, and drop-outs then cost it the goal: what lacks are devices."""
    failing = "latency.failure_probability=0.08"
    trace = simulate(small(*STARVES_ON_ITS_FOURTH_DAY, failing), HERE, tmp_path / "t")
    abandoned = trace.rounds["selected"][trace.rounds["state"] == 1]
    assert ((abandoned > 0) & (abandoned < 260)).any()
    assert "so lower participation.round_separation=1000" in trace.run["ended"]
    assert "report_timeout" not in trace.run["ended"]


def test_a_wait_of_next_to_nothing_limits_nothing(small) -> None:
    scenario = small("participation.timer_hours=1e-310")
    (bound,) = contributions_of_a_device(scenario)
    assert bound.most >= 2**62
