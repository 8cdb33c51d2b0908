"""Workers: objects of plain classes that run in this process, on one of its threads, or in a Ray
actor, which is replaced when it dies or hangs.

A call of a worker's method returns a `Pending` answer. The object (a population shard, a trainer,
the aggregator) does not know where it runs.
"""

import contextlib
import ctypes
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

from fedray.base.errors import RunFailed
from fedray.runtime.gauges import Gauges
from fedray.runtime.nodes import Node, cluster_nodes
from fedray.runtime.placement import Placement
from fedray.runtime.reservation import FEW_CPUS, SECONDS_BETWEEN_LOOKS, Reservation
from fedray.runtime.session import (
    NodeFull,
    another_source,
    check_code,
    fetched,
    node_of_full_disk,
    own_code,
)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

START_SECONDS = 600.0
"""Longest wait for a new actor, which a busy machine is slow to start."""
END_SECONDS = 10.0
"""Longest wait for a thread to end; one operation of torch or of user code takes less."""


class ArgumentLost(Exception):
    """An array that a worker had kept was lost with its machine before another worker read it."""


class Pending(Protocol[T_co]):
    """The future answer of a worker."""

    def result(self) -> T_co:
        """Waits for the answer.

        Raises:
            RunFailed: no answer came in time; the class is that of the worker's `lost` error.
        """
        ...


class Worker(Protocol):
    """Object of a plain class, wherever it runs."""

    restarts: int
    """Number of restarts."""
    is_elsewhere: bool
    """Whether a call runs concurrently with its caller."""

    def call(self, method: str, *arguments: Any) -> Pending[Any]:
        """Begins a call of a method. Calls of one worker run in their order.

        Args:
            method: name of the method.
            arguments: arguments of the call, which may be handles from `call_and_keep`.
        """
        ...

    def call_and_keep(self, method: str, *arguments: Any) -> Pending[tuple[Any, Any]]:
        """Begins a call of a method that returns a pair, whose second part stays with the worker.

        Large arrays thus move from worker to worker without the caller.

        Returns:
            First part, and a handle of the second part for the arguments of other calls.
        """
        ...

    def must_move(self, nodes: Sequence[Node]) -> bool:
        """Whether the worker's node is another than these, because it is being drained or lost;
        `restart` then moves it. Asked while no answer is awaited."""
        ...

    def restart(self) -> None:
        """Starts the worker again, on another node if there is one, without a state that only its
        caller knows.

        Raises:
            RunFailed: the worker was restarted too often; the class is that of its `lost` error.
        """
        ...

    def close(self) -> None:
        """Ends the worker. Pending answers are lost."""
        ...


class WorkerProxy:
    """Base of the other side of a protocol, whose methods are calls of a worker.

    worker: worker of the object.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker


def called(method: str) -> Callable[..., Pending[Any]]:
    """Returns a method of a `WorkerProxy` that calls the object's method."""
    return lambda proxy, *arguments: proxy.worker.call(method, *arguments)


def called_and_kept(method: str) -> Callable[..., Pending[tuple[Any, Any]]]:
    """Returns a method of a `WorkerProxy` as `called`, whose second part stays with the worker."""
    return lambda proxy, *arguments: proxy.worker.call_and_keep(method, *arguments)


@dataclass(frozen=True, slots=True)
class Ready(Generic[T]):
    """Answer of a call that has run in this process."""

    value: T

    def result(self) -> T:
        return self.value


class InProcessWorker:
    """Worker in this process. The first call makes the object, because `make` may import torch."""

    restarts = 0
    is_elsewhere = False

    def __init__(self, make: Callable[..., Any], *arguments: Any) -> None:
        self._make = make
        self._arguments = arguments
        self._object: Any = None

    def call(self, method: str, *arguments: Any) -> Pending[Any]:
        return Ready(self._answer(method, arguments))

    def call_and_keep(self, method: str, *arguments: Any) -> Pending[tuple[Any, Any]]:
        first, second = self.call(method, *arguments).result()
        # The handle is a copy, because others may read it on their threads while this object works.
        return Ready((first, second.copy()))

    def must_move(self, nodes: Sequence[Node]) -> bool:
        return False

    def restart(self) -> None:
        # The next call makes the object again.
        self._object = None

    def close(self) -> None:
        pass

    def _answer(self, method: str, arguments: tuple[Any, ...]) -> Any:
        if self._object is None:
            self._object = self._make(*self._arguments)
        return getattr(self._object, method)(*arguments)


