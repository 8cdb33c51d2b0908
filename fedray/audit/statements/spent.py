"""The claims `rho` and `epsilon`: whether a claimed figure follows from limits on participation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fedray.audit.findings import ROUNDED, Evidence, Finding, Verdict
from fedray.audit.guarantees import Guarantee
from fedray.audit.noise import Noise, released
from fedray.audit.sensitivity import TraceSensitivity
from fedray.base.rounding import counted, fine, up
from fedray.mechanisms.accounting.events import Event

SHOWN = {"rho": fine, "epsilon": up}
"""Functions that round these figures up, as everywhere."""


@dataclass(frozen=True, slots=True)
class SpentStatement:
    """A claim of rho or epsilon."""

    key: str
    """"rho" or "epsilon"."""
    claimed: float
    """Claimed figure."""
    privacy_of: Callable[[Event], float]
    """Figure of an event."""
    of_trace: Event
    """Release of this trace."""
    permitted: Noise
    """Least noise that the rules permit."""

    @property
    def most(self) -> float:
        """Largest figure that counts as the claimed one."""
        return self.claimed * (1 + ROUNDED[self.key])

    def check(
        self,
        found: TraceSensitivity,
        stated: Sequence[Guarantee],
        support: Guarantee,
        corrected: Guarantee,
        evidence: tuple[Evidence, ...],
    ) -> Finding:
        """Returns a finding: whether the figure follows from limits, else whether this trace spent
        no more.

        Args:
            found: sensitivity of the trace.
            stated: guarantees of the claimed limits, whether the trace keeps them or not.
            support: guarantee of the rules and the unbroken statements.
            corrected: the same with broken statements corrected, for the advice.
            evidence: the device that spent most.
        """
        of_trace, shown = self.privacy_of(self.of_trace), SHOWN[self.key]
        at_most = "" if found.is_exact else "at most "
        text = f"the devices of this trace spent {at_most}{shown(of_trace)}"
        verdict = self._verdict(of_trace, found.is_exact, support)
        figures = [getattr(each, self.key) for each in stated]
        of_limits = min((each for each in figures if each is not None), default=None)
        # The limits of the corrected claim only matter if the claim itself has no support.
        if verdict is Verdict.HOLDS or corrected is support:
            said = said_of(support)
        else:
            support, said = corrected, f"with the other statements put right, {_limits(corrected)}"
        advised, supported = "", f"nothing is proven: {said_of(support)}"
        if support.sensitivity is not None:
            figure = shown(getattr(support, self.key))
            bound = "" if support.sensitivity.is_exact else "at most "
            advised = f"{self.key} = {figure}"
            supported = f"{said} give {bound}{figure} ({support.sensitivity.theorem})"
        # Limits that are supported as claimed are in `supported` already.
        if of_limits is not None and of_limits != getattr(support, self.key):
            text = f"the claimed limits give {shown(of_limits)}; {text}"
        return Finding(
            statement=self.key,
            verdict=verdict,
            claimed=self.claimed,
            found=of_trace,
            should_say=advised,
            explanation=f"{text}; {supported}",
            evidence=evidence,
            of_claimed_limits=of_limits,
        )

    def _verdict(self, of_trace: float, is_exact: bool, support: Guarantee) -> Verdict:
        # The privacy that this trace spent does not bind another run: it only decides how a claim
        # fails. An upper bound that is too large refutes nothing; only privacy that a device surely
        # spent does.
        if support.sensitivity is not None and getattr(support, self.key) <= self.most:
            return Verdict.HOLDS
        if of_trace > self.most:
            return Verdict.BROKEN if is_exact else Verdict.UNPROVEN
        if support.sensitivity is None:
            return Verdict.TRACE_ONLY
        # Its worst pattern changes at least one sum, so this is not too large.
        lower_bound = self.privacy_of(released(self.permitted, support.sensitivity.lower_bound, 1))
        return Verdict.UNPROVEN if lower_bound <= self.most else Verdict.TRACE_ONLY

    def by_server(self, finding: Finding, ensured: Guarantee | None) -> Finding:
        """Returns the finding, which holds if the claim follows from the server's rules."""
        if ensured is None or finding.verdict is Verdict.HOLDS:
            return finding
        spent = ensured.rho if self.key == "rho" else ensured.epsilon
        if spent is None or spent > self.most:
            return finding
        text = f"{ensured.reason}, which gives {up(spent)}"
        # The figure of the trace ignores sampling, which makes it smaller.
        figures = [each for each in (finding.found, spent) if isinstance(each, float)]
        return replace(
            finding, verdict=Verdict.HOLDS, found=min(figures), explanation=text, evidence=()
        )


def said_of(guarantee: Guarantee) -> str:
    """Returns the limits of a guarantee in words, with the reason why they hold or nothing is
    proven."""
    limits = _limits(guarantee)
    return limits if limits == guarantee.reason else f"{limits} ({guarantee.reason})"


def _limits(guarantee: Guarantee) -> str:
    for each in (*guarantee.pairs, guarantee.participation):
        if each is not None:
            return f"{guarantee.limits} in {counted(each.rounds, 'round')}"
    return guarantee.reason
