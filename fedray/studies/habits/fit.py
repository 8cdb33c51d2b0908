"""The parameters of an availability model by simulated moments, with standard errors.

The estimate is the value at which the statistics of simulated devices are nearest to those of the
log (McFadden 1989, "A Method of Simulated Moments for Estimation of Discrete Response Models
Without Numerical Integration"; Gourieroux and Monfort 1996, "Simulation-Based Econometric Methods",
chapter 2). Covariances come from the bootstrap over devices, whose behaviour is taken as
independent.

The weights are the inverse of the covariance of other simulated devices, near the estimate. The
covariance of the log itself has errors that are correlated with those of its statistics: as weights
it makes estimates biased, and their standard errors too small (Altonji and Segal 1996,
"Small-Sample Bias in GMM Estimation of Covariance Structures", who take weights from independent
data for this reason). The log's covariance is used where it is not inverted, in the middle of the
sandwich (Hansen 1982, theorem 3.1), so that standard errors hold for any weights.

With n devices in the log and s simulated ones, the noise of the simulation adds n / s times the
covariance of simulated devices. It is in the standard errors and in the J statistic (Hansen 1982).

J grows with the number of devices, so that a large log refutes every model. How far a model is from
the devices is therefore graded by `HabitFit.misfit`, which J estimates in logs of any size (Steiger
1990, "Structural Model Evaluation and Modification").
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import tomli_w
from scipy import optimize, special

from fedray.base.arrays import Float64Array
from fedray.base.document import Document, InJson, Key, Keys, NotInJson
from fedray.base.errors import FitFailed, InputError, ScenarioError
from fedray.base.part_done import PartDone
from fedray.base.result import DrawnResult
from fedray.scenario.availability import HabitAvailability, PoissonAvailability
from fedray.studies.habits.observed import Layout, ObservedLog, Simulator
from fedray.studies.habits.parameters import (
    OFFSET,
    RATE,
    Fitted,
    Parameter,
    parameters_of,
    start_values,
    table_of,
)
from fedray.studies.habits.statistics import BOOTSTRAP_DRAWS, Summary

LEAST_DEVICES, LEAST_DAYS = 100, 3
NORMAL_95 = 1.959964
"""Standard errors to either end of a 95 % interval."""
SIMULATED = 4.0
"""Simulated devices for the estimate, over the devices of the log."""
LEAST_SIMULATED, MOST_SIMULATED = 10_000, 30_000
FIRST_SHARE = 4
"""Factor by which the search begins with fewer devices."""
_STEPS = {"log": 0.2, "logit": 0.4, "plain": 0.3}
"""Differences of a derivative, on a parameter's scale: wide enough for counts to change."""
_MOST_ERROR = {"log": 1.0, "logit": 1.5, "plain": 3.0}
"""Standard errors on a parameter's scale above which a log does not identify it."""
_BY_CHANCE = 0.01
"""p-value of J from which on chance explains the differences that are left."""
NEARLY = 0.08
"""Misfit up to which a model nearly fits: "a reasonable error of approximation" (Browne and Cudeck
1993, "Alternative Ways of Assessing Model Fit")."""
_AT_BOUND = 0.01
"""Part of a search's range, on the parameter's scale, within which an estimate is at its end."""
_WORTH_AN_OFFSET = 2.0
"""Hours of offset from which on one is proposed; the habits of a fit take up smaller ones."""
_MOST_STEPS = 12
_LEAST_PRODUCT = 1e-3
"""Least eigenvalue of the parameters' products that standard errors are computed from."""
_LEAST_EIGENVALUE = 1e-5
"""Eigenvalues of the statistics' correlation below this are left out of the weights."""


@dataclass(frozen=True, slots=True)
class Estimate(Document):
    """The estimate of one parameter."""

    name: str
    """Its key in the table `availability`; see `fedray.studies.habits.parameters`."""
    value: float
    """The estimate."""
    standard_error: float
    """Standard error of the estimate, with the noise of the simulation in it."""
    low: float
    """Lower end of the 95 % interval, which is symmetric on the parameter's scale."""
    high: float
    """Upper end of the 95 % interval."""
    bound: Literal["", "lower", "upper"] = ""
    """End of its search that the estimate is at, so that the log is explained best beyond it and
    the interval means nothing; empty inside."""


