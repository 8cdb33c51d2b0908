"""The unions of all questions and of all trust models, by `kind`."""

from typing import Annotated

from pydantic import Field

from .central import Central, Distributed
from .linear import Count, Distinct, Histogram, Sum
from .numbers import Mean, Quantiles
from .open_domain import OpenHistogram, PrefixTree

__all__ = [
    "Central",
    "Count",
    "Distinct",
    "Distributed",
    "Histogram",
    "Mean",
    "OpenHistogram",
    "PrefixTree",
    "Quantiles",
    "Sum",
]

AnyTrust = Annotated[Central | Distributed, Field(discriminator="kind")]
AnyQuestion = Annotated[
    Count | Sum | Mean | Histogram | OpenHistogram | PrefixTree | Quantiles | Distinct,
    Field(discriminator="kind"),
]
