"""The life of a round as pure functions: the fates of the selected devices, the close of the round,
and the memory of its devices.

Selection -> reporting -> closed (committed or abandoned), Bonawitz et al. 2019, sections 2 and 4. A
device's work, failure and end of interval are fixed when a round starts, so reporting is resolved
at once.
"""

import math
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np

from fedray.base.arrays import (
    BoolArray,
    Float32Array,
    Float64Array,
    Int64Array,
    UInt32Array,
    UInt64Array,
)
from fedray.base.compiled import njit
from fedray.base.rng import Key, Stream, draw, normal, stream_key, uniform
from fedray.scenario import Scenario
from fedray.wire.device_classes import DeviceClasses, class_of, classes_of
from fedray.wire.messages import NEVER, Outcome, Settlement
from ..policies.factory import later_policies_of, policies_of
from ..policies.policy import Attempt, Policies
from .closing import ClosingRule, closing_rule_of


class FateModel(NamedTuple):
    """Distribution of the course of a device's attempt, for compiled code."""

    key: Key
    """Key of the draws."""
    speed_within: float
    """Log-standard deviation of the training time between rounds of one device."""
    classes: DeviceClasses
    """Classes of the devices."""
    failure_probabilities: Float64Array
    """[K]; probability that a device of each class fails on its own."""

    @classmethod
    def of(cls, scenario: Scenario) -> "FateModel":
        """The fate model of a scenario."""
        # A class without a probability of its own has the population's.
        given = [each.failure_probability for each in classes_of(scenario)]
        of_all = scenario.latency.failure_probability
        return cls(
            key=stream_key(scenario.seed, Stream.TRAINING_TIME),
            speed_within=scenario.latency.speed_within,
            classes=DeviceClasses.of(scenario),
            failure_probabilities=np.array([of_all if own is None else own for own in given]),
        )


def outages_of(scenario: Scenario) -> Float64Array:
    """Start and end of every outage of a scenario, [O, 2] seconds since start, in order."""
    outages = [
        (3600.0 * outage.start_hours, 3600.0 * (outage.start_hours + outage.hours))
        for outage in scenario.rounds.outages
    ]
    # The array has two columns even without outages, so that loops need no special case.
    return np.array(outages, np.float64).reshape(-1, 2)


@dataclass(frozen=True, slots=True)
class RoundRules:
    """The scenario's rules of a round."""

    selection_target: int
    """Devices that must wait at once for a round to start, and that it selects."""
    waiting_room: int
    """Largest number of waiting devices."""
    least_to_start: int
    """Devices that must wait for it to start after the selection timeout."""
    selection_timeout_seconds: float
    """Longest wait for devices."""
    report_timeout_seconds: float
    """Longest wait for reports."""
    timer_seconds: float
    """Time that a device keeps away after its timer starts, unless it states its own."""
    closing: ClosingRule
    """Closing rule of a round."""
    policies: Policies
    """Memory of devices after a round, by which they keep away from later ones."""
    fates: FateModel
    """Distribution of the course of attempts."""
    outages: Float64Array
    """[O, 2]; start and end of each, seconds since start, in order and disjoint."""
    from_round: int = 0
    """Round from which `later_policies` and the held devices count."""
    later_policies: Policies | None = None
    """Policies from then on; None if they stay the same."""
    later_cap: int | None = None
    """Number of contributions with which a device takes part in no round from then on; None for no
    such cap."""

    @classmethod
    def of(cls, scenario: Scenario) -> "RoundRules":
        """Returns the rules of a scenario."""
        rounds = scenario.rounds
        return cls(
            # More devices than the goal are selected, because some drop out and some are slow:
            # typically 130 % of it (Bonawitz et al. 2019, section 9).
            selection_target=rounds.selection_target,
            waiting_room=rounds.waiting_room,
            least_to_start=rounds.least_to_start,
            selection_timeout_seconds=rounds.selection_timeout_minutes * 60.0,
            report_timeout_seconds=rounds.report_timeout_minutes * 60.0,
            timer_seconds=scenario.participation.timer_seconds,
            closing=closing_rule_of(scenario),
            policies=policies_of(scenario),
            fates=FateModel.of(scenario),
            outages=outages_of(scenario),
            from_round=scenario.participation.from_round,
            later_policies=later_policies_of(scenario),
            later_cap=scenario.participation.later
            and scenario.participation.later.max_participations,
        )

    def policies_at(self, round_index: int) -> Policies:
        """Returns the policies that the devices of a round remember it by."""
        if self.later_policies is None or round_index < self.from_round:
            return self.policies
        return self.later_policies


