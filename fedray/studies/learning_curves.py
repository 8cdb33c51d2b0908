"""The order of mechanisms at equal privacy, measured with models.

A trace is simulated once. Every mechanism is then given the noise multiplier at which the trace has
one common rho, by the exact sensitivity of the trace, and trains a model per seed. The trainings of
a seed share cohorts, data, initial model and held-out devices, so mechanisms are compared seed by
seed.

Mechanisms that are optimised for a participation can also be made for a wrong min-sep. They get the
noise for the same rho of the same trace: what is lost is utility, and never privacy.

    OUT/
      trace/            what all trainings share
      runs/NAME-SEED/   a trained run of each mechanism and seed
      results.json

Runs that are there are read, so a study that was interrupted goes on.
"""

import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from fedray.audit.participation import read_patterns
from fedray.audit.sensitivity import trace_sensitivity
from fedray.base.atomic import write_whole
from fedray.base.document import Document, InJson, InPlace, Key, NotInJson
from fedray.base.errors import InputError, shown
from fedray.base.part_done import PartDone
from fedray.base.result import DrawnResult
from fedray.mechanisms.accounting.calibration import noise_multiplier_for_rho
from fedray.mechanisms.accounting.events import Gaussian
from fedray.mechanisms.accounting.gdp import gaussian_epsilon
from fedray.mechanisms.accounting.limits import LEAST_NOISE_MULTIPLIER
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.mechanisms.comparison import utility
from fedray.mechanisms.optimize.design import (
    Kind,
    MechanismRequest,
    cached_mechanism,
    default_cache,
)
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import Identity
from fedray.mechanisms.strategy import Strategy
from fedray.runs.learning import train
from fedray.runs.simulation import simulate
from fedray.runtime.cluster import cluster, run_tasks
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.studies.paired import MeanInterval, mean_interval, paired_difference
from fedray.trace.reader import Trace
from fedray.trace.trained import TrainedRun
from fedray.wire.messages import Metric

ORDER: tuple[Kind, ...] = ("banded-toeplitz", "blt", "tree-full", "tree", "identity")
"""The literature's order at equal privacy, the best first."""
NO_NOISE = "no noise"
"""Name of the reference. Its noise multiplier is the least that there is, and it has no rho."""
OPTIMISED: tuple[Kind, ...] = ("banded-toeplitz", "blt")
"""Those of `ORDER` that are made for a min-sep."""
LAST_SHARE = 0.2
"""A model's final metric is the mean of its evaluations in this last share of the rounds: one
evaluation alone moves with the noise of its round."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TrainedMechanism:
    """A mechanism that models were trained with."""

    name: str
    """Its kind, and the min-sep that it was made for where that is a wrong one; or
    "no noise"."""
    kind: str
    """Kind of its strategy."""
    made_for_min_sep: int | None
    """Min-sep that it was optimised for; None where that makes no difference."""
    sensitivity: float
    """Sensitivity of the trace, at clip norm 1."""
    sensitivity_is_exact: bool
    """False: an upper bound."""
    noise_multiplier: float
    """Noise multiplier at which the trace has the common rho."""
    rms_prefix_error: float | None
    """Predicted deviation of the noise on prefix sums at that multiplier, root mean square over
    rounds, at clip norm 1; None of the reference."""


@dataclass(frozen=True, slots=True)
class Comparison(Document):
    """Two mechanisms, of which the first is expected to be no worse."""

    first: str
    """Name of the one that is expected to be better."""
    second: str
    """Name of the other."""
    gain: MeanInterval
    """By how much the first is better, over the seeds that both have; negative where it is
    worse."""

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


@dataclass(frozen=True, slots=True)
class MetricResult(Document):
    """What was found in one metric."""

    metric: InPlace[Metric]
    """Name, unit, and which values are better."""
    values: NotInJson[Mapping[str, Mapping[int, float]]]
    """The final value of each mechanism, by its name and by seed."""
    evaluation_error: float
    """Largest standard error of one evaluation; NaN if not known. It comes from the finite held-out
    data, which the trainings of a seed share."""
    order: tuple[Comparison, ...]
    """Comparisons of neighbours in the literature's order."""
    guesses: tuple[Comparison, ...]
    """Comparisons of a mechanism that was made for the trace's min-sep with one made for another;
    and of two kinds made for the same wrong one, the one of the lesser predicted error first."""

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
class LearningCurves(DrawnResult):
    """A study."""

    TABLES: ClassVar[str] = "fedray.studies.learning_page:learning_tables"
    FIGURES: ClassVar[str] = "fedray.studies.learning_page:learning_figures"

    scenario: str
    """Name of the scenario."""
    trace_digest: str
    """Digest of the trace that all trainings share."""
    participation: InPlace[MinSep]
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
    """All that models were trained with."""
    metrics: tuple[MetricResult, ...]
    """One for each metric of the task."""
    runs: NotInJson[Mapping[tuple[str, int], TrainedRun]]
    """The trained runs by the name of the mechanism and the seed."""

    def __repr__(self) -> str:
        models = len(self.mechanisms) * len(self.seeds)
        return (
            f"<LearningCurves {shown(self.scenario)}: {len(self.mechanisms)} mechanisms, "
            f"{models:,} models of {self.trace_digest[:12]}>"
        )


