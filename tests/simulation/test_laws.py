"""Laws that hold in every simulated run (Xu et al. 2023, section on min-sep and timers), over random small scenarios."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedray.audit.participation import read_patterns
from fedray.base.errors import Starved
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.trace.reader import Trace
from fedray.trace.schema import OUTCOMES

IN_PROCESS = Placement(shards=1, backend="in-process")
EXAMPLES = 300 if "FEDRAY_ALL_SEEDS" in os.environ else 10
"""Random scenarios; `make laws` has all."""


@st.composite
def scenarios(draw) -> Scenario:
    goal = draw(st.integers(5, 120))
    return Scenario.from_tables(
        {
            "seed": draw(st.integers(0, 2**32)),
            "population": {
                "devices": draw(st.integers(40 * goal, 200 * goal)),
                "reach": draw(st.sampled_from([1.0, 0.6])),
            },
            "availability": {"weekend_factor": draw(st.sampled_from([1.0, 1.4]))},
            "participation": {
                "timer_hours": draw(st.sampled_from([0.0, 2.0, 20.0, 48.0])),
                "round_separation": draw(st.sampled_from([0, 0, 3])),
                "timer_resets_on": draw(st.sampled_from(["accepted", "reported", "selected"])),
            },
            "latency": {"failure_probability": draw(st.sampled_from([0.0, 0.03, 0.3]))},
            "rounds": {
                "count": draw(st.integers(1, 25)),
                "report_goal": goal,
                "over_selection": draw(st.sampled_from([1.0, 1.3, 2.0])),
                "selection_timeout_minutes": draw(st.sampled_from([30.0, 1440.0])),
                "report_timeout_minutes": draw(st.sampled_from([3.0, 30.0])),
                "look_ahead_minutes": draw(st.sampled_from([15.0, 60.0, 240.0])),
                "max_days": 4.0,
            },
            "training": {"enabled": False},
        }
    )


def run(scenario: Scenario, check) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            check(simulate(scenario, IN_PROCESS, Path(folder) / "trace"))
        except Starved:
            assert list(Path(folder).iterdir()) == []


def check_laws(trace: Trace) -> None:
    scenario = Scenario.from_tables(trace.scenario)
    trace.verify()
    rows = trace.columns(0)
    rounds = trace.rounds
    committed = rounds["state"] == 0
    patterns = read_patterns(trace)
    goal, timer = scenario.rounds.report_goal, 3600.0 * scenario.participation.timer_hours

    # Rounds: exactly the goal is accepted, all who were selected are accounted for, no attempt beyond its timeouts.
    assert (rounds["accepted"][committed] == goal).all()
    assert rows["round"].size == rounds["selected"].sum()
    assert (rounds["selected"] <= scenario.rounds.selection_target).all()
    assert (
        rounds["closed"] - rounds["started"] <= 60 * scenario.rounds.report_timeout_minutes + 1e-6
    ).all()
    assert (np.diff(rounds["opened"]) >= 0).all()
    assert (rounds["started"][1:] >= rounds["closed"][:-1]).all()
    reported = ~np.isnan(rows["report_time"])
    assert reported.sum() == rounds["reported"].sum()
    says = np.isin(
        rows["outcome"], [OUTCOMES.index(name) for name in ("accepted", "late", "abandoned")]
    )
    assert (says == reported).all()

    # Privacy: min-sep and max participations obey what the population and the timer allow.
    if patterns.max_participations > 1:
        assert patterns.min_sep <= scenario.population.devices / goal
        assert patterns.min_sep >= scenario.participation.round_separation
    if timer:
        assert patterns.max_participations <= rounds["closed"].max() // timer + 1
    order = np.lexsort((rows["checkin_time"], rows["device_id"]))
    device, accepted = rows["device_id"][order], np.isin(rows["outcome"][order], [0, 4])
    checkin, report = rows["checkin_time"][order], rows["report_time"][order]
    assert (checkin < np.where(np.isnan(report), np.inf, report)).all()
    resets, since = {
        "accepted": (accepted, report),
        "reported": (~np.isnan(report), report),
        "selected": (np.ones_like(accepted), checkin),  # selected at or after its check-in
    }[scenario.participation.timer_resets_on]
    again = resets[:-1] & (device[1:] == device[:-1])
    assert (checkin[1:][again] >= since[:-1][again] + timer).all()
    busy_until = np.where(np.isnan(report), checkin, report)
    assert (checkin[1:] >= busy_until[:-1])[device[1:] == device[:-1]].all()


@pytest.mark.slow
@given(scenarios())
@settings(max_examples=EXAMPLES, deadline=None)
def test_laws_hold_in_every_run(scenario: Scenario) -> None:
    run(scenario, check_laws)


def test_a_device_is_in_one_round_at_a_time(tmp_path: Path, small) -> None:
    """Even with no timer at all: a device checks in only after its last round is over for it."""
    trace = simulate(
        small("participation.timer_hours=0.0", "rounds.count=40", "population.devices=8000"),
        IN_PROCESS,
        tmp_path / "t",
    )
    rows = trace.columns(0)
    order = np.lexsort((rows["checkin_time"], rows["device_id"]))
    same = np.diff(rows["device_id"][order].astype(np.int64)) == 0
    report = rows["report_time"][order]
    assert same.sum() > 500
    later, ended = rows["checkin_time"][order][1:], report[:-1]
    known = same & ~np.isnan(ended)
    assert (later[known] >= ended[known]).all()


@pytest.mark.parametrize("separation", [5, 9])
def test_round_separation_alone_sets_the_min_sep(tmp_path: Path, small, separation: int) -> None:
    scenario = small(
        "participation.timer_hours=0.0",
        f"participation.round_separation={separation}",
        "rounds.count=60",
        "population.devices=12000",
    )
    patterns = read_patterns(simulate(scenario, IN_PROCESS, tmp_path / "t"))
    assert patterns.min_sep == separation


def test_a_run_that_starves_says_so_and_keeps_what_it_has(tmp_path: Path, small) -> None:
    scenario = small(
        "population.devices=2000",
        "participation.timer_hours=2000.0",
        # Without them it would be certain before the run that the rounds cannot be committed.
        "participation.timer_violators=1e-6",
        "rounds.count=500",
        "rounds.max_days=6.0",
    )
    trace = simulate(scenario, IN_PROCESS, tmp_path / "t")
    assert 1 <= trace.committed_rounds < 10
    assert trace.run["ended"].startswith("starved: rounds.max_days=6 ran out with")
    trace.verify()


def test_a_run_without_a_single_round_leaves_nothing(tmp_path: Path, small) -> None:
    scenario = small(
        "population.devices=300", "rounds.max_days=1.0", "participation.timer_violators=1e-6"
    )
    with pytest.raises(
        Starved,
        match="0 of 12 rounds committed; too few devices checked in, so lower rounds.report_goal=200",
    ):
        simulate(scenario, IN_PROCESS, tmp_path / "t")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("buffer", [(), ('rounds.mode="buffered"', "rounds.buffer={concurrency=250, max_staleness=3}")])  # fmt: skip
def test_no_round_is_committed_after_max_days(buffer, tmp_path: Path, small) -> None:
    """Even if the days end within a look-ahead window, which has the same rounds until then."""
    keys = (
        "rounds.count=40",
        "rounds.look_ahead_minutes=360",
        "participation.timer_hours=0",
        *buffer,
    )
    whole = simulate(small(*keys), IN_PROCESS, tmp_path / "whole").rounds["closed"]
    days = float(whole[5] + whole[6]) / 2 / 86_400
    assert whole[6] // 21_600 == whole[5] // 21_600
    trace = simulate(small(*keys, f"rounds.max_days={days}"), IN_PROCESS, tmp_path / "t")
    committed = trace.rounds["closed"][trace.rounds["state"] == 0]
    assert committed.tolist() == whole[:6].tolist()
    assert trace.run["ended"].startswith(f"starved: rounds.max_days={days:g} ran out with 6 of 40")


def test_a_run_of_no_time_commits_no_round(tmp_path: Path, small) -> None:
    with pytest.raises(Starved, match="rounds.max_days=1e-07 ran out with 0 of 12"):
        simulate(small("rounds.max_days=1e-7"), IN_PROCESS, tmp_path / "t")


def test_a_run_whose_rounds_are_all_abandoned_names_the_timeout(tmp_path: Path, small) -> None:
    with pytest.raises(
        Starved, match="abandoned with too few reports, so raise rounds.report_timeout_minutes=1 "
    ):
        simulate(
            small("rounds.report_timeout_minutes=1.0", "rounds.max_days=0.2"),
            IN_PROCESS,
            tmp_path / "t",
        )


def test_late_and_dropped_are_what_over_selection_says(tmp_path: Path, small) -> None:
    """When every round commits, accepted is 1 / over_selection of the selected; the drop-outs are 6 to 10 % of them."""
    scenario = small(
        "population.devices=150000",
        "rounds.report_goal=500",
        "rounds.count=150",
        "participation.timer_hours=24.0",
    )
    trace = simulate(scenario, IN_PROCESS, tmp_path / "t")
    assert (trace.rounds["state"] == 0).all()
    counts = trace.outcome_counts()
    total = sum(counts.values())
    assert counts["accepted"] / total == pytest.approx(1 / 1.3, abs=1e-3)
    assert 0.05 < (counts["dropped"] + counts["failed"]) / total < 0.10
    assert counts["abandoned"] == 0


@pytest.mark.slow
def test_rounds_keep_their_pace_and_may_be_slower(tmp_path: Path, small) -> None:
    """Rounds of a few minutes start exactly 90 minutes apart when that is asked for; an abandoned attempt is made again at once."""
    scenario = small("rounds.min_minutes_between=90.0", "rounds.max_days=3.0")
    rounds = simulate(scenario, IN_PROCESS, tmp_path / "paced").rounds
    started = rounds["started"][rounds["state"] == 0]
    apart = np.diff(started)
    assert apart.min() >= 5400.0
    assert np.median(apart) == pytest.approx(5400.0)
    back_to_back = simulate(small(), IN_PROCESS, tmp_path / "fast").rounds
    assert np.diff(back_to_back["started"]).min() < 1800.0
    down = (
        started[1] + 60.0
    ) / 3600.0  # while the second round trains, so that its reports are lost
    outage = f"rounds.outages=[{{start_hours={down}, hours=0.4}}]"
    attempts = simulate(
        small("rounds.min_minutes_between=90.0", outage), IN_PROCESS, tmp_path / "retried"
    ).rounds
    assert attempts["state"][:3].tolist() == [0, 1, 0]
    assert 0.0 <= attempts["started"][2] - attempts["closed"][1] < 1800.0
    assert "min_minutes_between" not in small().to_toml()
