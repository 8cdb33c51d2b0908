"""The tables `tasks`: several federated tasks that share one population.

A federated task (the FL task of Bonawitz et al. 2019, section 2) has rounds, rules of
participation, noise and a model of its own. `training.task` is another thing: the model and metric
that one of them trains. A device does one federated task at a time.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError

from fedray.base.errors import ScenarioError, one_line, shown
from fedray.base.mistakes import explain
from fedray.base.table import Table
from fedray.scenario.content import ContentFile
from fedray.scenario.overrides import KINDS, naming_overrides
from fedray.scenario.scenario import NAME_PATTERN, Scenario, read_tables

OVERRIDDEN = ("rounds", "participation", "latency", "data", "training", "privacy")
"""Tables of the scenario of which a task may have keys of its own."""
TASK_BITS = 6
"""Bits of a task's number, beside the bits of a device's id."""
MOST_TASKS = 1 << TASK_BITS
"""Most tasks of a scenario: a check-in looks at each of them."""
RESERVED_NAMES = ("checkpoints", "journal", "lock", "report.html", "token")
"""Names that a run needs beside the folders of its tasks."""
# A device has one history, and the server one calendar, for all tasks together.
_COMMON = {
    "rounds": ("look_ahead_minutes", "max_days", "sampler", "outages", "together_minutes"),
    "participation": ("history_loss_per_day", "history_loss"),
}
"""Keys of these tables that speak of the server or of the devices, not of a task."""
_TIME_RULES = (
    "timer_hours",
    "timer_resets_on",
    "timer_violators",
    "clock_skew_hours",
    "clock_changes_per_day",
    "clock_change_hours",
)


class FederatedTask(Table):
    """One of several tasks: its start, its share of the devices, and its own keys of the scenario's
    tables."""

    starts_days: Annotated[float, Field(ge=0, le=3660)] = 0.0
    """Days from the start of the run to the time at which its first round may select devices."""
    weight: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """A device that several tasks would take is given to one of them, with a probability in
    proportion to this."""
    timer_group: Annotated[str, Field(pattern=NAME_PATTERN, max_length=80)] | None = None
    """Tasks of one group share one timer: a contribution to one of them counts for all. None: the
    task has its own."""
    rounds: dict[str, Any] = Field(default_factory=dict)
    """Keys of the table `rounds` that are its own; the others are the scenario's."""
    participation: dict[str, Any] = Field(default_factory=dict)
    """Keys of the table `participation` that are its own."""
    latency: dict[str, Any] = Field(default_factory=dict)
    """Keys of the table `latency` that are its own."""
    data: dict[str, Any] = Field(default_factory=dict)
    """Keys of the table `data` that are its own."""
    training: dict[str, Any] = Field(default_factory=dict)
    """Keys of the table `training` that are its own."""
    privacy: dict[str, Any] = Field(default_factory=dict)
    """Keys of the table `privacy` that are its own."""


@dataclass(frozen=True, slots=True)
class TaskScenario:
    """A task, and the whole scenario that it would be if it had the devices for itself.

    name: name of the task, and of the folder of its trace.
    starts_days: earliest start of its first selection, days since start.
    weight: its share of the devices that several tasks would take.
    timer_group: group with a shared timer; None for a timer of its own.
    scenario: the common tables, with its own keys in place of theirs.
    """

    name: str
    starts_days: float
    weight: float
    timer_group: str | None
    scenario: Scenario

    @property
    def prefix(self) -> str:
        """Start of a text about the task where there are others."""
        return f"task {self.name}: " if self.name else ""

    @property
    def starts_seconds(self) -> float:
        """Earliest start of its first selection, seconds since start."""
        return 86_400.0 * self.starts_days

    def to_document(self) -> dict[str, Any]:
        """As recorded: its own keys, digest and tables."""
        own: dict[str, Any] = {"starts_days": self.starts_days, "weight": self.weight}
        # The key is left out without a group, and `of_document` reads it so.
        if self.timer_group is not None:
            own["timer_group"] = self.timer_group
        return {**own, **self.scenario.to_document()}


