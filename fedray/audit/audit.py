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

from fedray.audit.assumptions import ASSUMED, WITHOUT_NOISE, assumptions_of
from fedray.audit.basis import SECRET_DRAWS, Basis, basis_of, weak_text
from fedray.audit.check import check_claim
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
from fedray.audit.filtered import Exclusions, exclusions_of, filtered
from fedray.audit.findings import (
    FAILING,
    PRIVACY_STATEMENTS,
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
    REPEATED,
    Guarantee,
    Limits,
    enforced_limits,
    limits_of_schedule,
    observed,
    of_limits,
    shown_pairs,
    strongest,
)
from fedray.audit.names import DeviceNames
from fedray.audit.noise import (
    DeviceNoise,
    Noise,
    ServerNoise,
    observed_noise,
    permitted_noise,
    released,
)
from fedray.audit.over_rounds import SpentAfter, privacy_over_rounds
from fedray.audit.participation import Patterns, read_patterns
from fedray.audit.persons import Clients, PersonAudit, Persons, audited_person, owner_text
from fedray.audit.questions import (
    OF_A_MODEL,
    ONLY_ANSWERS,
    AnswerPrivacy,
    assumptions_of_answers,
    privacy_of_answers,
    privacy_of_vocabulary,
    vocabulary_cost,
)
from fedray.audit.released import ReleasedEvent, write_events
from fedray.audit.rules import Violations, violations_of
from fedray.audit.sampled import sampled
from fedray.audit.sensitivity import TraceSensitivity, trace_sensitivity
from fedray.audit.statements.frontier import tightened
from fedray.audit.statements.statement import Breaches, Subject
from fedray.base.document import Document, IfAny, InJson, InPlace, Key, Keys, NotInJson, json_of
from fedray.base.errors import InputError, ScenarioError, TraceCorrupt, shown
from fedray.base.result import DrawnResult
from fedray.base.rounding import counted, given, given_delta, up
from fedray.encoding.tables import AnyEncoding
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.events import Composed, Event
from fedray.mechanisms.accounting.limits import check_delta, check_noise_multiplier
from fedray.mechanisms.accounting.sampled import largest_column
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.mechanisms.comparison import NOT_COMPARABLE, Utility, utility
from fedray.mechanisms.named import name_of
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import Identity, Tree
from fedray.mechanisms.sensitivity import PatternValues
from fedray.mechanisms.strategy import Strategy
from fedray.mechanisms.triangular import TriangularStrategy
from fedray.scenario import Scenario
from fedray.scenario.privacy import NO_GUARANTEE
from fedray.trace.files import check_scenario_digest
from fedray.trace.imported import Assumption, ImportedTrace, LeftOut, open_trace
from fedray.trace.reader import Trace
from fedray.trace.trained import TrainedRun

WORTH_A_CLAIM = 0.01
"""Relative gain in epsilon from which on a claim of the frontier is proposed."""
DEFAULT_DELTA = 1e-10
"""Delta for logs, unless another is given."""


