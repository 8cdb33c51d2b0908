"""Simulation: makes a trace from a scenario. Training is in fedray/runs/learning.py."""

import contextlib
import logging
import math
import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, overload

from numpy.typing import NDArray

from fedray.base.arrays import UInt32Array, UInt64Array
from fedray.base.errors import (
    CheckpointError,
    InputError,
    Refused,
    RunFailed,
    Starved,
)
from fedray.clients.availability.supply import eligible_share_by_class
from fedray.clients.workers import ShardWorker, shard_count, start_shards
from fedray.mechanisms.triangular import MatrixFile
from fedray.runs.differing import differing
from fedray.runs.sustainable import check_sustainable
from fedray.runtime.placement import Placement
from fedray.runtime.reservation import Reservation, looks, reserved, show, where
from fedray.runtime.session import has_own_cluster
from fedray.runtime.workers import Pending
from fedray.scenario import Scenario, SeveralTasks
from fedray.scenario.content import PythonFile
from fedray.scenario.several_tasks import tasks_of
from fedray.server.rounds.coordinator import ClosedRound, RoundLoop, WindowOver
from fedray.server.rounds.modes import coordinator_of
from fedray.trace.partial import (
    PartialDirectory,
    finished_directory,
    new_directory,
    with_resume_hint,
)
from fedray.trace.reader import Trace
from fedray.trace.several_tasks import TasksRun, TasksWriter
from fedray.trace.unfinished import Journal, read_unfinished, write_unfinished
from fedray.trace.writer import TraceWriter
from fedray.wire.device_classes import classes_of
from fedray.wire.messages import (
    ClassCounts,
    Outcome,
    ProgressListener,
    RoundRecord,
    RunProgress,
    Settlement,
    ShardPart,
    settlements_of_devices,
)
from fedray.wire.protocols import ReleaseGuard

CommitListener = Callable[[int, UInt64Array, UInt32Array], str | None]
"""Called with every committed round in order: its number, its accepted devices [A], sorted, and the
model version that each of them trained from [A], which is empty unless rounds are buffered. A text
ends the run after this round, and says why in run.json."""

BYTES_PER_DEVICE = 5
"""Least memory of a shard per device: the timer, once most devices have taken part. If check-ins
are enumerated, a day's intervals are added."""
BYTES_PER_PARTICIPANT = 32
"""Least memory per device that has taken part while these are few: four slots of a hash table."""
BYTES_PER_JOIN = 40
"""Memory per device that joins within a day, measured: its intervals are listed before the pace
knows how many devices there are."""
SECONDS_OF_A_SHARD = 3.0
"""Least predicted work of each shard for which a run reserves a CPU by default, seconds."""


@overload
def simulate(
    scenario: Scenario,
    placement: Placement | None = None,
    out: str | Path | None = None,
    on_progress: ProgressListener | None = None,
    on_start: Callable[[], None] | None = None,
    on_commit: CommitListener | None = None,
) -> Trace: ...
@overload
def simulate(
    scenario: SeveralTasks,
    placement: Placement | None = None,
    out: str | Path | None = None,
    on_progress: ProgressListener | None = None,
    on_start: Callable[[], None] | None = None,
) -> TasksRun: ...
def simulate(
    scenario: Scenario | SeveralTasks,
    placement: Placement | None = None,
    out: str | Path | None = None,
    on_progress: ProgressListener | None = None,
    on_start: Callable[[], None] | None = None,
    on_commit: CommitListener | None = None,
) -> Trace | TasksRun:
    """Simulates a scenario and writes its trace, or a trace of each of its tasks. No model is
    trained: see `fedray.train`.

    Traces are a function of the scenario only. A run that has too few devices, or whose privacy
    budget (`privacy.stop_at`) is spent, ends early, as `run["ended"]` of its trace records; other
    tasks continue. Shards that die or hang are restarted.

    Args:
        scenario: scenario to simulate, of one task or several.
        placement: workers and cluster; may change the wall clock, never a trace.
        out: a new directory for the trace; by default one under runs/.
        on_progress: called after every attempt at a round, with the progress of all tasks.
        on_start: called when the shards are ready.
        on_commit: called with the accepted devices of every committed round of a single task; see
            `CommitListener`.

    Raises:
        Starved: not even one round was committed.
        Unsustainable: the rules and the population cannot commit all rounds.
        InputError: `out` cannot be used.
        ShardLost: a shard was lost too often.
        RunFailed: a file cannot be written.

    The last checkpoint is then kept next to `out`, for `resume` or `resume_run`. Without a
    checkpoint nothing is left behind.
    """
    check_sustainable(scenario)
    return simulate_checked(scenario, placement, out, on_progress, on_start, on_commit)


