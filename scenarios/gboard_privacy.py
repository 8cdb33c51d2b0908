"""Privacy of Gboard's published runs, from their printed rounds, min-sep, participations and noise
multiplier; nothing is simulated."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypedDict

import fedray
from fedray.mechanisms import Identity, Tree
from .gboard_rows import ROWS, PublishedRun, published_runs, select
from .reproduction import (
    Document,
    InJson,
    Reproduced,
    Reproduction,
    Request,
    Subject,
    Table,
    figure_text,
    up,
)

NOTES = (
    "Published min-seps count the rounds strictly between two participations, so the gap is one "
    "more; fedray's min-sep is the gap.",
    "Tree aggregation without completion or restarts; epsilon is that of the printed rho, at "
    "delta 1e-10.",
)
SUBJECT = Subject("the published runs of Xu et al. 2023", unit="device")
DELTA = 1e-10
"""delta of the printed epsilons."""


@dataclass(frozen=True, slots=True)
class PublishedPrivacy(Document):
    """rho and epsilon of a published row, recomputed and as printed."""

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
    """rho, computed and unrounded."""
    published_rho: float
    """rho, as printed."""
    epsilon: float | None
    """Epsilon at delta 1e-10 for the printed rho, because the printed epsilons belong to rounded
    rhos; None if the row has no epsilon."""
    published_epsilon: float | None
    """Epsilon at delta 1e-10, as printed; or None."""

    @property
    def agrees(self) -> InJson[bool]:
        """Whether the computed figures agree with the printed ones to every printed digit."""
        # Digits beyond the printed ones cannot be compared.
        if f"{self.exact_rho:.2f}" != f"{self.published_rho:.2f}":
            return False
        if self.epsilon is None:
            return True
        return f"{self.epsilon:.2f}" == f"{self.published_epsilon:.2f}"


class PublishedRows(TypedDict):
    """`fedray reproduce gboard-privacy`."""

    note: str
    """The conventions of the published figures."""
    rows: list[PublishedPrivacy]
    """The published rows."""


def run(request: Request, *, rows: str | None) -> Iterator[Reproduced]:
    """Computes the privacy of published runs.

    Args:
        request: not used, since nothing is simulated or kept.
        rows: comma-separated locales or names of rows; None for all.

    Raises:
        InputError: if a row is unknown, or the list is empty.
    """
    del request
    results = [privacy_of(each) for each in select(rows, published_runs())]
    agreeing = sum(each.agrees for each in results)
    cells = {
        "run": lambda each: each.name,
        "rounds": lambda each: str(each.rounds),
        "min-sep (gap)": lambda each: str(each.min_sep),
        "max part.": lambda each: str(each.max_participations),
        "sens.^2": lambda each: f"{each.squared_sensitivity:.0f}",
        "rho": lambda each: up(each.exact_rho),
        "printed rho": lambda each: f"{each.published_rho:.2f}",
        "epsilon": lambda each: "-" if each.epsilon is None else up(each.epsilon),
        "printed": lambda each: figure_text(each.published_epsilon or math.nan, ".2f"),
        "agrees": lambda each: "yes" if each.agrees else "NO",
    }
    yield Reproduced(
        title="Privacy of published runs, recomputed (Xu et al. 2023, tables 1 and 2)",
        document={"note": " ".join(NOTES), "rows": [each.to_json() for each in results]},
        shown=[
            Table.of(
                "Recomputed and printed privacy, epsilon at delta 1e-10",
                results,
                cells,
                subject=lambda each: replace(SUBJECT, condition=each.name),
            )
        ],
        subject=SUBJECT,
        notes=NOTES,
        verdict=f"{agreeing} of {len(results)} rows agree to every printed digit.",
        agrees=agreeing == len(results),
    )


def privacy_of(run: PublishedRun) -> PublishedPrivacy:
    """Computes rho and epsilon of a published run."""
    participation = fedray.MinSep(run.rounds, run.min_sep, run.max_participations)
    tree = fedray.mechanism_figures(Tree(), participation, run.noise_multiplier, DELTA)
    assert tree.rho is not None  # a noise multiplier is given
    assert run.rho is not None  # printed in every row of the earlier paper
    return PublishedPrivacy(
        name=run.name,
        rounds=run.rounds,
        min_sep=participation.min_sep,
        max_participations=participation.max_participations,
        squared_sensitivity=tree.loss.sensitivity.value**2,
        exact_rho=tree.rho,
        published_rho=run.rho,
        # Published epsilons belong to the published, rounded rho.
        epsilon=None if run.epsilon is None else _epsilon_of(run.rho),
        published_epsilon=run.epsilon,
    )


def _epsilon_of(rho: float) -> float | None:
    # One release of one Gaussian with rho = 1 / (2 z^2).
    z = 1.0 / math.sqrt(2.0 * rho)
    return fedray.mechanism_figures(Identity(), fedray.MinSep(1, 1, 1), z, DELTA).epsilon


REPRODUCTION = Reproduction(
    "gboard-privacy",
    "rho and epsilon of Xu et al. 2023, recomputed to the digit.",
    "Xu et al. 2023, tables 1 and 2",
    "3 s",
    run,
    (ROWS,),
)