class ThreadWorker(InProcessWorker):
    """Worker on its own thread in this process, where the first call makes the object.

    Methods must not change values that they have returned.
    """

    is_elsewhere = True

    def __init__(self, make: Callable[..., Any], *arguments: Any) -> None:
        super().__init__(make, *arguments)
        self._calls: queue.SimpleQueue[tuple[str, tuple[Any, ...], Future[Any]] | None]
        self._calls = queue.SimpleQueue()
        self._is_closed = False
        # A daemon thread does not keep alive a process that is being ended.
        self._thread = threading.Thread(target=self._work, name="worker", daemon=True)
        self._thread.start()

    def call(self, method: str, *arguments: Any) -> Pending[Any]:
        answer: Future[Any] = Future()
        self._calls.put((method, arguments, answer))
        return answer

    def call_and_keep(self, method: str, *arguments: Any) -> Pending[tuple[Any, Any]]:
        # The handle is the second part itself.
        return self.call(method, *arguments)

    def close(self) -> None:
        self._is_closed = True
        self._calls.put(None)
        self._thread.join(timeout=1.0)
        # The interpreter aborts if it ends while a thread is in torch's C++ code.
        if self._thread.is_alive():
            # A SystemExit ends the thread at its next line of Python, without a message.
            thread = ctypes.c_ulong(self._thread.ident or 0)
            error = ctypes.py_object(SystemExit)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, error)
            self._thread.join(timeout=END_SECONDS)

    def _work(self) -> None:
        # `close` may raise it between two calls too.
        with contextlib.suppress(SystemExit):
            while (call := self._calls.get()) is not None and not self._is_closed:
                method, arguments, answer = call
                try:
                    answer.set_result(self._answer(method, arguments))
                except BaseException as error:
                    # `result` raises the error.
                    answer.set_exception(error)


@dataclass(frozen=True, slots=True)
class ActorSpec:
    """Specification of a worker on Ray."""

    name: str
    """Title of the gauges, and of a process of its own."""
    label: str
    """Ray's name of an actor of its own, such as "trainer-3"."""
    who: str
    """Name in messages, such as "the aggregator"."""
    make: Callable[..., Any]
    """Function of `arguments` that makes the object in the actor's process. Ray's object references
    among the arguments arrive as their values."""
    arguments: Sequence[Any]
    lost: type[RunFailed]
    """Class of the error when the actor is lost for good."""
    reservation: Reservation
    """Reservation of the run."""
    bundle: int
    """Place of the actor's bundle in the reservation."""
    gpus: float = 0.0
    """GPUs of that bundle. An actor without one sees no GPU."""
    is_alone: bool = False
    """Whether the actor has no other worker, since a user's code may not be made for threads."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Labels of the gauges, beside the run. An object has gauges if it has a method `gauges`, which
    returns descriptions and values by name."""


def shared(value: Any) -> Any:
    """Returns a reference to a value, which is then sent only once to each node, however many calls
    have it as an argument."""
    import ray

    return ray.put(value)


