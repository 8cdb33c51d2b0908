"""The protocol of an example source. To add a kind of data: docs/extending.md."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedray.base.arrays import Int64Array, UInt64Array

FIRST_HELD_OUT = np.uint64(1 << 40)
"""First id of held-out data, on which models are evaluated and never trained. Every population
stays below it."""

Ids = UInt64Array
"""Ids of devices, [G]."""
Integers = Int64Array
"""Counts, positions or encoded sums, int64."""
Examples = dict[str, NDArray]
"""Arrays of examples by field, [G, B, *shape] each."""
OnRead = Callable[[int, int], None]
"""Receives the number of clients read so far, and the number of all clients."""


@dataclass(frozen=True, slots=True)
class Field:
    """One array of every example, such as its pixels, its class or its tokens."""

    shape: tuple[int, ...]
    """Shape in one example."""
    kind: Literal["real", "whole"]
    """"real" (float32), or "whole" (int64: classes, tokens)."""
    values: int = 0
    """Number of possible whole numbers, 0 to values - 1; 0 for reals."""
    padding: int | None = None
    """Token that fills a text up to its length and is not a target; None if texts are not
    padded."""
    unknown: int | None = None
    """Token for every word outside the vocabulary; None without such a token."""
    unit: str = "word"
    """Unit of text that a token represents, "word" or "character"."""
    start: int | None = None
    """Token before the first word of every text; None if texts start with a word."""
    end: int | None = None
    """Token after the last word of a text; None without such a token."""

    @property
    def dtype(self) -> type[np.float32] | type[np.int64]:
        """Number type of the arrays."""
        return np.float32 if self.kind == "real" else np.int64

    @property
    def is_text(self) -> bool:
        """Whether an example is a list of whole numbers."""
        return self.kind == "whole" and len(self.shape) == 1


Fields = Mapping[str, Field]
"""Fields of an example by name."""


class ExampleSource(Protocol):
    """The examples of every device. Shapes: G devices, B examples.

    A source is a pure function of the scenario, for any caller and order of calls. It needs no
    torch. `fedray.check_task` checks a source.
    """

    fields: Fields
    """Arrays of an example by name."""
    held_out_devices: int
    """Number of ids from FIRST_HELD_OUT on that have data."""
    optimum: Mapping[str, float]
    """Best value that any model can reach, for metrics whose optimum the data determines."""

    def examples_on(self, device_ids: Ids) -> Integers:
        """Returns the number of examples [G] of devices [G], which may be 0."""
        ...

    def examples(self, device_ids: Ids, positions: Integers) -> Examples:
        """Returns the examples of each device at positions [G, B]: [G, B, *shape] by field.

        Positions are below the number of examples of their device.

        Raises:
            DamagedExamples: the data of some of these devices cannot be read.
        """
        ...


class DamagedExamples(Exception):
    """Some devices whose data cannot be read.

    problems: reason by device id.
    """

    def __init__(self, problems: Mapping[int, str]) -> None:
        reasons = [f"device {device}: {reason}" for device, reason in problems.items()][:3]
        if len(problems) > 3:
            reasons.append(f"{len(problems):,} devices in all")
        super().__init__("; ".join(reasons))
        self.problems = dict(problems)
