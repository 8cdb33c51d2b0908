"""A sweep: a TOML file with the values that are varied, the mechanisms that are judged, and the
setting that each was made for.

    name = "min-sep at 3 participations"
    # Settings, or keys of the scenario if there is one.
    vary = {min_sep = [300, 350, 400], max_participations = [3]}
    # Optional: then every cell is a simulated run.
    scenario = "../quickstart.toml"
    estimate = {rounds = 2000, min_sep = 400, max_participations = 5}
    # Or noise_per_report: z = report goal x noise_per_report; or target_epsilon.
    noise_multiplier = 7.0
    x = "min_sep"
    y = "rms_loss"
    [[mechanisms]]
    kind = "banded"
    bands = 400
    made_for = ["estimate"]

A sweep with a trace, and without mechanisms, trains every cell (`fedray.studies.grid`).

Settings are rounds, min_sep, max_participations (a number, or "most" for ceil(rounds / min_sep)),
population and report_goal (whose quotient is the min-sep of a population that is cycled through,
where min_sep itself is not given).
"""

import importlib.util
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from fedray.base.errors import InputError, ScenarioError
from fedray.base.nearest import nearest_first
from fedray.base.rounding import as_set
from fedray.base.table import Positive, Table, read_table_file
from fedray.mechanisms.accounting.limits import LEAST_NOISE_MULTIPLIER, MOST_NOISE_MULTIPLIER
from fedray.mechanisms.loss import LOSS_NAMES, Objective, check_objective
from fedray.mechanisms.optimize.design import RECIPES, Kind, MechanismRequest, Recipe
from fedray.mechanisms.participation import MinSep, most_of_device
from fedray.mechanisms.workload import Workload
from fedray.runs.workloads import schedule_rates
from fedray.scenario import Scenario
from fedray.scenario.scenario import TRAINED_TABLES
from fedray.scenario.shipped import find_scenario

Count = Annotated[int, Field(ge=1)]
MadeFor = Literal["estimate", "truth", "distribution"]
Value = bool | int | float | str
SETTINGS = ("rounds", "min_sep", "max_participations", "population", "report_goal")
PLOTTED_LOSS: dict[str, Objective] = {
    "rms_loss": "rms",
    "rms_prefix_error": "rms",
    "rms_error": "rms",
    "max_loss": "max",
    "max_prefix_error": "max",
}
"""Loss behind a plotted figure."""
OF_OTHER_LOSS = {
    **{"rms_loss": "max_loss", "rms_prefix_error": "max_prefix_error"},
    **{"max_loss": "rms_loss", "max_prefix_error": "rms_prefix_error"},
}
"""The same figure of the other loss."""
ESTIMATED = "estimate.min_sep"
"""Key of several estimates, which are varied like values of a scenario."""
GOALS = ("rounds.report_goal", "report_goal")
"""Keys of the report goal: of a scenario, and as a setting."""
MOST_CELLS = 20_000
SEEDS = 3
TRAINING_KEYS = {"name", "description", "vary", "x", "trace", "seeds"}
"""Keys of a sweep that trains."""


class Estimate(Table):
    """A guess of (n, b, k) before a run, or several of b."""

    refusal: ClassVar[type[InputError]] = InputError

    rounds: Count
    """Rounds n."""
    min_sep: Annotated[
        Annotated[Count, Tag("one")]
        | Annotated[tuple[Count, ...], Field(strict=False, min_length=1), Tag("list")],
        Discriminator(lambda given: "list" if isinstance(given, list | tuple) else "one"),
    ]
    """Least difference of two rounds of one device, b. A list is varied as `estimate.min_sep`."""
    max_participations: Count | None = None
    """Most rounds of one device, k; default: ceil(rounds / min_sep)."""
    # Left out at its default, so that documents of sweeps without it have no such key.
    report_goal: Annotated[int, Field(ge=1, exclude_if=lambda goal: goal is None)] | None = None
    """Report goal for which the noise for a target is chosen; it grows in proportion to the goal of
    a cell, so that the signal-to-noise ratio of a mechanism is the same in all cells. Default: one
    noise for all goals."""

    @property
    def min_seps(self) -> tuple[int, ...]:
        """The guesses of b."""
        return self.min_sep if isinstance(self.min_sep, tuple) else (self.min_sep,)

    def participation(self, min_sep: int | None = None) -> MinSep:
        """A guess as mechanisms take it, by default the first. Raises InputError for an impossible
        one."""
        b = min_sep or self.min_seps[0]
        return MinSep(self.rounds, b, self.max_participations or most_of_device(self.rounds, b))


