"""Selection and reporting: the rules of a round. test_several_tasks.py holds the compiled selection to a readable twin."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fedray.base.rng import Stream, stream_key
from fedray.server.policies.cap import Cap
from fedray.server.policies.policy import Policies
from fedray.server.policies.round_separation import RoundSeparation
from fedray.server.policies.timer import Timer
from fedray.server.rounds.closing import AtGoal
from fedray.server.rounds.rounds import (
    FateModel,
    Fates,
    RoundRules,
    Selected,
    draw_fates,
    resolve_reporting,
)
from fedray.server.rounds.selection import EXHAUSTED, FULL, Selection
from fedray.wire.device_classes import DeviceClasses
from fedray.wire.history import HistoryLosses
from fedray.wire.messages import NEVER, Census, CheckIns, Outcome, Window

ONE_CLASS = DeviceClasses(stream_key(1, Stream.DEVICE_CLASS), np.ones(1))
FATES = FateModel(stream_key(1, Stream.TRAINING_TIME), 0.3, ONE_CLASS, np.array([0.03]))
SEED = 1
NO_LOSSES = HistoryLosses(stream_key(1, Stream.HISTORY), math.inf)
RULES = RoundRules(
    selection_target=4,
    waiting_room=4,
    least_to_start=3,
    selection_timeout_seconds=500.0,
    report_timeout_seconds=100.0,
    timer_seconds=1000.0,
    closing=AtGoal(3),
    policies=Policies((Timer("accepted"),), NO_LOSSES),
    fates=FATES,
    outages=np.empty((0, 2)),
)


def with_policies(*each) -> RoundRules:
    return replace(RULES, policies=Policies(each, NO_LOSSES))


RATE = 90.0
"""Check-ins per hour, so that a window of 200 s has several."""


def as_check_ins(rows: list[tuple]) -> CheckIns:
    size = len(rows)
    return CheckIns(
        device_ids=np.array([row[1] for row in rows], np.uint64),
        times=np.array([row[0] for row in rows], np.float64),
        interval_ends=np.array([row[2] for row in rows], np.float64),
        fixed_seconds=np.full(size, 10.0, np.float32),
        training_seconds=np.full(size, 5.0, np.float32),
        upload_seconds=np.empty(0, np.float32),
        last_rounds=np.empty(0, np.int32),
        timer_seconds=np.empty(0),
        contributions=np.zeros(size, np.uint32),
        census=Census(0, 0, 0, 0),
    )


def selected(work: list[float], ends: list[float]) -> Selected:
    size = len(work)
    return Selected(
        device_ids=np.arange(size, dtype=np.uint64),
        check_in_times=np.zeros(size),
        interval_ends=np.array(ends, np.float64),
        fixed_seconds=np.zeros(size, np.float32),
        training_seconds=np.zeros(size, np.float32),
        upload_seconds=np.zeros(size, np.float32),
        timer_seconds=np.full(size, RULES.timer_seconds),
        contributions=np.zeros(size, np.uint32),
        list_rows=np.full(size, -1),
    )


def resolve(
    work: list[float],
    ends: list[float],
    started: float,
    failures: list[float] | None = None,
    rules: RoundRules = RULES,
    **changes,
):
    """resolve_reporting with fates as they are given."""
    fates = Fates(
        np.array(work, np.float64), np.array(failures or [math.inf] * len(work), np.float64)
    )
    chosen = replace(selected(work, ends), **changes)
    return resolve_reporting(chosen, fates, started, 7, 5, rules)


def outcomes(reporting) -> list[str]:
    return [Outcome(code).name for code in reporting.settlement.outcomes]


def test_a_round_closes_with_the_goal_and_later_reports_are_late() -> None:
    reporting = resolve([30, 10, 20, 40], [999] * 4, 100.0)
    assert reporting.is_committed
    assert reporting.closed == 130.0
    assert outcomes(reporting) == ["ACCEPTED", "ACCEPTED", "ACCEPTED", "LATE"]
    assert reporting.settlement.accepted_device_ids.tolist() == [0, 1, 2]
    assert reporting.settlement.open_times.tolist() == [1130, 1110, 1120, 0]
    assert reporting.busy_until.tolist() == [130, 110, 120, 140]
    assert reporting.reported == 4


def test_lost_sessions_drop_and_failures_fail_whichever_comes_first() -> None:
    ends, failures = [115, 999, 105, 999], [math.inf, 5, 8, math.inf]
    reporting = resolve([30, 10, 20, 40], ends, 100.0, failures)
    assert outcomes(reporting) == ["DROPPED", "FAILED", "DROPPED", "ABANDONED"]
    assert np.isnan(reporting.settlement.report_times[:3]).all()
    assert reporting.busy_until.tolist()[:3] == [115, 105, 105]


def test_an_abandoned_round_accepts_nobody_but_its_timers_stand() -> None:
    reporting = resolve([30, 10, 200], [999] * 3, 0.0)
    assert not reporting.is_committed
    assert reporting.closed == 100.0
    assert outcomes(reporting) == ["ABANDONED", "ABANDONED", "LATE"]
    assert reporting.settlement.open_times.tolist() == [1030, 1010, 0]
    assert reporting.settlement.accepted_device_ids.size == 0


@pytest.mark.parametrize(
    ("resets_on", "expected"),
    [
        ("accepted", [1030, 1010, 1020, 0]),
        ("reported", [1030, 1010, 1020, 1040]),
        ("selected", [1000] * 4),
    ],
)
def test_what_resets_the_timer(resets_on: str, expected: list[int]) -> None:
    reporting = resolve([30, 10, 20, 40], [999] * 4, 0.0, rules=with_policies(Timer(resets_on)))
    assert reporting.settlement.open_times.tolist() == expected


def test_timers_are_rounded_up_to_whole_seconds_never_down() -> None:
    reporting = resolve([10.2] * 3, [999] * 3, 0.0)
    assert reporting.settlement.open_times.tolist() == [1011] * 3


def test_equal_report_times_count_in_order_of_device() -> None:
    reporting = resolve([10] * 5, [999] * 5, 0.0)
    assert outcomes(reporting) == ["ACCEPTED"] * 3 + ["LATE"] * 2


def test_reports_that_arrive_in_an_outage_are_lost() -> None:
    reporting = resolve(
        [30, 10, 20, 40, 50],
        [999] * 5,
        100.0,
        rules=replace(RULES, outages=np.array([[115.0, 135.0]])),
    )
    assert outcomes(reporting) == ["FAILED", "ACCEPTED", "FAILED", "ACCEPTED", "ACCEPTED"]
    assert reporting.busy_until.tolist() == [130, 110, 120, 140, 150]
    assert np.isnan(reporting.settlement.report_times[[0, 2]]).all()


def test_devices_wait_as_long_as_their_own_timers_say() -> None:
    waits = np.array([0.0, 999.5, 1000.0])
    reporting = resolve([10, 20, 30], [999] * 3, 0.0, timer_seconds=waits)
    assert reporting.settlement.open_times.tolist() == [0, 1020, 1030]


def test_the_accepted_report_that_reaches_the_cap_closes_the_timer_for_good_even_in_an_abandoned_round() -> (
    None
):
    rules = with_policies(Timer("accepted"), Cap(3))
    before = np.array([2, 1, 2, 2], np.uint32)
    committed = resolve([30, 10, 20, 40], [999] * 4, 100.0, rules=rules, contributions=before)
    assert committed.settlement.open_times.tolist() == [
        NEVER,
        1110,
        NEVER,
        0,
    ]  # the last one was late
    abandoned = resolve([30, 10, 200], [999] * 3, 0.0, rules=rules, contributions=before[:3])
    assert abandoned.settlement.open_times.tolist() == [NEVER, 1010, 0]


def test_fates_follow_their_laws() -> None:
    """20,000 devices: log-normal round factor on the training part, failures at 3 % and at a uniform share of the work."""
    size = 20_000
    chosen = replace(
        selected([0] * size, [999] * size),
        fixed_seconds=np.full(size, 10, np.float32),
        training_seconds=np.full(size, 100, np.float32),
    )
    fates = draw_fates(chosen, 3, FATES)
    assert stats.kstest(np.log((fates.work_seconds - 10) / 100) / 0.3, stats.norm.cdf).pvalue > 1e-4
    fails = np.isfinite(fates.failure_seconds)
    assert stats.binomtest(int(fails.sum()), size, 0.03).pvalue > 1e-4
    assert (
        stats.kstest(
            fates.failure_seconds[fails] / fates.work_seconds[fails], stats.uniform.cdf
        ).pvalue
        > 1e-4
    )
    assert not (draw_fates(chosen, 4, FATES).work_seconds == fates.work_seconds).any()
    some = chosen.device_ids % 7 == 3
    of_some = draw_fates(chosen.take(some), 3, FATES)
    assert of_some.work_seconds.tolist() == fates.work_seconds[some].tolist()
    assert of_some.failure_seconds.tolist() == fates.failure_seconds[some].tolist()


def test_own_timers_are_known_though_the_present_list_is_empty() -> None:
    """Devices that checked in in the window before, and are selected in one without check-ins; what they say of themselves is what
    counts, and the rules' timer only where they say nothing."""
    kernel = Selection([replace(RULES, selection_target=1)], SEED)
    kernel.open(0, 0.0, 250.0)
    first = replace(
        as_check_ins([(5.0, 3, 900.0)]),
        timer_seconds=np.array([17.0]),
        contributions=np.array([4], np.uint32),
    )
    kernel.start_window(first, Window(0, 0.0, 200.0, 200.0, RATE))
    assert kernel.advance([0])[0] == EXHAUSTED
    kernel.start_window(as_check_ins([]), Window(1, 200.0, 400.0, 400.0, RATE))
    assert kernel.advance([0]) == (FULL, 0, 250.0)
    taken = kernel.take(0)
    assert taken.timer_seconds.tolist() == [17.0]
    assert taken.contributions.tolist() == [4]


