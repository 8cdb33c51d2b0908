"""The unions of all questions and of all trust models, by `kind`."""

from typing import Annotated

from pydantic import Field

from .added_noise import Devices, Enclave, Server
from .linear import Count, Distinct, Histogram, Sum
from .local import Local, Shuffled
from .numbers import Mean, Quantiles
from .open_domain import OpenHistogram, PrefixTree

__all__ = [
    "Count",
    "Devices",
    "Distinct",
    "Enclave",
    "Histogram",
    "Local",
    "Mean",
    "OpenHistogram",
    "PrefixTree",
    "Quantiles",
    "Server",
    "Shuffled",
    "Sum",
]

AnyTrust = Annotated[Server | Enclave | Devices | Shuffled | Local, Field(discriminator="kind")]
AnyQuestion = Annotated[
    Count | Sum | Mean | Histogram | OpenHistogram | PrefixTree | Quantiles | Distinct,
    Field(discriminator="kind"),
]