class RayWorker:
    """Worker in a Ray actor, which it may share with other workers of its node.

    Args:
        spec: parts of the worker.
        placement: timeout and number of restarts.
        catch_up: function that brings a new object to the state of the lost one. Calls are then
            repeated, so each must be pure or idempotent. With None, a call to a lost actor raises
            `spec.lost`, and the caller restarts the worker.
    """

    is_elsewhere = True

    def __init__(
        self, spec: ActorSpec, placement: Placement, catch_up: Callable[[], None] | None
    ) -> None:
        self.restarts = 0
        self._spec = spec
        self.placement = placement
        self._catch_up = catch_up
        self._loss = ""
        self._process = _process_of(spec)
        self._thread = self._process.join()
        self._load()

    def call(self, method: str, *arguments: Any) -> "RayAnswer":
        remote = self._remote("call", name=f"{self._spec.name}.{method}")
        reference = remote.remote(self._thread, method, *arguments)
        return RayAnswer(self, self.restarts, self._started, method, arguments, reference)

    def call_and_keep(self, method: str, *arguments: Any) -> "RayAnswer":
        # Each part of the pair has a reference of its own: the second is the handle.
        remote = self._remote("call", name=f"{self._spec.name}.{method}", num_returns=2)
        reference, kept = remote.remote(self._thread, method, *arguments)
        return RayAnswer(self, self.restarts, self._started, method, arguments, reference, kept)

    def must_move(self, nodes: Sequence[Node]) -> bool:
        # A worker may not have been called yet.
        self._started.wait()
        own = self._started.node
        # A GPU can only be in the run's group.
        if not own or self._spec.gpus or any(node.name == own for node in nodes):
            return False
        self._loss = f"{self._started.where}leaves its node, which is being drained or lost"
        return True

    def restart(self) -> None:
        spec = self._spec
        # An actor that dies at every start would otherwise be started for ever.
        if self.restarts >= self.placement.most_restarts:
            raise spec.lost(
                f"{spec.who} {self._loss}, after {self.restarts} restarts; run again with more "
                "memory, more shards or a longer worker timeout"
            )
        self.restarts += 1
        spec.reservation.show(restarts=next(spec.reservation.restarts))
        logging.getLogger("fedray").warning("fedray: %s %s; it is restarted", spec.who, self._loss)
        self._process.replace(self._actor)
        self._load()
        if self._catch_up is not None:
            self._catch_up()

    def close(self) -> None:
        # Before another worker may have the thread.
        self._remote("drop").remote(self._thread)
        self._process.leave(self._thread)

    def again(self, lost: "RayAnswer", loss: str) -> "RayAnswer":
        """Repeats a call whose answer was lost.

        Args:
            lost: the lost answer.
            loss: fate of the actor ("on 10.0.0.3 died (...)", "did not answer within 600 s").

        Raises:
            RunFailed: the worker is lost for good; the class is that of `spec.lost`.
        """
        # The first of several answers that were lost together restarts the worker.
        if lost.restarts == self.restarts:
            self._loss = loss
            # Only the caller can restore the state.
            if self._catch_up is None:
                raise self._spec.lost(f"{self._spec.who} {loss}")
            self.restart()
        call = self.call if lost.kept is None else self.call_and_keep
        return call(lost.method, *lost.arguments)

    def _load(self) -> None:
        # Another worker may replace the actor, which has no object of this one then.
        self._actor: Any = self._process.actor
        spec = self._spec
        titles = spec.name, {**spec.tags, "run": spec.reservation.namespace}
        # Ray resolves references only among the arguments of the call itself.
        load = self._remote("load").remote(self._thread, titles, spec.make, *spec.arguments)
        self._started = _Start(load, self._process.places)

    def _remote(self, method: str, **options: Any) -> Any:
        return getattr(self._actor, f"{method}_{self._thread}").options(**options)


def _process_of(spec: ActorSpec) -> "_Process":
    """Returns the process for a worker: that of its node if it has few CPUs, else a new one."""
    reservation, bundle = spec.reservation, spec.bundle
    if (
        spec.gpus
        or spec.is_alone
        or not reservation.trainers
        or reservation.nodes[bundle].cpus > FEW_CPUS
    ):
        return _Process(spec, spec.name, spec.label, 1)
    if bundle not in reservation.processes:
        # The host of the shards, the aggregator, the store, and at most all trainers.
        threads = 3 + reservation.trainers
        reservation.processes[bundle] = _Process(
            spec, "Workers", f"workers-{reservation.first_node + bundle}", threads
        )
    return reservation.processes[bundle]


