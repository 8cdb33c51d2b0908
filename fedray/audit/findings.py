"""Findings: each statement of a claim, held against the trace, with the devices and rounds that
break it or bind it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from fedray.audit.claims import Claim
from fedray.audit.guarantees import REPEATED, Guarantee, Limits, claimed_limits, joined
from fedray.audit.noise import Noise, released
from fedray.audit.participation import Patterns
from fedray.audit.sensitivity import TraceSensitivity
from fedray.audit.waits import is_too_short, waits_between
from fedray.base.document import Document, InJson
from fedray.base.rounding import counted, down, up
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.events import Event
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.mechanisms.strategy import Sensitivity
from fedray.scenario.privacy import Privacy
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace

MOST_EVIDENCE = 10
ROUNDED = {"rho": 1e-9, "epsilon": 1e-6}
"""Relative: what floats, and the discretisation of epsilon (which rounds up), are off by; claims
rounded down are broken."""


class Verdict(StrEnum):
    """What the trace says of a statement of a claim; the values are the words that reports
    print."""

    HOLDS = "holds"
    TRACE_ONLY = "holds for this trace only"
    """The devices of this trace spent no more, but nothing that is claimed or enforced ensures it.
    This is no pass."""
    BROKEN = "broken"
    UNPROVEN = "unproven"
    """Only an upper bound is known, and it is above the claim."""
    UNCHECKED = "unchecked"
    """The trace does not have what it takes."""


SPENT_STATEMENTS = ("rho", "epsilon")
NOISE_STATEMENTS = ("mechanism", "noise_multiplier")
PRIVACY_STATEMENTS = (*NOISE_STATEMENTS, *SPENT_STATEMENTS)
"""Statements about privacy; the others are about participation."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A device, the rounds in question, and what they show: why somebody can check a finding by
    hand."""

    device: str
    """What the device is called."""
    rounds: tuple[int, ...]
    """The rounds in question."""
    shows: str
    """What the rounds show, in words."""


@dataclass(frozen=True, slots=True)
class Finding(Document):
    """One statement of the claim, and what became of it.

    Statements are judged one by one, so that a claim may hold in part.
    """

    statement: str
    """The key of the claim."""
    verdict: Verdict
    """What became of the statement."""
    claimed: float | str | None
    """The figure that is claimed; of a mechanism its kind."""
    found: float | str | None
    """The figure of the trace, or the kind of the mechanism that was used; None if not known. Of
    rho and epsilon, the most that a device of the trace spent."""
    should_say: str
    """Statement that is supported in place of this one; empty if this one holds, and if nothing is
    supported."""
    explanation: str
    """Why, in words."""
    broken_by: int = 0
    """How many there are that break it: pairs, or devices."""
    evidence: tuple[Evidence, ...] = ()
    """The worst of those that break it, or the binding one where it holds."""

    @property
    def evidence_note(self) -> InJson[str]:
        """How many of those that break the statement are in `evidence`, as a sentence; empty if all
        are."""
        if self.broken_by <= len(self.evidence) or not self.evidence:
            return ""
        return f"the {len(self.evidence)} worst of {self.broken_by:,} follow"


@dataclass(frozen=True, slots=True)
class Summary(Document):
    """How the statements of one kind fared together: the worst verdict, and a sentence that names
    who does not hold."""

    verdict: Verdict
    """The worst of its statements."""
    text: str
    """The verdict as a sentence."""

    @classmethod
    def of(cls, what: str, findings: Sequence[Finding]) -> "Summary | None":
        """The summary of one kind of statements; None where nothing of that kind is claimed.

        Args:
            what: "privacy" or "participation".
            findings: those of that kind.
        """
        if not findings:
            return None
        # From the worst on. What cannot be checked says nothing against the others.
        order = (
            Verdict.BROKEN,
            Verdict.UNPROVEN,
            Verdict.TRACE_ONLY,
            Verdict.HOLDS,
            Verdict.UNCHECKED,
        )
        verdict = min((finding.verdict for finding in findings), key=order.index)

        def statements(with_verdict: Verdict) -> list[str]:
            return [each.statement for each in findings if each.verdict is with_verdict]

        named = statements(verdict)
        unchecked = _listed(statements(Verdict.UNCHECKED))
        is_one = len(named) == 1
        # The cases go from what says most for the claim to what says most against it.
        match verdict:
            case Verdict.HOLDS if unchecked:
                text = f"holds as far as it can be checked ({unchecked} cannot)"
            case Verdict.HOLDS:
                text = "holds"
            case Verdict.UNCHECKED if set(named) == set(NOISE_STATEMENTS):
                text = f"no rho or epsilon is claimed ({unchecked} cannot be checked)"
            case Verdict.UNCHECKED:
                text = "cannot be checked"
            case Verdict.TRACE_ONLY:
                text = f"{_listed(named)} {'holds' if is_one else 'hold'} for this trace only"
            case Verdict.UNPROVEN:
                text = f"{_listed(named)} {'is' if is_one else 'are'} not proven"
            case _:
                text = f"{_listed(named)} {'does' if is_one else 'do'} not hold"
        return cls(verdict, f"{what}: {text}")


def _listed(names: Sequence[str]) -> str:
    """Names in a sentence: a, b and c."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def check_claim(
    claim: Claim,
    used: Privacy | None,
    trace: Trace | ImportedTrace,
    patterns: Patterns,
    found: TraceSensitivity,
    limits: Limits,
    noise: tuple[Noise, Noise],
    name_of: Callable[[int], str],
    ensured: Sequence[Guarantee | None] = (),
) -> tuple[Finding, ...]:
    """Finds out what becomes of everything that is claimed.

    A claim of rho or epsilon holds if it follows from limits: from those that were enforced, joined
    with those that are claimed and not broken. A claim that says less of participation therefore
    never holds more easily.

    Args:
        claim: what is claimed.
        used: what was run; None for a log.
        trace: of which it is claimed.
        patterns: every device's rounds.
        found: sensitivity of the claimed mechanism on this trace.
        limits: what was enforced.
        noise: least noise of this trace and least noise that the rules permit, both at the claimed
            multiplier.
        name_of: how a device is shown.
        ensured: what the server's sampling or its filter ensures; a claimed rho or epsilon may
            follow from it.

    Raises:
        ValueError: if the claim is impossible.
    """
    subject = _Subject(trace, patterns, name_of)
    noise_findings = _check_noise(claim, used)
    # Participation is judged first, because what is claimed of privacy rests on it.
    participation = []
    if claim.rounds is not None:
        participation.append(_check_rounds(claim.rounds, patterns))
    if claim.min_sep is not None:
        participation.append(_check_min_sep(claim.min_sep, subject))
    if claim.max_participations is not None:
        participation.append(_check_max_participations(claim.max_participations, subject))
    if claim.timer_hours is not None:
        participation.append(_check_timer(claim.timer_hours, subject))
    incomplete = trace.incompleteness if isinstance(trace, ImportedTrace) else ""
    if incomplete:
        # A row that was left out may be a participation, so only a breach is certain.
        participation = [_not_refuted(finding, incomplete) for finding in participation]
    # A device that contributed twice to a round is outside of what any (b, k) says.
    basis = corrected = _Basis(REPEATED, "", None)
    if patterns.min_sep > 0:
        broken = [each for each in participation if each.verdict is Verdict.BROKEN]
        # A broken statement must not support another: it is taken out of the claim before limits
        # follow from it. The advice is for a claim in which it is put right.
        without = {each.statement: None for each in broken}
        put_right = {each.statement: each.found for each in broken}
        basis = corrected = _basis(claim.model_copy(update=without), trace, limits)
        if broken:
            corrected = _basis(claim.model_copy(update=put_right), trace, limits)
    shows = f"sensitivity {up(found.value, 6)}" + ("" if found.is_exact else " at most")
    evidence = (subject.evidence(found.device_id, found.rounds, shows),)
    spent = []
    for what, claimed, figure in (
        ("rho", claim.rho, rho_of),
        ("epsilon", claim.epsilon, lambda event: epsilon_of(event, claim.delta).epsilon),
    ):
        if claimed is not None:
            finding = _check_spent(what, claimed, figure, noise, found, basis, corrected, evidence)
            for guarantee in ensured:
                finding = _by_server(finding, guarantee)
            spent.append(_not_refuted(finding, incomplete) if incomplete else finding)
    return tuple(_without_advice(finding) for finding in (*noise_findings, *participation, *spent))


