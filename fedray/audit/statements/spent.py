"""The claims `rho` and `epsilon`: whether a claimed figure follows from limits on participation."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from fedray.audit.findings import Evidence, Finding, Verdict, plain
from fedray.audit.guarantees import Guarantee, Limits
from fedray.audit.noise import Noise, released
from fedray.audit.sensitivity import TraceSensitivity
from fedray.base.rounding import counted, up
from fedray.mechanisms.accounting.events import Event
from fedray.mechanisms.strategy import Sensitivity, Strategy

ROUNDED = {"rho": 1e-9, "epsilon": 1e-6}
"""Relative error of floats, and of the discretisation of epsilon (which rounds up). A claim that
falls short by more is broken."""


@dataclass(frozen=True, slots=True)
class Basis:
    """Limits on participation that hold in any case, and their sensitivity.

    limits: the limits in words.
    reason: reason why they hold.
    sensitivity: None if no theorem covers the strategy under these limits.
    problem: reason why none does.
    """

    limits: str
    reason: str
    sensitivity: Sensitivity | None
    problem: str = ""

    @classmethod
    def of(cls, strategy: Strategy, limits: Limits) -> "Basis":
        """Returns the basis of limits that have a participation."""
        participation = limits.participation
        assert participation is not None
        separation = f"min-sep {participation.min_sep:,}"
        if participation.max_participations == 1:
            separation = "no device twice"
        text = (
            f"{separation} and at most "
            f"{counted(participation.max_participations, 'participation')} in "
            f"{counted(participation.rounds, 'round')}"
        )
        try:
            strategy.check_rounds(participation.rounds)
            sensitivity = strategy.participation_sensitivity(participation)
        except ValueError as error:
            return cls(text, limits.reason, None, str(error))
        return cls(text, limits.reason, sensitivity)

    @property
    def said(self) -> str:
        """The limits in words, why they hold, and why nothing is proven, if so."""
        said = f"{self.limits} ({self.reason})" if self.reason else self.limits
        return f"{said}; {self.problem}" if self.problem else said


@dataclass(frozen=True, slots=True)
class SpentStatement:
    """A claim of rho or epsilon.

    key: "rho" or "epsilon".
    claimed: claimed figure.
    privacy_of: figure of an event.
    noise: least noise of this trace.
    permitted: least noise that the rules permit.
    """

    key: str
    claimed: float
    privacy_of: Callable[[Event], float]
    noise: Noise
    permitted: Noise

    @property
    def most(self) -> float:
        """Largest figure that counts as the claimed one."""
        return self.claimed * (1 + ROUNDED[self.key])

    def check(
        self,
        found: TraceSensitivity,
        basis: Basis,
        corrected: Basis,
        evidence: tuple[Evidence, ...],
    ) -> Finding:
        """Returns a finding: whether the figure follows from limits, else whether this trace spent
        no more.

        Args:
            found: sensitivity of the trace.
            basis: limits from rules and unbroken statements.
            corrected: the same limits with broken statements corrected, for the advice.
            evidence: the device that spent most.
        """
        of_trace = self.privacy_of(released(self.noise, found.value))
        at_most = "" if found.is_exact else "at most "
        text = f"the devices of this trace spent {at_most}{plain(up(of_trace))}"
        verdict = self._verdict(of_trace, found.is_exact, basis)
        # The limits of the corrected claim only matter if the claim itself has no support.
        support, said = basis, basis.said
        if verdict is not Verdict.HOLDS and corrected is not basis:
            support, said = corrected, f"with the other statements put right, {corrected.limits}"
        advised, supported = "", f"nothing is proven: {support.said}"
        if support.sensitivity is not None:
            figure = plain(up(self._under(support.sensitivity.value)))
            bound = "" if support.sensitivity.is_exact else "at most "
            advised = f"{self.key} = {figure}"
            supported = f"{said} give {bound}{figure} ({support.sensitivity.theorem})"
        explanation = f"{text}; {supported}"
        return Finding(self.key, verdict, self.claimed, of_trace, advised, explanation, 0, evidence)

    def _under(self, sensitivity: float) -> float:
        return self.privacy_of(released(self.permitted, sensitivity))

    def _verdict(self, of_trace: float, is_exact: bool, basis: Basis) -> Verdict:
        # The privacy that this trace spent does not bind another run: it only decides how a claim
        # fails. An upper bound that is too large refutes nothing; only privacy that a device surely
        # spent does.
        if basis.sensitivity is not None and self._under(basis.sensitivity.value) <= self.most:
            return Verdict.HOLDS
        if of_trace > self.most:
            return Verdict.BROKEN if is_exact else Verdict.UNPROVEN
        if basis.sensitivity is None:
            return Verdict.TRACE_ONLY
        lower_bound = self._under(basis.sensitivity.lower_bound)
        return Verdict.UNPROVEN if lower_bound <= self.most else Verdict.TRACE_ONLY

    def by_server(self, finding: Finding, ensured: Guarantee | None) -> Finding:
        """Returns the finding, which holds if the claim follows from the server's rules."""
        if ensured is None or finding.verdict is Verdict.HOLDS:
            return finding
        spent = ensured.rho if self.key == "rho" else ensured.epsilon
        if spent is None or spent > self.most:
            return finding
        text = f"{ensured.reason}, which gives {plain(up(spent))}"
        # The figure of the trace ignores sampling, which makes it smaller.
        figures = [each for each in (finding.found, spent) if isinstance(each, float)]
        return replace(
            finding, verdict=Verdict.HOLDS, found=min(figures), explanation=text, evidence=()
        )
