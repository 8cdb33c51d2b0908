"""Strategy: the matrix C of a mechanism that releases C G + z * clip_norm * N(0, I); and what a sensitivity claims."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from mechanisms.participation import MinSep


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """L2 sensitivity of X -> C X at clip norm 1, under zero-out of one device.

    is_exact: the value is attained by some device's contributions; False: a proven upper bound, possibly loose.
    theorem: what proves it.
    """

    value: float
    is_exact: bool
    theorem: str


class Strategy(BaseModel, ABC):
    """An immutable strategy matrix, for any number of rounds. Serialises to JSON as its `kind` and its parameters.

    A subclass says its Gram matrix G = C'C (rounds x rounds), entry by entry. fedray admits strategies with G >= 0
    only: then a pattern's exact sensitivity is the aligned case, sqrt(sum of G over the pattern's pairs).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)

    kind: str
    """Which strategy."""

    paper: ClassVar[str]

    @abstractmethod
    def gram_entries(self, first: NDArray[np.int64], second: NDArray[np.int64], rounds: int) -> NDArray[np.float64]:
        """G[first, second] elementwise, for 0 <= first <= second < rounds (shapes alike)."""

    @abstractmethod
    def schema_sensitivity(self, schema: MinSep) -> Sensitivity:
        """Largest sensitivity of any pattern that the schema permits."""
