"""The audit of a trace: participation, exact sensitivities, the privacy that follows from them, and
the assumptions behind it.

An audit states three guarantees side by side (fedray/audit/guarantees.py): observed, enforced, and
claimed. It compares mechanisms by their error at equal privacy, never by their noise multipliers.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, TypedDict

import numpy as np
import pyarrow as pa

from fedray.audit.assumptions import Assumption, other_tasks
from fedray.audit.basis import SECRET_DRAWS, Basis, basis_of, weak_text
from fedray.audit.claimed import claimed_limits
from fedray.audit.claims import STATEMENTS, Claim
from fedray.audit.distribution import (
    DevicePrivacy,
    Frontier,
    SpentByDevice,
    device_sensitivities,
    frontier,
    frontier_of,
    worst_devices,
)
from fedray.audit.filtered import Exclusions
from fedray.audit.findings import (
    FAILING,
    SPENT_STATEMENTS,
    Finding,
    Verdict,
    broken_noise,
    claim_passes,
    standing,
    verdict_sentences,
)
from fedray.audit.guarantees import (
    OBSERVED_LIMITS,
    Guarantee,
    Limits,
    observed,
    of_limits,
    shown_pairs,
    strongest,
)
from fedray.audit.mechanism_audit import MechanismAudit
from fedray.audit.names import DeviceNames
from fedray.audit.noise import DeviceNoise, Noise, ServerNoise, released
from fedray.audit.over_rounds import SpentAfter, privacy_over_rounds
from fedray.audit.participation import Patterns
from fedray.audit.persons import Clients, Persons, owner_text
from fedray.audit.questions import AnswerPrivacy
from fedray.audit.released import ReleasedEvent, write_events
from fedray.audit.rules import Violations
from fedray.audit.sensitivity import trace_sensitivity
from fedray.audit.statements.frontier import tightened
from fedray.audit.statements.statement import Breaches, Subject
from fedray.base.document import IfAny, InJson, InPlace, Key, NotInJson, json_of
from fedray.base.errors import InputError, shown
from fedray.base.result import DrawnResult
from fedray.base.rounding import counted, given, given_delta, up
from fedray.encoding.tables import AnyEncoding
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.events import Composed, Event
from fedray.mechanisms.accounting.sampled import largest_column
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.mechanisms.comparison import NOT_COMPARABLE, Utility, utility
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import Identity, Tree
from fedray.mechanisms.sensitivity import PatternValues
from fedray.mechanisms.triangular import TriangularStrategy
from fedray.scenario import Scenario
from fedray.scenario.privacy import NO_GUARANTEE
from fedray.trace.imported import ImportedTrace, LeftOut
from fedray.trace.reader import Trace

WORTH_A_CLAIM = 0.01
"""Relative gain in epsilon from which on a claim of the frontier is proposed."""


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


class Release(NamedTuple):
    """One release of a round."""

    query: str
    """The released quantity."""
    noise_multiplier: float
    """Its noise multiplier."""
    rho: float
    """rho (zCDP) of the release."""


@dataclass(frozen=True, slots=True)
class AuditedEncoding:
    """Encoding of the updates, and the unit of their noise."""

    table: InPlace[AnyEncoding]
    least_noise: DeviceNoise | None
    """The round with the least noise, on which observed figures rest; None if the server adds the
    noise."""
    least_permitted_noise: DeviceNoise | None
    """The least noise that the rules permit a round, on which enforced and claimed figures rest;
    None if the server adds the noise."""

    @property
    def kind(self) -> InJson[str]:
        """Kind of the encoding; the next keys are present if its table has them."""
        return self.table.kind

    @property
    def noise_is_relative_to(self) -> InJson[str]:
        """Unit of the noise multiplier."""
        return self.table.noise_is_relative_to


@dataclass(frozen=True)
class Audit(DrawnResult):
    """The audit of a trace. Printed, it is a table; `to_json` has the same figures unrounded."""

    TABLES: ClassVar[str] = "fedray.report.audits:audit_tables"
    FIGURES: ClassVar[str] = "fedray.report.figures:audit_figures"
    PAGE: ClassVar[str] = "fedray.report.page:audit_page"

    trace: NotInJson[Trace | ImportedTrace]
    """The audited trace."""
    path: Annotated[Path, Key("trace")]
    """Directory of the trace."""
    digest: str
    """The trace's digest."""
    ended: str
    """End of the run: completed, or the reason why it is not; "imported" for a log."""
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
    corrected: NotInJson[Guarantee | None]
    """The guarantee of the claimed limits, with broken ones corrected; None without a claim."""
    rests_on: NotInJson[tuple[Assumption, ...]]
    """Assumptions behind the figures, each with its source."""
    classes: tuple[ClassShare, ...]
    """Participation of the devices of each class, as the run recorded it; empty without classes,
    and for a log."""
    utility_note: ClassVar[InJson[str]] = NOT_COMPARABLE
    """Why mechanisms are not compared by their noise multipliers."""

    @property
    def assumptions(self) -> InJson[tuple[str, ...]]:
        """Assumptions behind the figures, in sentences."""
        return tuple(each.text for each in self.rests_on)

    @property
    def left_out_bound(self) -> InJson[str]:
        """A sentence on the worst case of a log's rows that were left out and may be
        participations; empty without any.

        Each such row adds at most the largest column of C to a device's sum, by the triangle
        inequality, even if the device has a row of that round already.
        """
        rows = sum(each.rows for each in self.left_out if each.may_be_participation)
        if not rows:
            return ""
        text = (
            f"If each of the {counted(rows, 'row')} were of the worst device, it would have at "
            f"most {counted(self.max_participations + rows, 'participation')}"
        )
        if (noise := self._noise) is None:
            return f"{text}."
        used = self.mechanisms[0]
        norm, _ = largest_column(used.strategy, self.rounds)
        of_all, of_one = (
            epsilon_of(released(noise, used.trace.value + each * norm), used.observed.delta)
            for each in (rows, 1)
        )
        return (
            f"{text} and epsilon at most {up(of_all.epsilon)}; if no device had two of them, at "
            f"most {up(of_one.epsilon)}."
        )

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
    def for_all_rows(self) -> str:
        """Words after limits that must hold for rows of a log without a device too; empty if there
        are no such rows."""
        return ", for the rows left out too" if self.incompleteness else ""

    @property
    def corrected_claim(self) -> Guarantee | None:
        """The guarantee of a claim about a log, with broken limits replaced by the trace's own.
        None without a broken limit or a known sensitivity, and for a run, whose rules are known.
        """
        found = self.corrected
        if self.scenario is not None or found is None or found.name != "corrected":
            return None
        return found if found.is_known else None

    @property
    def needs_noise(self) -> bool:
        """Whether rho or epsilon fails under limits with a known sensitivity, so that the claim
        would hold with more noise, its limits corrected."""
        if self.corrected is None or not self.mechanisms or broken_noise(self.findings):
            return False
        # Devices' noise depends on how many are accepted, so no multiplier is calibrated for it.
        return isinstance(self.mechanisms[0].noise, ServerNoise) and any(
            float(each.claimed or 0.0) < (getattr(self.corrected, each.statement) or 0.0)
            for each in self.findings
            if each.statement in SPENT_STATEMENTS and each.verdict in FAILING
        )

    @property
    def verdict(self) -> InJson[str]:
        """The answer in a sentence: whether the claim holds and which figures would; without a
        claim, the epsilon on which a guarantee may rest. Whose it is not, if the data has people on
        several devices, that an epsilon is weak, if one is, and how ids that differ only in writing
        were taken."""
        target = {None: "", True: "meets", False: "misses"}[self.meets_target]
        if target and self.scenario is not None:
            wanted = given(self.scenario.privacy.wanted_epsilon or 0.0)
            subject = "The epsilon of a device" if self.persons else "This"
            target = f"{subject} {target} the target epsilon {wanted}."
        parts = (self._verdict, target, self.of_sample, self.whose, self.reads_off)
        return " ".join(filter(None, parts))

    @property
    def meets_target(self) -> IfAny[bool | None]:
        """Whether the epsilon on which a guarantee may rest meets the scenario's
        `privacy.wanted_epsilon`. Absent without one, for a log or a claim, and at another
        mechanism, noise or smaller delta."""
        own, found = self.scenario and self.scenario.privacy, self.basis.guarantee
        is_run = isinstance(self.trace, Trace) and not self.findings and self.is_of_run
        if own is None or own.wanted_epsilon is None or not is_run:
            return None
        if found is None or found.epsilon is None:
            return False
        # Epsilon falls as delta rises, so one that misses at a larger delta misses at its own.
        is_met = found.epsilon <= own.wanted_epsilon
        is_sure = found.delta == own.delta or (found.delta > own.delta and not is_met)
        return is_met if is_sure else None

    @property
    def of_sample(self) -> str:
        """That a model trained on a sample of each round lacks the guarantee stated, if any."""
        run = self.scenario
        if self.basis.guarantee is None or run is None or not run.trains_a_sample:
            return ""
        goal = f"{run.rounds.least_accepted:,}{' or more' * run.rounds.keeps_surplus}"
        said = "Epsilon is that of the deployment simulated; the model of this simulation, trained "
        return f"{said}on {run.training.cohort_sample:,} of {goal} devices a round, has none."

    @property
    def whose(self) -> str:
        """Sentences on people with several devices, on weak epsilons, and on ids that differ only
        in writing."""
        said = (self.clients and self.clients.text, weak_text(*self.named_epsilons), self.spellings)
        return " ".join(filter(None, said))

    @property
    def named_epsilons(self) -> list[float]:
        """Epsilons of a device, and of persons on several, as far as they are known."""
        of_client = self.clients and strongest(self.clients.guarantees)
        found = (self.basis.guarantee, of_client, self._of_person)
        return [each.epsilon for each in found if each and each.epsilon is not None]

    @property
    def spellings(self) -> str:
        """A sentence that ids that differ only in writing were taken as one device or as distinct
        ones; empty if the import was not asked."""
        if (ids := self.joined_ids) is None:
            return ""
        said = "one device" if ids else "distinct devices"
        said += f": {ids or self.devices:,} ids, {counted(self.devices, 'device')}"
        return f"Ids that differ only in writing were taken as {said}."

    @property
    def standing(self) -> str:
        """Whether the claim "holds", is "broken", or is in doubt ("open"), as a log without a claim
        is; for a run without one, whether its target is met, and empty without a target."""
        if not self.findings:
            met = {None: "", True: "holds", False: "broken"}[self.meets_target]
            return "open" if self.scenario is None else met
        return "open" if self.reads_off and self.claim_holds else standing(self.findings)

    @cached_property
    def reads_off(self) -> str:
        """A sentence that the limits of a claim about a log are the log's own; else empty."""
        keys = ("min_sep", "max_participations", "frontier", "timer_hours")
        claim, stated = self.claim, [each for each in self.findings if each.statement in keys]
        is_broken = any(each.verdict is Verdict.BROKEN for each in stated)
        if self.scenario is not None or claim is None or is_broken:
            return ""

        def allowed(**changed: Any) -> set[MinSep | None]:
            changed_claim = claim.model_copy(update={"rounds": None, **changed})
            limits = claimed_limits(changed_claim, self.trace)
            return {*(limits.pairs or (limits.participation,))}

        # Further pairs, and limits that exclude nothing in the log's rounds, change nothing.
        claimed, own = allowed(), {"frontier": frontier_of(self.patterns)}
        shown = [
            each
            for each in stated
            if each.found == each.claimed or (each.statement in own and allowed(**own) <= claimed)
        ]
        rest = [each for each in stated if each not in shown]
        if not shown or any(allowed(**{each.statement: None}) != claimed for each in rest):
            return ""
        return (
            "Its limits are what the log shows, so the log is no evidence that they were enforced."
        )

    def breaches(self) -> Iterator[tuple[str, Breaches]]:
        """Yields every breach of a statement about participation, with the statement's key."""
        subject = Subject(self.trace, self.patterns, self.names.of)
        broken = {each.statement for each in self.findings if each.broken_by}
        for each in (each for each in STATEMENTS if each.key in broken):
            for breaches in each.breaches(getattr(self.claim, each.key), subject):
                yield each.key, breaches

    @cached_property
    def without_breakers(self) -> IfAny[Guarantee | None]:
        """The observed figures of a log without the devices that break the claim: a what-if, and no
        guarantee of this run. Absent without such devices, if rows were left out, and if epsilon is
        unknown."""
        kept, of_all = np.ones(self.devices, np.bool_), self.patterns
        for _, each in () if self.scenario or self.incompleteness else self.breaches():
            if each.device_ids is not None:
                kept &= ~np.isin(of_all.device_ids, each.device_ids)
        if kept.all() or not kept.any():
            return None
        rounds, used = of_all.rounds[np.repeat(kept, of_all.counts)], self.mechanisms[0]
        rest = Patterns(self.rounds, of_all.device_ids[kept], of_all.counts[kept], rounds)
        worst = trace_sensitivity(used.strategy, rest)
        found = observed(worst, rest, used.strategy, used.noise, used.observed.delta)
        if found.epsilon is None:
            return None
        broken = counted(self.devices - rest.device_ids.size, "breaking device")
        limits = found.limits if rest.min_sep else "repeated rounds"
        said = (
            f"Without {broken}: {limits}; the other devices spent epsilon {up(found.epsilon)}. "
            "That is no guarantee of this run, whose models have their updates."
        )
        return replace(found, name="without breakers", reason=said)

    @property
    def _verdict(self) -> str:
        if self.findings:
            return verdict_sentences(self.findings)
        basis, found = self.basis, self.basis.guarantee
        if self.no_guarantee and found is None:
            said = self.no_guarantee.removeprefix("no guarantee: ")
            return f"No guarantee: {said}."
        if found is not None and found.epsilon is not None:
            alone = " in this task alone" if other_tasks(self.trace) else ""
            whose = "A" if self.is_of_run else "If the run had had this mechanism and noise, a"
            each_one = ", ".join(
                f"{up(each.epsilon or 0.0)} at delta {given_delta(each.delta)} ({each.trust})"
                for each in basis.answers
            )
            if each_one:
                model = "the model with its question or vocabulary"
                whose += f" guarantee of {model if self.mechanisms else 'answers'}"
                return f"{whose} may rest on the enforced epsilon {each_one}{alone}."
            secret = f", {SECRET_DRAWS}" if found.name == "sampled" else ""
            return (
                f"{whose} guarantee may rest on epsilon {up(found.epsilon)} at delta "
                f"{given(found.delta)} ({found.name}{secret}){self._for_person}{alone}."
            )
        if self._noise is None:
            return "No epsilon: no mechanism and noise multiplier are known."
        spent = basis.by_name.get("observed")
        said = (
            "" if spent is None else f"; the devices of this trace spent {up(spent.epsilon or 0)}"
        )
        if self.scenario is None:
            return f"No claim was given, and a log alone supports no guarantee{said}."
        return f"No guarantee may rest on this trace{said}."

    @property
    def is_of_run(self) -> bool:
        """Whether the run used the first mechanism with this noise; True for a log."""
        if self.scenario is None or not self.mechanisms:
            return True
        own, used = self.scenario.privacy, self.mechanisms[0]
        return (used.strategy, used.noise_multiplier) == (own.strategy, own.noise_multiplier)

    @property
    def _for_person(self) -> str:
        if self.persons is None:
            return ""
        found = self._of_person
        if found is None:
            return " for a device, and on none for a person"
        of_person = owner_text(found, self.persons.most_devices, "for a person")
        return f" for a device, and on epsilon {of_person}"

    @property
    def _of_person(self) -> Guarantee | None:
        return strongest(self.mechanisms[0].resting("person") if self.mechanisms else [])

    @cached_property
    def basis(self) -> Basis:
        """The guarantee on which the verdict rests, and its conditions."""
        # A model without noise has no privacy, whatever its question has.
        answers = () if self.no_guarantee == NO_GUARANTEE else self.answers or ()
        guarantees = (
            [each for _, each in self.mechanisms[0].named] if self._noise is not None else []
        )
        corrected = None if broken_noise(self.findings) or not guarantees else self.corrected
        return basis_of(guarantees, answers, corrected, self.rests_on)

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
        if self.corrected is None:
            return ""
        if noise := broken_noise(self.findings):
            return noise[0].explanation
        found, limits = self.basis.guarantee, self.basis.condition
        if found is None:
            return self.corrected.reason
        if found.may_rest_on:
            return f"by the rules of the run: {limits}"
        noise = "only if the claimed noise was added and this was enforced"
        return f"{noise}{self.for_all_rows}, which the trace cannot show: {limits}"

    @cached_property
    def would_do(self) -> IfAny[str]:
        """A claim of limits that gives a smaller epsilon than may be published, or one where none
        may be, in a sentence; absent without one, and for a run, whose rules are known."""
        if self.corrected is None or self.scenario is not None or broken_noise(self.findings):
            return None
        used, most, pairs = self.mechanisms[0], self.supported_epsilon, frontier_of(self.patterns)
        limits = f"frontier = {shown_pairs(pairs)}"
        if most is None:
            pairs = ((self.patterns.min_sep, self.max_participations),)
            limits = "min_sep = {} and max_participations = {}".format(*pairs[0])
        # Each pair of a matrix takes as long as the audit, and none covers a repeated round.
        elif isinstance(used.strategy, TriangularStrategy):
            return None
        n, delta = max(self.rounds, (self.claim and self.claim.rounds) or 0), used.observed.delta
        kept = Limits(MinSep(n, 1, n), "", pairs=tightened(pairs, MinSep(n, 1, n)))
        found = of_limits("claimed", kept, used.strategy, used.permitted, delta, False).epsilon
        most = math.inf if most is None else (1 - WORTH_A_CLAIM) * most
        if found is None or found > most or self.patterns.min_sep == 0:
            return None
        return (
            f"A claim of {limits}, if enforced{self.for_all_rows}, would give epsilon {up(found)}."
        )

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
        enforced = self.mechanisms[0].enforced.participation if self.mechanisms else None
        if enforced is None or enforced.max_participations > 1 or self.rounds == 1:
            return ""
        # A cap of one participation holds in longer runs too.
        if self.scenario is not None and self.scenario.participation.max_participations == 1:
            return ""
        rules = "the claimed timer" if self.scenario is None else "the rules of participation"
        return (
            f"No device could take part twice, because the {self.rounds:,} rounds were over before "
            f"{rules} let one come back; the observed min-sep and participations are no evidence "
            "for a longer run."
        )

    @cached_property
    def over_rounds(self) -> list[SpentAfter]:
        """Privacy over rounds of the first mechanism (empty without noise), from first use on."""
        return self.spent_after()

    def spent_after(self, numbers: int | Sequence[int] | None = None) -> list[SpentAfter]:
        """Returns the privacy of the first mechanism after each of the increasing `numbers` of
        rounds, or that many evenly spaced ones (None: 12, of a very large trace 3); empty without
        noise."""
        if (noise := self._noise) is None:
            return []
        used = self.mechanisms[0]
        delta = used.observed.delta
        return privacy_over_rounds(
            used.strategy, self.patterns, noise, delta, numbers, self._sensitivities
        )

    @cached_property
    def _sensitivities(self) -> PatternValues:
        return device_sensitivities(self.mechanisms[0].strategy, self.patterns)

    @cached_property
    def device_privacy(self) -> DevicePrivacy | None:
        """Privacy of the devices under the first mechanism; computed on first use. None without
        noise."""
        noise = self._noise
        return None if noise is None else DevicePrivacy.of(self._sensitivities, noise)

    @cached_property
    def worst_devices(self) -> tuple[SpentByDevice, ...]:
        """The devices that spent most under the first mechanism, worst first; computed on first
        use. Empty without noise."""
        if (noise := self._noise) is None:
            return ()
        delta = self.mechanisms[0].observed.delta
        return worst_devices(self._sensitivities, self.patterns, noise, delta, self.names.all_of)

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
        strategies = [each.strategy for each in self.mechanisms]
        kinds = {strategy.kind for strategy in strategies}
        # These two are widely known, so they are the yardstick of each comparison.
        strategies += [other for other in (Identity(), Tree()) if other.kind not in kinds]
        rows = []
        for strategy in strategies:
            try:
                sensitivity = strategy.participation_sensitivity(participation).value
                rows.append(utility(strategy, participation.rounds, sensitivity, basis.rho))
            except ValueError:  # an unproven case has no place in the comparison
                continue
        return sorted(rows, key=lambda row: row.rms_prefix_error)

    @property
    def utility_basis(self) -> Guarantee | None:
        """The guarantee of the first mechanism whose participation and rho all rows of `utility`
        share, or None."""
        if self._noise is None:
            return None
        used = self.mechanisms[0]
        found = used.enforced if used.enforced.sensitivity is not None else used.observed_limits
        return found if found.sensitivity is not None else None

    @property
    def releases(self) -> tuple[Event, ...]:
        """The separate releases of each round, at the observed sensitivity of the run's own
        mechanism; empty if only sums of updates are released."""
        released = [each.observed.event for each in self.mechanisms if each.is_own]
        return released[0].events if released and isinstance(released[0], Composed) else ()

    @property
    def _noise(self) -> Noise | None:
        """Noise of the first mechanism; None if it is unknown."""
        return self.mechanisms[0].noise if self.mechanisms else None

    @property
    def events(self) -> tuple[ReleasedEvent, ...]:
        """Releases of every mechanism under each of its guarantees; empty without noise."""
        named = [
            (mechanism, name, guarantee)
            for mechanism in self.mechanisms
            for name, guarantee in mechanism.named
        ]
        named += [
            (mechanism, f"{each.name}, per person", each)
            for mechanism in self.mechanisms
            if mechanism.person is not None
            for each in mechanism.person.guarantees
        ]
        return tuple(
            ReleasedEvent(mechanism.name, name, each.scope, each.event, each.delta)
            for mechanism, name, each in named
            if each.event is not None
        )

    def write_events(self, file: str | Path) -> Path:
        """Writes `events`, with the figures of every accountant and of dp_accounting, as JSON.

        `fedray.read_events` reads it. Matrices are written beside it.

        Args:
            file: the JSON file.

        Returns:
            Its path.

        Raises:
            InputError: the file cannot be written, or the run had no noise.
        """
        if self.no_guarantee:
            raise InputError(f"trace {str(self.path)!r}: {self.no_guarantee}; name a mechanism")
        if not self.events:
            raise InputError(
                f"trace {str(self.path)!r}: no mechanism and noise multiplier are known, so there "
                "are no events; give both, or a claim"
            )
        strategies = [mechanism.strategy for mechanism in self.mechanisms]
        return write_events(self.events, strategies, self.digest, file)

    @property
    def participations_per_device(self) -> InJson[dict[int, int]]:
        """Number of devices by number of participations, from 1."""
        counts = enumerate(np.bincount(self.patterns.counts))
        # bincount begins with 0 participations, which no device of the patterns has.
        return {count: int(devices) for count, devices in counts if count and devices}

    @property
    def guarantees(self) -> InJson[tuple[Guarantee, ...]]:
        """The guarantees of the first mechanism; empty without a mechanism."""
        return self.mechanisms[0].guarantees if self.mechanisms else ()

    @property
    def released(self) -> Annotated[list[Release], Key("releases")]:
        """The separate releases of each round, at the observed sensitivity of the run's own
        mechanism; empty if only sums of updates are released."""
        keys = {"query", "noise_multiplier"}
        return [
            Release(**each.model_dump(include=keys), rho=rho_of(each)) for each in self.releases
        ]

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
        # Only noise that devices add depends on their number.
        of_devices = [
            (each.noise, each.permitted)
            for each in self.mechanisms
            if isinstance(each.noise, DeviceNoise) and isinstance(each.permitted, DeviceNoise)
        ]
        noise = of_devices[0] if of_devices else (None, None)
        return AuditedEncoding(self.scenario.privacy.encoding, *noise)

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
        spent = [
            f"{each.name} {guarantee.name} epsilon {up(guarantee.epsilon)}"
            for each in self.mechanisms[:1]
            for guarantee in each.guarantees
            if guarantee.epsilon is not None
        ]
        seen = f"{self.rounds:,} rounds, {self.devices:,} devices"
        return f"<Audit of {shown(str(self.path))}: {', '.join([seen, *spent])}>"

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.tables()))
