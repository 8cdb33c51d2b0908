"""Auditing a trace, in five steps: the mechanisms and noise that are used, the limits of
participation, the mechanisms audited, the claim judged, and figures withdrawn that the trace, the
log or the noise does not support."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedray.audit.any_run import planned_guarantee
from fedray.audit.assumptions import ASSUMED, WITHOUT_NOISE, Assumption, assumptions_of, other_tasks
from fedray.audit.audit import Audit
from fedray.audit.check import check_claim, check_participation
from fedray.audit.claimed import claimed_limits
from fedray.audit.claims import Claim, claim_of_document
from fedray.audit.filtered import Exclusions, exclusions_of, filtered
from fedray.audit.findings import PRIVACY_STATEMENTS, ROUNDED, Finding, Verdict, broken_noise
from fedray.audit.guarantees import (
    REPEATED,
    ClaimedPeriods,
    Guarantee,
    Limits,
    enforced_limits,
    limits_of_schedule,
    observed,
    of_limits,
)
from fedray.audit.mechanism_audit import (
    MechanismAudit,
    conditional,
    not_of_this_run,
    refuted,
    stopped,
    was_used,
    with_person,
)
from fedray.audit.names import DeviceNames
from fedray.audit.noise import DeviceNoise, Noise, ServerNoise, noises_of
from fedray.audit.observers import (
    assumed_about,
    malicious_share,
    noise_of_log,
    trust_of_model,
)
from fedray.audit.participation import Patterns, read_patterns
from fedray.audit.persons import Clients, Persons
from fedray.audit.questions import (
    ONLY_ANSWERS,
    AnswerPrivacy,
    OfPersons,
    assumptions_of_answers,
    privacy_of_answers,
    privacy_of_vocabulary,
    vocabulary_cost,
)
from fedray.audit.rules import Violations, violations_of
from fedray.audit.sampled import sampled
from fedray.audit.sensitivity import trace_sensitivity
from fedray.audit.so_far import bounds_under
from fedray.audit.statements.keep_days import KeepDaysStatement
from fedray.audit.statements.most_per_period import kept_periods
from fedray.audit.statements.statement import Subject
from fedray.base.errors import InputError, ScenarioError, TraceCorrupt
from fedray.base.storage import fetched
from fedray.encoding.tables import DeviceNoiseTable
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.events import EventRefused
from fedray.mechanisms.accounting.limits import check_delta, check_noise_multiplier
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import Identity
from fedray.mechanisms.strategy import Strategy
from fedray.scenario import Scenario
from fedray.scenario.privacy import NO_GUARANTEE
from fedray.scenario.trust import AnyTrust
from fedray.trace.files import check_scenario_digest
from fedray.trace.imported import ImportedTrace, LeftOut, open_trace
from fedray.trace.learned_from import (
    given_trace_of,
    is_trained_run,
    open_trained,
    opened_training,
)
from fedray.trace.reader import Trace
from fedray.trace.trained import TrainedRun

DEFAULT_DELTA = 1e-10
"""Delta for logs, unless another is given."""


def audit_trace(
    trace: Trace | ImportedTrace | TrainedRun | str | Path,
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
        trace: run of fedray, imported log or training, opened or by its directory. A training is
            audited on its trace, with the mechanism, noise and encoding that it was trained with.
        noise_multiplier: standard deviation of the noise over the clip norm, in place of the run's
            own.
        delta: delta of epsilon, between 0 and 1; default: the run's own, or 1e-10 for a log.
        mechanism: strategy, or several that are audited side by side, in place of the run's own.
        claim: published claim, with a mechanism, noise multiplier and delta of its own; figures of
            a run that trained are at the run's own noise all the same. Default: that which the run
            had to ensure, if any, unless one of the three arguments above is given.
        show_devices: whether devices of a log are named; else they are shown by a keyed hash.
        scenario: scenario of a training on the trace, whose mechanism, noise and encoding take the
            place of the run's own. Default: that of `trained`.
        trained: the training; default: the run's own.

    Raises:
        InputError: an argument is out of range or excluded by a claim or the trace, the mechanism
            has fewer rounds than the trace, no device took part, or the training was of another
            trace or scenario.
        TraceError: the trace cannot be read.
    """
    opened, trained, scenario = _opened(trace, trained, scenario)
    of_run = _scenario_of(opened) if isinstance(opened, Trace) else None
    given = (mechanism,) if isinstance(mechanism, Strategy) else tuple(mechanism or ())
    trained_by = scenario or of_run
    if trained_by is not None:
        given = tuple(trained_by.privacy.as_added(each) for each in given)
    released = opened if scenario is None else trained
    instead = _given_instead(released, claim, mechanism, noise_multiplier, delta)
    claim = _as_added(claim, trained_by)
    ensured = None
    if claim is None and not mechanism and noise_multiplier is delta is None:
        ensured = _as_added(_ensured(released), trained_by)
        delta = None if ensured is None else ensured.delta
    own_noise = _of_own_noise(claim, trained_by)
    used = _used(opened, scenario or of_run, own_noise, given, noise_multiplier, delta)
    patterns = _patterns_of(opened, scenario or of_run)
    names = DeviceNames(opened, show_devices)
    # A claim about more rounds also holds for a run that ended early.
    judged = own_noise if ensured is None else ensured.of_rounds(opened.committed_rounds)
    subject = _Subject(opened, of_run, scenario or of_run, judged, patterns, names)
    try:
        enforced, claimed = _limits(subject)
        audited, exclusions = _audited(subject, used, enforced, claimed)
        findings, corrected = _judged(subject, claim or judged, enforced, audited)
        if ensured is not None:
            stated = {"rounds": ensured.rounds}
            findings = tuple(
                replace(each, claimed=stated.get(each.statement, each.claimed)) for each in findings
            )
            # Figures of a model are at the claim's delta, those of answers at their own.
            claim = None if _releases_more(subject.scenario) else ensured
    except ValueError as error:  # cases without a guarantee
        raise InputError.caused_by(error) from None
    # A claim cannot supply figures for a run without noise.
    known = [] if used.no_guarantee else audited
    mechanisms = _withdrawn(known, subject, findings)
    stopped_by = (opened.run if trained is None else trained.document).get("stopped")
    if stopped_by is not None and subject.scenario is not None:
        recorded = None if trained is None else _recorded_limits(trained, subject.scenario)
        mechanisms = [_stopped(each, subject.scenario, used.delta, recorded) for each in mechanisms]
    # Last, because withdrawn guarantees of a device are withdrawn for a person too.
    persons = Persons.of(patterns, subject.scenario)
    if persons is not None:
        mechanisms = [with_person(each, persons, names, corrected) for each in mechanisms]
    answers = _answers(subject, enforced, mechanisms, persons)
    run, log = subject.run, subject.log
    if trained is None and run is not None and subject.scenario is of_run:
        trained = run.trained
    return Audit(
        trace=opened,
        path=opened.path,
        digest=opened.digest,
        ended="imported" if run is None else run.run["ended"],
        stopped=stopped_by,
        patterns=patterns,
        names=names,
        mechanisms=tuple(mechanisms),
        findings=findings,
        incompleteness="" if log is None else log.incompleteness,
        left_out=() if log is None else _left_out(log, names),
        filtered_rows=0 if log is None else log.filtered_rows,
        violations=_violations(subject),
        persons=persons,
        clients=_clients(trained, mechanisms, bool(answers)),
        no_guarantee=used.no_guarantee,
        answers=answers,
        exclusions=exclusions,
        scenario=subject.scenario,
        claim=claim,
        ensured=(_recorded_claim(released) or {}).get("digest"),
        given_instead=instead,
        corrected=corrected,
        trust=subject.trust,
        rests_on=_assumptions(subject, used, mechanisms, persons),
        classes=() if run is None else tuple(run.run.get("classes", ())),
    )


