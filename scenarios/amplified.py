"""Noise multipliers of banded matrix factorization with and without amplification by sampling,
beside the printed ones (Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization",
appendix G).

2,052 rounds in 6 epochs, delta 1e-6. Each partition of the devices has its turn, one for
each band of C, and each device is drawn in its turns with probability 6 bands / 2,052. A
multiplier is relative to the sensitivity of 6 participations, sqrt(6) for columns of norm 1. Only
the cells below are known here.
"""

import math
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
    exact,
    given,
)

ROUNDS, EPOCHS, DELTA = 2052, 6, 1e-6
PRINTED = (
    (None, 1.0, 4.22468),
    (None, 2.0, 2.23048),
    (None, 8.0, 0.65294),
    (1, 1.0, 0.37313),
    (1, 2.0, 0.30481),
    (1, 8.0, 0.20567),
    (9, 1.0, 0.79118),
    (18, 2.0, 0.64708),
    (64, 8.0, 0.43490),
)
"""Bands (None without sampling), epsilon, and printed multiplier."""
ROUNDING, TOO_SMALL = 5.1e-6, 6e-4
"""Largest absolute difference of an exact multiplier, by the printed digits; and largest relative
difference of an amplified one, which is printed too small: an estimate of epsilon that rounds every
loss down exceeds the target at the printed multiplier of 64 bands."""


@dataclass(frozen=True, slots=True)
class Multiplier(Document):
    """A printed noise multiplier, and the obtained one."""

    bands: int | None
    """Number of bands and of partitions; None without sampling."""
    epsilon: float
    """Target epsilon."""
    printed: float
    """Printed multiplier."""
    obtained: float
    """Least multiplier for which epsilon is proven."""

    @property
    def agrees(self) -> bool:
        """Whether both agree within the printed digits, or within the known error on the safe
        side."""
        if self.bands is None:
            return abs(self.obtained - self.printed) <= ROUNDING
        return 0.0 < self.obtained / self.printed - 1.0 <= TOO_SMALL


@dataclass(frozen=True, slots=True)
class Multipliers(Document):
    """`fedray reproduce amplified`."""

    multipliers: list[Multiplier]
    """Printed and obtained multipliers."""


def run(on_progress: Progress = lambda _: None) -> Iterator[Reproduced]:
    """Computes every multiplier.

    Args:
        on_progress: called with a line for each cell.
    """
    rows = []
    for bands, epsilon, printed in PRINTED:
        on_progress(f"epsilon {epsilon:g}, {'no sampling' if bands is None else f'{bands} bands'}")
        rows.append(Multiplier(bands, epsilon, printed, _multiplier(bands, epsilon)))
    cells = {
        "bands": lambda row: "no sampling" if row.bands is None else f"{row.bands}",
        "epsilon": lambda row: given(row.epsilon),
        "printed": lambda row: exact(row.printed),
        "obtained": lambda row: f"{row.obtained:.6f}",
        "ratio": lambda row: f"{row.obtained / row.printed:.5f}",
    }
    count = sum(row.agrees for row in rows)
    yield Reproduced(
        "Amplified banded matrix factorization",
        Multipliers(rows).to_json(),
        [Table.of("Noise multipliers at equal epsilon", rows, cells)],
        [
            "Obtained multipliers are upper bounds by the privacy loss distribution. The amplified "
            f"printed ones are up to {TOO_SMALL:g} too small, which is not safe."
        ],
        f"{count} of {len(rows)} multipliers agree.",
        count == len(rows),
    )


def _multiplier(bands: int | None, epsilon: float) -> float:
    """Returns the least multiplier, relative to the sensitivity of all participations."""
    # With columns of norm 1, privacy depends on C by its number of bands only.
    if bands is None:
        participation, sampling = fedray.MinSep(EPOCHS, 1, EPOCHS), None
    else:
        participation = fedray.MinSep(ROUNDS, 1, ROUNDS)
        sampling = fedray.PoissonSampling(ROUNDS, EPOCHS * bands / ROUNDS, bands)
    figures = fedray.calibrated_figures(
        Identity(), participation, DELTA, epsilon=epsilon, sampling=sampling
    )
    assert figures.noise_multiplier is not None
    return figures.noise_multiplier / math.sqrt(EPOCHS)


REPRODUCTION = Reproduction(
    "Noise multipliers of banded mechanisms with amplification (Choquette-Choo et al. 2023; a "
    "minute).",
    run,
)