@dataclass(frozen=True, slots=True)
class Selected:
    """The devices that a round starts with, sorted by device id; [S] each."""

    device_ids: UInt64Array
    """The devices."""
    check_in_times: Float64Array
    """Time of each check-in, seconds since start."""
    interval_ends: Float64Array
    """Time at which each stops being eligible, seconds since start."""
    fixed_seconds: Float32Array
    """Time of each without training; see `fedray.wire.messages.CheckIns`."""
    training_seconds: Float32Array
    """Each device's own training time; see `fedray.wire.messages.CheckIns`."""
    upload_seconds: Float32Array
    """Last part of the fixed seconds, for the upload; 0 if no policy counts uploads."""
    timer_seconds: Float64Array
    """Wait of each before it may be selected again."""
    contributions: UInt32Array
    """Number of reports that arrived in time so far; 0 if not counted."""
    list_rows: Int64Array
    """Rows of the present window's list; -1 for devices that have waited longer."""

    def take(self, chosen: BoolArray) -> "Selected":
        """Returns some of the devices.

        Args:
            chosen: [S]; whether to return each.
        """
        return Selected(*(getattr(self, field.name)[chosen] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Fates:
    """Course of an attempt of devices [S], if they stay eligible; seconds since selection."""

    work_seconds: Float64Array
    """Time until the device reports."""
    failure_seconds: Float64Array
    """Time until it fails on its own; infinity for no failure."""


@dataclass(frozen=True, slots=True)
class Reporting:
    """Result of a round."""

    is_committed: bool
    """Whether the goal was met before the deadline."""
    closed: float
    """Time at which the round closed, seconds since start."""
    reported: int
    """Number of devices that reported, late ones included."""
    settlement: Settlement
    """Message to the shards."""
    busy_until: Float64Array
    """[S]; end of each device's work in the round, whatever the outcome, seconds since start."""
    attempted: Attempt
    """The attempt, for policies."""


def draw_fates(selected: Selected, attempt: int, model: FateModel) -> Fates:
    """Draws the reports and failures of the selected devices, at addresses (device, attempt).

    Args:
        selected: [S] devices.
        attempt: number of the attempt, abandoned ones included: a repeated round has other fates.
        model: model of the scenario.
    """
    return Fates(
        *_draw_fates(
            selected.device_ids, selected.fixed_seconds, selected.training_seconds, attempt, model
        )
    )


@njit(cache=True, nogil=True)
def _draw_fates(device_ids, fixed, training, attempt, model):
    key, speed_within, classes, failure_probabilities = model
    class_key, class_edges = classes
    work, failure = np.empty(device_ids.size), np.empty(device_ids.size)
    for chosen in range(device_ids.size):
        device = device_ids[chosen]
        words = draw(key, device, attempt, 0)
        fails = failure_probabilities[class_of(class_key, class_edges, device)]
        work[chosen], failure[chosen] = fate(
            speed_within, fails, words, fixed[chosen], training[chosen]
        )
    return work, failure


@njit(forceinline=True)
def fate(speed_within, failure_probability, words, fixed, training):
    """Returns the seconds until a device reports, and the seconds until it fails on its own (or
    infinity).

    Args:
        speed_within: value of the fate model.
        failure_probability: probability for the device.
        words: draws of the device and its attempt.
        fixed: seconds that do not vary between attempts.
        training: seconds of training, which vary.
    """
    w0, w1, w2, _ = words
    # Log-normal with median 1. The law is an assumption: we know of no data on how much the speed
    # of one device differs between attempts.
    work_seconds = fixed + training * math.exp(speed_within * normal(w0))
    failure_seconds = np.inf
    if uniform(w1) < failure_probability:  # at a uniform share of the work
        # Slightly heuristic: nothing says that a device is as likely to fail late in its work as
        # early.
        failure_seconds = work_seconds * uniform(w2)
    return work_seconds, failure_seconds


def resolve_reporting(
    selected: Selected,
    fates: Fates,
    started: float | Float64Array,
    attempt: int,
    round_index: int,
    rules: RoundRules,
    task: int = 0,
    earlier_starts: Float64Array | None = None,
) -> Reporting:
    """Closes a round by the closing rule, and settles the memory of its devices.

    A device reports when its work is done, unless it first fails or stops being eligible. A report
    to a server that is down counts as a failure. Reports after closing are late.

    Args:
        selected: [S] devices.
        fates: their fates, [S].
        started: start of the round, or of each device's attempt [S], seconds since start.
        attempt: number of the attempt.
        round_index: the attempted round.
        rules: rules of the scenario.
        task: place of the round's task in the scenario.
        earlier_starts: starts of earlier rounds of the devices [S], as in `Attempt`.
    """
    report_times, failure_times = _lost_in_outages(
        started + fates.work_seconds, started + fates.failure_seconds, rules.outages
    )
    # A device that leaves before it would fail has dropped out: only the first event counts.
    fails = (failure_times < report_times) & (failure_times <= selected.interval_ends)
    reports = ~fails & (report_times <= selected.interval_ends)
    deadline = started + rules.report_timeout_seconds

    # A device that neither reports nor fails leaves when its interval ends.
    free = np.where(reports, report_times, np.where(fails, failure_times, selected.interval_ends))
    # No later event of a device that left or failed happens.
    report_times = np.where(reports, report_times, np.inf)
    closing = rules.closing.close(report_times, started, deadline)
    if closing.is_committed:
        arrived = int(np.count_nonzero(closing.has_arrived))
        # The devices that train are a sample of at least this many.
        assert arrived >= rules.closing.report_goal, f"a committed round kept {arrived} reports"

    # The order matters: a device that reports has not failed, and one on time has reported.
    outcomes = np.full(reports.size, Outcome.DROPPED, np.uint8)
    outcomes[fails] = Outcome.FAILED
    outcomes[reports] = Outcome.LATE
    # The device cannot distinguish the two, since its report arrived in time either way.
    kept = Outcome.ACCEPTED if closing.is_committed else Outcome.ABANDONED
    outcomes[closing.has_arrived] = kept

    upload_times = started + fates.work_seconds - selected.upload_seconds
    # The server aborts uploads in progress when the round closes.
    is_lost_on_the_way = ~reports & (upload_times < free) & (free < closing.time)
    attempted = Attempt(
        started=started,
        device_ids=selected.device_ids,
        report_times=report_times,
        upload_times=upload_times,
        has_reported=reports,
        has_arrived=closing.has_arrived,
        has_uploaded=closing.has_arrived | is_lost_on_the_way,
        timer_seconds=selected.timer_seconds,
        contributions=selected.contributions,
        earlier_starts=earlier_starts,
    )
    policies = rules.policies_at(round_index)
    settlement = Settlement(
        attempt=attempt,
        round_index=round_index,
        device_ids=selected.device_ids,
        check_in_times=selected.check_in_times,
        report_times=np.where(reports, report_times, np.nan),
        outcomes=outcomes,
        open_times=policies.open_times(attempted),
        remembers_round=policies.remembers_round(attempted),
        forget_times=policies.forget_times(attempted),
        task=task,
    )
    return Reporting(
        # The budget may still turn this into an abandoned round: see `withheld`.
        is_committed=closing.is_committed,
        closed=closing.time,
        reported=int(np.count_nonzero(reports)),
        settlement=settlement,
        busy_until=free,
        attempted=attempted,
    )


def withheld(reporting: Reporting) -> Reporting:
    """Returns a round that was to be committed as abandoned, with all its reports.

    Nothing of it is released. The devices cannot know, so they keep away as after any report that
    arrived in time.
    """
    return replace(
        reporting,
        is_committed=False,
        settlement=without_commit(reporting.settlement),
    )


def without_commit(settlement: Settlement) -> Settlement:
    """Returns a settlement whose accepted reports were not used after all."""
    outcomes = settlement.outcomes
    # Timers and remembered rounds stay: see `withheld`.
    abandoned = np.where(outcomes == Outcome.ACCEPTED, np.uint8(Outcome.ABANDONED), outcomes)
    return replace(settlement, outcomes=abandoned)


def exclusion(
    excluded: Selected, attempt: int, round_index: int, *, keeps_losses: bool
) -> Settlement:
    """Returns the settlement of devices that are never selected again, whatever they remember.

    Args:
        excluded: [S]; the devices.
        attempt: number of the attempt, which has no other settlement.
        round_index: the round that is being formed.
        keeps_losses: whether devices may lose their history.
    """
    size = excluded.device_ids.size
    return Settlement(
        attempt=attempt,
        round_index=round_index,
        device_ids=excluded.device_ids,
        check_in_times=excluded.check_in_times,
        report_times=np.full(size, np.nan),
        outcomes=np.full(size, Outcome.EXCLUDED, np.uint8),
        open_times=np.full(size, NEVER, np.uint32),
        remembers_round=np.zeros(size, np.bool_),
        # The device stores nothing that could be lost.
        forget_times=np.zeros(size if keeps_losses else 0, np.uint32),
    )


def _lost_in_outages(
    report_times: Float64Array,
    failure_times: Float64Array,
    outages: Float64Array,
) -> tuple[Float64Array, Float64Array]:
    """Returns the times [S] of reports and failures; a report while the server is down becomes a
    failure.

    Args:
        report_times: [S]; infinity for no report. Seconds since start.
        failure_times: [S]; infinity for no failure.
        outages: [O, 2]; start and end of each.
    """
    for outage_start, outage_end in outages:
        # The device learns of the lost report when it sends it, unless it failed before.
        is_lost = (outage_start <= report_times) & (report_times < outage_end)
        failure_times = np.where(is_lost, np.minimum(failure_times, report_times), failure_times)
        report_times = np.where(is_lost, np.inf, report_times)
    return report_times, failure_times