def _opened(
    given: Trace | ImportedTrace | TrainedRun | str | Path,
    trained: TrainedRun | None,
    scenario: Scenario | None,
) -> tuple[Trace | ImportedTrace, TrainedRun | None, Scenario | None]:
    """Returns the opened trace, the training and its scenario. Raises InputError if the training
    was of another trace or scenario: its figures would be those of noise that it did not have."""
    if not isinstance(given, Trace | ImportedTrace | TrainedRun):
        place = fetched(given)
        given = open_trained(place) if is_trained_run(place) else open_trace(place)
    if isinstance(given, TrainedRun):
        if trained is not None and trained.document != given.document:
            rule = f"is another training than {str(given.path)!r}"
            raise InputError.of("trained", str(trained.path), rule, "leave it out")
        trained, opened, own = opened_training(given)
    elif trained is None:
        return given, None, scenario
    else:
        place = given if isinstance(given, Trace) else given.path
        trained, opened, own = opened_training(trained, place)
    if scenario is not None and scenario.digest != own.digest:
        rule = f"is not that with which {str(trained.path)!r} was trained"
        raise InputError.of("scenario", scenario.name, rule, "leave it out")
    return opened, trained, scenario or own


@dataclass(frozen=True, slots=True)
class _Subject:
    """A trace to be audited, with its scenarios and the claim about it."""

    trace: Trace | ImportedTrace
    """The trace."""
    of_run: Scenario | None
    """Scenario that was run; None for a log."""
    scenario: Scenario | None
    """Scenario of a training on the trace, or else the one that was run; None for a log."""
    claim: Claim | None
    """The claim, or None."""
    patterns: Patterns
    """Rounds of every device."""
    names: DeviceNames
    """Names by which devices are shown."""

    @property
    def checked(self) -> Subject:
        """The trace, for statements about participation."""
        return Subject(self.trace, self.patterns, self.names.of)

    @property
    def run(self) -> Trace | None:
        """The trace, if it is that of a run."""
        return self.trace if isinstance(self.trace, Trace) else None

    @property
    def log(self) -> ImportedTrace | None:
        """The trace, if it is that of a log."""
        return self.trace if isinstance(self.trace, ImportedTrace) else None

    @property
    def trust(self) -> AnyTrust | None:
        """Trust of the run, or that which the claim states about a log; else None."""
        if self.scenario is not None:
            return self.scenario.privacy.trust
        return None if self.claim is None else self.claim.trust


