"""Whole runs against what is known of production: drop-outs, growth and churn, stress options, pace steering."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedray.audit.participation import read_patterns
from fedray.base.errors import CheckpointError, Starved
from fedray.runs.simulation import resume, simulate
from fedray.runtime.placement import Placement
from fedray.server.rounds.pace import Pace
from fedray.trace.reader import Trace
from fedray.trace.schema import OUTCOMES
from fedray.wire.messages import RunProgress

IN_PROCESS = Placement(1, "in-process")
HOUR = 3600.0


def rows_of(trace: Trace) -> dict[str, np.ndarray]:
    parts = [trace.columns(part) for part in range(len(trace.run["parts"]))]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def is_outcome(rows: dict[str, np.ndarray], *names: str) -> np.ndarray:
    return np.isin(rows["outcome"], [OUTCOMES.index(name) for name in names])


@pytest.fixture(scope="module")
def default_day(small, tmp_path_factory) -> Trace:
    """Four days of the default population in one time zone, supply short as in the published runs; 300 rounds or so."""
    scenario = small(
        "population.devices=90000",
        "rounds.report_goal=250",
        "rounds.count=1000",
        "participation.timer_hours=72.0",
        "rounds.max_days=9.0",
    )
    return simulate(scenario, IN_PROCESS, tmp_path_factory.mktemp("day") / "t")


@pytest.mark.slow
def test_drop_outs_are_those_of_production(default_day: Trace) -> None:
    """6 to 10 % of the selected drop out, more by day than by night (Bonawitz et al. 2019, section 9); with at least 100,000
    selected the sampling error is below 0.1 points. Late and dropped are 1 - 1 / over_selection = 23 % within 2 points."""
    rows = rows_of(default_day)
    hour = rows["checkin_time"] % 86_400 / HOUR
    lost = is_outcome(rows, "dropped", "failed")
    assert lost.size > 100_000
    assert 0.06 <= lost.mean() <= 0.10
    by_day, by_night = (
        lost[(hour >= 10) & (hour < 20)].mean(),
        lost[(hour >= 23) | (hour < 5)].mean(),
    )
    assert by_day > by_night + 0.01
    assert (default_day.rounds["state"] == 0).all()
    assert is_outcome(rows, "late", "dropped", "failed").mean() == pytest.approx(
        1 - 1 / 1.3, abs=0.02
    )
    assert (
        sum(default_day.outcome_counts().values())
        == default_day.rounds["selected"].sum()
        == lost.size
    )


@pytest.mark.slow
def test_growth_and_churn_show_in_who_takes_part(small, tmp_path: Path) -> None:
    """There are 68,000 ids in all. Those dealt after the first 20,000 join in order of time: in turn to two blocks, until the second is
    full. A shrinking population has fewer and fewer eligible devices."""
    growing = small(
        "population.joins_per_day=8000",
        "population.lifetime_days=5.0",
        "rounds.count=150",
        "rounds.max_days=6.0",
    )
    rows = rows_of(simulate(growing, IN_PROCESS, tmp_path / "growing"))
    block, offset = np.divmod(rows["device_id"].astype(int), 65_536)
    second = 68_000 - 65_536
    rank = np.where(offset < second, 2 * offset + block, second + offset)
    new = rank >= 20_000
    assert new.sum() > 1000
    assert (rows["checkin_time"][new] >= (rank[new] - 20_000) / 8000 * 86_400).all()
    shrinking = small(
        "population.lifetime_days=1.0",
        "participation.timer_hours=1.0",
        "rounds.count=2000",
        "rounds.max_days=4.0",
    )
    trace = simulate(shrinking, IN_PROCESS, tmp_path / "shrinking")
    days = (trace.rounds["started"] // 86_400).astype(int)
    eligible = [trace.rounds["eligible_estimate"][days == day].mean() for day in range(3)]
    assert eligible[0] > 1.8 * eligible[1] > 1.8**2 * eligible[2]


@pytest.mark.slow
def test_devices_that_ignore_the_timer_break_its_law_and_no_others(small, tmp_path: Path) -> None:
    scenario = small(
        "participation.timer_violators=0.05", "population.devices=10000", "rounds.count=60"
    )
    trace = simulate(scenario, IN_PROCESS, tmp_path / "t")
    rows = rows_of(trace)
    accepted = is_outcome(rows, "accepted")
    device, report, checkin = (
        rows[name][accepted] for name in ("device_id", "report_time", "checkin_time")
    )
    early = (device[1:] == device[:-1]) & (checkin[1:] < report[:-1] + 12 * HOUR)
    breakers = np.unique(device[1:][early]).size
    assert 0.01 * 10_000 < breakers < 0.05 * 10_000 + 100
    assert (
        read_patterns(trace).min_sep
        < read_patterns(
            simulate(
                small("population.devices=10000", "rounds.count=60"), IN_PROCESS, tmp_path / "kept"
            )
        ).min_sep
    )


def test_nothing_happens_in_an_outage(small, tmp_path: Path) -> None:
    """Hours 1 to 3: nobody checks in, nobody reports, no round starts; rounds in progress lose the reports."""
    scenario = small(
        "rounds.outages=[{start_hours=1.0,hours=2.0}]",
        "rounds.count=60",
        "population.devices=60000",
    )
    trace = simulate(scenario, IN_PROCESS, tmp_path / "t")
    rows = rows_of(trace)
    for times in (rows["checkin_time"], rows["report_time"], trace.rounds["started"]):
        assert not ((times >= HOUR) & (times < 3 * HOUR)).any()
        assert (times < HOUR).any()
        assert (times >= 3 * HOUR).any()


def test_slow_devices_take_longer_rounds(small, tmp_path: Path) -> None:
    """Secure aggregation at 0.66x: time per round from start to close grows by half, within 5 %."""
    overrides = "population.devices=60000", "rounds.count=40", "latency.failure_probability=0.0"
    plain = simulate(small(*overrides), IN_PROCESS, tmp_path / "plain").rounds
    slow = simulate(small(*overrides, "latency.slowdown=1.5"), IN_PROCESS, tmp_path / "slow").rounds
    ratio = np.median(slow["closed"] - slow["started"]) / np.median(
        plain["closed"] - plain["started"]
    )
    assert ratio == pytest.approx(1.5, rel=0.05)


def test_small_populations_come_together_and_large_ones_are_spread(small, tmp_path: Path) -> None:
    """With 16 usable devices per device to select, all check-ins lie in the first ten minutes of a window of thirty."""
    few = small("population.devices=4000", "rounds.count=4", "participation.timer_hours=1.0")
    rows = rows_of(simulate(few, IN_PROCESS, tmp_path / "few"))
    assert (rows["checkin_time"] % 1800 < 600).all()
    many = rows_of(simulate(small("rounds.count=12"), IN_PROCESS, tmp_path / "many"))
    assert (many["checkin_time"] % 1800 >= 600).mean() > 0.5
    assert Pace([few]).order(0, _census(1000), [1000]).window.ask_until_time == 600.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["participation.timer_hours=3000.0"],
            r"the last of them \d+\.\d days before; of the eligible .*lower participation.timer_hours=3000",
        ),
        (
            ["participation.timer_hours=0.0", "participation.round_separation=400"],
            r"the timer held back 0 %, the round separation [89]\d %, so lower participation.round_separation=400",
        ),
        (
            ["participation.timer_hours=3000.0", "participation.round_separation=400"],
            "so lower participation.timer_hours=3000",
        ),
        (
            ["participation.timer_hours=1.0", "participation.max_participations=1"],
            r"the round separation 0 %, the cap on participations [89]\d %, so raise participation.max_participations=1",
        ),
    ],
)
def test_a_starving_run_says_which_rule_starves_it_and_for_how_long(
    small, tmp_path: Path, overrides: list[str], expected: str
) -> None:
    # Without losses of history it would be certain before the run that it starves.
    lossy = "participation.history_loss_per_day=1e-9"
    scenario = small(
        "population.devices=6000", "rounds.count=500", "rounds.max_days=8.0", lossy, *overrides
    )
    trace = simulate(scenario, IN_PROCESS, tmp_path / "t")
    assert 1 <= trace.committed_rounds < 60
    import re

    assert re.search(expected, trace.run["ended"]), trace.run["ended"]


def test_other_availability_models_run_end_to_end(small, tmp_path: Path) -> None:
    """A replayed recording goes with the trace, which can be read and audited alone; devices that are always on never drop out."""
    from fedray.audit.auditing import audit_trace

    start = 3600 * (np.arange(97) % 24)
    sessions = {"device": np.arange(97), "start": start, "end": start + 5 * 3600}
    pq.write_table(pa.table(sessions), tmp_path / "r.parquet")
    replay = small(
        f'availability={{model="replay",file="{tmp_path}/r.parquet",day_shift="uniform",period_days=3}}'
    )
    trace = simulate(replay, IN_PROCESS, tmp_path / "replay")
    (tmp_path / "r.parquet").unlink()
    assert audit_trace(Trace.open(trace.path)).scenario.digest == replay.digest
    always = small(
        'availability={model="always_on"}',
        "latency.failure_probability=0.0",
        "population.devices=30000",
    )
    assert simulate(always, IN_PROCESS, tmp_path / "always").outcome_counts()["dropped"] == 0
    assert (
        simulate(
            small('availability={model="poisson"}'), IN_PROCESS, tmp_path / "poisson"
        ).committed_rounds
        == 12
    )


def test_a_function_of_ones_own_runs_end_to_end_and_as_the_model_that_it_copies(
    small, tmp_path: Path
) -> None:
    """Devices that are always on, by the shipped model and by a function, drawn by enumeration: the same trace, however sharded."""
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n\ndef runs(device_ids, low, high, seed):\n"
        "    size = device_ids.size\n    return np.arange(size), np.full(size, low), np.full(size, np.inf)\n"
    )
    size = "population.devices=140000", "rounds.count=4"
    custom = small(*size, f'availability={{model="custom",file="{tmp_path}/mine.py"}}')
    shipped = simulate(
        small(*size, 'availability={model="always_on"}', "rounds.sampler=enumeration"),
        IN_PROCESS,
        tmp_path / "on",
    )
    digests = {
        simulate(custom, Placement(shards, "in-process"), tmp_path / f"{shards}").digest
        for shards in (1, 2, 3)
    }
    assert digests == {shipped.digest}


def contributions_of(trace: Trace) -> np.ndarray:
    """Accepted reports of each device that had one; those in rounds that were abandoned later count."""
    rows = rows_of(trace)
    return np.unique(
        rows["device_id"][is_outcome(rows, "accepted", "abandoned")], return_counts=True
    )[1]


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["enumeration", "thinning"])
def test_no_device_contributes_more_often_than_the_cap_however_the_run_is_sharded_or_interrupted(
    small, tmp_path: Path, sampler: str
) -> None:
    """Without a timer, so that a device comes several times in one window, and with some rounds abandoned."""
    overrides = (
        f"rounds.sampler={sampler}", "population.devices=140000", "population.reach=0.1", "participation.timer_hours=0.0",
        "rounds.report_timeout_minutes=3.4", "rounds.count=12", "rounds.report_goal=100", "rounds.max_days=2.0",
        "rounds.look_ahead_minutes=15.0",
    )  # fmt: skip
    free = contributions_of(simulate(small(*overrides), IN_PROCESS, tmp_path / "free"))
    assert free.max() > 2
    capped = small(*overrides, "participation.max_participations=2")
    traces = [
        simulate(capped, Placement(shards, "in-process"), tmp_path / f"{shards}")
        for shards in (1, 2, 3)
    ]
    assert contributions_of(traces[0]).max() == 2
    assert traces[0].committed_rounds == 12
    assert is_outcome(rows_of(traces[0]), "abandoned").any()
    assert len({trace.digest for trace in traces}) == 1

    def stop(progress: RunProgress) -> None:
        if progress.simulated_seconds > 3600.0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(
            capped, Placement(1, "in-process", checkpoint_seconds=0.0), tmp_path / "stopped", stop
        )
    resumed = resume(tmp_path / "stopped", Placement(2, "in-process"))
    assert resumed.digest == traces[0].digest
    assert resumed.run["samplers"] == traces[0].run["samplers"]
    of = {"enumeration": "enumerated_windows", "thinning": "thinned_windows"}
    assert {
        name for name, count in resumed.run["samplers"].items() if count and name != "costs_version"
    } == {of[sampler]}


def test_an_unused_cap_changes_nothing(small, tmp_path: Path) -> None:
    digests = {
        simulate(small("rounds.count=6", *cap), IN_PROCESS, tmp_path / str(place)).digest
        for place, cap in enumerate([(), ("participation.max_participations=100",)])
    }
    assert len(digests) == 1


@pytest.mark.slow
def test_devices_that_the_separation_holds_back_do_not_slow_the_rounds(
    small, tmp_path: Path
) -> None:
    """With 1.25 check-ins asked for per selection or with 10, a run takes as long within 10 %; it was 48 % longer when those held
    back counted as supply."""
    days = [
        simulate(
            small(
                "population.devices=15000", "participation.timer_hours=0.0", "participation.round_separation=100",
                "rounds.report_goal=50", "rounds.count=300", "rounds.look_ahead_minutes=60.0", f"rounds.pace_multiple={multiple}",
            ),
            IN_PROCESS, tmp_path / f"{multiple}",
        ).rounds["closed"].max() / 86_400
        for multiple in (1.25, 10.0)
    ]  # fmt: skip
    assert days[0] == pytest.approx(days[1], rel=0.1)


def test_a_checkpoint_of_other_predicted_costs_is_refused(
    small, tmp_path: Path, monkeypatch
) -> None:
    """They choose the sampler, so that the rest of the run would not be the same."""

    def stop(progress: RunProgress) -> None:
        if progress.committed == 6:
            raise KeyboardInterrupt

    scenario = small("rounds.look_ahead_minutes=2.0", "population.devices=60000")
    with pytest.raises(KeyboardInterrupt):
        simulate(scenario, Placement(1, "in-process", checkpoint_seconds=0.0), tmp_path / "t", stop)
    monkeypatch.setattr("fedray.server.rounds.pace.COSTS_VERSION", 99)
    with pytest.raises(CheckpointError, match="predicted costs of version 1, this release has 99"):
        resume(tmp_path / "t", IN_PROCESS)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["enumeration", "thinning", "predicted"])
def test_runs_end_the_same_for_any_number_of_shards_by_either_sampler(
    small, tmp_path: Path, sampler: str
) -> None:
    scenario = small(
        f"rounds.sampler={sampler}", "population.devices=530000", "participation.timer_hours=1.0", "rounds.count=30",
        "population.joins_per_day=1e5", "population.lifetime_days=3.0", "rounds.max_days=2.0", "population.reach=0.5",
        "participation.round_separation=4", "participation.clock_skew_hours=0.2", "participation.timer_violators=0.1",
        "participation.max_participations=3",
        "population.time_zones=[{utc_offset_hours=-5.0,share=0.7},{utc_offset_hours=-8.0,share=0.3}]",
    )  # fmt: skip
    digests = {
        simulate(scenario, Placement(shards, "in-process"), tmp_path / f"{shards}").digest
        for shards in (1, 2, 3, 8)
    }
    assert len(digests) == 1


def test_a_run_without_supply_at_all_leaves_nothing(small, tmp_path: Path) -> None:
    with pytest.raises(Starved, match="0 of 12 rounds committed; "):
        simulate(
            small(
                "availability.day_sessions=0.0",
                "availability.night_length_hours=0.001",
                "rounds.max_days=1.0",
            ),
            IN_PROCESS,
            tmp_path / "t",
        )
    assert list(tmp_path.iterdir()) == []


def _census(open_eligible: int):
    from fedray.wire.messages import Census

    return Census(open_eligible, open_eligible, open_eligible, open_eligible)
