"""What a source of examples is. To add a kind of data: ARCHITECTURE.md, "To add"."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

FIRST_HELD_OUT = np.uint64(1 << 40)
"""Ids from here on are of no device of a population: every population stays below. The data of such
an id is held out: models are evaluated on it, and never trained."""

OnRead = Callable[[int, int], None]
"""Is told how many clients of the data were read, and how many there are."""


@dataclass(frozen=True, slots=True)
class Field:
    """One array of every example, such as its pixels, its class or its tokens.

    shape: of one example.
    kind: "real" (float32), or "whole" (int64: classes, tokens).
    values: of whole numbers, how many there are: 0 to values - 1. 0 for reals.
    padding: the token that fills a text up to its length and is no target; None where texts are
        whole.
    unknown: the token that stands for every word outside the vocabulary; None where there is none.
    unit: unit of text that a token stands for, "word" or "character".
    """

    shape: tuple[int, ...]
    kind: Literal["real", "whole"]
    values: int = 0
    padding: int | None = None
    unknown: int | None = None
    unit: str = "word"

    @property
    def is_text(self) -> bool:
        """Whether an example is a list of whole numbers."""
        return self.kind == "whole" and len(self.shape) == 1


class ExampleSource(Protocol):
    """The examples of every device. Shapes: G devices, B examples.

    A source is a pure function of the scenario, whoever asks and in whatever order. It needs no
    torch. `fedray.clients.data.contract` has the checks that every source must pass.

    fields: the arrays of an example by name.
    held_out_devices: how many ids from FIRST_HELD_OUT on have data.
    optimum: for metrics of which the data says it, the best value that any model can have.
    """

    fields: Mapping[str, Field]
    held_out_devices: int
    optimum: Mapping[str, float]

    def examples_on(self, device_ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        """How many examples devices have.

        Args:
            device_ids: [G].

        Returns:
            Counts [G]; a device may have none.
        """
        ...

    def examples(
        self,
        device_ids: NDArray[np.uint64],
        positions: NDArray[np.int64],
    ) -> dict[str, NDArray]:
        """Examples of each device by their positions, [G, B, *shape] for every field.

        Args:
            device_ids: devices [G].
            positions: [G, B], each below the number of examples that its device has.

        Raises:
            DamagedExamples: the data of some of these devices cannot be read.
        """
        ...


class DamagedExamples(Exception):
    """The data of some devices cannot be read.

    problems: what is wrong, by device id.
    """

    def __init__(self, problems: Mapping[int, str]) -> None:
        told = [f"device {device}: {why}" for device, why in problems.items()]
        super().__init__("; ".join(told))
        self.problems = dict(problems)
