"""Runs of several federated tasks that share the devices: scenario and placement in, a trace of
every task out; then each task's model is trained on its trace."""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedray.base.errors import CheckpointError, FedrayError
from fedray.clients.data.factory import build_index
from fedray.clients.workers import ShardWorker
from fedray.mechanisms.triangular import MatrixFile
from fedray.runs.learning import finish_training
from fedray.runs.simulation import (
    check_memory,
    columns_so_far,
    commits_before,
    demand_same_scenario,
    facts_of,
    kept_for_resumption,
    parts_of,
    save_contents,
    shards_of,
    use_of,
)
from fedray.runs.sustainable import check_sustainable
from fedray.runtime.placement import Placement
from fedray.runtime.workers import Pending
from fedray.scenario import SeveralTasks
from fedray.server.rounds.coordinator import WindowOver
from fedray.server.rounds.several_tasks import TasksCoordinator
from fedray.trace.partial import new_directory, with_resume_hint
from fedray.trace.reader import Trace
from fedray.trace.schema import RUN_FILE
from fedray.trace.several_tasks import TasksRun, TasksWriter, is_of_tasks
from fedray.trace.trained import TRAINING
from fedray.trace.unfinished import Journal, read_unfinished, write_unfinished
from fedray.trace.writer import TraceWriter
from fedray.wire.messages import ProgressListener, RunProgress, ShardPart


def simulate_tasks(
    several: SeveralTasks,
    placement: Placement | None = None,
    out: str | Path | None = None,
    on_progress: ProgressListener | None = None,
    on_start: Callable[[], None] | None = None,
) -> TasksRun:
    """Simulates several tasks on one population, and writes a trace of each. No model is trained.

    The traces are a function of the scenario alone. A task whose devices do not suffice, or whose
    privacy budget is spent, ends early; its trace says so in `run["ended"]`, and the others go on.

    Args:
        several: what is simulated.
        placement: where; may change the wall clock, never a trace.
        out: a new directory for the traces; by default one under runs/.
        on_progress: is told how far the run is after every attempt at a round, of all tasks
            together.
        on_start: is called when the shards are there.

    Raises:
        Starved: no task committed a round.
        FedrayError: as `fedray.simulate`. After a checkpoint, `resume_tasks` goes on.
    """
    check_sustainable(several)
    placement = (placement or Placement()).resolved()
    check_memory(several, placement)
    with TasksWriter(out or new_directory(several.name), several.names) as writer:
        run = write_unfinished(writer.partial, several.to_document())
        journal = Journal(writer.partial, run)
        # Whoever resumes the run finds the files of all tasks here.
        for task in several.tasks:
            save_contents(task.scenario, writer)
        return _Simulation(several, placement, writer, journal, on_progress).run({}, on_start)


def run_tasks(
    several: SeveralTasks,
    placement: Placement | None = None,
    out: str | Path | None = None,
    on_progress: ProgressListener | None = None,
    on_start: Callable[[], None] | None = None,
) -> TasksRun:
    """Simulates several tasks, then trains the model of each whose training is enabled.

    Args:
        several: what is run.
        placement: where; may change the wall clock alone.
        out: a new directory for the traces; by default one under runs/.
        on_progress: is told how far simulation and trainings are.
        on_start: is called when the shards are there.

    Raises:
        FedrayError: as `simulate_tasks` and `fedray.train`. `resume_tasks` goes on.
    """
    check_sustainable(several)
    # What is wrong with data is told before the simulation, and not after it.
    for task in several.tasks:
        build_index(task.scenario, on_progress)
    found = simulate_tasks(several, placement, out, on_progress, on_start)
    _train_all(found, several, placement, on_progress, trust_code=False)
    return TasksRun.open(found.path)


