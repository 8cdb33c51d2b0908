"""The door for estimators: how a round's noised sum of updates becomes the server's step, and how
much noise that takes.

The noise of a round is measured by what one device may change of the estimate. Here that is told as
a share of what it may change of the sum, the norm of a contribution.
"""

from typing import Protocol

from fedray.messages import TrainReport
from fedray.scenario import Scenario
from fedray.scenario.weighting import ClippedDenominator, FixedDenominator, MeanWeighting


class Estimator(Protocol):
    """Of the mean update: (scale * sum + noise) / divisor.

    noise_share: of the noise that the norm of a contribution asks for.
    """

    noise_share: float

    def scale(self, report: TrainReport) -> float:
        """By what the sum of a round is multiplied, before noise is added."""
        ...

    def divisor(self, report: TrainReport) -> float:
        """By what the noised sum is divided; a function of what is no secret."""
        ...


class Mean:
    """The mean over the devices that were asked.

    Where only a sample of the cohort trains, noise of the sample's share keeps the signal-to-noise
    ratio of the full cohort, of the smallest cohort that a round may have.
    """

    def __init__(self, scenario: Scenario) -> None:
        sample = scenario.training.cohort_sample
        self.noise_share = sample / scenario.rounds.least_accepted

    def scale(self, report: TrainReport) -> float:
        """See `Estimator`."""
        return 1.0

    def divisor(self, report: TrainReport) -> float:
        """See `Estimator`. Devices that failed count: the sensitivity of the mean must not depend
        on what they computed."""
        return float(report.devices)


class Fixed:
    """A denominator q W that is the same in all rounds.

    Args:
        denominator: q W.
    """

    noise_share = FixedDenominator.noise_factor

    def __init__(self, denominator: float) -> None:
        self._denominator = denominator

    def scale(self, report: TrainReport) -> float:
        """See `Estimator`."""
        return 1.0

    def divisor(self, report: TrainReport) -> float:
        """See `Estimator`."""
        return self._denominator


class ClippedBelow:
    """The sum of the round's weights, or a least denominator q W_min.

    The weights are secret, so the division comes before the noise: the sum is multiplied by q W_min
    / max(q W_min, sum of w), and what is released is divided by q W_min.

    Args:
        least: q W_min.
    """

    noise_share = ClippedDenominator.noise_factor

    def __init__(self, least: float) -> None:
        self._least = least

    def scale(self, report: TrainReport) -> float:
        """See `Estimator`."""
        return self._least / max(self._least, report.weights)

    def divisor(self, report: TrainReport) -> float:
        """See `Estimator`."""
        return self._least


def estimator_of(scenario: Scenario) -> Estimator:
    """The estimator of a scenario's table `training.weighting`."""
    goal = scenario.rounds.report_goal
    match scenario.training.weighting:
        case MeanWeighting():
            return Mean(scenario)
        case FixedDenominator() as table:
            return Fixed(goal * table.denominator_per_device)
        case ClippedDenominator() as table:
            return ClippedBelow(goal * table.denominator_per_device)