@dataclass(frozen=True, slots=True)
class MechanismAudit(Document):
    """One mechanism on this trace.

    is_own: whether it is the run's own mechanism, or the claimed one.
    noise_multiplier: z; None if neither the trace nor the caller states the noise.
    noise: the same, or the least noise that devices added in a round of this trace.
    permitted: the same, or the least noise that the rules permit devices to add in a round.
    trace: sensitivity of this trace, with its device; exact or an upper bound, as it says.
    binding_device: name of that device.
    observed_limits: guarantee of every pattern with the min-sep and participations of this trace.
    observed, enforced, claimed: the three guarantees.
    """

    strategy: Annotated[Strategy, Keys("parameters")]
    """The mechanism."""
    is_own: bool
    noise_multiplier: float | None
    noise: NotInJson[Noise | None]
    permitted: NotInJson[Noise | None]
    trace: Annotated[TraceSensitivity, Keys("binding_rounds=rounds")]
    binding_device: str
    observed: NotInJson[Guarantee]
    observed_limits: Guarantee
    enforced: NotInJson[Guarantee]
    claimed: NotInJson[Guarantee]
    sampled: Guarantee | None = None
    """The guarantee with amplification by Poisson sampling of stored uploads; None for other
    traces."""
    filtered: Guarantee | None = None
    """The guarantee that a filter gives by excluding devices at their budget; None for a run
    without one."""
    person: IfAny[PersonAudit] = None
    """Privacy of a person instead of a device. Absent if owners are unknown."""

    @property
    def name(self) -> InJson[str]:
        """Kind of the mechanism."""
        return self.strategy.kind

    @property
    def of_server(self) -> list[Guarantee]:
        """Guarantees by the server's sampling and by its filter, if any."""
        return [each for each in (self.sampled, self.filtered) if each is not None]

    @property
    def named(self) -> list[tuple[str, Guarantee]]:
        """Every guarantee, by its name in tables."""
        # Observed limits stand beside the observed pattern, because a rule could enforce them.
        found = [("observed", self.observed), (OBSERVED_LIMITS, self.observed_limits)]
        found += [(each.name, each) for each in (self.enforced, *self.of_server, self.claimed)]
        return found

    def resting(self, unit: str) -> list[Guarantee]:
        """Returns the guarantees on which one may rest, of a "device" or a "person"; none are known
        of a person without owners."""
        found = [each for _, each in self.named]
        if unit == "person":
            found = [] if self.person is None else list(self.person.guarantees)
        return [each for each in found if each.may_rest_on]

    @property
    def title(self) -> str:
        """Name of a predefined mechanism, such as blt-400, or else the kind."""
        return name_of(self.strategy)

    @property
    def rho(self) -> float | None:
        """rho of this trace."""
        return self.observed.rho

    @property
    def epsilon(self) -> float | None:
        """epsilon of this trace."""
        return self.observed.epsilon

    @property
    def guarantees(self) -> InJson[tuple[Guarantee, Guarantee, Guarantee]]:
        """Observed, enforced, claimed."""
        return self.observed, self.enforced, self.claimed


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


