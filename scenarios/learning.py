"""The order of mechanisms at equal privacy, measured with models.

A trace is simulated once. Every mechanism is then given the noise multiplier at which the trace has
one common rho, by the exact sensitivity of the trace, and trains a model per seed. The trainings of
a seed share cohorts, data, initial model and held-out devices, so mechanisms are compared seed by
seed.

Mechanisms that are optimised can also be made for a wrong min-sep, or for another workload than
prefix sums. They get the noise for the same rho of the same trace: a wrong guess costs utility,
never privacy. Which workload's error predicts what models learn is measured by its rank correlation
with the final metric.

    OUT/NAME/
      trace/            shared by all trainings
      mechanisms/       the optimised mechanisms
      runs/NAME-SEED/   a trained run of each mechanism and seed

An interrupted study continues from the files that are there.
"""

import itertools
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

import fedray
from fedray import InputError
from fedray.mechanisms import Workload
from fedray.scenario import NoNoise
from .learning_page import reproduced
from .learning_results import (
    NO_NOISE,
    Comparison,
    LearningCurves,
    MetricResult,
    Predictor,
    TrainedMechanism,
)
from .reproduction import (
    Float64Array,
    Metric,
    Progress,
    Reproduced,
    Reproduction,
    Table,
    mean_interval,
    paired_difference,
)

Kind = Literal["banded-toeplitz", "blt", "tree-full", "tree", "identity"]
RECIPES = Path(__file__).resolve().parent / "learning"
"""Folder of the scenarios that ship."""
PLAYS = RECIPES / "with_data" / "shakespeare.toml"
"""Scenario that needs plays."""
ORDER: tuple[Kind, ...] = ("banded-toeplitz", "blt", "tree-full", "tree", "identity")
"""The literature's order at equal privacy, the best first."""
OPTIMISED: tuple[Kind, ...] = ("banded-toeplitz", "blt")
"""Kinds that are made for a min-sep and a workload."""
WORKLOADS = (
    "prefix",
    "momentum=0.9",
    "decay=0.95",
    *(f"momentum=0.9,decay={share}" for share in (0.9, 0.93, 0.95, 0.97, 0.99)),
)
"""Workloads whose errors are compared; the scenarios' servers have momentum 0.9."""
LAST_SHARE = 0.2
"""A model's final metric is the mean of its evaluations in this last share of the rounds: a
single evaluation moves with the noise of its round."""


def run(
    scenario: Sequence[Path] = (),
    seeds: Annotated[int, "Models of each mechanism."] = 5,
    guesses: Annotated[
        str | None,
        "Wrong min-seps, comma-separated, for which the optimised mechanisms are made too.",
    ] = None,
    data: Annotated[
        Path | None, "Folder of plays (*.txt), or a Parquet file of roles, for one more scenario."
    ] = None,
    workload: Annotated[
        str | None,
        "Workload for which the optimised mechanisms are made too, such as "
        "momentum=0.9,decay=0.95.",
    ] = None,
    overrides: Sequence[str] = (),
    placement: "fedray.Placement | None" = None,
    out: Path | None = None,
    on_progress: Progress = lambda _: None,
) -> Iterator[Reproduced]:
    """Trains models with every mechanism, for one scenario after another.

    The seeds follow `training.seed`, which is 1 by default here.

    Args:
        scenario: scenario files; empty for those in `learning/`.
        seeds: number of models of each mechanism, at least two.
        guesses: min-seps, comma-separated.
        data: plays, by role; without them the shipped scenario that needs them is left out.
        workload: text of a workload.
        overrides: keys set in every scenario, as "table.key=value".
        placement: place of the trainings.
        out: directory with a folder per scenario; None keeps nothing.
        on_progress: listener.

    Raises:
        InputError: if seeds or guesses are impossible, or two scenarios have the same name.
    """
    min_seps = _min_seps_of(guesses)
    own = Workload.parse(workload) if workload is not None else None
    documents: list[dict[str, Any]] = []
    for each, numbers, place in settings_of(scenario, data, seeds, overrides, out):
        found = study_learning(each, place, numbers, min_seps, placement, on_progress, workload=own)
        documents.append(found.to_json())
        yield reproduced(found, documents, _baselines(each, data))


