"""The claims `mechanism`, `noise_multiplier` and `trust`: the run added the claimed noise, where it
is claimed."""

from fedray.audit.findings import Finding, Verdict, verdict_of
from fedray.mechanisms.strategy import Strategy
from fedray.scenario.privacy import NO_GUARANTEE, Privacy
from fedray.scenario.trust import AnyTrust, DevicesTrust

UNRECORDED = "an imported log does not say how noise was added"


def check_noise(claimed: Strategy, noise_multiplier: float, used: Privacy | None) -> list[Finding]:
    """Returns the findings on the mechanism and on the noise multiplier.

    Args:
        claimed: claimed mechanism.
        noise_multiplier: claimed noise multiplier.
        used: privacy table of the run; None for a log, which does not record it.
    """
    # Keys, claimed values, and the values of a run without noise.
    stated = (("mechanism", claimed.kind, "none"), ("noise_multiplier", noise_multiplier, 0.0))
    if used is None:
        return [
            Finding(
                statement=name, verdict=Verdict.UNCHECKED, claimed=value, explanation=UNRECORDED
            )
            for name, value, _ in stated
        ]
    own = used.strategy
    if own is None:
        return [
            Finding(
                statement=name,
                verdict=Verdict.BROKEN,
                claimed=value,
                found=none,
                explanation=NO_GUARANTEE,
            )
            for name, value, none in stated
        ]
    is_same = own.kind == claimed.kind and own.parameters == claimed.parameters
    if is_same:
        text = f"the run's mechanism is the {own.kind} that is claimed"
    elif own.kind == claimed.kind:
        text = f"the run's {own.kind} has other parameters than the one that is claimed"
    else:
        text = f"the run used the mechanism {own.kind}"
    advised = f"mechanism: the {own.kind} of the scenario"
    mechanism = Finding(
        statement="mechanism",
        verdict=verdict_of(is_same),
        claimed=claimed.kind,
        found=own.kind,
        should_say=advised,
        explanation=text,
    )

    # More noise than claimed supports the claim: epsilon is only smaller.
    z = used.noise_multiplier
    is_enough = z >= noise_multiplier
    text = "the run added at least as much noise"
    if not is_enough:
        text = "the run added less noise than is claimed"
    if isinstance(used.trust, DevicesTrust):
        text += ", in a round of report_goal devices; one of fewer has less, as rho and epsilon say"
    verdict, advised = verdict_of(is_enough), f"noise_multiplier = {z!r}"
    return [
        mechanism,
        Finding(
            statement="noise_multiplier",
            verdict=verdict,
            claimed=noise_multiplier,
            found=z,
            should_say=advised,
            explanation=text,
        ),
    ]


def check_trust(claimed: AnyTrust | None, used: Privacy | None) -> list[Finding]:
    """Returns the finding on a claimed trust; empty without.

    Args:
        claimed: claimed trust.
        used: privacy table of the run; None for a log, which does not record it.
    """
    if claimed is None:
        return []
    if used is None:
        verdict, text = Verdict.UNCHECKED, UNRECORDED
        return [Finding(statement="trust", verdict=verdict, claimed=claimed.kind, explanation=text)]
    own = used.trust
    text = "it is that of the run"
    if own.kind != claimed.kind:
        text = f"the run has the trust {own.kind}"
    elif own != claimed:
        text = f"the run has the trust {own.kind} with other keys"
    return [
        Finding(
            statement="trust",
            verdict=verdict_of(own == claimed),
            claimed=claimed.kind,
            found=own.kind,
            should_say="trust: that of the scenario",
            explanation=text,
        )
    ]