def audit_trace(
    trace: Trace | ImportedTrace | str | Path,
    noise_multiplier: float | None = None,
    delta: float | None = None,
    mechanism: Strategy | Sequence[Strategy] | None = None,
    claim: Claim | None = None,
    show_devices: bool = False,
    scenario: Scenario | None = None,
    trained: TrainedRun | None = None,
) -> Audit:
    """Audits a trace, against a claim if one is given.

    The audit of a log without a mechanism has participation only; without a noise multiplier it has
    no rho and epsilon.

    Args:
        trace: run of fedray or imported log, opened or by its directory.
        noise_multiplier: standard deviation of the noise over the clip norm, in place of the run's
            own.
        delta: delta of epsilon, between 0 and 1; default: the run's own, or 1e-10 for a log.
        mechanism: strategy, or several that are audited side by side, in place of the run's own.
        claim: published claim, with a mechanism, noise multiplier and delta of its own.
        show_devices: whether devices of a log are named; else they are shown by a keyed hash.
        scenario: scenario of a training on the trace, whose mechanism, noise and encoding take the
            place of the run's own.
        trained: the training; default: the run's own.

    Raises:
        InputError: an argument is out of range or excluded by a claim or the trace, the mechanism
            has fewer rounds than the trace, or no device took part.
        TraceError: the trace cannot be read.
    """
    opened = open_trace(trace) if isinstance(trace, str | Path) else trace
    of_run = _scenario_of(opened) if isinstance(opened, Trace) else None
    scenario = scenario or of_run
    asks = scenario is not None and scenario.analytics is not None
    # A mechanism that is named is accounted for, as if a model had been trained.
    is_trained = scenario is None or scenario.training.enabled or mechanism or noise_multiplier
    is_untrained = asks and not is_trained
    told = vocabulary_cost(scenario)
    if claim is not None and (asks or told is not None):
        what = "a question" if asks else "a private vocabulary"
        raise InputError(
            f"a claim is about a model alone, and this trace has {what}, whose privacy its own "
            "rules limit; audit it without a claim"
        )
    is_silent = is_untrained or (
        not mechanism and scenario is not None and scenario.privacy.strategy is None
    )
    used = _Used.of(opened, scenario, claim, mechanism, noise_multiplier, delta)
    patterns = read_patterns(opened)
    # Without a participation no largest sensitivity exists.
    if not patterns.device_ids.size:
        probability = scenario.rounds.sampling_probability if scenario is not None else None
        # The privacy of a Poisson sample depends on its probability, not on the devices drawn.
        remedy = (
            "audit a trace in which some did"
            if probability is None
            else "its samples spent privacy all the same: evaluate the mechanism identity at "
            f"sampling={probability:g}"
        )
        raise InputError(
            f"trace {str(opened.path)!r}: no device took part in any of its "
            f"{patterns.committed_rounds:,} rounds, so there is no participation to audit; {remedy}"
        )
    names = DeviceNames(opened, show_devices)
    imported = opened if isinstance(opened, ImportedTrace) else None
    try:
        # Limits do not depend on the mechanism, so they are found once for all.
        enforced = enforced_limits(
            opened, scenario, claim.timer_hours if claim is not None else None, patterns
        )
        claimed = Limits(None, "nothing is claimed" if claim is None else REPEATED)
        if claim is not None and patterns.min_sep > 0:
            claimed = claimed_limits(claim, opened)
        facts = (patterns, enforced, claimed, names)
        mechanisms = [
            _audit_mechanism(each, used, _noise_of(each, used, opened, scenario), *facts)
            for each in used.strategies
        ]
        exclusions = None
        # Only simulated runs record sampling and exclusions by the server, which used the run's
        # own mechanism.
        if of_run is not None and isinstance(opened, Trace):
            exclusions = exclusions_of(opened, of_run, patterns)
            mechanisms = [
                _with_server_rules(each, opened, of_run, patterns, exclusions, used.delta, claim)
                for each in mechanisms
            ]
        findings: tuple[Finding, ...] = ()
        corrected = None
        if claim is not None:
            privacy = scenario.privacy if scenario is not None else None
            # A claim names one mechanism, and no other is audited then.
            found = mechanisms[0].trace
            noise, permitted = mechanisms[0].noise, mechanisms[0].permitted
            assert noise is not None
            assert permitted is not None
            findings, corrected = check_claim(
                claim,
                privacy,
                opened,
                patterns,
                found,
                enforced,
                mechanisms[0].claimed,
                (noise, permitted),
                names.of,
                [each for each in mechanisms[0].of_server if each.may_rest_on],
            )
    except ValueError as error:  # cases without a guarantee
        raise InputError.caused_by(error) from None
    # A claim cannot supply figures for a run without noise.
    if is_silent:
        mechanisms = []
    answers = None
    model = (mechanisms[0].observed, mechanisms[0].enforced) if mechanisms else None
    if scenario is not None and scenario.analytics is not None:
        answers = privacy_of_answers(scenario, patterns.max_participations, enforced, model)
    if told is not None and model is not None:
        # Rows of a question include the vocabulary wherever they include the model.
        of_vocabulary = privacy_of_vocabulary(told, model)
        answers = (*answers, of_vocabulary[0]) if answers else of_vocabulary
    # Withdraws figures that the trace, the log or the noise does not support.
    broken = [
        each.statement
        for each in findings
        if each.verdict is Verdict.BROKEN and each.statement not in PRIVACY_STATEMENTS
    ]
    if broken:
        mechanisms = [_refuted(each, broken) for each in mechanisms]
    if imported is not None:
        mechanisms = [_conditional(each, imported) for each in mechanisms]
    elif broken_noise(findings):
        mechanisms = [_not_this_run(each) for each in mechanisms]
    # Last, because withdrawn guarantees of a device are withdrawn for a person too.
    persons = Persons.of(patterns, scenario)
    if persons is not None:
        mechanisms = [
            _with_person(each, persons, names, corrected, bool(answers)) for each in mechanisms
        ]
    if trained is None and scenario is of_run and isinstance(opened, Trace):
        trained = opened.trained
    # A group of devices has no figure for releases beside the model.
    by_rules = (
        (mechanisms[0].enforced, mechanisms[0].filtered) if mechanisms and not answers else ()
    )
    people = trained.document.get("people") if trained is not None and mechanisms else None
    clients = Clients.of(people or {}, [each for each in by_rules if each is not None])
    run = opened if isinstance(opened, Trace) else None
    left_out = () if imported is None else imported.left_out
    of_model = WITHOUT_NOISE if is_silent else _rests_on(scenario, imported, mechanisms)
    of_model = () if is_untrained else of_model
    return Audit(
        trace=opened,
        path=opened.path,
        digest=opened.digest,
        ended="imported" if run is None else run.run["ended"],
        patterns=patterns,
        names=names,
        mechanisms=tuple(mechanisms),
        findings=findings,
        incompleteness=imported.incompleteness if imported is not None else "",
        left_out=tuple(replace(each, example=names.in_text(each.example)) for each in left_out),
        filtered_rows=imported.filtered_rows if imported is not None else 0,
        violations=run and scenario and violations_of(run, scenario),
        persons=persons,
        clients=clients,
        no_guarantee=(ONLY_ANSWERS if is_untrained else NO_GUARANTEE) if is_silent else None,
        answers=answers,
        exclusions=exclusions,
        scenario=scenario,
        claim=claim,
        corrected=corrected,
        rests_on=(
            *assumptions_of_answers(scenario),
            *(each._replace(text=names.in_text(each.text)) for each in of_model),
            *other_tasks(opened),
            *(() if persons is None else (persons.assumption,)),
        ),
        classes=() if run is None else tuple(run.run.get("classes", ())),
    )


