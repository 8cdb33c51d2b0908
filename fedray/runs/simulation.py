"""Simulation: from a scenario and a placement to a trace. Training: fedray/runs/learning.py."""

import contextlib
import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedray.base.errors import CheckpointError, FedrayError, InputError, Starved
from fedray.clients.availability.supply import eligible_share_by_class
from fedray.clients.workers import ShardWorker, start_shards
from fedray.mechanisms.triangular import MatrixFile
from fedray.runs.sustainable import check_sustainable
from fedray.runtime.cluster import cluster
from fedray.runtime.placement import Placement
from fedray.runtime.workers import Pending
from fedray.scenario import Scenario, SeveralTasks
from fedray.scenario.several_tasks import scenarios_of
from fedray.server.rounds.coordinator import Excluded, WindowOver
from fedray.server.rounds.modes import AnyCoordinator, coordinator_of
from fedray.server.rounds.stored import Uploaded
from fedray.trace.partial import PartialDirectory, new_directory, with_resume_hint
from fedray.trace.reader import Trace
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
from fedray.wire.protocols import History

CommitListener = Callable[[int, NDArray[np.uint64], NDArray[np.uint32]], None]
"""Is told the number of every committed round in order, its accepted devices [A], sorted, and the
version of the model that each of them started from [A]; empty unless rounds are buffered."""

BYTES_PER_DEVICE = 5
"""A shard needs at least so many bytes for each device: the timer, once most devices have taken
part. While check-ins are enumerated, a day's intervals come on top."""


def simulate(
    scenario: Scenario,
    placement: Placement | None = None,
    out: str | Path | None = None,
    on_progress: ProgressListener | None = None,
    on_start: Callable[[], None] | None = None,
    on_commit: CommitListener | None = None,
) -> Trace:
    """Simulates a scenario and writes its trace. No model is trained: see `fedray.train`.

    The trace is a function of the scenario alone. A run whose devices do not suffice, or whose
    privacy budget is spent (`privacy.stop_at`), ends early; its trace says so in `run["ended"]`.
    Shards are started anew when they die or hang.

    Args:
        scenario: what is simulated.
        placement: where; may change the wall clock, never the trace.
        out: a new directory for the trace; by default one under runs/.
        on_progress: is told how far the run is after every attempt at a round.
        on_start: is called when the shards are there.
        on_commit: is told who was accepted in every committed round.

    Raises:
        Starved: not even one round was committed.
        Unsustainable: the rules and the population cannot commit all rounds.
        InputError: `out` cannot be used.
        ShardLost: a shard was lost too often.
        RunFailed: a file cannot be written.

    What was reached by the last checkpoint is kept beside `out` then, for `resume`. Without a
    checkpoint nothing is left behind.
    """
    check_sustainable(scenario)
    placement = (placement or Placement()).resolved()
    check_memory(scenario, placement)
    with TraceWriter(out or new_directory(scenario.name)) as writer:
        run = write_unfinished(writer.partial, scenario.to_document())
        journal = Journal(writer.partial, run)
        save_contents(scenario, writer)
        simulation = _Simulation(scenario, placement, writer, journal, on_progress, on_commit)
        return simulation.run({}, on_start)


def resume(
    directory: str | Path,
    placement: Placement | None = None,
    scenario: Scenario | None = None,
    on_progress: ProgressListener | None = None,
    on_commit: CommitListener | None = None,
    *,
    trust_code: bool = False,
) -> Trace:
    """Goes on with a simulation from its last checkpoint: the trace is that of an undisturbed one.

    Args:
        directory: the `out` of the simulation.
        placement: where it goes on; shards and cluster may be others than before.
        scenario: what it was started with; may be left out.
        on_progress: is told how far the run is.
        on_commit: is told who was accepted in every committed round, from the first one on.
        trust_code: whether the code of a custom availability or task, which lies in the
            directory, may be run where `scenario` is not given.

    Raises:
        CheckpointError: there is nothing to go on with, or `scenario` is another one.
        InputError: the code is not trusted.
        FedrayError: as `simulate`.
    """
    partial, kept, run = read_unfinished_scenario(directory, scenario)
    placement = (placement or Placement()).resolved()
    # Code that lies in the directory may be somebody else's.
    if scenario is None and not trust_code:
        kept.demand_trust()
    check_memory(kept, placement)
    out = partial.with_name(partial.name.removesuffix(".partial"))
    with TraceWriter(out, is_resumed=True) as writer:
        journal = Journal(partial, run)
        state = journal.load()
        return _Simulation(kept, placement, writer, journal, on_progress, on_commit).run(state)


