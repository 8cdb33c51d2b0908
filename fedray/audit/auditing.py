"""Auditing a trace: from its directory, a mechanism or a claim, to an `Audit`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedray.audit.assumptions import ASSUMED, WITHOUT_NOISE, Assumption, assumptions_of, other_tasks
from fedray.audit.audit import Audit
from fedray.audit.check import check_claim
from fedray.audit.claimed import claimed_limits
from fedray.audit.claims import Claim
from fedray.audit.filtered import Exclusions, exclusions_of, filtered
from fedray.audit.findings import PRIVACY_STATEMENTS, Finding, Verdict, broken_noise
from fedray.audit.guarantees import (
    REPEATED,
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
    with_person,
)
from fedray.audit.names import DeviceNames
from fedray.audit.noise import DeviceNoise, Noise, ServerNoise, observed_noise, permitted_noise
from fedray.audit.participation import Patterns, read_patterns
from fedray.audit.persons import Clients, Persons
from fedray.audit.questions import (
    ONLY_ANSWERS,
    assumptions_of_answers,
    privacy_of_answers,
    privacy_of_vocabulary,
    vocabulary_cost,
)
from fedray.audit.rules import violations_of
from fedray.audit.sampled import sampled
from fedray.audit.sensitivity import trace_sensitivity
from fedray.base.errors import InputError, ScenarioError, TraceCorrupt
from fedray.mechanisms.accounting.limits import check_delta, check_noise_multiplier
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import Identity
from fedray.mechanisms.strategy import Strategy
from fedray.scenario import Scenario
from fedray.scenario.privacy import NO_GUARANTEE
from fedray.trace.files import check_scenario_digest
from fedray.trace.imported import ImportedTrace, open_trace
from fedray.trace.reader import Trace
from fedray.trace.trained import TrainedRun

DEFAULT_DELTA = 1e-10
"""Delta for logs, unless another is given."""


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
        mechanisms = [refuted(each, broken) for each in mechanisms]
    if imported is not None:
        mechanisms = [conditional(each, imported) for each in mechanisms]
    elif broken_noise(findings):
        mechanisms = [not_of_this_run(each) for each in mechanisms]
    # Last, because withdrawn guarantees of a device are withdrawn for a person too.
    persons = Persons.of(patterns, scenario)
    if persons is not None:
        mechanisms = [
            with_person(each, persons, names, corrected, bool(answers)) for each in mechanisms
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