class MechanismSpec(Table):
    """A mechanism to judge, and the settings that it is optimised for, each with its row."""

    refusal: ClassVar[type[InputError]] = InputError

    kind: Kind
    """Kind of mechanism, as in `fedray optimize KIND`."""
    buffers: Count | None = None
    """Buffers of a blt."""
    bands: Count | None = None
    """Bands of a banded kind; default: the min-sep that it is made for."""
    objective: Objective | None = None
    """Optimised loss; default: that of the sweep."""
    made_for: Annotated[tuple[MadeFor, ...], Field(strict=False, min_length=1)] = ("estimate",)
    """estimate, truth (the outcome of each cell), distribution (all cells at once, alike in
    weight; only for a blt)."""

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if "distribution" in self.made_for and "targets" not in self.recipe.options:
            raise ValueError(
                f"made_for distribution: {self.kind} is not optimised for several outcomes; leave "
                "it out, or choose blt"
            )
        # The request refuses options that the kind does not have; its participation is a dummy.
        MechanismRequest(self.kind, MinSep(self.bands or 1, 1, 1), self.buffers, self.bands)
        return self

    @property
    def recipe(self) -> Recipe:
        """Recipe of mechanisms of this kind."""
        return RECIPES[self.kind]

    @property
    def needs_optimising(self) -> bool:
        """Whether the participation that the mechanism is made for makes a difference."""
        searched = self.recipe.searched
        return searched == "everything" or (searched == "bands" and not self.bands)