@dataclass(frozen=True, slots=True)
class _Used:
    """Mechanisms, noise and delta of an audit."""

    strategies: tuple[Strategy, ...]
    """Audited mechanisms; the run's own or claimed one first, if there is one."""
    own: Strategy | None
    """Mechanism of the run or of the claim; None for a log, and for a run without noise."""
    noise_multiplier: float | None
    """z; None if neither the trace nor the caller states the noise."""
    delta: float
    """delta of epsilon."""
    count_noise: float | None = None
    """Count noise of the run; None unless its own mechanism and noise are used."""
    no_guarantee: str | None = None
    """Reason why a model has no privacy figures: the run added no noise, or trained none; else
    None."""

    def server_noise_of(self, strategy: Strategy) -> ServerNoise | None:
        """Returns the server's noise under one of the strategies, or None if unknown."""
        if self.noise_multiplier is None:
            return None
        return ServerNoise(
            self.noise_multiplier, self.count_noise if strategy == self.own else None
        )


def _ensured(run: Trace | ImportedTrace | TrainedRun | None) -> Claim | None:
    """Returns the claim that a run or a training had to ensure; None without one."""
    kept = _recorded_claim(run)
    if run is None or kept is None:
        return None
    return claim_of_document(kept, str(run.path), run.path)


def _recorded_claim(run: Trace | ImportedTrace | TrainedRun | None) -> Mapping[str, Any] | None:
    """Returns the record of that claim."""
    if run is None:
        return None
    document = run.document if isinstance(run, TrainedRun) else run.run
    return document.get("ensured")


def _given_instead(
    run: Trace | ImportedTrace | TrainedRun | None,
    claim: Claim | None,
    mechanism: Strategy | Sequence[Strategy] | None,
    noise_multiplier: float | None,
    delta: float | None,
) -> tuple[str, ...]:
    """Returns the names of the arguments for which the claim that a run or a training had to ensure
    is not checked."""
    recorded = _recorded_claim(run)
    if recorded is None or (claim is not None and claim.digest == recorded["digest"]):
        return ()
    given = {
        "another claim": claim,
        "mechanism": mechanism or None,
        "noise multiplier": noise_multiplier,
        "delta": delta,
    }
    return tuple(name for name, value in given.items() if value is not None)


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


