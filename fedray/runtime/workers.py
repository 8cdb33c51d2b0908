"""Workers: a plain class that runs in this process, on a thread of it, or in a Ray actor which is
replaced when it dies or hangs.

Whoever uses a worker calls a method by name and gets a `Pending` answer. What the worker is made
of (a population shard, a trainer, the aggregator) does not know where it runs.
"""

import ctypes
import logging
import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from fedray.base.errors import RunFailed
from fedray.runtime.placement import Placement

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

START_SECONDS = 600.0
"""Longest wait for a new actor. A busy machine is slow to start one, which is no sign that it
hangs."""
END_SECONDS = 10.0
"""Longest wait for a thread to end: one operation of torch, or of a user's own code, takes less."""


class ArgumentLost(Exception):
    """What a worker had kept is gone with its machine, before another worker could read it."""


class Pending(Protocol[T_co]):
    """An answer that is on its way."""

    def result(self) -> T_co:
        """Waits for the answer. Raises the worker's `lost` error if none comes in time."""
        ...


class Worker(Protocol):
    """An object of a plain class, wherever it runs.

    restarts: how often it was started anew.
    is_elsewhere: whether a call goes on while its caller does something else.
    """

    restarts: int
    is_elsewhere: bool

    def call(self, method: str, *arguments: Any) -> Pending[Any]:
        """Begins a call of a method. Calls of one worker run in the order in which they are made.

        Args:
            method: its name.
            arguments: of the call; what `call_and_keep` kept may be among them.
        """
        ...

    def call_and_keep(self, method: str, *arguments: Any) -> Pending[tuple[Any, Any]]:
        """Begins a call of a method that returns a pair, whose second part stays where it was
        made.

        So large arrays go from worker to worker, and not by the caller.

        Args:
            method: its name.
            arguments: of the call.

        Returns:
            The first part, and a handle of the second that may be an argument of other calls.
        """
        ...

    def restart(self) -> None:
        """Starts it anew, without its state.

        Raises:
            RunFailed: it was restarted too often already; the class is that of its `lost` error.
        """
        ...

    def close(self) -> None:
        """Ends it. Answers that are still on their way are lost."""
        ...


@dataclass(frozen=True, slots=True)
class Ready(Generic[T]):
    """An answer that is there already: the call ran in this process."""

    value: T

    def result(self) -> T:
        """The answer."""
        return self.value


class InProcessWorker:
    """A worker in this process. Its object is made by the first call, and `make` may import
    torch."""

    restarts = 0
    is_elsewhere = False

    def __init__(self, make: Callable[..., Any], *arguments: Any) -> None:
        self._make = make
        self._arguments = arguments
        self._object: Any = None

    def call(self, method: str, *arguments: Any) -> Pending[Any]:
        """Calls a `method` with `arguments`. The call has run when this returns."""
        return Ready(self._answer(method, arguments))

    def call_and_keep(self, method: str, *arguments: Any) -> Pending[tuple[Any, Any]]:
        """Calls a `method` with `arguments`. The handle is a copy of the second part, an array."""
        first, second = self.call(method, *arguments).result()
        # Others may read it on their threads while this object works on.
        return Ready((first, second.copy()))

    def restart(self) -> None:
        """See Worker. The object is made again by the next call."""
        self._object = None

    def close(self) -> None:
        """See Worker. There is nothing to end."""

    def _answer(self, method: str, arguments: tuple[Any, ...]) -> Any:
        if self._object is None:
            self._object = self._make(*self._arguments)
        return getattr(self._object, method)(*arguments)


