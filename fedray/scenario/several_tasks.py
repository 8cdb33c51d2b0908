"""The tables `tasks`: several federated tasks that share one population.

A federated task (the FL task of Bonawitz et al. 2019, section 2) has its own rounds, participation
rules, noise and model. It is not the table `training.task`, which is the model and metric that a
federated task trains. A device works on one federated task at a time.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError

from fedray.base.errors import InputError, ScenarioError, one_line, shown
from fedray.base.mistakes import NAME_PATTERN, explain
from fedray.base.table import Table
from fedray.mechanisms.accounting.zcdp import failure_of
from fedray.scenario.content import ContentFile
from fedray.scenario.overrides import merged, naming_overrides
from fedray.scenario.participation import EVERYBODY
from fedray.scenario.scenario import Scenario, read_tables

OVERRIDDEN = ("rounds", "participation", "latency", "data", "training", "privacy", "analytics")
"""Tables of the scenario in which a task may have its own keys."""
TASK_BITS = 6
"""Number of bits for a task's number, next to the bits of a device's id."""
MOST_TASKS = 1 << TASK_BITS
"""Largest number of tasks in a scenario; each check-in examines all of them."""
RESERVED_NAMES = ("checkpoints", "journal", "lock", "report.html", "token")
"""Names of files that a run writes next to the folders of its tasks."""
# All tasks share the history of a device and the calendar of the server.
_COMMON = {
    "rounds": ("look_ahead_minutes", "max_days", "sampler", "outages", "together_minutes"),
    "participation": ("history_loss_per_day", "history_loss"),
}
"""Keys of these tables that describe the server or the devices, not a task."""
_TIME_RULES = (
    "timer_hours",
    "timer_resets_on",
    "timer_violators",
    "clock_skew_hours",
)


class FederatedTask(Table):
    """One of several tasks: its start, its share of the devices, and its own keys of the scenario's
    tables."""

    starts_days: Annotated[float, Field(ge=0, le=3660)] = 0.0
    """Days from the start of the run until the task's first round may select devices."""
    weight: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Weight of the task if several tasks want the same device: it is assigned to one of them with
    a probability in proportion to the weights."""
    timer_group: Annotated[str, Field(pattern=NAME_PATTERN, max_length=80)] | None = None
    """Group of tasks that share a timer: a contribution to one of them counts for all. Default: the
    task has its own timer."""
    rounds: dict[str, Any] = Field(default_factory=dict)
    """The task's own keys of the table `rounds`; all others are the scenario's."""
    participation: dict[str, Any] = Field(default_factory=dict)
    """The task's own keys of the table `participation`."""
    latency: dict[str, Any] = Field(default_factory=dict)
    """The task's own keys of the table `latency`."""
    data: dict[str, Any] = Field(default_factory=dict)
    """The task's own keys of the table `data`."""
    training: dict[str, Any] = Field(default_factory=dict)
    """The task's own keys of the table `training`."""
    privacy: dict[str, Any] = Field(default_factory=dict)
    """The task's own keys of the table `privacy`."""
    analytics: dict[str, Any] = Field(default_factory=dict)
    """The table `analytics`, with values of kind evaluation: the task trains no model."""


@dataclass(frozen=True, slots=True)
class TaskScenario:
    """A task, with the scenario that describes it without the other tasks."""

    name: str
    """Name of the task, and of the folder of its trace."""
    starts_days: float
    """Earliest start of its first selection, days since the start of the run."""
    weight: float
    """Weight of the task if several tasks want the same device."""
    timer_group: str | None
    """Group with a shared timer; None for a timer of its own."""
    scenario: Scenario
    """The common tables, with the task's own keys."""

    @property
    def prefix(self) -> str:
        """Beginning of a message about the task; empty for a single task."""
        return f"task {self.name}: " if self.name else ""

    @property
    def starts_seconds(self) -> float:
        """Earliest start of the task's first selection, seconds since the start of the run."""
        return 86_400.0 * self.starts_days

    def to_document(self) -> dict[str, Any]:
        """Returns the task as recorded: its own keys, digest and tables."""
        own: dict[str, Any] = {"starts_days": self.starts_days, "weight": self.weight}
        # `of_document` reads a missing key as no group.
        if self.timer_group is not None:
            own["timer_group"] = self.timer_group
        return {**own, **self.scenario.to_document()}