def _as_added(claim: Claim | None, scenario: Scenario | None) -> Claim | None:
    """Returns a claim whose mechanism has whole coefficients if the run's devices add its noise."""
    if claim is None or scenario is None:
        return claim
    added = scenario.privacy.as_added(claim.mechanism)
    return claim.model_copy(update={"mechanism": added})


def _of_own_noise(claim: Claim | None, scenario: Scenario | None) -> Claim | None:
    """Returns a claim with the mechanism and noise with which a run trained, whatever it claims of
    them: no figure of the run is at another noise."""
    # The privacy table of a run without a model says nothing about a release.
    privacy = scenario.privacy if scenario is not None and scenario.training.enabled else None
    if claim is None or privacy is None or privacy.strategy is None:
        return claim
    own = {"mechanism": privacy.strategy, "noise_multiplier": privacy.noise_multiplier}
    return claim.model_copy(update=own)


def _used(
    trace: Trace | ImportedTrace,
    scenario: Scenario | None,
    claim: Claim | None,
    given: tuple[Strategy, ...],
    noise_multiplier: float | None,
    delta: float | None,
) -> _Used:
    """Returns the mechanisms, noise and delta of the claim, else the given ones, else the run's
    own."""
    if claim is not None:
        _check_claimable(scenario)
        if scenario is None:
            _check_noise_of_log(claim)
        if given or noise_multiplier is not None or delta is not None:
            raise InputError(
                "a claim names its mechanism, noise multiplier and delta: leave them out "
                "beside the claim"
            )
        used = _Used((claim.mechanism,), claim.mechanism, claim.noise_multiplier, claim.delta)
    else:
        used = _used_without_claim(scenario, given, noise_multiplier, delta)
    try:
        if used.noise_multiplier is not None:
            check_noise_multiplier(used.noise_multiplier)
        check_delta(used.delta)
        # A mechanism of fewer rounds cannot have released every committed round.
        for strategy in used.strategies:
            strategy.check_rounds(trace.committed_rounds)
    except ValueError as error:
        raise InputError.caused_by(error) from None
    if scenario is None:
        return used
    used = replace(used, no_guarantee=_why_no_guarantee(scenario, given, noise_multiplier))
    privacy = scenario.privacy
    if (used.own, used.noise_multiplier) != (privacy.strategy, privacy.noise_multiplier):
        return used
    # Counts of short updates belong to the noise of the run; another mechanism or multiplier only
    # concerns sums.
    return replace(used, count_noise=scenario.count_noise)


def _check_claimable(scenario: Scenario | None) -> None:
    """Raises InputError if a run released more than a model, which claims are about."""
    if _releases_more(scenario):
        asks = scenario is not None and scenario.analytics is not None
        what = "a question" if asks else "a private vocabulary"
        raise InputError(
            f"a published claim is about a model only, and this trace has {what}, whose privacy "
            "its own rules limit; audit it without a published claim"
        )


def _check_noise_of_log(claim: Claim) -> None:
    """Raises InputError if devices of a log are claimed to add noise that no theorem covers."""
    if isinstance(claim.trust, DeviceNoiseTable) and not isinstance(claim.mechanism, Identity):
        raise InputError.of(
            "claim.trust.kind",
            claim.trust.kind,
            f"with the mechanism {claim.mechanism.kind} is accounted for in runs only: a log does "
            "not say which coefficients its devices used",
            "claim the mechanism identity, or leave trust out",
        )


def _releases_more(scenario: Scenario | None) -> bool:
    """Whether a run released more than a model."""
    asks = scenario is not None and scenario.analytics is not None
    return asks or vocabulary_cost(scenario) is not None


