"""One mechanism under a truth that is not the estimate.

Before a run the estimate (n, b, k) decides twice: the mechanism is made for it, and the noise
multiplier is the least at which epsilon is E under it. Then devices participate as they do. The
truth of a run is what its rules enforce at the times of its rounds, because a guarantee rests only
on that; if they enforce nothing, it is what was observed. With s the sensitivity under the truth,
B = A C^-1 and z the noise that was chosen:

    spent     epsilon of s / z
    factor    z', the least noise multiplier that keeps E at s, over z
    error     z ||B||, the noise that the run had
    loss      s ||B||, the noise at mu = 1 (McMahan, Xu, Zhang 2024, section 3); if devices add the
              noise, regrets are of z' ||B|| instead, since discrete noise costs more than mu
    regret    loss over the least of the kind's candidates, minus 1: at equal epsilon
    excess    error over that of the same candidate with its noise for E, minus 1

||B|| is the root mean square over the rounds, or the largest, by the loss for which all mechanisms
are made. Candidates are the mechanism itself, the one made for the truth, and those of its kind
made for the estimates and the truths of the same condition, as far as their loss is known exactly.
No regret is below 0: the one made for the truth need not be the best, because more bands than b, or
another end of a search, may have a smaller loss.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedray.audit.noise import PlannedNoise, PlannedRelease
from fedray.audit.sensitivity import trace_sensitivity
from fedray.base.document import Document, InJson
from fedray.base.errors import InputError
from fedray.mechanisms.loss import Objective, Purpose, errors
from fedray.mechanisms.named import PARAMETERS
from fedray.mechanisms.optimize.design import KINDS, RECIPES, Kind, MechanismRequest, made_mechanism
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import BLT
from fedray.mechanisms.strategy import Strategy
from fedray.mechanisms.workload import PREFIX
from fedray.runs.design import mechanism_over, purpose_of
from fedray.studies.simulated import Truth

MATRIX_KINDS = ("banded", "dense")
"""Kinds whose optimisation takes time in proportion to the cube of the rounds."""
MOST_MATRIX_ROUNDS = 2_500
"""Most rounds of a matrix that is optimised."""


@dataclass(frozen=True, slots=True)
class StressRow(Document):
    """One mechanism, made for an estimate, under one truth.

    A figure is None if it is unknown, or if the mechanism cannot run; the note says why.
    """

    mechanism: str
    """Kind, or file by its stem."""
    rounds: int
    """n of the estimate, for which the mechanism is made."""
    estimated_min_sep: int
    """b of the estimate."""
    estimated_participations: int
    """k of the estimate."""
    kind: str | None = None
    """Kind of which one is made for the truth; None for a matrix of no kind."""
    min_sep: int | None = None
    """b of the truth, all rounds if no device took part twice; None if the run starved."""
    max_participations: int | None = None
    """k of the truth; None if the run starved."""
    is_enforced: bool | None = None
    """Whether the truth of a run is what its rules enforce, as a guarantee needs; False: it is what
    was observed, because rules enforce nothing or are unknown. None for given settings."""
    observed_min_sep: int | None = None
    """b that was observed in the run; None for given settings."""
    seed: int | None = None
    """Seed of a simulated truth; None for others."""
    what_if: str | None = None
    """Key of the scenario that a simulated truth changes, with its value, or an assumption on a
    log's ids; None for none."""
    noise_multiplier: float | None = None
    """z, the least for the target under the estimate."""
    epsilon: float | None = None
    """Epsilon of the truth at that noise; an upper bound unless `is_exact`."""
    observed_epsilon: float | None = None
    """Epsilon of what was observed in the run, at that noise; None for given settings."""
    noise_factor: float | None = None
    """Factor on the noise multiplier that keeps the target; below 1 if there was too much."""
    is_exact: bool | None = None
    """Whether the true sensitivity is exact; False: it is an upper bound."""
    max_error: float | None = None
    """Standard deviation of the noise of the worst prefix sum, at clip norm 1 and that noise."""
    rms_error: float | None = None
    """The same, root mean square over the rounds."""
    max_loss: float | None = None
    """MaxLoss under the truth: error of the worst round at mu = 1."""
    rms_loss: float | None = None
    """RmsLoss under the truth."""
    regret: float | None = None
    """Loss over the least of the kind's candidates, minus 1: at equal epsilon; never below 0."""
    loss: Objective = "rms"
    """Loss for which mechanisms are made, and of the regret and the excess: "rms" or "max"."""
    made_for: str | None = None
    """Loss and workload that a finished mechanism was made for, such as "MaxLoss"; None if they are
    those of the row, or unknown."""
    note: str = ""
    """Why figures are missing, or what else to know."""
    days: float | None = None
    """Length of the simulated run; None for other truths."""

    @property
    def error(self) -> float | None:
        """`rms_error` or `max_error`, by the loss."""
        return self.max_error if self.loss == "max" else self.rms_error

    @property
    def value(self) -> float | None:
        """`rms_loss` or `max_loss`, by the loss."""
        return self.max_loss if self.loss == "max" else self.rms_loss

    @property
    def needed_error(self) -> float | None:
        """`error` at the noise that keeps the target."""
        if self.error is None or self.noise_factor is None:
            return None
        return self.error * self.noise_factor

    @property
    def exceeds(self) -> bool:
        """Whether the chosen noise spends more than the target."""
        return self.noise_factor is not None and self.noise_factor > 1.0

    @property
    def excess(self) -> InJson[float | None]:
        """`error` over that of the best candidate with its noise for the target, minus 1; below 0
        if the run spends more than the target."""
        if self.regret is None or self.noise_factor is None:
            return None
        return (1.0 + self.regret) / self.noise_factor - 1.0