def simulate_checked(
    scenario: Scenario | SeveralTasks,
    placement: Placement | None,
    out: str | Path | None,
    on_progress: ProgressListener | None,
    on_start: Callable[[], None] | None,
    on_commit: CommitListener | None = None,
    guard: ReleaseGuard | None = None,
) -> Any:
    """Simulates a scenario that `check_sustainable` has passed; see `simulate`. A guard is for a
    scenario of one task."""
    placement = (placement or Placement()).resolved(lambda: predicted_seconds(scenario))
    check_memory(scenario, placement)
    with _writer_of(scenario, out or new_directory(scenario.name)) as writer:
        guarded = {} if guard is None else guard.document
        run = write_unfinished(writer.partial, {**scenario.to_document(), **guarded})
        journal = Journal(writer.partial, run)
        # A resumed run finds the files of all tasks here.
        for task in tasks_of(scenario):
            save_contents(task.scenario, writer)
        listeners = on_progress, on_commit
        simulation = _Simulation(scenario, placement, writer, journal, *listeners, guard)
        path = simulation.run({}, on_start)
    return TasksRun.open(path) if isinstance(scenario, SeveralTasks) else Trace.open(path)


def resume(
    directory: str | Path,
    placement: Placement | None = None,
    scenario: Scenario | None = None,
    on_progress: ProgressListener | None = None,
    on_commit: CommitListener | None = None,
    *,
    trust_code: bool = False,
    guard: ReleaseGuard | None = None,
) -> Trace:
    """Continues a simulation from its last checkpoint. The trace is that of an uninterrupted one.

    Args:
        directory: `out` of the simulation.
        placement: workers and cluster from now on; they may differ from earlier ones.
        scenario: scenario of the simulation; None to use the recorded one.
        on_progress: called with the progress.
        on_commit: called with the accepted devices of every committed round, from the first one.
        trust_code: whether the code of a custom availability or task in the directory may be run if
            `scenario` is not given.
        guard: guard of the releases, if the simulation was started with one.

    Raises:
        CheckpointError: the directory holds no unfinished run, or one of another scenario.
        InputError: the code is not trusted.
        FedrayError: see `simulate`.
    """
    path = resume_any(
        directory,
        placement,
        scenario,
        on_progress,
        on_commit,
        trust_code=trust_code,
        guard=guard,
    )
    return Trace.open(path)


def resume_any(
    directory: str | Path,
    placement: Placement | None,
    scenario: Scenario | SeveralTasks | None,
    on_progress: ProgressListener | None,
    on_commit: CommitListener | None = None,
    kind: type[Scenario | SeveralTasks] = Scenario,
    *,
    trust_code: bool,
    guard: ReleaseGuard | None = None,
) -> Path:
    """Continues a simulation of one task or several; see `resume`. Returns the directory of its
    output."""
    partial, kept, run = read_unfinished_scenario(directory, scenario, kind)
    placement = (placement or Placement()).resolved(lambda: predicted_seconds(kept))
    # Code in the directory may come from a stranger.
    if scenario is None and not trust_code:
        kept.demand_trust()
    check_memory(kept, placement)
    out = finished_directory(partial)
    with _writer_of(kept, out, is_resumed=True) as writer:
        journal = Journal(partial, run)
        state = journal.load()
        listeners = on_progress, on_commit
        return _Simulation(kept, placement, writer, journal, *listeners, guard).run(state)


_Kind = TypeVar("_Kind", bound=Scenario | SeveralTasks)