def _used_without_claim(
    scenario: Scenario | None,
    given: tuple[Strategy, ...],
    noise_multiplier: float | None,
    delta: float | None,
) -> _Used:
    """Returns the given values, and the others from the run. A log has no mechanism of its own, so
    no privacy is computed unless one is given."""
    if scenario is None:
        return _Used(given, None, noise_multiplier, DEFAULT_DELTA if delta is None else delta)
    privacy = scenario.privacy
    own = privacy.strategy
    if own is None and noise_multiplier is not None and not given:
        raise InputError.of(
            "noise_multiplier",
            noise_multiplier,
            "applies to no mechanism, since the run added no noise",
            "name a mechanism",
        )
    if own is not None and noise_multiplier is None:
        noise_multiplier = privacy.noise_multiplier
    strategies = given or (() if own is None else (own,))
    return _Used(strategies, own, noise_multiplier, privacy.delta if delta is None else delta)


def _why_no_guarantee(
    scenario: Scenario, given: tuple[Strategy, ...], noise_multiplier: float | None
) -> str | None:
    # A mechanism that is named is accounted for, as if a model had been trained.
    is_trained = scenario.training.enabled or given or noise_multiplier
    if scenario.analytics is not None and not is_trained:
        return ONLY_ANSWERS
    return NO_GUARANTEE if scenario.privacy.strategy is None and not given else None


def _patterns_of(trace: Trace | ImportedTrace, scenario: Scenario | None) -> Patterns:
    """Returns the rounds of every device. Raises InputError without a participation, without which
    no largest sensitivity exists."""
    patterns = read_patterns(trace)
    if patterns.device_ids.size:
        return patterns
    probability = None if scenario is None else scenario.rounds.sampling_probability
    remedy = "audit a trace in which some did"
    # The privacy of a Poisson sample depends on its probability, not on the devices drawn.
    if probability is not None:
        remedy = (
            "its samples spent privacy all the same: evaluate the mechanism identity at "
            f"sampling={probability:g}"
        )
    raise InputError(
        f"trace {str(trace.path)!r}: no device took part in any of its "
        f"{patterns.committed_rounds:,} rounds, so there is no participation to audit; {remedy}"
    )


def _limits(subject: _Subject) -> tuple[Limits, Limits]:
    """Returns the limits of the rules and of the claim, which no mechanism changes."""
    claim, patterns = subject.claim, subject.patterns
    timer_hours = None if claim is None else claim.timer_hours
    period = None if claim is None else claim.most_per_period
    claimed = None
    # A run has rules of its own.
    if period is not None and subject.log is not None:
        claimed = ClaimedPeriods(period.text, kept_periods(period, subject.checked))
    enforced = enforced_limits(subject.trace, subject.scenario, timer_hours, patterns, claimed)
    if claim is None:
        return enforced, Limits(None, "nothing is claimed")
    if patterns.min_sep == 0:
        return enforced, Limits(None, REPEATED)
    return enforced, claimed_limits(claim, subject.trace)


def _audited(
    subject: _Subject, used: _Used, enforced: Limits, claimed: Limits
) -> tuple[list[MechanismAudit], Exclusions | None]:
    """Returns every mechanism on the trace, with the guarantees by the server's own rules, and the
    devices that a filter excluded."""
    mechanisms = [
        _audit_mechanism(each, subject, used, enforced, claimed) for each in used.strategies
    ]
    # Only simulated runs record sampling and exclusions by the server, which used the run's own
    # mechanism.
    if subject.run is None or subject.of_run is None:
        return mechanisms, None
    exclusions = exclusions_of(subject.run, subject.of_run, subject.patterns)
    of_server = [
        _with_server_rules(each, subject, subject.run, subject.of_run, exclusions, used.delta)
        for each in mechanisms
    ]
    return of_server, exclusions


def _audit_mechanism(
    strategy: Strategy, subject: _Subject, used: _Used, enforced: Limits, claimed: Limits
) -> MechanismAudit:
    patterns, delta = subject.patterns, used.delta
    shows = "the least gap and the most participations that this trace shows"
    shown = Limits(patterns.participation, shows if patterns.participation else REPEATED)
    trace = trace_sensitivity(strategy, patterns)
    of_trace, permitted = _noise_of(strategy, used, subject)
    is_ensured = _is_ensured(claimed, enforced)
    return MechanismAudit(
        strategy=strategy,
        is_own=strategy == used.own,
        noise_multiplier=used.noise_multiplier,
        noise=of_trace,
        permitted=permitted,
        trace=trace,
        binding_device=subject.names.of(trace.device_id),
        observed=observed(trace, patterns, strategy, of_trace, delta),
        # No rule ensures limits that were merely observed.
        observed_limits=of_limits("observed", shown, strategy, of_trace, delta, False),
        enforced=of_limits("enforced", enforced, strategy, permitted, delta, True),
        claimed=of_limits("claimed", claimed, strategy, permitted, delta, is_ensured),
    )


