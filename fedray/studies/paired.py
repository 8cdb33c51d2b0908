"""Seeds as a sample: means with intervals, and differences of runs that share their seeds.

A value per seed is one draw of a result, because seeds are independent. The interval of a mean is
Student's: it assumes that the values are about normal, with unknown variance. Two settings that ran
with the same seeds on the same trace are compared by the differences of each seed. Their common
part then cancels, so that the interval is usually much shorter than those of the two means suggest.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from fedray.base.document import Document

CONFIDENCE = 0.95
"""Default confidence of an interval: the share of samples whose interval holds the true mean."""


@dataclass(frozen=True, slots=True)
class MeanInterval(Document):
    """The mean of a sample of independent values, with Student's interval."""

    mean: float
    """Mean of the values; NaN without values, or if one is not finite."""
    count: int
    """Values in the sample."""
    low: float
    """Lower end of the interval of the mean; NaN for fewer than two values."""
    high: float
    """Upper end of the interval of the mean; NaN for fewer than two values."""

    @property
    def has_width(self) -> bool:
        """Whether there is an interval, and the values differ by more than rounding."""
        return self.high - self.low > 1e-9 * abs(self.mean)

    @property
    def is_from_zero(self) -> bool:
        """Whether the interval excludes zero: the sign of the mean is then more than chance."""
        return self.low > 0 or self.high < 0

    @property
    def is_of_too_few(self) -> bool:
        """Whether it is of two values and holds zero: with one degree of freedom, an interval is
        too wide for its ends to say more."""
        return self.count == 2 and not self.is_from_zero

    def within(self, least: float, most: float) -> Self:
        """Returns the interval without the part in which no true mean can lie. It keeps the mean,
        also of a metric that exceeds the range."""
        low = max(self.low, min(least, self.mean))
        return replace(self, low=low, high=min(self.high, max(most, self.mean)))


def mean_interval(values: Iterable[float], confidence: float = CONFIDENCE) -> MeanInterval:
    """Returns the mean of independent values, with Student's interval.

    Args:
        values: one per seed.
        confidence: confidence of the interval, above 0 and below 1.
    """
    # scipy.stats takes 0.5 s to import.
    from scipy import stats

    sample = [float(value) for value in values]
    count = len(sample)
    # A diverged training leaves no mean; to leave its seed out would flatter the setting.
    is_known = count > 0 and all(map(math.isfinite, sample))
    # fsum rounds once, so the order of the seeds changes no digit.
    mean = math.fsum(sample) / count if is_known else math.nan
    if not is_known or count < 2:
        return MeanInterval(mean, count, math.nan, math.nan)
    squares = math.fsum((value - mean) ** 2 for value in sample)
    variance = squares / (count - 1)
    quantile = float(stats.t.ppf((1 + confidence) / 2, count - 1))
    half = quantile * math.sqrt(variance / count)
    return MeanInterval(mean, count, mean - half, mean + half)


def paired_difference(
    values: Mapping[int, float], baseline: Mapping[int, float], confidence: float = CONFIDENCE
) -> MeanInterval:
    """Returns the mean of value - baseline over the seeds that both have, with Student's interval.

    The pairs must share everything but the compared setting: the trace as well as the seed.

    Args:
        values: results of one setting, by seed.
        baseline: results of the other setting, by seed.
        confidence: confidence of the interval, above 0 and below 1.
    """
    # A seed of only one setting forms no pair.
    common = sorted(values.keys() & baseline.keys())
    differences = [values[seed] - baseline[seed] for seed in common]
    return mean_interval(differences, confidence)


def with_error(mean: float, error: float, sign: str = "") -> str:
    """Returns a mean with its error, "0.123 ± 0.021": two significant digits of the error, and as
    many decimals of the mean. An error that is unknown or zero is left out.

    Args:
        mean: the mean.
        error: its standard error, or half the width of its interval.
        sign: "+" for a sign in front of a mean above zero too.
    """
    if not error > 0 or not math.isfinite(error):
        return f"{mean:{sign}.4f}"
    # Rounded first: 0.0996 is 0.10, with two decimals.
    power = int(f"{error:.1e}".partition("e")[2])
    decimals = max(0, 1 - power)
    return f"{mean:{sign}.{decimals}f} ± {error:.{decimals}f}"


def seeds_to_tell(difference: MeanInterval, confidence: float) -> int | None:
    """Returns how many seeds would take an interval of this confidence off zero if mean and spread
    stayed the same; None if above 1,000."""
    from scipy import stats

    counts = np.arange(2, 1001)
    halves = stats.t.ppf((1 + confidence) / 2, counts - 1) / np.sqrt(counts)
    halves *= (difference.high - difference.low) / 2 / halves[difference.count - 2]
    enough = counts[halves < abs(difference.mean)]
    return int(enough[0]) if enough.size else None


def interval_text(estimate: MeanInterval, form: str) -> str:
    """Returns a mean with half the width of its interval, as `with_error`; in a format with the
    ends of an interval that is not symmetric, or if there is none."""
    if not math.isfinite(estimate.mean):
        return "-"
    mean, half = format(estimate.mean, form), (estimate.high - estimate.low) / 2
    if not estimate.has_width:
        return mean
    if math.isclose(estimate.high - estimate.mean, half, rel_tol=1e-9):
        return with_error(estimate.mean, half, "+" if form.startswith("+") else "")
    return f"{mean} [{estimate.low:{form}}, {estimate.high:{form}}]"


def difference_text(estimate: MeanInterval, form: str) -> str:
    """Returns a difference as `interval_text`; of two seeds that leave its sign open, "too few to
    tell" in place of the interval."""
    if estimate.is_of_too_few and math.isfinite(estimate.mean):
        return f"{format(estimate.mean, form)}, too few to tell"
    return interval_text(estimate, form)
