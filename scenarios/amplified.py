"""Noise multipliers and optimal numbers of bands of banded matrix factorization, with and without
amplification by sampling (Choquette-Choo et al. 2023).

Tables 4 and 5: 2,052 rounds in 6 epochs, delta 1e-6. Partitions of the devices take turns, one for
each band of C, and each device is drawn in its turns with probability 6 bands / 2,052. A multiplier
is relative to the sensitivity of 6 participations, sqrt(6) for columns of norm 1.

Appendix G.1: the number of bands with the least RMSE of the prefix sums of 1,024 rounds, by epsilon
and epochs, with as many partitions. That n is 1,024 follows from the cells, whose bands times
epochs never exceed it.
"""

import math
from functools import cache
from typing import NamedTuple

import fedray
from fedray.mechanisms import Identity
from .cells import CHEAPEST, CUT, Figures, PrintedResult, PrintedTable, Row
from .reproduction import Reproduction, Request, Subject, keyboard_parameters

PAPER = "Choquette-Choo et al. 2023"
DELTA = 1e-6
"""delta of tables 4 and 5; that of appendix G.1 is not at hand, and taken to be the same."""
ROUNDS, EPOCHS = 2052, 6
"""Setting of tables 4 and 5."""
BANDS = {"1": 9, "2": 18, "4": 32, "8": 64}
"""Bands of BandMF in table 5 by epsilon, which are not at hand: those that fit. At epsilon 16
nothing is amplified."""
BEYOND_ITS_ORDER = 1.1269
"""Sensitivity of the multi-epoch matrix of table 4 over that of columns of norm 1. The matrix was
made for one order of participations, and is not in print: this factor fits its five rows."""
TOO_SMALL = 6e-4
"""Largest relative difference of an amplified multiplier, which is printed too small."""
MOST_ROUNDS = 1024
"""Rounds of appendix G.1."""
NEAR = 5e-3
"""Largest relative noise above the least at which a printed number of bands is nearly the best."""


def column_multiplier(
    rounds: int, epochs: int, bands: int | None, epsilon: float, delta: float = DELTA
) -> float:
    """Returns the least noise multiplier, relative to the largest norm of a column of C: with
    sampling, privacy depends on nothing else of C but its number of bands.

    Args:
        rounds: n.
        epochs: expected number of rounds of a device.
        bands: number of bands and of partitions; None without sampling.
        epsilon: target.
        delta: delta of epsilon.
    """
    turns, sampling = fedray.MinSep(epochs, 1, epochs), None
    if bands is not None:
        turns = fedray.MinSep(rounds, 1, rounds)
        sampling = fedray.PoissonSampling(rounds, epochs * bands / rounds, bands)
    found = fedray.calibrated_figures(Identity(), turns, delta, epsilon=epsilon, sampling=sampling)
    assert found.noise_multiplier is not None
    return found.noise_multiplier


class BandsFound(NamedTuple):
    """Numbers of bands that are powers of two, by their noise."""

    noise: dict[int, float]
    """Root mean square noise of the prefix sums by number of bands."""

    @property
    def best(self) -> int:
        """Number of bands with the least noise."""
        return min(self.noise, key=self.noise.__getitem__)

    def cost(self, bands: int) -> float:
        """Returns the relative noise of a number of bands above the least."""
        return self.noise[bands] / self.noise[self.best] - 1.0


