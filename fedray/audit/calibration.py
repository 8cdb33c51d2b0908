"""Calibration to a trace: the least noise multipliers with which a run would have met an epsilon or
rho, by its enforced rules and by the observed participation."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

from fedray.audit.assumptions import other_tasks
from fedray.audit.audit import Audit
from fedray.audit.auditing import audit_trace
from fedray.audit.claims import Claim
from fedray.audit.guarantees import Guarantee, event_of
from fedray.audit.noise import (
    Noise,
    ServerNoise,
    changed_rounds,
    least_multiplier,
    most_changed,
    noises_of,
)
from fedray.audit.questions import vocabulary_cost
from fedray.audit.verdict import on_joined_ids
from fedray.base.document import Document, InPlace, Key, Keys
from fedray.base.errors import InputError, ScenarioError
from fedray.base.result import Result
from fedray.base.rounding import given, up
from fedray.mechanisms.accounting.calibration import PRECISION, check_one_target
from fedray.mechanisms.accounting.clip_count import count_noise_multiplier
from fedray.mechanisms.accounting.events import MinSepSampled
from fedray.mechanisms.accounting.gdp import gaussian_epsilon
from fedray.mechanisms.strategy import Strategy
from fedray.scenario import Scenario
from fedray.scenario.privacy import TARGETS
from fedray.trace.imported import ImportedTrace, open_trace
from fedray.trace.reader import Trace

KNOWN_AFTERWARDS = (
    "this noise multiplier follows from who took part, which is known only after the run, so it is "
    "no guarantee for a run to come"
)
"""Reason why no guarantee may rest on noise calibrated to the observed participation."""
AT_OTHER_TIMES = (
    "The enforced limits are those of the recorded rounds. A run to come may have its rounds at "
    "other times, or more of them, and timers then allow other limits."
)
"""Condition of noise calibrated to the enforced rules."""
OF_A_LOG = (
    "A log does not show its rules. If they are known, name them in a claim (min_sep, "
    "max_participations, timer_hours), to whose limits noise is calibrated too."
)
"""Remedy for a log, which does not show its rules."""


@dataclass(frozen=True, slots=True)
class CalibratedGuarantee(Document):
    """A guarantee of a trace, with the noise that meets a target."""

    noise_multiplier: float | None
    """Least noise multiplier with which the guarantee meets the target, rounded up by a relative
    1e-7 at most; None if the sensitivity is unknown."""
    guarantee: InPlace[Guarantee]
    """The guarantee with that noise, at its sensitivity."""


@dataclass(frozen=True, slots=True)
class TraceCalibration(Result):
    """The noise multipliers with which a trace would have met a target."""

    TABLES: ClassVar[str] = "fedray.report.audits:calibration_tables"
    SUBJECT: ClassVar[str] = "fedray.report.subjects:calibration_subject"

    path: Annotated[Path, Key("trace")]
    """Directory of the trace."""
    digest: str
    """The trace's digest."""
    strategy: Annotated[Strategy, Keys("kind parameters")]
    """The mechanism."""
    target_epsilon: float | None
    """Largest epsilon allowed, at delta; None if rho is the target."""
    target_rho: float | None
    """Largest rho (zCDP) allowed; None if epsilon is the target."""
    delta: float
    """delta of epsilon."""
    run_noise_multiplier: float | None
    """Noise multiplier of the claim, or else of the run; None for a mechanism other than its own,
    and for a log, which does not record it."""
    claimed: CalibratedGuarantee | None
    """For every run within the limits of a claim, whose epsilon or rho is the target; limits that
    the trace breaks are corrected. None without a claim."""
    enforced: CalibratedGuarantee
    """For every run that the rules in force allow, at the recorded times of the rounds."""
    observed: CalibratedGuarantee
    """For this run as it happened; not a guarantee for later runs."""
    notes: tuple[str, ...]
    """Remarks on these noise multipliers, in sentences."""

    def __repr__(self) -> str:
        target = f"rho {self.target_rho}"
        if self.target_epsilon is not None:
            target = f"epsilon {given(self.target_epsilon)} at {given(self.delta)}"
        found = [
            f"{each.guarantee.name} noise multiplier {up(each.noise_multiplier)}"
            for each in self.guarantees
            if each.noise_multiplier is not None
        ]
        return f"<TraceCalibration of {self.strategy.kind} to {target}: {', '.join(found)}>"

    @property
    def guarantees(self) -> tuple[CalibratedGuarantee, ...]:
        """The calibrated guarantees, the weakest statement last."""
        found = (self.claimed, self.enforced, self.observed)
        return tuple(each for each in found if each is not None)


