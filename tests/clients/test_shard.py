"""PopulationShard: the check-in process, timers, and independence of sharding."""

import numpy as np
import pytest
from scipy import stats

from clients.population import shard_ranges
from clients.shard import PopulationShard
from fedray.messages import CheckInOrder, CheckIns, Outcome, Settlement
from fedray.scenario import Scenario

HOUR = 3600.0


def order(window: int, rate: float, *settlements: Settlement) -> CheckInOrder:
    return CheckInOrder(window, window * HOUR, (window + 1) * HOUR, rate, settlements)


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
        device_ids=device_ids,
        rounds=np.zeros(size, np.uint32),
        checkin_times=np.zeros(size),
        report_times=np.ones(size),
        outcomes=np.full(size, Outcome.ACCEPTED, np.uint8),
        reopen_seconds=np.full(size, reopen, np.uint32),
        remembers_round=np.ones(size, bool),
    )


def columns(check_ins: CheckIns) -> list[list]:
    return [
        getattr(check_ins, name).tolist() for name in ("device_ids", "times", "session_ends", "work_seconds", "failure_seconds")
    ]


def test_check_ins_do_not_depend_on_shards() -> None:
    value = scenario(300_000)
    whole = PopulationShard(value, 0, 300_000)
    shards = [PopulationShard(value, first, end) for first, end in shard_ranges(300_000, 3)]
    for window in (0, 1, 2):
        together = whole.check_ins(order(window, 2.0))
        apart = [shard.check_ins(order(window, 2.0)) for shard in shards]
        times = np.concatenate([part.times for part in apart])
        devices = np.concatenate([part.device_ids for part in apart])
        place = np.lexsort((devices, times))
        assert times[place].tolist() == together.times.tolist()
        assert devices[place].tolist() == together.device_ids.tolist()
        assert sum(part.open_eligible for part in apart) == together.open_eligible
        assert sum(part.eligible_estimate for part in apart) == together.eligible_estimate


def test_every_check_in_lies_in_an_eligible_run_and_in_its_window() -> None:
    shard = PopulationShard(scenario(20_000), 0, 20_000)
    check_ins = shard.check_ins(order(0, 6.0))
    assert check_ins.times.size > 1000
    assert ((check_ins.times >= 0) & (check_ins.times < HOUR)).all()
    assert (check_ins.times < check_ins.session_ends).all()
    assert (np.diff(check_ins.times) >= 0).all()


def test_check_ins_are_a_poisson_process_of_the_asked_rate() -> None:
    """Of devices eligible for a whole window: counts at rate 3 an hour follow Poisson(3), and not Poisson(3.3).

    About 4,500 devices; fixed seed; rejects at p < 1e-4, so one false alarm in 10,000 changes of the generator.
    """
    shard = PopulationShard(scenario(60_000, "latency.failure_probability=0.0"), 0, 60_000)
    shard.check_ins(order(0, 0.0))
    check_ins = shard.check_ins(order(1, 3.0))
    active = shard._active
    whole = active.index[(active.start <= HOUR) & (active.end >= 2 * HOUR)]
    counts = np.bincount(check_ins.device_ids.astype(np.int64), minlength=60_000)[whole]
    assert whole.size > 3000

    def p_value(mean: float) -> float:
        observed = np.bincount(np.minimum(counts, 9), minlength=10)
        expected = stats.poisson(mean).pmf(np.arange(9)) * counts.size
        return stats.chisquare(observed, np.append(expected, counts.size - expected.sum())).pvalue

    assert p_value(3.0) > 1e-4
    assert p_value(3.3) < 1e-4
    one = np.isin(check_ins.device_ids, whole)
    assert stats.kstest(check_ins.times[one] - HOUR, stats.uniform(0, HOUR).cdf).pvalue > 1e-4


def test_a_closed_timer_keeps_a_device_away_until_its_second() -> None:
    value = scenario(20_000)
    free, timed = PopulationShard(value, 0, 20_000), PopulationShard(value, 0, 20_000)
    everyone = free.check_ins(order(0, 6.0))
    chosen = np.unique(everyone.device_ids)[::2]
    held = timed.check_ins(order(0, 6.0, settlement(chosen, 1800)))
    of_chosen = np.isin(held.device_ids, chosen)
    assert of_chosen.any()
    assert (held.times[of_chosen] >= 1800).all()
    assert held.times[~of_chosen].tolist() == everyone.times[~np.isin(everyone.device_ids, chosen)].tolist()
    assert held.open_eligible < everyone.open_eligible
    assert held.eligible_estimate == everyone.eligible_estimate


def test_timers_only_move_forward() -> None:
    shard = PopulationShard(scenario(20_000), 0, 20_000)
    device = np.array([17], np.uint64)
    shard.settle([settlement(device, 5000), settlement(device, 0)])
    assert shard._reopen[17] == 5000


def test_the_census_estimates_how_many_are_eligible() -> None:
    """With 300,000 devices every second one is counted: the estimate is within 4 standard errors of the count."""
    value = scenario(300_000)
    shard = PopulationShard(value, 0, 300_000)
    check_ins = shard.check_ins(order(0, 0.0))
    active = shard._active
    exact = int(((active.start <= 0.0) & (active.end > 0.0)).sum())
    assert abs(check_ins.eligible_estimate - exact) < 4 * np.sqrt(exact)
    assert check_ins.open_eligible == exact


def test_failures_come_with_their_probability_and_before_the_work_is_done() -> None:
    shard = PopulationShard(scenario(60_000, "latency.failure_probability=0.2"), 0, 60_000)
    check_ins = shard.check_ins(order(0, 6.0))
    failing = np.isfinite(check_ins.failure_seconds)
    assert failing.mean() == pytest.approx(0.2, abs=4 * np.sqrt(0.16 / failing.size))
    assert (check_ins.failure_seconds[failing] <= check_ins.work_seconds[failing]).all()


@pytest.mark.parametrize(("devices", "shards"), [(10, 1), (65_536, 2), (400_000, 3), (400_000, 20), (10**9, 7)])
def test_shards_share_out_every_device_on_part_edges(devices: int, shards: int) -> None:
    ranges = shard_ranges(devices, shards)
    assert len(ranges) == shards
    assert ranges[0][0] == 0
    assert ranges[-1][1] == devices
    assert all(end == first for (_, end), (first, _) in zip(ranges, ranges[1:], strict=False))
