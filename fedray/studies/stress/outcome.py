"""Outcomes of a mechanism made for one estimate, over simulated runs; and the words and groups that
sentences and tables of stress tests share."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import TypeVar

import numpy as np

from fedray.base.document import Document
from fedray.base.rounding import up
from fedray.studies.stress.judged import StressRow

MOST_EXCEEDING = 0.05
"""Largest share of runs beyond the target with which an estimate is recommended."""
QUANTILES = (0.05, 0.5, 0.95)
ERRORS = {"rms": "RMS error", "max": "max error"}
"""Name of the error, by the loss."""
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Outcome(Document):
    """A mechanism made for one estimate, over simulated runs."""

    mechanism: str
    """Kind, or file by its stem."""
    rounds: int
    """n of the estimate."""
    estimated_min_sep: int
    """b of the estimate."""
    estimated_participations: int
    """k of the estimate."""
    runs: int
    """Number of runs; runs that starved are left out."""
    noise_multiplier: float
    """z, the least for the target under the estimate."""
    quantile: float
    """Share of runs whose min-sep is below the estimate."""
    exceeding: float
    """Share of runs that spend more than the target."""
    is_exact: bool
    """Whether the sensitivity is exact in every run; else epsilons, factors, `exceeding` and costs
    are upper bounds."""
    epsilons: tuple[float, float, float]
    """Quantiles 0.05, 0.5 and 0.95 of epsilon."""
    observed_epsilon: float | None
    """Median of the observed epsilon; None if it is unknown."""
    noise_factors: tuple[float, float, float]
    """The same quantiles of the factor on the noise that keeps the target."""
    regrets: tuple[float, float, float] | None
    """The same quantiles of `regret`, at equal epsilon; None if it is unknown in a run."""
    mean_regret: float | None
    """Mean of `regret`."""
    mean_excess: float | None
    """Mean of `excess`, at the noise that was chosen."""
    error: float
    """Mean over the runs of the noise of the prefix sums at that noise: root mean square over the
    rounds or, with the loss "max", of the worst round."""

    @property
    def needed_errors(self) -> tuple[float, float, float]:
        """Quantiles of `noise_factors` of the error at the noise that keeps the target."""
        low, middle, high = self.noise_factors
        return low * self.error, middle * self.error, high * self.error

    @property
    def needed_error(self) -> float:
        """Median over the runs of the error at the noise that keeps the target."""
        return self.needed_errors[1]


def outcomes_of(rows: Iterable[StressRow], target: float) -> list[Outcome]:
    """Returns every mechanism made for every estimate, over the runs of its rows; without
    mechanisms that cannot run in all of them.

    Args:
        rows: rows of simulated runs.
        target: epsilon of the noise.
    """
    # A run that starved has no truth, whatever the mechanism.
    known_rows = [row for row in rows if row.max_participations is not None]
    groups = grouped(known_rows, lambda row: (row.mechanism, estimate_of(row)))
    # A mechanism that cannot run in some truths has no distribution.
    whole = [each for each in groups if all(row.epsilon is not None for row in each)]
    return [_outcome(each, target) for each in whole]


def _outcome(rows: Sequence[StressRow], target: float) -> Outcome:
    first, (rounds, min_sep, most) = rows[0], estimate_of(rows[0])
    epsilons = known(rows, "epsilon")
    observed = known(rows, "observed_epsilon")
    regrets, excesses = known(rows, "regret"), known(rows, "excess")
    return Outcome(
        *(first.mechanism, rounds, min_sep, most),
        runs=len(rows),
        noise_multiplier=known(rows, "noise_multiplier")[0],
        quantile=sum(each < min_sep for each in known(rows, "min_sep")) / len(rows),
        exceeding=sum(each > target for each in epsilons) / len(rows),
        is_exact=all(row.is_exact for row in rows),
        epsilons=_quantiles(epsilons),
        observed_epsilon=median(observed) if observed else None,
        noise_factors=_quantiles(known(rows, "noise_factor")),
        regrets=_quantiles(regrets) if len(regrets) == len(rows) else None,
        mean_regret=fmean(regrets) if len(regrets) == len(rows) else None,
        mean_excess=fmean(excesses) if len(excesses) == len(rows) else None,
        error=fmean(known(rows, "error")),
    )


def _quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = np.quantile(values, QUANTILES).tolist()
    return low, middle, high


def risk(outcome: Outcome) -> float:
    """Returns the share of runs beyond the target, 0 if so few are acceptable."""
    return outcome.exceeding if outcome.exceeding > MOST_EXCEEDING else 0.0


def chance_text(runs: int) -> str:
    """Returns the upper end of the one-sided 95 % interval (Clopper and Pearson) of the share of
    runs that exceed the target, if none of some independent runs does."""
    return f"{up(100 - 100 * 0.05 ** (1 / max(runs, 1)), 1)} %"


def runs_to_support(most: float) -> int:
    """Returns how many runs without one that exceeds the target show that at most this share
    does."""
    return math.ceil(math.log(0.05) / math.log1p(-most))


def beyond(outcome: Outcome) -> str:
    """Returns how many of the runs exceed the target, such as "1 of 20"."""
    return f"{round(outcome.exceeding * outcome.runs):,} of {outcome.runs:,}"


def estimate_of(row: StressRow | Outcome) -> tuple[int, int, int]:
    """Returns (n, b, k) of the estimate."""
    return row.rounds, row.estimated_min_sep, row.estimated_participations


def case_of(row: StressRow) -> tuple[object, ...]:
    """Returns the condition, the estimate and the truth of a row."""
    return (row.what_if, *estimate_of(row), row.min_sep, row.max_participations)


def known(rows: Iterable[StressRow], name: str) -> list[float]:
    """Returns the values of a field, without those that are None."""
    return [value for row in rows if (value := getattr(row, name)) is not None]


def grouped(items: Iterable[_Item], key: Callable[[_Item], object]) -> list[list[_Item]]:
    """Returns items of equal keys together, in the order of their first ones."""
    groups: dict[object, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def true_limits(rows: Sequence[StressRow]) -> str:
    """Returns b and k of the truths that have a b."""
    min_seps, most = known(rows, "min_sep"), known(rows, "max_participations")
    return f"min-sep {span(min_seps, '{:,}'.format)} (k {span(most, str)})"


def limits(min_sep: int | None, most: int | None) -> str:
    """Returns b and k in words; "none" if no device took part twice."""
    return f"min-sep {'none' if min_sep is None else f'{min_sep:,}'} (k {most})"


def span(values: Sequence[float], text: Callable[[float], str]) -> str:
    """Returns the least and the largest value, or one if their texts are equal."""
    return " to ".join(dict.fromkeys((text(min(values)), text(max(values)))))


def share(value: float | None) -> str:
    """Returns a cost as a percentage with a sign, to the nearest with one decimal; "-" if
    unknown."""
    if value is None:
        return "-"
    rounded = round(100.0 * value, 1)
    return f"{rounded:+.1f} %" if rounded else "0.0 %"
