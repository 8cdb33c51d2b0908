"""Tasks: a function called for many jobs, each in a Ray task or in this process."""

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fedray.base.errors import FedrayError, RunFailed
from fedray.base.part_done import PartDone
from fedray.base.source import source_digest
from fedray.runtime.placement import Placement
from fedray.runtime.reservation import cluster_nodes
from fedray.runtime.session import (
    NodeFull,
    another_source,
    check_source,
    fetched,
    node_of_full_disk,
    session,
    wait_for_cpus,
)

GROWTH_SECONDS = 5.0
"""Time without a result after which the cluster may have grown."""
_Job = TypeVar("_Job")
_Done = TypeVar("_Done")


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """Progress of tasks.

    jobs: jobs to do.
    done: jobs done.
    running: jobs in progress or next in line.
    lost: deaths of a job's process, after which the job was restarted.
    kept: further jobs that were done in an earlier run.
    """

    jobs: int
    done: int = 0
    running: int = 0
    lost: int = 0
    kept: int = 0

    def line(self, what: str) -> PartDone:
        """Describes the progress in a line such as "12 of 200 runs simulated, 8 running, 1 lost and
        begun again", with a text such as "runs simulated"."""
        done = self.kept + self.done
        count = self.kept + self.jobs
        parts = [f"{done} of {count} {what}"]
        if self.kept:
            parts.append(f"{self.kept} of them earlier")
        if self.running:
            parts.append(f"{self.running} running")
        if self.lost:
            parts.append(f"{self.lost} lost and begun again")
        return PartDone(", ".join(parts), done, count)


def run_jobs(
    work: Callable[[_Job], _Done],
    jobs: Sequence[_Job],
    placement: Placement | None = None,
    on_counts: Callable[[Any], None] | None = None,
    on_error: Callable[[int, Exception], _Done] | None = None,
    names: Sequence[str] = (),
) -> Iterator[tuple[int, _Done]]:
    """Calls `work(job)` for every job: a Ray task each, or in this process for in-process.

    A task whose process or node died, or whose node has no space left, is restarted on another, up
    to `placement.most_restarts` times.

    Args:
        work: function that workers can import, such as one of your module.
        jobs: arguments of the calls.
        placement: where the calls run; a local Ray cluster by default.
        on_counts: receives a `TaskCounts` whenever a job is done or lost.
        on_error: returns the result of a job that failed, from its position and its error; by
            default the error is raised.
        names: Ray's name of each task; by default that of the function.

    Yields:
        (position of the job, result), in the order of completion.

    Raises:
        RunFailed: a task's process died too often.
    """
    placement = placement or Placement()
    done, lost = 0, 0

    def report(running: int) -> None:
        if on_counts is not None:
            on_counts(TaskCounts(len(jobs), done, running, lost))

    if placement.backend == "in-process" or not jobs:
        for place, job in enumerate(jobs):
            try:
                result = work(job)
            except Exception as error:
                if on_error is None:
                    raise
                result = on_error(place, error)
            done += 1
            report(running=min(1, len(jobs) - done))
            yield place, result
        return
    with session(placement) as cpus:
        import ray
        from ray.exceptions import RayError, RayTaskError

        # Of a cluster that others use, its free CPUs and those of nodes that join, which the first
        # may do while the probe waits.
        others = max(0.0, _cluster_cpus() - cpus)
        remote: Any = ray.remote(_work)
        full: set[str] = set()
        probe: Any = ray.remote(check_source).options(num_cpus=1)
        probed = probe.remote(source_digest())
        wait_for_cpus(probed, 1.0, placement)
        _value(probed)
        waiting = iter(range(len(jobs)))
        under_way: dict[Any, int] = {}

        def begin(place: int) -> None:
            elsewhere = {"ray.io/node-id": f"!in({','.join(sorted(full))})"} if full else None
            named = remote.options(
                name=names[place] if names else getattr(work, "__qualname__", "job"),
                label_selector=elsewhere,
                num_cpus=1,
                # Ray would repeat a lost task by itself, without a message.
                max_retries=0,
            )
            under_way[named.remote(source_digest(), work, jobs[place])] = place

        def fill() -> None:
            # Two tasks per CPU, so that the next one is ready when one ends, and a cluster that can
            # grow sees what for.
            at_once = 2 * max(1, int(_cluster_cpus() - others))
            for place in itertools.islice(waiting, max(0, at_once - len(under_way))):
                begin(place)

        losses = [0] * len(jobs)
        fill()
        try:
            while under_way:
                # One at a time, so that each result is yielded immediately.
                ready, _ = ray.wait(list(under_way), num_returns=1, timeout=GROWTH_SECONDS)
                if not ready:
                    fill()
                    report(len(under_way))
                    continue
                place = under_way.pop(ready[0])
                try:
                    result = _value(ready[0])
                except Exception as error:
                    is_full = isinstance(error, NodeFull)
                    if is_full or (
                        isinstance(error, RayError) and not isinstance(error, RayTaskError)
                    ):
                        losses[place] += 1
                        lost += 1
                        reason = str(error).splitlines()[0]
                        if is_full:
                            name, address, _ = error.args
                            reason = f"the disk of node {address} is full"
                            if name not in full:
                                log = logging.getLogger("fedray")
                                log.warning("fedray: %s; its tasks move to others", reason)
                            full.add(name)
                        # Otherwise a job that kills its process would be restarted for ever.
                        if losses[place] <= placement.most_restarts and not full.issuperset(
                            node.name for node in cluster_nodes()
                        ):
                            begin(place)
                            report(len(under_way))
                            continue
                        error = RunFailed(
                            f"job {place} of {len(jobs)} was lost ({reason}); run again: finished "
                            "jobs are kept"
                        )
                    if on_error is None:
                        raise error from None
                    result = on_error(place, error)
                done += 1
                fill()
                report(len(under_way))
                yield place, result
        finally:
            # After an error, an interruption, or if the caller wants no more results.
            for reference in under_way:
                ray.cancel(reference, force=True)


def _cluster_cpus() -> float:
    import ray

    return ray.cluster_resources().get("CPU", 0.0)


def _work(source: str, work: Callable[[_Job], _Done], job: _Job) -> _Done:
    check_source(source)
    with node_of_full_disk():
        return work(job)


def _value(reference: Any) -> Any:
    from ray.exceptions import RayTaskError

    try:
        return fetched(reference)
    except RayTaskError as error:
        # fedray's own errors are raised as if the task had run here.
        if isinstance(error.cause, FedrayError):
            raise error.cause from None
        if (
            "failed to import on the worker" in str(error)
            and "fedray" in str(error).splitlines()[-1]
        ):
            raise another_source(str(error).strip().splitlines()[-1]) from None
        raise