def read_unfinished_scenario(
    directory: str | Path,
    scenario: Scenario | SeveralTasks | None,
    kind: type[_Kind] = Scenario,
) -> tuple[Path, _Kind, str]:
    """Finds an unfinished run.

    Args:
        directory: `out` of the run.
        scenario: expected scenario; None for any.
        kind: type of the expected scenario, of one task or of several.

    Returns:
        The partial directory, the scenario that it keeps, and the run's identity.

    Raises:
        CheckpointError: the directory holds no unfinished run, or one of another scenario.
    """
    partial, document, run = read_unfinished(Path(os.path.abspath(directory)))
    if "trace" in document:
        raise CheckpointError(
            f"{str(partial)!r} is a training of a finished trace; continue it by resume_run or "
            "`fedray train`"
        )
    has_several = "tasks" in document["scenario"]
    if has_several != (kind is SeveralTasks):
        found = "several tasks; continue it with resume_run" if has_several else "one task"
        raise CheckpointError(f"{str(partial)!r} is a run of {found}")
    kept = kind.of_document(document, str(partial), partial)
    # The recorded digest differs if the file was edited, or is read differently now.
    for other in (document.get("scenario_digest"), (scenario or kept).digest):
        if other != kept.digest:
            raise CheckpointError(
                f"{str(partial)!r} is of another scenario (digest {kept.digest[:12]}) than the one "
                f"that was started or given ({str(other)[:12]}){differing(document, scenario)}; "
                "leave the scenario out, or give the one that it was started with"
            )
    return partial, kept, run


def _writer_of(
    scenario: Scenario | SeveralTasks, directory: str | Path, *, is_resumed: bool = False
) -> TraceWriter | TasksWriter:
    if isinstance(scenario, SeveralTasks):
        return TasksWriter(directory, scenario.names, is_resumed=is_resumed)
    return TraceWriter(directory, is_resumed=is_resumed)


def about_run(scenario: Scenario | SeveralTasks, out: Path) -> dict[str, str]:
    """Returns the metadata of a run's job on Ray."""
    return {"scenario": scenario.name, "digest": scenario.digest, "out": str(out)}


def predicted_seconds(scenario: Scenario | SeveralTasks) -> float:
    """Returns the predicted seconds of a simulation in this process."""
    # This also holds for buffered rounds, whose over_selection has its default and stands for
    # drop-outs.
    selected = sum(
        task.scenario.rounds.count * task.scenario.rounds.selection_target
        for task in tasks_of(scenario)
    )
    # Measured: 60 rounds of the quickstart, 8,450 devices selected in each, take 3 CPU seconds.
    return 2.0 + 5e-6 * selected + 5e-7 * scenario.device_ids


def useful_shards(scenario: Scenario | SeveralTasks, placement: Placement, cpus: float) -> int:
    """Returns the number of shards for which a run reserves CPUs: `shard_count`, but by default at
    most one for each SECONDS_OF_A_SHARD."""
    useful = math.ceil(predicted_seconds(scenario) / SECONDS_OF_A_SHARD)
    return shard_count(scenario, placement, cpus if placement.shards else min(cpus, useful))


def check_memory(scenario: Scenario | SeveralTasks, placement: Placement) -> None:
    """Checks that this machine has enough memory for the shards' timers and for joining devices.

    Args:
        scenario: scenario with the devices.
        placement: workers and cluster. The memory of a cluster to join is unknown.

    Raises:
        InputError: the machine has too little memory.
    """
    if placement.address is not None:
        return
    # Every task keeps its own timer for each device that took part.
    needed = sum(
        min(
            scenario.device_ids * BYTES_PER_DEVICE,
            task.scenario.rounds.count * task.scenario.rounds.report_goal * BYTES_PER_PARTICIPANT,
        )
        for task in tasks_of(scenario)
    )
    first = tasks_of(scenario)[0].scenario
    joining = first.population.joins_per_day * min(1.0, first.rounds.max_days) * BYTES_PER_JOIN
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if (total := needed + joining) > physical:
        key = "joins_per_day" if joining > needed else "devices"
        raise InputError.of(
            f"population.{key}",
            getattr(first.population, key),
            f"needs {total / 2**30:.0f} GiB of memory, this machine has {physical / 2**30:.0f}",
            "lower it, or join a cluster",
        )


def contents_of(scenario: Scenario) -> Iterator[tuple[str, bytes]]:
    """Yields names and bytes of the files that a scenario identifies by their content."""
    mechanism = scenario.privacy.mechanism
    if isinstance(mechanism, MatrixFile):
        yield mechanism.content_name, mechanism.content
    for table in scenario.content_files:
        yield table.content_name, table.content


