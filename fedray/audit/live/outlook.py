"""Will a claim hold after the last planned round? The figures spent so far, the largest that
devices can still reach under the rules, and the claimed ones, with the state of the claim.

* **lost**: the released rounds exceed the claim, whatever happens later.
* **in danger**: some pattern that the rules allow exceeds it by the last round.
* **kept**: none does.

Spent figures are over the released rows 0 .. r - 1 of C. The others are over all R planned rows, in
which earlier participations cost more.
"""

from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np

from fedray.audit.audit import Audit
from fedray.audit.claims import Claim
from fedray.audit.findings import NOISE_STATEMENTS, ROUNDED, Finding, Verdict
from fedray.audit.live.changes import Ahead, Change, changes_that_keep
from fedray.audit.live.in_force import InForce, RulesInForce, Waiting
from fedray.audit.live.promise import Promise
from fedray.audit.live.reached import Reached, reached
from fedray.audit.live.round_numbers import RoundNumbers, named, numbers_of
from fedray.audit.live.rules_ahead import RulesAhead, paced, rules_ahead, slowest_recorded
from fedray.base.arrays import Float64Array
from fedray.base.document import Document, InJson, Key, NotInJson
from fedray.base.errors import InputError
from fedray.base.result import DrawnResult
from fedray.base.rounding import shown_noise
from fedray.mechanisms.continuation import Continued
from fedray.mechanisms.strategy import SensitivityUnknown
from fedray.scenario.hold import By, Hold, write_hold

VERSION = 1
"""Version of the document."""
JUDGED = ("rounds", "min_sep", "max_participations", "rho", "epsilon")
"""Statements with figures that are compared."""
FIGURES = ("epsilon", "rho", "min_sep", "max_participations")
"""Figures of a row that have gauges."""
CURVE = 8
"""Number of last rounds of the curve of what devices can still reach."""


class State(StrEnum):
    """State of a claim, or of one of its statements."""

    KEPT = "kept"
    IN_DANGER = "in danger"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Row(Document):
    """Figures of one line: spent, forward or claimed; None if unknown or not claimed."""

    name: str
    """"spent", "forward" or "claimed"."""
    rounds: int | None
    """Number of rounds."""
    min_sep: int | None
    """b; None also if no device takes part twice."""
    max_participations: int | None
    """k."""
    sensitivity: float | None
    """Largest sensitivity at clip norm 1; of the claim, the largest with which its rho and epsilon
    hold."""
    is_exact: bool
    """Whether a pattern attains the sensitivity; False for an upper bound."""
    theorem: str
    """Argument behind the sensitivity."""
    rho: float | None
    """rho of zCDP."""
    epsilon: float | None
    """epsilon at the claim's delta."""


@dataclass(frozen=True, slots=True)
class StatementAhead(Document):
    """State of one statement of the claim."""

    statement: str
    """The key of the claim."""
    state: State
    """kept, in danger or lost."""
    claimed: float | str | None
    """Claimed figure."""
    spent: float | str | None
    """Figure of the released rounds; None if unknown."""
    forward: float | str | None
    """Largest figure, or least min-sep, that devices can reach by the last planned round; None if
    the rules keep the statement as claimed."""
    lost_at: int | None
    """Number of released rounds after which the statement was first exceeded; None unless lost, and
    if unknown."""
    is_checked: bool = True
    """Whether the trace shows that it holds so far; a log does not show its noise."""


@dataclass(frozen=True, slots=True)
class Point(Document):
    """Largest figures of devices if a round is the last."""

    rounds: int
    """Number of rounds."""
    sensitivity: float
    """Largest sensitivity that devices can reach."""
    epsilon: float
    """Its epsilon at the claim's delta."""


@dataclass(frozen=True, slots=True)
class Night(Document):
    """State of a claim on one night of a run that continues: a line of a history file."""

    night: str
    """Day of the judgement in UTC, such as 2026-11-29."""
    digest: str
    """Digest of the trace."""
    claim: str
    """Digest of the claim."""
    state: State
    """State of the claim."""
    released: int
    """Number of released rounds."""
    rounds: int
    """Planned number of rounds."""
    delta: float
    """delta of epsilon."""
    spent: Row
    """Figures of the released rounds."""
    forward: Row
    """Largest figures that devices can reach by the last planned round."""
    claimed: Row
    """Limits of the claim."""
    setting: str = ""
    """Mechanism and noise of the figures; empty in lines of earlier releases, as the next two."""
    claim_file: str = ""
    """File of the claim, as it was given."""
    rules: tuple[str, ...] = ()
    """Rules in force, in words."""

    @property
    def gauges(self) -> dict[str, float]:
        """Known figures by the names of their gauges."""
        rows = (self.spent, self.forward, self.claimed)
        figures = {
            f"{row.name}_{figure}": getattr(row, figure) for row in rows for figure in FIGURES
        }
        known = {name: value for name, value in figures.items() if value is not None}
        state = list(State).index(self.state)
        return {"round": self.released, "rounds": self.rounds, "state": state, **known}


