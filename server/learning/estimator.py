"""Estimators: from a round's noised sum of updates to the server's step, and the noise which that
    needs.

Noise is measured by the change that one device can make to the estimate. An estimator states it as
a share of the norm of a contribution, which is the change that a device can make to the sum.
"""

from typing import Protocol

from fedray.scenario import Scenario
from fedray.scenario.weighting import ClippedDenominator, FixedDenominator, MeanWeighting
from fedray.wire.messages import TrainReport


class Estimator(Protocol):
    """Estimates the mean update as (scale * sum + noise_share * noise) / divisor."""

    def noise_share(self, report: TrainReport) -> float:
        """Returns the fraction of the full noise that a round needs, from public values only."""
        ...

    def scale(self, report: TrainReport) -> float:
        """Returns the factor on the sum of a round, before noise is added."""
        ...

    def divisor(self, report: TrainReport) -> float:
        """Returns the divisor of the noised sum, from public values only."""
        ...


class Mean:
    """The mean over the devices that were asked.

    If only a sample of the cohort trains, noise in proportion to the sample keeps the
    signal-to-noise ratio of the full cohort, which is that of the round and may have more devices
    than the goal.
    """

    def noise_share(self, report: TrainReport) -> float:
        return report.sampled_share

    def scale(self, report: TrainReport) -> float:
        return 1.0

    def divisor(self, report: TrainReport) -> float:
        """See `Estimator`. Failed devices count too, because the sensitivity of the mean must not
        depend on their computation."""
        return float(report.devices)


class Fixed:
    """A denominator q W that is equal in all rounds.

    Args:
        denominator: q W.
    """

    noise_factor = FixedDenominator.noise_factor

    def __init__(self, denominator: float) -> None:
        self._denominator = denominator

    def noise_share(self, report: TrainReport) -> float:
        """See `Estimator`; constant, because the number of devices is secret."""
        return self.noise_factor

    def scale(self, report: TrainReport) -> float:
        return 1.0

    def divisor(self, report: TrainReport) -> float:
        # f_f of McMahan et al. 2018: one device changes it by at most S / (q W) (Lemma 1).
        return self._denominator


class ClippedBelow(Fixed):
    """Divides by the sum of the round's weights, or by a least denominator q W_min.

    The weights are secret, so the division comes before the noise: the sum is multiplied by q W_min
    / max(q W_min, sum of w), and the released sum is divided by q W_min.

    Args:
        denominator: q W_min.
    """

    noise_factor = ClippedDenominator.noise_factor

    def scale(self, report: TrainReport) -> float:
        # f_c of McMahan et al. 2018, whose Lemma 1 bounds its sensitivity by 2 S / (q W_min).
        # The factor is at most 1, so that no contribution grows before noise is added.
        return self._denominator / max(self._denominator, report.weights)


def estimator_of(scenario: Scenario) -> Estimator:
    """Returns the estimator for a scenario's table `training.weighting`."""
    goal = scenario.rounds.report_goal
    match scenario.training.weighting:
        case MeanWeighting():
            return Mean()
        case FixedDenominator(mean_weight=weight):
            return Fixed(goal * weight)
        case ClippedDenominator(least_mean_weight=weight):
            return ClippedBelow(goal * weight)
