"""Findings: the verdict on each statement of a claim, with the devices and rounds that break or
bind it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from fedray.base.document import Document, InJson


class Verdict(StrEnum):
    """Verdict of the trace on a statement of a claim; values are the words in reports."""

    HOLDS = "holds"
    TRACE_ONLY = "holds for this trace only"
    """The devices of this trace spent no more, but no claimed or enforced limit ensures it. Not a
    pass."""
    BROKEN = "broken"
    UNPROVEN = "unproven"
    """Only an upper bound is known, and it exceeds the claim."""
    UNCHECKED = "unchecked"
    """The trace lacks the data for a check."""


SPENT_STATEMENTS = ("rho", "epsilon")
NOISE_STATEMENTS = ("mechanism", "noise_multiplier")
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


@dataclass(frozen=True, slots=True)
class Finding(Document):
    """The verdict on one statement of the claim. Statements are judged one by one, so a claim may
    hold in part."""

    statement: str
    """The key of the claim."""
    verdict: Verdict
    """Verdict on the statement."""
    claimed: float | str | None
    """The claimed figure; for a mechanism its kind."""
    found: float | str | None
    """The figure of the trace, or the kind of the mechanism that was used; None if unknown. For rho
    and epsilon, the largest that a device of the trace spent."""
    should_say: str
    """The supported statement; empty if this one holds or nothing is supported."""
    explanation: str
    """The reason, in words."""
    broken_by: int = 0
    """Number of breaches: pairs, or devices."""
    evidence: tuple[Evidence, ...] = ()
    """The worst breaches, or the binding case if the statement holds."""

    @property
    def evidence_note(self) -> InJson[str]:
        """A sentence on the share of the breaches that `evidence` holds; empty if it holds all."""
        if self.broken_by <= len(self.evidence) or not self.evidence:
            return ""
        return f"the {len(self.evidence)} worst of {self.broken_by:,} follow"


@dataclass(frozen=True, slots=True)
class Summary(Document):
    """Verdict on all statements of one kind, with a sentence that names the failing ones."""

    verdict: Verdict
    """The worst verdict among the statements."""
    text: str
    """The verdict as a sentence."""

    @classmethod
    def of(cls, what: str, findings: Sequence[Finding]) -> "Summary | None":
        """Returns the summary of one kind of statements, or None if the claim has no such
        statement.

        Args:
            what: "privacy" or "participation".
            findings: findings of that kind.
        """
        if not findings:
            return None
        # In order from the worst; a statement that cannot be checked does not count against the
        # others.
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
        # The cases go from the most favourable to the least.
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


def verdict_of(holds: bool) -> Verdict:
    """Returns the verdict of a statement that was checked."""
    return Verdict.HOLDS if holds else Verdict.BROKEN


def plain(decimals: str) -> str:
    """Returns a decimal number without trailing zeros."""
    return decimals.rstrip("0").rstrip(".") if "." in decimals else decimals
