"""The audit of a trace: participation, exact sensitivities, and the privacy that follows, with what it rests on."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedray.audit.claims import Claim
from fedray.audit.distribution import DevicePrivacy, Frontier, device_sensitivities, frontier
from fedray.audit.findings import Finding, Verdict, check_claim
from fedray.audit.ledger import LedgerEntry, privacy_over_rounds
from fedray.audit.participation import Patterns, read_patterns
from fedray.audit.sensitivity import TraceSensitivity, trace_sensitivity
from fedray.errors import InputError, ScenarioError, TraceCorrupt
from fedray.scenario import Scenario
from fedray.trace.imported import ImportedTrace, LeftOut, open_trace
from fedray.trace.reader import Trace
from mechanisms.accounting import pld
from mechanisms.accounting.pld import check_delta, gaussian_epsilon
from mechanisms.accounting.zcdp import check_noise_multiplier, gaussian_rho
from mechanisms.participation import MinSep
from mechanisms.registry import Identity, Tree
from mechanisms.strategy import Sensitivity, Strategy

DEFAULT_DELTA = 1e-10
"""For logs, unless another is given."""

ASSUMPTIONS = (
    "Unit of privacy: one device and all its updates; adjacency: one device's updates replaced by zeros (zero-out).",
    "Every model after every round is released, and the aggregator that adds the noise is trusted (central model).",
    "Every update was clipped to the clip norm, and the noise is the mechanism's with the stated multiplier.",
    "When devices took part is not protected: the trace's patterns are taken as they happened, and as not depending on the "
    "updates of the device in question. If taking part depends on released models (an app that is used more, or less, because of "
    "them), a guarantee holds for every pattern that was enforced beforehand, by timers and limits, not for the observed one "
    "alone: then state the (b, k) figures of what was enforced.",
    "Tuning of hyperparameters on the same devices, and other runs on them, are not accounted for.",
)


@dataclass(frozen=True, slots=True)
class MechanismAudit:
    """One mechanism on this trace. `is_used` tells the mechanism that is asked about (the run's own, unless
    another was given or claimed) from those shown for comparison.

    trace: exact, or an upper bound, as it says. schema: of the (min-sep, max participations) that the trace obeys, likewise.
    rho, epsilon: from the trace's sensitivity; schema_rho, schema_epsilon: from the schema's.
    """

    name: str
    is_used: bool
    noise_multiplier: float
    trace: TraceSensitivity
    binding_device: str
    schema: Sensitivity
    rho: float
    epsilon: float
    schema_rho: float
    schema_epsilon: float
    delta: float

    def to_json(self) -> dict[str, Any]:
        """As in `fedray audit --json`."""
        return {
            "name": self.name,
            "is_used": self.is_used,
            "noise_multiplier": self.noise_multiplier,
            "sensitivity": {
                "trace_exact": self.trace.value,
                "trace_is_exact": self.trace.is_exact,
                "schema": self.schema.value,
                "schema_is_exact": self.schema.is_exact,
                "schema_theorem": self.schema.theorem,
                "schema_lower_bound": self.schema.lower_bound,
            },
            "binding_device": self.binding_device,
            "binding_rounds": list(self.trace.rounds),
            "rho": self.rho,
            "epsilon": self.epsilon,
            "schema_rho": self.schema_rho,
            "schema_epsilon": self.schema_epsilon,
            "delta": self.delta,
        }


@dataclass(frozen=True)
class Audit:
    """What a trace shows. Printed, it is a table; `to_json` has the same figures unrounded."""

    path: Path
    digest: str
    ended: str
    patterns: Patterns
    strategy: Strategy
    """That of `mechanisms[0]`."""
    mechanisms: tuple[MechanismAudit, ...]
    findings: tuple[Finding, ...]
    """Of the claim, if there was one."""
    left_out: tuple[LeftOut, ...]
    """Rows of an imported log that are no participation."""
    scenario: Scenario | None
    """What was run; None for an imported log."""

    @property
    def claim_holds(self) -> bool:
        """Whether every statement of the claim that could be checked holds; False if none could."""
        verdicts = [finding.verdict for finding in self.findings]
        return not verdicts or (Verdict.HOLDS in verdicts and set(verdicts) <= {Verdict.HOLDS, Verdict.UNCHECKED})

    @property
    def claim_sentence(self) -> str:
        """How the claim fared, in words."""
        counts = {verdict: sum(finding.verdict == verdict for finding in self.findings) for verdict in Verdict}
        told = ", ".join(f"{count} {'hold' if verdict is Verdict.HOLDS else verdict}" for verdict, count in counts.items() if count)
        return f"the claim {'holds as far as it can be checked' if self.claim_holds else 'does not hold'}: {told}"

    @property
    def trained_with_scaled_noise(self) -> bool:
        """Whether a model was trained on a sample of each cohort, with noise to scale."""
        return self.scenario is not None and self.scenario.training.enabled

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the figures rest on, in plain words."""
        if self.scenario is None:
            return (*ASSUMPTIONS, "The log that was imported names every participation, and no device under two names.")
        if not self.scenario.training.enabled:
            return ASSUMPTIONS
        sample, goal = self.scenario.training.cohort_sample, self.scenario.rounds.report_goal
        return (
            *ASSUMPTIONS,
            f"In each round {sample} of the {goal} accepted devices really trained, and the noise on their sum was scaled by "
            f"{sample} / {goal}, so that the signal-to-noise ratio is that of the full cohort, as is the practice of DP-FTRL "
            "studies. The privacy stated is that of the full cohort with full noise; this simulation's own model has no such "
            "guarantee.",
        )

    @property
    def rounds(self) -> int:
        """Committed rounds."""
        return self.patterns.committed_rounds

    @property
    def devices(self) -> int:
        """Devices that took part at least once."""
        return int(self.patterns.device_ids.size)

    @property
    def participations(self) -> int:
        """Accepted updates."""
        return self.patterns.participations

    @property
    def min_sep(self) -> int:
        """Least difference of two rounds of a device; the number of rounds if none took part twice."""
        return self.patterns.min_sep

    @property
    def max_participations(self) -> int:
        """Most participations of a device."""
        return self.patterns.max_participations

    @cached_property
    def ledger(self) -> list[LedgerEntry]:
        """Privacy over rounds of the run's own mechanism; computed when first asked for."""
        used = self.mechanisms[0]
        return privacy_over_rounds(self.strategy, self.patterns, used.noise_multiplier, used.delta)

    @cached_property
    def device_privacy(self) -> DevicePrivacy:
        """What the devices got of that mechanism; computed when first asked for."""
        return DevicePrivacy.of(device_sensitivities(self.strategy, self.patterns), self.mechanisms[0].noise_multiplier)

    @cached_property
    def frontier(self) -> Frontier:
        """Of that mechanism; computed when first asked for."""
        return frontier(self.strategy, self.patterns)

    def participation_histogram(self) -> dict[int, int]:
        """Devices by number of participations, from 1."""
        return {count: int(devices) for count, devices in enumerate(np.bincount(self.patterns.counts)) if count and devices}

    def to_json(self) -> dict[str, Any]:
        """One JSON object."""
        return {
            "trace": str(self.path),
            "digest": self.digest,
            "ended": self.ended,
            "rounds": self.rounds,
            "devices": self.devices,
            "participations": self.participations,
            "min_sep": self.min_sep,
            "max_participations": self.max_participations,
            "participations_per_device": {str(k): v for k, v in self.participation_histogram().items()},
            "mechanisms": [mechanism.to_json() for mechanism in self.mechanisms],
            "left_out": [asdict(each) for each in self.left_out],
            "assumptions": list(self.assumptions),
        }

    def to_json_in_full(self) -> dict[str, Any]:
        """`to_json`, and what takes longer: the findings, what each device got, the frontier, privacy over rounds."""
        return {
            **self.to_json(),
            "claim_holds": self.claim_holds,
            "claim_sentence": self.claim_sentence if self.findings else "",
            "findings": [finding.to_json() for finding in self.findings],
            "device_privacy": self.device_privacy.to_json(),
            "frontier": self.frontier.to_json(),
            "ledger": [asdict(entry) for entry in self.ledger],
        }

    def participation_rows(self) -> list[tuple[str, str]]:
        """What is printed of participation: (what, value)."""
        return [
            ("rounds (committed)", f"{self.rounds:,}"),
            ("devices (took part)", f"{self.devices:,}"),
            ("participations (accepted)", f"{self.participations:,}"),
            ("min-sep b (rounds)", f"{self.min_sep:,}"),
            ("max participations k", f"{self.max_participations:,}"),
        ]

    def mechanism_rows(self) -> list[list[str]]:
        """What is printed of the mechanisms: a heading, then (what, one value per mechanism)."""
        columns = [_mechanism_column(mechanism) for mechanism in self.mechanisms]
        heads = ["", *(m.name + ("" if m.is_used else " (comparison)") for m in self.mechanisms)]
        return [heads, *([what, *(column[what] for column in columns)] for what in columns[0])]

    def __str__(self) -> str:
        rows = [*([what, value] for what, value in self.participation_rows()), [], *self.mechanism_rows()]
        widths = [
            max((len(row[place]) for row in rows if len(row) > place), default=0) for place in range(len(self.mechanisms) + 1)
        ]
        return "\n".join("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)).rstrip() for row in rows)


def audit_trace(
    trace: Trace | ImportedTrace | str | Path,
    noise_multiplier: float | None = None,
    delta: float | None = None,
    mechanism: Strategy | None = None,
    claim: Claim | None = None,
) -> Audit:
    """Audits a trace, opened or by path; against a claim if one is given.

    Mechanism, multiplier and delta are the claim's, or else the run's own, unless given. Raises InputError for impossible
    figures, and for an imported log if they are missing; TraceError for what cannot be read.
    """
    opened = open_trace(trace) if isinstance(trace, str | Path) else trace
    scenario = _scenario_of(opened) if isinstance(opened, Trace) else None
    used = _Used.of(opened, scenario, claim, mechanism, noise_multiplier, delta)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(pld.load)  # while the parts are read
        patterns = read_patterns(opened)
    others = [other for other in (Identity(), Tree()) if other.kind != used.strategy.kind]
    try:
        mechanisms = [
            _audit_mechanism(each, each is used.strategy, patterns, used.noise_multiplier, used.delta, opened)
            for each in (used.strategy, *others)
        ]
        privacy = scenario.privacy if scenario is not None else None
        findings = check_claim(claim, privacy, opened, patterns, mechanisms[0].trace) if claim is not None else ()
    except ValueError as error:  # what no guarantee can be computed for
        raise InputError(str(error)) from None
    return Audit(
        path=opened.path,
        digest=opened.digest,
        ended=opened.run["ended"] if isinstance(opened, Trace) else "imported",
        patterns=patterns,
        strategy=used.strategy,
        mechanisms=tuple(mechanisms),
        findings=findings,
        left_out=tuple(opened.left_out) if isinstance(opened, ImportedTrace) else (),
        scenario=scenario,
    )


@dataclass(frozen=True, slots=True)
class _Used:
    """What the figures are computed for."""

    strategy: Strategy
    noise_multiplier: float
    delta: float

    @classmethod
    def of(
        cls,
        trace: Trace | ImportedTrace,
        scenario: Scenario | None,
        claim: Claim | None,
        mechanism: Strategy | None,
        noise_multiplier: float | None,
        delta: float | None,
    ) -> "_Used":
        if claim is not None:
            if (mechanism, noise_multiplier, delta) != (None, None, None):
                raise InputError("a claim names its mechanism, noise multiplier and delta: leave them out beside --claim")
            used = cls(claim.mechanism, claim.noise_multiplier, claim.delta)
        else:
            privacy = scenario.privacy if scenario is not None else None
            strategy = mechanism or (privacy.mechanism if privacy else None)
            multiplier = noise_multiplier if noise_multiplier is not None else privacy.noise_multiplier if privacy else None
            if strategy is None or multiplier is None:
                raise InputError(
                    f"trace {str(trace.path)!r} was imported from a log, which does not say how noise was added; give --mechanism "
                    "FILE and --noise-multiplier Z, or --claim FILE"
                )
            used = cls(strategy, multiplier, delta if delta is not None else privacy.delta if privacy else DEFAULT_DELTA)
        try:
            check_noise_multiplier(used.noise_multiplier)
            check_delta(used.delta)
            used.strategy.check_rounds(trace.committed_rounds)
        except ValueError as error:
            raise InputError(str(error)) from None
        return used


def _scenario_of(trace: Trace) -> Scenario:
    """The scenario in run.json, which must be the one that was run: an edited noise multiplier would make any claim."""
    try:
        scenario = Scenario.from_tables(trace.scenario, directory=trace.path)
    except ScenarioError as error:
        raise TraceCorrupt(f"{trace.path}: its scenario is not one of this release ({error}); use its own") from None
    if scenario.digest != trace.run.get("scenario_digest"):
        raise TraceCorrupt(f"{trace.path}: its scenario does not have the recorded digest, so it was edited; take the trace again")
    return scenario


def _audit_mechanism(
    strategy: Strategy, is_used: bool, patterns: Patterns, noise_multiplier: float, delta: float, source: Trace | ImportedTrace
) -> MechanismAudit:
    schema = strategy.schema_sensitivity(MinSep(patterns.committed_rounds, patterns.min_sep, patterns.max_participations))
    trace = trace_sensitivity(strategy, patterns)
    return MechanismAudit(
        name=strategy.kind,
        is_used=is_used,
        noise_multiplier=noise_multiplier,
        trace=trace,
        binding_device=source.name_of(trace.device_id),
        schema=schema,
        rho=gaussian_rho(trace.value, noise_multiplier),
        epsilon=gaussian_epsilon(trace.value, noise_multiplier, delta),
        schema_rho=gaussian_rho(schema.value, noise_multiplier),
        schema_epsilon=gaussian_epsilon(schema.value, noise_multiplier, delta),
        delta=delta,
    )


def _mechanism_column(mechanism: MechanismAudit) -> dict[str, str]:
    kind = "exact" if mechanism.schema.is_exact else "upper bound"
    trace_kind = "exact" if mechanism.trace.is_exact else "upper bound"
    return {
        "noise multiplier": f"{mechanism.noise_multiplier:g}",
        "sensitivity, trace": f"{mechanism.trace.value:.6f} ({trace_kind})",
        "sensitivity, (b, k)": f"{mechanism.schema.value:.6f} ({kind})",
        "rho, trace": f"{mechanism.rho:.6f}",
        "rho, (b, k)": f"{mechanism.schema_rho:.6f}",
        f"epsilon at delta={mechanism.delta:g}, trace": f"{mechanism.epsilon:.4f}",
        f"epsilon at delta={mechanism.delta:g}, (b, k)": f"{mechanism.schema_epsilon:.4f}",
    }