def _without_advice(finding: Finding) -> Finding:
    """A statement that holds need not say anything else; least of all what was observed, which
    nothing ensures."""
    if finding.verdict is Verdict.HOLDS:
        return replace(finding, should_say="")
    return finding


@dataclass(frozen=True, slots=True)
class _Subject:
    """What a claim is held against."""

    trace: Trace | ImportedTrace
    patterns: Patterns
    name_of: Callable[[int], str]

    def evidence(self, device_id: int, rounds: Sequence[int], shows: str) -> Evidence:
        """With the numbers that the log has for the rounds, where they are others."""
        pattern = tuple(rounds)
        if isinstance(self.trace, ImportedTrace):
            # A pattern may have thousands of rounds, and a dozen say where to look.
            first = pattern[:12]
            labels = [self.trace.round_label(each) for each in first]
            more = ", ..." if len(pattern) > len(first) else ""
            # Labels that are the numbers themselves need not be told twice.
            if labels != [str(each) for each in first]:
                shows += f" (in the log: {', '.join(labels)}{more})"
        return Evidence(self.name_of(device_id), pattern, shows)


@dataclass(frozen=True, slots=True)
class _Basis:
    """What claims of rho and epsilon are computed from: limits that hold whatever happens, and
    their sensitivity.

    limits: in words.
    reason: why they hold.
    sensitivity: None where nothing is proven for the strategy under these limits.
    problem: why nothing is proven.
    """

    limits: str
    reason: str
    sensitivity: Sensitivity | None
    problem: str = ""

    @property
    def said(self) -> str:
        """The limits, why they hold, and why nothing is proven where that is so."""
        said = f"{self.limits} ({self.reason})" if self.reason else self.limits
        return f"{said}; {self.problem}" if self.problem else said


