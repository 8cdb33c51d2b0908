"""When a round closes, and which reports it keeps."""

from pathlib import Path

import numpy as np
import pytest

from fedray.audit.auditing import audit_trace
from fedray.base.errors import ScenarioError
from fedray.runs.learning import cohorts, train
from fedray.runs.pipeline import run_scenario
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.server.learning.aggregator import ModelAggregator
from fedray.server.rounds.closing import AtGoal, AtLeast, closing_rule_of

REPORTS = np.array([130.0, 110.0, np.inf, 120.0, 140.0, 120.0])
"""Report times of a round that started at 100 s."""
IN_PROCESS = Placement(shards=1, backend="in-process")


def test_exactly_the_goal_is_kept_and_ties_go_by_device() -> None:
    closing = AtGoal(2).close(REPORTS, 100.0, 200.0)
    assert (closing.is_committed, closing.time) == (True, 120.0)
    assert np.flatnonzero(closing.has_arrived).tolist() == [1, 3]


def test_a_goal_that_is_not_met_by_the_deadline_keeps_what_came() -> None:
    for rule in (AtGoal(4), AtLeast(4, 25.0)):
        closing = rule.close(REPORTS, 100.0, 125.0)
        assert (closing.is_committed, closing.time) == (False, 125.0)
        assert np.flatnonzero(closing.has_arrived).tolist() == [1, 3, 5]


def test_a_report_at_the_deadline_is_in_time() -> None:
    for rule in (AtGoal(3), AtLeast(3, 10.0)):
        assert rule.close(REPORTS, 100.0, 120.0).is_committed
        assert not rule.close(REPORTS, 100.0, np.nextafter(120.0, 0.0)).is_committed


CLOSING = {"goal": "{kind='goal'}", "at_least": "{kind='at_least', open_minutes=2}"}


@pytest.mark.parametrize("table", CLOSING.values(), ids=CLOSING)
def test_a_committed_round_keeps_as_many_as_its_goal_and_none_that_came_later(
    small, table: str
) -> None:
    """Cohorts are samples of what a round accepted, and secure sums have room for the goal."""
    rule = closing_rule_of(small("rounds.report_goal=50", f"rounds.closing={table}"))
    rng, seen = np.random.default_rng(4), set()
    for _ in range(300):
        times = np.round(100.0 + rng.exponential(rng.uniform(20.0, 300.0), 90))
        times[rng.uniform(size=90) < 0.3] = np.inf
        deadline = 100.0 + float(rng.uniform(120.0, 600.0))
        closing = rule.close(times, 100.0, deadline)
        seen.add(closing.is_committed)
        arrived = times[closing.has_arrived]
        assert closing.is_committed == (np.count_nonzero(times <= deadline) >= 50)
        assert closing.is_committed == (arrived.size >= 50)
        assert closing.time <= deadline
        assert arrived.size == 0 or arrived.max() <= closing.time
    assert seen == {True, False}


@pytest.mark.parametrize(
    ("goal", "seconds", "closed", "kept"),
    [
        (2, 30.0, 130.0, [0, 1, 3, 5]),  # a report at that very moment is kept
        (2, 15.0, 120.0, [1, 3]),  # the goal came later, and closed it
        (5, 30.0, 140.0, [0, 1, 3, 4, 5]),
        (2, 90.0, 190.0, [0, 1, 3, 4, 5]),
    ],
)
def test_at_least_the_goal(goal: int, seconds: float, closed: float, kept: list[int]) -> None:
    closing = AtLeast(goal, seconds).close(REPORTS, 100.0, 200.0)
    assert (closing.is_committed, closing.time) == (True, closed)
    assert np.flatnonzero(closing.has_arrived).tolist() == kept