def _rests_on(
    scenario: Scenario | None, imported: ImportedTrace | None, mechanisms: Sequence[MechanismAudit]
) -> tuple[Assumption, ...]:
    own: list[Assumption] = []
    if mechanisms:
        # Limits are the same for all mechanisms, so any mechanism's will do.
        first = mechanisms[0]
        rules = "the claim" if scenario is None else "the scenario's rules"
        named = (
            ("Enforced", first.enforced, f"{rules}, and the recorded times of the rounds"),
            ("Sampled", first.sampled, ASSUMED),
            ("Filtered", first.filtered, ASSUMED),
        )
        own = [
            Assumption(f"{name}: {text}", source)
            for name, guarantee, source in named
            if guarantee is not None
            for text in guarantee.assumptions
        ]
    own += [
        Assumption(noise.sentence, source)
        for each in mechanisms
        for noise, source in (
            (each.noise, "counted in the trace"),
            (each.permitted, "the scenario's rules"),
        )
        if isinstance(noise, DeviceNoise)
    ]
    return (*assumptions_of(scenario, imported), *own)


def other_tasks(trace: Trace | ImportedTrace) -> tuple[Assumption, ...]:
    """Returns the assumption of a task whose devices also took part in other tasks."""
    # Only the trace of one task of several has this table.
    if not isinstance(trace.run.get("task"), dict):
        return ()
    text = (
        "This is one of several tasks that shared the devices: what a device spent in the others "
        "is not in these figures. The audit of the whole run adds it up."
    )
    return (Assumption(text, "run.json of the trace"),)


