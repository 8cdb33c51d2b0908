"""The objective of an optimization: one participation, or weighted outcomes."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fedray.base.errors import InputError
from fedray.mechanisms.files import read_json
from fedray.mechanisms.participation import MinSep

Objective = Literal["max", "rms"]
"""Which loss: of the worst round, or root mean square over rounds."""
Progress = Callable[[str], None]
"""Hears a line about how far a search is. It may raise StopIteration to end the search: then the
best that was found so far is taken, validated as any other."""


@dataclass(frozen=True, slots=True)
class Target:
    """One outcome to be good at, and its weight among others; losses are averaged by their
    logarithms."""

    participation: MinSep
    """(n, b, k) of the outcome."""
    weight: float = 1.0
    """Relative to the weights of the other outcomes; positive."""

    def __post_init__(self) -> None:
        if not 0 < self.weight < math.inf:
            raise InputError.of(
                "weight",
                self.weight,
                "of a target must be positive and finite",
                "leave out what does not count",
            )


class _TargetEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    rounds: int
    min_sep: int
    max_participations: int
    weight: float = Field(default=1.0, strict=False)


def read_targets(path: Path) -> tuple[Target, ...]:
    """Returns the outcomes in a targets file.

    Args:
        path: a JSON list of objects with rounds, min_sep, max_participations, and weight (default
            1).

    Raises:
        InputError: the file cannot be read, is not such a list, or is empty.
    """
    try:
        entries = TypeAdapter(list[_TargetEntry]).validate_python(read_json(path, "targets file"))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in problem["loc"]) or "the file"
        raise InputError(
            f"targets file {str(path)!r}: {where}: {problem['msg']}; it must be a list of objects "
            "with rounds, min_sep, "
            "max_participations and, if wanted, weight"
        ) from None
    if not entries:
        raise InputError(f"targets file {str(path)!r} is an empty list; name at least one outcome")
    try:
        return tuple(
            Target(MinSep(each.rounds, each.min_sep, each.max_participations), each.weight)
            for each in entries
        )
    except ValueError as error:
        raise InputError(f"targets file {str(path)!r}: {error}") from None
