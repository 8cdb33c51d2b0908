"""Starts a local Ray cluster, or joins one, with fedray's code on every worker's path; leaves
nothing running afterwards.

A local cluster listens on the loopback interface alone, and by Ray's own default asks every client
for a token.
"""

import contextlib
import itertools
import logging
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fedray.base.errors import FedrayError, InputError, RunFailed
from fedray.base.part_done import PartDone
from fedray.runtime.placement import Placement

_Job = TypeVar("_Job")
_Done = TypeVar("_Done")
ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def cluster(placement: Placement) -> Iterator[float]:
    """Within: Ray is up; gives its free CPUs. A cluster that was up already is used as it is, and
    left up.

    In-process there is nothing to start.

    Workers do not inherit this process's sys.path, so a local cluster's workers get it by
    PYTHONPATH, and a cluster that is joined gets the package.

    Args:
        placement: says the backend, and the address of a cluster to join.

    Yields:
        CPUs that nobody holds.

    Raises:
        InputError: the address cannot be joined.
    """
    if placement.backend == "in-process":
        yield 1.0
        return
    # Unless it is told not to, Ray reports its use to its makers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    # Whoever started this cluster also ends it.
    if ray.is_initialized():
        if placement.address is not None:
            raise InputError(
                f"address={placement.address!r} cannot be joined (this process is in a Ray cluster "
                "already); leave the address out"
            )
        yield _free_cpus()
        return
    # Ray puts a handler of its own in place of this one.
    on_termination = signal.getsignal(signal.SIGTERM)
    if placement.address is None:
        # A runtime environment would set the path too, seconds later.
        with _python_path_for_children(), _loopback_only(), warnings.catch_warnings():
            # Ray's processes replace what they were forked from at once.
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
            ray.init(
                # Else it would join whatever cluster was started last on this machine.
                address="local",
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _node_ip_address="127.0.0.1",
                object_store_memory=placement.object_store_megabytes * 1024 * 1024,
            )
    else:
        try:
            _probe(placement.address)
            ray.init(
                address=placement.address,
                logging_level=logging.ERROR,
                log_to_driver=False,
                # Machines of a cluster that is joined may lack the package, so it is sent to them.
                runtime_env={"py_modules": [str(ROOT / "fedray")]},
            )
        except (OSError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise InputError(
                f"address={placement.address!r} cannot be joined ({reason}); start a cluster with "
                "`ray start --head`, or leave the address out for a local one"
            ) from None
    if threading.current_thread() is threading.main_thread():
        # Ray's own handler may end the process before it has cleaned up.
        signal.signal(signal.SIGTERM, on_termination)
    try:
        yield _free_cpus()
    finally:
        ray.shutdown()


def _free_cpus() -> float:
    """CPUs nobody holds; all of them where none is free, so that actors wait for their turn."""
    import ray

    free = ray.available_resources().get("CPU", 0.0)
    return free or ray.cluster_resources().get("CPU", 1.0)


def _probe(address: str) -> None:
    """Raises OSError if nobody listens at host:port; Ray itself would keep trying for many
    minutes."""
    # An IPv6 address has colons of its own, so the port is behind the last one.
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if separator and port.isdigit():
        with socket.create_connection((host.strip("[]"), int(port)), timeout=10):
            pass


@contextlib.contextmanager
def _loopback_only() -> Iterator[None]:
    """Within: a node that Ray starts at 127.0.0.1 stays there.

    Else Ray replaces that address by the machine's own, and its processes (GCS, raylet, workers,
    this one) listen on all interfaces. It does not on systems for which it has no clusters of
    several machines; this has it think so.
    """
    import ray._private.ray_constants as constants

    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


@contextlib.contextmanager
def _python_path_for_children() -> Iterator[None]:
    """Within: processes started from here find what this one finds."""
    before = os.environ.get("PYTHONPATH")
    # An empty entry means the present directory, which is another one for workers.
    paths = [str(ROOT), *(path for path in sys.path if path)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """How far tasks are.

    jobs: how many there are to do.
    done: of them, those that are done.
    running: those that are under way or next in line.
    lost: how often the process of one died; each was begun again.
    kept: jobs beside these that were done before.
    """

    jobs: int
    done: int = 0
    running: int = 0
    lost: int = 0
    kept: int = 0

    def line(self, what: str) -> PartDone:
        """One line, such as "12 of 200 runs simulated, 8 running, 1 lost and begun again", of
        `what` is done with a job, such as "runs simulated"."""
        done, count = self.kept + self.done, self.kept + self.jobs
        parts = [f"{done} of {count} {what}"]
        if self.running:
            parts.append(f"{self.running} running")
        if self.lost:
            parts.append(f"{self.lost} lost and begun again")
        return PartDone(", ".join(parts), done, count)


def run_jobs(
    work: Callable[[_Job], _Done], jobs: Sequence[_Job], placement: Placement | None = None
) -> Iterator[tuple[int, _Done]]:
    """Calls `work(job)` for every job: a Ray task each, or in this process for in-process.

    Args:
        work: function that workers can import, such as one of your module.
        jobs: arguments of the calls.
        placement: place of the calls; a local Ray cluster by default.

    Yields:
        (place among the jobs, result), in the order in which they are done.

    Raises:
        RunFailed: a task's process died too often.
    """
    yield from run_tasks(work, jobs, placement or Placement())


def run_tasks(
    work: Callable[[_Job], _Done],
    jobs: Sequence[_Job],
    placement: Placement,
    on_counts: Callable[[TaskCounts], None] | None = None,
) -> Iterator[tuple[int, _Done]]:
    """Does `work` on every job: a Ray task each, two per CPU under way, or here for in-process.

    A task whose process or node died is begun again on another, `placement.most_restarts` times.
    What a task raises is raised here. Within a cluster that is up, leave the placement's address
    out.

    Args:
        work: is done on each job.
        jobs: what it is done on.
        placement: where.
        on_counts: is told how far it is whenever a job is done or lost.

    Yields:
        (place among the jobs, result), as they come; every place once.

    Raises:
        RunFailed: a task's process died too often.
    """
    done, lost = 0, 0

    def tell(running: int) -> None:
        if on_counts is not None:
            on_counts(TaskCounts(len(jobs), done, running, lost))

    if placement.backend == "in-process" or not jobs:
        for place, job in enumerate(jobs):
            result = work(job)
            done += 1
            tell(running=min(1, len(jobs) - done))
            yield place, result
        return
    with cluster(placement) as cpus:
        import ray
        from ray.exceptions import RayError, RayTaskError

        # Ray would begin a lost task again by itself, and tell nobody.
        task: Any = ray.remote(work).options(num_cpus=1, max_retries=0)
        waiting = iter(enumerate(jobs))
        under_way: dict[Any, int] = {}
        losses = [0] * len(jobs)
        # Two per CPU, so that the next one is at hand when one ends.
        at_once = 2 * max(1, int(cpus))
        for place, job in itertools.islice(waiting, at_once):
            under_way[task.remote(job)] = place
        while under_way:
            # One at a time, so that each result is passed on as soon as it is there.
            ready, _ = ray.wait(list(under_way), num_returns=1)
            place = under_way.pop(ready[0])
            try:
                result = ray.get(ready[0])
            except RayTaskError as error:
                # What a task raises on purpose is raised as if it had run here.
                if isinstance(error.cause, FedrayError):
                    raise error.cause from None
                raise
            except RayError as error:
                losses[place] += 1
                lost += 1
                # A job that kills its process would else be begun for ever.
                if losses[place] > placement.most_restarts:
                    reason = str(error).splitlines()[0]
                    raise RunFailed(
                        f"job {place} of {len(jobs)} was lost ({reason}); run again, what is done "
                        "is kept"
                    ) from None
                under_way[task.remote(jobs[place])] = place
                tell(len(under_way))
                continue
            done += 1
            # One job goes in for each that comes out.
            for next_place, job in itertools.islice(waiting, 1):
                under_way[task.remote(job)] = next_place
            tell(len(under_way))
            yield place, result
