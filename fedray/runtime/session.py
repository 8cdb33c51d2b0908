"""The Ray session of a command, which all of its runs and tasks share.

Only `session` connects to Ray: to the placement's address, else RAY_ADDRESS, else a local cluster
that it starts, which listens only on the loopback interface, requires a token of its own from every
client, and keeps its files from other users. A process that is connected stays where it is; another
address is refused.
"""

import contextlib
import logging
import os
import pickle
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from fedray.base.atomic import FULL_DISK
from fedray.base.errors import FedrayError, InputError, RunFailed, one_line
from fedray.base.source import ROOT, source_digest
from fedray.runtime.local_ray import environment, private_surroundings
from fedray.runtime.placement import Placement

WITH_MESSAGES = {
    "max_direct_call_object_size": 4 << 20,
    "task_rpc_inlined_bytes_limit": 32 << 20,
}
"""Settings of a local cluster, bytes: smaller answers travel with their messages. Through Ray's
store, a round's sums and parameters took three milliseconds more (30,000 parameters)."""

COMPUTING = ("numba", "numpy", "scipy", "torch")
"""Packages of whose versions the last bits of results may depend."""

_joined: set[str] = set()
"""Address of the cluster that a `session` of this process has joined or started ("local")."""
_COMMAND: ContextVar[contextlib.ExitStack | None] = ContextVar("command", default=None)


@contextlib.contextmanager
def one_session() -> Iterator[None]:
    """Within: the first `session` lasts until the block ends, and later ones share it."""
    with contextlib.ExitStack() as stack:
        token = _COMMAND.set(stack)
        try:
            yield
        finally:
            _COMMAND.reset(token)


@contextlib.contextmanager
def session(placement: Placement, about: Mapping[str, str] | None = None) -> Iterator[float]:
    """Within: this process is connected to Ray; yields the number of free CPUs.

    Whoever connected also disconnects: this block, the block of `one_session`, or the caller who
    was connected before. In-process, nothing is started.

    Args:
        placement: cluster.
        about: metadata of Ray's job, if this block connects.

    Raises:
        InputError: the address cannot be joined, or this process is connected to another cluster.
        RunFailed: Ray cannot start on this machine.
    """
    if placement.backend == "in-process":
        yield 1.0
        return
    # By default, Ray sends usage statistics to its makers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    with contextlib.ExitStack() as own:
        if ray.is_initialized():
            _check_same(placement.address)
        else:
            (_COMMAND.get() or own).enter_context(_connected(placement, about))
        free = ray.available_resources().get("CPU", 0.0)
        # All CPUs if none are free: actors then wait for their turn.
        yield free or ray.cluster_resources().get("CPU", 1.0)


@contextlib.contextmanager
def _connected(placement: Placement, about: Mapping[str, str] | None) -> Iterator[None]:
    import ray

    address = placement.address or os.environ.get("RAY_ADDRESS") or "local"
    # Ray replaces this handler by its own, which may end the process before it has cleaned up.
    on_termination = signal.getsignal(signal.SIGTERM)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_without_reports_of_ray())
        folder = stack.enter_context(private_surroundings()) if address == "local" else None
        stack.callback(_joined.clear)
        # Also of a cluster that has not quite started, which has processes too.
        stack.callback(ray.shutdown)
        if folder is not None:
            _start(placement, about, folder)
        else:
            _join(address, about)
        _joined.add(address)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_termination)
        yield


@contextlib.contextmanager
def _without_reports_of_ray() -> Iterator[None]:
    """Within: Ray prints no report, of many lines and on stdout, of workers and nodes that are
    lost, which fedray reports in one."""
    import ray._private.worker as driver

    before = driver._worker_logs_enabled
    driver._worker_logs_enabled = False
    try:
        yield
    finally:
        driver._worker_logs_enabled = before


def _start(placement: Placement, about: Mapping[str, str] | None, folder: Path) -> None:
    import ray
    from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR

    # Workers do not inherit sys.path. A runtime environment would set it too, seconds later. The
    # configuration of a submitted job belongs to the job's cluster.
    paths = os.pathsep.join(dict.fromkeys([str(ROOT), *filter(None, sys.path)]))
    surroundings = {"PYTHONPATH": paths, RAY_JOB_CONFIG_JSON_ENV_VAR: None}
    with environment(surroundings), _loopback_only(), warnings.catch_warnings():
        # Ray's processes call exec immediately, so the fork is safe.
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        try:
            ray.init(
                # Otherwise Ray would join the cluster started last on this machine.
                address="local",
                include_dashboard=False,
                log_to_driver=False,
                # The error below says in one line what Ray would log in several.
                logging_level=logging.CRITICAL,
                _node_ip_address="127.0.0.1",
                _temp_dir=str(folder),
                object_store_memory=placement.object_store_megabytes * 1024 * 1024,
                _system_config=WITH_MESSAGES,
                job_config=_job(about),
            )
        except Exception as error:  # a plain Exception if the node's processes are late
            raise RunFailed(
                f"Ray cannot start on this machine ({one_line(str(error)).rstrip('.')}); stop "
                "other work on it, or set the placement backend=in-process"
            ) from None
        logging.getLogger("ray").setLevel(logging.ERROR)