def _noise_of(
    strategy: Strategy, used: _Used, subject: _Subject
) -> tuple[Noise | None, Noise | None]:
    """Returns the least noise of this trace and the least noise that the rules permit."""
    noise = used.server_noise_of(strategy)
    if noise is None:
        return None, None
    if subject.log is None:
        return noises_of(noise, subject.scenario, strategy, subject.trace)
    if not isinstance(subject.trust, DeviceNoiseTable) or not isinstance(strategy, Identity):
        return noise, noise
    of_log = noise_of_log(subject.trust, strategy, noise, subject.patterns)
    return of_log, replace(of_log, round_index=None)


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


def _with_server_rules(
    mechanism: MechanismAudit,
    subject: _Subject,
    trace: Trace,
    scenario: Scenario,
    exclusions: Exclusions | None,
    delta: float,
) -> MechanismAudit:
    """Returns a mechanism with the guarantees of sampling by the server and of its filter,
    unless they do not cover the claimed rounds."""
    strategy, noise, enforced = mechanism.strategy, mechanism.noise, mechanism.enforced
    n = 0 if subject.claim is None else subject.claim.rounds or 0
    turns, is_longer = enforced.participation, n > trace.committed_rounds
    if is_longer and scenario.rounds.uploads is not None:
        # Rules that the trace breaks limit no later round either.
        kept = turns is not None
        turns = limits_of_schedule(scenario, n).participation if kept else MinSep(n, 1, n)
    by_sampling = sampled(trace, scenario, strategy, noise, delta, turns)
    by_filter = filtered(scenario, subject.patterns, exclusions, strategy, noise, delta)
    if is_longer:
        reason = f"it covers the recorded rounds, and {n:,} are claimed"
        enforced = enforced.withdrawn(reason)
    # A filter charges a participation for all rounds of the run.
    if by_filter is not None and n > scenario.rounds.count:
        reason = f"it covers {scenario.rounds.count:,} rounds, and {n:,} are claimed"
        by_filter = replace(by_filter, may_rest_on=False, reason=reason)
    return replace(mechanism, enforced=enforced, sampled=by_sampling, filtered=by_filter)


def _judged(
    subject: _Subject,
    stated: Claim | None,
    enforced: Limits,
    mechanisms: Sequence[MechanismAudit],
) -> tuple[tuple[Finding, ...], Guarantee | None]:
    """Returns a finding per statement of the claim, and the claim's guarantee with broken
    statements corrected; neither without a claim.

    stated: the claim as it states its noise, which the subject's has of the run.
    """
    expired = _expired(subject)
    if subject.claim is None or stated is None:
        return expired, None
    scenario = subject.scenario
    if _releases_more(scenario) or not mechanisms:
        participation = check_participation(subject.claim, subject.checked)
        spent = () if scenario is None else _spent_on_all(subject.claim, scenario, enforced)
        return (*expired, *participation, *spent), None
    # A claim names one mechanism, and no other is audited then.
    (mechanism,) = mechanisms
    of_trace, permitted = mechanism.observed.event, mechanism.permitted
    assert of_trace is not None
    assert permitted is not None
    findings, corrected = check_claim(
        claim=subject.claim,
        noise=(stated.mechanism, stated.noise_multiplier),
        used=None if subject.scenario is None else subject.scenario.privacy,
        trace=subject.trace,
        patterns=subject.patterns,
        found=mechanism.trace,
        limits=enforced,
        stated=mechanism.claimed,
        of_trace=of_trace,
        permitted=permitted,
        name_of=subject.names.of,
        ensured=[
            replace(each, delta=subject.claim.delta)
            for each in mechanism.of_server
            if each.may_rest_on
        ],
    )
    return (*findings, *expired), corrected