def settings_of(
    files: Sequence[Path],
    data: Path | None,
    seeds: int,
    overrides: Sequence[str],
    out: Path | None,
) -> Iterator[tuple["fedray.Scenario", range, Path]]:
    """Yields each scenario of a study with the seeds of its trainings and its directory.

    The arguments are those of `run`. Raises InputError.
    """
    # Models that are not kept are needed only until they are compared.
    with tempfile.TemporaryDirectory(prefix="fedray-learning-") as folder:
        directory = Path(os.path.abspath(out or folder))
        for each in _scenarios_of(files, data, directory, overrides):
            yield each, _seeds_of(each, seeds), directory / each.name


def _scenarios_of(
    files: Sequence[Path], data: Path | None, directory: Path, overrides: Sequence[str]
) -> list["fedray.Scenario"]:
    """Reads the scenarios of a study.

    Args:
        files: scenario files; empty for those in `learning/`.
        data: Parquet file of plays, for one more scenario; None for none.
        directory: directory of the study, where plays are split.
        overrides: keys set in every scenario.

    Raises:
        InputError: two scenarios have the same name.
    """
    read = [fedray.Scenario.from_toml(file, overrides) for file in files or shipped_recipes()]
    if data is not None:
        read.append(_of_plays(data, directory, overrides))
    names = [each.name for each in read]
    if len(set(names)) < len(names):
        raise InputError.of(
            "scenario",
            names,
            "must have different names, because each scenario's folder is named after it",
            "rename one of them",
        )
    return read


def _seeds_of(scenario: "fedray.Scenario", count: int) -> range:
    """Returns seeds of trainings, from `training.seed` or 1. Raises InputError."""
    if not 2 <= count <= 1000:
        raise InputError.of("seeds", count, "must be from 2 to 1000", "one seed gives no interval")
    first = scenario.training.seed or 1
    return range(first, first + count)


def _of_plays(data: Path, directory: Path, overrides: Sequence[str]) -> "fedray.Scenario":
    """Returns the scenario on roles of plays, of which a tenth are held out."""
    from .shakespeare import roles_of, write_split

    folder = directory / PLAYS.stem / "data"
    write_split(roles_of(data, tuning=False), folder)
    return fedray.Scenario.from_toml(PLAYS, [f"data.file={folder}", *overrides])


def study_learning(
    scenario: "fedray.Scenario",
    out: str | Path,
    seeds: Sequence[int] = (1, 2, 3, 4, 5),
    guesses: Sequence[int] = (),
    placement: "fedray.Placement | None" = None,
    on_progress: Progress = lambda _: None,
    order: Sequence[Kind] = ORDER,
    workload: Workload | None = None,
) -> LearningCurves:
    """Trains models with every mechanism and seed on one trace, and compares them.

    Args:
        scenario: scenario to simulate and train. Its own mechanism and noise multiplier determine
            the rho that all mechanisms get.
        out: directory of the study; results that are there are read.
        seeds: seeds of the trainings, at least two.
        guesses: min-seps for which the optimised mechanisms are made in addition.
        placement: place of the trainings, each a task in one process.
        on_progress: listener.
        order: mechanisms in the order in which they are expected, the best first.
        workload: workload for which the optimised mechanisms are made in addition.

    Raises:
        InputError: if seeds or guesses cannot be used, the code of the scenario is not trusted,
            or `out` holds something else.
    """
    _check(scenario, seeds, guesses)
    directory = Path(os.path.abspath(out))
    trace = trace_of(scenario, directory / "trace", placement, on_progress)

    def make(requests: Requests) -> Strategies:
        on_progress("making mechanisms")
        return made(requests, directory / "mechanisms", placement)

    study = Study(scenario, trace, tuple(order), tuple(guesses), make, workload)
    # A study that was interrupted trains only the missing models.
    trainings = {
        key: (study.scenario_of(*key), directory / "runs" / _folder(*key))
        for key in itertools.product(study.mechanisms, seeds)
    }
    runs = fedray.train_many(trace, trainings, placement, on_progress)
    return study.result(runs, tuple(seeds))


