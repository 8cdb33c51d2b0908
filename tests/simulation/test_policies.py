"""What each participation policy promises, on random small runs; and what an audit finds of it."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedray.audit.auditing import audit_trace
from fedray.audit.guarantees import enforced_limits
from fedray.audit.participation import read_patterns
from fedray.base.errors import ScenarioError, Starved, TraceCorrupt
from fedray.report.audits import participation_table
from fedray.runs.simulation import resume, simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.scenario.participation import MinSepPolicy, Participation
from fedray.trace.reader import Trace
from fedray.wire.messages import Outcome

IN_PROCESS = Placement(shards=1, backend="in-process")
SWOR = {"kind": "swor", "period_hours": 20.0}
BETWEEN = {"kind": "min_sep", "minimum_separation": 6, "counts": "between"}
GAP = {"kind": "min_sep", "minimum_separation": 6, "counts": "gap"}
TWICE = {"kind": "most_per_period", "participations": 2, "hours": 7.0}
DATA = {"kind": "data_available", "min_example_count": 60}
LOSSES = {"history_loss_per_day": 0.5}
CORRUPTED = {**LOSSES, "history_loss": "corrupted"}
PERIOD = 20.0 * 3600.0
EXAMPLES = 50 if "FEDRAY_ALL_SEEDS" in os.environ else 3
"""Random runs of each policy; `make laws` has all."""


def scenario(participation: dict, seed: int = 3, **rounds) -> Scenario:
    return Scenario.from_tables(
        {
            "seed": seed,
            "population": {"devices": 6000},
            "participation": participation,
            "rounds": {"count": 60, "report_goal": 80, "max_days": 12.0, **rounds},
            "training": {"enabled": False},
        }
    )


def simulated(value: Scenario, folder: Path, shards: int = 1) -> Trace:
    return simulate(value, Placement(shards=shards, backend="in-process"), folder / "trace")


def on_random_runs(participation: dict, check: Callable[[Trace, Scenario], int]) -> None:
    """Checks traces of runs whose rounds, latencies and devices differ; a check says how many rows
    it looked at."""
    seen = []

    # The first is none of chance: it has rows enough by any policy, so that a check is never of
    # runs alone that starve.
    @example(3, 0.03, 1.3, 30.0, "enumeration", 0.0)
    @given(
        st.integers(0, 2**32),
        st.sampled_from([0.0, 0.03, 0.3]),
        st.sampled_from([1.0, 1.3, 2.0]),
        st.sampled_from([3.0, 30.0]),
        st.sampled_from(["enumeration", "thinning"]),
        st.sampled_from([0.0, 300.0]),
    )
    @settings(max_examples=EXAMPLES, deadline=None)
    def run(seed, failures, over_selection, timeout, sampler, joins) -> None:
        value = scenario(
            participation,
            seed,
            over_selection=over_selection,
            report_timeout_minutes=timeout,
            sampler=sampler,
            report_goal=40,
            count=40,
            max_days=5.0,
        ).with_overrides(
            "population.devices=2500",
            f"latency.failure_probability={failures}",
            f"population.joins_per_day={joins}",
        )
        with tempfile.TemporaryDirectory() as folder:
            try:
                seen.append(check(simulated(value, Path(folder)), value))
            except Starved:
                return

    run()
    assert sum(seen) > 100


def pairs_of(trace: Trace) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Rows accepted in time, in order of device and time, and positions of those that follow another of the
    same device. Abandoned rounds count: a device cannot know."""
    columns = trace.columns(0)
    kept = np.isin(columns["outcome"], [Outcome.ACCEPTED, Outcome.ABANDONED])
    rows = {name: column[kept] for name, column in columns.items()}
    again = 1 + np.flatnonzero(rows["device_id"][1:] == rows["device_id"][:-1])
    return rows, again


def check_period(trace: Trace, value: Scenario) -> int:
    rows, again = pairs_of(trace)
    # The upload starts after the check-in and before the report.
    waits = rows["checkin_time"][again] - rows["checkin_time"][again - 1]
    assert (waits > PERIOD).all()
    closest = rows["checkin_time"][again] - rows["report_time"][again - 1]
    assert (closest > PERIOD - 60.0).all()
    return again.size


@pytest.mark.slow
def test_swor_keeps_every_contribution_more_than_a_period_apart() -> None:
    on_random_runs({"policies": [SWOR]}, check_period)


@pytest.mark.slow
def test_swor_holds_even_where_histories_are_cleared_since_devices_then_wait_a_whole_period() -> (
    None
):
    on_random_runs({"policies": [SWOR], **LOSSES}, check_period)


def check_separation(trace: Trace, gap: int) -> int:
    rows, again = pairs_of(trace)
    assert (rows["round"].astype(np.int64)[again] - rows["round"][again - 1] >= gap).all()
    return again.size


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "gap"), [(BETWEEN, 7), (GAP, 6)])
def test_min_sep_keeps_rounds_apart_in_both_conventions(policy: dict, gap: int) -> None:
    def check(trace: Trace, value: Scenario) -> int:
        patterns = read_patterns(trace)
        limits = enforced_limits(trace, value, None, patterns).participation
        assert limits is not None
        assert limits.min_sep in (gap, trace.committed_rounds)
        assert limits.min_sep <= patterns.min_sep
        return check_separation(trace, gap)

    on_random_runs({"policies": [policy]}, check)