class ThreadWorker(InProcessWorker):
    """A worker on a thread of its own in this process. Its object is made there by the first call.

    What a method returns it must not change later.
    """

    is_elsewhere = True

    def __init__(self, make: Callable[..., Any], *arguments: Any) -> None:
        super().__init__(make, *arguments)
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._is_closed = False
        # A daemon thread does not keep alive a process that is being ended.
        self._thread = threading.Thread(target=self._work, name="worker", daemon=True)
        self._thread.start()

    def call(self, method: str, *arguments: Any) -> Pending[Any]:
        """Begins a call of a `method` with `arguments` on the thread."""
        answer: Future[Any] = Future()
        self._calls.put(_Call(method, arguments, answer))
        return answer

    def call_and_keep(self, method: str, *arguments: Any) -> Pending[tuple[Any, Any]]:
        """Begins a call of a `method` with `arguments`. The handle is the second part itself."""
        return self.call(method, *arguments)

    def close(self) -> None:
        """See Worker. A call that still runs after a second ends at its next line of Python."""
        self._is_closed = True
        self._calls.put(None)
        self._thread.join(timeout=1.0)
        # The interpreter aborts when it ends while a thread is in torch's C++ code.
        if self._thread.is_alive():
            # A SystemExit ends a thread without a message.
            thread, error = ctypes.c_ulong(self._thread.ident or 0), ctypes.py_object(SystemExit)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, error)
            self._thread.join(timeout=END_SECONDS)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None and not self._is_closed:
            try:
                call.answer.set_result(self._answer(call.method, call.arguments))
            except BaseException as error:
                # Whoever asks for the answer gets the error.
                call.answer.set_exception(error)


@dataclass(frozen=True, slots=True)
class _Call:
    """A call that waits for its thread, and where its answer goes."""

    method: str
    arguments: tuple[Any, ...]
    answer: Future[Any]


@dataclass(frozen=True, slots=True)
class ActorSpec:
    """What a Ray actor is made of, and what is done when it is lost.

    name: title of its process, and of its gauges.
    who: names it in messages, such as "the aggregator".
    make: makes the object, from `arguments`, in the actor's process. Ray's object references among
        the arguments arrive as what they refer to.
    cpus, gpus: resources that it reserves. An actor without a GPU sees none.
    lost: the error when it is lost for good.
    node: the node on which it is first started, if that has room; one that was lost is started
        anew on any. None for any.
    tags: labels of its gauges. An object has gauges if it has a method `gauges`, which gives
        descriptions and values by name.
    """

    name: str
    who: str
    make: Callable[..., Any]
    arguments: Sequence[Any]
    lost: type[RunFailed]
    cpus: float = 0.0
    gpus: float = 0.0
    tags: Mapping[str, str] = field(default_factory=dict)
    node: str | None = None


