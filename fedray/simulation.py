"""The composition root: scenario and placement in, trace out. The only file that knows both clients and server."""

import contextlib
import itertools
import json
import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from pydantic import BaseModel

from clients.tasks.registry import check_task_name
from fedray.availability import ContentFile, CustomAvailability
from fedray.cluster import cluster
from fedray.errors import CheckpointError, FedrayError, InputError, Starved
from fedray.messages import RoundRecord, RunProgress, ShardPart
from fedray.placement import Placement
from fedray.protocols import History
from fedray.scenario import Scenario
from fedray.trace.reader import Trace
from fedray.trace.unfinished import Journal, load_checkpoint, partial_directory, read_unfinished, write_unfinished
from fedray.trace.writer import TraceWriter
from mechanisms.triangular import MatrixFile

ProgressListener = Callable[[RunProgress], None]

CHECKPOINT_ROWS = 1 << 21
"""A checkpoint is due when so many rows are not yet in the journal's files."""
BYTES_PER_DEVICE = 5
"""Of a shard, at least: the timer, once most devices have taken part. While check-ins are enumerated, a day's runs come on top."""


@dataclass(frozen=True, slots=True)
class _Workers:
    shards: Sequence[Any]
    aggregator: Any


def simulate(
    scenario: Scenario,
    placement: Placement | None = None,
    out: str | Path | None = None,
    on_progress: ProgressListener | None = None,
    on_start: Callable[[], None] | None = None,
) -> Trace:
    """Runs a scenario and writes its trace to `out` (a new directory; by default one under runs/).

    `on_start` is called when the workers are there. The trace is a function of the scenario alone. A run whose devices do not
    suffice ends early: its trace says so in `run["ended"]`. Shards and the aggregator are started anew when they die. Raises
    Starved if not even one round was committed, InputError for an unusable `out`, ShardLost or AggregatorLost when they die too
    often, RunFailed when a file cannot be written. What was reached by the last checkpoint is then kept beside `out`, for
    `resume`; without one, nothing is left behind.
    """
    placement = placement or Placement()
    _check(scenario, placement)
    with TraceWriter(out or default_directory(scenario)) as writer:
        tables = json.loads(json.dumps(scenario.to_tables()))
        journal = write_unfinished(writer.partial, tables, scenario.digest)
        _save_contents(scenario, writer)
        return _finish(scenario, placement, writer, journal, {}, on_progress, on_start)


def resume(
    directory: str | Path,
    placement: Placement | None = None,
    scenario: Scenario | None = None,
    on_progress: ProgressListener | None = None,
    *,
    trust_code: bool = False,
) -> Trace:
    """Goes on with the run whose trace was to be `directory`, from its last checkpoint: the trace is that of an undisturbed run.

    Where it goes on (shards, cluster) is free. trust_code: whether the code of a custom availability, which lies in the directory,
    may be run where `scenario` is not given. Raises CheckpointError if there is nothing to go on with, or `scenario` is given and
    is another one; InputError for code that is not trusted; else as `simulate`.
    """
    placement = placement or Placement()
    partial, document, run = read_unfinished(Path(os.path.abspath(directory)))
    kept = Scenario.from_tables(document["scenario"], source=str(partial), directory=partial)
    for other in (document.get("scenario_digest"), kept.digest if scenario is None else scenario.digest):
        if other != kept.digest:
            raise CheckpointError(
                f"{str(partial)!r} is of another scenario (digest {kept.digest[:12]}) than the one that was started or given "
                f"({str(other)[:12]}); leave the scenario out, or give the one it was started with"
            )
    if isinstance(kept.availability, CustomAvailability) and scenario is None and not trust_code:
        kept.availability.demand_trust()
    _check(kept, placement)
    with TraceWriter(partial.with_name(partial.name.removesuffix(".partial")), is_resumed=True) as writer:
        journal, state = load_checkpoint(partial, run)
        return _finish(kept, placement, writer, journal, state, on_progress)


def default_directory(scenario: Scenario) -> Path:
    """runs/<name>-<UTC time>, with a number behind it where that is taken. Raises InputError.

    The directory of the unfinished run is made here, so that of several runs in one second each has a name of its own.
    """
    base = Path("runs") / f"{scenario.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    for each in itertools.chain([base], (base.with_name(f"{base.name}-{number}") for number in itertools.count(2))):
        if each.exists():
            continue
        try:
            partial_directory(each).mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise InputError(f"output {str(each)!r} cannot be made ({error}); name a writable directory by --out") from None
        return each
    raise AssertionError


