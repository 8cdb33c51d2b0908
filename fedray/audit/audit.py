"""The audit of a trace: participation, exact sensitivities, the privacy that follows from them, and
the assumptions behind it.

An audit states three guarantees side by side (fedray/audit/guarantees.py): observed, enforced, and
claimed. It compares mechanisms by their error at equal privacy, never by their noise multipliers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, ClassVar, TypedDict

import pyarrow as pa

from fedray.audit.assumptions import Assumption
from fedray.audit.basis import Basis, basis_of
from fedray.audit.claims import Claim
from fedray.audit.distribution import (
    DevicePrivacy,
    Frontier,
    SpentByDevice,
    device_sensitivities,
    frontier,
    worst_devices,
)
from fedray.audit.filtered import Exclusions
from fedray.audit.findings import FAILING, SPENT_STATEMENTS, Finding, broken_noise, claim_passes
from fedray.audit.guarantees import OBSERVED_LIMITS, Guarantee
from fedray.audit.mechanism_audit import MechanismAudit, Release, was_used
from fedray.audit.names import DeviceNames
from fedray.audit.noise import AuditedEncoding, Noise
from fedray.audit.observers import Observer, Releases, releases_of
from fedray.audit.over_rounds import SpentAfter, privacy_over_rounds
from fedray.audit.participation import Patterns
from fedray.audit.persons import Clients, Persons
from fedray.audit.questions import ONLY_ANSWERS, AnswerPrivacy
from fedray.audit.released import ReleasedEvent, check_has_events, events_of, write_events
from fedray.audit.rules import Violations
from fedray.base.document import IfAny, InJson, Key, NotInJson, json_of
from fedray.base.result import DrawnResult
from fedray.mechanisms.comparison import NOT_COMPARABLE, Utility, compared
from fedray.scenario import Scenario
from fedray.scenario.trust import AnyTrust
from fedray.trace.imported import ImportedTrace, LeftOut
from fedray.trace.reader import Trace
from fedray.trace.trained import Stopped


class ClassShare(TypedDict):
    """Participation of the devices of a class, as a run records it."""

    name: str
    """Name of the class."""
    share: float
    """Its share of the population."""
    eligible_share: float
    """Share of its devices that are eligible at once, whatever timers say: the mean of the first
    week, estimated from a sample."""
    selected: int
    """Number of selections of its devices."""
    participations: int
    """Number of accepted updates of its devices."""
    devices: int
    """Number of its devices that took part at least once."""
    least_gap: int
    """Least difference between two rounds of one of its devices; 0 if no device took part twice."""
    most: int
    """Most participations of a device."""


@dataclass(frozen=True)
class Audit(DrawnResult):
    """The audit of a trace. Printed, it is a table; `to_json` has the same figures unrounded."""

    TABLES: ClassVar[str] = "fedray.report.audits:audit_tables"
    SUBJECT: ClassVar[str] = "fedray.report.subjects:audit_subject"
    FIGURES: ClassVar[str] = "fedray.report.figures:audit_figures"
    PAGE: ClassVar[str] = "fedray.report.page:audit_page"
    VERDICT: ClassVar[str] = "fedray.audit.verdict:AuditVerdict"
    """Class of the audit's words, as "module:name"."""

    trace: NotInJson[Trace | ImportedTrace]
    """The audited trace."""
    path: Annotated[Path, Key("trace")]
    """Directory of the trace."""
    digest: str
    """The trace's digest."""
    ended: str
    """End of the run: completed, or the reason why it is not; "imported" for a log."""
    stopped: IfAny[Stopped]
    """Reason for which the training stopped early. Absent for other runs."""
    patterns: NotInJson[Patterns]
    """Every device's rounds."""
    names: NotInJson[DeviceNames]
    """Names by which devices are shown."""
    mechanisms: tuple[MechanismAudit, ...]
    """Audited mechanisms; empty for a log whose mechanism is unknown."""
    findings: tuple[Finding, ...]
    """A finding per statement of the claim; empty without a claim."""
    incompleteness: str
    """Why an imported log is not complete, as a sentence; empty if it is."""
    left_out: tuple[LeftOut, ...]
    """Rows of an imported log that are not participations."""
    filtered_rows: int
    """Rows of an imported log that did not meet the conditions of the import."""
    violations: Violations | None
    """Participations of a simulated run that break its own rules; None if all devices keep the
    rules, and for a log, which has no rules."""
    persons: IfAny[Persons]
    """Persons who own the devices. Absent if owners are unknown."""
    clients: IfAny[Clients]
    """People whose data trained the model of the run, several devices each. Absent without."""
    no_guarantee: IfAny[str]
    """Reason for having no privacy figures of a model: the run added no noise, or trained none.
    Absent with noise."""
    answers: IfAny[tuple[AnswerPrivacy, ...]]
    """Privacy of the answers to the run's question, or of a private vocabulary. Absent without
    either."""
    exclusions: Exclusions | None
    """Devices that a filter excluded; None for a run without a filter, and for a log."""
    scenario: NotInJson[Scenario | None]
    """Scenario of the run; None for an imported log."""
    claim: NotInJson[Claim | None]
    """The claim, or None."""
    ensured: NotInJson[str | None]
    """Digest of the claim that the run had to ensure, or None."""
    given_instead: NotInJson[tuple[str, ...]]
    """Arguments in place of the claim that had to be ensured; empty if that claim is checked."""
    corrected: NotInJson[Guarantee | None]
    """The guarantee of the claimed limits, with broken ones corrected; None without a claim."""
    trust: NotInJson[AnyTrust | None]
    """Trust of the run, or that which the claim states about a log; None for other logs."""
    rests_on: NotInJson[tuple[Assumption, ...]]
    """Assumptions behind the figures, each with its source."""
    classes: tuple[ClassShare, ...]
    """Participation of the devices of each class, as recorded; empty without, and for a log."""
    utility_note: ClassVar[InJson[str]] = NOT_COMPARABLE
    """Why mechanisms are not compared by their noise multipliers."""

    @property
    def assumptions(self) -> InJson[tuple[str, ...]]:
        """Assumptions behind the figures, in sentences."""
        return tuple(each.text for each in self.rests_on)

    @property
    def _words(self) -> Any:
        # Figures lie below the words about them, and imports point downward only.
        return resolve_name(self.VERDICT)(self)

    @cached_property
    def left_out_bound(self) -> InJson[str]:
        """A sentence on the worst case of a log's rows that were left out; empty without any."""
        return self._words.left_out_bound

    @property
    def claim_holds(self) -> InJson[bool | None]:
        """Whether the claim passes: at least one statement could be checked, and every statement
        that could be checked holds. None without a claim."""
        return claim_passes(self.findings) if self.findings else None

    @property
    def joined_ids(self) -> IfAny[int | None]:
        """Number of ids in the log before those that differ only in writing were joined; 0 if they
        were stated to be distinct devices. Absent if the import was not asked."""
        return self.trace.run.get("joined_ids")

    @property
    def corrected_claim(self) -> Guarantee | None:
        """The guarantee of a claim about a log, with broken limits replaced by the trace's own.
        None without a broken limit or known sensitivity, and for a run, whose rules are known."""
        found = self.corrected
        if self.scenario is not None or found is None or found.name != "corrected":
            return None
        return found if found.is_known else None

    @property
    def needs_noise(self) -> bool:
        """Whether rho or epsilon fails under limits with a known sensitivity, so that the claim
        would hold with more noise, its limits corrected."""
        if self.corrected is None or not self.mechanisms or self.other_noise:
            return False
        return any(
            float(each.claimed or 0.0) < (getattr(self.corrected, each.statement) or 0.0)
            for each in self.findings
            if each.statement in SPENT_STATEMENTS and each.verdict in FAILING
        )

    @cached_property
    def verdict(self) -> InJson[str]:
        """The answer in sentences: whether the claim holds and which figures would, or without a
        claim the epsilon on which a guarantee may rest. Then the other remarks that apply, such as
        that an epsilon is weak (fedray/audit/verdict.py)."""
        return self._words.text

    @property
    def meets_target(self) -> IfAny[bool | None]:
        """Whether the epsilon on which a guarantee may rest meets the scenario's
        `privacy.wanted_epsilon`. Absent without one, for a log or a claim, and at another
        mechanism, noise or smaller delta."""
        return self._words.meets_target

    @cached_property
    def without_breakers(self) -> IfAny[Guarantee | None]:
        """The observed figures of a log without the devices that break the claim: a what-if, and no
        guarantee of this run. Absent without such devices, if rows were left out, and if epsilon is
        unknown."""
        return self._words.without_breakers

    @property
    def is_of_run(self) -> bool:
        """Whether the run used the first mechanism with this noise; True for a log."""
        return not self.mechanisms or was_used(self.mechanisms[0], self.scenario)

    @property
    def other_noise(self) -> list[Finding]:
        """The broken statements about the noise without which figures say nothing of this run."""
        return broken_noise(self.findings, is_own=self.is_of_run and not self.no_guarantee)

    @cached_property
    def basis(self) -> Basis:
        """The guarantee on which the verdict rests, and its conditions."""
        # A model without noise has no privacy, whatever its question has.
        is_private = self.no_guarantee in (None, ONLY_ANSWERS)
        answers = (self.answers or ()) if is_private else ()
        named = () if self.noise is None else self.mechanisms[0].named
        guarantees = [each for _, each in named]
        corrected = None if self.other_noise or not guarantees else self.corrected
        return basis_of(guarantees, answers, corrected, self.rests_on)

    @cached_property
    def released(self) -> tuple[Releases, ...]:
        """All that was released, under each trust model of a question, in the scenario's order."""
        used = self.mechanisms[0] if self.mechanisms else None
        of_run = (self.answers or (), self.scenario, self.no_guarantee)
        return releases_of(self.basis, self.trust, used, *of_run, self.ensured)

    @cached_property
    def observers(self) -> IfAny[tuple[Observer, ...] | None]:
        """Privacy of a device from each observer, for each trust model of a question. Absent for a
        log without a claimed trust."""
        return tuple(row for each in self.released for row in each.observers()) or None

    @property
    def observers_of_verdict(self) -> tuple[Observer, ...]:
        """Observers under the trust models that the verdict is about, the one that it is against
        first; empty for a log without a claimed trust."""
        return next((tuple(each.observers()) for each in self.released if each.is_stated), ())

    @property
    def supported_epsilon(self) -> InJson[float | None]:
        """The epsilon that may be published, under the condition of `supported_by`. None if
        unknown, or if the run did not have the claimed noise."""
        found = self.basis.guarantee
        return found.epsilon if found is not None and (self.findings or self.is_of_run) else None

    @property
    def supported_delta(self) -> IfAny[float | None]:
        """Delta of that epsilon, with a question or a private vocabulary; absent without either,
        where it is that of the guarantees."""
        found = self.basis.guarantee
        return found.delta if found is not None and self.answers and self.is_of_run else None

    @property
    def supported_by(self) -> InJson[str]:
        """Limits behind the epsilon of a claim that may be published, with their condition, or the
        reason why none may be; empty without a claim."""
        return self._words.supported_by

    @cached_property
    def would_do(self) -> IfAny[str]:
        """A claim of limits that gives a smaller epsilon than may be published, or one where none
        may be, in a sentence; absent without one, and for a run, whose rules are known."""
        return self._words.tighter_claim

    @property
    def rounds(self) -> InJson[int]:
        """Committed rounds."""
        return self.patterns.committed_rounds

    @property
    def days(self) -> InJson[float | None]:
        """Simulated days until the last committed round closed; None for a log."""
        if not isinstance(trace := self.trace, Trace):
            return None
        is_committed = trace.rounds["state"] == 0
        return float(trace.rounds["closed"][is_committed][-1]) / 86_400.0

    @property
    def devices(self) -> InJson[int]:
        """Devices that took part at least once."""
        return int(self.patterns.device_ids.size)

    @property
    def participations(self) -> InJson[int]:
        """Accepted updates."""
        return self.patterns.participations

    @property
    def min_sep(self) -> InJson[int | None]:
        """Least difference between two rounds of a device; None if no device took part twice (k =
        1)."""
        return None if self.max_participations == 1 else self.patterns.min_sep

    @property
    def max_participations(self) -> InJson[int]:
        """Largest number of participations of a device."""
        return self.patterns.max_participations

    @property
    def short_run_note(self) -> InJson[str]:
        """A sentence that no device could take part twice, if the run ended before the rules let
        any device come back; else empty."""
        return self._words.short_run_note

    @cached_property
    def over_rounds(self) -> list[SpentAfter]:
        """Privacy over rounds of the first mechanism (empty without noise), from first use on."""
        return self.spent_after()

    def spent_after(self, numbers: int | Sequence[int] | None = None) -> list[SpentAfter]:
        """Returns the privacy of the first mechanism after each of the increasing `numbers` of
        rounds, or that many evenly spaced ones (None: 12, of a very large trace 3); empty without
        noise."""
        noise, devices = self.noise, self.device_privacy
        if noise is None or devices is None:
            return []
        strategy, delta = self.mechanisms[0].strategy, self.mechanisms[0].observed.delta
        return privacy_over_rounds(
            strategy, self.patterns, noise, delta, numbers, devices.sensitivities
        )

    @cached_property
    def device_privacy(self) -> DevicePrivacy | None:
        """Privacy of the devices under the first mechanism; computed on first use. None without
        noise."""
        if (noise := self.noise) is None:
            return None
        values = device_sensitivities(self.mechanisms[0].strategy, self.patterns)
        return DevicePrivacy.of(values, self.patterns, noise)

    @cached_property
    def worst_devices(self) -> tuple[SpentByDevice, ...]:
        """The devices that spent most under the first mechanism, worst first; computed on first
        use. Empty without noise."""
        noise, devices = self.noise, self.device_privacy
        if noise is None or devices is None:
            return ()
        delta, names_of = self.mechanisms[0].observed.delta, self.names.all_of
        return worst_devices(devices.sensitivities, self.patterns, noise, delta, names_of)

    @cached_property
    def frontier(self) -> Frontier | None:
        """The frontier of the first mechanism; computed on first use. None without a mechanism, a
        min-sep, or a theorem."""
        if not self.mechanisms or self.patterns.min_sep == 0:
            return None
        try:
            return frontier(self.mechanisms[0].strategy, self.patterns)
        except ValueError:  # unproven
            return None

    @cached_property
    def utility(self) -> InJson[list[Utility]]:
        """The mechanisms, and independent noise and the tree, by their error at equal privacy;
        least error first.

        Sensitivity and loss are computed for one participation: the enforced one if it is known,
        else the observed one. All rows have the rho of the first mechanism. Empty without noise or
        without such a participation.
        """
        basis = self.utility_basis
        # At rho 0 every mechanism would need infinite noise.
        if basis is None or basis.rho is None or basis.rho <= 0.0:
            return []
        participation = basis.participation
        assert participation is not None
        return compared([each.strategy for each in self.mechanisms], participation, basis.rho)

    @property
    def utility_basis(self) -> Guarantee | None:
        """The guarantee of the first mechanism whose participation and rho all rows of `utility`
        share, or None."""
        if self.noise is None:
            return None
        used = self.mechanisms[0]
        found = used.enforced if used.enforced.sensitivity is not None else used.observed_limits
        return found if found.sensitivity is not None else None

    @property
    def noise(self) -> Noise | None:
        """Noise of the first mechanism; None if it is unknown."""
        return self.mechanisms[0].noise if self.mechanisms else None

    @property
    def events(self) -> tuple[ReleasedEvent, ...]:
        """Releases of every mechanism under each of its guarantees; empty without noise."""
        return events_of(self.mechanisms)

    def write_events(self, file: str | Path) -> Path:
        """Writes `events`, with the figures of every accountant and of dp_accounting, as JSON.

        `fedray.read_events` reads it. Matrices are written beside it. Returns the file's path.

        Raises:
            InputError: the file cannot be written, or the run had no noise.
        """
        check_has_events(self.events, self.no_guarantee, self.path)
        strategies = [mechanism.strategy for mechanism in self.mechanisms]
        return write_events(self.events, strategies, self.digest, file)

    @property
    def participations_per_device(self) -> InJson[dict[int, int]]:
        """Number of devices by number of participations, from 1."""
        return self.patterns.devices_by_participations

    @property
    def guarantees(self) -> InJson[tuple[Guarantee, ...]]:
        """The guarantees of the first mechanism; empty without a mechanism."""
        return self.mechanisms[0].guarantees if self.mechanisms else ()

    @property
    def releases(self) -> InJson[tuple[Release, ...]]:
        """The separate releases of each round, at the observed sensitivity of the run's own
        mechanism; empty if only sums of updates are released."""
        return next((each.releases for each in self.mechanisms if each.is_own), ())

    @property
    def utility_basis_name(self) -> Annotated[str | None, Key("utility_basis")]:
        """Name of the guarantee whose rho all rows of `utility` have."""
        basis = self.utility_basis
        # The observed guarantee covers the recorded patterns only, and this one all within the
        # limits.
        if basis is not None and basis is self.mechanisms[0].observed_limits:
            return OBSERVED_LIMITS
        return None if basis is None else basis.name

    @property
    def utility_rho(self) -> InJson[float | None]:
        """The rho (zCDP) that all rows of `utility` have."""
        return None if self.utility_basis is None else self.utility_basis.rho

    @property
    def encoding(self) -> InJson[AuditedEncoding | None]:
        """Encoding of the updates, and the unit of their noise; None for a log."""
        if self.scenario is None:
            return None
        noises = [(each.noise, each.permitted) for each in self.mechanisms]
        return AuditedEncoding.of(self.scenario.privacy.sent, noises)

    def to_arrow(self) -> pa.Table:
        """The guarantees, a row per mechanism and guarantee, with the keys of `to_json`."""
        return pa.Table.from_pylist(
            [
                {"mechanism": mechanism.name, **guarantee.to_json()}
                for mechanism in self.mechanisms
                for guarantee in mechanism.guarantees
            ]
        )

    def to_json_in_full(self) -> dict[str, Any]:
        """`to_json`, with the figures that take longer: the privacy of devices, the frontier, and
        privacy over rounds."""
        names = ("device_privacy", "worst_devices", "frontier", "over_rounds")
        later = {name: getattr(self, name) for name in names}
        return {**self.to_json(), **json_of(later)}

    def __repr__(self) -> str:
        return self._words.line

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.tables()))