def study_learning(
    scenario: Scenario,
    out: str | Path,
    seeds: Sequence[int] = (1, 2, 3, 4, 5),
    guesses: Sequence[int] = (),
    placement: Placement | None = None,
    on_progress: Progress | None = None,
    order: Sequence[Kind] = ORDER,
) -> LearningCurves:
    """Trains models with every mechanism and seed on one trace, and compares them.

    Args:
        scenario: what is simulated and trained. Its own mechanism and noise multiplier say the
            rho that all mechanisms get.
        out: directory of the study; what is there already is read.
        seeds: of the trainings, at least two.
        guesses: min-seps for which the mechanisms that are optimised are made in addition.
        placement: where the trainings run: each is a task of its own, in one process.
        on_progress: hears what is done.
        order: the mechanisms, in the order in which they are expected, the best first.

    Raises:
        InputError: if seeds or guesses cannot be used, the code of the scenario is not trusted,
            or `out` holds something else.
    """
    _check(scenario, seeds, guesses)
    tell, directory = on_progress or (lambda _: None), Path(os.path.abspath(out))
    here = placement or Placement()
    with cluster(here):  # before jax is loaded, whose threads a fork does not take along
        trace = _trace(scenario, directory / "trace", here, tell)
        study = _Study(scenario, trace, tuple(order), tuple(guesses), tell)
        jobs = {
            (name, seed): _Job(
                trace.path, study.scenario_of(name, seed), directory / "runs" / _folder(name, seed)
            )
            for name, seed in itertools.product(study.strategies, seeds)
        }
        # A study that was interrupted trains only what is not there yet.
        missing = [job for job in jobs.values() if not job.is_done(trace)]
        done = len(jobs) - len(missing)
        tell(PartDone(f"{done} of {len(jobs)} models trained", done, len(jobs)))
        for count, _ in enumerate(run_tasks(_train, missing, here), done + 1):
            tell(PartDone(f"{count} of {len(jobs)} models trained", count, len(jobs)))
    # All runs are read from their files, also those that were trained just now.
    runs = {key: TrainedRun.open(job.out) for key, job in jobs.items()}
    result = study.result(runs, tuple(seeds))
    document = json.dumps(result.to_json(), indent=1) + "\n"
    write_whole(directory / "results.json", document.encode(), f"results in {str(directory)!r}")
    return result


def shipped_recipes() -> list[Path]:
    """The scenario files of this study that ship."""
    from fedray import scenarios

    return sorted(Path(scenarios.__path__[0]).resolve().glob("learning/*.toml"))


def _check(scenario: Scenario, seeds: Sequence[int], guesses: Sequence[int]) -> None:
    if len(set(seeds)) != len(seeds) or len(seeds) < 2:
        raise InputError.of(
            "seeds", list(seeds), "must be at least two, each once", "one alone has no interval"
        )
    wrong = [guess for guess in guesses if not 1 <= guess <= scenario.rounds.count]
    if wrong or len(set(guesses)) != len(guesses):
        raise InputError.of(
            "guesses",
            list(guesses),
            f"must be min-seps from 1 to rounds.count={scenario.rounds.count}, each once",
            "leave out the others",
        )
    # Trainings run the scenario's code in tasks, so trust is asked for before the first.
    scenario.demand_trust()