def _check(scenario: Scenario, placement: Placement) -> None:
    if scenario.training.enabled:
        check_task_name(scenario.training.task)
    if placement.address is not None:
        return
    needed, physical = scenario.device_ids * BYTES_PER_DEVICE, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > physical:
        raise InputError(
            f"population.devices={scenario.population.devices} needs {needed / 2**30:.0f} GiB of memory, this machine has "
            f"{physical / 2**30:.0f}; lower it, or join a cluster with --address"
        )


def _save_contents(scenario: Scenario, writer: TraceWriter) -> None:
    """What the scenario names by its content."""
    mechanism, availability = scenario.privacy.mechanism, scenario.availability
    if isinstance(mechanism, MatrixFile):
        writer.save_matrix(mechanism.matrix, mechanism.sha256)
    if isinstance(availability, ContentFile):
        writer.save_content(f"{availability.sha256}{availability.suffix}", availability.content)


def _finish(
    scenario: Scenario,
    placement: Placement,
    writer: TraceWriter,
    journal: Journal,
    state: dict[str, NDArray],
    on_progress: ProgressListener | None,
    on_start: Callable[[], None] | None = None,
) -> Trace:
    """From a state (empty: from the start) to the trace."""
    started = time.perf_counter()
    try:
        with _workers(scenario, placement, journal.settlements) as workers:
            if on_start is not None:
                on_start()
            run = _Run(scenario, placement, writer, journal, workers, on_progress)
            if state:
                run.load(state)
            ended = run.to_the_end()
            for part in _parts(workers.shards, str(writer.partial), writer.token):
                writer.add_part(part)
            use = [asdict(shard.use().result()) for shard in workers.shards]
            restarts = sum(worker.restarts for worker in [*workers.shards, *([workers.aggregator] if workers.aggregator else [])])
        path = writer.finish(
            run.records,
            {
                "ended": ended,
                "seed": scenario.seed,
                "scenario_digest": scenario.digest,
                "scenario": json.loads(json.dumps(scenario.to_tables())),
                "written": datetime.now(UTC).isoformat(timespec="seconds"),
                "wall_seconds": round(time.perf_counter() - started, 3),
                "samplers": run.samplers,
                "shards": len(workers.shards),
                "shard_use": use,
                "driver_peak_mebibytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
                "restarts": restarts,
                "notes": journal.notes,
                "aggregator_device": run.aggregator_device,
            },
        )
    except Starved:
        writer.discard()
        raise
    except (FedrayError, KeyboardInterrupt) as error:
        if not writer.can_be_resumed:
            raise
        hint = f"the last checkpoint is kept, go on with: fedray run --resume {writer.directory}"
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(f"interrupted; {hint}") from None
        raise type(error)(f"{error}; {hint}") from None
    return Trace.open(path)


class _Run:
    """Coordinator and training of one run, with their checkpoints."""

    def __init__(
        self,
        scenario: Scenario,
        placement: Placement,
        writer: TraceWriter,
        journal: Journal,
        workers: _Workers,
        on_progress: ProgressListener | None,
    ) -> None:
        from server.coordinator import Coordinator

        self._scenario, self._placement, self._writer, self._journal = scenario, placement, writer, journal
        self._on_progress = on_progress
        self._coordinator = Coordinator(scenario, workers.shards)
        self._shards = workers.shards
        self._training: Any = None
        self._last_checkpoint = time.monotonic()
        if scenario.training.enabled:
            from server.training import TrainingLoop

            self._training = TrainingLoop(scenario, workers.shards, workers.aggregator, writer.save_model)

    @property
    def records(self) -> list[RoundRecord]:
        """Every attempt so far."""
        return self._coordinator.records

    @property
    def samplers(self) -> dict[str, int]:
        """See server.coordinator.Coordinator.samplers."""
        return self._coordinator.samplers

    @property
    def aggregator_device(self) -> str | None:
        """The kind of device that the aggregator ran on; None without training."""
        return self._training.device if self._training is not None else None

    def load(self, state: dict[str, NDArray]) -> None:
        """Takes up a checkpoint: the shards hear of all that was settled before it."""
        pending: list[Any] = []
        for batch in self._journal.batches():  # read once; while the shards apply a batch, the next is read
            for answer in pending:
                answer.result()
            pending = [
                shard.settle(tuple(each.slice_of_devices(shard.first_device, shard.end_device) for each in batch))
                for shard in self._shards
            ]
        for answer in pending:
            answer.result()
        self._coordinator.load(_under("coordinator.", state))
        if self._training is not None:
            self._training.load(_under("training.", state))

    def to_the_end(self) -> str:
        """Runs until the rounds are committed or the days are over; how it ended."""
        from server.coordinator import WindowOver

        committed, ended = sum(record.is_committed for record in self.records), "completed"
        try:
            for event in self._coordinator.events():
                if isinstance(event, WindowOver):
                    self._save_if_due()
                    continue
                committed += event.record.is_committed
                if event.settlement is not None:
                    self._journal.append(event.settlement)
                if self._training is not None and event.record.is_committed:
                    self._training.train(event.record.round_index, event.accepted_device_ids)
                if self._on_progress is not None:
                    self._on_progress(self._progress(event.record, committed))
        except Starved as starved:
            if committed == 0:
                raise
            ended = f"starved: {starved}"
        self._coordinator.finish()
        if self._training is not None:
            self._training.finish()
            self._writer.save_metrics(self._training.metrics)
        return ended

    def _progress(self, record: RoundRecord, committed: int) -> RunProgress:
        training = self._training
        return RunProgress(
            committed,
            self._scenario.rounds.count,
            record.closed,
            record.eligible_estimate,
            training.metrics[-1] if training is not None and training.metrics else None,
            training.last_evaluation if training is not None else None,
        )

    def _save_if_due(self) -> None:
        is_time = time.monotonic() - self._last_checkpoint >= self._placement.checkpoint_seconds
        if not (is_time or self._journal.recent_rows >= CHECKPOINT_ROWS):
            return
        state = {f"coordinator.{name}": array for name, array in self._coordinator.state().items()}
        if self._training is not None:
            state |= {f"training.{name}": array for name, array in self._training.state().items()}
        self._journal.save(state)
        self._last_checkpoint = time.monotonic()


