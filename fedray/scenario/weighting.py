"""The tables `training.weighting`: weights of the updates, and the denominator of their sum
(McMahan, Ramage, Talwar and Zhang 2018, Algorithm 1)."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, Tag

from fedray.base.table import PositiveShare, Table, told_apart_by

__all__ = [
    "ClippedDenominator",
    "FixedDenominator",
    "MeanWeighting",
]


class MeanWeighting(Table):
    """All updates have equal weight; their sum is divided by their number.

    That number is not secret, so this is refused for Poisson samples, whose privacy rests on its
    secrecy.
    """

    noise_factor: ClassVar[float] = 1.0
    assumption: ClassVar[str] = ""
    kind: Literal["mean"] = "mean"
    """Mean over a round's devices."""


class _ByExamples(Table):
    example_cap: Annotated[int, Field(gt=0, lt=2**31)] | None = None
    """Number of examples with which a device has full weight (w_cap in the paper): its weight is
    min(examples / example_cap, 1). Default: all devices have the weight 1."""


class FixedDenominator(_ByExamples):
    """The sum of w Delta over a round, divided by q W: the estimator f_f of the paper.

    One device changes it by at most S / (q W), with the clip norm S.
    """

    noise_factor: ClassVar[float] = 1.0
    assumption: ClassVar[str] = (
        "The sum of a round's clipped and weighted updates is divided by the same number in all "
        "rounds, so that nothing released shows how many devices were drawn."
    )
    """Note for audits."""
    kind: Literal["fixed"] = "fixed"
    """A denominator that is the same in all rounds."""
    mean_weight: PositiveShare = 1.0
    """Mean weight of a device, as assumed independently of the data: q W is rounds.report_goal
    times this."""


class ClippedDenominator(_ByExamples):
    """The sum of w Delta over a round, divided by max(q W_min, sum of w): the estimator f_c of the
    paper.

    One device changes it by at most 2 S / (q W_min), with the clip norm S, so the noise has twice
    the standard deviation that it has with a fixed denominator q W_min.
    """

    # One device may change the numerator and the denominator, hence 2 S instead of S.
    noise_factor: ClassVar[float] = 2.0
    assumption: ClassVar[str] = (
        "The sum of a round's clipped and weighted updates is divided by the sum of their weights, "
        "or a least number, before the noise is added. The noise is that for twice the clip norm "
        "over this least number (McMahan et al. 2018, Lemma 1)."
    )
    """Note for audits."""
    kind: Literal["clipped"] = "clipped"
    """The sum of the round's weights, or a least denominator."""
    least_mean_weight: PositiveShare = 1.0
    """Mean weight of a device at which the denominator is smallest: q W_min is rounds.report_goal
    times this."""


AnyWeighting = Annotated[
    Annotated[MeanWeighting, Tag("mean")]
    | Annotated[FixedDenominator, Tag("fixed")]
    | Annotated[ClippedDenominator, Tag("clipped")],
    told_apart_by("kind", "mean"),
]
"""Tables of weightings, distinguished by `kind`."""
