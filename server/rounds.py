"""The life of a round, pure: what becomes of the selected devices, when the round closes, and which timers start.

Selection -> reporting -> closed (committed or abandoned), Bonawitz et al. 2019, sections 2 and 4. All fates are fixed when a
round starts, because a device's work, failure and session end are; so reporting is resolved at once.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedray.messages import Outcome, Settlement
from fedray.scenario import Scenario


@dataclass(frozen=True, slots=True)
class RoundRules:
    """The scenario's rules of a round, in seconds."""

    report_goal: int
    selection_target: int
    selection_timeout: float
    report_timeout: float
    timer: float
    timer_resets_on: str
    round_separation: int

    @classmethod
    def of(cls, scenario: Scenario) -> "RoundRules":
        """The rules of a scenario."""
        rounds, participation = scenario.rounds, scenario.participation
        return cls(
            report_goal=rounds.report_goal,
            selection_target=rounds.selection_target,
            selection_timeout=rounds.selection_timeout_minutes * 60.0,
            report_timeout=rounds.report_timeout_minutes * 60.0,
            timer=participation.timer_hours * 3600.0,
            timer_resets_on=participation.timer_resets_on,
            round_separation=participation.round_separation,
        )


@dataclass(frozen=True, slots=True)
class Selected:
    """The devices a round starts with, sorted by device id; [S] each. Seconds since start; work and failure since selection."""

    device_ids: NDArray[np.uint64]
    checkin_times: NDArray[np.float64]
    session_ends: NDArray[np.float64]
    work_seconds: NDArray[np.float64]
    failure_seconds: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Reporting:
    """How a round went. busy_until [S]: when each device is done with it, one way or another (seconds)."""

    is_committed: bool
    closed: float
    reported: int
    accepted_device_ids: NDArray[np.uint64]
    settlement: Settlement
    busy_until: NDArray[np.float64]


def resolve_reporting(selected: Selected, started: float, round_index: int, rules: RoundRules) -> Reporting:
    """Fates of a round's devices. The round closes with the report_goal-th report, or is abandoned at the timeout.

    A device reports when its work is done, unless it fails or its session ends before. Reports after closing are late.
    Equal report times count in order of device id.
    """
    report_times = started + selected.work_seconds
    failure_times = started + selected.failure_seconds
    fails = (failure_times < report_times) & (failure_times <= selected.session_ends)
    reports = ~fails & (report_times <= selected.session_ends)
    deadline = started + rules.report_timeout

    in_order = np.argsort(np.where(reports, report_times, np.inf), kind="stable")
    in_time = reports & (report_times <= deadline)
    is_committed = int(in_time.sum()) >= rules.report_goal
    if is_committed:
        on_time = np.zeros(reports.size, np.bool_)
        on_time[in_order[: rules.report_goal]] = True
        closed = float(report_times[in_order[rules.report_goal - 1]])
    else:
        on_time, closed = in_time, deadline

    outcomes = np.full(reports.size, Outcome.DROPPED, np.uint8)
    outcomes[fails] = Outcome.FAILED
    outcomes[reports] = Outcome.LATE
    outcomes[on_time] = Outcome.ACCEPTED if is_committed else Outcome.ABANDONED

    reopen = _reopen_seconds(report_times, started, reports, on_time, rules)
    free = np.where(reports, report_times, np.where(fails, failure_times, selected.session_ends))
    settlement = Settlement(
        device_ids=selected.device_ids,
        rounds=np.full(reports.size, round_index, np.uint32),
        checkin_times=selected.checkin_times,
        report_times=np.where(reports, report_times, np.nan),
        outcomes=outcomes,
        reopen_seconds=reopen,
        remembers_round=on_time,
    )
    accepted = selected.device_ids[on_time] if is_committed else selected.device_ids[:0]
    return Reporting(is_committed, closed, int(reports.sum()), accepted, settlement, free)


def _reopen_seconds(
    report_times: NDArray[np.float64],
    started: float,
    reports: NDArray[np.bool_],
    on_time: NDArray[np.bool_],
    rules: RoundRules,
) -> NDArray[np.uint32]:
    """Whole second, rounded up, from which each timer is open again; 0 where none was started."""
    match rules.timer_resets_on:
        case "accepted":  # the server accepts a report when it comes, even if the round is later abandoned
            resets, since = on_time, report_times
        case "reported":
            resets, since = reports, report_times
        case _:
            resets, since = np.ones_like(reports), np.full_like(report_times, started)
    if rules.timer == 0.0:
        return np.zeros(reports.size, np.uint32)
    return np.where(resets, np.ceil(since + rules.timer), 0.0).astype(np.uint32)