def _spent_on_all(claim: Claim, scenario: Scenario, enforced: Limits) -> Iterator[Finding]:
    """Yields the findings on a claimed rho and epsilon of a run that released more than a model."""
    events = [each.event for each in bounds_under(scenario, enforced)]
    for key, privacy_of in (
        ("rho", rho_of),
        ("epsilon", lambda event: epsilon_of(event, claim.delta).epsilon),
    ):
        if (claimed := getattr(claim, key)) is None:
            continue
        found = None
        # Not every figure has a theorem.
        with contextlib.suppress(EventRefused):
            known = [privacy_of(event) for event in events if event is not None]
            found = max(known) if len(known) == len(events) else None
        is_proven = found is not None and found <= claimed * (1 + ROUNDED[key])
        yield Finding(
            statement=key,
            verdict=Verdict.HOLDS if is_proven else Verdict.UNPROVEN,
            claimed=claimed,
            found=found,
            explanation="it follows from the rules, for all that the run released",
        )


def _expired(subject: _Subject) -> tuple[Finding, ...]:
    """Returns the finding that rounds drew uploads that had expired by the rules; empty if none
    did, or if the claim states an age itself."""
    uploads = None if subject.of_run is None else subject.of_run.rounds.uploads
    is_claimed = subject.claim is not None and subject.claim.keep_days is not None
    if uploads is None or uploads.keep_days is None or is_claimed:
        return ()
    found = KeepDaysStatement().check(uploads.keep_days, subject.checked)
    return () if found.verdict is Verdict.HOLDS else (found,)


def _answers(
    subject: _Subject,
    enforced: Limits,
    mechanisms: Sequence[MechanismAudit],
    persons: Persons | None,
) -> tuple[AnswerPrivacy, ...] | None:
    """Returns the privacy of a question's answers and of a private vocabulary; None without
    either."""
    answers, scenario = None, subject.scenario
    model = mechanisms[0].observed_and_enforced if mechanisms else None
    of_persons = persons_with_model(persons, mechanisms)
    if scenario is not None and scenario.analytics is not None:
        most = subject.patterns.max_participations
        answers = privacy_of_answers(scenario, most, enforced, model, of_persons)
    cost = vocabulary_cost(scenario)
    if cost is None or model is None:
        return answers
    # Rows of a question include the vocabulary wherever they include the model.
    of_vocabulary = privacy_of_vocabulary(cost, model, of_persons)
    if answers is None:
        return of_vocabulary
    return (*answers, *(each for each in of_vocabulary if each.basis == "vocabulary"))


def persons_with_model(
    persons: Persons | None, mechanisms: Sequence[MechanismAudit]
) -> OfPersons | None:
    """Returns the persons of a trace with their guarantees under the first mechanism; None if
    owners are unknown."""
    if persons is None:
        return None
    person = mechanisms[0].person if mechanisms else None
    if person is None:
        return OfPersons(persons, None)
    return OfPersons(persons, (person.named("observed"), person.named("enforced")))


def _withdrawn(
    mechanisms: list[MechanismAudit], subject: _Subject, findings: Sequence[Finding]
) -> list[MechanismAudit]:
    """Returns mechanisms without the figures that the trace, the log or the noise does not
    support."""
    broken = [
        each.statement
        for each in findings
        if each.verdict is Verdict.BROKEN and each.statement not in PRIVACY_STATEMENTS
    ]
    if broken:
        mechanisms = [refuted(each, broken) for each in mechanisms]
    if subject.log is not None:
        return [conditional(each, subject.log) for each in mechanisms]
    return [
        not_of_this_run(each)
        if broken_noise(findings, is_own=was_used(each, subject.scenario))
        else each
        for each in mechanisms
    ]


def _stopped(
    mechanism: MechanismAudit, scenario: Scenario, delta: float, recorded: Limits | None
) -> MechanismAudit:
    strategy, noise = mechanism.strategy, mechanism.permitted
    return stopped(mechanism, planned_guarantee(scenario, strategy, noise, delta, recorded))


