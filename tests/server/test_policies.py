"""What each policy makes devices remember of an attempt."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fedray.base.rng import Stream, stream_key
from fedray.server.policies.cap import Cap
from fedray.server.policies.factory import policies_of
from fedray.server.policies.policy import Attempt, ParticipationPolicy, Policies
from fedray.server.policies.round_separation import RoundSeparation
from fedray.server.policies.timer import Timer
from fedray.server.policies.without_replacement import WithoutReplacement
from fedray.wire.history import HistoryLosses, first_loss_after, last_loss_before, losses_between
from fedray.wire.messages import NEVER

KEY = stream_key(1, Stream.HISTORY)
NO_LOSSES = HistoryLosses(KEY, math.inf)
OFTEN = HistoryLosses(KEY, 3600.0)
ATTEMPT = Attempt(
    started=100.0,
    device_ids=np.arange(4, dtype=np.uint64),
    report_times=np.array([130.0, 140.0, 200.0, np.inf]),
    upload_times=np.array([120.0, 131.5, 190.0, 150.0]),
    has_reported=np.array([True, True, True, False]),
    has_arrived=np.array([True, True, False, False]),
    has_uploaded=np.array([True, True, False, True]),
    timer_seconds=np.full(4, 1000.0),
    contributions=np.array([0, 1, 1, 1], np.uint32),
)
"""Accepted, accepted, late, and lost on the way."""


def reopen(*policies, losses: HistoryLosses = NO_LOSSES) -> list[int]:
    return Policies(policies, losses).open_times(ATTEMPT).tolist()


def test_an_upload_starts_the_timer_if_the_server_does_not_abort_it() -> None:
    """Also where it is lost on the way; a late one is aborted."""
    assert reopen(Timer("upload")) == [1120, 1132, 0, 1150]
    assert reopen(Timer("accepted")) == [1130, 1140, 0, 0]


def test_exactly_the_period_of_swor_is_not_enough() -> None:
    assert reopen(WithoutReplacement(1000.0, True)) == [1121, 1132, 0, 1151]


def test_a_time_beyond_what_settlements_hold_is_never() -> None:
    """A report after centuries does not wrap around to a time at which the device may come again."""
    late = replace(ATTEMPT, report_times=np.full(4, 1e11))
    assert Policies((Timer("reported"),), NO_LOSSES).open_times(late).tolist() == [
        *3 * [NEVER],
        0,
    ]


def test_the_latest_of_all_policies_counts() -> None:
    policies = Timer("accepted"), WithoutReplacement(500.0, True), Cap(2)
    assert reopen(*policies) == [1130, NEVER, 0, 651]


def test_which_rounds_are_remembered() -> None:
    for policies, expected in (
        ((Timer("upload"),), [False] * 4),
        ((RoundSeparation(5, "arrived"),), [True, True, False, False]),
        ((RoundSeparation(5, "upload"), Cap(1)), [True, True, False, True]),
    ):
        joined = Policies(policies, NO_LOSSES)
        assert joined.remembers_round(ATTEMPT).tolist() == expected
    assert Policies((RoundSeparation(5, "upload"), Timer("upload")), NO_LOSSES).separation == 5
    assert Policies((), NO_LOSSES).separation == 0


@pytest.mark.parametrize("policy", [Timer("upload"), WithoutReplacement(9e9, False), Cap(1)])
def test_what_is_lost_holds_nobody_back(policy) -> None:
    attempt = replace(ATTEMPT, timer_seconds=np.full(4, 9e9))
    found = Policies((policy,), OFTEN).open_times(attempt)
    since = policy.absence(attempt).since
    expected = np.ceil(first_loss_after(OFTEN, attempt.device_ids, since))
    remembered = policy.absence(attempt).until > 0
    assert found[remembered].tolist() == expected[remembered].tolist()
    assert not found[~remembered].any()


def test_a_cleared_history_lets_nobody_come_back_sooner_under_swor() -> None:
    policy = WithoutReplacement(1e6, True)
    assert reopen(policy, losses=OFTEN) == reopen(policy)


def test_losses_are_a_poisson_process_and_the_same_for_whoever_asks() -> None:
    """3,000 devices for 100 mean times: counts, gaps, and the two questions agree with the list."""
    ids = np.arange(3000, dtype=np.uint64)
    begins, ends = np.zeros(3000), np.full(3000, 360_000.0)
    lost = losses_between(OFTEN, ids, begins, ends)
    counts = np.bincount(lost.device_ids.astype(np.int64), minlength=3000)
    assert stats.kstest(counts, stats.poisson(100).cdf).statistic < 0.05
    gaps = np.diff(lost.times)[lost.device_ids[1:] == lost.device_ids[:-1]]
    assert abs(gaps.mean() / 3600.0 - 1.0) < 0.01
    assert (gaps > 0).all()
    mine = lost.times[lost.device_ids == 7]
    moments = np.array([0.0, mine[3], np.nextafter(mine[3], 0.0)])
    same = np.full(3, 7, np.uint64)
    assert first_loss_after(OFTEN, same, moments).tolist() == [mine[0], mine[4], mine[3]]
    assert last_loss_before(OFTEN, same, moments).tolist() == [-np.inf, mine[3], mine[2]]
    some = losses_between(OFTEN, same[:1], mine[3:4], mine[5:6])
    assert some.times.tolist() == mine[4:6].tolist()
    assert losses_between(OFTEN, ids[:0], begins[:0], ends[:0]).times.size == 0


def test_a_report_decades_after_the_end_of_a_run_costs_no_walk_to_it() -> None:
    """Losses are walked through one by one: for 10^15 seconds that takes days."""
    policies = Policies((Timer("upload"),), OFTEN, end_seconds=1e6)
    uploads = np.array([120.0, 131.5, 1e15, 1e15])
    late = replace(ATTEMPT, upload_times=uploads, has_uploaded=np.full(4, True))
    found = policies.open_times(late)
    expected = Policies((Timer("upload"),), OFTEN).open_times(ATTEMPT)
    assert found[:2].tolist() == expected[:2].tolist()
    assert (found[2:] > 1e6).all()
    assert (policies.forget_times(late)[2:] > 1e6).all()


@pytest.mark.parametrize(
    ("policy", "told"),
    [(RoundSeparation(30, "arrived"), "keep rounds 30 apart"), (Cap(2), "do not count them")],
)
def test_a_policy_for_which_shards_keep_nothing_is_refused(
    small, monkeypatch, policy: ParticipationPolicy, told: str
) -> None:
    monkeypatch.setattr(Timer, "of", lambda table, scenario: policy)
    with pytest.raises(ValueError, match=told):
        policies_of(small())
