"""Scenario: everything that may change a result. A frozen value, read from TOML, written back to
TOML.

Each table of the file is a class below; each key is a field with its unit in its name or its
description. `fedray schema` prints the same as a JSON schema. What may only change the wall clock
is in `fedray.placement`.
"""

import hashlib
import importlib.util
import itertools
import json
import math
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import tomli_w
from pydantic import (
    BaseModel,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fedray.availability import (
    MODELS,
    Availability,
    HabitAvailability,
)
from fedray.content import ContentFile, PythonFile
from fedray.errors import ScenarioError, one_line, shown
from fedray.mistakes import explain
from fedray.parsing import parse_toml
from fedray.table import Positive, PositiveShare, Share, Spread, Table
from mechanisms.files import strategy_beside
from mechanisms.registry import BLT, AnyStrategy
from mechanisms.toeplitz import ToeplitzStrategy
from mechanisms.triangular import MatrixFile

LARGEST_NOISE_GROWTH = 1e6
"""Of a coefficient of C^-1: beyond, float32 noise would drown itself."""
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class TimeZone(Table):
    """One time zone and how many of the devices live in it."""

    utc_offset_hours: Annotated[float, Field(ge=-12, le=14)] = 0.0
    """Local time minus UTC, hours."""
    share: PositiveShare = 1.0
    """Share of the population; the shares of all zones sum to 1."""


class Population(Table):
    """Who the devices are."""

    devices: Annotated[int, Field(gt=0, lt=2**40)]
    """Devices in the population."""
    time_zones: Annotated[tuple[TimeZone, ...], Field(strict=False, min_length=1)] = (TimeZone(),)
    """Where the devices live."""
    reach: PositiveShare = 1.0
    """Share of the population that the task can use at all (wifi, competing tasks, caps)."""
    unreachable: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of devices that are never eligible; 0.20 when `devices` counts installs, 0 when it
    counts devices seen."""
    joins_per_day: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    """Devices that join in a day, evenly. Ids are given in turn to each block of 65,536, in the
    order of joining."""
    lifetime_days: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Mean days until a device leaves for good (exponential); none: nobody leaves."""
    examples_median: Annotated[float, Field(gt=0, le=1e6)] = 60.0
    """Median number of training examples on a device."""
    examples_sigma: Spread = 0.6
    """Log-standard deviation of the examples between devices."""
    examples_max: Annotated[int, Field(gt=0, lt=2**32)] = 400
    """Most examples that a device holds; the rest of the log-normal's tail is cut."""

    @model_validator(mode="after")
    def _shares_sum_to_one(self) -> Self:
        total = math.fsum(zone.share for zone in self.time_zones)
        if abs(total - 1.0) > 1e-9:
            raise ValueError(f"time_zones: the shares sum to {total:g}, not 1; scale them")
        return self


class Participation(Table):
    """When a device may take part again."""

    timer_hours: Annotated[float, Field(ge=0, le=87_840)] = 72.0
    """Hours that must pass before a device may be selected again; 0 for none."""
    round_separation: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Least difference between the numbers of two rounds of one device, which it remembers; 0 for
    none."""
    timer_resets_on: Literal["accepted", "reported", "selected"] = "accepted"
    """What starts the timer: its report is accepted; it reports at all (late included); it is
    selected."""
    max_participations: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """Most contributions of a device, which counts its accepted reports and never takes part again
    after that many; none: no cap. Reports accepted in rounds that were abandoned later count too,
    since the device cannot know. Devices that ignore the timer keep the cap."""
    timer_violators: Share = 0.0
    """Stress: share of devices that ignore the timer."""
    clock_skew_hours: Annotated[float, Field(ge=0, le=1000)] = 0.0
    """Stress: standard deviation of the error of a device's timer, hours (normal, the same in all
    rounds of a device)."""


class Latency(Table):
    """How long a selected device takes; see clients/latency.py."""

    setup_seconds: Annotated[float, Field(ge=0, le=1e6)] = 20.0
    """Fixed time before training starts, seconds."""
    train_seconds: Annotated[float, Field(gt=0, le=1e6)] = 90.0
    """Median training time at the median number of examples, seconds."""
    speed_between: Spread = 0.6
    """Log-standard deviation of the training time between devices."""
    speed_within: Spread = 0.3
    """Log-standard deviation of the training time between the rounds of one device."""
    model_megabytes: Annotated[float, Field(ge=0, le=1e6)] = 10.0
    """Size of the model that is downloaded and of the update that is uploaded, megabytes each."""
    downlink_megabytes_per_second: Annotated[float, Field(ge=1e-3, le=1e6)] = 4.3
    """Median download rate."""
    downlink_sigma: Spread = 0.47
    """Log-standard deviation of the download rate between devices."""
    uplink_megabytes_per_second: Annotated[float, Field(ge=1e-3, le=1e6)] = 3.3
    """Median upload rate."""
    uplink_sigma: Spread = 0.68
    """Log-standard deviation of the upload rate between devices."""
    failure_probability: Annotated[float, Field(ge=0, lt=1)] = 0.03
    """Probability that a selected device fails for a reason of its own (crash, network)."""
    slowdown: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    """Stress: factor on the time from being selected to having reported; secure aggregation at
    0.66x speed is 1.5."""


class Outage(Table):
    """A time in which the server takes neither check-ins nor reports."""

    start_hours: Annotated[float, Field(ge=0, le=87_840)]
    """Start, hours since the start of the run."""
    hours: Annotated[float, Field(gt=0, le=87_840)]
    """Length, hours."""


class Rounds(Table):
    """What the server does in a round."""

    count: Annotated[int, Field(gt=0, lt=2**31)]
    """Rounds to commit."""
    report_goal: Annotated[int, Field(gt=0)]
    """Reports that close a round; every committed round has exactly this many accepted updates."""
    over_selection: Annotated[float, Field(ge=1, le=10)] = 1.3
    """Devices selected per report needed."""
    selection_timeout_minutes: Annotated[float, Field(ge=1)] = 1440.0
    """Longest wait for enough devices; then the round goes on if at least report_goal wait, else it
    is abandoned."""
    report_timeout_minutes: Annotated[float, Field(ge=1)] = 30.0
    """Longest wait for the reports; then the round is abandoned."""
    min_minutes_between: Annotated[float, Field(gt=0, le=87_840)] | None = None
    """Least minutes from the start of a committed round to the start of the next; none: a round
    starts as soon as it can. 144 makes at most ten rounds a day. Devices that check in before
    wait."""
    max_checkins_per_hour: Annotated[float, Field(ge=0.01, le=60)] = 6.0
    """Most check-ins of an eligible device per hour (pace steering asks for fewer when devices are
    plenty)."""
    pace_multiple: Annotated[float, Field(ge=1)] = 1.25
    """Check-ins that pace steering asks for per device that rounds at full speed could select."""
    small_population: Annotated[float, Field(ge=0)] = 20.0
    """Usable devices per device to select below which pace steering asks devices to come together
    instead of spreading them."""
    together_minutes: Annotated[float, Field(ge=1)] = 10.0
    """Minutes at the start of a look-ahead window in which the devices of a small population are
    asked to come."""
    outages: Annotated[tuple[Outage, ...], Field(strict=False)] = ()
    """Stress: times in which the server is down, in order, apart."""
    sampler: Literal["predicted", "enumeration", "thinning"] = "predicted"
    """How check-ins are drawn: whichever is predicted to cost less, or one of the two for good.
    Both draw the same process."""
    look_ahead_minutes: Annotated[float, Field(ge=1, le=360)] = 60.0
    """Length of the windows for which check-in rates are set and check-ins are drawn, minutes; must
    divide a day."""
    max_days: Annotated[float, Field(gt=0, le=3660)] = 366.0
    """Simulated days after which a run that has not committed its rounds ends as starved."""

    @property
    def selection_target(self) -> int:
        """Devices that must wait at once for a round to start: report_goal x over_selection,
        rounded up."""
        return math.ceil(round(self.report_goal * self.over_selection, 9))

    @model_validator(mode="after")
    def _windows_divide_a_day(self) -> Self:
        windows = 1440.0 / self.look_ahead_minutes
        if abs(windows - round(windows)) > 1e-9:
            raise ValueError(
                f"look_ahead_minutes={self.look_ahead_minutes:g}: must divide a day of 1440; take "
                "30 or 60"
            )
        return self

    @model_validator(mode="after")
    def _outages_are_in_order(self) -> Self:
        for before, after in itertools.pairwise(self.outages):
            if after.start_hours <= before.start_hours + before.hours:
                raise ValueError(
                    f"outages: the one at hour {after.start_hours:g} starts before the one at hour "
                    f"{before.start_hours:g} is over; "
                    "put them in order, and join those that touch"
                )
        return self


class SGD(Table):
    """Stochastic gradient descent on a device."""

    learning_rate: Positive = 1.0
    """Step size of the local steps."""
    batch_size: Annotated[int, Field(gt=0, lt=2**31)] = 8
    """Examples per local step."""
    local_steps: Annotated[int, Field(gt=0, lt=2**31)] = 2
    """Local steps per round: a device trains on the first batch_size x local_steps of its examples;
    one that holds fewer goes round again."""


class FedAvgMomentum(Table):
    """Server update: momentum on the average of the clipped, noised updates (FedAvg with server
    momentum)."""

    learning_rate: Positive = 1.0
    """Step size of the server."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Share of the previous step that is kept."""


