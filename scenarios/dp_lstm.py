"""Epsilon of the private language models of 2018, by the accountant of the paper and by today's
(McMahan et al. 2018, "Learning differentially private recurrent language models").

Independent noise on Poisson samples of users. Table 1 has delta = users^-1.1 for 1 to 10^6 rounds;
the trained models of Table 2, section 3 and appendix D have delta 1e-9 and noise multiplier 1. The
models were trained on data that are not public.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal

import fedray
from fedray.mechanisms import Identity
from .reproduction import (
    Document,
    InJson,
    Progress,
    Reproduced,
    Reproduction,
    Table,
    moments_epsilon,
    up,
)

TABLE_1 = (
    (10**5, 100, 1.0, ("0.97", "0.98", "1.00", "1.07", "1.18", "2.21", "7.50")),
    (10**6, 10, 1.0, ("0.68", "0.69", "0.69", "0.69", "0.69", "0.72", "0.73")),
    (10**6, 1000, 1.0, ("1.17", "1.17", "1.20", "1.28", "1.39", "2.44", "8.13")),
    (10**6, 10_000, 1.0, ("1.73", "1.92", "2.08", "3.06", "8.49", "32.38", "187.01")),
    (10**6, 1000, 3.0, ("0.47", "0.47", "0.48", "0.48", "0.49", "0.67", "1.95")),
    (10**9, 1000, 1.0, ("0.84", "0.84", "0.84", "0.85", "0.88", "0.88", "0.88")),
)
"""Users, expected users in a round, noise multiplier, and the epsilons after 1, 10, ... 10^6
rounds."""
MODELS = (
    (763_430, 5000, 5000, "4.634"),
    (763_430, 1667, 5000, "2.314"),
    (763_430, 1250, 5000, "2.038"),
    (10**8, 5000, 5000, "1.152"),
    (10**8, 1667, 5000, "0.991"),
    (10**8, 1250, 5000, "0.987"),
    (763_430, 1250, 3000, "1.97"),
    (763_430, 5000, 3000, "3.81"),
    (763_430, 5000, 20_000, "8.92"),
)
"""Users, expected users in a round, rounds and epsilon: Table 2, section 3, appendix D."""


@dataclass(frozen=True, slots=True)
class ModelEpsilon(Document):
    """A printed epsilon, and the obtained ones."""

    users: int
    """Number of users; for 10^8 the paper assumes the same cohorts."""
    cohort: int
    """Expected number of users in a round."""
    noise_multiplier: float
    """Noise multiplier."""
    rounds: int
    """Number of rounds."""
    delta: float
    """delta of the epsilons."""
    printed: str
    """Printed epsilon."""
    moments: float
    """Epsilon by the moments accountant, at integer orders up to 32."""
    today: float
    """Epsilon by the privacy loss distribution."""

    @property
    def agrees(self) -> InJson[bool]:
        """Whether the epsilon of the moments accountant, rounded or cut off, is the printed one."""
        value, last = Decimal(self.moments), Decimal(self.printed)
        return last in {value.quantize(last, how) for how in (ROUND_HALF_UP, ROUND_DOWN)}


@dataclass(frozen=True, slots=True)
class ModelEpsilons(Document):
    """`fedray reproduce dp-lstm`."""

    epsilons: list[ModelEpsilon]
    """Printed and obtained epsilons."""


def run(on_progress: Progress = lambda _: None) -> Iterator[Reproduced]:
    """Computes every epsilon.

    Args:
        on_progress: called with a line for each epsilon.
    """
    settings = [(*head, 1.0, rounds, 1e-9, printed) for *head, rounds, printed in MODELS]
    for users, cohort, z, column in TABLE_1:
        settings += [
            (users, cohort, z, 10**power, users**-1.1, printed)
            for power, printed in enumerate(column)
        ]
    rows = []
    for users, cohort, z, rounds, delta, printed in settings:
        on_progress(f"{cohort:,} of {users:,} users, {rounds:,} rounds")
        sampling = fedray.PoissonSampling(rounds, cohort / users)
        participation = fedray.MinSep(rounds, 1, rounds)
        figures = fedray.mechanism_figures(Identity(), participation, z, delta, sampling)
        event, today = figures.amplified_event, figures.amplified_epsilon
        assert event is not None
        assert today is not None
        moments = moments_epsilon(event, delta)
        rows.append(ModelEpsilon(users, cohort, z, rounds, delta, printed, moments, today))
    cells = {
        "users": lambda row: f"{row.users:,}",
        "in a round": lambda row: f"{row.cohort:,}",
        "z": lambda row: f"{row.noise_multiplier:g}",
        "rounds": lambda row: f"{row.rounds:,}",
        "printed": lambda row: row.printed,
        "by moments": lambda row: f"{row.moments:.4f}",
        "today": lambda row: up(row.today),
    }
    count = sum(row.agrees for row in rows)
    yield Reproduced(
        "Private language models of 2018",
        ModelEpsilons(rows).to_json(),
        [Table.of("Epsilon at delta 1e-9 (763,430 and 10^8 users) or users^-1.1", rows, cells)],
        ["Both figures are upper bounds for the same noise; today's follows the privacy loss."],
        f"{count} of {len(rows)} printed epsilons agree with the accountant of 2016.",
        count == len(rows),
    )


REPRODUCTION = Reproduction(
    "Epsilon of the language models of 2018, then and now (McMahan et al. 2018; a minute).", run
)