@pytest.mark.slow
def test_only_devices_with_enough_examples_are_selected() -> None:
    def check(trace: Trace, value: Scenario) -> int:
        examples = trace.columns(0)["examples"]
        assert (examples >= 60).all()
        return examples.size

    on_random_runs({"policies": [DATA]}, check)


@pytest.mark.slow
def test_all_policies_must_admit_a_device() -> None:
    def check(trace: Trace, value: Scenario) -> int:
        assert (trace.columns(0)["examples"] >= 60).all()
        return check_period(trace, value) + check_separation(trace, 7)

    on_random_runs({"policies": [DATA, SWOR, BETWEEN]}, check)


@pytest.mark.parametrize(("policy", "b"), [(BETWEEN, 7), (GAP, 6)])
def test_the_audit_of_a_min_sep_finds_exactly_the_b_that_was_enforced(
    tmp_path: Path, policy: dict, b: int
) -> None:
    """Devices are so few that some come back as soon as they may."""
    trace = simulated(scenario({"policies": [policy]}), tmp_path)
    found = audit_trace(trace)
    assert found.min_sep == b
    enforced = found.mechanisms[0].enforced
    assert enforced.min_sep == b
    assert enforced.may_rest_on
    assert "separation of 6 rounds" in enforced.reason
    assert found.violations is None


def test_what_the_two_conventions_count() -> None:
    between = MinSepPolicy(minimum_separation=206, counts="between")
    gap = MinSepPolicy(minimum_separation=206, counts="gap")
    assert (between.gap, gap.gap) == (207, 206)
    assert Participation(policies=(between,)).separation == 207


def brute_force(trace: Trace, period: float) -> tuple[set[int], int, int]:
    """Devices, participations that came too soon after another, and those after a loss, by loops."""
    started = trace.rounds["started"][trace.rounds["state"] == 0]
    columns = trace.columns(0)
    assert trace.losses is not None
    lost = list(zip(trace.losses["device_id"].tolist(), trace.losses["time"].tolist(), strict=True))
    last: dict[int, float] = {}
    devices, too_soon, after_loss = set(), 0, 0
    for device, number, check_in, outcome in zip(
        columns["device_id"].tolist(),
        columns["round"].tolist(),
        columns["checkin_time"].tolist(),
        columns["outcome"].tolist(),
        strict=True,
    ):
        if outcome != Outcome.ACCEPTED:
            continue
        begin = last.get(device)
        if begin is not None and check_in < begin + period:
            devices.add(device)
            too_soon += 1
            after_loss += any(who == device and begin < when <= check_in for who, when in lost)
        last[device] = started[number]
    return devices, too_soon, after_loss


def test_the_audit_of_swor_finds_the_violators_and_how_many_losses_caused_them(
    tmp_path: Path,
) -> None:
    """A corrupted history is all that makes devices come back too soon, so every violation follows
    a loss; where histories are cleared nobody violates, though as many are lost."""
    trace = simulated(scenario({"policies": [SWOR], **CORRUPTED}), tmp_path / "corrupted")
    found = audit_trace(trace)
    assert found.violations is not None
    devices, too_soon, after_loss = brute_force(trace, PERIOD)
    assert found.violations.devices == len(devices) > 20
    assert found.violations.participations == too_soon
    assert found.violations.after_loss == after_loss == too_soon
    assert trace.losses is not None
    assert found.violations.losses == trace.losses["time"].size > too_soon
    enforced = found.mechanisms[0].enforced
    assert "ensures nothing, since devices may lose their history" in enforced.reason
    assert enforced.min_sep == 1
    assert "breaking the rules" in dict(participation_table(found).rows)

    cleared = audit_trace(simulated(scenario({"policies": [SWOR], **LOSSES}), tmp_path / "cleared"))
    assert cleared.violations is None
    assert cleared.mechanisms[0].enforced.min_sep > 1


def test_violators_without_a_loss_are_told_from_those_after_one(tmp_path: Path) -> None:
    participation = {"timer_hours": 20.0, "timer_violators": 0.2, "history_loss_per_day": 0.1}
    found = audit_trace(simulated(scenario(participation), tmp_path)).violations
    assert found is not None
    assert 0 < found.after_loss < found.participations