@dataclass(frozen=True, slots=True)
class SeveralTasks:
    """Several tasks on one population; their traces are a function of this value."""

    name: str
    """Name of the scenario."""
    description: str
    """One sentence for readers."""
    tasks: tuple[TaskScenario, ...]
    """Tasks in the order of the file."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tasks, in order."""
        return tuple(task.name for task in self.tasks)

    @property
    def common(self) -> Scenario:
        """Scenario with the population, availability, seed and server that all tasks share."""
        return self.tasks[0].scenario

    @property
    def seed(self) -> int:
        """Seed of all random draws of the simulation."""
        return self.common.seed

    @property
    def device_ids(self) -> int:
        return self.common.device_ids

    @property
    def content_files(self) -> tuple[ContentFile, ...]:
        """Tables of all tasks that name a file which is stored with traces."""
        return tuple(each for task in self.tasks for each in task.scenario.content_files)

    def for_shards(self) -> Self:
        """Returns a copy to send to shards; see `Scenario.for_shards`."""
        tasks = (replace(task, scenario=task.scenario.for_shards()) for task in self.tasks)
        return replace(self, tasks=tuple(tasks))

    def demand_trust(self) -> None:
        """Raises InputError if a run would execute code that came with a trace or run."""
        for task in self.tasks:
            task.scenario.demand_trust()

    @property
    def digest(self) -> str:
        """SHA-256 of the content. The names of tasks count, but that of the scenario does not."""
        own = {
            task.name: {
                "starts_days": task.starts_days,
                "weight": task.weight,
                "timer_group": task.timer_group,
                "digest": task.scenario.digest,
            }
            for task in self.tasks
        }
        # A list keeps the order of tasks, which breaks ties.
        return hashlib.sha256(json.dumps(list(own.items()), sort_keys=True).encode()).hexdigest()

    def to_document(self) -> dict[str, Any]:
        """Returns digest and tasks with all their tables, as recorded for `of_document`."""
        tables = {task.name: task.to_document() for task in self.tasks}
        scenario = {"name": self.name, "description": self.description, "tasks": tables}
        return {"scenario_digest": self.digest, "scenario": scenario}

    @classmethod
    def of_document(cls, document: Mapping[str, Any], source: str, directory: Path) -> Self:
        """Returns the tasks of a document; the inverse of `to_document`.

        Args:
            document: the recorded document.
            source: name of the document in messages.
            directory: folder of the files that the document names by their digests.

        Raises:
            ScenarioError: the document does not describe several tasks.
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
        # A document that was damaged or made by hand may have any value anywhere.
        except (KeyError, TypeError, AttributeError):
            raise ScenarioError(
                f"{source} does not describe several tasks; copy it from its source again"
            ) from None

    @classmethod
    def from_toml(
        cls, path: str | Path, overrides: Sequence[str] = (), *, trust_code: bool = False
    ) -> Self:
        """Reads a scenario file with tables `tasks`; `overrides` are `table.key=value` texts, such
        as `tasks.NAME.rounds.count=60`. Raises ScenarioError and InputError as `Scenario.from_toml`
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
            source: name of the tables in messages.
            directory: folder of the files that the tables name.

        Raises:
            ScenarioError: the tables do not describe tasks, or the tasks cannot share devices.
        """
        # A key outside of `tasks` applies to every task that does not set it.
        common = {key: value for key, value in tables.items() if key != "tasks"}
        given = tables.get("tasks")
        if not isinstance(given, dict) or not given:
            raise ScenarioError(
                f"{source}: tasks must be named tables, such as [tasks.next-word.rounds]; add one"
            )
        if len(given) > MOST_TASKS:
            raise ScenarioError(
                f"{source}: there are {len(given)} tasks, but at most {MOST_TASKS} can share "
                "devices; leave some out"
            )
        name = common.get("name", "scenario")
        tasks = tuple(
            _task(task, own, common, name, source, directory) for task, own in given.items()
        )
        # Only the first task keeps the scenario's seed, or all tasks would have the same noise.
        tasks = (tasks[0], *(_with_own_seed(task, given[task.name]) for task in tasks[1:]))
        tasks = _with_members(tasks, source)
        description = common.get("description", "")
        # The name comes from a task's scenario, which has filled in a missing one.
        several = cls(tasks[0].scenario.name.removesuffix(f".{tasks[0].name}"), description, tasks)
        # Each task is valid by itself now; whether they fit together remains to be checked.
        _check(several, source)
        return several


def tasks_of(scenario: Scenario | SeveralTasks) -> tuple[TaskScenario, ...]:
    """Returns the tasks of a scenario: a single one without a name if it has no tables `tasks`."""
    if isinstance(scenario, SeveralTasks):
        return scenario.tasks
    return (TaskScenario("", 0.0, 1.0, None, scenario),)


def sharing_timer(tasks: Sequence[TaskScenario], task: int) -> tuple[int, ...]:
    """Returns the positions of the other tasks that share a timer with the one at position
    `task`."""
    group = tasks[task].timer_group
    if group is None:
        return ()
    return tuple(
        place for place, other in enumerate(tasks) if place != task and other.timer_group == group
    )


def _task(
    name: str, own: Any, common: dict[str, Any], base: Any, source: str, directory: Path
) -> TaskScenario:
    """Returns a task of a file."""
    # The trace's folder has this name, next to files that the run itself writes.
    is_name = re.fullmatch(NAME_PATTERN, name) and len(name) <= 40
    if not is_name or name in RESERVED_NAMES or name.endswith((".partial", ".json")):
        raise ScenarioError(
            f"{source}: the task {shown(name)} cannot have that name, which is also the name of "
            "its trace's folder; use at most 40 letters, digits, dashes and underscores"
        )
    where = f"{source}, task {name}"
    try:
        # The task's own keys are checked first, because the scenario does not have them.
        task = FederatedTask.model_validate(own)
    except ValidationError as error:
        told = explain(error, FederatedTask, own)
        raise ScenarioError(one_line(f"{where}: {told}")) from None
    tables = dict(common)
    for key in OVERRIDDEN:
        if key in task.model_fields_set:
            tables[key] = merged(tables.get(key, {}), getattr(task, key), (key,))
    training = tables.get("training", {})
    if task.analytics and isinstance(training, dict):
        tables["training"] = {**training, "enabled": task.training.get("enabled", False)}
    # If the name is not a string, the scenario refuses it.
    if isinstance(base, str):
        # The task's name is never cut, because it distinguishes the scenarios of tasks.
        tables["name"] = f"{base[: 79 - len(name)]}.{name}"
    scenario = Scenario.from_tables(tables, where, directory)
    return TaskScenario(name, task.starts_days, task.weight, task.timer_group, scenario)


def _with_own_seed(task: TaskScenario, own: Any) -> TaskScenario:
    """Returns the task with its own training seed, so that tasks do not share their noise. Unless
    the task names one, the seed is derived from the scenario's seed and the task's name."""
    # A seed that the user chose is kept; `_check` refuses it if another task has it.
    if "seed" in own.get("training", {}):
        return task
    scenario = task.scenario
    text = f"{scenario.training_seed}:{task.name}"
    # Python's own hash of a string differs between processes, but seeds must not.
    word = hashlib.blake2b(text.encode(), digest_size=8).digest()
    # Seeds are below 2^63.
    seed = int.from_bytes(word, "little") >> 1
    training = scenario.training.model_copy(update={"seed": seed})
    return replace(task, scenario=scenario.model_copy(update={"training": training}))


def _with_members(tasks: Sequence[TaskScenario], source: str) -> tuple[TaskScenario, ...]:
    """Returns the tasks with the devices that evaluations hold out from trainings."""
    members: dict[str, tuple[float, float]] = {}
    for task in tasks:
        evaluation = task.scenario.evaluation
        if evaluation is not None and evaluation.held_out:
            members[task.name] = 0.0, evaluation.held_out
            # The draw of a device is the same for all, so the largest share contains the others.
            others = members.get(evaluation.of, (0.0, 1.0))
            members[evaluation.of] = max(others[0], evaluation.held_out), 1.0
    return tuple(
        _with_those(task, members[task.name], source) if task.name in members else task
        for task in tasks
    )


def _with_those(task: TaskScenario, members: tuple[float, float], source: str) -> TaskScenario:
    given = task.scenario.participation.members
    if given not in (EVERYBODY, members):
        raise ScenarioError(
            f"{source}, task {task.name}: participation.members={list(given)}, but held_out of an "
            f"evaluation makes it {list(members)}; leave one of the two out"
        )
    try:
        scenario = task.scenario.with_overrides(f"participation.members={list(members)}")
    except ScenarioError as error:
        raise ScenarioError(f"{source}, task {task.name}: {error}") from None
    return replace(task, scenario=scenario)


def _check(several: SeveralTasks, source: str) -> None:
    """Raises ScenarioError for tasks that cannot share devices."""
    # First the rules for each task, then the rules for pairs of tasks.
    first, *others = several.tasks
    for task in several.tasks:
        if reason := _why_alone(task):
            raise ScenarioError(f"{source}, task {task.name}: {reason}")
        try:
            _check_evaluation(several, task)
        except InputError as error:
            raise ScenarioError(f"{source}, task {task.name}: {error}") from None
    # Comparing with the first is enough, since equality carries over to the rest.
    for task in others:
        for table, keys in _COMMON.items():
            mine, theirs = getattr(task.scenario, table), getattr(first.scenario, table)
            for key in keys:
                if getattr(mine, key) != getattr(theirs, key):
                    raise ScenarioError(
                        f"{source}, task {task.name}: {table}.{key}={getattr(mine, key)} differs "
                        f"from that of task {first.name}, but tasks share this setting; set it "
                        f"once, in [{table}]"
                    )
    # Noise is addressed by seed and round, so two tasks with one seed would draw the same.
    seeds: dict[int, str] = {}
    for task in several.tasks:
        seed = task.scenario.training_seed
        other = seeds.setdefault(seed, task.name)
        if other != task.name:
            raise ScenarioError(
                f"{source}, task {task.name}: training.seed={seed} is also that of task {other}, "
                "so both would have the same noise, and privacy would not compose; give it another "
                "seed, or none"
            )
    for place, task in enumerate(several.tasks):
        for other in (several.tasks[each] for each in sharing_timer(several.tasks, place)):
            _check_group(task, other, source)


def _why_alone(task: TaskScenario) -> str:
    """Returns why a task cannot share devices with any other; empty if it can."""
    rounds, privacy = task.scenario.rounds, task.scenario.privacy
    if rounds.mode != "on-device":
        return (
            f"rounds.mode={rounds.mode!r}: tasks can share devices only if rounds select their "
            "devices together; use 'on-device', or run the task by itself"
        )
    if privacy.at_limit == "exclude":
        return (
            "privacy.at_limit='exclude': a device has one limit over all tasks, but this would "
            "apply one per task; leave it out, or run the task by itself"
        )
    if privacy.strategy is None:
        return (
            "privacy.mechanism='none': what a device spends in all tasks is added up, and without "
            "noise there is no such sum; add noise, or run the task by itself"
        )
    if task.scenario.training.stop is not None:
        return (
            "training.stop: a task that ends early would leave its devices to the others, whose "
            "rounds would then depend on its model; leave it out, or run the task by itself"
        )
    if getattr(task.scenario.data, "vocabulary_cost", None) is not None:
        return (
            "data.vocabulary_file is private, and what it cost is not in the sum over all tasks; "
            "run the task by itself"
        )
    if task.scenario.participation.later is not None:
        return (
            f"participation.from_round={task.scenario.participation.from_round}: later rules apply "
            "to a single task; leave participation.later out, or run the task by itself"
        )
    if task.starts_days >= rounds.max_days:
        return (
            f"starts_days={task.starts_days:g} is not before rounds.max_days={rounds.max_days:g}; "
            "lower it, or raise max_days"
        )
    return ""


def _check_evaluation(several: SeveralTasks, task: TaskScenario) -> None:
    """Raises InputError for a task whose devices cannot evaluate the model that it names."""
    evaluation, analytics = task.scenario.evaluation, task.scenario.analytics
    if evaluation is None or analytics is None:
        return
    trained = {each.name: each for each in several.tasks if each.scenario.training.enabled}
    of = trained.get(evaluation.of)
    if of is None:
        rule, remedy = (
            "is no task that trains a model",
            f"name one of {', '.join(trained) or '(none)'}",
        )
        raise InputError.of("analytics.values.of", evaluation.of, rule, remedy)
    # Latencies and rules depend on the examples of a device.
    if task.scenario.data != of.scenario.data:
        rule = f"is not that of task {of.name}, on whose data its model is evaluated"
        raise InputError.of("data.kind", task.scenario.data.kind, rule, "make the tables equal")
    kinds = ", ".join(each.kind for each in analytics.trust)
    plans = analytics.plans(task.scenario.rounds.least_accepted)
    if len(plans) > 1 or any(failure_of(plan.event) for plan in plans):
        rule = (
            "what a device spends in all tasks is added up for one trust model, and not for "
            "shuffled, which has a delta of its own"
        )
        raise InputError.of("analytics.trust", kinds, rule, "keep one; `fedray answer` compares")


def _check_group(task: TaskScenario, other: TaskScenario, source: str) -> None:
    """Raises ScenarioError if two tasks that share a timer have different rules for it."""
    mine, theirs = _timer_of(task), _timer_of(other)
    for key, value in mine.items():
        if value != theirs[key]:
            raise ScenarioError(
                f"{source}, task {task.name}: timer_group={task.timer_group!r} shares its timer "
                f"with task {other.name}, but participation.{key}={value} is {theirs[key]} there; "
                "make them equal, or use another group"
            )


def _timer_of(task: TaskScenario) -> dict[str, Any]:
    """Returns the rules of a task that a shared timer depends on."""
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
        trust_code: as in `Scenario.from_toml`.

    Raises:
        ScenarioError: the file is not a scenario.
        InputError: the file names code that is not trusted.
    """
    # Overrides may add tasks, so they are applied before the kind is determined.
    kind = SeveralTasks if "tasks" in read_tables(path, overrides) else Scenario
    return kind.from_toml(path, overrides, trust_code=trust_code)


def scenario_schema() -> dict[str, Any]:
    """Returns the JSON schema of scenario files, including those with tables `tasks`."""
    schema = Scenario.model_json_schema()
    task = FederatedTask.model_json_schema()
    schema["properties"]["tasks"] = {
        "additionalProperties": task,
        "description": "Tables: several federated tasks that share the population, by their names.",
        "type": "object",
    }
    return schema