def calibrate_trace(
    trace: Trace | ImportedTrace | str | Path,
    *,
    epsilon: float | None = None,
    rho: float | None = None,
    delta: float | None = None,
    mechanism: Strategy | None = None,
    claim: Claim | None = None,
    scenario: Scenario | None = None,
) -> TraceCalibration:
    """Returns the least noise multipliers with which a run would have met a target.

    Sensitivities are as in `audit_trace`: of every run under the rules in force, and of each
    device's recorded rounds.

    Args:
        trace: a run or a log, opened or as its directory.
        epsilon: largest permitted epsilon at delta. Give this or rho.
        rho: largest permitted rho.
        delta: delta of epsilon, replaces the run's own; a log has 1e-10.
        mechanism: replaces the run's own; a log needs one.
        claim: claim whose limits get a noise multiplier too. Its mechanism and delta are used, and
            its epsilon or rho, the stricter one of both, if no target is given.
        scenario: scenario of a training on the trace, in place of the run's own.

    Raises:
        InputError: both or neither target is given, a claim stands beside a mechanism or delta, no
            noise meets the target, the mechanism is missing or has fewer rounds, no round was
            committed, the run releases more than a model, or the noise is not described by a noise
            multiplier (rounds are Poisson samples).
        TraceError: the trace cannot be read.
    """
    # An audit of a large trace takes a while, so bad input is refused before it.
    if claim is not None and (epsilon, rho) == (None, None):
        epsilon, rho = claim.epsilon, claim.rho
        if epsilon is not None and rho is not None:
            # The stricter one bounds mu, whatever the sensitivity is.
            is_rho = gaussian_epsilon(math.sqrt(2 * rho), claim.delta) <= epsilon
            epsilon, rho = (None, rho) if is_rho else (epsilon, None)
    check_one_target(epsilon, rho)
    opened = open_trace(trace) if isinstance(trace, str | Path) else trace
    if not opened.committed_rounds:
        raise InputError(
            f"trace {str(opened.path)!r} has no committed round, so nothing was released and no "
            "noise was needed; take a trace that has some"
        )
    audit = audit_trace(opened, delta=delta, mechanism=mechanism, claim=claim)
    if (released := scenario or audit.scenario) is not None:
        check_only_models(released, "epsilon" if rho is None else "rho")
    _check(audit)
    audited = audit.mechanisms[0]
    used_delta = audited.observed.delta

    def calibrated(of: Guarantee, reason: str = "") -> CalibratedGuarantee:
        reason = reason or of.reason
        if of.sensitivity is None:
            return CalibratedGuarantee(None, replace(of, event=None, reason=reason))
        is_observed = of is audited.observed
        permitted = of.pairs or (of.participation,)

        def noise_at(z: float) -> Noise:
            of_trace, by_rules = noises_of(ServerNoise(z), released, audited.strategy, opened)
            return of_trace if is_observed else by_rules

        def changed_by(noise: Noise) -> int:
            if is_observed:
                return int(changed_rounds(noise, audit.patterns).max())
            return most_changed(noise, [each for each in permitted if each is not None])

        sensitivity, target = of.sensitivity, {"epsilon": epsilon, "rho": rho}
        z = least_multiplier(noise_at, sensitivity.value, changed_by, used_delta, **target)
        noise = noise_at(z)
        # The observed sensitivity belongs to one pattern, so its event has no participation.
        under = None if is_observed else of.participation
        event = event_of(
            audited.strategy, audit.rounds, sensitivity, under, noise, changed_by(noise)
        )
        return CalibratedGuarantee(z, replace(of, event=event, reason=reason))

    found = {
        "claimed": None if claim is None else calibrated(audit.corrected_claim or audited.claimed),
        "enforced": calibrated(audited.enforced),
        "observed": calibrated(audited.observed, f"{KNOWN_AFTERWARDS}; {audited.observed.reason}"),
    }
    of_scale = {}
    if released is not None and audited.is_own:
        known = (each.noise_multiplier for each in found.values() if each is not None)
        of_scale = dict.fromkeys(limit_of_scale(released, z) for z in known if z is not None)
    return TraceCalibration(
        path=audit.path,
        digest=audit.digest,
        strategy=audited.strategy,
        target_epsilon=epsilon,
        target_rho=rho,
        delta=used_delta,
        run_noise_multiplier=audited.noise_multiplier if audited.is_own else None,
        **found,
        notes=(
            *_notes(audit),
            *(each.text for each in other_tasks(opened)),
            *filter(None, of_scale),
        ),
    )