class _Process:
    """A Ray actor with a thread for each of its workers.

    Args:
        spec: its first worker.
        title: title of the process.
        label: Ray's name of the first actor; that of a restarted one has a suffix.
        threads: largest number of workers.

    actor: Ray's handle of the actor.
    places: names of the nodes on which it may start; empty for any with a GPU.
    """

    def __init__(self, spec: ActorSpec, title: str, label: str, threads: int) -> None:
        self._spec, self._title, self._label = spec, title, label
        self._threads = [f"thread_{number}" for number in range(threads)]
        self._free = set(self._threads)
        self._restarts = 0
        # Simulation and training, which may share an actor, are threads of the driver.
        self._lock = threading.Lock()
        self._start(*spec.reservation.place(spec.bundle))

    def join(self) -> str:
        """Returns the thread of another worker."""
        with self._lock:
            return self._free.pop()

    def leave(self, thread: str) -> None:
        """Gives back a worker's thread; ends the process after the last."""
        import ray

        with self._lock:
            self._free.add(thread)
            if len(self._free) == len(self._threads):
                self._spec.reservation.processes.pop(self._spec.bundle, None)
                ray.kill(self.actor)

    def replace(self, lost: Any) -> None:
        """Starts another actor in place of a lost one, unless another worker has done so."""
        import ray

        with self._lock:
            if lost is not self.actor:
                return
            self._restarts += 1
            # An actor that hangs is still alive.
            ray.kill(lost)
            # Its node may be gone or hang; a GPU can only be in the group, of which -1 is any
            # bundle.
            own = self._spec.reservation
            self._start(*(own.place(-1) if self._spec.gpus else self._on_another_node()))

    def _on_another_node(self) -> tuple[dict[str, Any], frozenset[str]]:
        # Nodes that have no CPU, such as many heads, have no worker of a run. Ray takes an affinity
        # to a node as a hint for actors that reserve none, and a label as a rule.
        nodes = [node.name for node in cluster_nodes()]
        first = self._spec.reservation.nodes[self._spec.bundle].name
        if not (others := [name for name in nodes if name != first] or nodes):
            raise RunFailed("the cluster has no node with a CPU left; add one, and resume the run")
        label = {"ray.io/node-id": f"in({','.join(others)})"}
        return {"label_selector": label}, frozenset(others)

    def _start(self, where: dict[str, Any], places: frozenset[str]) -> None:
        import ray

        self.places = places
        # The class has a name of its own, because Ray titles the process by it.
        threads = dict.fromkeys(self._threads, 1)
        # A client of Ray cannot name the thread of a call, but a method that has one.
        methods = {
            f"{method}_{thread}": ray.method(concurrency_group=thread)(
                lambda body, *given, method=method: getattr(body, method)(*given)
            )
            for thread in threads
            for method in ("load", "call", "drop")
        }
        titled = type(self._title, (_ActorBody,), methods)
        remote: Any = cast(Any, ray.remote)(concurrency_groups=threads)(titled)
        suffix = f"-restart-{self._restarts}" if self._restarts else ""
        options = remote.options(
            name=self._label + suffix,
            namespace=self._spec.reservation.namespace,
            num_cpus=0,
            num_gpus=self._spec.gpus,
            # Ray must not restart actors, because that would lose their state without a message.
            max_restarts=0,
            **where,
        )
        self.actor: Any = options.remote(own_code(), self._spec.gpus)


class _ActorBody:
    """Runs the objects of workers in the actor's process, each on its thread."""

    def __init__(self, code: tuple[str, ...], gpus: float = 0.0) -> None:
        self._code = code
        # OpenMP's threads would spin between rounds, on CPUs that other workers need. Read when
        # torch or numba is loaded.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        # Ray leaves GPUs visible to actors that reserve none; torch has not looked yet.
        if gpus == 0.0:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        self._hosted: dict[str, _Hosted] = {}

    def load(
        self,
        thread: str,
        titles: tuple[str, dict[str, str]],
        make: Callable[..., Any],
        *arguments: Any,
    ) -> tuple[str, str]:
        """Makes an object, and returns the name and the address of the node. If that fails, the
        first call tries again and raises the error.

        Args:
            thread: thread of the worker.
            titles: name and labels of its gauges.
            make: function of `arguments` that makes the object.
            arguments: values of the worker's arguments.
        """
        hosted = self._hosted[thread] = _Hosted(titles, partial(self._made, make, *arguments))
        hosted.load()
        import ray
        from ray.util import get_node_ip_address

        return ray.get_runtime_context().get_node_id(), get_node_ip_address()

    def call(self, thread: str, method: str, *arguments: Any) -> Any:
        with node_of_full_disk():
            return self._hosted[thread].call(method, arguments)

    def drop(self, thread: str) -> None:
        """Frees the memory of an object, whose worker is closed."""
        del self._hosted[thread]

    def _made(self, make: Callable[..., Any], *arguments: Any) -> Any:
        check_code(self._code)
        return make(*arguments)


