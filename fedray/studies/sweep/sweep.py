"""A sweep: a TOML file that says what is varied, which mechanisms are judged, and what they were
made for.

    name = "min-sep at 3 participations"
    # Settings, or keys of the scenario if there is one.
    vary = {min_sep = [300, 350, 400], max_participations = [3]}
    # Optional: then every cell is a simulated run.
    scenario = "../quickstart.toml"
    estimate = {rounds = 2000, min_sep = 400, max_participations = 5}
    # Or noise_per_report: z = report goal x noise_per_report.
    noise_multiplier = 7.0
    x = "min_sep"
    y = "rms_loss"
    [[mechanisms]]
    kind = "banded"
    bands = 400
    made_for = ["estimate"]

Settings are rounds, min_sep, max_participations (a number, or "most" for ceil(rounds / min_sep)),
population and report_goal (whose quotient is the min-sep of a population that is cycled through,
where min_sep itself is not given).
"""

import importlib.util
import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from fedray.base.errors import InputError, ScenarioError
from fedray.base.mistakes import nearest_first
from fedray.base.table import Positive, Table, read_table_file
from fedray.mechanisms.accounting.limits import LEAST_NOISE_MULTIPLIER, MOST_NOISE_MULTIPLIER
from fedray.mechanisms.optimize.design import RECIPES, Kind, MechanismRequest, Recipe
from fedray.mechanisms.optimize.objective import Objective
from fedray.mechanisms.participation import MOST_ROUNDS, MinSep
from fedray.scenario import Scenario

Count = Annotated[int, Field(ge=1)]
MadeFor = Literal["estimate", "truth", "distribution"]
Value = int | float | str
SETTINGS = ("rounds", "min_sep", "max_participations", "population", "report_goal")
PLOTTED_LOSS: dict[str, Objective] = {
    "rms_loss": "rms",
    "regret": "rms",
    "rms_prefix_error": "rms",
    "max_loss": "max",
    "max_prefix_error": "max",
}
"""Which loss a figure is made of."""
LOSS_NAMES: dict[Objective, str] = {"rms": "RmsLoss", "max": "MaxLoss"}
MOST_CELLS = 20_000


class Estimate(Table):
    """A guess of what will happen, (n, b, k), as somebody makes it before a run."""

    refusal: ClassVar[type[InputError]] = InputError

    rounds: Count
    """Rounds n."""
    min_sep: Count
    """Least difference of two rounds of one device, b."""
    max_participations: Count
    """Most rounds of one device, k."""

    def participation(self) -> MinSep:
        """The guess as mechanisms and sensitivities take it. Raises InputError for one that is
        impossible."""
        return MinSep(self.rounds, self.min_sep, self.max_participations)


class MechanismSpec(Table):
    """A mechanism to judge, and what it is optimised for; one mechanism may be made for several
    things, each with its row."""

    refusal: ClassVar[type[InputError]] = InputError

    kind: Kind
    """Kind of mechanism, as in `fedray optimize KIND`."""
    buffers: Count | None = None
    """Buffers of a blt."""
    bands: Count | None = None
    """Bands of a banded kind; default: the min-sep that it is made for."""
    objective: Objective | None = None
    """Which loss is optimised; default: of a blt the one that is plotted, else that of its
    paper."""
    made_for: Annotated[tuple[MadeFor, ...], Field(strict=False, min_length=1)] = ("estimate",)
    """estimate, truth (what happens in each cell), distribution (all cells at once, alike in
    weight; of a blt)."""

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if "distribution" in self.made_for and "targets" not in self.recipe.options:
            raise ValueError(
                f"made_for distribution: {self.kind} is not optimised for several outcomes; leave "
                "it out, or choose blt"
            )
        # The request refuses options that the kind does not have; its participation is a dummy.
        MechanismRequest(
            self.kind, MinSep(self.bands or 1, 1, 1), self.buffers, self.bands, self.objective
        )
        return self

    @property
    def recipe(self) -> Recipe:
        """How mechanisms of this kind are made."""
        return RECIPES[self.kind]

    @property
    def needs_optimising(self) -> bool:
        """Whether the participation that the mechanism is made for makes a difference."""
        searched = self.recipe.searched
        return searched == "everything" or (searched == "bands" and not self.bands)


