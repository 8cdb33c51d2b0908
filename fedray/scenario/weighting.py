"""The tables `training.weighting`: weights of the updates, and the denominator of their sum
(McMahan, Ramage, Talwar and Zhang 2018, Algorithm 1)."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, Tag

from fedray.base.table import PositiveShare, Table, told_apart_by

__all__ = [
    "FixedDenominator",
    "MeanWeighting",
]


class MeanWeighting(Table):
    """All updates have equal weight; their sum is divided by their number.

    That number is not secret, so this is refused for Poisson samples, whose privacy rests on its
    secrecy.
    """

    assumption: ClassVar[str] = ""
    kind: Literal["mean"] = "mean"
    """Mean over a round's devices."""


class FixedDenominator(Table):
    """The sum of w Delta over a round, divided by q W: the estimator f_f of the paper.

    One device changes it by at most S / (q W), with the clip norm S.
    """

    assumption: ClassVar[str] = (
        "The sum of a round's clipped and weighted updates is divided by a number that is the same "
        "in all rounds, so that nothing released tells how many devices were drawn."
    )
    """Note for audits."""
    kind: Literal["fixed"] = "fixed"
    """A denominator that is the same in all rounds."""
    example_cap: Annotated[int, Field(gt=0, lt=2**31)] | None = None
    """Number of examples with which a device has full weight (w_cap in the paper): its weight is
    min(examples / example_cap, 1). Default: all devices have the weight 1."""
    mean_weight: PositiveShare = 1.0
    """Mean weight of a device, as assumed independently of the data: q W is rounds.report_goal
    times this."""


AnyWeighting = Annotated[
    Annotated[MeanWeighting, Tag("mean")] | Annotated[FixedDenominator, Tag("fixed")],
    told_apart_by("kind", "mean"),
]
"""Tables of weightings, distinguished by `kind`."""