@dataclass(frozen=True, slots=True)
class _Used:
    """Mechanisms, noise and delta of an audit.

    strategies: the run's own or claimed mechanism first, if there is one.
    count_noise: count noise of the run; None unless its own mechanism and noise are used.
    """

    strategies: tuple[Strategy, ...]
    own: Strategy | None
    noise_multiplier: float | None
    delta: float
    count_noise: float | None = None

    def server_noise_of(self, strategy: Strategy) -> ServerNoise | None:
        """Returns the server's noise under one of the strategies, or None if unknown."""
        if self.noise_multiplier is None:
            return None
        return ServerNoise(
            self.noise_multiplier, self.count_noise if strategy == self.own else None
        )

    @classmethod
    def of(
        cls,
        trace: Trace | ImportedTrace,
        scenario: Scenario | None,
        claim: Claim | None,
        mechanism: Strategy | Sequence[Strategy] | None,
        noise_multiplier: float | None,
        delta: float | None,
    ) -> "_Used":
        given = (mechanism,) if isinstance(mechanism, Strategy) else tuple(mechanism or ())
        if claim is not None:
            if given or noise_multiplier is not None or delta is not None:
                raise InputError(
                    "a claim names its mechanism, noise multiplier and delta: leave them out "
                    "beside the claim"
                )
            used = cls((claim.mechanism,), claim.mechanism, claim.noise_multiplier, claim.delta)
        else:
            privacy = scenario.privacy if scenario is not None else None
            own = privacy.strategy if privacy is not None else None
            if privacy is not None and own is None and noise_multiplier is not None and not given:
                raise InputError.of(
                    "noise_multiplier",
                    noise_multiplier,
                    "applies to no mechanism, since the run added no noise",
                    "name a mechanism",
                )
            if noise_multiplier is None and privacy is not None and own is not None:
                noise_multiplier = privacy.noise_multiplier
            if delta is None:
                delta = privacy.delta if privacy is not None else DEFAULT_DELTA
            # A log has no mechanism of its own, so no privacy is computed unless one is given.
            used = cls(given or ((own,) if own is not None else ()), own, noise_multiplier, delta)
        try:
            if used.noise_multiplier is not None:
                check_noise_multiplier(used.noise_multiplier)
            check_delta(used.delta)
            # A mechanism of fewer rounds cannot have released every committed round.
            for strategy in used.strategies:
                strategy.check_rounds(trace.committed_rounds)
        except ValueError as error:
            raise InputError.caused_by(error) from None
        if scenario is None or (used.own, used.noise_multiplier) != (
            scenario.privacy.mechanism,
            scenario.privacy.noise_multiplier,
        ):
            return used
        # Counts of short updates belong to the noise of the run; another mechanism or multiplier
        # only concerns sums.
        return replace(used, count_noise=scenario.count_noise)


def _scenario_of(trace: Trace) -> Scenario:
    """Returns the scenario in run.json, which must be the one that was run."""
    try:
        scenario = Scenario.from_tables(trace.scenario, directory=trace.path)
    except ScenarioError as error:
        raise TraceCorrupt(
            f"{trace.path}: its scenario is not one of this release ({error}); use its own"
        ) from None
    # An edit, or a default that has changed since, would change figures silently.
    check_scenario_digest(scenario.digest, trace.run, trace.path)
    return scenario


def _noise_of(
    strategy: Strategy, used: _Used, trace: Trace | ImportedTrace, scenario: Scenario | None
) -> tuple[Noise | None, Noise | None]:
    """Returns the least noise of this trace and the least noise that the rules permit. Devices add
    independent noise; the noise of any other strategy is the server's."""
    noise = used.server_noise_of(strategy)
    if scenario is None or noise is None or isinstance(trace, ImportedTrace):
        return noise, noise
    if not isinstance(strategy, Identity):
        return noise, noise
    accepted = trace.rounds["accepted"][trace.rounds["state"] == 0]
    of_trace = observed_noise(noise, scenario, accepted)
    return of_trace, permitted_noise(noise, scenario, of_trace)


def _audit_mechanism(
    strategy: Strategy,
    used: _Used,
    noise: tuple[Noise | None, Noise | None],
    patterns: Patterns,
    enforced: Limits,
    claimed: Limits,
    names: DeviceNames,
) -> MechanismAudit:
    delta = used.delta
    shows = "the least gap and the most participations that this trace shows"
    limits = Limits(patterns.participation, shows if patterns.participation else REPEATED)
    trace = trace_sensitivity(strategy, patterns)
    of_trace, permitted = noise
    return MechanismAudit(
        strategy=strategy,
        is_own=strategy == used.own,
        noise_multiplier=used.noise_multiplier,
        noise=of_trace,
        permitted=permitted,
        trace=trace,
        binding_device=names.of(trace.device_id),
        observed=observed(trace, patterns, strategy, of_trace, delta),
        # No rule ensures limits that were merely observed.
        observed_limits=of_limits("observed", limits, strategy, of_trace, delta, False),
        enforced=of_limits("enforced", enforced, strategy, permitted, delta, True),
        claimed=of_limits(
            "claimed", claimed, strategy, permitted, delta, _is_ensured(claimed, enforced)
        ),
    )