def read_unfinished_scenario(
    directory: str | Path,
    scenario: Scenario | None,
) -> tuple[Path, Scenario, str]:
    """Finds what there is of an unfinished run.

    Args:
        directory: the `out` of the run.
        scenario: what it is thought to be a run of; None to take what is found.

    Returns:
        The partial directory, the scenario that it keeps, and the run's identity.

    Raises:
        CheckpointError: there is no unfinished run, or it is of another scenario than the one
            given.
    """
    partial, document, run = read_unfinished(Path(os.path.abspath(directory)))
    kept = Scenario.from_tables(
        document["scenario"], source=str(partial), directory=partial, is_recorded=True
    )
    demand_same_scenario(partial, document, kept, scenario)
    return partial, kept, run


def demand_same_scenario(
    partial: Path,
    document: dict[str, Any],
    kept: Scenario | SeveralTasks,
    given: Scenario | SeveralTasks | None,
) -> None:
    """Checks that an unfinished run is of the scenario that it was started with, and of the one
    that is given.

    Args:
        partial: its directory.
        document: what it says of itself.
        kept: the scenario, as it is read there.
        given: what it is thought to be a run of; None for nothing.

    Raises:
        CheckpointError: it is of another one.
    """
    # The recorded digest is another one where the file was edited, or is read differently now.
    for other in (document.get("scenario_digest"), (given or kept).digest):
        if other != kept.digest:
            raise CheckpointError(
                f"{str(partial)!r} is of another scenario (digest {kept.digest[:12]}) than the one "
                f"that was started or given ({str(other)[:12]}); leave the scenario out, or give "
                "the one it was started with"
            )


def check_memory(scenario: Scenario | SeveralTasks, placement: Placement) -> None:
    """Checks that this machine has the memory that the shards' timers take.

    Args:
        scenario: says how many devices there are.
        placement: where they are simulated. Of a cluster that is joined nothing is known.

    Raises:
        InputError: the machine has too little.
    """
    if placement.address is not None:
        return
    # Every task keeps a timer of its own for each device.
    needed = scenario.device_ids * BYTES_PER_DEVICE * len(scenarios_of(scenario))
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > physical:
        devices = scenarios_of(scenario)[0].population.devices
        raise InputError.of(
            "population.devices",
            devices,
            f"needs {needed / 2**30:.0f} GiB of memory, this machine has {physical / 2**30:.0f}",
            "lower it, or join a cluster",
        )


def save_contents(scenario: Scenario, writer: PartialDirectory) -> None:
    """Writes the files that a `scenario` names by their content into what a `writer` makes."""
    mechanism = scenario.privacy.mechanism
    if isinstance(mechanism, MatrixFile):
        writer.save_content(mechanism.content_name, mechanism.content)
    for table in scenario.content_files:
        writer.save_content(table.content_name, table.content)


class HasParts(Protocol):
    """What holds parts of a trace: see fedray.wire.protocols.Shard."""

    def part_count(self) -> int:
        """How many parts it holds."""
        ...

    def write_part(self, part: int, partial: str, token: str) -> Pending[ShardPart]:
        """One of the parts."""
        ...