@dataclass(frozen=True, slots=True)
class SeveralTasks:
    """Several tasks on one population: their traces are a function of this value.

    name: name of the scenario.
    description: one sentence for people.
    tasks: tasks in the order of the file.
    """

    name: str
    description: str
    tasks: tuple[TaskScenario, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tasks, in order."""
        return tuple(task.name for task in self.tasks)

    @property
    def common(self) -> Scenario:
        """Scenario with the common population, availability, seed and server of all tasks."""
        return self.tasks[0].scenario

    @property
    def seed(self) -> int:
        """Seed of every draw of the simulation."""
        return self.common.seed

    @property
    def device_ids(self) -> int:
        """See `Scenario.device_ids`."""
        return self.common.device_ids

    @property
    def content_files(self) -> tuple[ContentFile, ...]:
        """The tables of all tasks that name a file which travels with traces."""
        return tuple(each for task in self.tasks for each in task.scenario.content_files)

    def for_shards(self) -> Self:
        """A copy to be sent to shards: see `Scenario.for_shards`."""
        tasks = (replace(task, scenario=task.scenario.for_shards()) for task in self.tasks)
        return replace(self, tasks=tuple(tasks))

    def demand_trust(self) -> None:
        """Raises InputError if a run of this would execute code that came with a trace or run."""
        for task in self.tasks:
            task.scenario.demand_trust()

    @property
    def digest(self) -> str:
        """SHA-256 of the content: names of tasks count, the scenario's own does not."""
        own = {
            task.name: {
                "starts_days": task.starts_days,
                "weight": task.weight,
                "timer_group": task.timer_group,
                "digest": task.scenario.digest,
            }
            for task in self.tasks
        }
        # A list: which task comes first decides where two are equal.
        return hashlib.sha256(json.dumps(list(own.items()), sort_keys=True).encode()).hexdigest()

    def to_document(self) -> dict[str, Any]:
        """Digest and tasks with their whole tables, as recorded; `of_document` reads it."""
        tables = {task.name: task.to_document() for task in self.tasks}
        scenario = {"name": self.name, "description": self.description, "tasks": tables}
        return {"scenario_digest": self.digest, "scenario": scenario}

    @classmethod
    def of_document(cls, document: Mapping[str, Any], source: str, directory: Path) -> Self:
        """Returns the tasks of a document; the inverse of `to_document`.

        Args:
            document: the recorded document.
            source: its name in messages.
            directory: folder of the files that it names by their digests.

        Raises:
            ScenarioError: this release does not read it.
        """
        try:
            recorded = document["scenario"]
            tasks = tuple(
                TaskScenario(
                    name,
                    each["starts_days"],
                    each["weight"],
                    each.get("timer_group"),
                    Scenario.from_tables(
                        each["scenario"], f"{source}, task {name}", directory, is_recorded=True
                    ),
                )
                for name, each in recorded["tasks"].items()
            )
            return cls(recorded["name"], recorded["description"], tasks)
        # A document that was damaged or made by hand may have anything at any place.
        except (KeyError, TypeError, AttributeError):
            raise ScenarioError(
                f"{source}: it does not describe several tasks; take it from its source again"
            ) from None

    @classmethod
    def from_toml(
        cls, path: str | Path, overrides: Sequence[str] = (), *, trust_code: bool = False
    ) -> Self:
        """Reads a scenario file with tables `tasks`; `overrides` are `table.key=value` texts, as
        `tasks.NAME.rounds.count=60`. Raises ScenarioError, and InputError as `Scenario.from_toml`
        does."""

        def read(given: Sequence[str]) -> Self:
            return cls.from_tables(read_tables(path, given), str(path), Path(path).parent)

        several = naming_overrides(read, str(path), overrides)
        if not trust_code:
            several.demand_trust()
        return several

    @classmethod
    def from_tables(
        cls, tables: dict[str, Any], source: str = "scenario", directory: Path = Path()
    ) -> Self:
        """Returns several tasks from nested dicts, as a TOML parser returns them.

        Args:
            tables: nested dicts.
            source: their name in messages.
            directory: folder of the files that they name.

        Raises:
            ScenarioError: they are not tasks, or tasks that cannot share devices.
        """
        # A key outside of `tasks` holds for every task that does not set it.
        common = {key: value for key, value in tables.items() if key != "tasks"}
        given = tables.get("tasks")
        if not isinstance(given, dict) or not given:
            raise ScenarioError(
                f"{source}: tasks must be tables with a name each, such as "
                "[tasks.next-word.rounds]; add one"
            )
        if len(given) > MOST_TASKS:
            raise ScenarioError(
                f"{source}: there are {len(given)} tasks, and at most {MOST_TASKS} can share "
                "devices; leave some out"
            )
        name = common.get("name", "scenario")
        tasks = tuple(
            _task(task, own, common, name, source, directory) for task, own in given.items()
        )
        # The first task keeps the scenario's seed; with it in others, noises would be the same.
        tasks = (tasks[0], *(_with_own_seed(task, given[task.name]) for task in tasks[1:]))
        description = common.get("description", "")
        # The scenario has filled in a missing name, so the common one is taken from there.
        several = cls(tasks[0].scenario.name.removesuffix(f".{tasks[0].name}"), description, tasks)
        # Each task is valid by itself here; the rest checks whether they fit together.
        _check(several, source)
        return several


def tasks_of(scenario: Scenario | SeveralTasks) -> tuple[TaskScenario, ...]:
    """The tasks of a `scenario`. One without tables `tasks` is a single task without a name."""
    if isinstance(scenario, SeveralTasks):
        return scenario.tasks
    return (TaskScenario("", 0.0, 1.0, None, scenario),)


def sharing_timer(tasks: Sequence[TaskScenario], task: int) -> tuple[int, ...]:
    """The other tasks of the timer group of a `task`; both are places in `tasks`."""
    group = tasks[task].timer_group
    if group is None:
        return ()
    return tuple(
        place for place, other in enumerate(tasks) if place != task and other.timer_group == group
    )


def _task(
    name: str, own: Any, common: dict[str, Any], base: Any, source: str, directory: Path
) -> TaskScenario:
    """One task of a file."""
    # A task's trace lies in a folder of this name, beside files that the run itself writes.
    is_name = re.fullmatch(NAME_PATTERN, name) and len(name) <= 40
    if not is_name or name in RESERVED_NAMES or name.endswith((".partial", ".json")):
        raise ScenarioError(
            f"{source}: the task {shown(name)} cannot have that name, which is also the name of "
            "its trace's folder; take letters, digits, dashes and underscores, 40 at most"
        )
    where = f"{source}, task {name}"
    try:
        # Keys of the task itself are checked first, as the scenario has no place for them.
        task = FederatedTask.model_validate(own)
    except ValidationError as error:
        told = explain(error, FederatedTask, own)
        raise ScenarioError(one_line(f"{where}: {told}")) from None
    tables = dict(common)
    for key in OVERRIDDEN:
        if key in task.model_fields_set:
            tables[key] = merged(tables.get(key, {}), getattr(task, key), (key,))
    # A name of another type is left to the scenario, which refuses it with its own rule.
    if isinstance(base, str):
        # The task's name stays whole, since it distinguishes the scenarios of tasks.
        tables["name"] = f"{base[: 79 - len(name)]}.{name}"
    scenario = Scenario.from_tables(tables, where, directory)
    return TaskScenario(name, task.starts_days, task.weight, task.timer_group, scenario)


def _with_own_seed(task: TaskScenario, own: Any) -> TaskScenario:
    """A task whose noise is not that of another: unless it names a seed itself, its own follows
    from the scenario's and its name."""
    # A seed that the user chose is kept; `_check` refuses it if another task has it.
    if "seed" in own.get("training", {}):
        return task
    scenario = task.scenario
    text = f"{scenario.training_seed}:{task.name}"
    # Python's own hash of a text differs between processes, and seeds may not.
    word = hashlib.blake2b(text.encode(), digest_size=8).digest()
    # Seeds are below 2^63.
    seed = int.from_bytes(word, "little") >> 1
    training = scenario.training.model_copy(update={"seed": seed})
    return replace(task, scenario=scenario.model_copy(update={"training": training}))


def merged(base: Any, own: Any, path: tuple[str, ...]) -> Any:
    """A table with some keys in place of its own, table by table.

    Args:
        base: the table, or what stands in its place.
        own: the keys.
        path: names of the table's key and of those above it.

    Returns:
        A new table. Where `own` says of another kind than `base`, it is taken whole: the keys of
        one kind mean nothing in another.
    """
    if not isinstance(base, dict) or not isinstance(own, dict):
        return own
    # Only these paths have tables of several kinds; elsewhere `kind` would be a plain key.
    tags = [tag for tag in ("kind", "model") if (*path, tag) in KINDS]
    if any(tag in own and own[tag] != base.get(tag) for tag in tags):
        return own
    result = dict(base)
    for key, value in own.items():
        result[key] = merged(base[key], value, (*path, key)) if key in base else value
    return result


def _check(several: SeveralTasks, source: str) -> None:
    """Raises ScenarioError for tasks that cannot share devices."""
    # Rules of each task come first, then what pairs of tasks must agree on.
    first, *others = several.tasks
    for task in several.tasks:
        mode = task.scenario.rounds.mode
        if mode != "on-device":
            raise ScenarioError(
                f"{source}, task {task.name}: rounds.mode={mode!r}: tasks share devices only where "
                "rounds select their devices together; take 'on-device', or run the task alone"
            )
        if task.scenario.privacy.at_limit == "exclude":
            raise ScenarioError(
                f"{source}, task {task.name}: privacy.at_limit='exclude': a device has one limit "
                "over all tasks, and this would keep one of each; leave it out, or run the task "
                "alone"
            )
        if task.scenario.privacy.strategy is None:
            raise ScenarioError(
                f"{source}, task {task.name}: privacy.mechanism='none': what a device spends in "
                "all tasks is added up, and without noise there is no such sum; add noise, or run "
                "the task by itself"
            )
        if task.starts_days >= task.scenario.rounds.max_days:
            raise ScenarioError(
                f"{source}, task {task.name}: starts_days={task.starts_days:g} is not before "
                f"rounds.max_days={task.scenario.rounds.max_days:g}; lower it, or raise max_days"
            )
    # Comparing with the first is enough, since equality carries over to the rest.
    for task in others:
        for table, keys in _COMMON.items():
            mine, theirs = getattr(task.scenario, table), getattr(first.scenario, table)
            for key in keys:
                if getattr(mine, key) != getattr(theirs, key):
                    raise ScenarioError(
                        f"{source}, task {task.name}: {table}.{key}={getattr(mine, key)} is not "
                        f"that of task {first.name}, and it speaks of what tasks share; say it "
                        f"once, in [{table}]"
                    )
    # Noise is addressed by seed and round, so two tasks with one seed would draw the same.
    seeds: dict[int, str] = {}
    for task in several.tasks:
        seed = task.scenario.training_seed
        other = seeds.setdefault(seed, task.name)
        if other != task.name:
            raise ScenarioError(
                f"{source}, task {task.name}: training.seed={seed} is that of task {other}, so "
                "that both would have the same noise, and privacy would not compose; give it "
                "another seed, or none"
            )
    for place, task in enumerate(several.tasks):
        for other in (several.tasks[each] for each in sharing_timer(several.tasks, place)):
            _check_group(task, other, source)


def _check_group(task: TaskScenario, other: TaskScenario, source: str) -> None:
    """Raises ScenarioError where two tasks that share a timer have different ones."""
    mine, theirs = _timer_of(task), _timer_of(other)
    for key, value in mine.items():
        if value != theirs[key]:
            raise ScenarioError(
                f"{source}, task {task.name}: timer_group={task.timer_group!r} shares its timer "
                f"with task {other.name}, but participation.{key}={value} is {theirs[key]} there; "
                "make them equal, or take another group"
            )


def _timer_of(task: TaskScenario) -> dict[str, Any]:
    """The rules of a task that a shared timer is made of."""
    participation = task.scenario.participation
    kinds = {each.kind: each for each in participation.policies or ()}
    # A contribution also starts the period of swor, so tasks that share it must agree on it.
    period = kinds["swor"].model_dump() if "swor" in kinds else None
    rules = {key: getattr(participation, key) for key in _TIME_RULES}
    return {**rules, "has_timer": participation.has_timer, "policies": period}


def read_scenario(
    path: str | Path, overrides: Sequence[str] = (), *, trust_code: bool = False
) -> Scenario | SeveralTasks:
    """Reads a scenario file, with or without tables `tasks`.

    Args:
        path: the file.
        overrides: `table.key=value` texts.
        trust_code: as `Scenario.from_toml`.

    Raises:
        ScenarioError: the file is not a scenario.
        InputError: code is not trusted.
    """
    # Overrides may add the tasks, so they are applied before the kind is known.
    kind = SeveralTasks if "tasks" in read_tables(path, overrides) else Scenario
    return kind.from_toml(path, overrides, trust_code=trust_code)


def scenario_schema() -> dict[str, Any]:
    """The JSON schema of scenario files, those with tables `tasks` included."""
    schema = Scenario.model_json_schema()
    task = FederatedTask.model_json_schema()
    schema["properties"]["tasks"] = {
        "additionalProperties": task,
        "description": "Tables: several federated tasks that share the population, by their names.",
        "type": "object",
    }
    return schema
