"""Claims that a run must ensure: before it starts, its rules must ensure every statement.

An ensured figure holds for every run that the scenario permits, whichever devices take part and
whenever the rounds start. If only the recorded times of rounds decide, it is the worst case under
the rules: a timer keeps no two rounds apart, since rounds may be as rare as the timer is long, and
a run may end early. Every release of the run is checked as well (fedray/runs/release_guard.py).
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fedray.audit.check import check_participation
from fedray.audit.claims import Claim
from fedray.audit.findings import ROUNDED, Verdict
from fedray.audit.guarantees import Guarantee, Limits, enforced_limits, shown_pairs
from fedray.audit.noise import ServerNoise, most_changed, permitted_noise, released
from fedray.audit.participation import read_patterns
from fedray.audit.questions import vocabulary_cost
from fedray.audit.rules import Rule, rules_of
from fedray.audit.sampled import sampled_in_any_run
from fedray.audit.so_far import bounds_under
from fedray.audit.statements.most_per_period import MostPerPeriod
from fedray.audit.statements.noise import check_noise, check_trust
from fedray.audit.statements.statement import Subject
from fedray.audit.zones import DAY
from fedray.base.errors import InputError
from fedray.base.rounding import down, fine, given, given_delta, up
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.events import Event, EventRefused
from fedray.mechanisms.accounting.zcdp import failure_of, rho_of
from fedray.mechanisms.participation import MinSep, most_of_device
from fedray.runs.preflight import Preflight
from fedray.runs.release_guard import ClaimGuard
from fedray.scenario import Scenario, SeveralTasks
from fedray.server.rounds.stored import MOST_FAILURES
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace


def guard_of(claim: Claim, checked: Preflight[Any]) -> ClaimGuard:
    """Returns the guard of a run whose rules ensure a claim.

    Args:
        claim: the claim.
        checked: the scenario, with its noise.

    Raises:
        InputError: a statement is not ensured, or the scenario has several tasks.
    """
    scenario = checked.scenario
    if isinstance(scenario, SeveralTasks):
        raise InputError(
            "a claim is about one model, and the scenario has several tasks; run each by itself"
        )
    (worst,) = checked.worst
    _check(unensured(claim, scenario, worst))
    return ClaimGuard(claim, scenario, worst)


def check_trace(claim: Claim, trace: Trace | ImportedTrace, scenario: Scenario) -> None:
    """Checks that a training or a question on a finished trace ensures a claim: by the rules at the
    recorded times of the rounds, and by the participations themselves.

    Args:
        claim: the claim.
        trace: the trace.
        scenario: scenario of the training or the question.

    Raises:
        InputError: a statement is not ensured or broken; nothing may be released.
    """
    patterns = read_patterns(trace)
    limits = enforced_limits(trace, scenario, None, patterns)
    if limits.participation is None:
        raise InputError(f"trace {str(trace.path)!r} ensures no claim: {limits.reason}")
    problems = unensured(claim, scenario, limits.participation)
    findings = check_participation(claim, Subject(trace, patterns, str))
    problems += [
        _problem(each.statement, each.claimed_text, f"the trace has {each.found_text}")
        for each in findings
        if each.verdict is not Verdict.HOLDS
    ]
    _check(problems)


def _check(problems: list[str]) -> None:
    if problems:
        error = InputError("; ".join(problems))
        error.problems = tuple(problems)
        raise error


def _problem(key: str, claimed: object, ensured: str) -> str:
    return f"claim: {key}={claimed} is not ensured; {ensured}"


def unensured(claim: Claim, scenario: Scenario, permitted: MinSep) -> list[str]:
    """Returns a line for each statement that the rules do not ensure, with the figure that they do.

    Args:
        claim: the claim. Its rho and epsilon are judged with the scenario's own noise, which must
            be at least the claimed one.
        scenario: the scenario, with its noise.
        permitted: participation that its rules permit.
    """
    rules, problems = _Rules(claim, scenario, permitted), list[str]()
    # Mechanism and noise are about a model.
    if scenario.training.enabled or scenario.analytics is None:
        problems += [
            _problem(
                each.statement,
                each.claimed_text,
                # A mechanism may differ in its parameters only.
                each.explanation
                if each.found == each.claimed
                else f"the scenario has {each.found_text}",
            )
            for each in (
                *check_noise(
                    scenario.privacy.as_added(claim.mechanism),
                    claim.noise_multiplier,
                    scenario.privacy,
                ),
                *check_trust(claim.trust, scenario.privacy),
            )
            if each.verdict is not Verdict.HOLDS
        ]
    for key in ENSURED:
        claimed = getattr(claim, key)
        if claimed is None:
            continue
        is_ensured, ensured = getattr(rules, key)(claimed)
        if not is_ensured:
            shown = claimed.text if isinstance(claimed, MostPerPeriod) else claimed
            problems.append(_problem(key, shown, f"the rules ensure {ensured}"))
    return problems


ENSURED = (
    *("rounds", "min_sep", "max_participations", "timer_hours", "most_per_period", "keep_days"),
    *("frontier", "sampling", "rho", "epsilon"),
)
"""Statements about participation and privacy, in the order in which they are listed; a method of
`_Rules` for each."""


@dataclass(frozen=True, slots=True)
class _Rules:
    """The rules of a run. The method of a statement takes the claimed value, and returns whether
    the rules ensure it, and the figure that they do ensure, in words."""

    claim: Claim
    """The claim."""
    scenario: Scenario
    """Scenario, with its noise."""
    permitted: MinSep
    """Participation that the rules permit."""

    def rounds(self, claimed: int) -> tuple[bool, str]:
        n = self.permitted.rounds
        return n <= claimed, f"{n:,}"

    def min_sep(self, claimed: int) -> tuple[bool, str]:
        b = self.permitted.min_sep
        return self._is_once or b >= claimed, f"{b:,}"

    def max_participations(self, claimed: int) -> tuple[bool, str]:
        k = self.permitted.max_participations
        return k <= claimed, f"{k:,}"

    def frontier(self, claimed: Sequence[tuple[int, int]]) -> tuple[bool, str]:
        b, k = self.permitted.min_sep, self.permitted.max_participations
        # A device may use its limits to the full, so one pair must hold for them.
        is_ensured = any((b >= least or self._is_once) and k <= most for least, most in claimed)
        return is_ensured, shown_pairs([(b, k)])

    def timer_hours(self, claimed: float) -> tuple[bool, str]:
        rounds, longest = self.scenario.rounds, math.inf
        if rounds.buffer is None and rounds.uploads is None:
            longest = 60.0 * rounds.report_timeout_minutes
        # A rule that starts before the report is shorter from the report on, by the longest one.
        waits = [
            each.seconds - (0.0 if each.is_from_report else longest) for each in self._kept_rules
        ]
        hours = max([0.0, *waits]) / 3600.0
        return self._is_once or hours >= claimed, down(hours)

    def most_per_period(self, claimed: MostPerPeriod) -> tuple[bool, str]:
        most = (
            self._most_on_day
            if claimed.hours is None
            else self._most_within(3600.0 * claimed.hours)
        )
        found = claimed.model_copy(update={"participations": most})
        return most <= claimed.participations, found.text

    def keep_days(self, claimed: float) -> tuple[bool, str]:
        days = _oldest_upload(self.scenario) / 86_400.0
        return days <= claimed, up(days)

    def sampling(self, claimed: object) -> tuple[bool, str]:
        del claimed
        return False, "no sampling before a run, since it is tested on a trace; leave it out"

    def rho(self, claimed: float) -> tuple[bool, str]:
        found = self._spent(rho_of)
        ensured = fine(found) if math.isfinite(found) else f"no rho, {self._why_none(rho_of)}"
        return found <= claimed * (1 + ROUNDED["rho"]), ensured

    def epsilon(self, claimed: float) -> tuple[bool, str]:
        delta = self.claim.delta

        def epsilon(event: Event) -> float:
            return epsilon_of(event, delta).epsilon

        found = self._spent(epsilon)
        ensured = f"{up(found)} at delta {given(delta)}"
        if not math.isfinite(found):
            ensured = f"no epsilon at delta {given(delta)}, {self._why_none(epsilon)}"
        return found <= claimed * (1 + ROUNDED["epsilon"]), ensured

    @property
    def _is_once(self) -> bool:
        # A single participation obeys any separation and any wait.
        return self.permitted.max_participations == 1

    @property
    def _kept_rules(self) -> list[Rule]:
        return [each for each in rules_of(self.scenario.participation) if not each.unkept]

    @property
    def _most_on_day(self) -> int:
        """Largest number of participations of a device on a local day."""
        limits = [each.most_within for each in self._kept_rules if each.is_local_day]
        # A calendar day is one of the windows of 24 hours.
        return min([self._most_within(DAY), *limits])

    def _most_by_periods(self, seconds: float) -> float:
        """Returns the largest number of participations with less than `seconds` between the first
        and the last that rules on periods permit; infinity without such rules."""
        found = [math.inf]
        for each in self._kept_rules:
            if each.is_local_day:
                # So long a time touches one calendar day more than it has whole days.
                found.append(each.most_within * (math.ceil(seconds / DAY) + 1))
            elif each.most_within:
                found.append(each.most_within * math.ceil(seconds / each.within_seconds))
        return min(found)

    def _most_within(self, seconds: float) -> int:
        """Returns the largest number of participations of a device with less than `seconds` between
        the first and the last."""
        rounds = self.scenario.rounds
        most = int(min(self.permitted.max_participations, self._most_by_periods(seconds)))
        apart = max((each.seconds for each in self._kept_rules), default=0.0)
        uploads = rounds.uploads
        if uploads is None:
            # The pace keeps rounds that select together apart, and a separation keeps a device's
            # rounds apart by several times that.
            if rounds.buffer is None:
                pace = 60.0 * (rounds.min_minutes_between or 0.0)
                apart = max(apart, self.permitted.min_sep * pace)
            return min(most, math.ceil(seconds / apart)) if apart else most
        # The first upload may come at the end of its window, and the last at the start of its own.
        windows = min(uploads.windows, math.ceil(seconds / uploads.seconds) + 1)
        if apart:
            windows = min(windows, math.ceil(seconds / apart))
        # An upload counts in every round that draws it.
        of_window = max(uploads.rounds_of_windows(rounds.count))
        return min(most, windows * most_of_device(of_window, uploads.groups))

    def _spent(self, privacy_of: Callable[[Event], float]) -> float:
        """Returns the smallest figure that follows from the rules; infinity without one."""
        found = [math.inf]
        for events in self._events():
            # Not every figure has a theorem.
            with contextlib.suppress(EventRefused):
                found.append(max(math.inf if e is None else privacy_of(e) for e in events))
        return min(found)

    def _why_none(self, privacy_of: Callable[[Event], float]) -> str:
        """Returns the reason for having no figure by the limits of the rules, as a clause."""
        for each in self._bounds:
            if each.event is None:
                return f"since {each.reason.removeprefix('no guarantee: ')}"
            refusal = "since the noise is too small"
            try:
                if math.isfinite(privacy_of(each.event)):
                    continue
            except EventRefused as error:
                refusal = f"since {error}"
            own = failure_of(each.event)
            return (
                f"since the deltas of its answers add up to {given_delta(own)}" if own else refusal
            )
        return "since the scenario adds no noise"

    @property
    def _bounds(self) -> Sequence[Guarantee]:
        """Bounds by the limits of the rules: one for each trust model of its question, of which a
        deployment may have any. Empty without noise."""
        if self.scenario.privacy.strategy is None and self.scenario.analytics is None:
            return ()
        return bounds_under(self.scenario, Limits(self.permitted, "the rules of the scenario"))

    def _events(self) -> Iterator[Sequence[Event | None]]:
        """Yields the release of the run under each of the rules on which a guarantee may rest, as
        `_bounds`."""
        scenario, privacy = self.scenario, self.scenario.privacy
        if not (bounds := self._bounds):
            return
        yield [each.event for each in bounds]
        # The others are about a model only.
        if scenario.analytics is None and vocabulary_cost(scenario) is None:
            strategy = privacy.needed_strategy()
            own = ServerNoise(privacy.noise_multiplier, scenario.count_noise)
            noise = permitted_noise(own, scenario, strategy)
            drawn = sampled_in_any_run(scenario, strategy, noise, self.claim.delta, self.permitted)
            yield [None if drawn is None else drawn.event]
            limit = privacy.largest_sensitivity
            # A filter keeps every device within its budget, whatever the rules.
            if limit is not None and privacy.at_limit == "exclude" and own.count_noise is None:
                yield [released(own, limit, most_changed(own, [self.permitted]))]


def _oldest_upload(scenario: Scenario) -> float:
    """Returns the largest age of a stored upload when a round draws it, seconds; 0 if rounds store
    no uploads."""
    uploads = scenario.rounds.uploads
    if uploads is None:
        return 0.0
    # Each failed attempt takes as long as a round.
    attempts = MOST_FAILURES if uploads.unresolved_share else 1
    oldest, closed = 0.0, 0.0
    for window, count in enumerate(uploads.rounds_of_windows(scenario.rounds.count)):
        begins = window * uploads.seconds
        closed = max(closed, begins + uploads.seconds)
        closed += 60.0 * uploads.round_minutes * count * attempts
        # The last attempt draws before it is closed.
        oldest = max(oldest, closed - 60.0 * uploads.round_minutes - begins)
    return min(oldest, uploads.keep_seconds)
