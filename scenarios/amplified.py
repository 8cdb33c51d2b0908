"""Noise multipliers and optimal numbers of bands of banded matrix factorization, beside the printed
ones (Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization").

Tables 4 and 5: 2,052 rounds in 6 epochs, delta 1e-6. Partitions of the devices take turns, one for
each band of C, and each device is drawn in its turns with probability 6 bands / 2,052. A multiplier
is relative to the sensitivity of 6 participations, sqrt(6) for columns of norm 1.

Appendix G.1: the number of bands with the least RMSE of the prefix sums of 1,024 rounds, by epsilon
and epochs, with as many partitions. Caption and delta are not at hand: that n is 1,024 follows from
the cells, whose bands times epochs never exceed it, and delta is taken to be 1e-6.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from functools import cache

import fedray
from fedray.mechanisms import Identity
from .reproduction import (
    Document,
    InJson,
    PartDone,
    Progress,
    Reproduced,
    Reproduction,
    Table,
    given,
)

ROUNDS, EPOCHS, DELTA = 2052, 6, 1e-6
EPSILONS = (1.0, 2.0, 4.0, 8.0, 16.0)
ALL = "4.22468 2.23048 1.19352 0.65294 0.36861"
TABLES = (
    ("4", "DP-SGD", (None,) * 5, 1.0, ALL),
    ("4", "single-epoch MF", (None,) * 5, 1.0, "4.22468 2.23048 1.19352 0.65293 0.36861"),
    ("4", "optimal TreeAgg", (None,) * 5, 1.0, ALL),
    ("4", "multi-epoch MF", (None,) * 5, 1.1269, "4.76079 2.51352 1.34498 0.73579 0.41539"),
    ("4", "BandMF", (None,) * 5, 1.0, ALL),
    ("5", "DP-SGD", (1,) * 5, 1.0, "0.37313 0.30481 0.25136 0.20567 0.16876"),
    ("5", "multi-epoch MF", (None,) * 5, 1.0, ALL),
    ("5", "BandMF", (9, 18, 32, 64, None), 1.0, "0.79118 0.64708 0.52224 0.43490 0.36861"),
)
"""Table, mechanism, bands (None without sampling), sensitivity over that of columns of norm 1, and
the multiplier for each of EPSILONS."""
TOO_SMALL = 6e-4
"""Largest relative difference of an amplified multiplier, which is printed too small: an estimate
of epsilon that rounds every loss down exceeds the target at the printed multiplier of 64 bands."""

MOST_ROUNDS = 1024
G1 = (
    (0.03125, "2 2 1 1 1 1 1 1 1 1 1"),
    (0.0625, "4 2 1 1 1 1 1 1 1 1 1"),
    (0.125, "8 4 2 1 1 1 1 1 1 1 1"),
    (0.25, "8 4 4 2 1 1 1 1 1 1 1"),
    (0.5, "16 8 4 4 2 1 1 1 1 1 1"),
    (1.0, "32 16 8 4 2 2 1 1 1 1 1"),
    (2.0, "64 32 16 8 4 2 2 1 1 1 1"),
    (4.0, "128 64 32 16 8 4 2 2 1 1 1"),
    (8.0, "1024 512 256 32 16 8 4 2 2 1 1"),
    (16.0, "1024 512 256 128 64 32 8 4 4 2 1"),
)
"""Appendix G.1: epsilon, and the number of bands for 1, 2, 4, ... 1,024 epochs."""
NEAR = 5e-3
"""Largest relative noise above the least at which a printed number of bands is nearly the best."""


@dataclass(frozen=True, slots=True)
class Multiplier(Document):
    """A printed noise multiplier, and the obtained one."""

    table: str
    """Table of the paper."""
    mechanism: str
    """Mechanism, as the table names it."""
    bands: int | None
    """Number of bands and of partitions; None without sampling."""
    epsilon: float
    """Target epsilon."""
    printed: str
    """Printed multiplier."""
    obtained: float
    """Least multiplier for which epsilon is proven."""

    @property
    def agrees(self) -> InJson[bool]:
        """Whether the obtained one, rounded or cut off, is the printed one or, with sampling, is
        larger by at most TOO_SMALL, the known error."""
        if self.bands is None:
            value, last = Decimal(self.obtained), Decimal(self.printed)
            return last in {value.quantize(last, how) for how in (ROUND_HALF_UP, ROUND_DOWN)}
        return 0.0 < self.obtained / float(self.printed) - 1.0 <= TOO_SMALL


@dataclass(frozen=True, slots=True)
class OptimalBands(Document):
    """A printed optimal number of bands, and the obtained one."""

    epsilon: float
    """Target epsilon."""
    epochs: int
    """Expected number of rounds of a device among 1,024."""
    printed: int
    """Printed number of bands."""
    best: int
    """Power of two with the least noise."""
    cost: float
    """Noise of the printed number over that of the best, minus 1; 0 if they agree."""

    def __str__(self) -> str:
        rest = "" if self.best == self.printed else f" ({self.printed}: +{100 * self.cost:.2f} %)"
        return f"{self.best}{rest}"


@dataclass(frozen=True, slots=True)
class Multipliers(Document):
    """`fedray reproduce amplified`."""

    multipliers: list[Multiplier]
    """Printed and obtained multipliers."""
    bands: list[OptimalBands]
    """Printed and obtained numbers of bands."""


def run(on_progress: Progress = lambda _: None) -> Iterator[Reproduced]:
    """Computes every multiplier, then every number of bands.

    Args:
        on_progress: called with a line for each cell.
    """
    rows = []
    for table, mechanism, bands, factor, column in TABLES:
        on_progress(f"table {table}, {mechanism}")
        for each, epsilon, printed in zip(bands, EPSILONS, column.split(), strict=True):
            obtained = factor * _multiplier(each, epsilon)
            rows.append(Multiplier(table, mechanism, each, epsilon, printed, obtained))
    cells = [
        (epsilon, 1 << power, int(printed))
        for epsilon, column in G1
        for power, printed in enumerate(column.split())
    ]
    optimal = []
    for done, (epsilon, epochs, printed) in enumerate(cells):
        on_progress(PartDone(f"bands at epsilon {epsilon:g}, {epochs} epochs", done, len(cells)))
        optimal.append(_optimal(epsilon, epochs, printed))
    yield _reproduced(rows, optimal)


@cache
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


def _optimal(epsilon: float, epochs: int, printed: int) -> OptimalBands:
    most = MOST_ROUNDS // epochs
    noises = {1 << i: _noise(epsilon, epochs, 1 << i) for i in range(most.bit_length())}
    best = min(noises, key=noises.__getitem__)
    return OptimalBands(epsilon, epochs, printed, best, noises[printed] / noises[best] - 1.0)


def _noise(epsilon: float, epochs: int, bands: int) -> float:
    """Returns the root mean square, over the rounds, of the noise on the prefix sums."""
    sampling = fedray.PoissonSampling(MOST_ROUNDS, epochs * bands / MOST_ROUNDS, bands)
    strategy, turns = _toeplitz(bands)
    figures = fedray.calibrated_figures(strategy, turns, DELTA, epsilon=epsilon, sampling=sampling)
    assert figures.noise_multiplier is not None
    return figures.noise_multiplier * figures.loss.rms_error


@cache
def _toeplitz(bands: int) -> "tuple[fedray.Strategy, fedray.MinSep]":
    turns = fedray.MinSep(MOST_ROUNDS, bands, MOST_ROUNDS // bands)
    request = fedray.MechanismRequest("banded-toeplitz", turns, bands=bands)
    return fedray.optimize_mechanism(request), turns


def _reproduced(rows: list[Multiplier], optimal: list[OptimalBands]) -> Reproduced:
    count = sum(row.agrees for row in rows)
    same = sum(each.best == each.printed for each in optimal)
    cost = max(each.cost for each in optimal)
    cells = {
        "table": lambda row: row.table,
        "mechanism": lambda row: row.mechanism,
        "bands": lambda row: "no sampling" if row.bands is None else f"{row.bands}",
        "epsilon": lambda row: given(row.epsilon),
        "printed": lambda row: row.printed,
        "obtained": lambda row: f"{row.obtained:.6f}",
        "ratio": lambda row: f"{row.obtained / float(row.printed):.5f}",
    }
    by_epsilon = {epsilon: [x for x in optimal if x.epsilon == epsilon] for epsilon, _ in G1}
    heads = ("epsilon", *(f"{1 << power}" for power in range(len(G1[0][1].split()))))
    grid = [(given(epsilon), *map(str, found)) for epsilon, found in by_epsilon.items()]
    return Reproduced(
        "Amplified banded matrix factorization",
        Multipliers(rows, optimal).to_json(),
        [
            Table.of("Noise multipliers of tables 4 and 5, at delta 1e-6", rows, cells),
            Table("Bands with the least noise, by epsilon and epochs", heads, tuple(grid)),
        ],
        [
            "Obtained multipliers are upper bounds by the privacy loss distribution. The amplified "
            f"printed ones are up to {TOO_SMALL:g} too small, which is not safe. The sensitivity "
            "1.1269 of the multi-epoch matrix, beyond the order that it was made for, is the one "
            "factor that fits its five rows of table 4; its matrix is not in print. Each number of "
            "bands of BandMF in table 5 is the one that fits its row.",
            "Numbers of bands are powers of two, as in the paper, of banded Toeplitz matrices; a "
            "number in brackets is the printed one, with its noise above the least.",
        ],
        f"{count} of {len(rows)} multipliers agree. {same} of {len(optimal)} printed numbers of "
        f"bands have the least noise; the others have at most {100 * cost:.2g} % more.",
        count == len(rows) and cost <= NEAR,
    )


REPRODUCTION = Reproduction(
    "Noise multipliers and bands of banded mechanisms with amplification (Choquette-Choo et al. "
    "2023; six minutes).",
    run,
)
