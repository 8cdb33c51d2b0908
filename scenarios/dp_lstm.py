"""Epsilon of the private language models of 2018, by the accountant of the paper and by today's
(McMahan et al. 2018, "Learning differentially private recurrent language models", Table 2).

5,000 rounds with independent noise on Poisson samples, delta 1e-9; noise multiplier 1. The models
were trained on data that are not public.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import fedray
from fedray.mechanisms import Identity
from .reproduction import (
    Document,
    Progress,
    Reproduced,
    Reproduction,
    Table,
    moments_epsilon,
    up,
)

ROUNDS, DELTA = 5000, 1e-9
PRINTED = (
    (763_430, 5000, 4.634),
    (763_430, 1667, 2.314),
    (763_430, 1250, 2.038),
    (10**8, 5000, 1.152),
    (10**8, 1667, 0.991),
    (10**8, 1250, 0.987),
)
"""Users, expected users in a round, and printed epsilon."""
ROUNDING = 5.1e-4
"""Largest difference by the printed digits."""


@dataclass(frozen=True, slots=True)
class ModelEpsilon(Document):
    """A printed epsilon, and the obtained ones."""

    users: int
    """Number of users; for 10^8 the paper assumes the same cohorts."""
    cohort: int
    """Expected number of users in a round."""
    printed: float
    """Printed epsilon."""
    moments: float
    """Epsilon by the moments accountant, at integer orders up to 32."""
    today: float
    """Epsilon by the privacy loss distribution."""


@dataclass(frozen=True, slots=True)
class ModelEpsilons(Document):
    """`fedray reproduce dp-lstm`."""

    epsilons: list[ModelEpsilon]
    """Printed and obtained epsilons."""


def run(on_progress: Progress = lambda _: None) -> Iterator[Reproduced]:
    """Computes every epsilon.

    Args:
        on_progress: called with a line for each model.
    """
    rows = []
    for users, cohort, printed in PRINTED:
        on_progress(f"{cohort:,} of {users:,} users")
        sampling = fedray.PoissonSampling(ROUNDS, cohort / users)
        participation = fedray.MinSep(ROUNDS, 1, ROUNDS)
        figures = fedray.mechanism_figures(Identity(), participation, 1.0, DELTA, sampling)
        event, today = figures.amplified_event, figures.amplified_epsilon
        assert event is not None
        assert today is not None
        moments = moments_epsilon(event, DELTA)
        rows.append(ModelEpsilon(users, cohort, printed, moments, today))
    cells = {
        "users": lambda row: f"{row.users:,}",
        "in a round": lambda row: f"{row.cohort:,}",
        "printed": lambda row: f"{row.printed:.3f}",
        "by moments": lambda row: f"{row.moments:.4f}",
        "today": lambda row: up(row.today),
    }
    count = sum(abs(row.moments - row.printed) <= ROUNDING for row in rows)
    yield Reproduced(
        "Private language models of 2018",
        ModelEpsilons(rows).to_json(),
        [Table.of("Epsilon at delta 1e-9, noise multiplier 1", rows, cells)],
        ["Both figures are upper bounds for the same noise; today's follows the privacy loss."],
        f"{count} of {len(rows)} printed epsilons agree with the accountant of 2016.",
        count == len(rows),
    )


REPRODUCTION = Reproduction(
    "Epsilon of the language models of 2018, then and now (McMahan et al. 2018; a minute).", run
)