def _recorded_limits(trained: TrainedRun, scenario: Scenario) -> Limits | None:
    """Returns the limits of the rules over all recorded rounds of a training that stopped; None if
    these were not all recorded before."""
    if "given" not in trained.document:
        return None
    if (trace := given_trace_of(trained)) is None:
        place = trained.document["given"]["trace"]
        return Limits(None, f"the trace of all its recorded rounds is not at {place!r} as it was")
    return enforced_limits(trace, scenario, None, read_patterns(trace))


def _clients(
    trained: TrainedRun | None, mechanisms: Sequence[MechanismAudit], has_answers: bool
) -> Clients | None:
    """Returns the people whose data trained the model; None if each is on one device."""
    people = trained.document.get("people") if trained is not None and mechanisms else None
    by_rules: list[Guarantee] = []
    # A group of devices has no figure for releases beside the model.
    if mechanisms and not has_answers:
        found = (mechanisms[0].enforced, mechanisms[0].filtered)
        by_rules = [each for each in found if each is not None]
    return Clients.of(people or {}, by_rules)


def _violations(subject: _Subject) -> Violations | None:
    if subject.run is None or subject.scenario is None:
        return None
    return violations_of(subject.run, subject.scenario)


def _left_out(log: ImportedTrace, names: DeviceNames) -> tuple[LeftOut, ...]:
    return tuple(replace(each, example=names.in_text(each.example)) for each in log.left_out)


def _assumptions(
    subject: _Subject, used: _Used, mechanisms: Sequence[MechanismAudit], persons: Persons | None
) -> tuple[Assumption, ...]:
    """Returns the assumptions behind the figures: of answers, of the model, and of persons."""
    of_model: tuple[Assumption, ...] = ()
    if used.no_guarantee is None:
        of_model = assumptions_of(subject.scenario, subject.log, subject.trust)
        of_model += _of_guarantees(subject.scenario, mechanisms)
    elif used.no_guarantee == NO_GUARANTEE:
        of_model = WITHOUT_NOISE
    return (
        *assumptions_of_answers(subject.scenario),
        *(each._replace(text=subject.names.in_text(each.text)) for each in of_model),
        *_about_observers(subject, used, mechanisms),
        *other_tasks(subject.trace),
        *(() if persons is None else (persons.assumption,)),
    )


def _about_observers(
    subject: _Subject, used: _Used, mechanisms: Sequence[MechanismAudit]
) -> list[Assumption]:
    """Returns the assumptions about the observers of a run, or of a log with a claimed trust."""
    trust, scenario = subject.trust, subject.scenario
    if trust is None:
        return []
    noise = mechanisms[0].noise if mechanisms else None
    kinds = [] if used.no_guarantee == ONLY_ANSWERS else [trust_of_model(trust, noise)]
    if scenario is not None and scenario.analytics is not None:
        kinds += [each.kind for each in scenario.analytics.trust]
    if (cost := vocabulary_cost(scenario)) is not None:
        kinds.append(cost.trust)
    texts = assumed_about(kinds, malicious_share(trust))
    return [Assumption(each, ASSUMED) for each in texts]


def _of_guarantees(
    scenario: Scenario | None, mechanisms: Sequence[MechanismAudit]
) -> tuple[Assumption, ...]:
    """Returns the assumptions behind the limits and the noise of mechanisms."""
    rules = "the claim" if scenario is None else "the scenario's rules"
    of_limits = [
        Assumption(f"{name}: {text}", source)
        # Limits are the same for all mechanisms, so any mechanism's will do.
        for first in mechanisms[:1]
        for name, guarantee, source in (
            ("Enforced", first.enforced, f"{rules}, and the recorded times of the rounds"),
            ("Sampled", first.sampled, ASSUMED),
            ("Filtered", first.filtered, ASSUMED),
            ("Planned", first.planned, f"{rules}, and the recorded times of the rounds"),
        )
        if guarantee is not None
        for text in guarantee.assumptions
    ]
    of_noise = [
        Assumption(noise.sentence, source)
        for each in mechanisms
        for noise, source in (
            (each.noise, "counted in the trace"),
            (each.permitted, rules),
        )
        if isinstance(noise, DeviceNoise)
    ]
    return (*of_limits, *of_noise)
