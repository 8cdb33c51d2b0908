"""ShardHost: several shards on threads answer as one shard of all their devices does."""

import dataclasses
import itertools
import pickle
from pathlib import Path

import numpy as np
import pytest

import fedray.clients.known
from fedray.base.arrays import UInt64Array
from fedray.base.blocks import shard_ranges
from fedray.base.errors import ScenarioError
from fedray.clients.check_in import by_bits
from fedray.clients.host import ShardHost
from fedray.clients.shard import PopulationShard
from fedray.runtime.nodes import Node, shares_of
from fedray.scenario import Scenario
from fedray.wire.messages import (
    CheckInOrder,
    CheckIns,
    Outcome,
    Settlement,
    SettlementBatch,
    Window,
    settlements_of_devices,
)

DEVICES = 140_000
HOUR = 3600.0


def scenario(*overrides: str) -> Scenario:
    tables = {
        "seed": 5,
        "population": {"devices": DEVICES},
        "rounds": {"count": 1, "report_goal": 10},
        "training": {"enabled": False},
    }
    return Scenario.from_tables(tables).with_overrides(*overrides)


def order(window: int, *settlements: Settlement, is_enumerated: bool = True) -> CheckInOrder:
    start, end = window * HOUR, (window + 1) * HOUR
    return CheckInOrder(
        Window(window, start, end, end, 2.0), is_enumerated, 0.0, 14 * HOUR, settlements
    )


def settled(check_ins: CheckIns, attempt: int) -> Settlement:
    """Every third of the devices that checked in has taken part."""
    return settlement(np.sort(check_ins.device_ids[::3]), attempt)


def settlement(device_ids: UInt64Array, attempt: int) -> Settlement:
    size = device_ids.size
    return Settlement(
        attempt=attempt,
        round_index=attempt,
        device_ids=device_ids,
        check_in_times=np.full(size, HOUR * attempt),
        report_times=np.full(size, HOUR * attempt + 60.0),
        outcomes=np.full(size, Outcome.ACCEPTED, np.uint8),
        open_times=np.full(size, 4 * 3600 * (attempt + 1), np.uint32),
        remembers_round=np.ones(size, np.bool_),
        forget_times=np.zeros(size, np.uint32),
    )


def assert_same(one: CheckIns, other: CheckIns) -> None:
    for column in dataclasses.fields(CheckIns):
        expected, found = getattr(one, column.name), getattr(other, column.name)
        np.testing.assert_array_equal(found, expected, err_msg=column.name)


@pytest.mark.parametrize("is_enumerated", [True, False], ids=["enumeration", "thinning"])
@pytest.mark.parametrize(
    ("shards", "threads"), [pytest.param(1, 1, marks=pytest.mark.slow), (2, 1), (3, 2)]
)
def test_a_host_answers_as_one_shard_of_all_its_devices(
    tmp_path: Path, shards: int, threads: int, is_enumerated: bool
) -> None:
    """Prepared or not, with settlements between windows; the parts of the trace, too."""
    value = scenario()
    whole = PopulationShard(value, 0, DEVICES)
    host = ShardHost(value, shard_ranges(DEVICES, shards), threads)
    told: tuple[Settlement, ...] = ()
    for window in range(3):
        asked = order(window, *told, is_enumerated=is_enumerated)
        host.prepare(dataclasses.replace(asked, settlements=()))
        expected = whole.check_ins(asked)
        assert expected.device_ids.size > 1000
        assert_same(expected, host.check_ins(asked))
        told = (settled(expected, window),)
    whole.settle(told)
    host.settle(told)
    expected_parts = {
        part.first_device: part.digest
        for part in (whole.write_part(number, str(tmp_path), "") for number in range(3))
    }
    parts = [host.write_part(number, str(tmp_path), "") for number in range(3)]
    assert {part.first_device: part.digest for part in parts} == expected_parts
    assert len(expected_parts) == 3
    assert host.use().rows == whole.rows > 0
    assert host.gauges()["window"][1] == 2


def test_time_spent_on_a_window_counts_once(monkeypatch) -> None:
    """By a clock that goes on by a second whenever it is read: between two readings of one call lies one second."""
    host = ShardHost(scenario(), [(0, DEVICES)])
    clock = itertools.count()
    monkeypatch.setattr("fedray.clients.host.time.perf_counter", lambda: float(next(clock)))
    host.check_ins(order(0))
    assert host.use().busy_seconds == 1.0
    host.prepare(order(1))
    host.check_ins(order(1))
    assert host.use().busy_seconds == 3.0


def test_what_goes_wrong_on_a_thread_is_told_by_the_next_answer(monkeypatch) -> None:
    host = ShardHost(scenario(), shard_ranges(DEVICES, 2), 2)

    def fail(shard: PopulationShard, asked: CheckInOrder) -> None:
        raise ScenarioError("too many sessions")

    monkeypatch.setattr(PopulationShard, "prepare", fail)
    host.prepare(order(0))
    with pytest.raises(ScenarioError, match="too many sessions"):
        host.check_ins(order(0))


def test_devices_say_the_same_of_their_work_whether_it_is_kept_or_drawn_anew(monkeypatch) -> None:
    kept = PopulationShard(scenario(), 0, DEVICES)
    monkeypatch.setattr(fedray.clients.known, "WORK_BYTES", 0)
    anew = PopulationShard(scenario(), 0, DEVICES)
    for window in range(2):
        assert_same(anew.check_ins(order(window)), kept.check_ins(order(window)))


@pytest.mark.parametrize(("size", "bits"), [(0, 32), (1, 1), (5000, 7), (70_000, 17), (9000, 32)])
def test_numbers_are_sorted_as_numpy_sorts_them(size: int, bits: int) -> None:
    keys = np.random.default_rng(bits).integers(0, 1 << bits, size).astype(np.uint32)
    keys[: size // 3] = keys[size // 3 : 2 * (size // 3)]  # ties
    np.testing.assert_array_equal(by_bits(keys, bits), np.argsort(keys, kind="stable"))


def test_shards_are_shared_out_by_the_cpus_of_the_nodes() -> None:
    nodes = [Node("a", 1.0), Node("b", 4.0), Node("c", 3.0)]
    assert shares_of(nodes, 16) == [(0, 2), (2, 10), (10, 16)]
    assert shares_of(nodes, 1) == [(0, 0), (0, 1), (1, 1)]


def test_a_batch_has_the_rows_that_cuts_of_each_settlement_have() -> None:
    ids = [np.arange(0, 300, step, dtype=np.uint64) for step in (7, 299, 11)]
    sent = [settlement(each, attempt) for attempt, each in enumerate([*ids, ids[0][:0]])]
    sent[2] = dataclasses.replace(sent[2], task=1)
    edges = [0, 7, 7, 120, 301]
    batches = SettlementBatch.cut(sent, edges)
    for batch, (first, end) in zip(batches, itertools.pairwise(edges), strict=True):
        received = pickle.loads(pickle.dumps(batch))
        expected = settlements_of_devices(sent, first, end)
        for one, other in zip(received, expected, strict=True):
            for field in dataclasses.fields(Settlement):
                found, wanted = getattr(one, field.name), getattr(other, field.name)
                np.testing.assert_array_equal(found, wanted, err_msg=field.name, strict=True)
    # Before the first round there are none.
    assert [list(batch) for batch in SettlementBatch.cut([], edges)] == [[]] * 4
