"""The privacy of published runs, computed from their rounds, min-sep, participations and noise
multiplier alone: nothing is simulated."""

import math
from dataclasses import dataclass

from fedray.base.document import Document, InJson
from fedray.mechanisms.accounting.events import StrategyRelease
from fedray.mechanisms.accounting.gdp import gaussian_epsilon
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import Tree
from fedray.scenarios.gboard import PublishedRun, select

TREE_NOTE = (
    "Tree aggregation without completion or restarts; epsilon is that of the printed rho, at "
    "delta 1e-10."
)


@dataclass(frozen=True, slots=True)
class PublishedPrivacy(Document):
    """rho and epsilon of a published row from its rounds, min-sep, max participations and noise
    multiplier alone."""

    name: str
    """Name of the row, such as nwp-en-GB."""
    rounds: int
    """n: rounds of the run."""
    min_sep: int
    """The gap, one more than the printed rounds between."""
    max_participations: int
    """k: as printed."""
    squared_sensitivity: float
    """Squared sensitivity of tree aggregation under (b, k), at clip norm 1."""
    exact_rho: float
    """Computed, unrounded."""
    published_rho: float
    """As printed."""
    epsilon: float | None
    """At delta 1e-10, of the rho that is printed, since the printed epsilons are those of rounded
    rhos; None where none is printed."""
    published_epsilon: float | None
    """As printed, at delta 1e-10; None where none is printed."""

    @property
    def agrees(self) -> InJson[bool]:
        """Whether what is computed agrees with what is printed, to every digit that is printed."""
        # More digits than are printed cannot be compared.
        if f"{self.exact_rho:.2f}" != f"{self.published_rho:.2f}":
            return False
        if self.epsilon is None:
            return True
        return f"{self.epsilon:.2f}" == f"{self.published_epsilon:.2f}"


def published_privacy(rows: str | None = None) -> list[PublishedPrivacy]:
    """Computes the privacy of published runs; `reproduce.GAP_NOTE` and `TREE_NOTE` have the
    conventions.

    Args:
        rows: comma-separated locales or names of rows; None for all.

    Raises:
        InputError: if a row is unknown, or none is named.
    """
    return [_privacy_of(run) for run in select(rows)]


def _privacy_of(run: PublishedRun) -> PublishedPrivacy:
    participation = MinSep(run.rounds, run.min_sep, run.max_participations)
    released = StrategyRelease.under(Tree(), participation, run.noise_multiplier)
    # Published epsilons are those of the published, rounded rho.
    epsilon = None if run.epsilon is None else gaussian_epsilon(math.sqrt(2.0 * run.rho), 1e-10)
    return PublishedPrivacy(
        name=run.name,
        rounds=run.rounds,
        min_sep=participation.min_sep,
        max_participations=participation.max_participations,
        squared_sensitivity=released.sensitivity.value**2,
        exact_rho=rho_of(released),
        published_rho=run.rho,
        epsilon=epsilon,
        published_epsilon=run.epsilon,
    )
