"""Subjects of figures. Captions, LaTeX, CSV and JSON are made from them, so that a number
keeps its population, condition and sample wherever it is copied."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from fedray.base.document import IfAny

AS_WRITTEN = "as written"
"""Condition of runs of a scenario as its file says."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Subject of figures. A facet is empty if it is unknown, or if another one says it."""

    population: str = ""
    """Population or log, with its size: "paced.toml (160,000 devices)"."""
    condition: str = ""
    """Condition of the runs: AS_WRITTEN, "if population.devices=640000", or in words."""
    runs: str = ""
    """Number of runs or trainings behind a figure: "5 runs", with their seeds if they are known."""
    unit: str = ""
    """Unit that privacy protects: "device" or "person"."""
    estimand: str = ""
    """Meaning of the figures: "exact", "upper bounds", "estimates"."""
    sample: str = ""
    """Sample behind the figures: "2,481 of 2,481 examples of 50 devices"."""
    setting: IfAny[str] = ""
    """Settings that all figures share: "400 rounds, 200 reports a round, timer 24 h"."""
    loss: IfAny[str] = ""
    """Loss for which mechanisms were made, and by which they are compared: "RmsLoss"."""
    trace: IfAny[str] = ""
    """First digits of the digest of the trace; captions of papers leave it out."""

    def __str__(self) -> str:
        """The facets in a phrase; empty without any."""
        words = {
            "population": "of ",
            "runs": "in ",
            "unit": "per ",
            "loss": "for ",
            "sample": "on ",
            "trace": "trace ",
        }
        facets = {each: getattr(self, each) for each in FACETS} | {"condition": self.named}
        return ", ".join(f"{words.get(key, '')}{text}" for key, text in facets.items() if text)

    def __bool__(self) -> bool:
        """Whether any facet is known."""
        return any(getattr(self, each) for each in FACETS)

    @property
    def named(self) -> str:
        """The condition as a name within a sentence."""
        return f'"{AS_WRITTEN}"' if self.condition == AS_WRITTEN else self.condition

    def under(self, whole: Self) -> Self:
        """Returns the subject with the facets of `whole` where its own are empty."""
        return replace(self, **{e: getattr(self, e) or getattr(whole, e) for e in FACETS})

    def beyond(self, shared: Self) -> Self:
        """Returns the subject without the facets that equal those of `shared`."""
        same = (each for each in FACETS if getattr(self, each) == getattr(shared, each))
        return replace(self, **dict.fromkeys(same, ""))


UNKNOWN = Subject()
"""Subject of a figure that no result has taken in."""
FACETS = (
    *("population", "trace", "condition", "setting"),
    *("runs", "unit", "estimand", "loss", "sample"),
)
"""Names of the facets, in the order of a caption."""


def condition_of(keys: Iterable[str]) -> str:
    """Returns the condition of runs with some keys, "table.key=value", in place of their file's."""
    return f"if {named}" if (named := " and ".join(keys)) else AS_WRITTEN


def shared_subject(subjects: Iterable[Subject]) -> Subject:
    """Returns the facets that all subjects have in common."""
    first, *others = tuple(subjects) or (UNKNOWN,)
    differ = (e for e in FACETS if any(getattr(o, e) != getattr(first, e) for o in others))
    return replace(first, **dict.fromkeys(differ, ""))