def limit_of_scale(scenario: Scenario, noise_multiplier: float) -> str:
    """Returns a sentence if the scale of `privacy.trust` refuses a calibrated noise multiplier, or
    the next smaller one, which the target may allow; else an empty string."""

    def refusal(z: float) -> str:
        own = {"noise_multiplier": z, **dict.fromkeys(TARGETS)}
        privacy = scenario.privacy.model_copy(update=own)
        try:
            scenario.model_copy(update={"privacy": privacy}).check_scale()
        except ScenarioError as error:
            return str(error)
        return ""

    if found := refusal(noise_multiplier):
        return f"No run can have that noise: {found}."
    if found := refusal(noise_multiplier * (1 - 4 * PRECISION)):
        return f"The scale decides the noise multiplier, not the target: {found}."
    return ""


def check_only_models(scenario: Scenario, name: str) -> None:
    """Raises InputError if a run releases more than updates of a model, which `name` counts."""
    if scenario.analytics is not None or vocabulary_cost(scenario) is not None:
        raise InputError(
            f"{name} counts updates of models only, and the scenario has a question (analytics) or "
            f"a private vocabulary; leave {name} out"
        )


def check_server_noise(scenario: Scenario, study: str) -> None:
    """Raises InputError if devices add the noise, whose cost a study does not count."""
    if scenario.privacy.sent.adds_noise:
        raise InputError.of(
            "privacy.trust.kind",
            scenario.privacy.trust.kind,
            f"adds noise on devices, and {study} is for noise that the server adds",
            "leave privacy.trust out, or keep it and calibrate the run with privacy.target_epsilon",
        )


def _check(audit: Audit) -> None:
    """Raises InputError if the noise multiplier does not follow from these sensitivities."""
    named = f"trace {str(audit.path)!r}"
    if audit.no_guarantee:
        raise InputError(f"{named}: {audit.no_guarantee}; name a mechanism")
    if not audit.mechanisms:
        raise InputError(
            f"{named} is a log, which has no mechanism of its own, and sensitivities depend on it; "
            "name a mechanism"
        )
    audited = audit.mechanisms[0]
    # If sampling provably adds nothing, the other guarantees cover the run.
    if audited.sampled is not None and audited.sampled.sensitivity is not None:
        assert audit.scenario is not None
        probability = audit.scenario.rounds.sampling_probability
        turns = audited.sampled.participation
        assert turns is not None
        if isinstance(audited.sampled.event, MinSepSampled):
            raise InputError(
                f"{named}: its rounds are random with a least separation (schedule min_sep), which "
                "adds privacy that sensitivities do not include; audit the trace with noise "
                "multipliers of your choice"
            )
        by = (
            f"`fedray mechanism` with sampling {probability:g}, rounds {audit.rounds}, min-sep 1 "
            f"and max participations {turns.max_participations}"
            if turns.min_sep == 1
            else "fedray.calibrated_figures with sampling=fedray.PoissonSampling("
            f"{audit.rounds}, {probability:g}, {turns.min_sep})"
        )
        raise InputError(
            f"{named}: its rounds are Poisson samples (probability {probability:g}), which add "
            f"privacy that sensitivities do not include; calibrate {audited.strategy.kind} to an "
            f"epsilon (no rho is proven for samples) by {by}"
        )


def _notes(audit: Audit) -> list[str]:
    notes = [AT_OTHER_TIMES] if audit.mechanisms[0].enforced.sensitivity is not None else []
    joined = on_joined_ids(audit)
    found = (audit.short_run_note, audit.incompleteness, "" if joined is None else joined.text)
    notes += [each for each in found if each]
    scenario = audit.scenario
    if scenario is None:
        return notes if audit.claim is not None else [OF_A_LOG, *notes]
    privacy = scenario.privacy
    if audit.mechanisms[0].is_own and scenario.count_noise is not None:
        most = count_noise_multiplier(scenario.count_noise)
        notes.append(
            "Clipping is adaptive. The noise multiplier is that of the sums of updates and the "
            f"counts of short ones together, and a scenario takes only one below "
            f"{given(most)}, that of the counts alone."
        )
    if privacy.stop_at is not None:
        notes.append(
            f"privacy.stop_at counted with the noise multiplier {given(privacy.noise_multiplier)}. "
            "With another one, it would have excluded other devices, or ended the run elsewhere."
        )
    return notes