def _baselines(scenario: "fedray.Scenario", data: Path | None) -> "list[Table]":
    """Returns the accuracy of n-grams beside models of the characters of plays."""
    from .shakespeare import ngram_table, ngrams_of, roles_of

    if data is None or scenario.name != PLAYS.stem:
        return []
    # Only texts have a length, and plays are texts.
    texts: Any = scenario.data
    examples = scenario.training.evaluation_examples
    return [ngram_table(ngrams_of(roles_of(data, tuning=False), examples, texts.length))]


def shipped_recipes() -> list[Path]:
    """Returns the scenario files of this study that ship."""
    return sorted(RECIPES.glob("*.toml"))


def _min_seps_of(guesses: str | None) -> list[int]:
    try:
        return [int(each) for each in guesses.split(",")] if guesses is not None else []
    except ValueError:
        raise InputError.of(
            "guesses", guesses, "must be comma-separated min-seps, such as 13,52"
        ) from None


def _check(scenario: "fedray.Scenario", seeds: Sequence[int], guesses: Sequence[int]) -> None:
    if len(set(seeds)) != len(seeds) or len(seeds) < 2:
        raise InputError.of(
            "seeds", list(seeds), "must be at least two, each once", "one seed gives no interval"
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


def trace_of(
    scenario: "fedray.Scenario",
    path: Path,
    placement: "fedray.Placement | None",
    on_progress: Progress,
) -> "fedray.Trace":
    """Reads the trace of a study, or simulates it."""
    if path.exists():
        return fedray.Trace.open(path)  # the trainings are checked against it
    on_progress("simulating the trace")
    return fedray.simulate(scenario, placement, path)


Requests = Mapping[str, "fedray.MechanismRequest"]
Strategies = dict[str, "fedray.Strategy"]


def made(requests: Requests, directory: Path, placement: "fedray.Placement | None") -> Strategies:
    """Optimises mechanisms in parallel and keeps each in a file, so that a study that is continued
    trains with the same ones."""
    directory.mkdir(exist_ok=True)
    files = {name: directory / f"{name.replace(' ', '-')}.json" for name in requests}
    missing = [name for name, file in files.items() if not file.exists()]
    wanted = [requests[name] for name in missing]
    for place, strategy in fedray.run_jobs(fedray.optimize_mechanism, wanted, placement):
        fedray.write_strategy(strategy, files[missing[place]])
    return {name: fedray.read_strategy(file) for name, file in files.items()}


class Study:
    """Mechanisms of a study, each with the noise for the common rho."""

    def __init__(
        self,
        scenario: "fedray.Scenario",
        trace: "fedray.Trace",
        order: tuple[Kind, ...],
        guesses: tuple[int, ...],
        make: Callable[[Requests], Strategies],
        workload: Workload | None = None,
    ) -> None:
        self._scenario, self._trace, self._order = scenario, trace, order
        # The scenario's own mechanism and noise determine the rho of all mechanisms.
        audit = fedray.audit_trace(trace, scenario=scenario)
        # If no device came twice, rounds of one device are as far apart as the run is long.
        rounds = trace.committed_rounds
        b = audit.min_sep or rounds
        self._participation = fedray.MinSep(rounds, b, audit.max_participations)
        own = audit.mechanisms[0].observed if audit.mechanisms else None
        if own is None or own.rho is None or own.epsilon is None:
            reason = audit.no_guarantee if own is None else own.reason
            raise InputError(
                f"scenario {scenario.name!r} has no rho on its trace ({reason}); let the server "
                "add the noise, and use rounds that are not Poisson samples"
            )
        self._rho, self._epsilon = own.rho, own.epsilon
        self._guesses: list[tuple[Kind, int]] = [
            (kind, guess)
            for kind, guess in itertools.product(order, guesses)
            # Other kinds do not depend on a min-sep, and a correct guess is there already.
            if kind in OPTIMISED and guess != b
        ]
        made_for: list[tuple[Kind, int | Workload]] = [*self._guesses]
        if workload is not None:
            made_for.extend((kind, workload) for kind in order if kind in OPTIMISED)
        self._for_workload = [each for each in made_for if each[1] == workload]
        wanted = {_name(kind): self._request(kind, b) for kind in order}
        self._requests = wanted | {_name(*each): self._request(*each) for each in made_for}
        self._strategies = make(self._requests)
        self.mechanisms = {name: self._calibrated(name) for name in self._requests}
        """Mechanisms by name, the reference last."""
        self.mechanisms[NO_NOISE] = TrainedMechanism(NO_NOISE, "none", None, 0.0, True, 0.0, {})

    def scenario_of(self, name: str, seed: int) -> "fedray.Scenario":
        """Returns the scenario of the training with a mechanism and a seed."""
        training, privacy = self._scenario.training, self._scenario.privacy
        noise: dict[str, Any] = {"mechanism": NoNoise()}
        if name != NO_NOISE:
            noise_multiplier = self.mechanisms[name].noise_multiplier
            noise = {"mechanism": self._strategies[name], "noise_multiplier": noise_multiplier}
        tables = {
            # A scenario that does not train by itself is trained here.
            "training": training.model_copy(update={"seed": seed, "enabled": True}),
            "privacy": privacy.model_copy(update=noise),
        }
        return self._scenario.model_copy(update=tables)

    def result(
        self, runs: "Mapping[tuple[str, int], fedray.TrainedRun]", seeds: tuple[int, ...]
    ) -> LearningCurves:
        """Compares runs, by mechanism and seed."""
        delta = self._scenario.privacy.delta
        metrics = next(iter(runs.values())).task_metrics
        return LearningCurves(
            scenario=self._scenario.name,
            trace_digest=self._trace.digest,
            participation=self._participation,
            rho=self._rho,
            epsilon=self._epsilon,
            delta=delta,
            seeds=seeds,
            mechanisms=tuple(self.mechanisms.values()),
            metrics=tuple(self._of_metric(metric, runs) for metric in metrics),
            runs=runs,
        )

    def _request(self, kind: Kind, made_for: int | Workload) -> "fedray.MechanismRequest":
        """Returns the request for a min-sep, with as many of the trace's participations as fit, or
        for the trace's own and a workload."""
        own, workload = self._participation, Workload()
        b = made_for
        if isinstance(b, Workload):
            b, workload = own.min_sep, b
        k = min(own.max_participations, -(-own.rounds // b))
        return fedray.MechanismRequest(kind, fedray.MinSep(own.rounds, b, k), workload=workload)

    def _calibrated(self, name: str) -> TrainedMechanism:
        strategy, request = self._strategies[name], self._requests[name]
        found = fedray.calibrate_trace(self._trace, rho=self._rho, mechanism=strategy).observed
        sensitivity = found.guarantee.sensitivity
        # The patterns of a trace are known, and so is its sensitivity.
        assert sensitivity is not None
        assert found.noise_multiplier is not None
        setting = strategy, self._participation.rounds, sensitivity.value, self._rho
        errors = {
            each: fedray.utility(*setting, workload=each).rms_prefix_error for each in WORKLOADS
        }
        is_made = request.kind in OPTIMISED
        return TrainedMechanism(
            name=name,
            kind=strategy.kind,
            made_for_min_sep=request.participation.min_sep if is_made else None,
            sensitivity=sensitivity.value,
            sensitivity_is_exact=sensitivity.is_exact,
            noise_multiplier=found.noise_multiplier,
            errors=errors,
            made_for_workload=None if request.workload == Workload() else str(request.workload),
        )

    def _of_metric(
        self, metric: Metric, runs: "Mapping[tuple[str, int], fedray.TrainedRun]"
    ) -> MetricResult:
        values: dict[str, dict[int, float]] = {}
        for (name, seed), run in runs.items():
            values.setdefault(name, {})[seed] = final_value(run, metric.name)
        names = [_name(kind) for kind in self._order]
        errors = [run.last_evaluation()[metric.name].standard_error for run in runs.values()]
        workloads = [
            _compared(_name(*each), _name(each[0]), values, metric) for each in self._for_workload
        ]
        if workloads:
            workloads.append(_mean_over_kinds(values, metric, self._for_workload))
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
            predictors=tuple(_predictors(list(self.mechanisms.values()), values, metric)),
            workloads=tuple(workloads),
        )

    def _wrong_guesses(self) -> Iterator[tuple[str, str]]:
        """Yields the names of two mechanisms to compare, the one expected to be better first: one
        made for the truth and one for a guess, or both for the same guess."""
        for kind, guess in self._guesses:
            yield _name(kind), _name(kind, guess)
        for one, other in itertools.combinations(self._guesses, 2):
            if one[1] == other[1]:
                first, second = sorted((_name(*one), _name(*other)), key=self._predicted)
                yield first, second

    def _predicted(self, name: str) -> float:
        return self.mechanisms[name].errors["prefix"]


def final_value(run: "fedray.TrainedRun", metric: str) -> float:
    """Returns the mean of the evaluations in the last share of the rounds, or at least the last
    one."""
    column = run.metrics[f"evaluation_{metric}"]
    rounds = run.document["rounds"]
    # In a short run the last share may contain no round, so the last one always counts.
    is_last = run.metrics["round"] >= min((1.0 - LAST_SHARE) * rounds, rounds - 1)
    is_evaluated = ~np.isnan(run.metrics[f"evaluation_{metric}_error"])
    return float(column[is_last & is_evaluated].mean())


def _compared(
    first: str, second: str, values: Mapping[str, Mapping[int, float]], metric: Metric
) -> Comparison:
    # So that a positive difference always means that the first is better.
    ends = (first, second) if metric.better == "higher" else (second, first)
    return Comparison(first, second, paired_difference(values[ends[0]], values[ends[1]]))


def _mean_over_kinds(
    values: Mapping[str, Mapping[int, float]],
    metric: Metric,
    made_for: Sequence[tuple[Kind, int | Workload]],
) -> Comparison:
    """Compares mechanisms made for a workload with those for prefix sums, as means over kinds."""

    def mean(names: Sequence[str]) -> dict[int, float]:
        seeds = values[names[0]]
        return {
            seed: math.fsum(values[name][seed] for name in names) / len(names) for seed in seeds
        }

    workload = f"mean of kinds for {made_for[0][1]}"
    means = {
        workload: mean([_name(*each) for each in made_for]),
        "for prefix": mean([_name(kind) for kind, _ in made_for]),
    }
    return _compared(workload, "for prefix", means, metric)


def _predictors(
    mechanisms: Sequence[TrainedMechanism],
    values: Mapping[str, Mapping[int, float]],
    metric: Metric,
) -> Iterator[Predictor]:
    """Yields how well the error of each workload predicts a metric."""
    noised = [each for each in mechanisms if each.errors]
    sign = -1.0 if metric.better == "higher" else 1.0
    seeds = list(values[noised[0].name])
    finals = np.array([[values[each.name][seed] for seed in seeds] for each in noised])
    prefix: dict[int, float] = {}
    for workload in WORKLOADS:
        errors = np.array([each.errors[workload] for each in noised])
        by_seed = {
            seed: sign * _rank_correlation(errors, finals[:, place])
            for place, seed in enumerate(seeds)
        }
        prefix = prefix or by_seed
        means = finals.mean(axis=1)
        residual = math.nan
        # A diverged training has no final value, and the line none either.
        if np.isfinite(means).all():
            line = np.polynomial.Polynomial.fit(np.log(errors), means, 1)
            residual = float(np.sqrt(np.mean((means - line(np.log(errors))) ** 2)))
        yield Predictor(
            workload,
            mean_interval(by_seed.values()),
            paired_difference(by_seed, prefix),
            residual,
        )


def _rank_correlation(x: Float64Array, y: Float64Array) -> float:
    # scipy.stats takes 0.5 s to import.
    from scipy import stats

    return float(np.corrcoef(stats.rankdata(x), stats.rankdata(y))[0, 1])


def _name(kind: str, made_for: int | Workload | None = None) -> str:
    if made_for is None:
        return kind
    return f"{kind} for {'min-sep ' if isinstance(made_for, int) else ''}{made_for}"


def _folder(name: str, seed: int) -> str:
    return f"{name.replace(' ', '-')}-{seed}"


REPRODUCTION = Reproduction(
    "The order of mechanisms at equal privacy, by models that are trained with each.",
    run,
    has_figures=True,
    is_resumable=True,
)
