"""Answers: how a call to a shard or to the aggregator comes back, from this process or from a Ray actor."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ready(Generic[T]):
    """An answer that is there already: the call ran in this process."""

    value: T

    def result(self) -> T:
        """The answer."""
        return self.value


START_SECONDS = 600.0
"""Longest wait for a new actor, apart from its answers: a busy machine is slow to start one, which is no sign that it hangs."""


class Start:
    """The start of an actor, of which `reference` (Ray's ObjectRef) is the first sign of life."""

    def __init__(self, reference: Any) -> None:
        self._reference: Any = reference

    def wait(self) -> None:
        """Waits until the actor is up, or has died, or START_SECONDS are over; at once when called again."""
        import ray

        if self._reference is not None:
            ray.wait([self._reference], timeout=START_SECONDS)
            self._reference = None


@dataclass(frozen=True, slots=True)
class RayAnswer(Generic[T]):
    """An answer that an actor is working on.

    reference: Ray's ObjectRef. start: of the actor. timeout_seconds: after so long without an answer, since the actor is up, it is
        taken to hang, and is lost too.
    again: makes the same call once more, after bringing the actor back, given what became of it ("died (...)", "did not answer
        within 600 s"); raises ShardLost or AggregatorLost when that is no use.
    """

    reference: Any
    start: Start
    timeout_seconds: float
    again: Callable[[str], "RayAnswer[T]"]

    def result(self) -> T:
        """Waits. Raises what `again` does if the actor keeps being lost; else the error that the call itself raised."""
        import ray
        import ray.exceptions

        self.start.wait()
        try:
            return ray.get(self.reference, timeout=self.timeout_seconds)
        except ray.exceptions.GetTimeoutError:
            what = f"did not answer within {self.timeout_seconds:g} s"
        except ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            raise cause from None
        except ray.exceptions.RayError as error:
            reason = " ".join(str(error).split("\n\t")[0].split())
            what = f"died ({reason})"
        return self.again(what).result()