def _join(address: str, about: Mapping[str, str] | None) -> None:
    import ray

    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    # A client of Ray sends no paths.
    if "://" not in address:
        options["job_config"] = _job(about)
    try:
        _probe(address)
        ray.init(address, **options)
        # Kernels are compiled again in a copy, so one is sent only if a node lacks this source.
        if not have_code(each["NodeID"] for each in ray.nodes() if each["Alive"]):
            ray.shutdown()
            ray.init(address, runtime_env={"py_modules": [str(ROOT / "fedray")]}, **options)
    except (OSError, ValueError, RuntimeError) as error:
        rule = f"cannot be joined ({' '.join(str(error).split())})"
        remedy = "start a cluster with `ray start --head`, or leave the address out for a local one"
        # Ray compares its own version, and that of Python.
        if "Version mismatch" in rule:
            remedy = "install the cluster's versions here"
        raise InputError.of("address", address, rule, remedy) from None


def has_own_cluster() -> bool:
    """Whether the cluster of this process is this machine, and was started for this process."""
    return "local" in _joined


def have_code(nodes: Iterable[str]) -> bool:
    """Whether nodes have the code of this process, given their names."""
    import ray
    import ray.exceptions

    probe: Any = ray.remote(num_cpus=0)(check_code)
    asked = [
        probe.options(label_selector={"ray.io/node-id": node}).remote(own_code()) for node in nodes
    ]
    try:
        ray.get(asked, timeout=60.0)
    except ray.exceptions.RayError:
        return False
    return True


def _check_same(address: str | None) -> None:
    """Raises InputError if `address` names another cluster than that of this process."""
    import ray

    # Ray replaces names such as localhost, and does not say where a client of it has connected.
    if address in (None, "auto", "local", *_joined):
        return
    joined = ray.get_runtime_context().gcs_address
    if _host_and_port(address) != _host_and_port(joined):
        rule = f"is not the cluster {joined} to which this process is connected"
        raise InputError.of("address", address, rule, "leave the address out")


def _host_and_port(address: str) -> tuple[str, str]:
    # An IPv6 address contains colons, so the port follows the last one.
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError):
        host = socket.gethostbyname(host.strip("[]"))
    return host, port


def _job(about: Mapping[str, str] | None) -> Any:
    """Returns a job whose workers import from where this process does, and from nowhere else."""
    import ray.job_config

    job = ray.job_config.JobConfig(metadata=dict(about or {}))
    # Ray would put the working directory first, from which any `numpy.py` would be imported.
    job._py_driver_sys_path = _DriverPaths()
    return job


class _DriverPaths(list[str]):
    """Directories that workers search first; takes only directories that this process searches."""

    def extend(self, paths: Iterable[str]) -> None:
        searched = {os.path.abspath(path) for path in sys.path}
        super().extend(path for path in paths if path in searched)


def _probe(address: str) -> None:
    """Raises OSError if no process listens at host:port; Ray itself would try for many minutes."""
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


def fetched(reference: Any, timeout: float | None = None) -> Any:
    """Returns the value of a reference in memory of this process.

    Ray's arrays are views of its store, which overwrites them once the session is over.
    """
    import ray
    import ray.cloudpickle.cloudpickle_fast as cloudpickle

    return pickle.loads(cloudpickle.dumps(ray.get(reference, timeout=timeout)))


@cache
def own_code() -> tuple[str, ...]:
    """Returns the digest of this process's fedray, and its versions of COMPUTING; empty for one
    that is not installed."""
    versions: list[str] = []
    for package in COMPUTING:
        try:
            # Builds for a CPU and for a GPU differ only after the plus.
            versions.append(metadata.version(package).partition("+")[0])
        except metadata.PackageNotFoundError:
            versions.append("")
    return source_digest(), *versions


def another_source(found: str) -> InputError:
    """Returns the error of a worker that does not have the driver's fedray."""
    return InputError(
        f"a Ray worker runs another fedray ({found}); install one version on all nodes, and start "
        "in a directory without a fedray"
    )


def check_code(expected: tuple[str, ...]) -> None:
    """Raises InputError, in a worker, if its code is not that of the driver (`own_code`)."""
    digest, *versions = own_code()
    if digest != expected[0]:
        raise another_source(str(ROOT))
    for package, own, wanted in zip(COMPUTING, versions, expected[1:], strict=True):
        if own and wanted and own != wanted:
            raise InputError(
                f"a Ray worker has {package} {own}, and this process {package} {wanted}, whose "
                "results may differ; install one version on all nodes"
            )


class NodeFull(FedrayError):
    """A worker's node has no space left. Arguments: its name, its address, and the error."""


@contextlib.contextmanager
def node_of_full_disk() -> Iterator[None]:
    """Raises, in a worker, an error of a full disk as NodeFull."""
    try:
        yield
    except Exception as error:
        # A RunFailed about a file was raised while its OSError was handled.
        cause: BaseException | None = error
        while cause is not None and getattr(cause, "errno", None) not in FULL_DISK:
            cause = cause.__context__
        if cause is None:
            raise
        import ray
        from ray.util import get_node_ip_address

        node = ray.get_runtime_context().get_node_id()
        raise NodeFull(node, get_node_ip_address(), error) from None