def _trace(scenario: Scenario, path: Path, placement: Placement, tell: Progress) -> Trace:
    if path.exists():
        return Trace.open(path)  # the trainings are held to it
    tell("simulating the trace")
    return simulate(scenario, placement, path)


class _Study:
    """The mechanisms of a study, each with the noise for the common rho."""

    def __init__(
        self,
        scenario: Scenario,
        trace: Trace,
        order: tuple[Kind, ...],
        guesses: tuple[int, ...],
        tell: Progress,
    ) -> None:
        self._scenario, self._trace, self._order = scenario, trace, order
        self._patterns = read_patterns(trace)
        self._participation = MinSep(
            self._patterns.committed_rounds,
            self._patterns.min_sep,
            self._patterns.max_participations,
        )
        privacy = scenario.privacy
        # The scenario's own mechanism and noise say which rho all mechanisms get.
        own = trace_sensitivity(privacy.mechanism, self._patterns).value
        self._rho = rho_of(Gaussian(noise_multiplier=privacy.noise_multiplier, sensitivity=own))
        self._guesses = [
            (kind, guess)
            for kind, guess in itertools.product(order, guesses)
            # Other kinds do not depend on a min-sep, and a right guess is there already.
            if kind in OPTIMISED and guess != self._participation.min_sep
        ]
        self.strategies: dict[str, Strategy] = {}
        """By name, the reference last."""
        for kind, min_sep in [*((kind, None) for kind in order), *self._guesses]:
            name = _name(kind, min_sep)
            tell(f"making {name}")
            self.strategies[name] = cached_mechanism(self._request(kind, min_sep), default_cache())
        # The reference: what the model reaches without privacy. Its mechanism does not matter,
        # because its noise is the least that a scenario may have.
        self.strategies[NO_NOISE] = Identity()
        self._mechanisms = {name: self._calibrated(name) for name in self.strategies}

    def scenario_of(self, name: str, seed: int) -> Scenario:
        """What is trained with a mechanism and a seed."""
        training, privacy = self._scenario.training, self._scenario.privacy
        noise = {
            "mechanism": self.strategies[name],
            "noise_multiplier": self._mechanisms[name].noise_multiplier,
        }
        tables = {
            # A scenario that does not train by itself is trained here all the same.
            "training": training.model_copy(update={"seed": seed, "enabled": True}),
            "privacy": privacy.model_copy(update=noise),
        }
        return self._scenario.model_copy(update=tables)

    def result(
        self, runs: Mapping[tuple[str, int], TrainedRun], seeds: tuple[int, ...]
    ) -> LearningCurves:
        """What the runs, by mechanism and seed, say."""
        delta = self._scenario.privacy.delta
        metrics = next(iter(runs.values())).task_metrics
        return LearningCurves(
            scenario=self._scenario.name,
            trace_digest=self._trace.digest,
            participation=self._participation,
            rho=self._rho,
            # A Gaussian with this mu has rho = mu^2 / 2.
            epsilon=gaussian_epsilon(math.sqrt(2.0 * self._rho), delta),
            delta=delta,
            seeds=seeds,
            mechanisms=tuple(self._mechanisms.values()),
            metrics=tuple(self._of_metric(metric, runs) for metric in metrics),
            runs=runs,
        )

    def _request(self, kind: Kind, min_sep: int | None) -> MechanismRequest:
        """None: the min-sep of the trace. The most participations are those of the trace, as far
        as a larger min-sep leaves room for them."""
        rounds, b, k = (
            self._participation.rounds,
            min_sep or self._participation.min_sep,
            self._participation.max_participations,
        )
        return MechanismRequest(kind, MinSep(rounds, b, min(k, -(-rounds // b))))

    def _calibrated(self, name: str) -> TrainedMechanism:
        strategy = self.strategies[name]
        found = trace_sensitivity(strategy, self._patterns)
        made_for = {
            **{_name(kind): self._participation.min_sep for kind in OPTIMISED},
            **{_name(kind, guess): guess for kind, guess in self._guesses},
        }
        is_noised = name != NO_NOISE
        rounds = self._participation.rounds
        return TrainedMechanism(
            name=name,
            kind=strategy.kind,
            made_for_min_sep=made_for.get(name),
            sensitivity=found.value,
            sensitivity_is_exact=found.is_exact,
            noise_multiplier=noise_multiplier_for_rho(found.value, self._rho)
            if is_noised
            else LEAST_NOISE_MULTIPLIER,
            rms_prefix_error=utility(strategy, rounds, found.value, self._rho).rms_prefix_error
            if is_noised
            else None,
        )

    def _of_metric(
        self, metric: Metric, runs: Mapping[tuple[str, int], TrainedRun]
    ) -> MetricResult:
        values: dict[str, dict[int, float]] = {}
        for (name, seed), run in runs.items():
            values.setdefault(name, {})[seed] = _final(run, metric.name)
        names = [_name(kind) for kind in self._order]
        errors = [run.last_evaluation()[metric.name].standard_error for run in runs.values()]
        return MetricResult(
            metric=metric,
            values=values,
            evaluation_error=float(np.max(errors)),
            order=tuple(
                _compared(first, second, values, metric)
                for first, second in itertools.pairwise(names)
            ),
            guesses=tuple(
                _compared(first, second, values, metric) for first, second in self._wrong_guesses()
            ),
        )

    def _wrong_guesses(self) -> Iterator[tuple[str, str]]:
        """Names of what is compared, the one that is expected to be better first: what was made
        for the truth and for a guess, and what was made for the same guess."""
        for kind, guess in self._guesses:
            yield _name(kind), _name(kind, guess)
        for one, other in itertools.combinations(self._guesses, 2):
            if one[1] == other[1]:
                first, second = sorted((_name(*one), _name(*other)), key=self._predicted)
                yield first, second

    def _predicted(self, name: str) -> float:
        error = self._mechanisms[name].rms_prefix_error
        assert error is not None  # the reference is compared with nothing
        return error


@dataclass(frozen=True, slots=True)
class _Job:
    """A training."""

    trace: Path
    scenario: Scenario
    out: Path

    def is_done(self, trace: Trace) -> bool:
        """Whether its run is there whole. Raises InputError if another is, TraceCorrupt if it is
        damaged."""
        if not self.out.exists():
            return False
        run = TrainedRun.open(self.out)
        run.verify()
        # The folder's name does not say what was trained, so both digests must fit.
        found = (run.trace_digest, run.document.get("scenario_digest"))
        if found != (trace.digest, self.scenario.digest):
            raise InputError(
                f"output {str(self.out)!r} holds a training of another scenario or trace; name a "
                "new directory for this study, or remove it first"
            )
        return True


def _train(job: _Job) -> None:
    # A training is short: without checkpoints one that was interrupted begins anew.
    here = Placement(backend="in-process", checkpoint_seconds=math.inf)
    train(job.trace, job.scenario, here, job.out, trust_code=True)  # trusted when the study began


def _final(run: TrainedRun, metric: str) -> float:
    """The mean of the evaluations in the last share of the rounds, at least of the last."""
    column = run.metrics[f"evaluation_{metric}"]
    rounds = run.document["rounds"]
    # In a short run the last share may hold no round, so the last one always counts.
    is_last = run.metrics["round"] >= min((1.0 - LAST_SHARE) * rounds, rounds - 1)
    is_evaluated = ~np.isnan(run.metrics[f"evaluation_{metric}_error"])
    return float(column[is_last & is_evaluated].mean())


def _compared(
    first: str, second: str, values: Mapping[str, Mapping[int, float]], metric: Metric
) -> Comparison:
    # So that a positive difference always means that the first is better.
    ends = (first, second) if metric.better == "higher" else (second, first)
    return Comparison(first, second, paired_difference(values[ends[0]], values[ends[1]]))


def _name(kind: str, min_sep: int | None = None) -> str:
    return kind if min_sep is None else f"{kind} for min-sep {min_sep}"


def _folder(name: str, seed: int) -> str:
    return f"{name.replace(' ', '-')}-{seed}"
