"""Findings: the verdict on each statement of a claim, with the devices and rounds that break or
bind it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from fedray.base.document import Document, InJson
from fedray.base.rounding import counted, down, fine, given, up


class Verdict(StrEnum):
    """Verdict of the trace on a statement of a claim; values are the words in reports."""

    HOLDS = "holds"
    TRACE_ONLY = "not supported (this trace spent less)"
    """The devices of this trace spent no more, but no claimed or enforced limit ensures it. Not a
    pass."""
    BROKEN = "broken"
    UNPROVEN = "unproven"
    """Only an upper bound is known, and it exceeds the claim."""
    UNCHECKED = "unchecked"
    """The trace lacks the data for a check."""


ROUNDED = {"rho": 1e-9, "epsilon": 1e-6}
"""Relative error of floats, and of the discretisation of epsilon (which rounds up). A claim that
falls short by more is broken."""
SPENT_STATEMENTS = tuple(ROUNDED)
NOISE_STATEMENTS = ("mechanism", "noise_multiplier", "trust")
PRIVACY_STATEMENTS = (*NOISE_STATEMENTS, *SPENT_STATEMENTS)
"""Statements about privacy; the others are about participation."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A device, the rounds in question, and their meaning, so that a finding can be checked by
    hand."""

    device: str
    """Name of the device."""
    rounds: tuple[int, ...]
    """The rounds in question."""
    shows: str
    """Meaning of the rounds, in words."""
    log_rounds: tuple[int, ...] = ()
    """The log's own numbers of the rounds; empty if they are the same, and for a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Document):
    """The verdict on one statement of the claim. Statements are judged one by one, so a claim may
    hold in part."""

    statement: str
    """The key of the claim."""
    verdict: Verdict
    """Verdict on the statement."""
    claimed: float | str | None
    """The claimed figure; for a mechanism its kind."""
    found: float | str | None = None
    """The figure of the trace, or the kind of the mechanism that was used; None if unknown. For rho
    and epsilon, the largest that a device of the trace spent."""
    should_say: str = ""
    """The supported statement; empty if this one holds or nothing is supported."""
    explanation: str
    """The reason, in words."""
    broken_by: int = 0
    """Number of breaches: pairs, or devices."""
    evidence: tuple[Evidence, ...] = ()
    """The worst breaches, or the binding case if the statement holds."""
    of_claimed_limits: float | None = None
    """For rho and epsilon, the figure that follows from the claimed limits, whether the trace keeps
    them or not; None without limits or a theorem."""
    broken_by_devices: int | None = None
    """Number of devices whose pairs break a min-sep or timer; None for other statements."""

    @property
    def name(self) -> str:
        """The statement in words."""
        return self.statement.replace("_", " ").replace("min sep", "min-sep")

    @property
    def claimed_text(self) -> str:
        """The claimed figure as text."""
        value = self.claimed
        return "-" if value is None else value if isinstance(value, str) else given(value)

    @property
    def found_text(self) -> str:
        """The figure of the trace as text, rounded to the side on which the claim is not
        flattered."""
        value = self.found
        if value is None or isinstance(value, str):
            return value or "-"
        if self.statement in SPENT_STATEMENTS:
            return fine(value)
        if self.statement == "timer_hours":
            return down(value)
        if self.statement == "keep_days":
            return up(value)
        # Counts are exact, and the noise multiplier was given by the run.
        return given(value) if isinstance(value, float) else f"{value:,}"

    @property
    def contradicts_limits(self) -> bool:
        """Whether a claimed rho or epsilon is smaller than the one that follows from the claimed
        limits."""
        of_limits, claimed = self.of_claimed_limits, self.claimed
        if of_limits is None or not isinstance(claimed, float):
            return False
        return of_limits > claimed * (1 + ROUNDED[self.statement])

    @property
    def evidence_note(self) -> InJson[str]:
        """A sentence on the share of the devices that `evidence` holds; empty if it holds all."""
        if self.breakers <= len(self.evidence) or not self.evidence:
            return ""
        return f"the {len(self.evidence)} worst of {self.breakers:,} devices are shown"

    @property
    def breakers(self) -> int:
        """Number of devices that break the statement."""
        return self.broken_by if self.broken_by_devices is None else self.broken_by_devices


def broken_noise(findings: Sequence[Finding], *, is_own: bool) -> list[Finding]:
    """Returns the broken statements about the noise, without which figures say nothing of a run.

    is_own: whether the figures are at the run's own mechanism and noise multiplier; where it is
        added may still be another place.
    """
    return [
        each
        for each in findings
        if each.statement in (("trust",) if is_own else NOISE_STATEMENTS)
        and each.verdict is Verdict.BROKEN
    ]


