"""The composition root: scenario and placement in, trace out. The only file that knows both clients and server."""

import contextlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from clients.tasks.registry import check_task_name
from fedray.cluster import cluster
from fedray.errors import InputError, Starved
from fedray.messages import RoundRecord, RunProgress, ShardPart
from fedray.placement import Placement
from fedray.scenario import Scenario
from fedray.trace.reader import Trace
from fedray.trace.writer import TraceWriter
from mechanisms.triangular import MatrixFile


@dataclass(frozen=True, slots=True)
class _Workers:
    shards: Sequence[Any]
    aggregator: Any


ProgressListener = Callable[[RunProgress], None]


def simulate(
    scenario: Scenario,
    placement: Placement | None = None,
    out: str | Path | None = None,
    on_progress: ProgressListener | None = None,
) -> Trace:
    """Runs a scenario and writes its trace to `out` (a new directory; by default one under runs/).

    The trace is a function of the scenario alone. A run whose devices do not suffice ends early: its trace says so in
    `run["ended"]`. Raises Starved if not even one round was committed, InputError for an unusable `out`, ShardLost or
    AggregatorLost; in all these cases nothing is left behind.
    """
    placement = placement or Placement()
    if scenario.training.enabled:
        check_task_name(scenario.training.task)
    if placement.address is None:
        _check_memory(scenario.population.devices)
    started = time.perf_counter()
    with TraceWriter(out or default_directory(scenario)) as writer, _workers(scenario, placement) as workers:
        ended, records = _run(scenario, workers, writer, on_progress)
        for part in _parts(workers.shards):
            writer.add_part(part)
        mechanism = scenario.privacy.mechanism
        if isinstance(mechanism, MatrixFile):
            writer.save_matrix(mechanism.matrix, mechanism.sha256)
        path = writer.finish(
            records,
            {
                "ended": ended,
                "seed": scenario.seed,
                "scenario_digest": scenario.digest,
                "scenario": json.loads(json.dumps(scenario.to_tables())),
                "written": datetime.now(UTC).isoformat(timespec="seconds"),
                "wall_seconds": round(time.perf_counter() - started, 3),
                "shards": len(workers.shards),
            },
        )
    return Trace.open(path)


BYTES_PER_DEVICE = 64
"""Rough need of a shard: habits, latency, timer, and a day's runs."""


def _check_memory(devices: int) -> None:
    needed, physical = devices * BYTES_PER_DEVICE, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > physical:
        raise InputError(
            f"population.devices={devices} needs {needed / 2**30:.0f} GiB of memory, this machine has {physical / 2**30:.0f}; "
            "lower it, or join a cluster with --address"
        )


def default_directory(scenario: Scenario) -> Path:
    """runs/<name>-<UTC time>, with a number behind it where that is taken."""
    base = Path("runs") / f"{scenario.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    candidates = itertools.chain([base], (base.with_name(f"{base.name}-{number}") for number in itertools.count(2)))
    return next(candidate for candidate in candidates if not candidate.exists())


def _run(
    scenario: Scenario, workers: _Workers, writer: TraceWriter, on_progress: ProgressListener | None
) -> tuple[str, list[RoundRecord]]:
    from server.coordinator import Coordinator

    coordinator = Coordinator(scenario, workers.shards)
    training = None
    if scenario.training.enabled:
        from server.training import TrainingLoop

        training = TrainingLoop(scenario, workers.shards, workers.aggregator, writer.save_model)
    committed, ended = 0, "completed"
    try:
        for closed in coordinator.rounds():
            committed += closed.record.is_committed
            if training is not None and closed.record.is_committed:
                training.train(closed.record.round_index, closed.accepted_device_ids)
            if on_progress is not None:
                metrics = training.metrics[-1] if training is not None and training.metrics else None
                evaluation = training.last_evaluation if training is not None else None
                on_progress(
                    RunProgress(
                        committed,
                        scenario.rounds.count,
                        closed.record.closed,
                        closed.record.eligible_estimate,
                        metrics,
                        evaluation,
                    )
                )
    except Starved as starved:
        if committed == 0:
            raise
        ended = f"starved: {starved}"
    coordinator.finish()
    if training is not None:
        training.finish()
        writer.save_metrics(training.metrics)
    return ended, coordinator.records


def _parts(shards: Sequence[Any]) -> Iterator[ShardPart]:
    """The trace's parts, the shards taking turns; every shard works one part ahead, so that memory stays bounded."""
    pending = {shard: shard.encode_part(0) for shard in shards if shard.part_count()}
    for part in itertools.count(1):
        for shard in list(pending):
            encoded = pending.pop(shard).result()
            if part < shard.part_count():
                pending[shard] = shard.encode_part(part)
            yield encoded
        if not pending:
            return


@contextlib.contextmanager
def _workers(scenario: Scenario, placement: Placement) -> Iterator[_Workers]:
    """Shards and aggregator, closed at the end."""
    with contextlib.ExitStack() as stack:
        if placement.backend == "in-process":
            from clients.inprocess import start_shards as start_in_process
            from server.inprocess import InProcessAggregator

            yield _Workers(
                start_in_process(scenario, placement.shards or 1),
                InProcessAggregator(scenario) if scenario.training.enabled else None,
            )
            return
        cpus = stack.enter_context(cluster(placement))
        from clients.actor import start_shards
        from server.actor import RayAggregator

        shards = start_shards(scenario, placement.shards or max(1, int(cpus)), cpus, placement.answer_timeout_seconds)
        for shard in shards:
            stack.callback(shard.close)
        aggregator = RayAggregator(scenario, placement.answer_timeout_seconds) if scenario.training.enabled else None
        if aggregator is not None:
            stack.callback(aggregator.close)
        yield _Workers(shards, aggregator)