@dataclass(frozen=True, slots=True)
class Held(Document):
    """One parameter that was not fitted."""

    name: str
    """Its key in the table `availability`."""
    value: Any
    """The fixed value."""
    reason: str
    """The reason, in words."""


class Statistic(NamedTuple):
    """One statistic of the log and of the simulated devices."""

    name: str
    """Name of the statistic."""
    measured: float
    """Value in the log."""
    simulated: float
    """Value for the simulated devices at the estimates."""
    standard_error: float
    """Standard error of the difference of both."""


@dataclass(frozen=True)
class HabitFit(DrawnResult):
    """The availability model that is nearest to a log."""

    TABLES: ClassVar[str] = "fedray.studies.habits.page:habit_fit_tables"
    SUBJECT: ClassVar[str] = "fedray.studies.habits.page:habit_fit_subject"
    FIGURES: ClassVar[str] = "fedray.studies.habits.page:habit_fit_figures"
    PAGE: ClassVar[str] = "fedray.studies.habits.page:habit_fit_page"
    HEADLINE: ClassVar[str] = "fedray.studies.habits.page:fit_sentence"

    layout: Annotated[Layout, Keys("kind days")]
    """Layout of the log."""
    devices: int
    """Devices of the log."""
    records: int
    """Records of the log."""
    simulated_devices: int
    """Devices that were simulated, those without a record included."""
    estimates: tuple[Estimate, ...]
    """Parameters that were fitted."""
    held: tuple[Held, ...]
    """Parameters that were not fitted."""
    table: NotInJson[Fitted]
    """The availability with the estimates in it."""
    offset_hours: NotInJson[float | None]
    """Local time minus the log's clock, hours, if it was fitted."""
    zones: NotInJson[Mapping[float, float]]
    """Shares of the devices by given local time minus the log's clock, hours; empty if unknown."""
    proposed_offset_hours: float | None
    """Whole hours of local time minus the log's clock at which the log's day would be like that of
    the base; None if the model fits, or at the given ones."""
    measured: NotInJson[Summary]
    """Statistics of the log."""
    simulated: NotInJson[Summary]
    """The same of the simulated devices at the estimates."""
    errors: NotInJson[Float64Array]
    """[M]; standard errors of the differences of the statistics, measured minus simulated."""
    j_statistic: float
    """The weighted squared difference that is left: chi-squared if the model is true."""
    degrees_of_freedom: int
    """Degrees of freedom of the J statistic."""

    def __repr__(self) -> str:
        return (
            f"<HabitFit of {self.devices:,} devices x {self.layout.days} days: "
            f"{len(self.estimates)} parameters, J {self.j_statistic:.1f} on "
            f"{self.degrees_of_freedom}>"
        )

    @property
    def p_value(self) -> InJson[float]:
        """Probability of a J at least as large if the model were true."""
        if self.degrees_of_freedom < 1:
            return 1.0
        return float(special.chdtrc(self.degrees_of_freedom, self.j_statistic))

    @property
    def misfit(self) -> InJson[float]:
        """Root mean square of the differences that chance does not explain, each statistic in
        standard deviations of one device and independent of the others."""
        excess = max(0.0, self.j_statistic - self.degrees_of_freedom)
        noise = 1.0 + self.devices / self.simulated.devices
        freedom = max(1, self.degrees_of_freedom)
        return math.sqrt(excess * noise / (freedom * self.devices))

    @property
    def grade(self) -> InJson[Literal["fits", "nearly fits", "does not fit"]]:
        """How well the model describes the devices: "fits" if J has a p-value of at least 0.01,
        "nearly fits" if the misfit is at most NEARLY, else "does not fit"."""
        if self.p_value >= _BY_CHANCE:
            return "fits"
        return "nearly fits" if self.misfit <= NEARLY else "does not fit"

    def to_tables(self) -> dict[str, Any]:
        """Returns the fitted tables: availability, and population.time_zones unless the log's clock
        shows local time."""
        # TOML has no null: keys that are None are left out.
        keys = self.table.model_dump_json(exclude_none=True)
        # A file needs no more than six digits.
        tables = {"availability": json.loads(keys, parse_float=lambda x: float(f"{float(x):.6g}"))}
        zones = self.zones
        if self.offset_hours is not None:
            zones = {float(f"{self.offset_hours:.6g}"): 1.0}
        if any(zones):
            # Shares keep all digits, because they sum to 1.
            listed = [{"utc_offset_hours": o, "share": share} for o, share in zones.items()]
            tables["population"] = {"time_zones": listed}
        return tables

    def to_toml(self) -> str:
        """Returns the fitted tables as TOML that a scenario with a table [population] may have
        before or after it."""
        tables = self.to_tables()
        zones = tables.pop("population", {"time_zones": []})["time_zones"]
        # A second [population] is not TOML, and an array of tables may stand anywhere.
        listed = (f"\n[[population.time_zones]]\n{tomli_w.dumps(each)}" for each in zones)
        return tomli_w.dumps(tables) + "".join(listed)

    @property
    def scenario_tables(self) -> Annotated[dict[str, Any], Key("tables")]:
        """The fitted tables of a scenario: `availability`, and `population.time_zones` unless the
        log's clock shows local time."""
        return self.to_tables()

    @property
    def statistics(self) -> InJson[list[Statistic]]:
        """Statistics of the log beside their values for simulated devices."""
        values = (self.measured.names, self.measured.values, self.simulated.values, self.errors)
        return [Statistic(*each) for each in zip(*values, strict=True)]

    def to_arrow(self) -> pa.Table:
        """The estimates, a row each."""
        return pa.Table.from_pylist([each.to_json() for each in self.estimates])


