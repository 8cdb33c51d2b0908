"""What happens in a cell, and how mechanisms fare there. These are plain functions, which run.py
calls in tasks."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedray.audit.sensitivity import trace_sensitivity
from fedray.base.document import Document
from fedray.mechanisms.accounting.events import Gaussian
from fedray.mechanisms.accounting.gdp import gdp_epsilon
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.mechanisms.comparison import utility
from fedray.mechanisms.optimize.design import MechanismRequest, made_mechanism
from fedray.mechanisms.optimize.objective import Target
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.strategy import Strategy
from fedray.scenario import Scenario
from fedray.studies.simulated import Truth
from fedray.studies.sweep.sweep import Cell, MadeFor, MechanismSpec, Sweep


@dataclass(frozen=True, slots=True)
class Row(Document):
    """One mechanism in one cell.

    All its figures rest on one sensitivity, that of the trace where there is one. A figure is None
    where the mechanism cannot do what is asked; the note says why.
    """

    mechanism: str
    """As in the legend: kind, size, which loss it was optimised for, and for what."""
    made_for: str
    """"estimate", "truth", "distribution", or "anything" for what is not optimised."""
    rounds: int | None
    """n of the cell; None where a run starved, however late."""
    min_sep: int | None
    """b of the cell; None where no device took part twice."""
    max_participations: int | None
    """k of the cell."""
    noise_multiplier: float
    """z of the cell, the same for all its mechanisms; rho and epsilon are at it."""
    sensitivity: float | None = None
    """Sensitivity of the simulated trace where there is one, else under the cell's (b, k). Losses,
    rho and epsilon follow from it."""
    sensitivity_of: str | None = None
    """"trace" or "(b, k)"."""
    sensitivity_is_exact: bool | None = None
    """Whether that sensitivity is exact; False: it is an upper bound."""
    participation_sensitivity: float | None = None
    """Sensitivity under the cell's (b, k)."""
    participation_sensitivity_is_exact: bool | None = None
    """Whether that sensitivity is exact; False: it is an upper bound."""
    participation_sensitivity_lower_bound: float | None = None
    """Where it is not exact, a value that it is not below."""
    rms_loss: float | None = None
    """RmsLoss: error over the rounds at mu = 1."""
    max_loss: float | None = None
    """MaxLoss: error of the worst round at mu = 1."""
    regret: float | None = None
    """rms_loss over the least in the cell, minus 1."""
    common_rho: float | None = None
    """A rho that all mechanisms of the cell have in the comparison: that of the sweep's first
    mechanism at z."""
    needed_noise_multiplier: float | None = None
    """The noise multiplier that this mechanism needs for it."""
    rms_prefix_error: float | None = None
    """Deviation of the noise on prefix sums at that multiplier, root mean square over rounds;
    tables are sorted by it."""
    max_prefix_error: float | None = None
    """The same, of the worst round."""
    rho: float | None = None
    """zCDP at the noise multiplier of the cell."""
    epsilon: float | None = None
    """Epsilon at the noise multiplier of the cell."""
    days: float | None = None
    """Length of the simulated run."""
    note: str = ""
    """Why figures are missing, or how the run ended."""

    @property
    def is_starved(self) -> bool:
        """Whether the run of the cell starved, so that the row has no figures."""
        return self.rounds is None


