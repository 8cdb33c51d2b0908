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


@dataclass(frozen=True, slots=True)
class RayAnswer(Generic[T]):
    """An answer that an actor is working on.

    reference: Ray's ObjectRef. timeout_seconds: after so long without an answer the actor is taken to hang, and is lost too.
    again: makes the same call once more, after bringing the actor back, given what became of it ("died (...)", "did not answer
        within 600 s"); raises ShardLost or AggregatorLost when that is no use.
    """

    reference: Any
    timeout_seconds: float
    again: Callable[[str], "RayAnswer[T]"]

    def result(self) -> T:
        """Waits. Raises what `again` does if the actor keeps being lost; else the error that the call itself raised."""
        import ray
        import ray.exceptions

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