@pytest.mark.parametrize(
    ("participation", "rule"),
    [
        ({"timer_hours": 20.0, **LOSSES}, "timer of 20 h"),
        ({"policies": [GAP], **LOSSES}, "separation of 6 rounds"),
        ({"timer_hours": 0.0, "round_separation": 6, **LOSSES}, "separation of 6 rounds"),
        ({"timer_hours": 0.0, "max_participations": 2, **LOSSES}, "at most 2 participations"),
    ],
)
def test_what_devices_forget_ensures_nothing_and_is_broken(
    tmp_path: Path, participation: dict, rule: str
) -> None:
    found = audit_trace(simulated(scenario(participation, max_days=40.0), tmp_path))
    assert found.violations is not None
    assert found.violations.participations == found.violations.after_loss > 0
    enforced = found.mechanisms[0].enforced
    assert rule in enforced.reason
    assert "ensures nothing, since devices may lose their history" in enforced.reason
    assert (enforced.min_sep, enforced.participation.max_participations) == (1, found.rounds)


def test_a_device_without_history_waits_for_as_long_as_it_is_to_be_trusted(tmp_path: Path) -> None:
    """Devices that join wait 30 hours; those that are there from the start are old enough."""
    policy = {**GAP, "trust_hours": 30.0}
    value = scenario({"policies": [policy]}, max_days=6.0).with_overrides(
        "population.devices=2000", "population.joins_per_day=2000", "rounds.count=200"
    )
    columns = simulated(value, tmp_path).columns(0)
    joined = columns["device_id"] >= 2000
    ranks = columns["device_id"][joined].astype(np.int64) - 2000
    waits = columns["checkin_time"][joined] - 43.2 * ranks
    assert waits.size > 100
    assert waits.min() >= 30 * 3600.0
    assert columns["checkin_time"][~joined].min() < 3600.0


def test_losses_of_a_trace_that_were_changed_or_are_missing_are_refused(tmp_path: Path) -> None:
    trace = simulated(scenario({"policies": [SWOR], **LOSSES}), tmp_path)
    file = trace.path / "losses.parquet"
    table = pq.read_table(file)
    assert table.num_rows > 10
    pq.write_table(table.slice(1), file)
    with pytest.raises(TraceCorrupt, match="does not have the digest"):
        read_losses(trace.path)
    pq.write_table(table.take(list(range(table.num_rows))[::-1]), file)
    with pytest.raises(TraceCorrupt, match="rows are not sorted"):
        read_losses(trace.path, verify=False)
    file.unlink()
    with pytest.raises(TraceCorrupt, match="losses.parquet is missing"):
        Trace.open(trace.path)


def read_losses(path: Path, verify: bool = True) -> None:
    _ = Trace.open(path, verify).losses


POLICIES = [
    {"policies": [SWOR]},
    {"policies": [BETWEEN]},
    {"policies": [DATA, {"kind": "timer"}], "timer_hours": 20.0, "timer_resets_on": "upload"},
    {"policies": [SWOR, GAP], **LOSSES},
    {"policies": [SWOR], "max_participations": 2, **CORRUPTED},
    {"policies": [{**BETWEEN, "trust_hours": 9.0}], **LOSSES},
    {"policies": [TWICE, {"kind": "timer"}], "timer_hours": 1.0, **LOSSES},
]


@pytest.mark.slow
@pytest.mark.parametrize("participation", POLICIES)
def test_the_trace_is_the_same_for_any_shards_and_after_a_resume(
    tmp_path: Path, participation: dict
) -> None:
    value = scenario(participation, count=25, report_goal=400).with_overrides(
        "population.devices=300000",
        "population.reach=0.1",
        "population.joins_per_day=20000",
    )
    whole = simulated(value, tmp_path / "1")
    assert simulated(value, tmp_path / "5", 5).digest == whole.digest

    def stop_later(progress) -> None:
        if progress.committed == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(
            value,
            Placement(2, "in-process", checkpoint_seconds=0.0),
            tmp_path / "broken",
            on_progress=stop_later,
        )
    resumed = resume(tmp_path / "broken", Placement(5, "in-process"))
    assert resumed.digest == whole.digest
    assert (resumed.losses is None) == ("history_loss_per_day" not in participation)
    resumed.verify()


@pytest.mark.parametrize(
    ("participation", "message"),
    [
        ({"policies": [SWOR, SWOR]}, "2 have the kind 'swor'"),
        ({"policies": [GAP], "round_separation": 3}, "round_separation=3: a device remembers"),
        ({"policies": [SWOR], "timer_hours": 24.0}, "timer_hours=24.0: policies do not include"),
        ({"policies": [SWOR], "timer_violators": 0.1}, "timer_violators=0.1: policies do not"),
        ({"history_loss": "corrupted"}, "no history is lost without history_loss_per_day"),
        ({"policies": [{"kind": "min_sep", "minimum_separation": 3}]}, "counts is missing"),
        ({"policies": [{"kind": "swr"}]}, "is not one of timer, swor, min_sep, most_per"),
        ({"policies": [{}]}, "kind is missing"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(participation: dict, message: str) -> None:
    with pytest.raises(ScenarioError, match="participation") as refused:
        scenario(participation)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_scenario_without_policies_is_written_as_before() -> None:
    assert "policies" not in scenario({}).to_toml()
    value = scenario({"policies": [SWOR, GAP], **CORRUPTED})
    assert Scenario.from_tables(value.to_tables()) == value