_DESIGN = re.compile(r"(?P<kind>.+)-(?P<which>estimated|true)-(?P<b>\d+)-k(?P<k>\d+)")


def design_of(label: str) -> tuple[str, str, str]:
    """Returns the mechanism, the b and the k of a trained mechanism's label, as
    `Stressed.strategies` names them, such as "blt", "60" or "true 123", and "5"; b and k are empty
    if it is one for all."""
    if (found := _DESIGN.fullmatch(label)) is None:
        return label, "", ""
    true = "true " if found["which"] == "true" else ""
    return found["kind"], f"{true}{int(found['b']):,}", found["k"]


def made(request: MechanismRequest, designs: Path) -> Strategy:
    """Returns the mechanism of a request. Raises InputError for a matrix of too many rounds, even
    if the cache has it: a result does not depend on a cache."""
    if request.kind in MATRIX_KINDS and request.participation.rounds > MOST_MATRIX_ROUNDS:
        raise InputError(
            f"a {request.kind} matrix of {request.participation.rounds:,} rounds takes hours to "
            f"optimise, and {MOST_MATRIX_ROUNDS:,} rounds are the most; take banded-toeplitz"
        )
    return made_mechanism(request, designs)


@dataclass(frozen=True, slots=True)
class Judged:
    """A mechanism to judge: a kind, which is made for an estimate, or a finished strategy."""

    name: str
    """Name in tables."""
    given: Kind | Strategy
    """The kind, or the strategy of a file or of a name such as blt-400."""
    objective: Objective = "rms"
    """Loss that the kind is made for."""
    purpose: Purpose | None = None
    """Loss and workload that a file or a name was made for; None if unknown."""

    @classmethod
    def named(cls, given: str, objective: Objective = "rms", name: str = "") -> "Judged":
        """Returns the mechanism of a kind, made for a loss, a file or a name, with another name in
        tables. Raises InputError."""
        name = name or given
        for kind in KINDS:
            if given == kind and given not in PARAMETERS and not Path(given).is_file():
                return cls(name, kind, objective)
        return cls(name, mechanism_over(Path(given), 1), objective, purpose_of(given, objective))

    @property
    def made_for(self) -> str | None:
        """Loss and workload that the mechanism was made for, if they are others than here."""
        own = Purpose(self.objective, str(PREFIX))
        is_other = self.purpose is not None and self.purpose.differs_from(own)
        return str(self.purpose) if is_other else None

    @property
    def kind(self) -> Kind | None:
        """Kind of which one is made for the truth; None for a matrix of no kind."""
        if not isinstance(self.given, Strategy):
            return self.given
        known = {"toeplitz": "banded-toeplitz"}
        kind = known.get(self.given.kind, self.given.kind)
        return next((each for each in KINDS if each == kind), None)

    def request_for(self, participation: MinSep) -> MechanismRequest | None:
        """Returns the request of the same kind for a participation."""
        if self.kind is None:
            return None
        buffers = len(self.given.theta) if isinstance(self.given, BLT) else None
        return MechanismRequest(self.kind, participation, buffers, objective=self.objective)

    def searched_for(
        self, estimates: Sequence[MinSep], truths: Sequence[MinSep]
    ) -> list[MechanismRequest]:
        """Returns the requests that need a numerical search, each once."""
        if self.kind is None or RECIPES[self.kind].searched != "everything":
            return []
        planned = () if isinstance(self.given, Strategy) else estimates
        requests = [self.request_for(each) for each in (*planned, *truths)]
        return [each for each in dict.fromkeys(requests) if each is not None]