def resume_tasks(
    directory: str | Path,
    placement: Placement | None = None,
    several: SeveralTasks | None = None,
    on_progress: ProgressListener | None = None,
    *,
    trust_code: bool = False,
) -> TasksRun:
    """Goes on with a run of several tasks from its last checkpoint: simulation, then trainings. The
    traces are those of an undisturbed run.

    Args:
        directory: the `out` of the run.
        placement: where it goes on; shards and cluster may be others than before.
        several: what it was started with; may be left out.
        on_progress: is told how far it is.
        trust_code: whether code that lies in the directory may be run where `several` is not given.

    Raises:
        CheckpointError: there is nothing to go on with, or `several` is another scenario.
        InputError: code is not trusted.
        FedrayError: as `run_tasks`.
    """
    if is_of_tasks(directory):
        found = TasksRun.open(directory)
        # Where all traces are whole, only trainings can be left.
        if not _untrained(found):
            raise CheckpointError(
                f"{str(found.path)!r} is whole, there is nothing to go on with; name the out of a "
                "run that was interrupted"
            )
    else:
        found = _resumed(directory, placement, several, on_progress, trust_code)
    _train_all(found, several, placement, on_progress, trust_code=trust_code)
    return TasksRun.open(found.path)


def is_unfinished_run_of_tasks(directory: str | Path) -> bool:
    """Whether a run that can go on is one of several tasks.

    Args:
        directory: its `out`.

    Raises:
        CheckpointError: there is nothing to go on with.
    """
    if is_of_tasks(directory):
        return True
    if (Path(directory) / RUN_FILE).exists():
        return False
    _, document, _ = read_unfinished(Path(directory).absolute())
    # A run of one task has its tables at the top, and none of this name.
    return "tasks" in document["scenario"]


def _resumed(
    directory: str | Path,
    placement: Placement | None,
    several: SeveralTasks | None,
    on_progress: ProgressListener | None,
    trust_code: bool,
) -> TasksRun:
    partial, document, run = read_unfinished(Path(directory).absolute())
    kept = SeveralTasks.of_document(document, str(partial), partial)
    demand_same_scenario(partial, document, kept, several)
    if several is None and not trust_code:
        kept.demand_trust()
    placement = (placement or Placement()).resolved()
    check_memory(kept, placement)
    out = partial.with_name(partial.name.removesuffix(".partial"))
    with TasksWriter(out, kept.names, is_resumed=True) as writer:
        journal = Journal(partial, run)
        state = journal.load()
        return _Simulation(kept, placement, writer, journal, on_progress).run(state)


def _untrained(found: TasksRun) -> list[str]:
    """The tasks whose model is still to be trained."""
    return [
        name
        for name, trace in found.traces.items()
        if trace.scenario["training"]["enabled"]
        # Nothing can be learned from a task without a round.
        and trace.committed_rounds
        and not (trace.path / TRAINING).exists()
    ]


def _train_all(
    found: TasksRun,
    several: SeveralTasks | None,
    placement: Placement | None,
    on_progress: ProgressListener | None,
    *,
    trust_code: bool,
) -> None:
    # Whoever gives the scenarios has their code, which needs no further trust.
    given = {task.name: task.scenario for task in several.tasks} if several is not None else {}
    for name in _untrained(found):
        try:
            finish_training(
                found.traces[name],
                placement or Placement(),
                on_progress,
                given.get(name),
                trust_code=trust_code,
            )
        except (FedrayError, KeyboardInterrupt) as error:
            raise with_resume_hint(error, found.path) from None


@dataclass(frozen=True, slots=True)
class _PartsOfTask:
    """What a shard holds of the trace of one task; see `clients.several_tasks.TasksShard`."""

    shard: ShardWorker
    task: int

    def part_count(self) -> int:
        return self.shard.part_count()

    def write_part(self, part: int, partial: str, token: str) -> Pending[ShardPart]:
        # A shard numbers the parts of all tasks in one row, task after task.
        return self.shard.write_part(self.task * self.part_count() + part, partial, token)


