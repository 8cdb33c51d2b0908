"""The table `rounds.buffer`: buffered asynchronous rounds (FedBuff, Nguyen et al. 2022; Papaya,
Huba et al. 2022)."""

from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from fedray.base.arrays import Float64Array
from fedray.base.table import Table

__all__ = [
    "Buffer",
    "ConstantWeighting",
    "PolynomialWeighting",
]


class ConstantWeighting(Table):
    """All reports in a buffer have equal weight."""

    kind: Literal["constant"] = "constant"
    """Weight 1."""

    def weights(self, staleness: NDArray[np.integer]) -> Float64Array:
        """Returns the weights of reports [A].

        Args:
            staleness: number of buffers released between a device's start and the use of its
                report.
        """
        return np.ones(staleness.size)


class PolynomialWeighting(Table):
    """A report with staleness s has the weight (1 + s)^-exponent: 1 / sqrt(1 + s) in Nguyen et al.
    2022, any exponent in Xie, Koyejo, Gupta 2019."""

    kind: Literal["polynomial"] = "polynomial"
    """A weight that falls with staleness."""
    exponent: Annotated[float, Field(gt=0, le=10)] = 0.5
    """Exponent of the weight; a larger one makes stale reports count less."""

    def weights(self, staleness: NDArray[np.integer]) -> Float64Array:
        """Returns the weights of reports [A], at most 1.

        Args:
            staleness: number of buffers released between a device's start and the use of its
                report.
        """
        # Fresh reports have weight 1, so no weighted update is longer than the clip norm.
        return (1.0 + staleness.astype(np.float64)) ** -self.exponent


AnyStalenessWeighting = Annotated[
    ConstantWeighting | PolynomialWeighting, Field(discriminator="kind")
]


class Buffer(Table):
    """Buffered asynchronous rounds.

    As long as fewer than `concurrency` devices train, a device that checks in is sent the newest
    model at once. When `rounds.report_goal` reports have been accepted, the server releases the
    next version of the model. One buffer is one round.
    """

    concurrency: Annotated[int, Field(gt=0, lt=2**31)]
    """Largest number of devices that train at once."""
    max_staleness: Annotated[int, Field(ge=0, lt=10_000)]
    """Largest number of versions released between the start of a device and the use of its report;
    staler reports are turned away (outcome `late`)."""
    weighting: AnyStalenessWeighting = ConstantWeighting()
    """Table: factor on a clipped update as a function of its staleness, at most 1; `kind` is
    constant or polynomial."""

    @field_validator("weighting", mode="before")
    @classmethod
    def _depends_on_staleness_alone(cls, given: Any) -> Any:
        # This runs before the union reads `kind`, whose own error would not give the reason.
        kind = given.get("kind") if isinstance(given, dict) else None
        if isinstance(kind, str) and kind not in ("constant", "polynomial"):
            raise ValueError(
                f"kind={kind!r}: a weight may depend only on staleness, because the sensitivity of "
                "a clipped sum does not cover weights that depend on a device's data (losses, "
                "norms, similarity); use constant or polynomial"
            )
        return given