def save_contents(scenario: Scenario, writer: PartialDirectory) -> None:
    """Writes the files that a `scenario` identifies by content to the directory of a `writer`."""
    for name, content in contents_of(scenario):
        writer.save_content(name, content)
    for table in scenario.content_files:
        if isinstance(table, PythonFile):
            table.remember()


@dataclass
class _Simulation:
    """A simulation, from a state (or the start, if it is empty) to the traces of its tasks."""

    _scenario: Scenario | SeveralTasks
    _placement: Placement
    _writer: TraceWriter | TasksWriter
    _journal: Journal
    _on_progress: ProgressListener | None
    _on_commit: CommitListener | None
    _guard: ReleaseGuard | None

    def __post_init__(self) -> None:
        self._tasks = tasks_of(self._scenario)
        # Watchers see a single run, so the rounds of all tasks are added up.
        self._count = sum(task.scenario.rounds.count for task in self._tasks)
        self._started = time.perf_counter()
        self._shards = 0
        self._seconds = 0.0
        """Simulated seconds at the last report."""

    def run(self, state: dict[str, NDArray], on_start: Callable[[], None] | None = None) -> Path:
        scenario, placement, writer = self._scenario, self._placement, self._writer

        def say(waits: str) -> None:
            writer.progress.begin("simulation", 0, self._count, waits)

        with kept_for_resumption(writer), contextlib.ExitStack() as stack:
            count = partial(useful_shards, scenario, placement)
            about = about_run(scenario, writer.directory)
            own = stack.enter_context(reserved(placement, count, about, say, most_trainers=0))
            history = self._journal.settlements
            # Beside the trainers of this machine, which have a process of their own, the shards
            # need none: the simulation begins while that one starts, and neither waits for the
            # other's lock of Python.
            is_here = own is not None and own.trainers > 0 and has_own_cluster()
            hosts = None if is_here else own
            shards = start_shards(scenario.for_shards(), placement, hosts, history)
            for shard in shards:
                stack.callback(shard.worker.close)
            self._shards = sum(shard.shards for shard in shards)
            at = where(placement, own, self._shards, is_here=is_here)
            logging.getLogger("fedray").info(at)
            if on_start is not None:
                on_start()
            coordinator = coordinator_of(self._scenario, shards)
            coordinator.tasks[0].guard = self._guard
            # In a resumed run, shards and listeners need the earlier settlements.
            if state:
                self._take_up(state, coordinator, shards)
            try:
                self._to_the_end(coordinator, shards, hosts)
                if isinstance(self._writer, TraceWriter):
                    return self._write_trace(self._writer, 0, coordinator, shards)
                return self._write_traces(self._writer, coordinator, shards)
            except KeyboardInterrupt:
                # A full disk must not hide the interruption.
                with contextlib.suppress(RunFailed):
                    self._journal.save_marked()
                raise

    def _take_up(
        self, state: dict[str, NDArray], coordinator: RoundLoop, shards: Sequence[ShardWorker]
    ) -> None:
        """Sends earlier settlements to the shards, and earlier commits to their listener."""
        coordinator.load(state)
        for settlement in _commits_before(self._journal, shards):
            coordinator.remember(settlement)
            accepted = settlement.accepted_device_ids
            self._committed(coordinator, settlement.round_index, accepted, settlement)

    def _committed(
        self, coordinator: RoundLoop, round_index: int, accepted: UInt64Array, of: Settlement
    ) -> None:
        """Informs the listener of a committed round, with its settlement; it may end the run."""
        if self._on_commit is not None:
            ended = self._on_commit(round_index, accepted, _versions_of(of))
            if ended:
                coordinator.tasks[0].stopped = ended

    def _to_the_end(
        self, coordinator: RoundLoop, shards: Sequence[ShardWorker], hosts: Reservation | None
    ) -> None:
        """Runs until, for every task, all rounds are committed, the privacy budget is spent, or the
        days are over."""
        committed = sum(task.round_index for task in coordinator.tasks)
        self._writer.progress.begin("simulation", committed, self._count)
        # From now on, an interruption leaves a run that can be resumed.
        self._journal.save_if_due(coordinator.state, math.inf)
        nodes_now = looks(hosts)
        for event in coordinator.events():
            # A restarted shard needs every settlement.
            for settlement in event.settlements:
                self._journal.append(settlement)
            if isinstance(event, WindowOver):
                # Between two windows the state includes all settlements so far.
                self._journal.save_if_due(coordinator.state, self._placement.checkpoint_seconds)
                self._tell(coordinator, event.end_time)
                if nodes := next(nodes_now):
                    for shard in shards:
                        if shard.worker.must_move(nodes):
                            shard.worker.restart()
            elif isinstance(event, ClosedRound):
                if event.record.is_committed:
                    accepted, of = event.accepted_device_ids, event.settlements[0]
                    self._committed(coordinator, event.record.round_index, accepted, of)
                self._tell(coordinator, event.record.closed)
        coordinator.finish()
        ended = coordinator.tasks[0].stopped
        if ended.startswith("refused") and not coordinator.tasks[0].round_index:
            raise Refused(f"{ended}; nothing was released")

    def _tell(self, coordinator: RoundLoop, seconds: float) -> None:
        """Reports the progress after a number of simulated seconds."""
        # A round may close after the window in which it started.
        self._seconds = max(self._seconds, seconds)
        committed = sum(task.round_index for task in coordinator.tasks)
        only = coordinator.tasks[0] if len(self._tasks) == 1 else None
        progress = RunProgress(
            committed,
            self._count,
            self._seconds,
            *coordinator.supply,
            so_far=None
            if only is None
            else (lambda: (self._tasks[0].scenario, _columns_so_far(only.records))),
        )
        show(
            round=committed,
            rounds=self._count,
            simulated_seconds=self._seconds,
            eligible=progress.eligible_estimate,
        )
        if self._on_progress is not None:
            self._on_progress(progress)

        def facts() -> dict[str, Any]:
            rounds = {task.name: _columns_so_far(task.records) for task in coordinator.tasks}
            # A single task has no name.
            of_rounds = {"rounds": rounds[""]} if "" in rounds else {"tasks": rounds}
            return {
                "simulated_seconds": progress.simulated_seconds,
                "eligible_estimate": progress.eligible_estimate,
                "may_come": progress.may_come,
                "starving": progress.starving,
                "shards": self._shards,
                **of_rounds,
            }

        self._writer.progress.tell(committed, facts)

    def _write_traces(
        self, writer: TasksWriter, coordinator: RoundLoop, shards: Sequence[ShardWorker]
    ) -> Path:
        """Writes the trace of every task to a folder with its name, then their common document."""
        traces: dict[str, Trace] = {}
        for place, task in enumerate(self._tasks):
            with TraceWriter(writer.partial / task.name) as own:
                save_contents(task.scenario, own)
                # A task's own scenario cannot reproduce its trace, so the whole one's digest is
                # recorded.
                of_run = {"name": task.name, "scenario_digest": self._scenario.digest}
                path = self._write_trace(own, place, coordinator, shards, task=of_run)
            traces[task.name] = Trace.open(path)
        # Each trace now has its own copies.
        for task in self._tasks:
            for name, _ in contents_of(task.scenario):
                writer.forget_content(name)
        document = self._scenario.to_document()
        return writer.finish(traces, {**document, **self._how_it_went(coordinator, shards)})

    def _write_trace(
        self,
        writer: TraceWriter,
        place: int,
        coordinator: RoundLoop,
        shards: Sequence[ShardWorker],
        **more: Any,
    ) -> Path:
        """Writes the trace of a task; the shards encode their parts, and write them if they can."""
        for part in _parts_of(shards, place, str(writer.partial), writer.token):
            writer.add_part(part)
        scenario, rounds = self._tasks[place].scenario, coordinator.tasks[place]
        document = {
            "ended": rounds.ended,
            **more,
            **({} if self._guard is None else self._guard.document),
            **scenario.to_document(),
            **self._how_it_went(coordinator, shards),
            **_classes_document(scenario, writer.class_counts),
        }
        # run.json is written last, so a directory that has it is complete.
        return writer.finish(rounds.records, document)

    def _how_it_went(self, coordinator: RoundLoop, shards: Sequence[ShardWorker]) -> dict[str, Any]:
        """Returns keys of run.json and tasks.json about the course of the run."""
        # Linux reports ru_maxrss in KiB.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return {
            "seed": self._scenario.seed,
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "wall_seconds": round(time.perf_counter() - self._started, 3),
            **coordinator.document,
            "shards": self._shards,
            "shard_use": [asdict(shard.use().result()) for shard in shards],
            "driver_peak_mebibytes": round(peak, 1),
            "restarts": sum(shard.worker.restarts for shard in shards),
            "notes": self._journal.notes,
        }


