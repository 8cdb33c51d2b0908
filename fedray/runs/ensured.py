"""Claims that a run must ensure: before it starts, its rules must ensure every statement.

What the rules ensure holds for every run that the scenario permits, whichever devices take part and
whenever the rounds start. Where only the recorded times of rounds decide, it is the worst that the
rules permit: a timer alone keeps no two rounds apart, since rounds may be as rare as the timer is
long. The releases of the run are checked one by one beside that (fedray/runs/release_guard.py).
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

from fedray.audit.check import check_participation
from fedray.audit.claims import Claim
from fedray.audit.findings import ROUNDED, Verdict
from fedray.audit.guarantees import Guarantee, Limits, enforced_limits
from fedray.audit.noise import ServerNoise, most_changed, permitted_noise, released
from fedray.audit.participation import read_patterns
from fedray.audit.questions import vocabulary_cost
from fedray.audit.rules import Rule, rules_of
from fedray.audit.sampled import sampled_in_any_run
from fedray.audit.so_far import bound_under
from fedray.audit.statements.most_per_period import Period
from fedray.audit.statements.noise import check_noise
from fedray.audit.statements.statement import Subject
from fedray.base.errors import InputError
from fedray.base.rounding import down, fine, given, up
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.events import Event
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.mechanisms.participation import MinSep, most_of_device
from fedray.runs.preflight import Preflight
from fedray.runs.release_guard import ClaimGuard
from fedray.scenario import Scenario, SeveralTasks
from fedray.server.rounds.stored import MOST_FAILURES
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace

Permitted = Callable[[Claim, Scenario, MinSep], tuple[bool, str]]
"""Returns whether a statement is ensured, and the figure that the rules ensure, in words."""


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
    problems = []
    releases_model = scenario.training.enabled or scenario.analytics is None
    if releases_model:
        noise = check_noise(claim.mechanism, claim.noise_multiplier, scenario.privacy)
        problems += [
            _problem(
                each.statement,
                each.claimed_text,
                # A mechanism may differ in its parameters only.
                each.explanation
                if each.found == each.claimed
                else f"the scenario has {each.found_text}",
            )
            for each in noise
            if each.verdict is not Verdict.HOLDS
        ]
    for key, ensures in PERMITTED.items():
        if (value := getattr(claim, key)) is not None:
            is_ensured, ensured = ensures(claim, scenario, permitted)
            shown = value.text if isinstance(value, Period) else value
            if not is_ensured:
                problems.append(_problem(key, shown, f"the rules ensure {ensured}"))
    return problems


def _rounds(claim: Claim, scenario: Scenario, permitted: MinSep) -> tuple[bool, str]:
    del scenario
    assert claim.rounds is not None
    return permitted.rounds <= claim.rounds, f"{permitted.rounds:,}"


def _min_sep(claim: Claim, scenario: Scenario, permitted: MinSep) -> tuple[bool, str]:
    del scenario
    assert claim.min_sep is not None
    # A single participation obeys any separation.
    is_once = permitted.max_participations == 1
    return is_once or permitted.min_sep >= claim.min_sep, f"{permitted.min_sep:,}"


def _max_participations(claim: Claim, scenario: Scenario, permitted: MinSep) -> tuple[bool, str]:
    del scenario
    assert claim.max_participations is not None
    k = permitted.max_participations
    return k <= claim.max_participations, f"{k:,}"


def _frontier(claim: Claim, scenario: Scenario, permitted: MinSep) -> tuple[bool, str]:
    assert claim.frontier is not None
    b, k = permitted.min_sep, permitted.max_participations
    # A device may use its limits to the full, so a single pair must hold for them.
    is_ensured = any((b >= least or k == 1) and k <= most for least, most in claim.frontier)
    del scenario
    return is_ensured, f"[[{b}, {k}]]"


def _timer_hours(claim: Claim, scenario: Scenario, permitted: MinSep) -> tuple[bool, str]:
    assert claim.timer_hours is not None
    rounds = scenario.rounds
    longest = math.inf
    if rounds.buffer is None and rounds.uploads is None:
        longest = 60.0 * rounds.report_timeout_minutes
    # A rule that starts before the report is shorter from the report on, by the longest report.
    waits = [
        each.seconds - (0.0 if each.is_from_report else longest) for each in _kept_rules(scenario)
    ]
    hours = max([0.0, *waits]) / 3600.0
    is_once = permitted.max_participations == 1
    return is_once or hours >= claim.timer_hours, down(hours)


def _most_per_period(claim: Claim, scenario: Scenario, permitted: MinSep) -> tuple[bool, str]:
    assert claim.most_per_period is not None
    period = claim.most_per_period
    most = _most_within(scenario, permitted, 3600.0 * period.hours)
    ensured = period.model_copy(update={"participations": most})
    return most <= period.participations, ensured.text


def _most_within(scenario: Scenario, permitted: MinSep, seconds: float) -> int:
    """Returns the largest number of participations of a device with less than `seconds` between the
    first and the last."""
    rounds, most = scenario.rounds, permitted.max_participations
    apart = max((each.seconds for each in _kept_rules(scenario)), default=0.0)
    uploads = rounds.uploads
    if uploads is None:
        # The pace keeps rounds that select together apart, and a separation keeps a device's rounds
        # apart by several times that.
        if rounds.buffer is None:
            pace = 60.0 * (rounds.min_minutes_between or 0.0)
            apart = max(apart, permitted.min_sep * pace)
        return min(most, math.ceil(seconds / apart)) if apart else most
    # The first upload may come at the end of its window, and the last at the start of its own.
    windows = min(uploads.windows, math.ceil(seconds / uploads.seconds) + 1)
    if apart:
        windows = min(windows, math.ceil(seconds / apart))
    # An upload counts in every round that draws it.
    of_window = max(uploads.rounds_of_windows(rounds.count))
    return min(most, windows * most_of_device(of_window, uploads.groups))


def _keep_days(claim: Claim, scenario: Scenario, permitted: MinSep) -> tuple[bool, str]:
    del permitted
    assert claim.keep_days is not None
    days = _oldest_upload(scenario) / 86_400.0
    return days <= claim.keep_days, f"{up(days)}"


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


def _kept_rules(scenario: Scenario) -> list[Rule]:
    return [each for each in rules_of(scenario.participation) if not each.unkept]


def _sampling(claim: Claim, scenario: Scenario, permitted: MinSep) -> tuple[bool, str]:
    del claim, scenario, permitted
    return False, "no sampling before a run, which only a trace is tested for; leave it out"


def _rho(claim: Claim, scenario: Scenario, permitted: MinSep) -> tuple[bool, str]:
    found = _spent(rho_of, claim, scenario, permitted)
    assert claim.rho is not None
    return found <= claim.rho * (1 + ROUNDED["rho"]), fine(found)


def _epsilon(claim: Claim, scenario: Scenario, permitted: MinSep) -> tuple[bool, str]:
    found = _spent(lambda event: epsilon_of(event, claim.delta).epsilon, claim, scenario, permitted)
    assert claim.epsilon is not None
    ensured = f"{up(found)} at delta {given(claim.delta)}"
    return found <= claim.epsilon * (1 + ROUNDED["epsilon"]), ensured


def _spent(
    privacy_of: Callable[[Event], float], claim: Claim, scenario: Scenario, permitted: MinSep
) -> float:
    """Returns the smallest figure that follows from the rules; infinity without one."""
    found = [math.inf]
    for event in _events(claim, scenario, permitted):
        try:
            found.append(privacy_of(event))
        except InputError:  # no theorem for this figure
            continue
    return min(found)


def _events(claim: Claim, scenario: Scenario, permitted: MinSep) -> Iterator[Event]:
    """Yields the releases of a run under each of the rules on which a guarantee may rest."""
    privacy = scenario.privacy
    if privacy.strategy is None and scenario.analytics is None:
        return
    limits = Limits(permitted, "the rules of the scenario")
    guarantees: list[Guarantee | None] = [bound_under(scenario, limits)]
    # The others are about a model only.
    is_model = scenario.analytics is None and vocabulary_cost(scenario) is None
    if is_model:
        strategy = privacy.needed_strategy()
        own = ServerNoise(privacy.noise_multiplier, scenario.count_noise)
        noise = permitted_noise(own, scenario, strategy)
        guarantees.append(sampled_in_any_run(scenario, strategy, noise, claim.delta, permitted))
        limit = privacy.largest_sensitivity
        # A filter keeps every device within its budget, whatever the rules.
        if limit is not None and privacy.at_limit == "exclude" and own.count_noise is None:
            yield released(own, limit, most_changed(own, [permitted]))
    for each in guarantees:
        if each is not None and each.event is not None:
            yield each.event


PERMITTED: dict[str, Permitted] = {
    "rounds": _rounds,
    "min_sep": _min_sep,
    "max_participations": _max_participations,
    "timer_hours": _timer_hours,
    "most_per_period": _most_per_period,
    "keep_days": _keep_days,
    "frontier": _frontier,
    "sampling": _sampling,
    "rho": _rho,
    "epsilon": _epsilon,
}
"""Function of each statement of a claim, in the order in which they are listed."""
