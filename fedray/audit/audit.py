"""The audit of a trace: participation, exact sensitivities, and the privacy that follows, with what it rests on."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedray.audit.ledger import LedgerEntry, privacy_over_rounds
from fedray.audit.participation import Patterns, read_patterns
from fedray.audit.sensitivity import TraceSensitivity, trace_sensitivity
from fedray.errors import InputError, ScenarioError, TraceCorrupt
from fedray.scenario import Scenario
from fedray.trace.reader import Trace
from mechanisms.accounting.pld import check_delta, gaussian_epsilon
from mechanisms.accounting.zcdp import check_noise_multiplier, gaussian_rho
from mechanisms.participation import MinSep
from mechanisms.registry import Identity, Tree
from mechanisms.strategy import Sensitivity, Strategy

ASSUMPTIONS = (
    "Unit of privacy: one device and all its updates; adjacency: one device's updates replaced by zeros (zero-out).",
    "Every model after every round is released, and the aggregator that adds the noise is trusted (central model).",
    "Every update was clipped to the clip norm, and the noise is the mechanism's with the stated multiplier.",
    "When devices took part is not protected: the trace's patterns are taken as they happened, and as not depending on the "
    "updates of the device in question.",
    "Tuning of hyperparameters on the same devices, and other runs on them, are not accounted for.",
)


@dataclass(frozen=True, slots=True)
class MechanismAudit:
    """One mechanism on this trace. `is_used` tells the run's own mechanism from those shown for comparison.

    trace: exact, or an upper bound, as it says. schema: of the (min-sep, max participations) that the trace obeys, likewise.
    rho, epsilon: from the trace's sensitivity; schema_rho, schema_epsilon: from the schema's.
    """

    name: str
    is_used: bool
    noise_multiplier: float
    trace: TraceSensitivity
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
            },
            "binding_device": self.trace.device_id,
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
    mechanisms: tuple[MechanismAudit, ...]
    scenario: Scenario
    """What was run."""

    @property
    def trained_with_scaled_noise(self) -> bool:
        """Whether a model was trained on a sample of each cohort, with noise to scale."""
        return self.scenario.training.enabled

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the figures rest on, in plain words."""
        if not self.trained_with_scaled_noise:
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
        return privacy_over_rounds(self.scenario.privacy.mechanism, self.patterns, used.noise_multiplier, used.delta)

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
            "assumptions": list(self.assumptions),
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


def audit_trace(trace: Trace | str | Path, noise_multiplier: float | None = None, delta: float | None = None) -> Audit:
    """Audits a trace, opened or by path. Multiplier and delta are the run's own unless given.

    Raises InputError for impossible figures, TraceError for what cannot be read.
    """
    opened = trace if isinstance(trace, Trace) else Trace.open(trace)
    scenario = _scenario_of(opened)
    strategy: Strategy = scenario.privacy.mechanism
    multiplier = scenario.privacy.noise_multiplier if noise_multiplier is None else noise_multiplier
    used_delta = scenario.privacy.delta if delta is None else delta
    try:
        check_noise_multiplier(multiplier)
        check_delta(used_delta)
    except ValueError as error:
        raise InputError(str(error)) from None
    patterns = read_patterns(opened)
    others = [other for other in (Identity(), Tree()) if other.kind != strategy.kind]
    try:
        mechanisms = [_audit_mechanism(each, each is strategy, patterns, multiplier, used_delta) for each in (strategy, *others)]
    except ValueError as error:  # what no guarantee can be computed for
        raise InputError(str(error)) from None
    return Audit(opened.path, opened.digest, opened.run["ended"], patterns, tuple(mechanisms), scenario)


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
    strategy: Strategy, is_used: bool, patterns: Patterns, noise_multiplier: float, delta: float
) -> MechanismAudit:
    schema = strategy.schema_sensitivity(MinSep(patterns.committed_rounds, patterns.min_sep, patterns.max_participations))
    trace = trace_sensitivity(strategy, patterns)
    return MechanismAudit(
        name=strategy.kind,
        is_used=is_used,
        noise_multiplier=noise_multiplier,
        trace=trace,
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