@cache
def bands_found(epsilon: float, epochs: int) -> BandsFound:
    """Tries all powers of two bands over MOST_ROUNDS rounds; as many partitions take turns.

    Args:
        epsilon: target at DELTA.
        epochs: expected number of rounds of a device.
    """
    numbers = [1 << power for power in range((MOST_ROUNDS // epochs).bit_length())]
    return BandsFound(
        {
            bands: column_multiplier(MOST_ROUNDS, epochs, bands, epsilon) * error_of(bands)
            for bands in numbers
        }
    )


@cache
def error_of(bands: int) -> float:
    """Returns the root mean square error of the prefix sums of the best banded Toeplitz matrix with
    columns of norm 1 at most."""
    turns = fedray.MinSep(MOST_ROUNDS, bands, MOST_ROUNDS // bands)
    request = fedray.MechanismRequest("banded-toeplitz", turns, bands=bands)
    # One participation has the sensitivity of the largest column.
    once = fedray.MinSep(MOST_ROUNDS, 1, 1)
    return fedray.mechanism_figures(fedray.optimize_mechanism(request), once).loss.rms_loss


def _multiplier(row: Row, request: Request) -> Figures:
    del request
    mechanism, epsilon, bands = row["mechanism"], row["epsilon"], None
    if mechanism.endswith("w/ ampl."):
        bands = 1 if mechanism.startswith("DP-SGD") else BANDS.get(epsilon)
    factor = BEYOND_ITS_ORDER if mechanism == "Multi-epoch MF" else 1.0
    found = factor * column_multiplier(ROUNDS, EPOCHS, bands, float(epsilon))
    return {"noise_multiplier": found / math.sqrt(EPOCHS)}


def _why_larger(row: Row, column: str, obtained: float) -> str:
    if row["mechanism"].endswith("w/ ampl.") and 0 < obtained / float(row[column]) - 1 <= TOO_SMALL:
        return (
            f"the printed ones are up to {TOO_SMALL:g} too small, which is not safe; the obtained "
            "ones are upper bounds by the privacy loss distribution"
        )
    return ""


def _best_bands(row: Row, request: Request) -> Figures:
    del request
    found = bands_found(float(row["epsilon"]), int(row["epochs"]))
    cost = found.cost(int(row["bands"]))
    above = {"noise of the printed number above the least, %": 100.0 * cost} if cost else {}
    return {"bands": float(found.best), **above}


def _why_other_bands(row: Row, column: str, obtained: float) -> str:
    del obtained
    cost = bands_found(float(row["epsilon"]), int(row["epochs"])).cost(int(row[column]))
    if cost > NEAR:
        return ""
    return (
        f"near ties, whose printed number needs at most {100 * NEAR:g} % more noise here; the "
        "paper's matrices have columns of equal norm, and ours are Toeplitz"
    )


def _production(row: Row, request: Request) -> Figures:
    del request
    # Devices take part at most once in so many rounds.
    least = float(row["min_sep"]) * float(row["reports_of_a_round"])
    return {
        "millions_of_parameters": keyboard_parameters(10_000) / 1e6,
        "millions of devices, at least": least / 1e6,
    }


TABLES = "noise multiplier at delta 1e-6"
RESULT = PrintedResult(
    "Amplified banded matrix factorization",
    (
        *(
            PrintedTable(
                f"printed/banded_table_{number}",
                TABLES,
                ("mechanism", "epsilon"),
                ("noise_multiplier",),
                _multiplier,
                CUT,
                _why_larger,
                across="epsilon",
            )
            for number in (4, 5)
        ),
        PrintedTable(
            "printed/banded_appendix_g_1",
            "bands with the least noise",
            ("epsilon", "epochs"),
            ("bands",),
            _best_bands,
            reason=_why_other_bands,
            across="epochs",
            # A number of epochs leaves so many powers of two.
            cost=lambda row: 11.0 - math.log2(float(row["epochs"])),
        ),
        PrintedTable(
            "printed/banded_production",
            "runs in production",
            ("mechanism", "reports_of_a_round", "min_sep"),
            ("millions_of_parameters",),
            _production,
        ),
    ),
    (
        "Multipliers are over the sensitivity of 6 participations. Each number of bands of BandMF "
        "in table 5 is the one that fits its row, and the sensitivity "
        f"{BEYOND_ITS_ORDER} of the multi-epoch matrix of table 4 the one factor that fits its "
        "five rows.",
        "Numbers of bands are powers of two, as in the paper.",
        "Rounds, bands, noise multipliers, rho and epsilon of the runs in production are not at "
        "hand.",
    ),
    Subject(f"the mechanisms of {PAPER}", estimand="upper bounds"),
)
REPRODUCTION = Reproduction(
    "amplified",
    "Noise multipliers and bands of banded mechanisms with amplification by sampling.",
    f"{PAPER}, tables 4 and 5, section 6, appendices G.1 and K",
    "5 min",
    RESULT.run,
    (CHEAPEST,),
    has_figures=True,
)