class Training(Table):
    """What is trained; without training the population, the rounds, the trace and the audit are the
    same."""

    enabled: bool = True
    """Whether a model is trained."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """Seed of the model, its data and its noise; none: the scenario's. The population never depends
    on it."""
    task: str = "next_word"
    """Model, data and metric: a name of clients/tasks/registry.py, or custom."""
    cohort_sample: Annotated[int, Field(gt=0, le=100_000)] = 64
    """Accepted devices of a round that really train; the noise is scaled by cohort_sample /
    report_goal."""
    client: SGD = SGD()
    """Optimiser on the device."""
    server: FedAvgMomentum = FedAvgMomentum()
    """Optimiser on the server."""
    evaluate_every: Annotated[int, Field(gt=0, lt=2**31)] = 10
    """Rounds between two evaluations on held-out text."""
    checkpoint_every: Annotated[int, Field(gt=0, lt=2**31)] = 100
    """Rounds between two copies of the aggregator's state, from which it goes on when it is
    lost."""


class CustomTraining(PythonFile, Training):
    """Training of a task of the user's own, from a Python file that imports what it needs.

    The file defines `task`, a function or a class. `task(seed)` gives an object with what
    `clients.tasks.task.Task` lists, such as a `clients.tasks.module.ModuleTask`. Every trainer
    calls it once, with torch's own generator seeded too. Nothing is run when a trace is read.
    """

    task: Literal["custom"] = "custom"  # pyright: ignore[reportIncompatibleVariableOverride]
    """A task of the user's own."""
    table: ClassVar[str] = "training"


