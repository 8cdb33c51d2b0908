"""PopulationShard: the check-in process, timers, and independence of sharding."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedray.base.blocks import shard_ranges
from fedray.base.errors import InputError
from fedray.base.rng import Stream, stream_key
from fedray.clients.availability.factory import availability_of
from fedray.clients.availability.model import Listing
from fedray.clients.check_in import CheckInProcess, draw_candidates
from fedray.clients.device_map import DeviceMap
from fedray.clients.population import (
    DeviceModel,
    JoinOrder,
    Presence,
    devices_of_ranks,
    join_rank,
    joined_before,
    joined_in_block,
    present_between,
)
from fedray.clients.rows import RowStore
from fedray.clients.shard import PopulationShard
from fedray.clients.tasks_shard import TasksShard
from fedray.scenario import Scenario, SeveralTasks
from fedray.wire.messages import Census, CheckInOrder, CheckIns, Outcome, Settlement, Window

HOUR = 3600.0
ATTEMPTS = itertools.count()
SAMPLERS = pytest.mark.parametrize("is_enumerated", [True, False], ids=["enumeration", "thinning"])


def order(
    window: int, rate: float, *settlements: Settlement, is_enumerated: bool = True
) -> CheckInOrder:
    start, end = window * HOUR, (window + 1) * HOUR
    return CheckInOrder(
        Window(window, start, end, end, rate), is_enumerated, 0.0, 14 * HOUR, settlements
    )


def scenario(devices: int, *overrides: str) -> Scenario:
    tables = {
        "seed": 5,
        "population": {"devices": devices},
        "rounds": {"count": 1, "report_goal": 10},
        "training": {"enabled": False},
    }
    return Scenario.from_tables(tables).with_overrides(*overrides)


def settlement(device_ids: np.ndarray, reopen: int) -> Settlement:
    size = device_ids.size
    return Settlement(
        attempt=next(ATTEMPTS),
        round_index=0,
        device_ids=device_ids,
        check_in_times=np.zeros(size),
        report_times=np.ones(size),
        outcomes=np.full(size, Outcome.ACCEPTED, np.uint8),
        open_times=np.full(size, reopen, np.uint32),
        remembers_round=np.ones(size, bool),
        forget_times=np.empty(0, np.uint32),
    )


def columns(check_ins: CheckIns) -> list[list]:
    names = ("device_ids", "times", "interval_ends", "fixed_seconds", "training_seconds")
    return [getattr(check_ins, name).tolist() for name in names]


@pytest.mark.slow
@SAMPLERS
def test_check_ins_do_not_depend_on_shards(is_enumerated: bool) -> None:
    value = scenario(300_000, "population.reach=0.8")
    whole = PopulationShard(value, 0, 300_000)
    shards = [PopulationShard(value, first, end) for first, end in shard_ranges(300_000, 3)]
    settled: tuple[Settlement, ...] = ()
    for window in (0, 1, 2):
        asked = order(window, 2.0, *settled, is_enumerated=is_enumerated)
        together = whole.check_ins(asked)
        apart = []
        for shard in shards:
            mine = tuple(
                each.slice_of_devices(shard.first_device, shard.end_device) for each in settled
            )
            apart.append(shard.check_ins(dataclasses.replace(asked, settlements=mine)))
        place = np.argsort(np.concatenate([part.times for part in apart]), kind="stable")
        for name in ("times", "device_ids", "interval_ends", "fixed_seconds", "training_seconds"):
            assert (
                np.concatenate([getattr(part, name) for part in apart])[place].tolist()
                == getattr(together, name).tolist()
            )
        assert sum((part.census for part in apart), Census(0, 0, 0, 0)) == together.census
        settled = (settlement(np.unique(together.device_ids)[::3], (window + 5) * int(HOUR)),)


@SAMPLERS
def test_a_window_asked_for_again_is_the_same_and_settlements_count_once(
    is_enumerated: bool,
) -> None:
    shard = PopulationShard(scenario(20_000), 0, 20_000)
    shard.check_ins(order(0, 6.0, is_enumerated=is_enumerated))
    settled = settlement(np.arange(0, 20_000, 7, dtype=np.uint64), 9000)
    again = order(1, 6.0, settled, is_enumerated=is_enumerated)
    assert columns(shard.check_ins(again)) == columns(shard.check_ins(again))
    assert shard.rows == settled.device_ids.size


@SAMPLERS
def test_work_and_last_round_are_the_device_s_own_in_any_shard(is_enumerated: bool) -> None:
    """A second shard, of one block, against the shard of both."""
    value = scenario(70_000, "participation.round_separation=2")
    whole, second = (PopulationShard(value, first, 70_000) for first in (0, 65_536))
    took_part = settlement(np.arange(65_536, 70_000, 2, dtype=np.uint64), 0)
    asked = dataclasses.replace(order(0, 6.0, took_part, is_enumerated=is_enumerated), rounds=(1,))
    together, apart = whole.check_ins(asked), second.check_ins(asked)
    is_there = together.device_ids >= 65_536
    assert is_there.sum() > 100
    assert columns(apart) == [np.array(each)[is_there].tolist() for each in columns(together)]
    last = np.where(apart.device_ids % 2 == 0, 0, -1)
    assert apart.last_rounds.tolist() == last.tolist()


@pytest.mark.slow
@SAMPLERS
def test_preparing_a_window_changes_no_answer(is_enumerated: bool) -> None:
    """Though timers start after it is prepared, some of which open within the window, before or after a first check-in."""
    value = scenario(60_000)
    one, other = PopulationShard(value, 0, 60_000), PopulationShard(value, 0, 60_000)
    settled: tuple[Settlement, ...] = ()
    for window in range(5):
        asked = order(window, 3.0, *settled, is_enumerated=is_enumerated)
        if window % 2:
            one.prepare(dataclasses.replace(asked, settlements=()))
        if window == 3:
            one.prepare(
                dataclasses.replace(
                    asked, settlements=(), window=asked.window._replace(check_ins_per_hour=1.0)
                )
            )  # not what is asked for then
        answer, plain = one.check_ins(asked), other.check_ins(asked)
        assert columns(answer) == columns(plain)
        assert answer.census == plain.census
        assert answer.times.size > 1000
        chosen = np.unique(answer.device_ids)[::2]
        opens = int((window + 1) * HOUR) + (chosen % np.uint64(5400)).astype(np.uint32)
        settled = (dataclasses.replace(settlement(chosen, 0), open_times=opens.astype(np.uint32)),)


FORGETFUL = (
    "participation.policies=[{kind='swor', period_hours=2.0}]",
    "participation.history_loss_per_day=4.0",
)


@pytest.mark.slow
@SAMPLERS
@pytest.mark.parametrize("overrides", [(), FORGETFUL], ids=["default", "forgetful"])
def test_a_shard_that_starts_late_lists_what_one_that_was_there_lists(
    is_enumerated: bool, overrides: tuple[str, ...]
) -> None:
    """What is kept from window to window (active intervals, when their timers open) is what a new shard finds out.

    So is when the period began for which intervals were listed, which decides which losses of history were known then.
    """
    value = scenario(60_000, *overrides)
    shard, settled = PopulationShard(value, 0, 60_000), []
    for window in range(6):
        asked = order(window, 3.0, *settled[-2:], is_enumerated=is_enumerated)
        if window != 3:
            shard.prepare(dataclasses.replace(asked, settlements=()))
        answer = shard.check_ins(asked)
        late = PopulationShard(value, 0, 60_000)
        late.settle(settled)
        assert columns(late.check_ins(asked)) == columns(answer)
        chosen = np.unique(answer.device_ids)
        for devices in (chosen[::3], chosen[1::3]):
            opens = int((window + 1) * HOUR) + (devices % np.uint64(9000)).astype(np.uint32)
            settled.append(
                dataclasses.replace(settlement(devices, 0), open_times=opens.astype(np.uint32))
            )


@pytest.mark.slow
@SAMPLERS
def test_every_check_in_lies_in_an_eligible_interval_and_in_its_window(is_enumerated: bool) -> None:
    value = scenario(20_000)
    check_ins = PopulationShard(value, 0, 20_000).check_ins(
        order(0, 6.0, is_enumerated=is_enumerated)
    )
    assert check_ins.times.size > 1000
    assert ((check_ins.times >= 0) & (check_ins.times < HOUR)).all()
    ends = availability_of(value).interval_ends(check_ins.device_ids, check_ins.times)
    np.testing.assert_allclose(ends, check_ins.interval_ends, rtol=0, atol=1e-6)
    assert (np.diff(check_ins.times) >= 0).all()


@pytest.mark.slow
@SAMPLERS
def test_first_check_ins_come_at_the_asked_rate(is_enumerated: bool) -> None:
    """Devices that are eligible for a whole window have times from its start to the first check-in that are exponential at 3 an
    hour, cut at the end; not at 3.3 (power). About 4,500 devices; fixed seed; rejects at p < 1e-4."""
    value = scenario(60_000)
    shard = PopulationShard(value, 0, 60_000)
    check_ins = shard.check_ins(order(1, 3.0, is_enumerated=is_enumerated))
    intervals = availability_of(value).list_intervals(
        Listing(np.arange(60_000, dtype=np.uint64), np.zeros(60_000), HOUR, 2 * HOUR)
    )
    whole = intervals.local[(intervals.start_times <= HOUR) & (intervals.end_times >= 2 * HOUR)]
    is_whole = np.isin(check_ins.device_ids, whole)
    assert np.unique(check_ins.device_ids[is_whole]).size == is_whole.sum()
    first = np.sort(check_ins.times[is_whole] - HOUR)
    assert whole.size > 3000

    def p_values(rate: float) -> tuple[float, float]:
        share = -np.expm1(-rate)
        counted = stats.binomtest(first.size, whole.size, share).pvalue
        return counted, stats.kstest(first, lambda t: -np.expm1(-rate * t / HOUR) / share).pvalue

    assert min(p_values(3.0)) > 1e-4
    assert min(p_values(3.3)) < 1e-4


@pytest.mark.slow
@SAMPLERS
def test_a_closed_timer_keeps_a_device_away_until_its_second(is_enumerated: bool) -> None:
    value = scenario(20_000)
    free, timed = PopulationShard(value, 0, 20_000), PopulationShard(value, 0, 20_000)
    everyone = free.check_ins(order(0, 6.0, is_enumerated=is_enumerated))
    chosen = np.unique(everyone.device_ids)[::2]
    held = timed.check_ins(order(0, 6.0, settlement(chosen, 1800), is_enumerated=is_enumerated))
    of_chosen = np.isin(held.device_ids, chosen)
    assert of_chosen.any()
    assert (held.times[of_chosen] >= 1800).all()
    assert (
        held.times[~of_chosen].tolist()
        == everyone.times[~np.isin(everyone.device_ids, chosen)].tolist()
    )
    assert held.census.eligible == everyone.census.eligible
    assert (
        held.census.open_eligible
        == everyone.census.open_eligible
        - np.isin(chosen, everyone.device_ids).sum()
        + (~np.isin(chosen, _eligible_at_the_start(value))).sum()
    )


def _eligible_at_the_start(value: Scenario) -> np.ndarray:
    devices = np.arange(value.device_ids, dtype=np.uint64)
    return devices[availability_of(value).interval_ends(devices, np.zeros(devices.size)) > 0]


def test_timers_only_move_forward() -> None:
    shard = PopulationShard(scenario(20_000), 0, 20_000)
    device = np.array([17], np.uint64)
    shard.settle([settlement(device, 5000), settlement(device, 0)])
    assert shard.open_times_of(device).tolist() == [5000]


def test_the_census_estimates_how_many_are_eligible() -> None:
    """With 300,000 devices every fourth one is counted: the estimate is within 4 standard errors of the count."""
    value = scenario(300_000)
    census = PopulationShard(value, 0, 300_000).check_ins(order(0, 0.0)).census
    exact = _eligible_at_the_start(value).size
    assert abs(census.eligible - exact) < 4 * np.sqrt(4 * exact)
    assert census.open_eligible == census.free_eligible == census.eligible
    assert census.listed == pytest.approx(300_000, rel=1e-4)


def test_several_tasks_count_the_devices_that_each_would_count_alone() -> None:
    """They share one sample of the devices; a task that asks for data counts fewer of it."""
    value = scenario(20_000, "population.joins_per_day=5000", "population.lifetime_days=2.0")
    data = {"policies": [{"kind": "data_available", "min_example_count": 60}]}
    tasks = {"any": {}, "choosy": {"participation": data}, "other": {"rounds": {"report_goal": 20}}}
    several = SeveralTasks.from_tables({**value.to_tables(), "tasks": tasks})
    shards = [PopulationShard(task.scenario, 0, value.device_ids) for task in several.tasks]
    together = TasksShard(several, 0, value.device_ids)
    for day in (0, 1):
        period = {"list_from_time": 24 * HOUR * day, "list_until_time": 24 * HOUR * day + 14 * HOUR}
        asked = dataclasses.replace(order(24 * day + 1, 0.0), rounds=(0, 0, 0), **period)
        alone = tuple(shard.check_ins(asked).census for shard in shards)
        assert together.check_ins(asked).task_censuses == alone
        assert 0 < alone[1].eligible < alone[0].eligible == alone[2].eligible


def test_devices_join_and_leave() -> None:
    """20,000 there at the start with a mean life of 2 days, 5,000 more a day: ids follow, and who is gone stays away."""
    value = scenario(
        20_000,
        "population.joins_per_day=5000",
        "population.lifetime_days=2.0",
        "rounds.max_days=4.0",
    )
    assert value.device_ids == 40_000
    presence = Presence.of(value)
    joins, leaves = present_between(presence, np.arange(40_000, dtype=np.uint64))
    assert (joins[:20_000] == 0).all()
    assert (np.diff(joins[20_000:]) > 0).all()
    assert joins[-1] < 4 * 86_400
    assert stats.kstest((leaves - joins) / 86_400, stats.expon(scale=2.0).cdf).pvalue > 1e-4
    for is_enumerated in (True, False):
        shard = PopulationShard(value, 0, 40_000)
        window = 60
        start = window * HOUR
        asked = CheckInOrder(
            Window(window, start, start + HOUR, start + HOUR, 6.0),
            is_enumerated,
            start,
            start + 2 * HOUR,
            (),
        )
        check_ins = shard.check_ins(asked)
        assert check_ins.times.size > 500
        there = joins[check_ins.device_ids.astype(int)], leaves[check_ins.device_ids.astype(int)]
        assert (there[0] <= check_ins.times).all()
        assert (check_ins.interval_ends <= there[1]).all()
        assert (check_ins.device_ids >= 20_000).any()


@given(st.integers(1, 60), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_ids_are_dealt_to_the_blocks_in_turn(devices: int, block_devices: int) -> None:
    """Every rank is one id's; of a block, the first ids join first; blocks that are not full hold the same number, but for one."""
    blocks = -(-devices // block_devices)
    dealt = JoinOrder(blocks, block_devices, devices - (blocks - 1) * block_devices)
    ids = devices_of_ranks(dealt, np.arange(devices))
    assert sorted(ids.tolist()) == list(range(devices))
    assert [join_rank.py_func(dealt, device) for device in ids.tolist()] == list(range(devices))
    for joined in range(devices + 1):
        first, counts = ids[:joined], []
        for block in range(blocks):
            mine = sorted(
                device - block * block_devices
                for device in first.tolist()
                if device // block_devices == block
            )
            assert mine == list(range(joined_in_block(dealt, block, joined)))
            counts.append(len(mine))
        growing = [
            count
            for block, count in enumerate(counts)
            if count < min(block_devices, devices - block * block_devices)
        ]
        assert not growing or max(growing) - min(growing) <= 1


def test_shards_of_a_growing_population_have_equal_shares_and_draw_what_is_predicted() -> None:
    """2.38 million devices and 100,000 more a day, as 8 shards: each holds an eighth of the devices that are there, within the
    size of a block; thinning draws a candidate per device that is there, not per id (16 times as many). Within 5 deviations."""
    value = scenario(2_380_000, "population.joins_per_day=100000", "population.reach=0.5")
    presence = Presence.of(value)
    there, drawn = [], 0
    day = order(24, 0.01, is_enumerated=False)
    for first, end in shard_ranges(value.device_ids, 8):
        blocks = range(first // 65_536, -(-end // 65_536))
        there.append(
            sum(
                joined_in_block(presence.order, block, joined_before(presence, 0.0))
                for block in blocks
            )
        )
        key = stream_key(value.seed, Stream.THINNING)
        process = CheckInProcess.of(day.window, key, first)
        drawn += draw_candidates(DeviceModel.of(value), presence, process, end)[0].size
    assert sum(there) == pytest.approx(2_380_000, abs=2)
    assert max(there) - min(there) < 2_380_000 / 8 * 0.05
    expected = 2_480_000 * 0.5 * 0.01
    assert abs(drawn - expected) < 5 * np.sqrt(expected)


@pytest.mark.slow
def test_the_census_of_a_growing_population_counts_those_who_are_there() -> None:
    """Every 21st to join, of 1.4 million ids of which 300,000 are there: within 5 deviations of the count, as are those listed."""
    value = scenario(300_000, "population.joins_per_day=100000", "rounds.max_days=11.0")
    census = PopulationShard(value, 0, value.device_ids).check_ins(order(0, 0.0)).census
    present = np.sort(devices_of_ranks(Presence.of(value).order, np.arange(300_000))).astype(
        np.uint64
    )
    exact = int((availability_of(value).interval_ends(present, np.zeros(present.size)) > 0).sum())
    assert abs(census.eligible - exact) < 5 * np.sqrt(21 * exact)
    assert census.listed == pytest.approx(300_000 + 100_000 * 14 / 24, rel=0.01)


def test_violators_wait_for_nothing_and_clocks_go_wrong() -> None:
    value = scenario(
        20_000, "participation.timer_violators=0.1", "participation.clock_skew_hours=2.0"
    )
    check_ins = PopulationShard(value, 0, 20_000).check_ins(order(0, 6.0))
    waits = check_ins.timer_seconds
    assert waits.size == check_ins.device_ids.size
    ignored = waits == 0.0
    assert ignored.mean() == pytest.approx(0.1, abs=4 * np.sqrt(0.09 / waits.size))
    assert stats.kstest((waits[~ignored] - 72 * HOUR) / (2 * HOUR), stats.norm.cdf).pvalue > 1e-4
    assert (
        PopulationShard(scenario(20_000), 0, 20_000).check_ins(order(0, 6.0)).timer_seconds.size
        == 0
    )


def test_rows_come_back_whole_through_their_files(monkeypatch, tmp_path: Path) -> None:
    """With chunks of 1,000 rows; every column of every row, sorted by device and then in order of time."""
    monkeypatch.setattr("fedray.clients.rows.CHUNK_ROWS", 1000)
    generator = np.random.default_rng(1)
    store, expected = RowStore(), []
    for attempt in range(20):
        devices = np.sort(generator.choice(5000, 300, replace=False)).astype(np.uint64)
        times = 100.0 * attempt + generator.uniform(0, 50, 300)
        reports = np.where(generator.uniform(size=300) < 0.1, np.nan, times + 9.0)
        outcomes = generator.integers(0, 5, 300).astype(np.uint8)
        reopen, remembers = np.zeros(300, np.uint32), np.zeros(300, np.bool_)
        given = [column.copy() for column in (devices, times, reports, outcomes)]
        store.add(
            Settlement(attempt, attempt // 2, *given, reopen, remembers, np.empty(0, np.uint32))
        )
        for (
            column
        ) in given:  # what is kept is a copy: a message that it came with need not stay in memory
            column.fill(0)
        expected.extend(
            zip(
                devices.tolist(),
                times.tolist(),
                [attempt // 2] * 300,
                reports.tolist(),
                outcomes.tolist(),
                strict=True,
            )
        )
    found = store.of_devices(1000, 3000)
    rows = list(
        zip(
            *(
                found[name].tolist()
                for name in ("device_id", "checkin_time", "round", "report_time", "outcome")
            ),
            strict=True,
        )
    )
    assert repr(rows) == repr(
        sorted((row for row in expected if 1000 <= row[0] < 3000), key=lambda row: row[:2])
    )
    assert store.rows == 6000


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 399), min_size=1, max_size=60), st.integers(0, 2**32 - 1)
        ),
        max_size=12,
    )
)
@settings(max_examples=200, deadline=None)
def test_a_device_map_is_a_dict_of_maxima(batches) -> None:
    """Whether it is sparse or has become dense."""
    table, twin = DeviceMap(400), {}
    for indices, value in batches:
        table.raise_to(np.array(indices), np.full(len(indices), value, np.uint32))
        for index in indices:
            twin[index] = max(twin.get(index, 0), value)
    assert table.get(np.arange(400)).tolist() == [twin.get(index, 0) for index in range(400)]
    assert table.nbytes <= max(4 * 400 + 8, 8 * 64)


def test_a_device_map_takes_the_smaller_of_its_two_forms() -> None:
    table = DeviceMap(1_000_000)
    table.raise_to(np.arange(0, 1_000_000, 100), np.ones(10_000, np.uint32))
    assert not table.is_dense
    assert table.nbytes < 1_000_000
    table.raise_to(np.arange(0, 1_000_000, 5), np.ones(200_000, np.uint32))
    assert table.is_dense
    assert table.get(np.array([100, 105, 7])).tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    ("devices", "shards"), [(10, 1), (65_536, 2), (400_000, 3), (400_000, 20), (10**9, 7)]
)
def test_shards_share_out_every_device_on_part_edges(devices: int, shards: int) -> None:
    ranges = shard_ranges(devices, shards)
    assert len(ranges) == shards
    assert ranges[0][0] == 0
    assert ranges[-1][1] == devices
    assert all(end == first for (_, end), (first, _) in zip(ranges, ranges[1:], strict=False))


def test_a_shard_that_could_not_number_its_devices_is_refused() -> None:
    with pytest.raises(InputError, match="shards=1 must leave each shard at most"):
        shard_ranges(2**33, 1)
    assert len(shard_ranges(2**33, 3)) == 3