@contextlib.contextmanager
def kept_for_resumption(writer: PartialDirectory) -> Iterator[None]:
    """Keeps the directory of a run that fails after a checkpoint, and adds to the error how to
    resume it. A run that starved without a round keeps nothing.

    Args:
        writer: writer of the directory.
    """
    try:
        yield
    except (Starved, Refused):
        # The run would end in the same way if it were resumed.
        writer.discard()
        raise
    except (Exception, KeyboardInterrupt) as error:
        # Without a checkpoint there is nothing to resume.
        if not writer.can_be_resumed:
            raise
        raise with_resume_hint(error, writer.directory) from None


def _commits_before(journal: Journal, shards: Sequence[ShardWorker]) -> Iterator[Settlement]:
    """Sends the settlements of a journal to the shards, and yields the settlements of committed
    rounds, in order."""
    pending: list[Pending[None]] = []
    for batch in journal.batches():
        # While the shards apply a batch, the next one is read.
        for answer in pending:
            answer.result()
        pending = [
            shard.settle(settlements_of_devices(batch, shard.first_device, shard.end_device))
            for shard in shards
        ]
        for settlement in batch:
            if settlement.is_of_commit:
                yield settlement
    for answer in pending:
        answer.result()


def _columns_so_far(records: Sequence[RoundRecord]) -> dict[str, list[float]]:
    """Returns columns of the committed rounds among `records`, from which the privacy spent is
    bounded (fedray/audit/so_far.py) by the command and by readers of a progress file."""
    committed = [record for record in records if record.is_committed]
    names = ("opened", "started", "closed", "accepted")
    return {name: [getattr(each, name) for each in committed] for name in names}