def _task_tag(value: Any) -> str:
    task = value.get("task") if isinstance(value, dict) else getattr(value, "task", None)
    return "custom" if task == "custom" else "named"


AnyTraining = Annotated[
    Annotated[Training, Tag("named")] | Annotated[CustomTraining, Tag("custom")],
    Discriminator(_task_tag),
]
"""The table of a shipped task, or that of a user's own; told apart by `task`."""


class Privacy(Table):
    """The noise mechanism and what it claims."""

    mechanism: AnyStrategy = Field(
        default=BLT(
            kind="blt",
            theta=(0.9953348970002772, 0.8122920858683399),
            omega=(0.12828660029532482, 0.32906048602262866),
        ),
        description="Strategy matrix C: a table with `kind` and that kind's parameters (see "
        "mechanisms/README.md), or the name of "
        "a mechanism file beside the scenario's.",
    )
    noise_multiplier: Annotated[float, Field(ge=0.01, le=1e6)] = 7.0
    """Noise standard deviation over the clip norm, for C of unit scale (z of
    mechanisms/README.md)."""
    clip_norm: Annotated[float, Field(ge=1e-6, le=1e6)] = 1.0
    """Largest L2 norm of a device's update."""
    delta: Annotated[float, Field(ge=1e-30, lt=1)] = 1e-10
    """Delta at which epsilon is reported."""

    @field_validator("mechanism", mode="before")
    @classmethod
    def _from_file(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, str):
            return strategy_beside(value, "scenario", info.context)
        return value