class _Simulation:
    """One simulation, from a state (empty: from the start) to its trace."""

    def __init__(
        self,
        scenario: Scenario,
        placement: Placement,
        writer: TraceWriter,
        journal: Journal,
        on_progress: ProgressListener | None,
        on_commit: CommitListener | None,
    ) -> None:
        self._scenario = scenario
        self._placement = placement
        self._writer = writer
        self._journal = journal
        self._on_progress = on_progress or (lambda progress: None)
        self._on_commit = on_commit or (lambda round_index, device_ids, versions: None)
        self._shards = 0
        self._seconds = 0.0
        """Simulated seconds that were reported last."""

    def run(self, state: dict[str, NDArray], on_start: Callable[[], None] | None = None) -> Trace:
        started = time.perf_counter()
        with kept_for_resumption(self._writer):
            with shards_of(self._scenario, self._placement, self._journal.settlements) as shards:
                if on_start is not None:
                    on_start()
                coordinator = coordinator_of(self._scenario, shards)
                # A run that goes on tells shards and listeners what was settled before.
                if state:
                    self._take_up(state, coordinator, shards)
                self._shards = sum(shard.shards for shard in shards)
                ended = self._to_the_end(coordinator)
                # The rounds are over; the shards encode their parts, and write them if they can.
                parts = parts_of(shards, str(self._writer.partial), self._writer.token)
                for part in parts:
                    self._writer.add_part(part)
                # The shards are asked what they used before they are closed.
                used = use_of(shards)
            document = {
                "ended": ended,
                "seed": self._scenario.seed,
                **self._scenario.to_document(),
                "written": datetime.now(UTC).isoformat(timespec="seconds"),
                "wall_seconds": round(time.perf_counter() - started, 3),
                **coordinator.document,
                **_classes_document(self._scenario, self._writer.class_counts),
                **used,
                "notes": self._journal.notes,
            }
            # run.json comes last, so that a directory which has it is whole.
            path = self._writer.finish(coordinator.records, document)
            return Trace.open(path)

    def _take_up(
        self,
        state: dict[str, NDArray],
        coordinator: AnyCoordinator,
        shards: Sequence[ShardWorker],
    ) -> None:
        """Tells the shards, and whoever listens to commits, of all that was settled before."""
        coordinator.load(state)
        for settlement, accepted in commits_before(self._journal, shards):
            coordinator.remember(accepted)
            self._on_commit(settlement.round_index, accepted, _versions_of(settlement))

    def _to_the_end(self, coordinator: AnyCoordinator) -> str:
        """Runs until the rounds are committed, the privacy budget is spent, or the days are over;
        how it ended."""
        committed = sum(record.is_committed for record in coordinator.records)
        ended = "completed"
        file = self._writer.progress
        file.begin("simulation", committed, self._scenario.rounds.count)
        try:
            for event in coordinator.events():
                if isinstance(event, WindowOver):
                    # Between two windows the state belongs to all settlements so far.
                    self._journal.save_if_due(coordinator.state, self._placement.checkpoint_seconds)
                    self._tell(coordinator, committed, event.end_time)
                    continue
                if isinstance(event, Uploaded | Excluded):
                    # These belong to no round, but a shard that is started anew must hear of them.
                    self._journal.append(event.settlement)
                    continue
                if event.settlement is not None:
                    self._journal.append(event.settlement)
                if event.record.is_committed:
                    committed += 1
                    assert event.settlement is not None
                    versions = _versions_of(event.settlement)
                    round_index = event.record.round_index
                    self._on_commit(round_index, event.accepted_device_ids, versions)
                self._tell(coordinator, committed, event.record.closed)
            # The events also end when the privacy budget is spent.
            if coordinator.stopped:
                ended = f"stopped: {coordinator.stopped}"
        except Starved as starved:
            # Without a round there is nothing to write a trace of.
            if committed == 0:
                raise
            ended = f"starved: {starved}"
        coordinator.finish()
        return ended

    def _tell(self, coordinator: AnyCoordinator, committed: int, seconds: float) -> None:
        """Reports the progress after a number of committed rounds and of simulated seconds."""
        # A round may close after the window in which it started.
        self._seconds = max(self._seconds, seconds)
        count = self._scenario.rounds.count
        progress = RunProgress(committed, count, self._seconds, *coordinator.supply)
        self._on_progress(progress)

        def facts() -> dict[str, Any]:
            rounds = {"rounds": columns_so_far(coordinator.records)}
            return {**facts_of(progress), "shards": self._shards, **rounds}

        self._writer.progress.tell(committed, facts)