class Sweep(Table):
    """Varied values, and the mechanisms that are judged in each combination of them."""

    refusal: ClassVar[type[InputError]] = InputError

    name: str
    """Title of pages and tables."""
    description: str = ""
    """One sentence for people."""
    scenario: str | None = None
    """A scenario file, relative to this one, or the name of a shipped scenario: every cell is then
    a run of it."""
    vary: Annotated[dict[str, tuple[Value, ...]], Field(strict=False)] = Field(default_factory=dict)
    """Values by key; the cells are all their combinations, with several estimates and seeds."""
    estimate: Estimate | None = None
    """The guess before a run; needed by mechanisms made for it."""
    mechanisms: Annotated[
        tuple[MechanismSpec, ...], Field(strict=False, exclude_if=lambda given: not given)
    ] = ()
    """Tables: the mechanisms that are judged in every cell; required without a trace."""
    trace: str | None = None
    """A trace, relative to this file: every cell is then trained on it. Such a sweep has only the
    keys name, description, vary, x and seeds."""
    seeds: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Trainings of each cell, with `training.seed` from 1, by default 3; or runs of each cell of a
    scenario, with `seed` from 1, by default one."""
    noise_multiplier: (
        Annotated[float, Field(ge=LEAST_NOISE_MULTIPLIER, le=MOST_NOISE_MULTIPLIER)] | None
    ) = None
    """z; default: 1."""
    target_epsilon: Positive | None = None
    """In place of z: each mechanism has the least noise for this epsilon under the estimate, or
    under the outcome of the cell if it is made for the truth. Epsilon is then what was spent."""
    noise_per_report: Positive | None = None
    """z over the report goal: the signal-to-noise ratio is then the same in all cells."""
    delta: Annotated[float, Field(ge=1e-30, lt=1)] = 1e-10
    """delta of every epsilon."""
    x: str
    """Horizontal axis of plots: one of the varied keys."""
    y: Literal[
        "rms_loss",
        "max_loss",
        "regret",
        "rms_prefix_error",
        "max_prefix_error",
        "rms_error",
        "sensitivity",
        "rho",
        "epsilon",
        "person_epsilon",
        "min_sep",
        "max_participations",
        "days",
        "noise_multiplier",
    ] = "rms_loss"
    """Plotted figure of `fedray.studies.sweep.cells.Row`; errors are those of the mean if report
    goals vary. "regret" is over the cell's best mechanism, not over one made for the truth."""
    loss: Objective | None = None
    """Loss that mechanisms are made for and ranked by, "rms" or "max"; default: that of `y`, or rms
    if it is of no loss."""
    # Left out at its default, so that documents of sweeps over prefix sums have no such key.
    workload: Annotated[str, Field(exclude_if=lambda workload: workload == "prefix")] = "prefix"
    """Workload of losses and errors, such as "momentum=0.9,decay=0.95"; the part "schedule" is the
    learning-rate schedule of the scenario."""

    @field_validator("vary", mode="before")
    @classmethod
    def _as_tuples(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        found = {
            key: tuple(each) if isinstance(each, list | tuple) else (each,)
            for key, each in value.items()
        }
        for key, each in found.items():
            if tables := [one for one in each if isinstance(one, dict)]:
                keys = ", ".join(f'"{key}.{name}"' for name in tables[0])
                raise ValueError(f"a value of {key} is a table; vary its keys, {keys}")
        return found

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if not self.varied:
            raise ValueError("vary: is missing or empty; give the values of a key")
        if any(not values for values in self.vary.values()):
            raise ValueError(
                "vary: a list of values is empty; leave its key out, or give it a value"
            )
        if self.trace is None and self.scenario is None and self.seeds is not None:
            raise ValueError("seeds: are of runs; add a scenario or a trace, or leave them out")
        if ESTIMATED in self.vary:
            raise ValueError(f"vary: {ESTIMATED} takes its list in the table estimate")
        if self.seeds is not None and "seed" in self.vary:
            raise ValueError("seeds and vary.seed: give one of them")
        cells = math.prod(map(len, self.varied.values()))
        if cells > MOST_CELLS:
            raise ValueError(
                f"vary: {cells:,} cells are more than {MOST_CELLS:,}; leave some values out"
            )
        noises = ("noise_multiplier", "noise_per_report", "target_epsilon")
        given = [name for name in noises if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)}: give one of them")
        if self.shown_loss != PLOTTED_LOSS.get(self.y, self.shown_loss):
            raise ValueError(
                f"loss: is {self.loss}, and y = {self.y!r} is of another one; plot "
                f"{OF_OTHER_LOSS.get(self.y, 'regret')}, or leave loss out"
            )
        if self.y == "rms_error" and self.target_epsilon is None:
            raise ValueError("y: rms_error is at the noise for a target; add target_epsilon")
        if self.parsed_workload.rates and self.scenario is None:
            raise ValueError("workload: a schedule needs a scenario; add one, or leave it out")
        if self.trace is not None:
            self._check_training()
        elif not self.mechanisms:
            raise ValueError("mechanisms are missing; add a table [[mechanisms]], or a trace")
        # An impossible guess or setting is refused here, and not in the middle of a sweep.
        if self.estimate is not None:
            if len(set(self.estimate.min_seps)) < len(self.estimate.min_seps):
                raise ValueError("estimate.min_sep: a value stands twice; give each once")
            for min_sep in self.estimate.min_seps:
                self.estimate.participation(min_sep)
            has_goals = self.scenario is not None or "report_goal" in self.vary
            if self.estimate.report_goal and not (self.target_epsilon and has_goals):
                raise ValueError(
                    "estimate.report_goal: the noise for a target grows from it to the goals of "
                    "the cells; add target_epsilon, and report_goal to vary"
                )
        if self.scenario is None and self.trace is None:
            self._check_settings()
        if self.x not in self.varied:
            raise ValueError(f"{self.x!r} is not varied; x is one of {', '.join(self.varied)}")
        if not set(map(type, self.varied[self.x])) <= {int, float}:
            raise ValueError(f"{self.x!r} can be no axis: its values are no numbers")
        # A mechanism that is not optimised needs no estimate, though `made_for` has it by default.
        made_for = {each for spec in self.mechanisms for each in self.purposes(spec)}
        needs_estimate = made_for - {"truth"} if self.target_epsilon else made_for & {"estimate"}
        if needs_estimate and self.estimate is None:
            raise ValueError(
                "estimate is missing, and a mechanism or its noise is made for it; add rounds and "
                "min_sep"
            )
        return self

    @property
    def varied(self) -> dict[str, tuple[Value, ...]]:
        """Values by key: `vary`, several estimates, and the seeds of runs."""
        varied = dict(self.vary)
        if self.estimate is not None and isinstance(self.estimate.min_sep, tuple):
            varied[ESTIMATED] = self.estimate.min_sep
        if self.scenario is not None and self.seeds is not None:
            varied["seed"] = tuple(range(1, self.seeds + 1))
        return varied

    @property
    def shown_loss(self) -> Objective:
        """Loss that mechanisms are made for and ranked by."""
        return self.loss or PLOTTED_LOSS.get(self.y, "rms")

    def with_loss(self, loss: str) -> Self:
        """Returns the sweep with a loss, and with that of the plotted figure. Raises InputError."""
        check_objective(loss)
        if self.trace is not None:
            rule = "does not apply to a sweep that trains"
            raise InputError.of("loss", loss, rule, "leave it out")
        is_other = PLOTTED_LOSS.get(self.y, loss) != loss
        if is_other and self.y not in OF_OTHER_LOSS:
            rule = f"does not apply to a sweep that plots {self.y}"
            raise InputError.of("loss", loss, rule, "leave it out")
        y = OF_OTHER_LOSS[self.y] if is_other else self.y
        return self.model_copy(update={"loss": loss, "y": y})

    @property
    def names(self) -> dict[str, str]:
        """Short name of each key with several values, in order: columns of tables have them."""
        keys = [key for key, values in self.varied.items() if len(values) > 1]
        return short_names(keys) | ({ESTIMATED: "estimated min-sep"} if ESTIMATED in keys else {})

    @property
    def has_goals(self) -> bool:
        """Whether report goals differ between cells, so that only errors of means compare."""
        return not self.names.keys().isdisjoint(GOALS)

    @property
    def has_means(self) -> bool:
        """Whether figures are means over several seeds of each cell."""
        return len(self.varied.get("seed", ())) > 1 and self.x != "seed"

    def purposes(self, spec: MechanismSpec) -> tuple[MadeFor | None, ...]:
        """What a mechanism, or its noise, is made for; None for anything."""
        is_made = spec.needs_optimising or self.target_epsilon is not None
        return spec.made_for if is_made else (None,)

    def estimate_of(self, cell: "Cell") -> MinSep | None:
        """Returns the guess before the run of a cell."""
        if self.estimate is None:
            return None
        return self.estimate.participation(cell.get(ESTIMATED))

    @property
    def parsed_workload(self) -> Workload:
        """The workload, with a rate of one round in place of a schedule."""
        return Workload.parse(self.workload, (1.0,))

    def workload_over(self, rounds: int, scenario: Scenario | None) -> Workload:
        """Returns the workload for a number of rounds, with the scenario's schedule if named."""
        if scenario is None or not self.parsed_workload.rates:
            return self.parsed_workload
        return Workload.parse(self.workload, schedule_rates(scenario.training, rounds))

    def _check_training(self) -> None:
        if wrong := self.model_fields_set - TRAINING_KEYS:
            named = ", ".join(sorted(wrong))
            raise ValueError(f"{named}: has no use in a sweep that trains; leave it out")
        for key, values in self.vary.items():
            if len(set(values)) < len(values):
                raise ValueError(f"vary.{key}: a value stands twice; give each once")
            if key.split(".")[0] not in TRAINED_TABLES or key == "training.seed":
                raise ValueError(
                    f"vary.{key}: may change who takes part, or the seed, but all cells train on "
                    "one trace with the same seeds; vary other keys of data, training and privacy"
                )

    def draws(self) -> list[tuple[int, int]]:
        """Place of the cell, and `training.seed`, of each training."""
        return list(
            itertools.product(range(len(self.cells())), range(1, (self.seeds or SEEDS) + 1))
        )

    def _check_settings(self) -> None:
        for key, values in self.vary.items():
            if key not in SETTINGS:
                raise ValueError(
                    f"vary.{key}: settings are {', '.join(SETTINGS)}; other keys need a scenario"
                )
            for value in values:
                is_most = key == "max_participations" and value == "most"
                if not is_most and not (type(value) is int and value >= 1):
                    raise ValueError(f"vary.{key}: {value!r} must be a whole number of at least 1")
        if "rounds" not in self.vary and self.estimate is None:
            raise ValueError(
                "rounds are given nowhere; vary them (one value will do), or give an estimate"
            )
        if "min_sep" not in self.vary and not {"population", "report_goal"} <= self.vary.keys():
            raise ValueError("min_sep is given nowhere; vary it, or population and report_goal")
        if self.noise_per_report is not None and "report_goal" not in self.vary:
            raise ValueError("noise_per_report: needs report_goal among the varied keys")
        for cell in self.cells():
            self.setting_of(cell)

    def setting_of(self, cell: "Cell") -> MinSep:
        """Returns (n, b, k) of a cell without a scenario. Raises InputError if it is impossible.

        Rounds come from the estimate if the cell has none. Without a min-sep, devices take turns:
        b = population / report goal. k is at most ceil(n / b), for which the rounds have room.
        """
        rounds = cell.get("rounds")
        if not rounds:
            # A sweep that does not vary the rounds has an estimate.
            assert self.estimate is not None
            rounds = self.estimate.rounds
        min_sep = cell.get("min_sep")
        if not min_sep:
            min_sep = max(1, cell.get("population") // cell.get("report_goal"))
        most = most_of_device(rounds, min_sep)
        wanted = cell.get("max_participations") or "most"
        return MinSep(rounds, min_sep, most if wanted == "most" else min(wanted, most))

    @classmethod
    def from_toml(cls, path: str | Path) -> tuple[Self, Scenario | None]:
        """Reads a sweep from a TOML file, and its scenario if it has one.

        Every cell is tried, so that a long sweep does not find out late that one is impossible.
        Raises InputError in one line.
        """
        sweep = read_table_file(cls, path, "sweep")
        if sweep.trace is not None:
            return sweep.model_copy(update={"trace": str(Path(path).parent / sweep.trace)}), None
        if sweep.scenario is None:
            return sweep, None
        beside = Path(path).parent / sweep.scenario
        is_file = beside.suffix or beside.is_file()
        scenario = Scenario.from_toml(beside if is_file else find_scenario(sweep.scenario))
        for cell in sweep.cells():
            cell.scenario_of(scenario)
        return sweep, scenario

    def objective_of(self, spec: MechanismSpec) -> Objective | None:
        """Loss that a mechanism is optimised for, or None if it is not optimised."""
        return (spec.objective or self.shown_loss) if spec.needs_optimising else None

    def label(self, spec: MechanismSpec, made_for: MadeFor | None) -> str:
        """Names a mechanism in tables and plots: kind, size, objective and purpose."""
        label: str = spec.kind
        if spec.bands:
            label += f" {spec.bands} bands"
        elif spec.buffers:
            label += f" {spec.buffers} buffers"
        objective = self.objective_of(spec)
        if objective:
            label += f", least {LOSS_NAMES[objective]} for the {made_for}"
        if self.target_epsilon is not None and (not objective or made_for == "distribution"):
            label += f", noise for the {'truth' if made_for == 'truth' else 'estimate'}"
        return label

    def cells(self) -> "list[Cell]":
        """All combinations, in order of the file: the last key varies fastest."""
        return [
            Cell(tuple(zip(self.varied, combination, strict=True)))
            for combination in itertools.product(*self.varied.values())
        ]


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of values."""

    values: tuple[tuple[str, Value], ...]
    """Keys with their values, in the order of the sweep's file."""

    def __str__(self) -> str:
        return " ".join(f"{key.split('.')[-1]}={as_set(value)}" for key, value in self.values)

    def get(self, key: str) -> Any:
        """Returns the value of a key (a setting, or a scenario's "table.key"), or None."""
        return dict(self.values).get(key)

    @property
    def report_goal(self) -> int | None:
        """Varied report goal, or None."""
        return next(filter(None, map(self.get, GOALS)), None)

    def scenario_of(self, scenario: Scenario) -> Scenario:
        """Returns the scenario with this cell's values; untrained, since participation does not
        depend on the model. Raises ScenarioError."""
        # JSON writes numbers and strings as TOML does, which overrides are read as.
        settings = [f"{key}={json.dumps(value)}" for key, value in self.values if key != ESTIMATED]
        try:
            return scenario.with_overrides("training.enabled=false", *settings)
        # A sweep has many cells, so the error names the one that is impossible.
        except ScenarioError as error:
            raise ScenarioError(f"cell {dict(self.values)}: {error}") from None


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Returns each dotted key's last part, or as many parts as no other of the keys ends with."""
    parts = {key: key.split(".") for key in keys}

    def shortest(key: str) -> str:
        others = [each for each in keys if each != key]
        ends = (".".join(parts[key][-n:]) for n in range(1, len(parts[key]) + 1))
        return next((e for e in ends if not any(f".{o}".endswith(f".{e}") for o in others)), key)

    return {key: shortest(key) for key in keys}


def shipped_sweeps() -> dict[str, Path]:
    """Files of the sweeps that come with the `scenarios` package, by name, sorted."""
    package = importlib.util.find_spec("fedray.scenarios")
    locations = package.submodule_search_locations if package else None
    folders = [Path(each).resolve() / "sweeps" for each in locations or []]
    return {file.stem: file for folder in folders for file in sorted(folder.glob("*.toml"))}


def find_sweep(name: str) -> tuple[Sweep, Scenario | None]:
    """Reads a shipped sweep by its name, or the sweep of a TOML file, and its scenario if it has
    one. Raises InputError."""
    shipped = shipped_sweeps()
    if name not in shipped and not name.endswith(".toml"):
        names = ", ".join(nearest_first(name, shipped))
        raise InputError(
            f"sweep {name!r} is no file and none of {names}; name one of them, or a TOML file"
        )
    return Sweep.from_toml(shipped.get(name, Path(name)))