class _Hosted:
    """Object of one worker, in the actor's process."""

    def __init__(self, titles: tuple[str, dict[str, str]], make: Callable[[], Any]) -> None:
        name, tags = titles
        self._make = make
        self._object: Any = None
        self._gauges = Gauges(f"fedray_{name.lower()}", tags)

    def load(self) -> None:
        if self._object is None:
            self._object = self._make()

    def call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        self.load()
        answer = getattr(self._object, method)(*arguments)
        if hasattr(self._object, "gauges"):
            self._gauges.show(self._object.gauges())
        return answer


@dataclass(slots=True)
class _Start:
    """Start of an actor."""

    loaded: Any
    """ObjectRef of the name and the address of its node, when its object is made; None once that
    was waited for."""
    places: frozenset[str]
    """Names of the nodes on which it may start; empty for any."""
    node: str = ""
    """Name of its node; empty if it is unknown."""
    where: str = ""
    """Its node in messages, such as "on 10.0.0.3 "; empty if it is unknown."""
    is_lost: bool = False
    """Whether all of its nodes were lost before it was up; Ray would wait for them to come back."""

    def wait(self) -> None:
        """Waits until the actor is up, has died or cannot start, only the first time."""
        import ray
        import ray.exceptions

        end = time.monotonic() + START_SECONDS
        while self.loaded is not None:
            try:
                self.node, address = ray.get(self.loaded, timeout=SECONDS_BETWEEN_LOOKS)
                self.where = f"on {address} "
            except ray.exceptions.GetTimeoutError:
                nodes = {node.name for node in cluster_nodes()}
                self.is_lost = bool(self.places) and self.places.isdisjoint(nodes)
                if not self.is_lost and time.monotonic() < end:
                    continue
            except ray.exceptions.RayError:
                # The first call meets the same error, and raises it.
                pass
            self.loaded = None


@dataclass(frozen=True, slots=True)
class RayAnswer:
    """Pending answer of an actor."""

    worker: RayWorker
    """Worker that is called."""
    restarts: int
    """Number of restarts of the worker when the call was made."""
    start: _Start
    """Start of the actor."""
    method: str
    """Name of the called method."""
    arguments: tuple[Any, ...]
    """Arguments of the call."""
    reference: Any
    """Ray's ObjectRef of the answer."""
    kept: Any = None
    """ObjectRef of the part that stays with the actor, or None."""

    def result(self) -> Any:
        """Waits for the answer, and repeats the call if the actor is lost.

        Raises:
            ArgumentLost: an argument that another worker had kept was lost.
            RunFailed: the worker is lost for good; the class is that of its `lost` error.
            Exception: error of the call.
        """
        import ray
        import ray.exceptions

        timeout = self.worker.placement.worker_timeout_seconds
        # The start has its own time limit, so that a slow start is not mistaken for a hang.
        self.start.wait()
        if self.start.is_lost:
            loss = "did not start, because its node is being drained or lost"
            return self.worker.again(self, loss).result()
        try:
            value = fetched(self.reference, timeout)
            return value if self.kept is None else (value, self.kept)
        except ray.exceptions.GetTimeoutError:
            loss = f"{self.start.where}did not answer within {timeout:g} s"
        except ray.exceptions.RayTaskError as error:
            # The actor is fine: its argument was lost with another machine.
            if isinstance(error.cause, ray.exceptions.ObjectLostError):
                raise ArgumentLost(str(error.cause)) from None
            cause = error.cause if isinstance(error.cause, Exception) else error
            if not isinstance(cause, NodeFull):
                raise cause from None
            if len(cluster_nodes()) == 1:
                raise cause.args[2] from None
            loss = f"{self.start.where}has a full disk"
        except ray.exceptions.RayError as error:
            is_lost = isinstance(error, ray.exceptions.ObjectLostError)
            # If the answer is lost, the actor is too; another lost object was an argument.
            if is_lost and error.object_ref_hex != self.reference.hex():
                raise ArgumentLost(str(error)) from None
            lines = str(error).strip().splitlines()
            # An actor that cannot be made has other classes than this process.
            if "creation task" in lines[0]:
                raise another_source(lines[-1]) from None
            # Only the first of Ray's many lines gives the reason.
            reason = " ".join(lines[0].split())
            loss = f"{self.start.where}died ({reason})"
        return self.worker.again(self, loss).result()
