"""Lower bounds of privacy from one run, in which fair coins decide who takes part.

Each of m canaries is included if its own fair coin shows heads. An auditor sees the release, gives
every canary a score, and guesses r coins: heads for the r/2 highest scores, tails for the r/2
lowest. If v guesses are right, and no mechanism with a given privacy gets v or more right with a
probability above 1 - confidence, then that privacy is refuted, and the mechanism has less.

Several r are tried, and each has an equal share of the error (Bonferroni's inequality). A coin may
change several units of privacy, as where data is replaced (a device is removed, another added);
bounds are of one unit.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedray.base.arrays import BoolArray, Float64Array
from fedray.base.document import Document, InJson
from fedray.mechanisms.accounting.gdp import gaussian_epsilon

CONFIDENCE = 0.95
"""Confidence of a lower bound: at most one of 20 runs is expected above the true value."""
GUESSED = (1.0, 1 / 4, 1 / 16)
"""Shares of the coins that are guessed."""
MOST = 64.0
"""Largest value of a bound. A thousand guesses that are all right show an epsilon of 6."""
STEINKE = "Steinke, Nasr and Jagielski 2023, Theorem 5.2"
MAHLOUJIFAR = "Mahloujifar, Melis and Chaudhuri 2025, bound of right guesses"
NORMALS = "Dong, Roth and Su 2022, Corollary 2.13; Student's noncentral t"


@dataclass(frozen=True, slots=True)
class LowerBound(Document):
    """A lower bound of the privacy loss at a confidence of 95 %."""

    method: str
    """Method: "epsilon-delta", "f-DP" or "Gaussian"."""
    epsilon: float
    """Lower bound of epsilon at the scenario's delta; 0 without evidence of any loss."""
    mu: float | None
    """Lower bound of mu (Gaussian differential privacy); None if the method has none."""
    guesses: int | None
    """Number r of guessed coins of the best bound; None if the method guesses none."""
    correct: int | None
    """Number v of right guesses among them; None if the method guesses none."""
    assumption: str
    """The condition under which the bound holds."""
    theorem: str
    """Paper and theorem."""
    confidence: ClassVar[InJson[float]] = CONFIDENCE
    """Least probability that the bound is not above the true value."""


def bounds_of_scores(
    scores: Float64Array, is_in: BoolArray, delta: float, units: int = 1
) -> tuple[LowerBound, LowerBound]:
    """Returns the bounds of both theorems on guesses: for (epsilon, delta), and for mu.

    Args:
        scores: score of each canary, [m]; higher if it rather was included.
        is_in: coin of each canary, [m].
        delta: delta of epsilon, from 1e-30 to below 1.
        units: number of units of privacy that a coin changes.
    """
    m, error = scores.size, (1.0 - CONFIDENCE) / len(GUESSED)
    guessed = [right_guesses(scores, is_in, round(share * m)) for share in GUESSED]
    epsilon, r, v = max((epsilon_bound(m, r, v, delta, error, units), r, v) for r, v in guessed)
    mu, r_of_mu, v_of_mu = max((mu_bound(m, r, v, error, units), r, v) for r, v in guessed)
    coins = f"fair coins, each of which changes {units} {'unit' if units == 1 else 'units'}"
    of_mu, gaussian = gaussian_epsilon(mu, delta), f"{coins}; a Gaussian mechanism"
    return (
        LowerBound("epsilon-delta", epsilon, None, r, v, coins, STEINKE),
        LowerBound("f-DP", of_mu, mu, r_of_mu, v_of_mu, gaussian, MAHLOUJIFAR),
    )


def right_guesses(scores: Float64Array, is_in: BoolArray, guesses: int) -> tuple[int, int]:
    """Returns (r, v): the number of guesses, made even, and how many of them are right."""
    half = guesses // 2
    # Equal scores are in the order of the canaries, which the coins do not change.
    order = np.argsort(scores, kind="stable")
    right = is_in[order[order.size - half :]].sum() + (~is_in[order[:half]]).sum()
    return 2 * half, int(right)


