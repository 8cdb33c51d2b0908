"""Lower bounds of privacy from one run, in which fair coins decide who takes part.

Each of m canaries is included if its own fair coin shows heads. An auditor sees the release, gives
every canary a score, and guesses r coins: heads for the r/2 highest scores, tails for the r/2
lowest. If v guesses are right, and no mechanism with a given privacy gets v or more right with a
probability above 1 - confidence, then that privacy is refuted, and the mechanism has less.

Several r are tried, and each has an equal share of the error (Bonferroni's inequality), because r
must not depend on the truth. A coin may change several units of privacy at once, such as the two
that replacing a device's data changes (one is removed, one added); bounds are of one unit.
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
"""Confidence of a lower bound: in one run of 20 at most, it is above the true value."""
GUESSED = (1.0, 1 / 4, 1 / 16)
"""Shares of the coins that are guessed."""
MOST_EPSILON, MOST_MU = 64.0, 32.0
"""Largest values of a bound. A thousand guesses that are all right show an epsilon of 6."""


@dataclass(frozen=True, slots=True)
class LowerBound(Document):
    """A lower bound of the privacy loss at a confidence of 95 %."""

    method: str
    """Name of the method: "epsilon-delta", "f-DP" or "Gaussian"."""
    epsilon: float
    """Lower bound of epsilon at the scenario's delta, rounded to nearest; 0 if there is no
    evidence of any loss."""
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
    """Probability that the bound is not above the true value; a lower bound of it."""


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
    m = scores.size
    error = (1.0 - CONFIDENCE) / len(GUESSED)
    guessed = [right_guesses(scores, is_in, round(share * m)) for share in GUESSED]
    epsilons = [epsilon_bound(m, r, v, delta, error, units) for r, v in guessed]
    mus = [mu_bound(m, r, v, error, units) for r, v in guessed]
    best, best_mu = int(np.argmax(epsilons)), int(np.argmax(mus))
    coins = "independent fair coins decide who is included" + (
        "" if units == 1 else f"; a coin changes {units} units of privacy"
    )
    return (
        LowerBound(
            "epsilon-delta",
            epsilons[best],
            None,
            *guessed[best],
            coins,
            "Steinke, Nasr and Jagielski 2023, Theorem 5.2",
        ),
        LowerBound(
            "f-DP",
            gaussian_epsilon(mus[best_mu], delta),
            mus[best_mu],
            *guessed[best_mu],
            f"{coins}; the mechanism is Gaussian",
            "Mahloujifar, Melis and Chaudhuri 2025, the recursion over right guesses",
        ),
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

    return _largest(is_refuted, MOST_EPSILON)


def probability_bound(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """Returns an upper bound of the probability of v or more right guesses among r, if a coin
    changes an (epsilon, delta)-private mechanism's data (Steinke, Nasr, Jagielski 2023, Theorem
    5.2)."""
    from scipy.special import expit
    from scipy.stats import binom  # scipy takes long to import

    # Without delta, right guesses are at most as many as those of a randomised response.
    law = binom(r, expit(epsilon))
    tail = float(law.sf(v - 1))
    if not v:
        return 1.0
    # The probability that v - i to v - 1 guesses are right, over i, for every i from 1 to v.
    fewer = np.cumsum(law.pmf(np.arange(v - 1, -1, -1))) / np.arange(1, v + 1)
    return min(1.0, tail + 2.0 * m * delta * float(fewer.max()))


def mu_bound(m: int, r: int, v: int, error: float, units: int = 1) -> float:
    """Returns the largest mu of Gaussian differential privacy that v right guesses refute; 0 if
    they refute none.

    Args:
        m, r, v, error: as for `epsilon_bound`.
        units: number of units of privacy that a coin changes, k. A mu-GDP mechanism is k mu-GDP for
            groups of k (Dong, Roth, Su 2022, Theorem 2.14).
    """
    return _largest(lambda mu: not is_possible(m, r, v, error, units * mu), MOST_MU)


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


def gaussian_bound(
    included: Float64Array, others: Float64Array, delta: float, units: int = 1
) -> LowerBound:
    """Returns the lower bound of mu from normal scores, by Student's noncentral distribution.

    It is exact: P(T >= t) = 1 - confidence at the bound, where T is Student's statistic of two
    samples. The scatter is measured, so that a bound is not fooled by noise smaller than claimed.

    Args:
        included: scores of included canaries, [a].
        others: scores of the other canaries, [b].
        delta: delta of epsilon.
        units: number of units of privacy that a coin changes.
    """
    from scipy.special import nctdtr
    from scipy.stats import ttest_ind

    t = float(ttest_ind(included, others).statistic)
    freedom = included.size + others.size - 2
    of_means = math.sqrt(1.0 / included.size + 1.0 / others.size)
    # A larger mean without canaries is no evidence, however large it is.
    bound = _largest(
        lambda mu: 1.0 - nctdtr(freedom, units * mu / of_means, t) <= 1.0 - CONFIDENCE, MOST_MU
    )
    return LowerBound(
        "Gaussian",
        gaussian_epsilon(bound, delta),
        bound,
        None,
        None,
        "scores of canaries are normal, with equal variances and a common mean of each kind",
        "Dong, Roth and Su 2022, Corollary 2.13; Student's noncentral t",
    )


def _largest(is_refuted: Callable[[float], bool], most: float) -> float:
    """Returns the largest refuted value from 0 to `most`, to 1e-4 below; smaller values than a
    refuted one are refuted too."""
    if not is_refuted(0.0):
        return 0.0
    low, high = 0.0, most
    while high - low > 1e-4:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    return low
