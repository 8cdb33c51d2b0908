"""The tables `privacy.encoding`: how the updates of devices are sent and summed.

This module has what a scenario's file says of an encoding; what an encoding does is in the module
of its kind, which loads a compiler.
"""

from typing import Literal

from fedray.table import Table


class FixedPoint(Table):
    """Whole steps of clip_norm / 2^40, summed without a modulus; see
    fedray/encoding/fixed_point.py."""

    kind: Literal["fixed_point"] = "fixed_point"
    """Exact sums of whole steps."""


AnyEncoding = FixedPoint
"""The tables of all encodings."""
