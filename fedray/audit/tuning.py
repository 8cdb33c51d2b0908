"""Privacy that tuning costs: the trainings of a grid used the devices of one trace.

If all trainings may be released, they compose. If only the best of a random number is released, the
cost follows from the Renyi curve of one training (Papernot and Steinke 2022).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from fedray.audit.audit import Audit
from fedray.base.document import Document, InJson, NotInJson
from fedray.base.rounding import up
from fedray.base.table import Table
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.events import Composed, Event, Repeated
from fedray.mechanisms.accounting.renyi import best_of_epsilon
from fedray.mechanisms.accounting.zcdp import rho_of

COMPOSED = (
    "rho of all trainings adds up; each is taken to draw noise of its own, as it must in a "
    "deployment, while in this simulation the cells of a seed share theirs"
)
BEST = (
    "Papernot and Steinke 2022, Theorem {theorem}, for the largest rho of all cells, if only the "
    "training that is best on data of no device is released, the number stays secret, and it was "
    "drawn once"
)


class RandomRuns(Table):
    """A random number of trainings, of which only the best is released."""

    mean: Annotated[float, Field(ge=1.1, le=500)]
    """Mean number of trainings."""
    shape: Annotated[float, Field(ge=0.1, le=100)] | Literal["poisson"] = 1.0
    """Shape of the truncated negative binomial distribution of the number (1: geometric), or
    "poisson"."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the number, and of each training's cell and seed; it reveals the number."""

    def number(self, random: np.random.Generator) -> int:
        """Draws the number."""
        from scipy.optimize import brentq

        eta, number = self.shape, 0
        if eta == "poisson":
            return int(random.poisson(self.mean))
        # Definition 1 of the paper: a negative binomial number that is not 0, and its mean.
        gamma: Any = brentq(lambda g: eta * (1 / g - 1) / (1 - g**eta) - self.mean, 1e-6, 1 - 1e-9)
        while not number:
            number = int(random.negative_binomial(eta, gamma))
        return number


class TuningCost(NamedTuple):
    """Privacy of all trainings, under one guarantee."""

    rho: float | None
    """zCDP; None if only the best of a random number is released."""
    epsilon: float
    """Epsilon at delta."""

    def __str__(self) -> str:
        return f"{'' if self.rho is None else f'rho {up(self.rho, 6)}, '}epsilon {up(self.epsilon)}"


@dataclass(frozen=True, slots=True)
class Tuning(Document):
    """Trainings of a grid on one trace, and the privacy that they cost together.

    cells: audit of the trace with the mechanism of each cell.
    seeds: number of trainings of each cell, if `runs` is None.
    """

    trace_digest: NotInJson[str]
    delta: NotInJson[float]
    cells: NotInJson[Sequence[Audit]]
    seeds: NotInJson[int]
    runs: NotInJson[RandomRuns | None]

    @property
    def trainings(self) -> InJson[str]:
        """Number of trainings, or its distribution, in words."""
        if self.runs is None:
            return f"{len(self.cells) * self.seeds:,} trainings of {len(self.cells)} cells"
        drawn = f"mean {self.runs.mean:g}, shape {self.runs.shape}; {len(self.cells)} cells"
        return f"the best of a random number of trainings ({drawn})"

    @property
    def costs(self) -> InJson[dict[str, TuningCost | None]]:
        """Cost by guarantee: `observed` and `enforced`; None if a cell has no such guarantee."""
        return {name: self.cost(name, self.delta) for name in ("observed", "enforced")}

    @property
    def basis(self) -> InJson[str]:
        """Theorem, and its conditions."""
        if self.runs is None:
            return COMPOSED
        return BEST.format(theorem=6 if self.runs.shape == "poisson" else 2)

    def cost(self, guarantee: str, delta: float, *others: Event) -> TuningCost | None:
        """Returns the cost under a guarantee, together with other releases."""
        used = [each.mechanisms[0] if each.mechanisms else None for each in self.cells]
        events: list[Any] = [each and getattr(each, guarantee).event for each in used]
        # The events are those of models; what a question or vocabulary cost is not among them.
        if None in events or any(each.answers for each in self.cells):
            return None
        if self.runs is not None:
            # Renyi divergences are in the order of rho, so the largest bounds every draw of cells.
            largest, runs = max(events, key=rho_of), self.runs
            return TuningCost(None, best_of_epsilon(largest, runs.mean, runs.shape, delta, others))
        # The trainings may be chosen one after another by earlier results, which composition
        # allows. It does not ask which of them are published.
        every: list[Any] = [Repeated(event=each, count=self.seeds) for each in events]
        together = Composed(events=tuple(every) + others)  # pyright: ignore[reportArgumentType]
        return TuningCost(rho_of(together), epsilon_of(together, delta).epsilon)
