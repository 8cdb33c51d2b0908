"""Local Ray clusters, and clusters to join, with fedray's code on every worker's path.

A local cluster ends with its block. It listens only on the loopback interface and, by Ray's
default, requires a token from every client.
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
from fedray.runtime.local_ray import prepare_surroundings
from fedray.runtime.placement import Placement

_Job = TypeVar("_Job")
_Done = TypeVar("_Done")
ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def cluster(placement: Placement) -> Iterator[float]:
    """Starts or joins a Ray cluster for a block; yields the number of its free CPUs.

    A cluster that is already running is used, and keeps running. In-process, nothing is started.

    Raises:
        InputError: the address cannot be joined.
    """
    # Workers do not inherit this process's sys.path: a local cluster's workers get it by
    # PYTHONPATH, and a cluster that is joined gets the package.
    if placement.backend == "in-process":
        yield 1.0
        return
    # By default, Ray sends usage statistics to its makers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    # The caller that started this cluster also ends it.
    if ray.is_initialized():
        if placement.address is not None:
            raise InputError.of(
                "address",
                placement.address,
                "cannot be joined (this process is already in a Ray cluster)",
                "leave the address out",
            )
        yield _free_cpus()
        return
    # Ray replaces this handler by its own, which may end the process before it has cleaned up.
    on_termination = signal.getsignal(signal.SIGTERM)
    if placement.address is None:
        prepare_surroundings()
        # A runtime environment would set the path too, seconds later.
        with _python_path_for_children(), _loopback_only(), warnings.catch_warnings():
            # Ray's processes call exec immediately, so the fork is safe.
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
            ray.init(
                # Otherwise Ray would join the cluster started last on this machine.
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
                # Machines of another cluster may lack the package.
                runtime_env={"py_modules": [str(ROOT / "fedray")]},
            )
        except (OSError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise InputError.of(
                "address",
                placement.address,
                f"cannot be joined ({reason})",
                "start a cluster with `ray start --head`, or leave the address out for a local one",
            ) from None
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, on_termination)
    try:
        yield _free_cpus()
    finally:
        ray.shutdown()


def _free_cpus() -> float:
    import ray

    free = ray.available_resources().get("CPU", 0.0)
    # All CPUs if none are free: actors then wait for their turn.
    return free or ray.cluster_resources().get("CPU", 1.0)


def _probe(address: str) -> None:
    """Raises OSError if no process listens at host:port; Ray itself would try for many minutes."""
    # An IPv6 address contains colons, so the port follows the last one.
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if separator and port.isdigit():
        with socket.create_connection((host.strip("[]"), int(port)), timeout=10):
            pass


@contextlib.contextmanager
def _loopback_only() -> Iterator[None]:
    """Keeps a node that Ray starts at 127.0.0.1 there, for a block."""
    # Ray replaces that address by the machine's own, and its processes (GCS, raylet, workers, this
    # one) then listen on all interfaces. It does not do so on systems on which it supports no
    # clusters of several machines: the constant says that this is one.
    import ray._private.ray_constants as constants

    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


@contextlib.contextmanager
def _python_path_for_children() -> Iterator[None]:
    """Gives child processes this process's sys.path, for a block."""
    before = os.environ.get("PYTHONPATH")
    # An empty entry means the current directory, which differs in workers.
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
        placement: where the calls run; a local Ray cluster by default.

    Yields:
        (position of the job, result), in the order of completion.

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
    """Computes work(job) for every job, in Ray tasks or in this process.

    A task whose process or node died is restarted on another, up to `placement.most_restarts`
    times. Errors of tasks are raised here. If a cluster is running, the placement needs no address.

    Args:
        work: function of a job.
        jobs: jobs to do.
        placement: backend and cluster.
        on_counts: receives the progress whenever a job is done or lost.

    Yields:
        (position of the job, result), in the order of completion.

    Raises:
        RunFailed: a task's process died too often.
    """
    done, lost = 0, 0

    def report(running: int) -> None:
        if on_counts is not None:
            on_counts(TaskCounts(len(jobs), done, running, lost))

    if placement.backend == "in-process" or not jobs:
        for place, job in enumerate(jobs):
            result = work(job)
            done += 1
            report(running=min(1, len(jobs) - done))
            yield place, result
        return
    with cluster(placement) as cpus:
        import ray
        from ray.exceptions import RayError, RayTaskError

        # Ray would repeat a lost task by itself, without a message.
        task: Any = ray.remote(work).options(num_cpus=1, max_retries=0)
        waiting = iter(enumerate(jobs))
        under_way: dict[Any, int] = {}
        losses = [0] * len(jobs)
        # Two tasks per CPU, so that the next one is ready when one ends.
        at_once = 2 * max(1, int(cpus))
        for place, job in itertools.islice(waiting, at_once):
            under_way[task.remote(job)] = place
        while under_way:
            # One at a time, so that each result is yielded immediately.
            ready, _ = ray.wait(list(under_way), num_returns=1)
            place = under_way.pop(ready[0])
            try:
                result = ray.get(ready[0])
            except RayTaskError as error:
                # fedray's own errors are raised as if the task had run here.
                if isinstance(error.cause, FedrayError):
                    raise error.cause from None
                raise
            except RayError as error:
                losses[place] += 1
                lost += 1
                # Otherwise a job that kills its process would be restarted for ever.
                if losses[place] > placement.most_restarts:
                    reason = str(error).splitlines()[0]
                    raise RunFailed(
                        f"job {place} of {len(jobs)} was lost ({reason}); run again: finished "
                        "jobs are kept"
                    ) from None
                under_way[task.remote(jobs[place])] = place
                report(len(under_way))
                continue
            done += 1
            # One job is started for each that ends.
            for next_place, job in itertools.islice(waiting, 1):
                under_way[task.remote(job)] = next_place
            report(len(under_way))
            yield place, result