def shared(value: Any) -> Any:
    """A reference to a `value`, which then travels once to every node of the cluster that is up.

    As an argument of every call it would travel once for each of them.
    """
    import ray

    return ray.put(value)


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster.

    name: Ray's.
    cpus: that it has, held or not.
    """

    name: str
    cpus: float


def cluster_nodes() -> list[Node]:
    """The nodes of the cluster that is up which have CPUs, in an order that Ray keeps.

    Raises:
        RunFailed: there are none.
    """
    import ray

    nodes = [
        Node(each["NodeID"], float(each["Resources"].get("CPU", 0.0)))
        for each in ray.nodes()
        if each["Alive"]
    ]
    found = sorted((node for node in nodes if node.cpus > 0.0), key=lambda node: node.name)
    if not found:
        raise RunFailed("the cluster has no node with a CPU; start one with `ray start`")
    return found


def cluster_gpus() -> float:
    """GPUs of the cluster that is up."""
    import ray

    return ray.cluster_resources().get("GPU", 0.0)


class RayWorker:
    """A worker in a Ray actor of its own.

    catch_up: brings a new actor to the state of the one that was lost. Calls are then made again,
        so each must be pure, or take effect once however often it is made. None: a call to a lost
        actor raises `spec.lost`, and the caller restarts it.
    """

    is_elsewhere = True

    def __init__(
        self,
        spec: ActorSpec,
        placement: Placement,
        catch_up: Callable[[], None] | None,
    ) -> None:
        self.restarts = 0
        self._spec = spec
        self._placement = placement
        self._catch_up = catch_up
        self._loss = ""
        self._start(spec.cpus, spec.node)

    def call(self, method: str, *arguments: Any) -> "RayAnswer":
        """Begins a call of a `method` with `arguments` in the actor."""
        reference = self._actor.call.remote(method, *arguments)
        return self._answer(reference, None, method, arguments)

    def call_and_keep(self, method: str, *arguments: Any) -> "RayAnswer":
        """Begins a call of a `method` with `arguments`. The handle is Ray's reference."""
        # Each part of the pair has a reference of its own, so that the second can stay there.
        remote = self._actor.call.options(num_returns=2)
        reference, kept = remote.remote(method, *arguments)
        return self._answer(reference, kept, method, arguments)

    def restart(self) -> None:
        """See Worker."""
        import ray

        spec = self._spec
        # An actor that dies whenever it starts would else be started for ever.
        if self.restarts >= self._placement.most_restarts:
            raise spec.lost(
                f"{spec.who} {self._loss}, after {self.restarts} restarts; run again, with more "
                "memory, more shards or a longer worker timeout, if that was it"
            )
        self.restarts += 1
        logging.getLogger("fedray").warning(
            "fedray: %s %s; it is started anew", spec.who, self._loss
        )
        # One that hangs is alive still.
        ray.kill(self._actor)
        # It asks for no CPU: its node may be gone, and the others may be full.
        self._start(cpus=0.0, node=None)

    def close(self) -> None:
        """See Worker."""
        import ray

        ray.kill(self._actor)

    def again(
        self,
        restarts: int,
        method: str,
        arguments: tuple[Any, ...],
        loss: str,
        keeps: bool,
    ) -> "RayAnswer":
        """Makes a call again whose answer was lost.

        Args:
            restarts: of this worker when the call was made.
            method: its name.
            arguments: of the call.
            loss: what became of the actor ("died (...)", "did not answer within 600 s").
            keeps: whether it was made by `call_and_keep`.

        Raises:
            RunFailed: the worker is lost for good; the class is that of `spec.lost`.
        """
        # Of several calls whose answers were lost together, the first one brings the worker back.
        if restarts == self.restarts:
            self._loss = loss
            # Only the caller can bring a new one to the state of the one that was lost.
            if self._catch_up is None:
                raise self._spec.lost(f"{self._spec.who} {loss}")
            self.restart()
            self._catch_up()
        call = self.call_and_keep if keeps else self.call
        return call(method, *arguments)

    def _answer(
        self,
        reference: Any,
        kept: Any,
        method: str,
        arguments: tuple[Any, ...],
    ) -> "RayAnswer":
        repeat = _Repeat(self, self.restarts, method, arguments, keeps=kept is not None)
        return RayAnswer(
            reference=reference,
            kept=kept,
            start=self._started,
            timeout_seconds=self._placement.worker_timeout_seconds,
            repeat=repeat,
        )

    def _start(self, cpus: float, node: str | None) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        spec = self._spec
        # The class bears the worker's name, because Ray titles the process by it.
        remote: Any = ray.remote(type(spec.name, (_ActorBody,), {}))
        # Ray is not to restart it by itself: the new one would lack the state of the one that was
        # lost, and nobody would be told.
        where = NodeAffinitySchedulingStrategy(node, soft=True) if node else "SPREAD"
        options = remote.options(
            num_cpus=cpus, num_gpus=spec.gpus, scheduling_strategy=where, max_restarts=0
        )
        self._actor: Any = options.remote(
            spec.name, spec.tags, spec.gpus > 0, spec.make, *spec.arguments
        )
        # The first answer of an actor tells that it is up.
        self._started = _Start(self._actor.load.remote())


