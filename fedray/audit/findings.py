"""Findings: each statement of a claim, held against the trace, with the devices and rounds that break it or bind it."""

import math
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from fedray.audit.claims import Claim
from fedray.audit.participation import Patterns
from fedray.audit.sensitivity import TraceSensitivity
from fedray.messages import Outcome
from fedray.scenario import Privacy
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace
from mechanisms.accounting.pld import gaussian_epsilon
from mechanisms.accounting.zcdp import gaussian_rho
from mechanisms.participation import MinSep
from mechanisms.strategy import Sensitivity, Strategy

MOST_EVIDENCE = 10
ROUNDED = {"rho": 1e-9, "epsilon": 1e-6}
"""Relative: what floats, and the discretisation of epsilon (which rounds up), are off by; claims rounded down are broken."""


class Verdict(StrEnum):
    """What the trace says of a statement."""

    HOLDS = "holds"
    BROKEN = "broken"
    UNPROVEN = "unproven"
    """Only an upper bound of what happened is known, and it is above the claim."""
    UNCHECKED = "unchecked"
    """The trace does not have what it takes."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A device, the rounds in question, and what they show."""

    device: str
    rounds: tuple[int, ...]
    shows: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One statement of the claim. found: the true figure. should_say: what the claim would have had to say.

    broken_by: how many there are that break it (pairs, devices); evidence has the worst, or the binding one where it holds.
    """

    statement: str
    verdict: Verdict
    claimed: float | None
    found: float | None
    should_say: str
    explanation: str
    broken_by: int = 0
    evidence: tuple[Evidence, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As in `fedray audit --claim --json`."""
        return {**asdict(self), "verdict": str(self.verdict), "evidence": [asdict(each) for each in self.evidence]}