@contextlib.contextmanager
def kept_for_resumption(writer: PartialDirectory) -> Iterator[None]:
    """Within: what is made may fail. After a checkpoint it is kept, and the error says how to go
    on; nothing is kept of a run without a round.

    Args:
        writer: makes it.
    """
    try:
        yield
    except Starved:
        # The run would starve again, so there is nothing to go on for.
        writer.discard()
        raise
    except (FedrayError, KeyboardInterrupt) as error:
        # Without a checkpoint nothing is kept, so there is nothing to go on with.
        if not writer.can_be_resumed:
            raise
        raise with_resume_hint(error, writer.directory) from None


def commits_before(
    journal: Journal, shards: Sequence[ShardWorker]
) -> Iterator[tuple[Settlement, NDArray[np.uint64]]]:
    """Tells the shards of all that was settled before, and gives what was committed.

    Args:
        journal: has it.
        shards: of the population.

    Yields:
        The settlements of committed rounds in order, with their accepted devices [A].
    """
    pending: list[Pending[None]] = []
    for batch in journal.batches():
        # The file is read once. While the shards apply a batch, the next one is read.
        for answer in pending:
            answer.result()
        pending = [
            shard.settle(settlements_of_devices(batch, shard.first_device, shard.end_device))
            for shard in shards
        ]
        for settlement in batch:
            if settlement.is_of_commit:
                is_accepted = settlement.outcomes == Outcome.ACCEPTED
                yield settlement, settlement.device_ids[is_accepted]
    for answer in pending:
        answer.result()


def use_of(shards: Sequence[ShardWorker]) -> dict[str, Any]:
    """What run.json says of the workers: how many `shards` there are, and what was used."""
    # Linux tells it in KiB.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "shards": sum(shard.shards for shard in shards),
        "shard_use": [asdict(shard.use().result()) for shard in shards],
        "driver_peak_mebibytes": round(peak, 1),
        "restarts": sum(shard.worker.restarts for shard in shards),
    }


def facts_of(progress: RunProgress) -> dict[str, Any]:
    """Facts of a progress file that every simulation has."""
    return {
        "simulated_seconds": progress.simulated_seconds,
        "eligible_estimate": progress.eligible_estimate,
        "may_come": progress.may_come,
        "starving": progress.starving,
    }


def columns_so_far(records: Sequence[RoundRecord]) -> dict[str, list[float]]:
    """What progress files tell of the committed rounds among the `records` of a run, by which a
    watcher bounds the privacy spent (fedray/audit/so_far.py)."""
    committed = [record for record in records if record.is_committed]
    names = ("opened", "started", "closed", "accepted")
    return {name: [getattr(each, name) for each in committed] for name in names}


def _classes_document(scenario: Scenario, counts: ClassCounts | None) -> dict[str, Any]:
    """What run.json says of each class of devices."""
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


def _versions_of(settlement: Settlement) -> NDArray[np.uint32]:
    """The versions from which the accepted devices started [A]; empty unless rounds are
    buffered."""
    if not settlement.versions.size:
        return settlement.versions
    return settlement.versions[settlement.outcomes == Outcome.ACCEPTED]


def parts_of(shards: Sequence[HasParts], partial: str, token: str) -> Iterator[ShardPart]:
    """The trace's parts, the shards taking turns.

    Every shard works one part ahead, so that memory stays bounded.

    Args:
        shards: that hold the parts.
        partial: where they are written, if the shards see it.
        token: by which they know it.
    """
    waiting = [list(range(shard.part_count())) for shard in shards]
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
            # The shard works on its next part while this one is taken.
            begin(number)
            yield written


@contextlib.contextmanager
def shards_of(
    scenario: Scenario | SeveralTasks,
    placement: Placement,
    history: History,
) -> Iterator[list[ShardWorker]]:
    """Within: the shards are there; they are closed at the end.

    Args:
        scenario: whose devices they hold.
        placement: where they run.
        history: what was settled before, for a shard that is started anew.
    """
    with contextlib.ExitStack() as stack:
        cpus = stack.enter_context(cluster(placement))
        shards = start_shards(scenario.for_shards(), placement, cpus, history)
        for shard in shards:
            stack.callback(shard.worker.close)
        yield shards