def _not_refuted(finding: Finding, incomplete: str) -> Finding:
    """What an incomplete log shows can break a statement, but cannot support it."""
    if finding.verdict is Verdict.BROKEN:
        return finding
    # The rows that were left out may have spent more than the others.
    found = None if finding.statement in SPENT_STATEMENTS else finding.found
    return replace(
        finding, verdict=Verdict.UNCHECKED, found=found, explanation=incomplete, should_say=""
    )


def _basis(claim: Claim, trace: Trace | ImportedTrace, enforced: Limits) -> _Basis:
    """The claimed limits, joined with the enforced ones; what neither names is free."""
    claimed = claimed_limits(claim, trace)
    limits = joined(enforced, claimed, trace.committed_rounds)
    rules = enforced.participation
    participation = limits.participation
    # `joined` takes every round as possible where nobody names limits.
    assert participation is not None
    # Of a run of ours the rules are known, and what they do not ensure is no limit, however often
    # it is claimed.
    if isinstance(trace, Trace) and rules is not None and participation.rounds == rules.rounds:
        limits = enforced
        participation = rules
    separation = f"min-sep {participation.min_sep:,}"
    if participation.max_participations == 1:
        separation = "no device twice"
    text = (
        f"{separation} and at most "
        f"{counted(participation.max_participations, 'participation')} in "
        f"{counted(participation.rounds, 'round')}"
    )
    try:
        claim.mechanism.check_rounds(participation.rounds)
        sensitivity = claim.mechanism.participation_sensitivity(participation)
        return _Basis(text, limits.reason, sensitivity)
    except ValueError as error:
        return _Basis(text, limits.reason, None, str(error))


def _check_noise(claim: Claim, used: Privacy | None) -> list[Finding]:
    """Whether noise was added as is claimed; a log does not say."""
    z = claim.noise_multiplier
    claimed = claim.mechanism
    if used is None:
        text = "an imported log does not say how noise was added"
        return [
            Finding("mechanism", Verdict.UNCHECKED, claimed.kind, None, "", text),
            Finding("noise_multiplier", Verdict.UNCHECKED, z, None, "", text),
        ]
    own = used.mechanism
    is_same = own.kind == claimed.kind and own.parameters == claimed.parameters
    if is_same:
        text = f"the run's mechanism is the {own.kind} that is claimed"
    elif own.kind == claimed.kind:
        text = f"the run's {own.kind} has other parameters than the one that is claimed"
    else:
        text = f"the run used another: {own.kind}"
    should_say = f"mechanism: the {own.kind} of the scenario"
    # More noise than claimed supports the claim: epsilon is only smaller.
    holds = used.noise_multiplier >= z
    enough = "the run added at least as much noise"
    if not holds:
        enough = "the run added less noise than is claimed"
    noise = f"noise_multiplier = {used.noise_multiplier!r}"
    return [
        Finding("mechanism", _verdict(is_same), claimed.kind, own.kind, should_say, text),
        Finding("noise_multiplier", _verdict(holds), z, used.noise_multiplier, noise, enough),
    ]


