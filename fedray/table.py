"""What every table of a scenario file is: a frozen value that refuses what it does not know; and the number types of its keys."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Spread = Annotated[float, Field(ge=0, le=3)]
Shape = Annotated[float, Field(ge=0.01, le=1000)]


class Table(BaseModel):
    """A table of the file: frozen; unknown keys, NaN, infinities and wrong types are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)