@dataclass(frozen=True)
class Outlook(DrawnResult):
    """Whether a claim will hold after the last planned round, and what to change."""

    TABLES: ClassVar[str] = "fedray.report.outlook:outlook_tables"
    SUBJECT: ClassVar[str] = "fedray.report.outlook:outlook_subject"
    FIGURES: ClassVar[str] = "fedray.report.outlook:outlook_figures"
    PAGE: ClassVar[str] = "fedray.report.outlook:outlook_page"
    HEADLINE: ClassVar[str] = "fedray.report.outlook:outlook_headline"

    version: int
    """Version of this document, 1."""
    path: Annotated[Path, Key("trace")]
    """Directory of the trace."""
    digest: str
    """Digest of the trace."""
    claim: Annotated[str, Key("claim_digest")]
    """Digest of the claim."""
    state: State
    """State of the claim: the worst of its statements."""
    released: int
    """Number of released rounds; a round in progress is still to come."""
    rounds: int
    """Planned number of rounds."""
    slowest_hours: float | None
    """Most hours from one start of a round to the next, as stated; None without."""
    delta: float
    """delta of epsilon."""
    rows: tuple[Row, Row, Row]
    """Spent, forward, claimed."""
    statements: tuple[StatementAhead, ...]
    """Statements of the claim."""
    device: str | None
    """Device that reaches most in the forward guarantee; None for a device without a past."""
    past: tuple[int, ...]
    """Its rounds so far."""
    future: tuple[int, ...]
    """Its rounds from now on."""
    claim_file: str
    """File of the claim, as it was given; empty if the claim was made in Python."""
    next_round: int | None
    """Least number of the next round, as the log has it; None if its numbers do not increase."""
    adoption: str | None
    """Lines of TOML that put the first change in force: of the file for a log's rules in force, or
    of a scenario's table `participation`. None if that needs no rule and no list."""
    slowest_recorded_hours: float | None
    """Most hours from one recorded start of a round to the next, if a rule is in hours and they are
    more than stated; else None."""
    rules: tuple[str, ...]
    """Rules from now on, in words."""
    notes: tuple[str, ...]
    """Conditions and remarks, in sentences without a full stop."""
    changes: tuple[Change, ...]
    """Least changes that keep all statements of the claim that are not lost; empty unless one of
    these is in danger."""
    curve: tuple[Point, ...]
    """Largest figures by last round, from the released rounds to the planned ones."""
    audit: NotInJson[Audit]
    """Audit of the released rounds."""
    waiting: NotInJson[Waiting]
    """Devices of the list in force."""
    latest: NotInJson[Float64Array | None]
    """Latest time of a participation in each planned round at the stated pace, [R seconds]; None if
    unknown."""
    at_recorded_pace: NotInJson[tuple[float, Point] | None]
    """Most hours from one recorded start of a round to the next, and the largest figures at that
    pace; None if a pace is stated, no rule is in hours, or times are unknown."""
    numbers: NotInJson[RoundNumbers | None]
    """Numbers of rounds, by which the text names them; None for their places in the trace."""
    nights: NotInJson[tuple[Night, ...]] = ()
    """Nights of the history, this one included, in order; empty without a history."""

    @property
    def statement(self) -> InJson[str]:
        """The answer in sentences, to be quoted."""
        return self.headline

    def number_of(self, place: int) -> int:
        """Returns the number by which the text names a round."""
        return named(self.numbers, place)

    @property
    def left(self) -> tuple[StatementAhead, ...]:
        """Statements that changes can still keep."""
        return _left(self.statements)

    @property
    def state_left(self) -> State:
        """State of the statements that are left; lost if none is."""
        return _worst([each.state for each in self.left] or [self.state])

    @property
    def what_is_kept(self) -> str:
        """The claim in words, or what is left of it."""
        return "the rest of the claim" if self.state is State.LOST and self.left else "the claim"

    @property
    def advised(self) -> Change | None:
        """The first change that keeps what is left of the claim, which costs least; None without
        one."""
        return self.changes[0] if self.changes and self.changes[0].is_enough else None

    def write_hold(self, file: Path, by: By | None = None) -> int:
        """Writes the list of `hold`, as CSV or Parquet.

        Args:
            file: the hold file.
            by: as `hold` has it.

        Returns:
            Number of devices.

        Raises:
            InputError: no change keeps what is left of the claim, or the list cannot be made or
                written.
        """
        found = self.hold(by)
        if found is None:
            reason = f"cannot be written: no change keeps {self.what_is_kept}"
            raise InputError.of("hold", str(file), reason, "see the changes that do")
        write_hold(file, found)
        return len(found.device_ids)

    @property
    def setting(self) -> str:
        """Mechanism and noise of the figures, in words."""
        used = self.audit.mechanisms[0]
        if used.noise_multiplier is None:
            return f"mechanism {used.title}"
        return f"mechanism {used.title}, noise multiplier {shown_noise(used.noise_multiplier)}"

    def hold(self, by: By | None = None) -> Hold | None:
        """Returns the devices that must wait under the first change, those of the list in force
        among them; None if no change keeps what is left of the claim.

        Args:
            by: first round or first time of each device; None for that of the list in force, or
                rounds without one.

        Raises:
            InputError: the list in force has the other, or numbers or times are unknown.
        """
        change = self.advised
        if change is None and self.state_left is not State.KEPT:
            return None
        added = None if change is None else change.first
        audit = self.audit
        return self.waiting.hold(audit.trace, audit.patterns, self.rounds, added, by, self.latest)

    def night_of(self, day: date) -> Night:
        """Returns the line of a history for a judgement on this day."""
        return Night(
            day.isoformat(),
            self.digest,
            self.claim,
            self.state,
            self.released,
            self.rounds,
            self.delta,
            *self.rows,
            self.setting,
            self.claim_file,
            self.rules,
        )

    def __repr__(self) -> str:
        return f"<Outlook of {self.path.name} until round {self.rounds}: {self.state.value}>"


