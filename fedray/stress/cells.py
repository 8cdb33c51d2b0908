"""What happens in a cell, and how mechanisms fare there. Plain functions; fedray/stress/run.py calls them in tasks."""

import math
import tempfile
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedray.audit.participation import Patterns, read_patterns
from fedray.audit.sensitivity import trace_sensitivity
from fedray.errors import Starved, TraceError
from fedray.placement import Placement
from fedray.scenario import Scenario
from fedray.simulation import simulate
from fedray.stress.sweep import Cell, MadeFor, MechanismSpec, Sweep
from mechanisms.accounting.pld import gaussian_epsilon
from mechanisms.accounting.zcdp import gaussian_rho
from mechanisms.loss import loss
from mechanisms.optimize.design import MechanismRequest, cached_mechanism, default_cache
from mechanisms.optimize.objective import Target
from mechanisms.participation import MinSep
from mechanisms.strategy import Strategy


@dataclass(frozen=True, slots=True)
class Truth:
    """What happened, or is assumed to happen, in a cell. patterns: of a simulated run. note: why there is none."""

    schema: MinSep | None
    patterns: Patterns | None = None
    days: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One mechanism in one cell. sensitivity: under the cell's (b, k), exact or an upper bound; trace_sensitivity: of the simulated
    trace itself. Losses are at equal privacy (mu = 1). regret: rms_loss over the least in the cell, minus 1. rho,
    epsilon: at the noise multiplier, of the trace where there is one. note: why figures are missing.
    """

    mechanism: str
    made_for: str
    rounds: int | None
    min_sep: int | None
    max_participations: int | None
    noise_multiplier: float
    sensitivity: float | None = None
    sensitivity_is_exact: bool | None = None
    sensitivity_lower_bound: float | None = None
    trace_sensitivity: float | None = None
    trace_is_exact: bool | None = None
    max_loss: float | None = None
    rms_loss: float | None = None
    regret: float | None = None
    rho: float | None = None
    epsilon: float | None = None
    days: float | None = None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)


def assumed(sweep: Sweep, cell: Cell) -> Truth:
    """The setting of a cell without a scenario."""
    rounds = cell.get("rounds") or (sweep.estimate.rounds if sweep.estimate else 1)
    min_sep = cell.get("min_sep") or max(1, cell.get("population") // cell.get("report_goal"))
    most = -(-rounds // min_sep)
    wanted = cell.get("max_participations") or "most"
    return Truth(MinSep(rounds, min_sep, most if wanted == "most" else min(wanted, most)))


def simulated(scenario: Scenario) -> Truth:
    """What happens in a run of a scenario, in this process."""
    with tempfile.TemporaryDirectory(prefix="fedray-stress-") as folder:
        try:
            trace = simulate(scenario, Placement(1, "in-process", checkpoint_seconds=math.inf), Path(folder) / "trace")
            patterns = read_patterns(trace)
        except (Starved, TraceError) as error:  # without a round there is nothing to judge
            return Truth(None, note=str(error))
        ended = "" if trace.run["ended"] == "completed" else trace.run["ended"]
        schema = MinSep(patterns.committed_rounds, patterns.min_sep, patterns.max_participations)
        return Truth(schema, patterns, float(trace.rounds["closed"][-1]) / 86_400.0, ended)


def judge(sweep: Sweep, cell: Cell, scenario: Scenario | None, truth: Truth, distribution: tuple[MinSep, ...]) -> list[Row]:
    """A row for every mechanism and what it is made for. distribution: the schemas of all cells."""
    z = noise_multiplier_of(sweep, cell, scenario)
    rows = []
    for spec in sweep.mechanisms:
        for made_for in spec.made_for if spec.needs_optimising else spec.made_for[:1]:
            rows.append(_row(sweep, spec, made_for, truth, distribution, z))
    best = min((row.rms_loss for row in rows if row.rms_loss is not None), default=None)
    return [row if row.rms_loss is None or best is None else replace(row, regret=row.rms_loss / best - 1.0) for row in rows]


def noise_multiplier_of(sweep: Sweep, cell: Cell, scenario: Scenario | None) -> float:
    """z of a cell: given, in proportion to the report goal, or 1."""
    if sweep.noise_per_report is not None:
        goal = scenario.rounds.report_goal if scenario is not None else cell.get("report_goal")
        return sweep.noise_per_report * goal
    return sweep.noise_multiplier or (scenario.privacy.noise_multiplier if scenario is not None else 1.0)


def _row(sweep: Sweep, spec: MechanismSpec, made_for: MadeFor, truth: Truth, distribution: tuple[MinSep, ...], z: float) -> Row:
    label = spec.label(made_for)
    for_what = made_for if spec.needs_optimising else "anything"
    if truth.schema is None:
        return Row(label, for_what, None, None, None, z, note=truth.note)
    n, b, k = truth.schema.rounds, truth.schema.min_sep, truth.schema.max_participations
    try:
        request = _request(sweep, spec, made_for, truth.schema, distribution)
        strategy = _made(request)
        found = loss(strategy, truth.schema)
        trace = trace_sensitivity(strategy, truth.patterns) if truth.patterns is not None else None
        spent = found.sensitivity.value if trace is None else trace.value
        rho, epsilon = gaussian_rho(spent, z), gaussian_epsilon(spent, z, sweep.delta)
    except (ValueError, ArithmeticError) as error:  # what this mechanism cannot do is a result too
        return Row(label, for_what, n, b, k, z, days=truth.days, note=" ".join(str(error).split()))
    return Row(
        label,
        for_what,
        n,
        b,
        k,
        z,
        sensitivity=found.sensitivity.value,
        sensitivity_is_exact=found.sensitivity.is_exact,
        sensitivity_lower_bound=found.sensitivity.lower_bound,
        trace_sensitivity=None if trace is None else trace.value,
        trace_is_exact=None if trace is None else trace.is_exact,
        max_loss=found.max_loss,
        rms_loss=found.rms_loss,
        rho=rho,
        epsilon=epsilon,
        days=truth.days,
        note=truth.note,
    )


def _request(
    sweep: Sweep, spec: MechanismSpec, made_for: MadeFor, truth: MinSep, distribution: tuple[MinSep, ...]
) -> MechanismRequest:
    if made_for == "estimate" and sweep.estimate is not None and spec.needs_optimising:
        schema, targets = sweep.estimate.schema_(), ()
    elif made_for == "distribution":
        schemas, weights = np.unique(
            [(s.rounds, s.min_sep, s.max_participations) for s in distribution], axis=0, return_counts=True
        )
        targets = tuple(Target(MinSep(*map(int, s)), float(w)) for s, w in zip(schemas, weights, strict=True))
        schema = max(targets, key=lambda target: target.weight).schema
    else:
        schema, targets = truth, ()
    return MechanismRequest(spec.kind, schema, spec.buffers, spec.bands, spec.objective, targets)


@lru_cache(maxsize=8)
def _made(request: MechanismRequest) -> Strategy:
    return cached_mechanism(request, default_cache())