class _Simulation:
    """One simulation, from a state (empty: from the start) to its traces."""

    def __init__(
        self,
        several: SeveralTasks,
        placement: Placement,
        writer: TasksWriter,
        journal: Journal,
        on_progress: ProgressListener | None,
    ) -> None:
        self._several = several
        self._placement = placement
        self._writer = writer
        self._journal = journal
        self._on_progress = on_progress or (lambda progress: None)
        self._shards = 0
        self._seconds = 0.0
        """Simulated seconds that were reported last."""

    def run(
        self, state: dict[str, NDArray], on_start: Callable[[], None] | None = None
    ) -> TasksRun:
        started = time.perf_counter()
        with kept_for_resumption(self._writer):
            with shards_of(self._several, self._placement, self._journal.settlements) as shards:
                if on_start is not None:
                    on_start()
                coordinator = TasksCoordinator(self._several, shards)
                if state:
                    self._take_up(state, coordinator, shards)
                self._shards = sum(shard.shards for shard in shards)
                self._to_the_end(coordinator)
                seconds = round(time.perf_counter() - started, 3)
                # The shards are asked what they used while they are still there.
                document = self._document(coordinator, shards, seconds)
                traces = self._write_traces(coordinator, shards, document)
            path = self._writer.finish(traces, {**self._several.to_document(), **document})
            return TasksRun.open(path)

    def _take_up(
        self,
        state: dict[str, NDArray],
        coordinator: TasksCoordinator,
        shards: Sequence[ShardWorker],
    ) -> None:
        """Tells the shards of all that was settled before, and the tasks who was accepted."""
        coordinator.load(state)
        for settlement, accepted in commits_before(self._journal, shards):
            coordinator.remember(settlement.task, accepted)

    def _to_the_end(self, coordinator: TasksCoordinator) -> None:
        """Runs until every task has ended."""
        # Watchers see one run, so the rounds of all tasks count together.
        count = sum(task.scenario.rounds.count for task in self._several.tasks)
        committed = sum(task.round_index for task in coordinator.tasks)
        self._writer.progress.begin("simulation", committed, count)
        for event in coordinator.events():
            if isinstance(event, WindowOver):
                self._journal.save_if_due(coordinator.state, self._placement.checkpoint_seconds)
                self._tell(coordinator, count, event.end_time)
                continue
            closed = event.closed
            if closed.settlement is not None:
                # An attempt of one task may start timers of others.
                for settlement in (closed.settlement, *event.others):
                    self._journal.append(settlement)
            self._tell(coordinator, count, closed.record.closed)
        coordinator.finish()

    def _tell(self, coordinator: TasksCoordinator, count: int, seconds: float) -> None:
        """Reports the progress after a number of simulated seconds."""
        # A round may close after the window in which it started.
        self._seconds = max(self._seconds, seconds)
        committed = sum(task.round_index for task in coordinator.tasks)
        progress = RunProgress(committed, count, self._seconds, *coordinator.supply)
        self._on_progress(progress)

        def facts() -> dict[str, Any]:
            rounds = {task.name: columns_so_far(task.records) for task in coordinator.tasks}
            return {**facts_of(progress), "shards": self._shards, "tasks": rounds}

        self._writer.progress.tell(committed, facts)

    def _document(
        self, coordinator: TasksCoordinator, shards: Sequence[ShardWorker], seconds: float
    ) -> dict[str, Any]:
        """What tasks.json and every run.json say of how the run went."""
        return {
            "seed": self._several.seed,
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "wall_seconds": seconds,
            **coordinator.document,
            **use_of(shards),
            "notes": self._journal.notes,
        }

    def _write_traces(
        self,
        coordinator: TasksCoordinator,
        shards: Sequence[ShardWorker],
        document: dict[str, Any],
    ) -> dict[str, Trace]:
        """The trace of every task, in a folder of its name."""
        traces: dict[str, Trace] = {}
        for place, (task, rounds) in enumerate(
            zip(self._several.tasks, coordinator.tasks, strict=True)
        ):
            with TraceWriter(self._writer.partial / task.name) as writer:
                save_contents(task.scenario, writer)
                # Every shard holds rows of all tasks, of which these are one task's.
                own = [_PartsOfTask(shard, place) for shard in shards]
                for part in parts_of(own, str(writer.partial), writer.token):
                    writer.add_part(part)
                # The task's own scenario would not make its trace again, so the whole is named.
                shared = {"name": task.name, "scenario_digest": self._several.digest}
                run = {"ended": rounds.ended, "task": shared, **task.scenario.to_document()}
                path = writer.finish(rounds.records, {**run, **document})
            traces[task.name] = Trace.open(path)
        for name in self._content_names():
            with contextlib.suppress(OSError):
                self._writer.forget_content(name)
        return traces

    def _content_names(self) -> set[str]:
        """Of the files that were kept for a resumption; each trace has its own now."""
        mechanisms = (task.scenario.privacy.mechanism for task in self._several.tasks)
        names = {each.content_name for each in mechanisms if isinstance(each, MatrixFile)}
        return names | {each.content_name for each in self._several.content_files}