def look_ahead(
    audit: Audit,
    rounds: int,
    slowest_hours: float | None = None,
    in_force: RulesInForce | None = None,
    hold_by: By | None = None,
    claim_file: str = "",
) -> Outlook:
    """Returns whether the claim of an audit will hold after the last planned round.

    Args:
        audit: audit of the released rounds against a claim.
        rounds: planned number of rounds, R.
        slowest_hours: most hours from one start of a round to the next; without it, rules in hours
            limit nothing.
        in_force: rules that the server of a log has enforced since a round; None without.
        hold_by: "first_time" if a list of devices that must wait will have times.
        claim_file: file of the claim, to name it in the answer.

    Raises:
        InputError: an argument is out of range, a list by time lacks a pace, the claim or the
            mechanism does not cover so many rounds, or the claim has a statement that is not judged
            ahead.
    """
    claim, patterns, trace = audit.claim, audit.patterns, audit.trace
    if claim is None:
        raise InputError("until: is judged against a claim; give one to the audit")
    if hold_by == "first_time" and slowest_hours is None:
        rule = "needs the most hours from one start of a round to the next"
        raise InputError.of("hold_by", hold_by, rule, "give the slowest pace, or list rounds")
    if rounds < trace.committed_rounds:
        rule = f"must be at least the {trace.committed_rounds:,} rounds that are released"
        raise InputError.of("until", rounds, rule, "raise it")
    if not audit.mechanisms or audit.answers is not None:
        raise InputError(
            "until: only updates of a model with noise are judged; audit the released rounds only"
        )
    if patterns.min_sep == 0:
        raise InputError(
            "until: a device contributed twice to one round, for which no limits are known; import "
            "with repeats 'once', or audit the released rounds only"
        )
    used = audit.mechanisms[0]
    if used.permitted is None:
        raise InputError("until: the noise is unknown; give a claim with noise_multiplier")
    forced = InForce(trace, patterns, audit.scenario, in_force)
    has_list_of_times = forced.has_times or hold_by == "first_time"
    rules = forced.besides(rules_ahead(trace, audit.scenario, rounds))
    rules = paced(rules, trace, slowest_hours, has_list_of_times)
    waiting = forced.waiting(rules)
    try:
        used.strategy.check_rounds(rounds)
        limits = reached(patterns, rules.future(waiting.first))
        promise = Promise.of(claim, used.permitted, rounds, limits.max_participations)
        numbers = numbers_of(trace)
        ahead = Ahead(used.strategy, patterns, promise, waiting.first, rules, numbers)
        forward = ahead.sensitivity(rules), limits
        statements = _statements(audit, claim, rules, promise, forward)
        state = _worst([each.state for each in statements])
        changes = ()
        if State.IN_DANGER in [each.state for each in _left(statements)]:
            # No change keeps what is lost.
            lost = [each.statement for each in statements if each.state is State.LOST]
            remaining = claim.model_copy(update=dict.fromkeys(lost))
            claimed = rules.with_claimed(remaining)
            # Noise of devices is judged by the participations that the claimed limits leave.
            most = reached(patterns, claimed.future(waiting.first)).max_participations
            of_claimed = Promise.of(remaining, used.permitted, rounds, most)
            changes = changes_that_keep(
                replace(ahead, promise=of_claimed),
                rules,
                claimed,
                slowest_hours,
                _unchecked(audit, statements),
            )
        curve = _curve(ahead, rules, forward[0])
        recorded = None if slowest_hours is not None else _at_recorded_pace(ahead, audit)
    except SensitivityUnknown as error:
        raise InputError(f"until={rounds}: {error}") from None
    except ValueError as error:
        raise InputError.caused_by(error) from None
    found, _ = forward
    next_round = None if numbers is None else numbers.least_next
    device = None if found.place < 0 else int(patterns.device_ids[found.place])
    return Outlook(
        version=VERSION,
        path=audit.path,
        digest=audit.digest,
        claim=claim.digest,
        state=state,
        released=rules.released,
        rounds=rounds,
        slowest_hours=slowest_hours,
        delta=claim.delta,
        rows=(_spent(audit), _forward(rounds, forward, promise), _claimed(claim, promise)),
        statements=statements,
        device=None if device is None else audit.names.of(device),
        past=found.past,
        future=found.future,
        claim_file=claim_file,
        next_round=next_round,
        adoption=forced.adoption(changes, next_round),
        slowest_recorded_hours=rules.slower if rules.has_hours and rules.slower else None,
        rules=(*rules.names, *waiting.names),
        notes=(*rules.notes, *forced.notes),
        changes=changes,
        curve=curve,
        audit=audit,
        waiting=waiting,
        latest=rules.times and rules.times[1],
        at_recorded_pace=recorded,
        numbers=numbers,
    )


