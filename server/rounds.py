"""The life of a round, pure: what becomes of the selected devices, when the round closes, and which
timers start.

Selection -> reporting -> closed (committed or abandoned), Bonawitz et al. 2019, sections 2 and 4.
All fates are fixed when a round starts, because a device's work, failure and session end are; so
reporting is resolved at once.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedray.messages import NEVER, Outcome, Settlement
from fedray.rng import Key, Stream, draw, normal, stream_key, uniform
from fedray.scenario import Scenario


class FateModel(NamedTuple):
    """What compiled code needs to draw how an attempt goes for a device."""

    key: Key
    speed_within: float
    failure_probability: float


@dataclass(frozen=True, slots=True)
class RoundRules:
    """The scenario's rules of a round, in seconds. outages [O, 2]: start and end of each, in
    order."""

    report_goal: int
    selection_target: int
    selection_timeout: float
    report_timeout: float
    timer: float
    timer_resets_on: str
    round_separation: int
    fates: FateModel
    outages: NDArray[np.float64]
    max_participations: int | None = None
    """Accepted reports after which a device may not take part again; none: as often as it likes."""

    @classmethod
    def of(cls, scenario: Scenario) -> "RoundRules":
        """The rules of a scenario."""
        rounds, participation, latency = scenario.rounds, scenario.participation, scenario.latency
        outages = [
            (3600.0 * outage.start_hours, 3600.0 * (outage.start_hours + outage.hours))
            for outage in rounds.outages
        ]
        return cls(
            report_goal=rounds.report_goal,
            selection_target=rounds.selection_target,
            selection_timeout=rounds.selection_timeout_minutes * 60.0,
            report_timeout=rounds.report_timeout_minutes * 60.0,
            timer=participation.timer_hours * 3600.0,
            timer_resets_on=participation.timer_resets_on,
            round_separation=participation.round_separation,
            fates=FateModel(
                stream_key(scenario.seed, Stream.TRAINING_TIME),
                latency.speed_within,
                latency.failure_probability,
            ),
            outages=np.array(outages, np.float64).reshape(-1, 2),
            max_participations=participation.max_participations,
        )


@dataclass(frozen=True, slots=True)
class Selected:
    """The devices a round starts with, sorted by device id; [S] each.

    Times are seconds since start; fixed and training seconds are the device's own parts of its
    work. timer_seconds: how long each waits before it may be selected again. contributions: reports
    accepted so far (0 where they are not counted). rows: places in the present window's list, -1
    for those that have waited longer.
    """

    device_ids: NDArray[np.uint64]
    checkin_times: NDArray[np.float64]
    session_ends: NDArray[np.float64]
    fixed_seconds: NDArray[np.float32]
    training_seconds: NDArray[np.float32]
    timer_seconds: NDArray[np.float64]
    contributions: NDArray[np.uint32]
    rows: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Fates:
    """How an attempt goes for its devices, if their sessions last; [S] each, seconds since
    selection; infinity for no failure."""

    work_seconds: NDArray[np.float64]
    failure_seconds: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Reporting:
    """What became of a round. busy_until [S]: when each device is done with it, one way or
    another."""

    is_committed: bool
    closed: float
    reported: int
    accepted_device_ids: NDArray[np.uint64]
    settlement: Settlement
    busy_until: NDArray[np.float64]


def draw_fates(selected: Selected, attempt: int, model: FateModel) -> Fates:
    """Work and failure of the selected [S], at addresses (device, attempt)."""
    return Fates(
        *_draw_fates(
            selected.device_ids, selected.fixed_seconds, selected.training_seconds, attempt, model
        )
    )


@njit(cache=True)
def _draw_fates(device_ids, fixed, training, attempt, model):
    work, failure = np.empty(device_ids.size), np.full(device_ids.size, np.inf)
    for row in range(device_ids.size):
        w0, w1, w2, _ = draw(model.key, device_ids[row], attempt, 0)
        work[row] = fixed[row] + training[row] * math.exp(model.speed_within * normal(w0))
        if uniform(w1) < model.failure_probability:  # at a uniform share of the work
            failure[row] = work[row] * uniform(w2)
    return work, failure


def resolve_reporting(
    selected: Selected,
    fates: Fates,
    started: float,
    attempt: int,
    round_index: int,
    rules: RoundRules,
) -> Reporting:
    """Closes with the report_goal-th report, or is abandoned at the timeout.

    A device reports when its work is done, unless it fails or its session ends before, or the
    server is down then, which counts as a failure. Reports after closing are late. Equal report
    times count in order of device id.
    """
    report_times = started + fates.work_seconds
    failure_times = started + fates.failure_seconds
    for outage_start, outage_end in rules.outages:
        is_lost = (outage_start <= report_times) & (report_times < outage_end)
        failure_times = np.where(is_lost, np.minimum(failure_times, report_times), failure_times)
        report_times = np.where(is_lost, np.inf, report_times)
    fails = (failure_times < report_times) & (failure_times <= selected.session_ends)
    reports = ~fails & (report_times <= selected.session_ends)
    deadline = started + rules.report_timeout

    in_time = reports & (report_times <= deadline)
    is_committed = int(np.count_nonzero(in_time)) >= rules.report_goal
    if is_committed:
        on_time, closed = _first_reports(np.where(reports, report_times, np.inf), rules.report_goal)
    else:
        on_time, closed = in_time, deadline

    outcomes = np.full(reports.size, Outcome.DROPPED, np.uint8)
    outcomes[fails] = Outcome.FAILED
    outcomes[reports] = Outcome.LATE
    outcomes[on_time] = Outcome.ACCEPTED if is_committed else Outcome.ABANDONED

    reopen = _reopen_seconds(report_times, started, reports, on_time, selected.timer_seconds, rules)
    if rules.max_participations is not None:
        is_spent = on_time & (selected.contributions + 1 >= rules.max_participations)
        reopen = np.where(is_spent, np.uint32(NEVER), reopen)
    free = np.where(reports, report_times, np.where(fails, failure_times, selected.session_ends))
    settlement = Settlement(
        attempt=attempt,
        round_index=round_index,
        device_ids=selected.device_ids,
        checkin_times=selected.checkin_times,
        report_times=np.where(reports, report_times, np.nan),
        outcomes=outcomes,
        reopen_seconds=reopen,
        remembers_round=on_time,
    )
    accepted = selected.device_ids[on_time] if is_committed else selected.device_ids[:0]
    return Reporting(
        is_committed, closed, int(np.count_nonzero(reports)), accepted, settlement, free
    )


def _first_reports(report_times: NDArray[np.float64], goal: int) -> tuple[NDArray[np.bool_], float]:
    """The first `goal` of the reports [S], and the time of the last of them."""
    closed = float(np.partition(report_times, goal - 1)[goal - 1])
    first = report_times < closed
    ties = np.flatnonzero(report_times == closed)
    first[ties[: goal - int(np.count_nonzero(first))]] = True
    return first, closed


def _reopen_seconds(
    report_times: NDArray[np.float64],
    started: float,
    reports: NDArray[np.bool_],
    on_time: NDArray[np.bool_],
    timer_seconds: NDArray[np.float64],
    rules: RoundRules,
) -> NDArray[np.uint32]:
    """Whole second, rounded up, from which each timer is open again; 0 where none was started."""
    match rules.timer_resets_on:
        case (
            "accepted"
        ):  # the server accepts a report when it comes, even if the round is later abandoned
            resets, since = on_time, report_times
        case "reported":
            resets, since = reports, report_times
        case _:
            resets, since = np.ones_like(reports), np.full_like(report_times, started)
    is_started = resets & (timer_seconds > 0.0)
    return np.where(is_started, np.ceil(np.where(resets, since, 0.0) + timer_seconds), 0.0).astype(
        np.uint32
    )