def claimed_sensitivity(claim: Claim, rounds: int) -> Sensitivity | None:
    """What follows from the claim's own words: its mechanism under its own (rounds, min-sep, max participations).

    None unless the claim names a min-sep and max participations. Raises ValueError for impossible ones.
    """
    if claim.min_sep is None or claim.max_participations is None:
        return None
    n = claim.rounds or rounds
    return claim.mechanism.schema_sensitivity(MinSep(n, claim.min_sep, min(claim.max_participations, -(-n // claim.min_sep))))


def check_claim(
    claim: Claim,
    used: Privacy | None,
    trace: Trace | ImportedTrace,
    patterns: Patterns,
    found: TraceSensitivity,
) -> tuple[Finding, ...]:
    """A finding for everything that is claimed. used: what was run, None for a log. Raises ValueError for impossible claims."""
    findings = _check_noise(claim, used)
    if claim.rounds is not None:
        findings.append(_check_rounds(claim.rounds, patterns))
    if claim.min_sep is not None:
        findings.append(_check_min_sep(claim.min_sep, trace, patterns))
    if claim.max_participations is not None:
        findings.append(_check_max_participations(claim.max_participations, trace, patterns))
    if claim.timer_hours is not None:
        findings.append(_check_timer(claim.timer_hours, trace, patterns))
    evidence = (
        Evidence(
            trace.name_of(found.device_id), found.rounds, f"sensitivity {found.value:.6f}" + ("" if found.is_exact else " at most")
        ),
    )
    own = claimed_sensitivity(claim, patterns.committed_rounds)
    for what, claimed, spent in (
        ("rho", claim.rho, lambda s: gaussian_rho(s, claim.noise_multiplier)),
        ("epsilon", claim.epsilon, lambda s: gaussian_epsilon(s, claim.noise_multiplier, claim.delta)),
    ):
        if claimed is None:
            continue
        findings.append(_check_spent(what, claimed, spent(found.value), found.is_exact, evidence))
        if own is not None:
            findings.append(_check_arithmetic(what, claimed, spent(own.value), own))
    return tuple(findings)


def _check_noise(claim: Claim, used: Privacy | None) -> list[Finding]:
    """Whether noise was added as is claimed; a log does not say."""
    z = claim.noise_multiplier
    if used is None:
        text = "an imported log does not say how noise was added"
        return [
            Finding("mechanism", Verdict.UNCHECKED, None, None, "nothing can be said", text),
            Finding("noise_multiplier", Verdict.UNCHECKED, z, None, "nothing can be said", text),
        ]
    is_same = _without_file(claim.mechanism) == _without_file(used.mechanism)
    text = (
        f"the run's mechanism is the {used.mechanism.kind} that is claimed"
        if is_same
        else f"the run used another: {used.mechanism.kind}"
    )
    holds = used.noise_multiplier >= z
    enough = "the run added at least as much noise" if holds else "the run added less noise than is claimed"
    return [
        Finding("mechanism", _verdict(is_same), None, None, f"mechanism: {used.mechanism.kind}, as in the scenario", text),
        Finding(
            "noise_multiplier", _verdict(holds), z, used.noise_multiplier, f"noise_multiplier = {used.noise_multiplier:g}", enough
        ),
    ]


def _without_file(mechanism: Strategy) -> dict[str, Any]:
    """A mechanism's parameters; of a matrix its digest, wherever its file is."""
    return {key: value for key, value in mechanism.model_dump(mode="json").items() if key != "file"}


def _check_rounds(claimed: int, patterns: Patterns) -> Finding:
    n = patterns.committed_rounds
    holds = n <= claimed
    text = "no more rounds were released than claimed" if holds else f"{n - claimed:,} more rounds were released than claimed"
    return Finding("rounds", _verdict(holds), claimed, n, f"rounds = {n}", text, max(0, n - claimed))


def _check_min_sep(claimed: int, trace: Trace | ImportedTrace, patterns: Patterns) -> Finding:
    gaps, after = patterns.gaps_and_places
    b = patterns.min_sep
    broken = int((gaps < claimed).sum())
    order = np.argsort(gaps, kind="stable")[: MOST_EVIDENCE if broken else 1]
    evidence = []
    for place in order.tolist():
        if broken and gaps[place] >= claimed:
            break
        row = int(after[place])
        device = int(patterns.device_ids[np.searchsorted(patterns.starts, row, side="right") - 1])
        pair = int(patterns.rounds[row - 1]), int(patterns.rounds[row])
        evidence.append(Evidence(trace.name_of(device), pair, f"{int(gaps[place])} rounds apart"))
    text = (
        f"{broken:,} of {gaps.size:,} pairs of consecutive participations are closer than claimed"
        if broken
        else "every two participations of a device are at least as far apart as claimed"
    )
    return Finding("min_sep", _verdict(not broken), claimed, b, f"min_sep = {b}", text, broken, tuple(evidence))


def _check_max_participations(claimed: int, trace: Trace | ImportedTrace, patterns: Patterns) -> Finding:
    k, broken = patterns.max_participations, int((patterns.counts > claimed).sum())
    most = np.argsort(-patterns.counts, kind="stable")[: MOST_EVIDENCE if broken else 1]
    starts = patterns.starts
    evidence = [
        Evidence(
            trace.name_of(int(patterns.device_ids[place])),
            tuple(patterns.rounds[starts[place] : starts[place] + patterns.counts[place]].tolist()),
            f"{int(patterns.counts[place])} participations",
        )
        for place in most.tolist()
        if not broken or patterns.counts[place] > claimed
    ]
    text = f"{broken:,} devices took part more often" if broken else "no device took part more often"
    return Finding(
        "max_participations", _verdict(not broken), claimed, k, f"max_participations = {k}", text, broken, tuple(evidence)
    )


def _check_timer(claimed: float, trace: Trace | ImportedTrace, patterns: Patterns) -> Finding:
    """Between a device's accepted report and the check-in of its next participation."""
    if isinstance(trace, ImportedTrace):
        text = "an imported log has rounds but no times"
        return Finding("timer_hours", Verdict.UNCHECKED, claimed, None, "nothing can be said", text)
    broken, worst = 0, []
    least = math.inf
    for part in range(len(trace.run["parts"])):
        columns = trace.columns(part)
        rows = np.flatnonzero((columns["outcome"] == Outcome.ACCEPTED) & (columns["round"] < patterns.committed_rounds))
        devices, rounds = columns["device_id"][rows], columns["round"][rows]
        waits = columns["checkin_time"][rows][1:] - columns["report_time"][rows][:-1]
        waits[devices[1:] != devices[:-1]] = np.inf
        if not waits.size:
            continue
        least = min(least, float(waits.min()))
        broken += int((waits < 3600.0 * claimed).sum())
        for place in np.argsort(waits, kind="stable")[:MOST_EVIDENCE].tolist():
            if np.isfinite(waits[place]):
                worst.append((float(waits[place]), int(devices[place]), int(rounds[place]), int(rounds[place + 1])))
    worst.sort()
    chosen = [each for each in worst[:MOST_EVIDENCE] if each[0] < 3600.0 * claimed] or worst[:1]
    evidence = [Evidence(trace.name_of(device), (a, b), f"{wait / 3600.0:.4f} hours apart") for wait, device, a, b in chosen]
    text = f"{broken:,} pairs of participations are closer in time" if broken else "no device took part again sooner"
    if math.isinf(least):
        return Finding("timer_hours", Verdict.HOLDS, claimed, None, "any timer", "no device took part twice")
    hours = least / 3600.0
    found = math.floor(hours * 1e4) / 1e4
    return Finding(
        "timer_hours", _verdict(not broken), claimed, hours, f"timer_hours = {_shown(found)}", text, broken, tuple(evidence)
    )


def _check_spent(what: str, claimed: float, found: float, is_exact: bool, evidence: tuple[Evidence, ...]) -> Finding:
    if found <= claimed * (1 + ROUNDED[what]):
        verdict, text = Verdict.HOLDS, "the devices of this trace spent no more" + ("" if is_exact else " (by an upper bound)")
    elif is_exact:
        verdict, text = Verdict.BROKEN, f"a device of this trace spent {100 * (found / claimed - 1):.2f} % more than claimed"
    else:
        verdict, text = Verdict.UNPROVEN, "what was spent is known by an upper bound only, and that is above the claim"
    return Finding(what, verdict, claimed, found, f"{what} = {_rounded_up(found)}", text, 0, evidence)


def _check_arithmetic(what: str, claimed: float, follows: float, sensitivity: Sensitivity) -> Finding:
    """Whether the claim follows from its own mechanism, min-sep and participations, whatever happened."""
    kind = "exact" if sensitivity.is_exact else "an upper bound"
    if follows <= claimed * (1 + ROUNDED[what]):
        verdict, text = Verdict.HOLDS, "it follows from the claimed min-sep and participations"
    elif sensitivity.is_exact:
        verdict, text = Verdict.BROKEN, f"the claimed min-sep and participations give {100 * (follows / claimed - 1):.2f} % more"
    else:
        verdict, text = Verdict.UNPROVEN, "of the claimed min-sep and participations only an upper bound is known, above the claim"
    text += f" (sensitivity {sensitivity.value:.6f}, {kind}: {sensitivity.theorem})"
    return Finding(f"{what} from its own min_sep", verdict, claimed, follows, f"{what} = {_rounded_up(follows)}", text)


def _rounded_up(value: float) -> str:
    return _shown(math.ceil(value * 1e4) / 1e4)


def _shown(value: float) -> str:
    """Four decimals at most, and nothing rounded before them."""
    return f"{value:.4f}".rstrip("0").rstrip(".")


def _verdict(holds: bool) -> Verdict:
    return Verdict.HOLDS if holds else Verdict.BROKEN
