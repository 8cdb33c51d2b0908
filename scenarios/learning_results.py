"""Results of the learning study: what is measured of each mechanism, and how two compare."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple, TypedDict

import fedray
from .reproduction import (
    Document,
    InJson,
    InPlace,
    Key,
    MeanInterval,
    Metric,
    NotInJson,
    mean_interval,
)

NO_NOISE = "no noise"
"""Name of the reference, which has no rho."""


@dataclass(frozen=True, slots=True)
class TrainedMechanism:
    """A mechanism with which models were trained."""

    name: str
    """Its kind, with the wrong min-sep or the workload that it was made for; or "no noise"."""
    kind: str
    """Kind of its strategy."""
    made_for_min_sep: int | None
    """Min-sep that it was optimised for; None if that makes no difference."""
    sensitivity: float
    """Sensitivity of the trace, at clip norm 1."""
    sensitivity_is_exact: bool
    """Whether the sensitivity is exact; False marks an upper bound."""
    noise_multiplier: float
    """Noise multiplier at which the trace has the common rho."""
    errors: Mapping[str, float]
    """Predicted standard deviation of the noise at that multiplier, by workload: root mean square
    over rounds, at clip norm 1; empty for the reference."""
    made_for_workload: str | None = None
    """Workload that it was optimised for, unless that is prefix sums."""


@dataclass(frozen=True, slots=True)
class Comparison(Document):
    """Two mechanisms, the first of which is expected to be no worse."""

    first: str
    """Name of the mechanism that is expected to be better."""
    second: str
    """Name of the other mechanism."""
    gain: MeanInterval
    """How much better the first is, over the seeds that both have; negative for a worse one."""

    @property
    def verdict(self) -> InJson[str]:
        """ "confirmed" or "reversed" where the interval does not hold zero; else "not decided"."""
        if not self.gain.is_from_zero:
            return "not decided"
        return "confirmed" if self.gain.mean > 0 else "reversed"


class FinalValues(NamedTuple):
    """Final values of one mechanism in one metric."""

    values: Mapping[int, float]
    """The final value by seed; null if it is not finite."""
    mean: InPlace[MeanInterval]


class Predictor(NamedTuple):
    """How well the error of a workload predicts a metric at equal privacy."""

    workload: str
    """The workload, as `fedray mechanism --workload` takes it."""
    rank_correlation: MeanInterval
    """Spearman's correlation over the mechanisms, the mean over seeds; 1 if the mechanism of the
    lesser error is always the better."""
    over_prefix: MeanInterval
    """Excess over the correlation of prefix sums, paired by seed."""
    residual: float
    """Root mean square distance of the mechanisms' means from their least-squares line over the
    logarithm of the error, in units of the metric."""


@dataclass(frozen=True, slots=True)
class MetricResult(Document):
    """Result in one metric."""

    metric: InPlace[Metric]
    """Name, unit, and which values are better."""
    values: NotInJson[Mapping[str, Mapping[int, float]]]
    """The final value of each mechanism, by its name and by seed."""
    evaluation_error: float
    """Largest standard error of one evaluation; NaN if unknown. It is due to the finite held-out
    data, which the trainings of a seed share."""
    order: tuple[Comparison, ...]
    """Comparisons of neighbours in the literature's order."""
    guesses: tuple[Comparison, ...]
    """Comparisons of a mechanism made for the trace's min-sep with one made for another; and of two
    kinds made for the same wrong min-sep, the one with the smaller predicted error first."""
    predictors: tuple[Predictor, ...]
    """One for each compared workload."""
    workloads: tuple[Comparison, ...] = ()
    """Comparisons of a mechanism made for the workload of the study with one made for prefix sums;
    the last is their mean over kinds."""

    @property
    def finals(
        self,
    ) -> Annotated[dict[Annotated[str, "mechanism"], FinalValues], Key("mechanisms")]:
        """The final values of each mechanism, and their mean over the seeds."""
        return {
            name: FinalValues(by_seed, mean_interval(by_seed.values()))
            for name, by_seed in self.values.items()
        }


@dataclass(frozen=True, slots=True)
class LearningCurves(Document):
    """A study of one scenario."""

    scenario: str
    """Name of the scenario."""
    trace_digest: str
    """Digest of the trace that all trainings share."""
    participation: InPlace["fedray.MinSep"]
    """(n, b, k) of the trace."""
    rho: float
    """The common rho (zCDP) of this trace."""
    epsilon: float
    """Epsilon of that rho at delta."""
    delta: float
    """delta of epsilon."""
    seeds: tuple[int, ...]
    """`training.seed` of each training of a mechanism."""
    mechanisms: tuple[TrainedMechanism, ...]
    """Mechanisms with which models were trained."""
    metrics: tuple[MetricResult, ...]
    """One for each metric of the task."""
    runs: NotInJson["Mapping[tuple[str, int], fedray.TrainedRun]"]
    """The trained runs by the name of the mechanism and the seed."""


class LearningStudies(TypedDict):
    """`fedray reproduce learning`."""

    studies: list[LearningCurves]
    """A study per scenario."""
