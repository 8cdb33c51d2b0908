"""Tasks: a function called for many jobs, each in a Ray task or in this process."""

import itertools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fedray.base.errors import FedrayError, RunFailed
from fedray.base.part_done import PartDone
from fedray.runtime.nodes import Wait, cluster_nodes
from fedray.runtime.placement import Placement
from fedray.runtime.session import (
    NodeFull,
    another_source,
    check_code,
    fetched,
    node_of_full_disk,
    own_code,
    session,
)

GROWTH_SECONDS = 5.0
"""Time without a result after which the cluster may have grown."""
_Job = TypeVar("_Job")
_Done = TypeVar("_Done")


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """Progress of tasks."""

    jobs: int
    """Jobs to do."""
    done: int = 0
    """Jobs done."""
    running: int = 0
    """Jobs in progress or next in line."""
    lost: int = 0
    """Deaths of a job's process, after which the job was restarted."""
    kept: int = 0
    """Further jobs that were done in an earlier run."""

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
        tasks = _Tasks(work, jobs, names, placement, cpus)
        try:
            while tasks.under_way:
                ended = tasks.next_ended()
                if ended is None:
                    tasks.fill()
                    report(len(tasks.under_way))
                    continue
                place, reference = ended
                try:
                    result = _value(reference)
                except Exception as error:
                    if (reason := _reason_of_loss(error)) is not None:
                        lost += 1
                        if tasks.restarted(place, reason, error):
                            report(len(tasks.under_way))
                            continue
                        error = RunFailed(
                            f"job {place} of {len(jobs)} was lost ({reason}); run again: finished "
                            "jobs are kept"
                        )
                    if on_error is None:
                        raise error from None
                    result = on_error(place, error)
                done += 1
                tasks.fill()
                report(len(tasks.under_way))
                yield place, result
        finally:
            # After an error, an interruption, or if the caller wants no more results.
            tasks.cancel()


class _Tasks:
    """Ray tasks of jobs, two for each CPU.

    Args:
        work, jobs, names, placement: as in `run_jobs`.
        cpus: CPUs of the session, whose other ones are not ours.
    """

    def __init__(
        self,
        work: Callable[[Any], Any],
        jobs: Sequence[Any],
        names: Sequence[str],
        placement: Placement,
        cpus: float,
    ) -> None:
        import ray

        self.under_way: dict[Any, int] = {}
        """Position of the job of each task that has not ended."""
        self._work, self._jobs, self._names, self._placement = work, jobs, names, placement
        # Of a cluster that others use, its free CPUs and those of nodes that join, which the first
        # may do while the probe waits.
        self._others = max(0.0, _cluster_cpus() - cpus)
        self._remote: Any = ray.remote(_work)
        self._full: set[str] = set()
        """Names of nodes whose disk is full."""
        self._losses = [0] * len(jobs)
        probe: Any = ray.remote(check_code).options(num_cpus=1)
        probed = probe.remote(own_code())
        wait = Wait(placement)
        while not wait.for_any([probed], "1 CPU"):
            pass
        _value(probed)
        self._waiting = iter(range(len(jobs)))
        self.fill()

    def fill(self) -> None:
        """Starts tasks of further jobs."""
        # Two tasks per CPU, so that the next one is ready when one ends, and a cluster that can
        # grow sees what for.
        at_once = 2 * max(1, int(_cluster_cpus() - self._others))
        for place in itertools.islice(self._waiting, max(0, at_once - len(self.under_way))):
            self._begin(place)

    def next_ended(self) -> tuple[int, Any] | None:
        """Returns the position of a job whose task has ended, and the reference to its result; None
        if no task ends within GROWTH_SECONDS."""
        import ray

        # One at a time, so that each result is yielded immediately.
        ready, _ = ray.wait(list(self.under_way), num_returns=1, timeout=GROWTH_SECONDS)
        return (self.under_way.pop(ready[0]), ready[0]) if ready else None

    def restarted(self, place: int, reason: str, error: Exception) -> bool:
        """Starts the task of a job again, whose last one was lost with an error, and returns
        whether it may start again."""
        self._losses[place] += 1
        if isinstance(error, NodeFull):
            name = error.args[0]
            if name not in self._full:
                log = logging.getLogger("fedray")
                log.warning("fedray: %s; its tasks move to others", reason)
            self._full.add(name)
        # Otherwise a job that kills its process would be restarted for ever.
        may_restart = self._losses[place] <= self._placement.most_restarts
        if may_restart and not self._full.issuperset(node.name for node in cluster_nodes()):
            self._begin(place)
            return True
        return False

    def cancel(self) -> None:
        """Ends the tasks that are under way."""
        import ray

        for reference in self.under_way:
            ray.cancel(reference, force=True)

    def _begin(self, place: int) -> None:
        full = ",".join(sorted(self._full))
        named = self._remote.options(
            name=self._names[place] if self._names else getattr(self._work, "__qualname__", "job"),
            label_selector={"ray.io/node-id": f"!in({full})"} if full else None,
            num_cpus=1,
            # Ray would repeat a lost task by itself, without a message.
            max_retries=0,
        )
        self.under_way[named.remote(own_code(), self._work, self._jobs[place])] = place


def _reason_of_loss(error: Exception) -> str | None:
    """Returns the reason for which a task was lost; None if the job itself failed."""
    from ray.exceptions import RayError, RayTaskError

    if isinstance(error, NodeFull):
        _, address, _ = error.args
        return f"the disk of node {address} is full"
    if isinstance(error, RayError) and not isinstance(error, RayTaskError):
        return str(error).splitlines()[0]
    return None


def _cluster_cpus() -> float:
    import ray

    return ray.cluster_resources().get("CPU", 0.0)


def _work(code: tuple[str, ...], work: Callable[[_Job], _Done], job: _Job) -> _Done:
    check_code(code)
    # Ray leaves GPUs visible to tasks that reserve none, and torch has not looked yet.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
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