def _with_server_rules(
    mechanism: MechanismAudit,
    trace: Trace,
    scenario: Scenario,
    patterns: Patterns,
    exclusions: Exclusions | None,
    delta: float,
    claim: Claim | None,
) -> MechanismAudit:
    """Adds the guarantees of sampling by the server and of its filter, and withdraws those that do
    not cover the claimed rounds."""
    strategy, noise, enforced = mechanism.strategy, mechanism.noise, mechanism.enforced
    n = (claim and claim.rounds) or 0
    turns, is_longer = enforced.participation, n > trace.committed_rounds
    if is_longer and scenario.rounds.uploads is not None:
        # Rules that the trace breaks limit no later round either.
        kept = turns is not None
        turns = limits_of_schedule(scenario, n).participation if kept else MinSep(n, 1, n)
    by_sampling = sampled(trace, scenario, strategy, noise, delta, turns)
    by_filter = filtered(scenario, patterns, exclusions, strategy, noise, delta)
    if is_longer:
        reason = f"it covers the recorded rounds, and {n:,} are claimed"
        enforced = enforced.withdrawn(reason)
    # A filter charges a participation for all rounds of the run.
    if by_filter is not None and n > scenario.rounds.count:
        reason = f"it covers {scenario.rounds.count:,} rounds, and {n:,} are claimed"
        by_filter = replace(by_filter, may_rest_on=False, reason=reason)
    return replace(mechanism, enforced=enforced, sampled=by_sampling, filtered=by_filter)


def _with_person(
    mechanism: MechanismAudit,
    persons: Persons,
    names: DeviceNames,
    corrected: Guarantee | None,
    has_answers: bool,
) -> MechanismAudit:
    """Adds the privacy of a person."""
    # Amplification by sampling has no figure here: a person's uploads are drawn one by one.
    of_rules = (mechanism.enforced, mechanism.claimed, mechanism.filtered, corrected)
    # A claim that limits nothing is corrected to a guarantee of its own name.
    found = {each.name: each for each in of_rules if each is not None and each.name != "sampled"}
    known = list(found.values())
    if has_answers:
        known = [replace(each, may_rest_on=False, reason=OF_A_MODEL) for each in known]
    person = audited_person(persons, names.owner, mechanism.strategy, mechanism.noise, known)
    return replace(mechanism, person=person)


def _refuted(mechanism: MechanismAudit, broken: Sequence[str]) -> MechanismAudit:
    """Withdraws the claimed guarantee, since the trace breaks the limits behind it."""
    reason = f"this trace breaks the claimed {', '.join(broken)}"
    return replace(mechanism, claimed=mechanism.claimed.withdrawn(reason))


def _conditional(mechanism: MechanismAudit, log: ImportedTrace) -> MechanismAudit:
    """Makes the guarantees of a log conditional on its claimed timer and on complete rows."""
    enforced, claimed = mechanism.enforced, mechanism.claimed
    if enforced.sensitivity is None:
        return mechanism
    reason = f"{enforced.reason}; it holds only if that timer was enforced, which a log cannot show"
    if log.incompleteness:
        reason += f". {log.incompleteness.rstrip('.')}"
    return replace(
        mechanism,
        enforced=replace(enforced, may_rest_on=False, reason=reason),
        # A claim rests on the enforced limits, so it rests on that timer too.
        claimed=replace(claimed, may_rest_on=False),
    )


def _not_this_run(mechanism: MechanismAudit) -> MechanismAudit:
    """Withdraws the guarantees of a claim whose mechanism or noise the run did not use."""
    said = "the run did not add the noise that is claimed, so this is no statement about it"
    named = ("enforced", "claimed", "sampled", "filtered")
    guarantees = {name: getattr(mechanism, name) for name in named}
    refuted = {
        name: replace(each, may_rest_on=False, reason=said)
        for name, each in guarantees.items()
        if each is not None
    }
    return replace(mechanism, is_own=False, **refuted)


def _is_ensured(claimed: Limits, enforced: Limits) -> bool:
    """Whether the enforced participation is at least as tight as the claimed one."""
    if claimed.participation is None or enforced.participation is None:
        return False
    b = enforced.participation
    return any(
        # A looser claim is ensured: fewer rounds between, or more participations, than the rules
        # allow.
        a.rounds == b.rounds
        and a.min_sep <= b.min_sep
        and a.max_participations >= b.max_participations
        for a in claimed.pairs or (claimed.participation,)
    )