class Scenario(Table):
    """A whole run, whose trace is a function of this value alone."""

    name: Annotated[str, Field(pattern=NAME_PATTERN, max_length=80)] = "scenario"
    """Short name; letters, digits, dot, dash and underscore. A file without one is named by its
    file's name."""
    description: str = ""
    """One sentence for people."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of every draw."""
    population: Population
    """Table: who the devices are; `devices` is required."""
    availability: Availability = HabitAvailability()
    """Table: when devices are eligible."""
    participation: Participation = Participation()
    """Table: when a device may take part again."""
    latency: Latency = Latency()
    """Table: how long a selected device takes."""
    rounds: Rounds
    """Table: what the server does in a round; `count` and `report_goal` are required."""
    training: AnyTraining = Training()
    """Table: what is trained."""
    privacy: Privacy = Privacy()
    """Table: the noise mechanism and what it claims."""

    @property
    def device_ids(self) -> int:
        """Ids of devices that exist at some time of the longest run: 0 up to this, those that join
        included."""
        return self.population.devices + math.ceil(
            self.population.joins_per_day * self.rounds.max_days
        )

    @property
    def training_seed(self) -> int:
        """Seed of the model, its data and its noise."""
        return self.seed if self.training.seed is None else self.training.seed

    def to_document(self) -> dict[str, Any]:
        """Digest and tables, as run.json, training.json and unfinished.json record them."""
        return {"scenario_digest": self.digest, "scenario": self.to_tables()}

    def for_shards(self) -> Self:
        """A copy to be sent to shards: without the mechanism's matrix and the task's file."""
        return self._with_parts(
            _without_content(self.privacy.mechanism),
            _as_given(self.availability),
            _without_content(self.training),
        )

    def for_trainers(self) -> Self:
        """A copy to be sent to trainers: without the mechanism's matrix and the availability's
        file."""
        return self._with_parts(
            _without_content(self.privacy.mechanism),
            _without_content(self.availability),
            _as_given(self.training),
        )

    def for_aggregator(self) -> Self:
        """A copy to be sent to the aggregator: without the files of availability and task."""
        return self._with_parts(
            self.privacy.mechanism,
            _without_content(self.availability),
            _without_content(self.training),
        )

    def _with_parts(
        self, mechanism: BaseModel, availability: BaseModel, training: BaseModel
    ) -> Self:
        privacy = self.privacy.model_copy(update={"mechanism": mechanism})
        parts = {"privacy": privacy, "availability": availability, "training": training}
        return self.model_copy(update=parts)

    @property
    def content_files(self) -> tuple[ContentFile, ...]:
        """The tables that name a file which travels with traces."""
        tables = (self.availability, self.training)
        return tuple(table for table in tables if isinstance(table, ContentFile))

    def demand_trust(self) -> None:
        """Raises InputError if a run of this would execute code that came with a trace or run."""
        for table in self.content_files:
            is_run = table is not self.training or self.training.enabled
            if isinstance(table, PythonFile) and is_run:
                table.demand_trust()

    @property
    def trains_a_sample(self) -> bool:
        """Whether a model is trained on fewer devices than a round accepts, with the noise on their
        sum scaled to that."""
        return self.training.enabled and self.training.cohort_sample < self.rounds.report_goal

    @property
    def usable_share(self) -> float:
        """Share of the devices that the task can use and that are eligible at all."""
        return self.population.reach * (1 - self.population.unreachable)

    @model_validator(mode="after")
    def _rounds_fit_the_population(self) -> Self:
        usable = self.device_ids * self.usable_share
        if not self.availability.can_be_thinned and self.rounds.sampler == "thinning":
            raise ValueError(
                "rounds.sampler='thinning': a function of your own lists runs only, which is "
                "enumeration; leave the sampler out"
            )
        if self.device_ids >= 2**40:
            raise ValueError(
                f"population.joins_per_day={self.population.joins_per_day:g}: more than 2^40 "
                "devices in all; lower it"
            )
        if self.rounds.report_goal > self.device_ids:
            raise ValueError(
                f"rounds.report_goal={self.rounds.report_goal}: must not exceed population.devices="
                f"{self.population.devices}; lower the goal or raise the population"
            )
        if self.rounds.selection_target > usable:
            raise ValueError(
                f"rounds.report_goal={self.rounds.report_goal}: with "
                f"over_selection={self.rounds.over_selection:g} a round "
                f"selects {self.rounds.selection_target} devices, more than the {usable:.0f} that "
                "reach and unreachable leave; "
                "lower the goal or raise the population"
            )
        if self.latency.setup_seconds >= 60 * self.rounds.report_timeout_minutes:
            raise ValueError(
                f"rounds.report_timeout_minutes={self.rounds.report_timeout_minutes:g}: no device "
                "reports within it, since "
                f"latency.setup_seconds={self.latency.setup_seconds:g} alone takes as long; raise "
                "the timeout"
            )
        mechanism = self.privacy.mechanism
        if mechanism.most_rounds is not None and self.rounds.count > mechanism.most_rounds:
            raise ValueError(
                f"rounds.count={self.rounds.count}: the {mechanism.kind} mechanism was made for "
                f"{mechanism.most_rounds} rounds "
                "and has no noise beyond; lower the count or optimise it for more"
            )
        if isinstance(mechanism, ToeplitzStrategy) and not isinstance(
            mechanism, BLT
        ):  # a BLT checks itself
            with np.errstate(all="ignore"):
                growth = float(np.abs(mechanism.inverse_first_column(self.rounds.count)).max())
            if not growth <= LARGEST_NOISE_GROWTH:
                raise ValueError(
                    f"privacy.mechanism: the noise C^-1 Z of this {mechanism.kind} strategy grows "
                    f"{growth:g}-fold "
                    f"within {self.rounds.count} rounds; use coefficients whose inverse is stable"
                )
        if self.training.enabled and self.training.cohort_sample > self.rounds.report_goal:
            raise ValueError(
                f"training.cohort_sample={self.training.cohort_sample}: must not exceed "
                "rounds.report_goal="
                f"{self.rounds.report_goal}; lower the sample"
            )
        return self

    @classmethod
    def from_toml(
        cls, path: str | Path, overrides: Sequence[str] = (), *, trust_code: bool = False
    ) -> Self:
        """Reads a scenario file; `overrides` are `table.key=value` texts, values as TOML. Raises
        ScenarioError.

        A custom availability or task whose code is found by its digest, as in traces, raises
        InputError unless `trust_code`.
        """
        file = Path(path)
        try:
            tables = parse_toml(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ScenarioError(
                f"scenario {str(file)!r} does not exist; `fedray scenarios` lists those that ship"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise ScenarioError(
                f"scenario {str(file)!r} cannot be read ({error}); give a TOML text file"
            ) from None
        except ValueError as error:  # of the syntax, of numbers or nesting beyond reason
            raise ScenarioError(
                f"scenario {str(file)!r} is not valid TOML: {error}; correct that line"
            ) from None
        if re.fullmatch(NAME_PATTERN, file.stem) and len(file.stem) <= 80:
            tables.setdefault("name", file.stem)
        for override in [overrides] if isinstance(overrides, str) else overrides:
            _apply_override(tables, override)
        scenario = cls.from_tables(tables, source=str(file), directory=file.parent)
        if not trust_code:
            scenario.demand_trust()
        return scenario

    @classmethod
    def from_tables(
        cls,
        tables: dict[str, Any],
        source: str = "scenario",
        directory: Path = Path(),
        *,
        is_recorded: bool = False,
    ) -> Self:
        """A scenario from nested dicts, as a TOML or JSON parser gives them.

        Args:
            tables: the nested dicts.
            source: names them in messages.
            directory: where the files that they name are looked for, by their SHA-256 first (as
                in traces), then by their name.
            is_recorded: whether they are those of a trace or run. `demand_trust` then takes any
                code that they name for somebody else's, however it was found.

        Raises:
            ScenarioError: they are no scenario.
        """
        context = {"directory": directory, "is_recorded": is_recorded}
        return cls._validated(tables, source, context)

    @classmethod
    def _validated(cls, tables: dict[str, Any], source: str, context: dict[str, Any]) -> Self:
        try:
            return cls.model_validate(tables, context=context)
        except ValidationError as error:
            raise ScenarioError(one_line(f"{source}: {explain(error, cls, tables)}")) from None

    def to_tables(self) -> dict[str, Any]:
        """Every key with its value, defaults included, as nested dicts of TOML and JSON types; what
        is none is left out."""
        return self.model_dump(mode="json", exclude_none=True)

    def to_toml(self) -> str:
        """The whole scenario as TOML, defaults included; reading it back gives an equal value."""
        return tomli_w.dumps(self.to_tables())

    def with_overrides(self, *overrides: str) -> Self:
        """A copy with `table.key=value` texts applied. Raises ScenarioError."""
        tables = self.to_tables()
        for override in overrides:
            _apply_override(tables, override)
        privacy = tables["privacy"]
        mechanism, new = (
            self.privacy.mechanism,
            privacy.get("mechanism") if isinstance(privacy, dict) else None,
        )
        known = {mechanism.sha256: mechanism.matrix} if isinstance(mechanism, MatrixFile) else {}
        _forget_digest_of_another_file(mechanism, new)
        for name in ("availability", "training"):
            _forget_digest_of_another_file(getattr(self, name), tables[name])
        contents = {table.sha256: table for table in self.content_files}
        return self._validated(tables, "scenario", {"matrices": known, "contents": contents})

    @property
    def digest(self) -> str:
        """SHA-256 of the content, defaults included; the name, the description and where the files
        that it names came from do not count."""
        tables = {
            key: value
            for key, value in self.to_tables().items()
            if key not in ("name", "description")
        }
        tables["privacy"]["mechanism"].pop("file", None)
        tables["availability"].pop("file", None)
        tables["training"].pop("file", None)
        return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()


def _without_content(table: BaseModel) -> BaseModel:
    """A copy of a table that names its file and has nothing of what is in it.

    Reading that from the copy is an AttributeError.
    """
    if not isinstance(table, MatrixFile | ContentFile):
        return table
    return type(table).model_construct(
        **{name: getattr(table, name) for name in type(table).model_fields}
    )


def _as_given(table: BaseModel) -> BaseModel:
    """A copy of a table without its cached properties, which would be sent along."""
    copy = table.model_copy()
    for name in set(vars(copy)) - set(type(table).model_fields):
        del vars(copy)[name]
    return copy


def _forget_digest_of_another_file(before: Any, table: Any) -> None:
    """Where an override names another file, that file's content is meant."""
    if (
        isinstance(table, dict)
        and table.get("sha256")
        and table.get("sha256") == getattr(before, "sha256", None)
        and table.get("file") != before.file
    ):
        del table["sha256"]


def shipped_scenarios() -> list[tuple[Path, Scenario]]:
    """The scenario files of the `scenarios` package, with their values, in order of path."""
    package = importlib.util.find_spec("scenarios")
    folders = (
        [Path(folder) for folder in (package.submodule_search_locations or [])] if package else []
    )
    files = sorted(
        file
        for folder in folders
        for file in folder.rglob("*.toml")
        if file.parent.name != "stress"
    )  # those are sweeps
    here = Path.cwd()
    return [
        (file.relative_to(here) if file.is_relative_to(here) else file, Scenario.from_toml(file))
        for file in files
    ]


def _apply_override(tables: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    names = [name.strip() for name in key.split(".")]
    if not separator or not all(names):
        raise ScenarioError(
            f"--set {shown(override)}: must read table.key=value, for example "
            "rounds.report_goal=3000"
        )
    table = tables
    for name in names[:-1]:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ScenarioError(
                f"--set {shown(override)}: {shown(name)} is a value, not a table; name one of its "
                "own keys"
            )
    value = _parse_value(text.strip(), override)
    if (
        names == ["availability", "model"] and isinstance(value, str) and value in MODELS
    ):  # another model has other keys
        for key in [key for key in table if key not in MODELS[value].model_fields]:
            del table[key]
    if names == ["training", "task"] and value != "custom":  # only a custom one has a file
        for key in CustomTraining.model_fields.keys() - Training.model_fields.keys():
            table.pop(key, None)
    table[names[-1]] = value


def _parse_value(text: str, override: str) -> Any:
    try:
        return parse_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # a bare word, such as timer_resets_on=selected
    except ValueError as error:
        raise ScenarioError(f"--set {shown(override)}: {error}; give a simpler value") from None