def fit_habits(
    log: ObservedLog,
    base: Fitted | None = None,
    *,
    seed: int = 1,
    fits_offset: bool = False,
    on_progress: Callable[[str], None] = lambda text: None,
) -> HabitFit:
    """Fits an availability model to a log.

    Args:
        log: its records, and how it was kept.
        base: start of the search, and source of fixed values: a table of the habit model (the
            default), of conditions or of the Poisson model.
        seed: seed of the simulated devices and the bootstrap.
        fits_offset: whether the log's clock is an unknown number of hours off the devices' local
            time.
        on_progress: called with progress of the fit.

    Returns:
        Estimates, their standard errors, and the fit of the model.

    Raises:
        InputError: the log is too small, or does not identify the parameters.
        FitFailed: no habits near the log's can be simulated.
    """
    records, layout = log.records, log.layout
    if records.devices < LEAST_DEVICES or layout.days < LEAST_DAYS:
        raise InputError(
            f"the log has {records.devices:,} devices and {layout.days} whole days; a fit needs at "
            f"least {LEAST_DEVICES} devices and {LEAST_DAYS} days"
        )
    if fits_offset and layout.kind != "intervals":
        rule = f"needs a log of intervals, and this one is of {layout.kind}"
        raise InputError.of("utc_offset", "unknown", rule, "give the hours of the clock's offset")
    if fits_offset and any(log.zones):
        rule = "is for a log whose zones are not given"
        raise InputError.of("utc_offset", "unknown", rule, "leave one of them out")
    search = _Search(log, base or HabitAvailability(), seed, on_progress)
    free = []
    for parameter in parameters_of(search.base):
        if parameter.name == OFFSET and not fits_offset:
            continue
        if layout.kind in parameter.of:
            free.append(parameter)
        elif parameter.name in search.start:
            search.hold(parameter, f"a log of {layout.kind} does not tell it")
    search.choose(free)
    if not search.free:
        raise InputError("the log identifies no parameter; give one of more devices or days")
    fit = search.fit()
    is_clear = fits_offset or fit.grade == "fits" or len(log.zones) > 1
    if is_clear or layout.kind != "intervals" or isinstance(fit.table, PoissonAvailability):
        return fit
    hours = search.first_offset()
    if abs(hours) < _WORTH_AN_OFFSET:
        return fit
    given = next(iter(log.zones), 0.0)
    return replace(fit, proposed_offset_hours=(hours + given + 12.0) % 24.0 - 12.0)