def _under(prefix: str, state: dict[str, NDArray]) -> dict[str, NDArray]:
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}


def _parts(shards: Sequence[Any], partial: str, token: str) -> Iterator[ShardPart]:
    """The trace's parts, the shards taking turns; every shard works one part ahead, so that memory stays bounded."""
    pending = {shard: shard.write_part(0, partial, token) for shard in shards if shard.part_count()}
    for part in itertools.count(1):
        for shard in list(pending):
            written = pending.pop(shard).result()
            if part < shard.part_count():
                pending[shard] = shard.write_part(part, partial, token)
            yield written
        if not pending:
            return


def _for_shards(scenario: Scenario) -> Scenario:
    """The scenario without the mechanism's matrix, and without what was computed here from the availability's file."""
    return _with(scenario, _without_content(scenario.privacy.mechanism), _as_given(scenario.availability))


def _for_aggregator(scenario: Scenario) -> Scenario:
    """The scenario without what is in the availability's file."""
    return _with(scenario, scenario.privacy.mechanism, _without_content(scenario.availability))


def _with(scenario: Scenario, mechanism: BaseModel, availability: BaseModel) -> Scenario:
    privacy = scenario.privacy.model_copy(update={"mechanism": mechanism})
    return scenario.model_copy(update={"privacy": privacy, "availability": availability})


def _without_content(table: BaseModel) -> BaseModel:
    """A copy of a table that names its file and has nothing of what is in it: reading that is an AttributeError."""
    if not isinstance(table, MatrixFile | ContentFile):
        return table
    return type(table).model_construct(**{name: getattr(table, name) for name in type(table).model_fields})


def _as_given(table: BaseModel) -> BaseModel:
    """A copy of a table without its cached properties, which would travel too."""
    copy = table.model_copy()
    for name in set(vars(copy)) - set(type(table).model_fields):
        del vars(copy)[name]
    return copy


@contextlib.contextmanager
def _workers(scenario: Scenario, placement: Placement, history: History) -> Iterator[_Workers]:
    """Shards and aggregator, closed at the end."""
    with contextlib.ExitStack() as stack:
        if placement.backend == "in-process":
            from clients.inprocess import start_shards as start_in_process
            from server.inprocess import InProcessAggregator

            yield _Workers(
                start_in_process(scenario, placement.shards or 1),
                InProcessAggregator(scenario, "cuda" if placement.aggregator_gpus else "cpu")
                if scenario.training.enabled
                else None,
            )
            return
        cpus = stack.enter_context(cluster(placement))
        from clients.actor import start_shards
        from server.actor import RayAggregator

        shards = start_shards(_for_shards(scenario), placement, cpus, history)
        for shard in shards:
            stack.callback(shard.close)
        aggregator = RayAggregator(_for_aggregator(scenario), placement) if scenario.training.enabled else None
        if aggregator is not None:
            stack.callback(aggregator.close)
        yield _Workers(shards, aggregator)
