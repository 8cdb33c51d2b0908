"""Privacy and utility of mechanisms in a cell."""

import math
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path

import numpy as np

from fedray.audit.persons import joined_by_owner
from fedray.audit.sensitivity import trace_sensitivity
from fedray.base.document import Document, IfAny
from fedray.mechanisms.accounting.calibration import noise_multiplier_for
from fedray.mechanisms.accounting.events import Gaussian
from fedray.mechanisms.accounting.gdp import gdp_epsilon
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.mechanisms.comparison import utility
from fedray.mechanisms.optimize.design import MechanismRequest, made_mechanism
from fedray.mechanisms.optimize.objective import Target
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.strategy import Strategy
from fedray.mechanisms.workload import Workload
from fedray.scenario import Scenario
from fedray.studies.simulated import Truth, study_digest
from fedray.studies.sweep.sweep import Cell, MadeFor, MechanismSpec, Sweep


@dataclass(frozen=True, slots=True)
class Row(Document):
    """One mechanism in one cell.

    All its figures rest on one sensitivity, that of the trace if there is one. A figure is None if
    the mechanism is impossible here; the note says why.
    """

    mechanism: str
    """As in the legend: kind, size, the loss and the setting that it was optimised for."""
    made_for: str
    """"estimate", "truth", "distribution", or "anything" if neither it nor its noise is made for
    one."""
    rounds: int | None
    """n of the cell; None if a run starved, however late."""
    min_sep: int | None
    """b of the cell; None if no device took part twice."""
    max_participations: int | None
    """k of the cell."""
    noise_multiplier: float | None
    """z of the cell, the same for all its mechanisms, or the least for the target; rho and epsilon
    are at it. None if there is none for the target."""
    sensitivity: float | None = None
    """Sensitivity of the simulated trace, else under (b, k); losses, rho and epsilon use it."""
    sensitivity_of: str | None = None
    """"trace" or "(b, k)"."""
    sensitivity_is_exact: bool | None = None
    """Whether that sensitivity is exact; False: it is an upper bound."""
    participation_sensitivity: float | None = None
    """Sensitivity under the cell's (b, k)."""
    participation_sensitivity_is_exact: bool | None = None
    """Whether that sensitivity is exact; False: it is an upper bound."""
    participation_sensitivity_lower_bound: float | None = None
    """If it is not exact, a value that it is not below."""
    rms_loss: float | None = None
    """RmsLoss: error over the rounds at mu = 1."""
    max_loss: float | None = None
    """MaxLoss: error of the worst round at mu = 1."""
    regret: float | None = None
    """rms_loss over that of the cell's best mechanism, minus 1."""
    common_rho: float | None = None
    """The rho of all mechanisms of the cell in the comparison: that of the first one at z."""
    needed_noise_multiplier: float | None = None
    """The noise multiplier that this mechanism needs for it."""
    rms_prefix_error: float | None = None
    """Root mean square error at that multiplier, of prefix sums or of the sweep's workload; tables
    are sorted by it."""
    max_prefix_error: float | None = None
    """The same, of the worst round."""
    rho: float | None = None
    """zCDP at the noise multiplier of the cell."""
    epsilon: float | None = None
    """Epsilon at the noise multiplier of the cell; of a simulated run as observed, on which no
    guarantee may rest."""
    person_sensitivity: IfAny[float] = None
    """Sensitivity of the simulated trace for a person instead of a device. Absent without
    `population.owners`."""
    person_epsilon: IfAny[float] = None
    """Epsilon of that sensitivity at the noise multiplier of the cell; absent likewise."""
    days: float | None = None
    """Length of the simulated run."""
    note: str = ""
    """Why figures are missing, or how the run ended."""
    rms_error: IfAny[float] = None
    """Standard deviation of the noise of prefix sums, or of the sweep's workload, at clip norm 1
    and the least noise for the target: root mean square over the rounds. Absent without a
    target."""
    noise_multiplier_is_exact: IfAny[bool] = None
    """Whether z is the least for the target, as the planned sensitivity is exact; False: it is an
    upper bound. Absent without a target."""

    @property
    def is_starved(self) -> bool:
        """Whether the run of the cell starved, so that the row has no figures."""
        return self.rounds is None