class _Search:
    """The search for the parameters of one log. A place [P] is a value of each on its scale."""

    def __init__(
        self,
        log: ObservedLog,
        base: Fitted,
        seed: int,
        on_progress: Callable[[str], None],
    ) -> None:
        records, layout = log.records, log.layout
        self.records = records
        self.base = base
        self._zones = log.zones
        self.start = start_values(base)
        self.free: list[Parameter] = []
        self._held: list[Held] = []
        self._layout = layout
        self._on_progress = on_progress
        self._simulations = 0
        self.measured = layout.summary(records)
        self.covariance = self.measured.covariance(seed)
        self._seed = seed
        wanted = round(SIMULATED * records.devices)
        self.devices = min(max(wanted, LEAST_SIMULATED), MOST_SIMULATED)
        # The seed is far from usual ones, because a simulated log must not share these draws.
        far = seed + (1 << 40)
        self._large = Simulator(layout, self.devices, far)
        self._small = Simulator(layout, self.devices // FIRST_SHARE, far)
        # `_errors` needs two Jacobians whose noise is independent, so these devices differ.
        half = self.devices // 2
        self._halves = (
            Simulator(layout, half, far),
            Simulator(layout, self.devices - half, far, half),
        )
        # Weights must not depend on the statistics that they weigh, so these devices differ too.
        self._others = Simulator(layout, self.devices, far, self.devices)
        # Far from the estimate no simulated devices are like the log's, so its own covariance
        # serves.
        self._weigh(self.covariance, self.devices)
        if layout.kind != "intervals":
            # Devices of the defaults are eligible for about two and a half hours a day.
            daily = self.records.starts.size / self.records.devices / layout.days
            self.start[RATE] = min(max(daily / 2.5, 0.02), 20.0)
        self.start[OFFSET] = 0.0

    def _weigh(self, covariance: Float64Array, simulated: int) -> None:
        """Weighs statistics by the inverse of a covariance from now on.

        Args:
            covariance: [M, M], for the number of devices of the log.
            simulated: number of simulated devices that have a record, as all devices of the log
                have.
        """
        self._weights = _whitening(covariance)
        self._simulation_noise = self.records.devices / simulated
        of_log = self._weights @ self.covariance @ self._weights.T
        # Covariance of weighted differences. Simulated devices have the covariance of the weights.
        self._spread = of_log + self._simulation_noise * np.eye(len(self._weights))

    def hold(self, parameter: Parameter, reason: str) -> None:
        """Reports a parameter as one that is not fitted."""
        self._held.append(Held(parameter.name, self.start[parameter.name], reason))

    def choose(self, free: list[Parameter]) -> None:
        """Takes the parameters that the log identifies as free ones, and holds the others."""
        # The first offset is found before any parameter is free.
        if OFFSET in (each.name for each in free):
            self.start[OFFSET] = self.first_offset()
        self.free = free
        jacobian = self._jacobian(self._small, self._place(), is_central=False)
        self._hold_unknown(self._place(), [jacobian, jacobian])

    def _hold_unknown(self, place: Float64Array, jacobians: list[Float64Array]) -> Float64Array:
        """Returns the place of the parameters that stay free, whose columns are left.

        A parameter is held if its standard error is too large to be useful, the worst first, until
        all remaining ones are useful.
        """
        while self.free:
            most = [_MOST_ERROR[each.scale] for each in self.free]
            worse = self._errors(*jacobians) / most
            worst = int(np.argmax(worse))
            if worse[worst] <= 1.0:
                break
            self.hold(self.free[worst], "this log does not tell it")
            self.free = [*self.free[:worst], *self.free[worst + 1 :]]
            # The column of the worst goes as well, so that nothing is simulated again.
            place = np.delete(place, worst)
            jacobians[:] = [np.delete(each, worst, axis=1) for each in jacobians]
        return place

    def first_offset(self) -> float:
        """Returns the whole hours by which the log's day is most like the day of the base."""
        simulated = self._layout.summary(self._small.records(self.base))
        mine = np.asarray(self.measured.columns["hours"]).mean(axis=0)
        other = np.asarray(simulated.columns["hours"]).mean(axis=0)
        # The log's hour h is the hour h + offset of the devices.
        likeness = [float(mine @ np.roll(other, -hours)) for hours in range(-11, 13)]
        return float(np.argmax(likeness) - 11)

    def fit(self) -> HabitFit:
        """Estimates the free parameters."""
        # Far from the estimate few devices will do; then one Jacobian at full size is enough.
        place = self._first_estimate()
        others = self._simulated(self._others, place)
        # The covariance of means falls as 1 / devices.
        covariance = others.covariance(self._seed) * others.devices / self.records.devices
        self._weigh(covariance, others.devices)
        jacobians = [self._jacobian(half, place, is_central=True) for half in self._halves]
        # Far from its start a parameter may have lost its effect; the others fit its value here.
        self.start |= self._values(place)
        place = self._hold_unknown(place, jacobians)
        errors = self._errors(*jacobians)
        place = self._estimate(place, 0.5 * (jacobians[0] + jacobians[1]), errors)
        simulated = self._simulated(self._large, place)
        # The differences that remain at the estimate are the J statistic.
        difference = self._weights @ (simulated.values - self.measured.values)
        noise = 1.0 + self._simulation_noise
        rank = len(self._weights)
        # An inverse of a covariance from B draws is too large on average (Hartlap et al. 2007).
        too_large = (BOOTSTRAP_DRAWS - 1) / (BOOTSTRAP_DRAWS - rank - 2)
        values = self._values(place)
        # Intervals are symmetric on the scale, so their ends are carried over one by one.
        estimates = []
        for parameter, at, error, bound in zip(
            self.free, place, errors, self._bounds_at(place), strict=True
        ):
            low, high = (
                parameter.from_scale(float(at + side * error)) for side in (-NORMAL_95, NORMAL_95)
            )
            scaled_error = float(parameter.slope(float(at)) * error)
            value = values[parameter.name]
            estimates.append(Estimate(parameter.name, value, scaled_error, low, high, bound))
        return HabitFit(
            self._layout,
            self.records.devices,
            self.records.starts.size,
            self.devices,
            tuple(estimates),
            tuple(self._held),
            table_of(values, self.base),
            values[OFFSET] if any(each.name == OFFSET for each in self.free) else None,
            self._zones,
            None,
            self.measured,
            simulated,
            np.sqrt(noise * np.diag(self.covariance)),
            float(difference @ difference) / noise / too_large,
            rank - len(self.free),
        )

    def _bounds_at(self, place: Float64Array) -> list[Literal["", "lower", "upper"]]:
        """Returns the end of its search that each parameter [P] is at; empty inside."""
        low, high = self._bounds
        near = _AT_BOUND * (high - low)
        is_low, is_high = place <= low + near, place >= high - near
        return [
            "lower" if a else "upper" if b else "" for a, b in zip(is_low, is_high, strict=True)
        ]

    def _first_estimate(self) -> Float64Array:
        """Finds a place near the estimate with few devices: far from it, steps need no more."""
        found = optimize.least_squares(
            lambda place: self._difference(self._small, place),
            self._place(),
            # scipy's stubs do not know that a Jacobian may be a function.
            jac=lambda place: self._jacobian(self._small, place, is_central=False),  # pyright: ignore[reportArgumentType]
            bounds=self._bounds,
            x_scale="jac",
            ftol=1e-2,
            xtol=1e-3,
            max_nfev=_MOST_STEPS,
        )
        return found.x

    def _estimate(
        self, place: Float64Array, jacobian: Float64Array, errors: Float64Array
    ) -> Float64Array:
        """Gauss-Newton steps to the estimate with all devices and one Jacobian, as it is near."""
        difference = self._difference(self._large, place)
        for _ in range(_MOST_STEPS):
            step = -np.linalg.lstsq(jacobian, difference, rcond=None)[0]
            # A step that makes it worse is tried once more, at less than half of its length.
            for share in (1.0, 0.4):
                tried = np.clip(place + share * step, *self._bounds)
                again = self._difference(self._large, tried)
                is_better = again @ again < difference @ difference
                if is_better:
                    break
            # Counts change in jumps, so a step has a least size.
            if not is_better:
                break
            moved = np.abs(tried - place) / errors
            place, difference = tried, again
            # A log cannot resolve a few hundredths of a standard error.
            if moved.max() < 0.03:
                break
        return place

    def _errors(self, jacobian: Float64Array, other: Float64Array) -> Float64Array:
        """Returns standard errors [P] on the parameters' scales, by the sandwich formula.

        The sandwich is (J'G)^-1 J'SJ (G'J)^-1, with S the covariance of weighted differences: J is
        the Jacobian by whose directions the estimate was found, G the true one. J has noise, which
        would make J'J too large and the errors too small, most in the directions that the log
        identifies least. Two Jacobians of independent devices have the product G'G on average.

        Args:
            jacobian: [rank, P], weighted, from one half of the simulated devices.
            other: the same from the other half.
        """
        mean = 0.5 * (jacobian + other)
        # On the scale of unit diagonals, so that parameters of any size are alike.
        scale = np.linalg.norm(mean, axis=0)
        # A parameter that moves nothing is taken out first, before others have errors.
        if not scale.all():
            return np.where(scale == 0.0, np.inf, 0.0)
        product = 0.5 * (jacobian.T @ other + other.T @ jacobian) / np.outer(scale, scale)
        values, vectors = np.linalg.eigh(product)
        # An eigenvalue that noise made negative is next to nothing: the log hardly identifies that
        # direction.
        values = np.maximum(values, _LEAST_PRODUCT)
        bread = (vectors / values) @ vectors.T
        filling = mean.T @ self._spread @ mean / np.outer(scale, scale)
        return np.sqrt(np.diag(bread @ filling @ bread)) / scale

    def _jacobian(
        self, simulator: Simulator, place: Float64Array, is_central: bool
    ) -> Float64Array:
        """Derivatives [rank, P] of the weighted statistics, by common random numbers."""
        low, high = self._bounds
        # Differences to one side share their middle, which saves half of the simulations.
        here = None if is_central else self._difference(simulator, place)
        columns = []
        for at, parameter in enumerate(self.free):
            step = np.zeros(place.size)
            step[at] = _STEPS[parameter.scale]
            above = np.minimum(place + step, high)
            below, lower = place, here
            # At its upper end a parameter can only go down.
            if is_central or above[at] == place[at]:
                below = np.maximum(place - step, low)
            upper = self._difference(simulator, above)
            if lower is None or below is not place:
                lower = self._difference(simulator, below)
            columns.append((upper - lower) / (above[at] - below[at]))
        return np.stack(columns, axis=1)

    def _difference(self, simulator: Simulator, place: Float64Array) -> Float64Array:
        """[rank]; simulated minus measured statistics, weighted."""
        simulated = self._simulated(simulator, place)
        return self._weights @ (simulated.values - self.measured.values)

    def _simulated(self, simulator: Simulator, place: Float64Array) -> Summary:
        values = self._values(place)
        self._simulations += 1
        expected = max(8 * len(self.free) + 20, self._simulations)
        text = f"simulation {self._simulations}"
        self._on_progress(PartDone(text, self._simulations, expected, is_least=True))
        rate = values.get(RATE, math.inf)
        try:
            records = simulator.records(table_of(values, self.base), values[OFFSET], rate)
        except ScenarioError as error:
            raise FitFailed(
                f"the fit reached habits that cannot be simulated ({error}); the log may be unlike "
                f"the {self.base.model} model: fix some of its keys"
            ) from None
        return self._layout.summary(records)

    def _values(self, place: Float64Array) -> Mapping[str, float]:
        pairs = zip(self.free, place, strict=True)
        return self.start | {each.name: each.from_scale(float(at)) for each, at in pairs}

    def _place(self) -> Float64Array:
        low, high = self._bounds
        # A table may have a 0, which a logarithm has not.
        inside = [min(max(self.start[each.name], each.low), each.high) for each in self.free]
        start = [each.to_scale(at) for each, at in zip(self.free, inside, strict=True)]
        # The optimiser needs a start that is not on a bound.
        margin = 1e-3 * (high - low)
        return np.clip(start, low + margin, high - margin)

    @property
    def _bounds(self) -> tuple[Float64Array, Float64Array]:
        low = np.array([each.to_scale(each.low) for each in self.free])
        high = np.array([each.to_scale(each.high) for each in self.free])
        return low, high


def _whitening(covariance: Float64Array) -> Float64Array:
    """[rank, M]; makes differences of statistics independent, of variance one."""
    deviations = np.sqrt(np.diag(covariance))
    # A statistic that is the same in every resample (such as one of nights in a log without any)
    # has no weight.
    scale = np.divide(1.0, deviations, out=np.zeros_like(deviations), where=deviations > 1e-12)
    correlation = covariance * np.outer(scale, scale)
    values, vectors = np.linalg.eigh(correlation)
    # Directions of next to no variance would get next to infinite weight.
    kept = values > _LEAST_EIGENVALUE
    return (vectors[:, kept] / np.sqrt(values[kept])).T * scale