@dataclass(frozen=True, slots=True)
class Stressed:
    """A task: mechanisms made for each estimate, under one truth."""

    mechanisms: tuple[Judged, ...]
    estimates: tuple[MinSep, ...]
    truth: Truth
    epsilon: float
    """Target E."""
    delta: float
    designs: Path
    """Folder of the cache of mechanisms."""
    seed: int | None = None
    what_if: str | None = None
    candidates: tuple[MinSep, ...] = ()
    """Estimates of the same condition, whose mechanisms are candidates for the least loss."""
    other_truths: tuple[MinSep, ...] = ()
    """Other truths of the same condition, whose mechanisms are candidates too."""
    noise: PlannedNoise = field(default_factory=PlannedNoise)
    """Source of the noise of the runs."""

    def left_out(self) -> dict[str, str]:
        """Returns the reason for each mechanism whose noise devices cannot add, by its name."""
        if self.noise.table is None:
            return {}
        found = {}
        for mechanism in self.mechanisms:
            # A kind is admitted or not whatever it is made for, and a short one takes no time.
            try:
                self.noise.as_added(self._planned(mechanism, MinSep(8, 2, 2)))
            except InputError as error:
                found[mechanism.name] = str(error)
        return found

    def rows(self) -> list[StressRow]:
        """Returns a row for each mechanism and estimate."""
        found = []
        for mechanism in self.mechanisms:
            rows = [self._row(mechanism, estimate) for estimate in self.estimates]
            found += self._with_regrets(mechanism, rows)
        return found

    def strategies(self) -> tuple[dict[str, tuple[Strategy, Purpose | None]], dict[str, str]]:
        """Returns the mechanisms that can run, made for each estimate and for the truth, with their
        purposes, by name; equal ones once. Also the reason for each that cannot run. A name has the
        b and k that a mechanism is made for, unless it is finished or the same for all."""
        true = self.truth.binding
        assert true is not None
        found: dict[str, tuple[Strategy, Purpose | None]] = {}
        reasons: dict[str, str] = {}
        for mechanism in self.mechanisms:
            # A name is that of a file and of a run, and may be a path.
            name, given = mechanism.name.strip("/").replace("/", "-"), mechanism.given
            purpose = Purpose(mechanism.objective, str(PREFIX))
            tried: dict[str, MechanismRequest | None] = {
                f"{name}-{which}-{limits.min_sep}-k{limits.max_participations}": (
                    mechanism.request_for(limits)
                )
                for which, several in (("estimated", self.estimates), ("true", (true,)))
                for limits in several
                if which == "true" or not isinstance(given, Strategy)
            }
            if isinstance(given, Strategy):
                tried = {name: None, **tried}
            own: dict[str, tuple[Strategy, Purpose | None]] = {}
            failed: dict[str, str] = {}
            for label, request in tried.items():
                try:
                    if request is not None:
                        strategy = self._made(request)
                    else:
                        assert isinstance(given, Strategy), "a kind has a request for every limits"
                        strategy = given
                    strategy.check_rounds(true.rounds)
                except (ValueError, ArithmeticError) as error:
                    failed[label] = " ".join(str(error).split())
                    continue
                if strategy not in [known for known, _ in own.values()]:
                    own[label] = strategy, mechanism.purpose if request is None else purpose
            if len(own) == 1 and not failed:
                own = dict(zip([name], own.values(), strict=True))
            found |= own
            reasons |= failed
        return found, reasons

    def _row(self, mechanism: Judged, estimate: MinSep) -> StressRow:
        """Returns the row of a mechanism made for an estimate, without a regret."""
        true, patterns = self.truth.binding, self.truth.patterns
        row = StressRow(
            mechanism.name,
            estimate.rounds,
            estimate.min_sep,
            estimate.max_participations,
            mechanism.kind,
            None if true is None else true.min_sep,
            None if true is None else true.max_participations,
            None if patterns is None else self.truth.enforced is not None,
            None if patterns is None else patterns.min_sep,
            self.seed,
            self.what_if,
            loss=mechanism.objective,
            made_for=mechanism.made_for,
            note=self.truth.note,
        )
        if true is None:
            return row
        try:
            strategy = self.noise.as_added(self._planned(mechanism, estimate))
            planned = self.noise.release(strategy, estimate)
            z = planned.least_noise(self.delta, self.epsilon)
            row = replace(row, noise_multiplier=z)
            strategy.check_rounds(true.rounds)
            used, is_exact = self._release(strategy)
            max_error, rms_error = errors(strategy, true.rounds)
            epsilon = used.epsilon(z, self.delta)
            factor = used.least_noise(self.delta, self.epsilon) / z
            row = replace(
                row,
                epsilon=epsilon,
                # Both multipliers are rounded up; one that keeps the target is no less than needed.
                noise_factor=min(factor, 1.0) if epsilon <= self.epsilon else factor,
                is_exact=is_exact,
                max_error=z * max_error,
                rms_error=z * rms_error,
                max_loss=used.sensitivity * max_error,
                rms_loss=used.sensitivity * rms_error,
            )
            if patterns is not None:
                observed = trace_sensitivity(strategy, patterns).value
                own = self.noise.release_of(strategy, patterns, observed)
                row = replace(row, observed_epsilon=own.epsilon(z, self.delta))
            return row
        except (ValueError, ArithmeticError) as error:
            # A mechanism that cannot run is a result too.
            return replace(row, note=" ".join(str(error).split()))

    def _with_regrets(self, mechanism: Judged, rows: list[StressRow]) -> list[StressRow]:
        """Returns the rows of a mechanism with their regrets. They have none if no exact loss is
        known of one made for the truth, over which no regret would be an upper bound."""
        true = self.truth.binding
        if true is None or all(row.value is None for row in rows):
            return rows
        try:
            own = self._loss_of(mechanism, true)
        except (ValueError, ArithmeticError) as error:
            note = " ".join(str(error).split())
            return [row if row.value is None else replace(row, note=note) for row in rows]
        if own is None:
            return rows
        losses = [own]
        if not isinstance(mechanism.given, Strategy):
            judged = zip(self.estimates, rows, strict=True)
            known = (row for estimate, row in judged if estimate in self.candidates)
            exact = (self._at_target(row) for row in known if row.is_exact)
            losses += [each for each in exact if each is not None]
        for other in self.other_truths:
            # A mechanism that cannot run here, or has only a bound, is not a candidate.
            with suppress(ValueError, ArithmeticError):
                losses.append(self._loss_of(mechanism, other) or own)
        least = min(losses)
        values = map(self._at_target, rows)
        return [
            row if value is None else replace(row, regret=value / min(least, value) - 1)
            for row, value in zip(rows, values, strict=True)
        ]

    def _at_target(self, row: StressRow) -> float | None:
        """Returns the loss of a row, or, if devices add the noise, the error with its noise for the
        target; None if it is unknown."""
        if self.noise.table is None or row.error is None:
            return row.value
        assert row.noise_factor is not None
        return row.noise_factor * row.error

    def _loss_of(self, mechanism: Judged, participation: MinSep) -> float | None:
        """Returns `_at_target` under the truth of one of the mechanism's kind made for a
        participation; None if there is no kind, or only an upper bound."""
        true = self.truth.binding
        assert true is not None
        if (request := mechanism.request_for(participation)) is None:
            return None
        strategy = self.noise.as_added(self._made(request))
        strategy.check_rounds(true.rounds)
        release, is_exact = self._release(strategy)
        if not is_exact:
            return None
        scale = release.sensitivity
        if self.noise.table is not None:
            scale = release.least_noise(self.delta, self.epsilon)
        max_error, rms_error = errors(strategy, true.rounds)
        return scale * (max_error if mechanism.objective == "max" else rms_error)

    def _planned(self, mechanism: Judged, estimate: MinSep) -> Strategy:
        """Returns the mechanism that is used if the estimate is believed."""
        if isinstance(mechanism.given, Strategy):
            return mechanism.given
        request = mechanism.request_for(estimate)
        assert request is not None
        return self._made(request)

    def _made(self, request: MechanismRequest) -> Strategy:
        return made(request, self.designs)

    def _release(self, strategy: Strategy) -> tuple[PlannedRelease, bool]:
        """Returns the release under the truth, and whether its sensitivity is exact: that of its
        limits, or, if rules enforce none, that of the trace."""
        patterns = self.truth.patterns
        if self.truth.enforced is None and patterns is not None:
            found = trace_sensitivity(strategy, patterns)
            return self.noise.release_of(strategy, patterns, found.value), found.is_exact
        assert self.truth.binding is not None
        release = self.noise.release(strategy, self.truth.binding)
        return release, strategy.participation_sensitivity(self.truth.binding).is_exact