def _check_rounds(claimed: int, patterns: Patterns) -> Finding:
    n = patterns.committed_rounds
    more = max(0, n - claimed)
    text = "no more rounds were released than claimed"
    if more:
        text = f"{more:,} more rounds were released than claimed"
    return Finding("rounds", _verdict(not more), claimed, n, f"rounds = {n}", text, more)


def _check_min_sep(claimed: int, subject: _Subject) -> Finding:
    patterns = subject.patterns
    if patterns.max_participations == 1:
        text = "no device took part twice"
        return Finding("min_sep", Verdict.HOLDS, claimed, None, "any min_sep", text)
    gaps, after = patterns.gaps_and_places
    b = patterns.min_sep
    broken = int((gaps < claimed).sum())
    # Where the claim holds, the closest pair is shown, because it binds the claim.
    order = np.argsort(gaps, kind="stable")[: MOST_EVIDENCE if broken else 1]
    # The closest pairs come first, so all that follow the broken ones keep the claim.
    order = order[: broken or 1]
    devices, pairs = patterns.pairs_at(after[order])
    shown = zip(devices.tolist(), pairs.tolist(), gaps[order].tolist(), strict=True)
    evidence = tuple(
        subject.evidence(device, pair, f"{counted(gap, 'round')} apart")
        for device, pair, gap in shown
    )
    text = "every two participations of a device are at least as far apart as claimed"
    if broken:
        text = (
            f"{broken:,} of {counted(gaps.size, 'pair')} of consecutive participations "
            f"{'is' if broken == 1 else 'are'} closer than claimed"
        )
    verdict = _verdict(not broken)
    # Of a device that contributed twice to a round, no min-sep can be claimed.
    should_say = f"min_sep = {b}" if b else ""
    return Finding("min_sep", verdict, claimed, b, should_say, text, broken, evidence)


def _check_max_participations(claimed: int, subject: _Subject) -> Finding:
    patterns = subject.patterns
    k = patterns.max_participations
    broken = int((patterns.counts > claimed).sum())
    most = np.argsort(-patterns.counts, kind="stable")[: MOST_EVIDENCE if broken else 1]
    evidence = []
    for place in most.tolist():
        count = int(patterns.counts[place])
        # The most frequent device binds a claim that holds, and else only devices that break it.
        if broken and count <= claimed:
            continue
        start = patterns.starts[place]
        rounds = patterns.rounds[start : start + count].tolist()
        device_id = int(patterns.device_ids[place])
        evidence.append(subject.evidence(device_id, rounds, counted(count, "participation")))
    text = "no device took part more often"
    if broken:
        text = f"{counted(broken, 'device')} took part more often"
    verdict = _verdict(not broken)
    should_say = f"max_participations = {k}"
    found = tuple(evidence)
    return Finding("max_participations", verdict, claimed, k, should_say, text, broken, found)


def _check_timer(claimed: float, subject: _Subject) -> Finding:
    """Between a device's accepted report and the check-in of its next participation; in a log,
    between their times."""
    waits = waits_between(subject.trace)
    if waits is None:
        text = "the log was imported without times, so a timer cannot be checked"
        return Finding("timer_hours", Verdict.UNCHECKED, claimed, None, "", text)
    broken = 0
    worst = []
    least = math.inf
    for seconds, devices, rounds in waits:
        least = min(least, float(seconds.min(initial=math.inf)))
        broken += int(is_too_short(seconds, claimed).sum())
        # The shortest of each part are enough: no other pair can be among the shortest of all.
        for place in np.argsort(seconds, kind="stable")[:MOST_EVIDENCE].tolist():
            pair = tuple(rounds[place].tolist())
            worst.append((float(seconds[place]), int(devices[place]), pair))
    if math.isinf(least):
        text = "no device took part twice"
        return Finding("timer_hours", Verdict.HOLDS, claimed, None, "any timer", text)
    # The worst of every part are among the worst of all; where none is too short, the least binds.
    worst.sort()
    chosen = [each for each in worst[:MOST_EVIDENCE] if each[0] < 3600.0 * claimed] or worst[:1]
    evidence = [
        subject.evidence(device, pair, f"{down(wait / 3600.0)} hours apart")
        for wait, device, pair in chosen
    ]
    text = "no device took part again sooner"
    if broken:
        text = f"{counted(broken, 'pair')} of participations had less time between them"
    hours = least / 3600.0
    verdict = _verdict(not broken)
    # Rounded down, so that a claim of the figure that is advised would hold.
    should_say = f"timer_hours = {_plain(down(hours))}"
    found = tuple(evidence)
    return Finding("timer_hours", verdict, claimed, hours, should_say, text, broken, found)