def _unchecked(audit: Audit, statements: tuple[StatementAhead, ...]) -> tuple[str, ...]:
    """Returns the statements in danger because the trace does not show that they hold so far."""
    danger = {each.statement for each in statements if each.state is State.IN_DANGER}
    unchecked = (each.statement for each in audit.findings if each.verdict is Verdict.UNCHECKED)
    return tuple(each for each in unchecked if each in danger)


def _at_recorded_pace(ahead: Ahead, audit: Audit) -> tuple[float, Point] | None:
    """Returns `Outlook.at_recorded_pace`."""
    hours = slowest_recorded(audit.trace) if ahead.in_force.has_hours else None
    if hours is None:
        return None
    rules = paced(ahead.in_force, audit.trace, hours)
    value = ahead.sensitivity(rules).value
    return hours, Point(rules.rounds, value, ahead.promise.epsilon_at(value))


def _left(statements: tuple[StatementAhead, ...]) -> tuple[StatementAhead, ...]:
    """Returns the statements that changes can still keep: those that are not lost, and none if the
    claim is about another mechanism or noise."""
    lost = {each.statement for each in statements if each.state is State.LOST}
    if lost.intersection(NOISE_STATEMENTS):
        return ()
    gone = lost.union(NOISE_STATEMENTS)
    return tuple(each for each in statements if each.statement not in gone)


def _worst(states: list[State]) -> State:
    return max(states, key=list(State).index, default=State.KEPT)


def _spent(audit: Audit) -> Row:
    used = audit.mechanisms[0]
    observed = used.observed
    theorem = "" if observed.sensitivity is None else observed.sensitivity.theorem
    return Row(
        "spent",
        audit.rounds,
        audit.min_sep,
        audit.max_participations,
        used.trace.value,
        used.trace.is_exact,
        theorem,
        observed.rho,
        observed.epsilon,
    )


