"""Answers: how a call to a shard or to the aggregator comes back, from this process or from a Ray actor."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fedray.errors import RunFailed

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

    reference: Ray's ObjectRef. who: names the actor in errors. lost: what is raised when the actor is gone.
    again: makes the same call once more, after bringing the actor back, given why it died; raises `lost` when that is no use.
    """

    reference: Any
    who: str
    timeout_seconds: float
    lost: type[RunFailed]
    again: Callable[[str], "RayAnswer[T]"]

    def result(self) -> T:
        """Waits. Raises `lost` if no answer comes in time or the actor keeps dying; else the error that the call itself raised."""
        import ray
        import ray.exceptions

        try:
            return ray.get(self.reference, timeout=self.timeout_seconds)
        except ray.exceptions.GetTimeoutError:
            raise self.lost(f"{self.who} did not answer within {self.timeout_seconds:g} s; run again with more shards") from None
        except ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            raise cause from None
        except ray.exceptions.RayError as error:
            reason = " ".join(str(error).split("\n\t")[0].split())
        return self.again(reason).result()
