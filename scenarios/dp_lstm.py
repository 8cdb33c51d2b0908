"""Epsilon of the private language models of 2018, by the accountant of the paper and by today's
(McMahan et al. 2018, "Learning differentially private recurrent language models").

Independent noise on Poisson samples of users, which every entry of the paper's tables describes by
the sampling probability, the noise multiplier and the rounds. Nothing is trained: the paper's data
are not public.
"""

import math

import numpy as np
from scipy.special import gammaln

import fedray
from fedray.mechanisms import Identity
from .cells import CHEAPEST, CUT, Figures, PrintedResult, PrintedTable, Row
from .reproduction import Reproduction, Request, Subject

ORDERS = range(1, 33)
"""lambda of the moments, as computed in 2016."""
SETTINGS = ("users", "expected_users_per_round", "noise_multiplier", "rounds")


def moments_epsilon(
    probability: float, noise_multiplier: float, rounds: int, delta: float
) -> float:
    """Returns epsilon of Gaussian noise on Poisson samples by the moments accountant as first
    published: integer orders, and the first conversion, the least (moment(lambda) + log(1 / delta))
    / lambda (Abadi et al. 2016, theorem 2).

    Args:
        probability: q, probability that a user is in the sample of a round.
        noise_multiplier: z, standard deviation of the noise over the clip norm.
        rounds: number of rounds.
        delta: delta of the epsilon.
    """

    def moment(order: int) -> float:
        """log sum_j binom(a, j) (1 - q)^(a-j) q^j e^(j (j-1) / (2 z^2)), with a = order + 1."""
        a = order + 1
        j = np.arange(a + 1)
        ways = gammaln(a + 1) - gammaln(j + 1) - gammaln(a - j + 1)
        shares = (a - j) * math.log1p(-probability) + j * math.log(probability)
        terms = ways + shares + j * (j - 1) / (2.0 * noise_multiplier**2)
        return math.log(np.exp(terms - terms.max()).sum()) + float(terms.max())

    return min((rounds * moment(order) - math.log(delta)) / order for order in ORDERS)


def _setting(row: Row) -> tuple[float, float, int, float]:
    """Returns the sampling probability, noise multiplier, rounds and delta of a row."""
    users, cohort = int(row["users"]), int(row["expected_users_per_round"])
    # Table 1 has a delta of each number of users.
    delta = float(row.get("delta") or users**-1.1)
    return cohort / users, float(row["noise_multiplier"]), int(row["rounds"]), delta


def of_the_paper(row: Row) -> Figures:
    """Returns the figures of a row by the formulas of the paper."""
    found = {"epsilon": moments_epsilon(*_setting(row))}
    if "clip_norm" in row:
        # Noise on the mean over the expected number of users.
        noise = float(row["noise_multiplier"]) * float(row["clip_norm"])
        found["noise_sigma"] = noise / int(row["expected_users_per_round"])
    return found


def _figures(row: Row, request: Request) -> Figures:
    del request
    probability, z, rounds, delta = _setting(row)
    sampling, turns = fedray.PoissonSampling(rounds, probability), fedray.MinSep(rounds, 1, rounds)
    today = fedray.mechanism_figures(Identity(), turns, z, delta, sampling).amplified_epsilon
    assert today is not None  # a noise multiplier is given
    return {**of_the_paper(row), "epsilon today": today}


RESULT = PrintedResult(
    "Private language models of 2018",
    (
        PrintedTable(
            "printed/dp_lstm_table_1",
            "epsilon at delta = users^-1.1",
            SETTINGS,
            ("epsilon",),
            _figures,
            across="rounds",
        ),
        PrintedTable(
            "printed/dp_lstm_table_2",
            "noise and epsilon of trained models at delta 1e-9",
            (*SETTINGS, "clip_norm"),
            ("noise_sigma", "epsilon"),
            _figures,
        ),
        PrintedTable(
            "printed/dp_lstm_text",
            "epsilon at delta 1e-9",
            ("place", *SETTINGS),
            ("epsilon",),
            _figures,
            CUT,
        ),
    ),
    (
        "Printed epsilons are by the moments accountant of 2016. Today's epsilon follows the "
        "privacy loss distribution of the same noise; both are upper bounds.",
        "The accuracies of table 2 are of data that are not public, and no model is trained here.",
    ),
    Subject("the models of McMahan et al. 2018", unit="user", estimand="upper bounds"),
)
REPRODUCTION = Reproduction(
    "dp-lstm",
    "Epsilon of the language models of 2018, by the accountant of the paper and by today's.",
    "McMahan et al. 2018, tables 1 and 2, sections 1 and 3, appendix D",
    "2 min",
    RESULT.run,
    (CHEAPEST,),
    has_figures=True,
)