def test_where_the_lists_say_nothing_of_timers_all_keep_the_rules_timer() -> None:
    kernel = Selection([replace(RULES, selection_target=1)], SEED)
    kernel.open(0, 0.0, 0.0)
    kernel.start_window(as_check_ins([(5.0, 3, 900.0)]), Window(0, 0.0, 200.0, 200.0, RATE))
    assert kernel.advance([0]) == (FULL, 0, 5.0)
    assert kernel.take(0).timer_seconds.tolist() == [RULES.timer_seconds]


def test_a_device_may_come_back_after_exactly_its_separation() -> None:
    """Round 5 of a separation of 3: the device of round 3 waits, and the one of round 2 is taken."""
    rules = with_policies(RoundSeparation(3, "arrived"))
    kernel = Selection([replace(rules, selection_target=1)], SEED)
    kernel.open(0, 0.0, 0.0)
    rows = as_check_ins([(5.0, 3, 900.0), (7.0, 8, 900.0)])
    listed = replace(rows, last_rounds=np.array([3, 2], np.int32))
    kernel.start_window(listed, Window(0, 0.0, 200.0, 200.0, RATE))
    assert kernel.advance([5]) == (FULL, 0, 7.0)
    assert kernel.take(0).device_ids.tolist() == [8]


def test_an_upload_counts_if_it_was_lost_on_the_way_before_the_round_closed() -> None:
    """Works of 30, 10, 20, 40 s, of which the last 8 are the upload; the round closes at 130 s."""
    upload = np.full(6, 8.0, np.float32)
    reporting = resolve(
        [30, 10, 20, 40, 25, 26],
        [999, 999, 999, 999, 120, 110],  # the fifth loses its session while it uploads, at 120 s
        100.0,
        rules=with_policies(Timer("upload")),
        upload_seconds=upload,
    )
    assert outcomes(reporting) == ["ACCEPTED"] * 3 + ["LATE", "DROPPED", "DROPPED"]
    assert reporting.settlement.open_times.tolist() == [1122, 1102, 1112, 0, 1117, 0]
    failed = resolve(
        [30, 10, 20, 40],
        [999] * 4,
        100.0,
        failures=[math.inf, math.inf, 15.0, 35.0],
        rules=with_policies(Timer("upload")),
        upload_seconds=upload[:4],
    )
    assert not failed.is_committed
    assert failed.settlement.open_times.tolist() == [1122, 1102, 1112, 1132]