def assumed(sweep: Sweep, cell: Cell) -> Truth:
    """The setting of a `cell` of a `sweep` without a scenario: (n, b, k) as its values say.

    Rounds come from the sweep's estimate where the cell has none. Without a min-sep, devices take
    turns: b = population / report goal. k is at most what the rounds have room for.
    """
    rounds = cell.get("rounds")
    if not rounds:
        # `Sweep` demands an estimate of settings that do not vary the rounds.
        assert sweep.estimate is not None
        rounds = sweep.estimate.rounds
    min_sep = cell.get("min_sep")
    if not min_sep:
        min_sep = max(1, cell.get("population") // cell.get("report_goal"))
    # n rounds have room for ceil(n / b) participations that are b apart.
    most = -(-rounds // min_sep)
    wanted = cell.get("max_participations") or "most"
    max_participations = most if wanted == "most" else min(wanted, most)
    return Truth(MinSep(rounds, min_sep, max_participations))


def judge(
    sweep: Sweep,
    cell: Cell,
    scenario: Scenario | None,
    truth: Truth,
    distribution: tuple[MinSep, ...],
    designs: Path | None,
) -> list[Row]:
    """Judges every mechanism for each of what it is made for.

    Args:
        sweep: names the mechanisms.
        cell: the values that are varied.
        scenario: of the cell; None if it was not simulated.
        truth: what happened in the cell, or is assumed to happen.
        distribution: the participations of all cells.
        designs: folder of the cache of mechanisms; None for no cache.

    Returns:
        A row for each.
    """
    z = noise_multiplier_of(sweep, cell, scenario)
    judged = []
    for spec in sweep.mechanisms:
        # What is not optimised is the same whatever it is made for.
        purposes = spec.made_for if spec.needs_optimising else spec.made_for[:1]
        for made_for in purposes:
            judged.append(_row(sweep, spec, made_for, truth, distribution, z, designs))
    # Any common rho gives the same order, so it is that of the first mechanism that has one.
    common_rho = next((row.rho for row, _ in judged if row.rho is not None), None)
    rows = []
    for row, strategy in judged:
        rows.append(row if strategy is None else _with_utility(row, strategy, common_rho))
    losses = [row.rms_loss for row in rows if row.rms_loss is not None]
    if not losses:
        return rows
    # Regret is relative to the best of the cell, so it needs all rows first.
    best = min(losses)
    return [
        row if row.rms_loss is None else replace(row, regret=row.rms_loss / best - 1.0)
        for row in rows
    ]


def noise_multiplier_of(sweep: Sweep, cell: Cell, scenario: Scenario | None) -> float:
    """Returns z of a cell: given, in proportion to the report goal, or 1.

    Args:
        sweep: may give z, or z over the report goal.
        cell: may have the report goal.
        scenario: of the cell, which has a report goal and a z too; None if there is none.
    """
    if sweep.noise_per_report is not None:
        # A cell without a scenario has its goal among its values; `Sweep` demands it.
        goal = scenario.rounds.report_goal if scenario is not None else cell.get("report_goal")
        return sweep.noise_per_report * goal
    if sweep.noise_multiplier:
        return sweep.noise_multiplier
    return scenario.privacy.noise_multiplier if scenario is not None else 1.0


def _row(
    sweep: Sweep,
    spec: MechanismSpec,
    made_for: MadeFor,
    truth: Truth,
    distribution: tuple[MinSep, ...],
    z: float,
    designs: Path | None,
) -> tuple[Row, Strategy | None]:
    """Privacy of one mechanism; and the mechanism, unless the row says why it has no figures."""
    label = sweep.label(spec, made_for)
    for_what = made_for if spec.needs_optimising else "anything"
    if truth.participation is None:
        return Row(label, for_what, None, None, None, z, note=truth.note), None
    n = truth.participation.rounds
    b = truth.participation.min_sep
    k = truth.participation.max_participations
    row = Row(label, for_what, n, b if k > 1 else None, k, z, days=truth.days, note=truth.note)
    try:
        request = _request(sweep, spec, made_for, truth.participation, distribution)
        strategy = made_mechanism(request, designs)
        # A mechanism that was made for fewer rounds raises here, and the note says so.
        strategy.check_rounds(n)
        under = strategy.participation_sensitivity(truth.participation)
        trace = trace_sensitivity(strategy, truth.patterns) if truth.patterns is not None else None
        # What happened in a simulated run is known exactly, so its own sensitivity is used.
        used = under if trace is None else trace
        released = Gaussian(noise_multiplier=z, sensitivity=used.value)
        epsilon, note = _epsilon(released, sweep.delta)
        found = replace(
            row,
            sensitivity=used.value,
            sensitivity_of="(b, k)" if trace is None else "trace",
            sensitivity_is_exact=used.is_exact,
            participation_sensitivity=under.value,
            participation_sensitivity_is_exact=under.is_exact,
            participation_sensitivity_lower_bound=under.lower_bound,
            rho=rho_of(released),
            epsilon=epsilon,
            note=note or row.note,
        )
        return found, strategy
    except (ValueError, ArithmeticError) as error:
        # That a mechanism cannot do what is asked is a result too: it becomes the row's note.
        return replace(row, note=" ".join(str(error).split())), None


def _epsilon(released: Gaussian, delta: float) -> tuple[float | None, str]:
    """None, and why, where the noise is no guarantee at all: losses are told all the same."""
    try:
        return gdp_epsilon(released, delta), ""
    except ValueError as error:
        return None, " ".join(str(error).split())


def _with_utility(row: Row, strategy: Strategy, common_rho: float | None) -> Row:
    """A row with its losses, and its error where all mechanisms of the cell have the same rho."""
    # A row with a strategy has a rho, so the cell has a common one.
    assert row.rounds is not None
    assert row.sensitivity is not None
    assert common_rho is not None
    try:
        found = utility(strategy, row.rounds, row.sensitivity, common_rho)
    except ValueError as error:
        # The strategy has no finite error over so many rounds.
        return replace(row, note=" ".join(str(error).split()))
    return replace(
        row,
        rms_loss=found.rms_loss,
        max_loss=found.max_loss,
        common_rho=found.rho,
        needed_noise_multiplier=found.noise_multiplier,
        rms_prefix_error=found.rms_prefix_error,
        max_prefix_error=found.max_prefix_error,
    )


def _request(
    sweep: Sweep,
    spec: MechanismSpec,
    made_for: MadeFor,
    truth: MinSep,
    distribution: tuple[MinSep, ...],
) -> MechanismRequest:
    """The mechanism that somebody would make: for a guess, for what is true here, or for all that
    is true somewhere in the sweep."""
    # What is not optimised falls through to the truth, whatever it is made for.
    if made_for == "estimate" and sweep.estimate is not None and spec.needs_optimising:
        participation = sweep.estimate.participation()
        targets = ()
    elif made_for == "distribution":
        # Cells with the same (n, b, k) are one target, which weighs as much as they do together.
        outcomes = [(each.rounds, each.min_sep, each.max_participations) for each in distribution]
        distinct, weights = np.unique(outcomes, axis=0, return_counts=True)
        targets = tuple(
            Target(MinSep(*map(int, outcome)), float(weight))
            for outcome, weight in zip(distinct, weights, strict=True)
        )
        # A request needs one setting even where targets decide: the most frequent one.
        participation = max(targets, key=lambda target: target.weight).participation
    else:
        participation = truth
        targets = ()
    return MechanismRequest(
        spec.kind, participation, spec.buffers, spec.bands, sweep.objective_of(spec), targets
    )
