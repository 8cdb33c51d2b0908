"""Checks a claim against a trace, statement by statement."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fedray.audit.claimed import claimed_limits, joined
from fedray.audit.claims import STATEMENTS, Claim
from fedray.audit.distribution import frontier_of
from fedray.audit.findings import SPENT_STATEMENTS, Finding, Verdict
from fedray.audit.guarantees import REPEATED, Guarantee, Limits, of_limits
from fedray.audit.noise import Noise, ServerNoise
from fedray.audit.participation import Patterns
from fedray.audit.sensitivity import TraceSensitivity
from fedray.audit.statements.noise import check_noise, check_trust
from fedray.audit.statements.sampling import check_sampling
from fedray.audit.statements.spent import SpentStatement
from fedray.audit.statements.statement import Subject
from fedray.base.rounding import up
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.draws import FixedSizeDraws, PoissonDraws
from fedray.mechanisms.accounting.events import Event, FixedSizeSampled, Gaussian, Repeated
from fedray.mechanisms.accounting.sampled import PoissonSampling, sampled_release
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.mechanisms.registry import Identity
from fedray.mechanisms.strategy import Strategy
from fedray.scenario.privacy import NO_GUARANTEE, Privacy
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace

LEFT_OUT = "rows of the log that were left out may be participations beyond every limit"
"""Reason why no epsilon may be published although the other rows have one."""


def check_claim(
    *,
    claim: Claim,
    noise: tuple[Strategy, float],
    used: Privacy | None,
    trace: Trace | ImportedTrace,
    patterns: Patterns,
    found: TraceSensitivity,
    limits: Limits,
    stated: Guarantee,
    of_trace: Event,
    permitted: Noise,
    name_of: Callable[[int], str],
    ensured: Sequence[Guarantee] = (),
) -> tuple[tuple[Finding, ...], Guarantee]:
    """Returns a finding for each statement of a claim, and the guarantee of the claim with broken
    statements corrected.

    A claimed rho or epsilon holds if it follows from the enforced limits together with the claimed
    limits that are not broken. So a claim that states less about participation never holds more
    easily.

    Args:
        claim: the claim; for a run, with the mechanism and noise that the run had.
        noise: claimed mechanism and noise multiplier.
        used: privacy table of the run; None for a log.
        trace: the trace.
        patterns: rounds of every device.
        found: sensitivity of the claim's mechanism on this trace.
        limits: enforced limits.
        stated: guarantee of the claimed limits, whether the trace keeps them or not.
        of_trace: release of this trace, at the claim's noise multiplier.
        permitted: least noise that the rules permit, at the claim's multiplier.
        name_of: function that returns the shown name of a device id.
        ensured: guarantees of the server's sampling or filter, which may support rho and epsilon.

    Raises:
        ValueError: the claim is impossible.
    """
    subject = Subject(trace, patterns, name_of)
    participation = check_participation(claim, subject)
    incomplete = trace.incompleteness if isinstance(trace, ImportedTrace) else ""
    if incomplete:
        # A row that was left out may be a participation, so only a breach is certain.
        participation = [_not_refuted(each, incomplete) for each in participation]
    # The draws of a simulated server are known, so a claim adds nothing.
    amplified = _amplified(claim, trace, permitted) if isinstance(trace, ImportedTrace) else None
    claimed = [stated] if amplified is None else [stated, amplified]
    if claim.sampling is not None:
        drawn = check_sampling(claim.sampling, patterns)
        if drawn.verdict is not Verdict.HOLDS:
            amplified = None
        participation.append(_not_refuted(drawn, incomplete) if incomplete else drawn)
    support, corrected = _supports(claim, trace, patterns, limits, participation, permitted)

    shows = f"sensitivity {up(found.value, 6)}" + ("" if found.is_exact else " at most")
    evidence = (subject.evidence(found.device_id, found.rounds, shows),)
    spent = []
    for key, privacy_of in (
        ("rho", rho_of),
        ("epsilon", lambda event: epsilon_of(event, claim.delta).epsilon),
    ):
        if (value := getattr(claim, key)) is None:
            continue
        if used is not None and used.strategy is None:
            spent.append(
                Finding(
                    statement=key, verdict=Verdict.BROKEN, claimed=value, explanation=NO_GUARANTEE
                )
            )
            continue
        statement = SpentStatement(key, value, privacy_of, of_trace, permitted)
        finding = statement.check(found, claimed, support, corrected, evidence)
        for guarantee in (*ensured, amplified):
            finding = statement.by_server(finding, guarantee)
        spent.append(_not_refuted(finding, incomplete) if incomplete else finding)
    noise_findings = [
        *check_noise(*noise, used),
        *check_trust(claim.trust, used),
    ]
    # A statement must never recommend an observed figure, which no rule ensures.
    findings = tuple(
        replace(each, should_say="") if each.verdict is Verdict.HOLDS else each
        for each in (*noise_findings, *participation, *spent)
    )
    if incomplete:
        # The rows that were left out may break a statement by more than the others do.
        is_broken = any(each.verdict is Verdict.BROKEN for each in participation)
        if is_broken or stated.sensitivity is None:
            corrected = replace(corrected, sensitivity=None, event=None, reason=LEFT_OUT)
    elif amplified is not None:
        corrected = min(corrected, amplified, key=lambda each: each.epsilon or math.inf)
    return findings, corrected


def check_participation(claim: Claim, subject: Subject) -> list[Finding]:
    """Returns a finding for each statement of a claim about participation."""
    return [
        each.check(value, subject)
        for each in STATEMENTS
        if (value := getattr(claim, each.key)) is not None
    ]


def _supports(
    claim: Claim,
    trace: Trace | ImportedTrace,
    patterns: Patterns,
    enforced: Limits,
    findings: Sequence[Finding],
    permitted: Noise,
) -> tuple[Guarantee, Guarantee]:
    """Returns the guarantees of the claim without its broken statements, and with these
    corrected."""

    def supported(limits: Limits, name: str = "claimed") -> Guarantee:
        return of_limits(name, limits, claim.mechanism, permitted, claim.delta, False)

    # No (b, k) covers a device that contributed twice to a round.
    if patterns.min_sep == 0:
        nothing = supported(Limits(None, REPEATED))
        return nothing, nothing
    broken = [
        each for each in findings if each.verdict is Verdict.BROKEN and each.statement != "sampling"
    ]
    # A broken statement must not support another.
    without = claim.model_copy(update={each.statement: None for each in broken})
    support = supported(_limits(without, trace, enforced))
    if not broken:
        return support, support
    found: dict[str, Any] = {each.statement: each.found for each in broken}
    if "frontier" in found:
        found["frontier"] = frontier_of(patterns)
    put_right = claim.model_copy(update=found)
    keys = " and ".join(each.statement for each in broken)
    limits = replace(
        _limits(put_right, trace, enforced), reason=f"the claim, with {keys} corrected"
    )
    return support, supported(limits, "corrected")


def _amplified(claim: Claim, trace: Trace | ImportedTrace, noise: Noise) -> Guarantee | None:
    """Returns the guarantee of claimed random samples; None without, or if there is no theorem for
    the mechanism."""
    sampling, strategy = claim.sampling, claim.mechanism
    # Draws of a fixed size are proven for independent noise only.
    if not isinstance(noise, ServerNoise) or not isinstance(strategy, Identity):
        return None
    rounds = claim.rounds or trace.committed_rounds
    match sampling:
        case PoissonDraws():
            drawn = PoissonSampling(rounds, sampling.probability)
            event = sampled_release(strategy, drawn, noise.multiplier)
            reason = f"each device is drawn with probability {sampling.probability:g}, "
        case FixedSizeDraws(size=size, devices=devices) if size < devices:
            step = Gaussian(noise_multiplier=noise.multiplier)
            one = FixedSizeSampled(devices=devices, size=size, event=step)
            event = Repeated(event=one, count=rounds)
            reason = f"each round draws {size:,} of {devices:,} devices without replacement, "
        case _:
            return None
    reason += "independently and in secret"
    return Guarantee("sampled", None, None, event, claim.delta, False, reason)


def _limits(claim: Claim, trace: Trace | ImportedTrace, enforced: Limits) -> Limits:
    """Returns claimed and enforced limits together; without any, a device may take part in every
    round."""
    limits = joined(enforced, claimed_limits(claim, trace), trace.committed_rounds)
    rules, participation = enforced.participation, limits.participation
    assert participation is not None
    # The rules of a simulated run are known, so a claim beyond them is not a limit.
    if isinstance(trace, Trace) and rules is not None and participation.rounds == rules.rounds:
        return enforced
    return limits


def _not_refuted(finding: Finding, incomplete: str) -> Finding:
    """Returns the finding for an incomplete log, which can break a statement but not support it,
    nor say what would hold."""
    if finding.verdict is Verdict.BROKEN:
        return replace(finding, should_say="")
    # The rows that were left out may belong to the device that spent most.
    found = None if finding.statement in SPENT_STATEMENTS else finding.found
    return replace(
        finding, verdict=Verdict.UNCHECKED, found=found, explanation=incomplete, should_say=""
    )
