"""Objectives and targets of optimisations: one participation, or weighted outcomes."""

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
"""Loss to minimise: that of the worst round, or the root mean square over rounds."""
Progress = Callable[[str], None]
"""Receiver of progress lines. If it raises StopIteration, the search ends with its best result so
far, validated like any other."""


@dataclass(frozen=True, slots=True)
class Target:
    """One outcome of a weighted optimisation, which minimises the mean of the log losses."""

    participation: MinSep
    """(n, b, k) of the outcome."""
    weight: float = 1.0
    """Positive weight, relative to those of the other outcomes."""

    def __post_init__(self) -> None:
        if not 0 < self.weight < math.inf:
            rule = "of a target must be positive and finite"
            raise InputError.of("weight", self.weight, rule, "leave such targets out")


class _TargetEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    rounds: int
    min_sep: int
    max_participations: int
    weight: float = Field(default=1.0, strict=False)


def read_targets(path: Path) -> tuple[Target, ...]:
    """Reads a targets file.

    Args:
        path: path of a JSON list of objects with rounds, min_sep, max_participations and,
            optionally, weight (default 1).

    Raises:
        InputError: the file cannot be read, has another form, or is empty.
    """
    try:
        entries = TypeAdapter(list[_TargetEntry]).validate_python(read_json(path, "targets file"))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in problem["loc"]) or "the file"
        raise InputError(
            f"targets file {str(path)!r}: {where}: {problem['msg']}; give a list of objects with "
            "rounds, min_sep, max_participations and, optionally, weight"
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