def epsilon_bound(m: int, r: int, v: int, delta: float, error: float, units: int = 1) -> float:
    """Returns the largest epsilon at delta that v right guesses refute; 0 if they refute none.

    Args:
        m: number of coins.
        r: number of guesses, fixed before the truth is seen.
        v: number of right guesses.
        delta: delta of epsilon.
        error: largest probability that the bound is above the true epsilon.
        units: number of units of privacy that a coin changes, k. An (epsilon, delta)-private
            mechanism is (k epsilon, delta (e^(k epsilon) - 1) / (e^epsilon - 1))-private for groups
            of k (Vadhan 2017, Lemma 2.2).
    """

    def is_refuted(epsilon: float) -> bool:
        of_group = delta * sum(math.exp(min(k * epsilon, 700.0)) for k in range(units))
        return probability_bound(m, r, v, units * epsilon, of_group) <= error

    return _largest(is_refuted)


def probability_bound(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """Returns an upper bound of the probability of v or more right guesses among r, if a coin
    changes an (epsilon, delta)-private mechanism's data (Steinke, Nasr, Jagielski 2023, Theorem
    5.2)."""
    from scipy.special import expit
    from scipy.stats import binom  # scipy takes long to import

    # Without delta, a randomised response has the most right guesses.
    right = float(expit(epsilon))
    tail = float(binom.sf(v - 1, r, right))
    if not v:
        return 1.0
    # The probability that v - i to v - 1 guesses are right, over i, for every i from 1 to v.
    fewer = np.cumsum(binom.pmf(np.arange(v - 1, -1, -1), r, right)) / np.arange(1, v + 1)
    return min(1.0, tail + 2.0 * m * delta * float(fewer.max()))


def mu_bound(m: int, r: int, v: int, error: float, units: int = 1) -> float:
    """Returns the largest mu of Gaussian differential privacy that v right guesses refute; 0 if
    they refute none.

    Arguments are those of `epsilon_bound`. A mu-GDP mechanism is k mu-GDP for groups of k units
    (Dong, Roth, Su 2022, Theorem 2.14).
    """
    return _largest(lambda mu: not is_possible(m, r, v, error, units * mu))


def is_possible(m: int, r: int, v: int, probability: float, mu: float) -> bool:
    """Whether the theorem lets a mu-GDP mechanism get v or more of r guesses right with a
    probability (Mahloujifar, Melis, Chaudhuri 2025, arXiv 2410.22235). A False is a proof; a True
    is not.

    Let p_c be the probability of c right guesses, R_j = sum over c >= j of c p_c / m, and W_j the
    same of the wrong guesses, (r - c) p_c / m. The flip of one coin makes a right guess wrong, and
    c one smaller. So R_j and W_(j-1) are probabilities of one event under neighbours, averaged over
    coins; as trade-off functions are convex, W_(j-1) >= Phi(Phi^-1(R_j) - mu) for every j.
    """
    from scipy.special import ndtr, ndtri

    # The fewest right guesses ask for the fewest wrong ones below.
    right, wrong = probability * v / m, probability * (r - v) / m
    for count in range(v, 0, -1):
        least = float(ndtr(ndtri(right) - mu))
        if least > wrong:
            right += (count - 1) / (r - count + 1) * (least - wrong)
            wrong = least
        # All probabilities together are 1.
        if right + wrong > r / m:
            return False
    return True


def gaussian_bound(included: Float64Array, others: Float64Array, delta: float) -> LowerBound:
    """Returns the exact lower bound of mu from normal scores: Student's statistic T of two samples
    has P(T >= t) = 1 - confidence there. The scatter is measured, and not taken as claimed.

    Args:
        included: scores of included canaries, [a].
        others: scores of the other canaries, [b].
        delta: delta of epsilon.
    """
    from scipy.special import nctdtr
    from scipy.stats import ttest_ind

    t = float(ttest_ind(included, others)[0])  # pyright: ignore[reportArgumentType]
    freedom = included.size + others.size - 2
    of_means = math.sqrt(1.0 / included.size + 1.0 / others.size)
    # A larger mean without canaries proves nothing, however large it is.
    mu = _largest(lambda mu: nctdtr(freedom, mu / of_means, t) >= CONFIDENCE)
    assumption = "normal scores of equal variance; a Gaussian mechanism"
    return LowerBound("Gaussian", gaussian_epsilon(mu, delta), mu, None, None, assumption, NORMALS)


def _largest(is_refuted: Callable[[float], bool]) -> float:
    """Returns the largest refuted value to 1e-4 below, or 0 if none is; smaller ones are too."""
    low, high = 0.0, MOST if is_refuted(0.0) else 0.0
    while high - low > 1e-4:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    return low
