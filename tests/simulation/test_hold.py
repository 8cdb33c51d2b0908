"""Held devices and rules from a round on: how a run continues with a list of devices that must wait, and new rules."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedray.base.errors import InputError, ScenarioError
from fedray.runs.pipeline import resume_run
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.scenario.hold import Hold, read_hold, write_hold
from fedray.scenario.several_tasks import SeveralTasks
from fedray.trace.reader import Trace
from fedray.wire.messages import Outcome

HERE = Placement(1, "in-process")
OFTEN = Placement(1, "in-process", checkpoint_seconds=0.0)
BEGINS = 20
"""Round with which the list and the later rules begin."""
TABLES = {
    "seed": 3,
    # Two blocks of ids, of which few devices can be used, so that two shards have some each.
    "population": {"devices": 2 * 65_536, "reach": 0.016},
    "rounds": {"count": 32, "report_goal": 60, "max_days": 12.0},
    "training": {"enabled": False},
}
LATER = {"timer_hours": 24.0, "round_separation": 7, "max_participations": 2}


def scenario(folder: Path, participation: dict) -> Scenario:
    return Scenario.from_tables(
        {**TABLES, "participation": {"timer_hours": 10.0, **participation}}, directory=folder
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Trace:
    """A run without a list."""
    folder = tmp_path_factory.mktemp("plain")
    return simulate(scenario(folder, {}), HERE, folder / "t")


def parts(trace: Trace) -> Iterator[dict[str, np.ndarray]]:
    for part in range(len(trace.run["parts"])):
        yield trace.columns(part)


def accepted(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """Devices and rounds of the participations, in order of both."""
    kept = [(part, part["outcome"] == Outcome.ACCEPTED) for part in parts(trace)]
    devices = np.concatenate([part["device_id"][rows] for part, rows in kept])
    rounds = np.concatenate([part["round"][rows].astype(np.int64) for part, rows in kept])
    order = np.lexsort((rounds, devices))
    return devices[order], rounds[order]


def assert_equal_before(mine: Trace, theirs: Trace, rounds: int) -> None:
    """Every row of a round before `rounds` is the same in both traces, to the bit."""
    for a, b in zip(parts(mine), parts(theirs), strict=True):
        for name, column in a.items():
            rows, others = column[a["round"] < rounds], b[name][b["round"] < rounds]
            assert rows.tobytes() == others.tobytes()


def list_of(plain: Trace) -> tuple[np.ndarray, dict[int, float]]:
    """Devices that came before the list begins, in three lots: never again, from a round on, and from a round that is over."""
    devices, rounds = accepted(plain)
    known = np.unique(devices[rounds < BEGINS])
    firsts = {int(each): (np.inf, 26.0, 5.0)[place % 3] for place, each in enumerate(known)}
    return known, firsts


@pytest.fixture(scope="module")
def held(plain: Trace, tmp_path_factory) -> Trace:
    """The same run, continued with a list."""
    folder = tmp_path_factory.mktemp("held")
    known, firsts = list_of(plain)
    hold = Hold([str(each) for each in known], np.array(list(firsts.values())), "first_round")
    write_hold(folder / "hold.csv", hold)
    value = scenario(folder, {"hold": "hold.csv", "from_round": BEGINS})
    return simulate(value, HERE, folder / "t")


@pytest.mark.compiles
@pytest.mark.xdist_group("ray")
def test_rounds_before_the_list_are_those_of_the_run_without_it(plain: Trace, held: Trace) -> None:
    assert_equal_before(held, plain, BEGINS)
    started = (trace.rounds["started"][:BEGINS].tobytes() for trace in (plain, held))
    assert len(set(started)) == 1
    # The list makes a difference, so the equality above is not that of one run with itself.
    assert held.digest != plain.digest


def test_a_held_device_waits_for_its_round_and_one_whose_round_is_over_is_free(
    plain: Trace, held: Trace
) -> None:
    known, firsts = list_of(plain)
    devices, rounds = accepted(held)
    later = rounds >= BEGINS
    of_list = later & np.isin(devices, known)
    first = np.array([firsts.get(int(each), 0.0) for each in devices])
    assert (rounds >= first)[later].all()
    # Without the list, devices that it excludes came back at these rounds.
    others, again = accepted(plain)
    without = np.array([firsts.get(int(each), 0.0) for each in others])
    assert (again < without)[again >= BEGINS].sum() > 100
    assert (first[of_list] == 5.0).sum() > 20
    assert (first[of_list] == 26.0).sum() > 20


@pytest.mark.slow
def test_shards_and_interruptions_change_nothing_with_a_list_and_later_rules(
    plain: Trace, tmp_path: Path
) -> None:
    known, firsts = list_of(plain)
    hold = Hold([str(each) for each in known], np.array(list(firsts.values())), "first_round")
    write_hold(tmp_path / "hold.parquet", hold)
    given = {"hold": "hold.parquet", "from_round": BEGINS, "later": LATER}
    value = scenario(tmp_path, given)
    whole = simulate(value, HERE, tmp_path / "a")
    assert simulate(value, Placement(2, "in-process"), tmp_path / "b").digest == whole.digest
    for committed in (BEGINS - 2, BEGINS, BEGINS + 2):

        def interrupt(progress, committed=committed) -> None:
            if progress.committed == committed:
                raise KeyboardInterrupt

        out = tmp_path / str(committed)
        with pytest.raises(KeyboardInterrupt):
            simulate(value, OFTEN, out, on_progress=interrupt)
        assert resume_run(out, Placement(2, "in-process")).digest == whole.digest


@pytest.mark.slow
def test_later_rules_count_the_participations_before_them(plain: Trace, tmp_path: Path) -> None:
    trace = simulate(
        scenario(tmp_path, {"from_round": BEGINS, "later": LATER}), HERE, tmp_path / "t"
    )
    assert_equal_before(trace, plain, BEGINS)
    waits, separations, counts = broken_rules(trace)
    assert (waits, separations, counts) == (0, 0, 0)
    assert min(broken_rules(plain)) > 0


def broken_rules(trace: Trace) -> tuple[int, int, int]:
    """Participations from round BEGINS on that are too soon in hours, in rounds, or too many."""
    found = np.zeros(3, np.int64)
    for part in parts(trace):
        kept = part["outcome"] == Outcome.ACCEPTED
        rows = {name: column[kept] for name, column in part.items()}
        again = 1 + np.flatnonzero(rows["device_id"][1:] == rows["device_id"][:-1])
        later = again[rows["round"][again] >= BEGINS]
        rounds = rows["round"].astype(np.int64)
        hours = (rows["checkin_time"][later] - rows["report_time"][later - 1]) / 3600.0
        found[0] += (hours < LATER["timer_hours"]).sum()
        found[1] += (rounds[later] - rounds[later - 1] < LATER["round_separation"]).sum()
        devices, firsts = np.unique(rows["device_id"], return_index=True)
        place = np.arange(rounds.size) - firsts[np.searchsorted(devices, rows["device_id"])]
        found[2] += ((place >= LATER["max_participations"]) & (rounds >= BEGINS)).sum()
    return found[0], found[1], found[2]


@pytest.mark.slow
def test_a_device_is_held_until_a_time_beside_other_policies(plain: Trace, tmp_path: Path) -> None:
    devices, _ = accepted(plain)
    times = np.float64(plain.rounds["started"][24]) + 0.5 * np.arange(np.unique(devices).size)
    times[::4] = np.inf
    hold = Hold([str(each) for each in np.unique(devices)], times, "first_time")
    write_hold(tmp_path / "hold.csv", hold)
    policies = [{"kind": "timer"}, {"kind": "min_sep", "minimum_separation": 4, "counts": "gap"}]
    value = scenario(tmp_path, {"hold": "hold.csv", "policies": policies})
    trace = simulate(value, HERE, tmp_path / "t")
    first = dict(zip(np.unique(devices).tolist(), times.tolist(), strict=True))
    waited = 0
    for part in parts(trace):
        of_list = np.isin(part["device_id"], np.unique(devices))
        wanted = [first[each] for each in part["device_id"][of_list].tolist()]
        assert (part["checkin_time"][of_list] >= wanted).all()
        waited += int(of_list.sum())
    assert waited > 50


def test_the_content_of_the_list_is_part_of_the_scenario_and_the_order_of_its_rows_is_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.csv").write_text("device_id,first_round\n7,30\n12,\n")
    (tmp_path / "b.csv").write_text("first_round,device_id\n,12\n30,7\n")
    (tmp_path / "c.csv").write_text("device_id,first_round\n7,31\n12,\n")
    pq.write_table(
        pa.table({"device_id": ["12", "7"], "first_round": [None, 30]}), tmp_path / "d.parquet"
    )
    digests = [
        scenario(tmp_path, {"hold": name}).digest
        for name in ("a.csv", "b.csv", "c.csv", "d.parquet")
    ]
    assert digests[0] == digests[1] == digests[3] != digests[2]
    assert scenario(tmp_path, {}).digest not in digests
    value = scenario(tmp_path, {"hold": "a.csv"})
    assert value.with_overrides("rounds.count=40").participation.hold == value.participation.hold


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("by", ["first_round", "first_time"])
def test_a_hold_file_is_read_as_it_was_written(tmp_path: Path, suffix: str, by) -> None:
    hold = Hold(["007", "b,c", "ü"], np.array([3.0, np.inf, 0.0]), by)
    write_hold(tmp_path / f"h.{suffix}", hold)
    found = read_hold(tmp_path / f"h.{suffix}")
    assert (list(found.device_ids), found.by) == (hold.device_ids, by)
    assert found.first.tolist() == hold.first.tolist()


def test_a_list_may_be_empty(tmp_path: Path) -> None:
    (tmp_path / "hold.csv").write_text("device_id,first_round\n")
    hold = scenario(tmp_path, {"hold": "hold.csv"}).participation.hold
    assert hold is not None
    assert hold.devices.device_ids.size == 0
    found = read_hold(tmp_path / "hold.csv")
    assert (list(found.device_ids), found.first.size) == ([], 0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("device_id,first_round\n7,3\n7,4\n", "names device '7' twice"),
        ("device_id,first_round\n7,3\n007,4\n", "names device 7 twice"),
        ("device_id,first_round\n7,x\n", "cannot be read as CSV or Parquet"),
        ("device_id,first_round\n7,-1\n", "has first_round=-1, which must be from 0"),
        ("device_id,first_time\n7,nan\n", "has first_time=nan, which must be finite"),
        ("device_id,first_round\n,3\n", "has a row without a device_id"),
        ("device_id\n7\n", "has the columns 'device_id'"),
        ("device_id,first_round,first_time\n7,1,\n", "has the columns"),
        ("device_id,first_round,first_round\n7,1,2\n", "has the columns"),
        ("device_id,device_id,first_time\n7,8,2\n", "has the columns"),
        ("device_id,first_round\nphone,3\n", "names a device that no simulation has"),
        ("device_id,first_round\n131072,3\n", "names device 131072, but devices have ids"),
        ("", "cannot be read as CSV or Parquet"),
    ],
)
def test_a_wrong_hold_file_is_refused_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "hold.csv").write_text(text)
    with pytest.raises(ScenarioError) as error:
        scenario(tmp_path, {"hold": "hold.csv"})
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_a_hold_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_hold(tmp_path / "none.csv")
    with pytest.raises(ScenarioError, match="cannot be read"):
        scenario(tmp_path, {"hold": "none.csv"})


@pytest.mark.parametrize(
    ("participation", "told"),
    [
        ({"from_round": 5}, "neither hold nor later is given"),
        ({"later": {"timer_hours": 5.0}}, "later.timer_hours=5 is below timer_hours=10"),
        ({"max_participations": 3, "later": {"max_participations": 4}}, "lower it"),
        ({"policies": [], "timer_hours": 72.0, "later": {"timer_hours": 80.0}}, "do not include"),
    ],
)
def test_later_rules_that_mean_nothing_are_refused(
    tmp_path: Path, participation: dict, told: str
) -> None:
    with pytest.raises(ScenarioError, match=told):
        scenario(tmp_path, participation)


def test_lists_are_for_rounds_that_select_their_devices_together(tmp_path: Path, small) -> None:
    (tmp_path / "hold.csv").write_text("device_id,first_round\n7,3\n")
    with pytest.raises(ScenarioError, match="devices are held only if"):
        small(
            "rounds.mode=buffered",
            "rounds.buffer={concurrency=100, max_staleness=2}",
            f"participation.hold={str(tmp_path / 'hold.csv')!r}",
        )


@pytest.mark.slow
def test_each_of_several_tasks_has_a_list_of_its_own(plain: Trace, tmp_path: Path) -> None:
    devices, _ = accepted(plain)
    hold = Hold(
        [str(each) for each in np.unique(devices)],
        np.full(np.unique(devices).size, np.inf),
        "first_round",
    )
    write_hold(tmp_path / "hold.csv", hold)
    tables = {
        **TABLES,
        "rounds": {"count": 8, "report_goal": 40, "max_days": 12.0},
        "participation": {"timer_hours": 10.0},
        "tasks": {"a": {"participation": {"hold": "hold.csv"}}, "b": {}},
    }
    value = SeveralTasks.from_tables(tables, directory=tmp_path)
    simulate(value, HERE, tmp_path / "t")
    first, second = (accepted(Trace.open(tmp_path / "t" / name))[0] for name in "ab")
    assert not np.isin(first, devices).any()
    assert np.isin(second, devices).any()
    assert first.size == 8 * 40