def test_a_run_that_keeps_surplus_reports_is_audited_by_what_it_committed(
    tmp_path: Path, small
) -> None:
    scenario = small('rounds.closing={kind="at_least", open_minutes=6}')
    trace = simulate(scenario, IN_PROCESS, tmp_path / "t")
    rounds = trace.rounds
    committed = rounds["state"] == 0
    goal = scenario.rounds.report_goal
    accepted = rounds["accepted"][committed]
    assert accepted.min() >= goal
    assert accepted.max() > goal
    open_seconds = (rounds["closed"] - rounds["started"])[committed]
    assert open_seconds[accepted > goal] == pytest.approx(360.0)
    assert open_seconds.min() >= 360.0 - 1e-6
    assert audit_trace(trace).participations == accepted.sum()
    trace.verify()


@pytest.fixture
def keeping_surplus(small) -> Scenario:
    """Rounds that accept different numbers of devices, of which four train."""
    return small(
        "rounds.count=3",
        "rounds.closing={kind='at_least', open_minutes=6}",
        "training.enabled=true",
        "training.cohort_sample=4",
        "training.task={kind='quadratic'}",
        "data={kind='points'}",
    )


def test_a_training_is_told_how_many_devices_each_round_accepted(
    tmp_path: Path, keeping_surplus: Scenario
) -> None:
    """By a trace as by the run itself: both give the same model."""
    trace = run_scenario(keeping_surplus, IN_PROCESS, tmp_path / "t")
    accepted = trace.rounds["accepted"][trace.rounds["state"] == 0].tolist()
    assert len(set(accepted)) > 1
    assert [cohort.accepted for _, cohort in cohorts(trace, keeping_surplus)] == accepted
    again = train(trace, keeping_surplus, IN_PROCESS, tmp_path / "again")
    assert trace.trained is not None
    live = trace.trained.parameters()
    assert (again.parameters() == live).all()


def test_noise_is_in_proportion_to_what_a_round_accepted(
    tmp_path: Path, keeping_surplus: Scenario, monkeypatch
) -> None:
    """Each round adds noise of the deviation z x clip norm x sample / accepted to its sum."""
    shares = []
    real = ModelAggregator.release

    def release(self, scale=1.0, noise_share=1.0):
        shares.append(noise_share)
        return real(self, scale, noise_share)

    monkeypatch.setattr(ModelAggregator, "release", release)
    trace = run_scenario(keeping_surplus, IN_PROCESS, tmp_path / "t")
    accepted = trace.rounds["accepted"][trace.rounds["state"] == 0]
    assert shares == (4 / accepted).tolist()


def test_after_the_selection_timeout_a_share_of_the_devices_must_wait(
    tmp_path: Path, small
) -> None:
    """The population is so small that selection times out; without the share rounds then start with
    report_goal devices or a few more."""
    hard = ("population.devices=7000", "rounds.selection_timeout_minutes=20.0", "rounds.count=8")
    least = {}
    for share in (None, 0.9):
        keys = hard if share is None else (*hard, f"rounds.start_share={share}")
        scenario = small(*keys, "rounds.over_selection=2.0", "rounds.max_days=20.0")
        rounds = simulate(scenario, IN_PROCESS, tmp_path / f"{share}").rounds
        least[share] = int(rounds["selected"][rounds["selected"] > 0].min())
        assert least[share] >= scenario.rounds.least_to_start
    assert least[None] < 0.9 * 400 <= least[0.9]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rounds.start_share=0.5", "start_share=0.5 of 260 devices to select is less than"),
        ('rounds.closing={kind="at_least"}', "open_minutes is missing"),
        ('rounds.closing={kind="at_least",open_minutes=31}', "open_minutes=31 is more than"),
        ('rounds.closing={kind="most"}', "is not one of goal, at_least"),
    ],
)
def test_what_makes_no_sense_is_refused(small, override: str, message: str) -> None:
    with pytest.raises(ScenarioError, match="rounds") as refused:
        small(override)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_todays_rule_is_the_default_and_is_not_written(small) -> None:
    assert "closing" not in small().to_toml()
    assert "start_share" not in small().to_toml()
    goal = small().rounds.report_goal
    assert closing_rule_of(small()) == closing_rule_of(small("rounds.closing.kind=goal"))
    assert closing_rule_of(small()) == AtGoal(goal)