def _check_spent(
    what: str,
    claimed: float,
    privacy_of: Callable[[Event], float],
    noise: tuple[Noise, Noise],
    found: TraceSensitivity,
    basis: _Basis,
    corrected: _Basis,
    evidence: tuple[Evidence, ...],
) -> Finding:
    """Whether rho or epsilon follows from limits; if not, whether at least this trace spent no
    more, and what follows from corrected limits."""
    # Floats and the discretisation of epsilon must not break a claim that is right.
    most = claimed * (1 + ROUNDED[what])
    of_this_run, permitted = noise

    def figure(sensitivity: float) -> float:
        return privacy_of(released(permitted, sensitivity))

    # What this trace spent decides only between the ways in which a claim can fail: nothing ensures
    # it for another run.
    of_trace = privacy_of(released(of_this_run, found.value))
    kind = "" if found.is_exact else "at most "
    trace_text = f"the devices of this trace spent {kind}{_plain(up(of_trace))}"
    of_basis = math.inf if basis.sensitivity is None else figure(basis.sensitivity.value)
    # A bound that is too large refutes nothing: only what a device surely spent breaks a claim.
    if of_basis <= most:
        verdict = Verdict.HOLDS
    elif of_trace > most:
        verdict = Verdict.BROKEN if found.is_exact else Verdict.UNPROVEN
    elif basis.sensitivity is not None and figure(basis.sensitivity.lower_bound) <= most:
        verdict = Verdict.UNPROVEN
    else:
        verdict = Verdict.TRACE_ONLY
    # The limits of a claim without its broken statements matter only if they support it.
    support, said = basis, basis.said
    if verdict is not Verdict.HOLDS and corrected is not basis:
        support, said = corrected, f"with the other statements put right, {corrected.limits}"
    should_say, supported = "", f"nothing is proven: {support.said}"
    if support.sensitivity is not None:
        advised = _plain(up(figure(support.sensitivity.value)))
        bound = "" if support.sensitivity.is_exact else "at most "
        should_say = f"{what} = {advised}"
        supported = f"{said} give {bound}{advised} ({support.sensitivity.theorem})"
    text = f"{trace_text}; {supported}"
    return Finding(what, verdict, claimed, of_trace, should_say, text, 0, evidence)


def _by_server(finding: Finding, ensured: Guarantee | None) -> Finding:
    """A claimed rho or epsilon holds that follows from what the server ensures."""
    if ensured is None:
        return finding
    spent = ensured.rho if finding.statement == "rho" else ensured.epsilon
    if spent is None:
        return finding
    assert isinstance(finding.claimed, float)
    text = f"{ensured.reason}, which gives {_plain(up(spent))}"
    # It can only help a claim: what holds without it stays, and what it does not cover keeps its
    # reasons.
    most = finding.claimed * (1 + ROUNDED[finding.statement])
    if finding.verdict is Verdict.HOLDS or spent > most:
        return finding
    # Figures of a trace know nothing of sampling, which makes them smaller.
    found = min(figure for figure in (finding.found, spent) if isinstance(figure, float))
    return replace(finding, verdict=Verdict.HOLDS, found=found, explanation=text, evidence=())


def _plain(decimals: str) -> str:
    """Without zeros that say nothing."""
    return decimals.rstrip("0").rstrip(".") if "." in decimals else decimals


def _verdict(holds: bool) -> Verdict:
    return Verdict.HOLDS if holds else Verdict.BROKEN