class Sweep(Table):
    """A sweep: what is varied, and which mechanisms are judged in each combination of the
    values."""

    refusal: ClassVar[type[InputError]] = InputError

    name: str
    """What pages and tables call it."""
    description: str = ""
    """One sentence for people."""
    scenario: str | None = None
    """A scenario file, relative to this one: every cell is then a run of it."""
    vary: Annotated[dict[str, tuple[Value, ...]], Field(min_length=1, strict=False)]
    """Values by key; the cells are all their combinations."""
    estimate: Estimate | None = None
    """What was guessed before; needed by mechanisms made for it."""
    mechanisms: Annotated[tuple[MechanismSpec, ...], Field(strict=False, min_length=1)]
    """Tables: the mechanisms that are judged in every cell."""
    noise_multiplier: (
        Annotated[float, Field(ge=LEAST_NOISE_MULTIPLIER, le=MOST_NOISE_MULTIPLIER)] | None
    ) = None
    """z; default: 1."""
    noise_per_report: Positive | None = None
    """z over the report goal: the signal-to-noise ratio is then the same in all cells."""
    delta: Annotated[float, Field(ge=1e-30, lt=1)] = 1e-10
    """delta of every epsilon."""
    x: str
    """What plots have as their horizontal axis: one of the keys that are varied."""
    y: Literal[
        "rms_loss",
        "max_loss",
        "regret",
        "rms_prefix_error",
        "max_prefix_error",
        "sensitivity",
        "rho",
        "epsilon",
        "min_sep",
        "noise_multiplier",
    ] = "rms_loss"
    """What is plotted, a figure of `fedray.studies.sweep.cells.Row`."""
    plane: str | None = None
    """The vertical axis of a plane: another key that is varied."""

    @field_validator("vary", mode="before")
    @classmethod
    def _as_tuples(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {
            key: tuple(each) if isinstance(each, list | tuple) else (each,)
            for key, each in value.items()
        }

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if any(not values for values in self.vary.values()):
            raise ValueError(
                "vary: a list of values is empty; leave its key out, or give it a value"
            )
        if self.noise_multiplier is not None and self.noise_per_report is not None:
            raise ValueError("noise_multiplier and noise_per_report: give one of them")
        if self.scenario is None:
            self._check_settings()
        for axis in (self.x, *([self.plane] if self.plane else [])):
            if axis not in self.vary:
                raise ValueError(
                    f"{axis!r} is not varied; the axes are among {', '.join(self.vary)}"
                )
            if not all(isinstance(value, int | float) for value in self.vary[axis]):
                raise ValueError(
                    f"{axis!r} has values that are no numbers, so it can be no axis; take another "
                    "key"
                )
        # What is not optimised needs no estimate, even if it is the default of `made_for`.
        made_for = {
            each for spec in self.mechanisms for each in spec.made_for if spec.needs_optimising
        }
        if "estimate" in made_for and self.estimate is None:
            raise ValueError(
                "estimate is missing, and a mechanism is made for it; add rounds, min_sep and "
                "max_participations"
            )
        # An impossible guess is refused here, and not in the middle of a sweep.
        if self.estimate is not None:
            self.estimate.participation()
        cells = 1
        for values in self.vary.values():
            cells *= len(values)
        if cells > MOST_CELLS:
            raise ValueError(
                f"vary: {cells:,} cells are more than {MOST_CELLS:,}; leave some values out"
            )
        return self

    def _check_settings(self) -> None:
        for key, values in self.vary.items():
            if key not in SETTINGS:
                raise ValueError(
                    f"vary.{key}: settings are {', '.join(SETTINGS)}; other keys need a scenario"
                )
            for value in values:
                if not (isinstance(value, int) and value >= 1) and not (
                    key == "max_participations" and value == "most"
                ):
                    raise ValueError(f"vary.{key}: {value!r} must be a whole number of at least 1")
                if key in ("rounds", "min_sep") and isinstance(value, int) and value > MOST_ROUNDS:
                    raise ValueError(
                        f"vary.{key}: {value:,} is above {MOST_ROUNDS:,}; no run is so long"
                    )
        if "rounds" not in self.vary and self.estimate is None:
            raise ValueError(
                "rounds are given nowhere; vary them (one value will do), or give an estimate"
            )
        if "min_sep" not in self.vary:
            if not {"population", "report_goal"} <= self.vary.keys():
                raise ValueError("min_sep is given nowhere; vary it, or population and report_goal")
            population, goal = (self.vary[key] for key in ("population", "report_goal"))
            # The largest min-sep is that of the largest population and the smallest goal.
            if max(map(int, population)) // min(map(int, goal)) > MOST_ROUNDS:
                raise ValueError(
                    f"vary: population / report_goal is above {MOST_ROUNDS:,} somewhere; no run is "
                    "so long"
                )
        if self.noise_per_report is not None and "report_goal" not in self.vary:
            raise ValueError("noise_per_report: needs report_goal among what is varied")

    @classmethod
    def from_toml(cls, path: str | Path) -> tuple[Self, Scenario | None]:
        """The sweep of the TOML file at `path`, and its scenario if it has one.

        Every cell is tried, so that a long sweep does not find out late that one is impossible.
        Raises InputError in one line.
        """
        sweep = read_table_file(cls, path, "sweep")
        if sweep.scenario is None:
            return sweep, None
        scenario = Scenario.from_toml(Path(path).parent / sweep.scenario)
        for cell in sweep.cells():
            cell.scenario_of(scenario)
        return sweep, scenario

    def objective_of(self, spec: MechanismSpec) -> Objective | None:
        """Loss that a mechanism is optimised for, or None if it is not optimised.

        A kind that can be optimised for all cells is optimised for the plotted loss. Others keep
        their papers' loss, because MaxLoss takes hours for matrices.
        """
        if not spec.needs_optimising:
            return None
        if spec.objective is not None:
            return spec.objective
        usual = spec.recipe.objective
        is_for_plot = "targets" in spec.recipe.options
        return PLOTTED_LOSS.get(self.y, usual) if is_for_plot else usual

    def label(self, spec: MechanismSpec, made_for: MadeFor) -> str:
        """Names a mechanism in tables and plots: what it is, for which loss it is optimised,
        and for what.

        Args:
            spec: the mechanism.
            made_for: "estimate", "truth" or "distribution".
        """
        label: str = spec.kind
        if spec.bands:
            label += f" {spec.bands} bands"
        elif spec.buffers:
            label += f" {spec.buffers} buffers"
        objective = self.objective_of(spec)
        if objective:
            label += f", least {LOSS_NAMES[objective]} for the {made_for}"
        return label

    def cells(self) -> "list[Cell]":
        """All combinations, in order of the file: the last key varies fastest."""
        cells = []
        for combination in itertools.product(*self.vary.values()):
            values = zip(self.vary, combination, strict=True)
            cells.append(Cell(tuple(values)))
        return cells


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of values."""

    values: tuple[tuple[str, Value], ...]
    """Keys with their values, in the order of the sweep's file."""

    def get(self, key: str) -> Any:
        """The value of a `key`, a setting or a scenario's "table.key"; None for what is not
        varied."""
        return dict(self.values).get(key)

    def scenario_of(self, scenario: Scenario) -> Scenario:
        """The `scenario` with this cell's values set in it; untrained, since participation does not
        depend on what is learned. Raises ScenarioError."""
        # JSON writes numbers and strings as TOML does, which overrides are read as.
        settings = [f"{key}={json.dumps(value)}" for key, value in self.values]
        try:
            return scenario.with_overrides("training.enabled=false", *settings)
        # A sweep has many cells, so the error names the one that is impossible.
        except ScenarioError as error:
            raise ScenarioError(f"cell {dict(self.values)}: {error}") from None


def shipped_sweeps() -> dict[str, Path]:
    """Files of the sweeps that come with the `scenarios` package, by name, in order of their
    names."""
    package = importlib.util.find_spec("fedray.scenarios")
    locations = package.submodule_search_locations if package else None
    found = {}
    for folder in locations or []:
        for file in sorted((Path(folder).resolve() / "stress").glob("*.toml")):
            found[file.stem] = file
    return found


def find_sweep(name: str) -> tuple[Sweep, Scenario | None]:
    """The sweep of a `name`, and its scenario if it has one: by the name of a shipped sweep, or
    else by the path of a TOML file. Raises InputError."""
    shipped = shipped_sweeps()
    if name in shipped:
        return Sweep.from_toml(shipped[name])
    if not name.endswith(".toml"):
        names = ", ".join(nearest_first(name, shipped))
        raise InputError(
            f"sweep {name!r} is no file and none of {names}; name one of them, or a TOML file"
        )
    return Sweep.from_toml(Path(name))
