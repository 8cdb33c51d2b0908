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
    """All reports of a buffer count alike."""

    kind: Literal["constant"] = "constant"
    """Weight 1."""

    def weights(self, staleness: NDArray[np.integer]) -> Float64Array:
        """The weights of reports [A].

        Args:
            staleness: buffers released between the start of each device and the use of its report.
        """
        return np.ones(staleness.size)


class PolynomialWeighting(Table):
    """A report with staleness s counts (1 + s)^-exponent: 1 / sqrt(1 + s) in Nguyen et al.
    2022, polynomial weights in general in Xie, Koyejo, Gupta 2019."""

    kind: Literal["polynomial"] = "polynomial"
    """A weight that falls with staleness."""
    exponent: Annotated[float, Field(gt=0, le=10)] = 0.5
    """Exponent of the fall."""

    def weights(self, staleness: NDArray[np.integer]) -> Float64Array:
        """The weights of reports [A], at most 1.

        Args:
            staleness: buffers released between the start of each device and the use of its report.
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
    """Most devices that train at once."""
    max_staleness: Annotated[int, Field(ge=0, lt=10_000)]
    """Most versions that are released between the start of a device and the use of its report;
    staler reports are turned away (outcome `late`)."""
    weighting: AnyStalenessWeighting = ConstantWeighting()
    """Table: factor on a clipped update as a function of its staleness; `kind` is constant or
        polynomial. It is at most 1."""

    @field_validator("weighting", mode="before")
    @classmethod
    def _depends_on_staleness_alone(cls, given: Any) -> Any:
        # This runs before the union looks at `kind`, whose own error would not give the reason.
        kind = given.get("kind") if isinstance(given, dict) else None
        if isinstance(kind, str) and kind not in ("constant", "polynomial"):
            raise ValueError(
                f"kind={kind!r}: a weight must be a function of staleness alone, since weights "
                "that depend on what devices hold (losses, norms, similarity) are not covered by "
                "the sensitivity of a clipped sum; take constant or polynomial"
            )
        return given