def _forward(rounds: int, forward: tuple[Continued, Reached], promise: Promise) -> Row:
    found, limits = forward
    return Row(
        "forward",
        rounds,
        limits.min_sep if limits.max_participations > 1 else None,
        limits.max_participations,
        found.value,
        found.is_exact,
        found.theorem,
        promise.rho_at(found.value),
        promise.epsilon_at(found.value),
    )


def _claimed(claim: Claim, promise: Promise) -> Row:
    return Row(
        "claimed",
        claim.rounds,
        claim.min_sep,
        claim.max_participations,
        promise.sensitivity,
        True,
        "" if promise.sensitivity is None else "the largest with which rho and epsilon hold",
        claim.rho,
        claim.epsilon,
    )


def _statements(
    audit: Audit,
    claim: Claim,
    rules: RulesAhead,
    promise: Promise,
    forward: tuple[Continued, Reached],
) -> tuple[StatementAhead, ...]:
    """Returns the state of every statement of a claim."""
    spent, observed = audit.mechanisms[0].trace, audit.mechanisms[0].observed
    found, limits = forward
    statements = []
    for finding in audit.findings:
        name = finding.statement
        claimed = getattr(claim, name, None)
        if name not in JUDGED or claimed is None:
            statements.append(_by_rule(finding, claim, rules))
            continue
        if name in ("rho", "epsilon"):
            now = getattr(observed, name) or 0.0
            then = getattr(promise, f"{name}_at")(found.value)
            most = claimed * (1 + ROUNDED[name])
            is_lost, is_beyond = spent.is_exact and now > most, then > most
        elif name == "min_sep":
            now = audit.min_sep
            then = limits.min_sep if limits.max_participations > 1 else None
            is_lost = now is not None and now < claimed
            is_beyond = then is not None and then < claimed
        else:
            now = getattr(audit, name)
            then = rules.rounds if name == "rounds" else limits.max_participations
            is_lost, is_beyond = now > claimed, then > claimed
        state = State.LOST if is_lost else State.IN_DANGER if is_beyond else State.KEPT
        lost_at = _lost_at(audit, name, claimed) if is_lost else None
        statements.append(StatementAhead(name, state, claimed, now, then, lost_at))
    return tuple(statements)


def _by_rule(finding: Finding, claim: Claim, rules: RulesAhead) -> StatementAhead:
    """Returns the state of a statement that only the trace breaks, or a rule keeps."""
    is_kept = True
    if finding.statement == "timer_hours":
        is_kept = rules.timer_seconds >= 3600.0 * (claim.timer_hours or 0.0)
        # A released round may have broken what the trace cannot show.
        is_kept = is_kept and finding.verdict is not Verdict.UNCHECKED
    elif finding.statement == "most_per_period" and (period := claim.most_per_period) is not None:
        is_kept = rules.keeps_period(period)
        is_kept = is_kept and finding.verdict is not Verdict.UNCHECKED
    state = State.KEPT if is_kept else State.IN_DANGER
    if finding.verdict is Verdict.BROKEN:
        state = State.LOST
    is_checked = finding.verdict is not Verdict.UNCHECKED
    return StatementAhead(
        finding.statement, state, finding.claimed, finding.found, None, None, is_checked
    )


def _lost_at(audit: Audit, name: str, claimed: float) -> int | None:
    """Returns the number of released rounds after which a statement was first exceeded."""
    patterns = audit.patterns
    if name == "rounds":
        return int(claimed) + 1
    if name == "min_sep":
        ends = [patterns.rounds[later[gaps < claimed]] for gaps, later in patterns.pairs()]
        return 1 + min(int(each.min()) for each in ends if each.size)
    if name == "max_participations":
        breaking = patterns.counts > claimed
        return 1 + int(patterns.rounds[patterns.starts[breaking] + int(claimed)].min())
    most = claimed * (1 + ROUNDED[name])
    low, high = 1, audit.rounds
    while low < high:
        middle = (low + high) // 2
        (after,) = audit.spent_after([middle])
        low, high = (low, middle) if getattr(after, name) > most else (middle + 1, high)
    return high


def _curve(ahead: Ahead, rules: RulesAhead, forward: Continued) -> tuple[Point, ...]:
    """Returns the largest figures for a few last rounds."""
    lasts = np.linspace(rules.released, rules.rounds, CURVE).round()
    points = []
    for last in np.unique(lasts).astype(int).tolist():
        found = forward if last == rules.rounds else ahead.sensitivity(rules.until(last))
        points.append(Point(last, found.value, ahead.promise.epsilon_at(found.value)))
    return tuple(points)