@dataclass(frozen=True)
class Judgement:
    """A task: every mechanism of a sweep in one cell, made for each of its purposes."""

    sweep: Sweep
    cell: Cell
    scenario: Scenario | None
    """Scenario of the cell; None if it was not simulated."""
    truth: Truth
    """Simulated or assumed outcome of the cell."""
    distribution: tuple[MinSep, ...]
    """Participations of all cells."""
    designs: Path
    """Folder of the cache of mechanisms."""

    @property
    def digest(self) -> str:
        """Digest of everything that the rows depend on, and of nothing else: a cell that is judged
        the same way in two sweeps is computed once."""
        # If a field were missing here, rows of another sweep would be used.
        noise = {"noise_multiplier", "noise_per_report", "target_epsilon", "delta"}
        used = noise | {"estimate", "mechanisms", "workload"}
        sweep = self.sweep.model_dump(mode="json", include=used)
        # The plotted figure decides objectives, and is not among the fields above.
        objectives = [self.sweep.objective_of(spec) for spec in self.sweep.mechanisms]
        scenario = self.scenario.digest if self.scenario is not None else None
        # The scenario's digest stands for the patterns, which follow from it.
        truth = asdict(self.truth.participation) if self.truth.participation is not None else None
        # Else a cell that is added to a sweep would make all others be judged again.
        needs_all = any("distribution" in spec.made_for for spec in self.sweep.mechanisms)
        distribution = [asdict(each) for each in self.distribution] if needs_all else []
        # A report goal among the values may decide z.
        values = list(self.cell.values)
        return study_digest("judgement", sweep, objectives, values, scenario, truth, distribution)

    def rows(self) -> tuple[Row, ...]:
        """Returns a row for each mechanism and purpose."""
        judged = []
        for spec in self.sweep.mechanisms:
            judged += [self._row(spec, made_for) for made_for in self.sweep.purposes(spec)]
        # Any common rho gives the same order, so it is that of the first mechanism that has one.
        common_rho = next((row.rho for row, _ in judged if row.rho is not None), None)
        rows = [
            row if strategy is None else self._with_utility(row, strategy, common_rho)
            for row, strategy in judged
        ]
        # Regret is relative to the best of the cell, so it needs all rows first.
        best = min((row.rms_loss for row in rows if row.rms_loss is not None), default=math.nan)
        return tuple(
            row if row.rms_loss is None else replace(row, regret=row.rms_loss / best - 1.0)
            for row in rows
        )

    def _noise_multiplier(self) -> float | None:
        """z: the sweep's, in proportion to the report goal, the scenario's, or 1; None if each
        mechanism has the least for a target."""
        sweep, scenario = self.sweep, self.scenario
        if sweep.target_epsilon is not None:
            return None
        if sweep.noise_per_report is not None:
            return sweep.noise_per_report * self._goal()
        own = 1.0 if scenario is None else scenario.privacy.noise_multiplier
        return sweep.noise_multiplier or own

    def _goal(self) -> int:
        """Report goal of the cell; 1 if it has none, where `Sweep` lets nothing depend on it."""
        scenario = self.scenario
        return scenario.rounds.report_goal if scenario else self.cell.get("report_goal") or 1

    def _row(self, spec: MechanismSpec, made_for: MadeFor | None) -> tuple[Row, Strategy | None]:
        """Privacy of one mechanism; and the mechanism, unless its row has a note and no figures."""
        truth, z = self.truth, self._noise_multiplier()
        label = self.sweep.label(spec, made_for)
        for_what = made_for or "anything"
        if truth.participation is None:
            return Row(label, for_what, None, None, None, z, note=truth.note), None
        n, k = truth.participation.rounds, truth.participation.max_participations
        row = Row(label, for_what, n, truth.min_sep, k, z, days=truth.days, note=truth.note)
        try:
            strategy = made_mechanism(
                self._request(spec, made_for, truth.participation), self.designs
            )
            # A mechanism that was made for fewer rounds raises here, and the note says so.
            strategy.check_rounds(n)
            used = under = strategy.participation_sensitivity(truth.participation)
            # The participation of a simulated run is known exactly: its own sensitivity is used.
            if truth.patterns is not None:
                used = trace_sensitivity(strategy, truth.patterns)
            is_least = None
            if z is None:
                estimate = None if made_for == "truth" else self.sweep.estimate_of(self.cell)
                planned = strategy.participation_sensitivity(estimate) if estimate else used
                target, is_least = self.sweep.target_epsilon, planned.is_exact
                z = noise_multiplier_for(planned.value, self.sweep.delta, epsilon=target)
                if estimate is not None and self.sweep.estimate is not None:
                    z *= self._goal() / (self.sweep.estimate.report_goal or self._goal())
            released = Gaussian(noise_multiplier=z, sensitivity=used.value)
            of_person = None
            if truth.patterns is not None and truth.patterns.owner_ids is not None:
                of_person = trace_sensitivity(strategy, joined_by_owner(truth.patterns)).value
            note, epsilon, person_epsilon = row.note, None, None
            try:
                epsilon = gdp_epsilon(released, self.sweep.delta)
                if of_person is not None:
                    event = Gaussian(noise_multiplier=z, sensitivity=of_person)
                    person_epsilon = gdp_epsilon(event, self.sweep.delta)
            except ValueError as error:
                # Noise that gives no guarantee still has losses.
                note = _one_line(error)
            found = replace(
                row,
                noise_multiplier=z,
                noise_multiplier_is_exact=is_least,
                sensitivity=used.value,
                sensitivity_of="(b, k)" if truth.patterns is None else "trace",
                sensitivity_is_exact=used.is_exact,
                participation_sensitivity=under.value,
                participation_sensitivity_is_exact=under.is_exact,
                participation_sensitivity_lower_bound=under.lower_bound,
                rho=rho_of(released),
                epsilon=epsilon,
                person_sensitivity=of_person,
                person_epsilon=person_epsilon,
                note=note,
            )
            return found, strategy
        except (ValueError, ArithmeticError) as error:
            # An impossible mechanism is a result too: the reason becomes the row's note.
            return replace(row, note=_one_line(error)), None

    def _request(
        self, spec: MechanismSpec, made_for: MadeFor | None, participation: MinSep
    ) -> MechanismRequest:
        """The mechanism for a guess, for the participation of the cell, or for all cells."""
        targets = ()
        estimate = self.sweep.estimate_of(self.cell)
        # A mechanism for anything is made for the cell.
        if made_for == "estimate" and estimate is not None:
            participation = estimate
        elif made_for == "distribution":
            # Cells with the same (n, b, k) are one target, which weighs as much as they together.
            distinct, weights = np.unique(
                [astuple(each)[:3] for each in self.distribution], axis=0, return_counts=True
            )
            targets = tuple(
                Target(MinSep(int(n), int(b), int(k)), float(weight))
                for (n, b, k), weight in zip(distinct, weights, strict=True)
            )
            # A request needs one setting even if targets decide: the most frequent one.
            participation = max(targets, key=lambda target: target.weight).participation
        objective = self.sweep.objective_of(spec)
        lengths = [each.participation.rounds for each in targets] or [participation.rounds]
        workload = self.sweep.workload_over(max(lengths), self.scenario)
        return MechanismRequest(
            spec.kind, participation, spec.buffers, spec.bands, objective, targets, workload
        )

    def _with_utility(self, row: Row, strategy: Strategy, common_rho: float | None) -> Row:
        """A row with its losses, and its error if all mechanisms of the cell have the same rho."""
        # A row with a strategy has a rho, so the cell has a common one.
        assert row.rounds is not None
        assert row.sensitivity is not None
        assert common_rho is not None
        try:
            workload = self._workload(row.rounds)
            found = utility(strategy, row.rounds, row.sensitivity, common_rho, workload=workload)
        except ValueError as error:
            # Errors over this many rounds are not finite.
            return replace(row, note=_one_line(error))
        z = row.noise_multiplier if self.sweep.target_epsilon is not None else None
        return replace(
            row,
            rms_error=None if z is None else z * found.rms_loss / row.sensitivity,
            rms_loss=found.rms_loss,
            max_loss=found.max_loss,
            common_rho=found.rho,
            needed_noise_multiplier=found.noise_multiplier,
            rms_prefix_error=found.rms_prefix_error,
            max_prefix_error=found.max_prefix_error,
        )

    def _workload(self, rounds: int) -> Workload:
        """The workload of the cell's rounds; a run that ended early had the planned schedule."""
        planned = rounds if self.scenario is None else max(rounds, self.scenario.rounds.count)
        return self.sweep.workload_over(planned, self.scenario)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