def _classes_document(scenario: Scenario, counts: ClassCounts | None) -> dict[str, Any]:
    """Returns keys of run.json about the classes of devices."""
    if counts is None:
        return {}
    # The columns of all classes become a row for each class.
    columns = {name: column.tolist() for name, column in counts._asdict().items()}
    rows = [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
    eligible = eligible_share_by_class(scenario)
    given = zip(classes_of(scenario), eligible, rows, strict=True)
    return {
        "classes": [
            {"name": each.name, "share": each.share, "eligible_share": round(share, 6), **row}
            for each, share, row in given
        ]
    }


def _versions_of(settlement: Settlement) -> UInt32Array:
    """Returns the versions that the accepted devices trained from [A]; empty unless rounds are
    buffered."""
    if not settlement.versions.size:
        return settlement.versions
    return settlement.versions[settlement.outcomes == Outcome.ACCEPTED]


def _parts_of(
    shards: Sequence[ShardWorker], task: int, partial: str, token: str
) -> Iterator[ShardPart]:
    """Yields the parts of the trace of a task, with shards taking turns.

    Every shard works one part ahead, so that memory stays bounded.

    Args:
        shards: shards of the population.
        task: position of the task in the scenario.
        partial: directory for the parts, if shards can access it.
        token: token of the writer, by which shards recognise the directory.
    """
    # A shard numbers the parts of all tasks consecutively, task after task.
    waiting = [
        list(range(task * shard.part_count(), (task + 1) * shard.part_count())) for shard in shards
    ]
    pending: dict[int, Pending[ShardPart]] = {}

    def begin(number: int) -> None:
        if waiting[number]:
            part = waiting[number].pop(0)
            pending[number] = shards[number].write_part(part, partial, token)

    for number in range(len(shards)):
        begin(number)
    while pending:
        for number in list(pending):
            written = pending.pop(number).result()
            # The shard works on its next part while this one is processed.
            begin(number)
            yield written