def claim_passes(findings: Sequence[Finding]) -> bool:
    """Returns whether at least one statement could be checked, and every one that could be checked
    holds.

    A claimed rho or epsilon that could not be checked does not pass. A log never shows mechanism
    and noise multiplier, so these two do not decide by themselves.
    """
    verdicts = {each.statement: each.verdict for each in findings}
    if any(verdicts.get(statement) is Verdict.UNCHECKED for statement in SPENT_STATEMENTS):
        return False
    found = set(verdicts.values())
    return Verdict.HOLDS in found and found <= {Verdict.HOLDS, Verdict.UNCHECKED}


def standing(findings: Sequence[Finding]) -> Literal["holds", "broken", "open"]:
    """Returns whether a claim holds, is broken, or neither."""
    if claim_passes(findings):
        return "holds"
    return "broken" if any(each.verdict is Verdict.BROKEN for each in findings) else "open"


def headline(findings: Sequence[Finding]) -> str:
    """Returns whether a claim holds, as a clause."""
    is_failing = any(each.verdict in FAILING for each in findings)
    is_open = "is not supported" if is_failing else "cannot be checked"
    heads = {"holds": "holds", "broken": "does not hold", "open": is_open}
    return f"The claim {heads[standing(findings)]}"


def clauses(findings: Sequence[Finding], *, has_noise: bool) -> list[str]:
    """Returns a clause for each statement that does not hold, with the figure that would, if the
    figures are at the noise that was added."""
    failing = [
        each
        for each in findings
        if each.verdict in FAILING
        or (each.contradicts_limits and each.verdict is Verdict.UNCHECKED)
    ]
    # Statements about participation come first: those about privacy follow from them.
    failing.sort(key=lambda each: each.statement in SPENT_STATEMENTS)
    return [_clause(each, has_noise) for each in failing]


def verdict_sentences(findings: Sequence[Finding], *, has_noise: bool) -> str:
    """Returns the verdict on a claim in sentences; arguments as of `clauses`."""
    unchecked = [each.name for each in findings if each.verdict is Verdict.UNCHECKED]
    said = (headline(findings), "; ".join(clauses(findings, has_noise=has_noise)))
    sentences = [": ".join(filter(None, said))]
    if unchecked:
        sentences.append(f"Not checked: {', '.join(unchecked)}")
    if not any(each.statement in SPENT_STATEMENTS for each in findings):
        sentences.append("It states no rho or epsilon")
    return ". ".join(sentences) + "."


FAILING = {
    Verdict.BROKEN: "is not supported",
    Verdict.UNPROVEN: "is not proven",
    Verdict.TRACE_ONLY: "is not supported",
}


def _clause(finding: Finding, has_noise: bool) -> str:
    if finding.statement in SPENT_STATEMENTS:
        text = f"{finding.name} {finding.claimed_text}"
        supported = finding.should_say.rpartition(" ")[2] if has_noise else ""
        if finding.contradicts_limits:
            assert finding.of_claimed_limits is not None
            own = up(finding.of_claimed_limits)
            text += f" does not follow from the claimed limits, which give {own}"
            return text if supported in ("", own) else f"{text}; {supported} is supported"
        text += f" {FAILING[finding.verdict]}"
        if not supported:
            return text
        assert isinstance(finding.claimed, float)
        # A smaller figure than the claimed one follows from other figures than the claimed ones.
        if float(supported) <= finding.claimed:
            text += " until the claim's other statements are corrected"
            return f"{text}; then {finding.name} {supported} holds"
        if finding.of_claimed_limits is None:
            return f"{text}, {supported} is"
        text = f"{finding.name} {finding.claimed_text} would hold if the claimed limits did"
        return f"{text}; the corrected ones give {supported}"
    if finding.found is None:
        return f"{finding.name} {finding.claimed_text} {FAILING[finding.verdict]}"
    if finding.statement == "sampling":
        return f"{finding.name} is not {finding.claimed_text} (p = {finding.found:.2g})"
    if finding.found == finding.claimed:
        return f"{finding.name} {finding.claimed_text} had other parameters"
    text = f"{finding.name} is {finding.found_text}, not {finding.claimed_text}"
    if finding.statement in ("rounds", *NOISE_STATEMENTS):
        return text
    breakers = counted(finding.breakers, "device")
    if finding.broken_by_devices is not None:
        breakers = f"{counted(finding.broken_by, 'consecutive pair')} of {breakers}"
    return f"{text} ({breakers})"


def verdict_of(holds: bool) -> Verdict:
    """Returns the verdict of a statement that was checked."""
    return Verdict.HOLDS if holds else Verdict.BROKEN