class _ActorBody:
    """What runs in an actor's process. The object is made by `load`, or by a call if that
    failed."""

    def __init__(
        self,
        name: str,
        tags: Mapping[str, str],
        has_gpu: bool,
        make: Callable[..., Any],
        *arguments: Any,
    ) -> None:
        # Ray leaves GPUs in sight of actors that reserve none. This comes before torch looks for
        # them.
        if not has_gpu:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        self._name = name
        self._tags = dict(tags)
        self._make = make
        self._arguments = arguments
        self._object: Any = None
        self._gauges: dict[str, Any] = {}

    def load(self) -> None:
        """Makes the object. What is wrong with it, the first call says too."""
        if self._object is None:
            self._object = self._make(*self._arguments)

    def call(self, method: str, *arguments: Any) -> Any:
        """Calls a `method` of the object with `arguments`; makes the object first if need be."""
        self.load()
        answer = getattr(self._object, method)(*arguments)
        self._show_gauges()
        return answer

    def _show_gauges(self) -> None:
        gauges = getattr(self._object, "gauges", None)
        if gauges is None:
            return
        for name, (description, value) in gauges().items():
            # A gauge is made once, and set after every call.
            if name not in self._gauges:
                from ray.util.metrics import Gauge

                full_name = f"fedray_{self._name.lower()}_{name}"
                self._gauges[name] = Gauge(full_name, description, tuple(self._tags))
                self._gauges[name].set_default_tags(self._tags)
            self._gauges[name].set(value)


class _Start:
    """The start of an actor, of which `reference` (Ray's ObjectRef) is the first sign of life."""

    def __init__(self, reference: Any) -> None:
        self._reference: Any = reference

    def wait(self) -> None:
        """Waits until the actor is up or has died, START_SECONDS at most; the next time not at
        all."""
        import ray

        # Whoever comes later knows that the start is over, one way or the other.
        if self._reference is not None:
            ray.wait([self._reference], timeout=START_SECONDS)
            self._reference = None


@dataclass(frozen=True, slots=True)
class _Repeat:
    """A call, and how often its worker had been restarted when it was made."""

    worker: RayWorker
    restarts: int
    method: str
    arguments: tuple[Any, ...]
    keeps: bool

    def after(self, loss: str) -> "RayAnswer":
        return self.worker.again(self.restarts, self.method, self.arguments, loss, self.keeps)


@dataclass(frozen=True, slots=True)
class RayAnswer:
    """An answer that an actor is working on.

    reference: Ray's ObjectRef.
    kept: the ObjectRef of what stays where it was made; None if nothing does.
    start: of the actor.
    timeout_seconds: an actor that is up and gives no answer for so long is taken to hang.
    repeat: makes the same call again.
    """

    reference: Any
    kept: Any
    start: _Start
    timeout_seconds: float
    repeat: _Repeat

    def result(self) -> Any:
        """Waits for the answer; if the actor is lost, makes the call again and waits for that.

        Raises:
            ArgumentLost: what another worker had kept for this call is gone.
            RunFailed: the worker is lost for good; the class is that of its `lost` error.
            Exception: whatever the call raised.
        """
        import ray
        import ray.exceptions

        # The start has a time limit of its own, so that a busy machine is not taken to hang.
        self.start.wait()
        try:
            value = ray.get(self.reference, timeout=self.timeout_seconds)
            return value if self.kept is None else (value, self.kept)
        except ray.exceptions.GetTimeoutError:
            loss = f"did not answer within {self.timeout_seconds:g} s"
        except ray.exceptions.RayTaskError as error:
            # The actor is well: what it was given is gone with another machine.
            if isinstance(error.cause, ray.exceptions.ObjectLostError):
                raise ArgumentLost(str(error.cause)) from None
            cause = error.cause if isinstance(error.cause, Exception) else error
            raise cause from None
        except ray.exceptions.RayError as error:
            is_lost = isinstance(error, ray.exceptions.ObjectLostError)
            # If its own answer is lost the actor is too; if another object is, it was an argument.
            if is_lost and error.object_ref_hex != self.reference.hex():
                raise ArgumentLost(str(error)) from None
            # Ray goes on for many lines, of which the first says what happened.
            reason = " ".join(str(error).split("\n\t")[0].split())
            loss = f"died ({reason})"
        return self.repeat.after(loss).result()
