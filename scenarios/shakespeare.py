"""The published Shakespeare benchmark: federated optimisers on a model of the next character.

Reddi et al. 2021 (Adaptive Federated Optimization, section 5) train a two-layer LSTM on ten roles a
round for 1,200 rounds, without noise. All trainings here share the rounds of one trace. Roles
that never train measure the accuracy; the paper measures it on other lines of the training roles.

    OUT/data/         the roles, split into those that train and those that are held out
    OUT/trace/        ten roles a round, the same for all optimisers
    OUT/runs/NAME/    a trained run of each optimiser

An interrupted study continues from the files that are there.
"""

import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import fedray
from fedray import InputError
from .plays import examples_of
from .reproduction import (
    CheckpointError,
    Document,
    Figure,
    MetricLine,
    Option,
    Reproduced,
    Reproduction,
    Request,
    Series,
    StepProgress,
    Subject,
    Table,
    in_steps,
    metric_curve,
    trace_in,
    with_error,
)

PUBLISHED = 0.569, 0.575
"""Least and largest accuracy of the paper's optimisers (Table 1)."""
AGREES_FROM = 0.55
"""Accuracy from which the best optimiser agrees with the paper, on other roles than the paper's."""
LAST_ROUNDS = 100
"""A model's accuracy is the mean of its evaluations in the last rounds, as in the paper."""
LENGTH, EVALUATED = 80, 64
"""Characters of an example, most examples of a held-out role."""
SHARES = 10
"""One in this many roles is held out."""

# Best learning rates of the paper, from the parameter study in its published code; epsilon is tau.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "fedavg": {"kind": "sgd", "momentum": 0.0, "learning_rate": 1.0},
    "fedavgm": {"kind": "sgd", "momentum": 0.9, "learning_rate": 10**-0.5},
    "fedadagrad": {"kind": "adagrad", "beta1": 0.0, "learning_rate": 10**-0.5, "epsilon": 0.1},
    "fedadam": {"kind": "adam", "learning_rate": 0.01, "epsilon": 1e-3},
    "fedyogi": {"kind": "yogi", "learning_rate": 0.01, "epsilon": 1e-3},
}
"""Table `training.server` by the name of the optimiser."""
# Every device is there at all times and never fails: the paper draws ten of all roles.
SETTING: dict[str, Any] = {
    "name": "shakespeare",
    "seed": 1,
    "availability": {"model": "always_on"},
    "participation": {"timer_hours": 0.0},
    "latency": {"failure_probability": 0.0},
    "rounds": {"report_goal": 10, "over_selection": 1.0, "report_timeout_minutes": 10_000.0},
    "privacy": {"mechanism": {"kind": "none"}, "clipping": {"kind": "none"}},
}
DATA = {"kind": "parquet", "tokens": "text", "unit": "character", "vocabulary": 86}
MODEL = {"kind": "keyboard_lstm", "cell": "lstm", "layers": 2, "hidden": 256, "embedding": 8}
TRAINING: dict[str, Any] = {
    "cohort_sample": 10,
    "evaluate_every": 20,
    "evaluation_devices": 100_000,
    "evaluation_examples": EVALUATED,
    "task": {**MODEL, "projected": False},
    "client": {"learning_rate": 1.0, "batch_size": 4, "epochs": 1.0},
}


class Roles(NamedTuple):
    """Examples by role, for training and held out."""

    trained: Mapping[str, list[str]]
    held_out: Mapping[str, list[str]]


class Model(NamedTuple):
    """A trained model."""

    optimizer: str
    """Name in the paper, in small letters."""
    local_rate: float
    """Learning rate of devices."""
    server_rate: float
    """Learning rate of the server."""
    rounds: int
    """Rounds that were trained."""
    accuracy: float
    """Mean accuracy of the evaluations in the last rounds, on held-out roles."""
    standard_error: float
    """Standard error of the last evaluation; the held-out roles are its sample."""
    seconds_per_round: float | None
    """Median seconds of a round on the machine that trained."""


@dataclass(frozen=True, slots=True)
class Study(Document):
    """Optimisers beside the paper."""

    models: tuple[Model, ...]
    """Models, the best first."""
    roles: int
    """Roles that train."""
    held_out_roles: int
    """Roles that are held out."""
    published: tuple[float, float] = PUBLISHED
    """Least and largest accuracy in the paper."""


def run(
    request: Request, *, data: Path | None, rounds: int, optimizers: str
) -> Iterator[Reproduced]:
    """Trains a model with every optimiser.

    Raises InputError for an unknown optimiser, and for data that is missing or has few roles.
    """
    names = [each.strip() for each in optimizers.split(",")]
    for name in names:
        if name not in OPTIMIZERS:
            rule = f"must be among {', '.join(OPTIMIZERS)}"
            raise InputError.of("optimizers", name, rule, "correct it")
    if data is None:
        raise InputError("data is missing: name a folder of plays, with a text file for each")
    with tempfile.TemporaryDirectory(prefix="fedray-shakespeare-") as folder:
        directory = Path(os.path.abspath(request.out or folder))
        roles = roles_of(data)
        write_split(roles, directory / "data")
        study = Study((), len(roles.trained), len(roles.held_out))
        runs: dict[str, fedray.TrainedRun] = {}
        for name, tell in in_steps(
            request,
            names,
            name=lambda name: name,
            # A training that an earlier study finished is only read.
            cost=lambda name: not (directory / "runs" / name).exists(),
        ):
            keys = request.overrides
            scenario = scenario_of(directory / "data", roles.trained, rounds, name, keys)
            runs[name] = _trained(scenario, directory, name, request, tell)
            models = [*study.models, _model_of(name, scenario, runs[name])]
            ranked = sorted(models, key=lambda each: -each.accuracy)
            study = replace(study, models=tuple(ranked))
            yield _reproduced(study, runs)


def roles_of(data: Path) -> Roles:
    """Reads roles, and holds out one in SHARES by the digest of its name.

    Args:
        data: folder of plays, or Parquet file with the columns `client` and `text`.
    """
    trained: dict[str, list[str]] = {}
    held_out: dict[str, list[str]] = {}
    for role, text in examples_of(data) if data.is_dir() else _rows_of(data):
        # A digest, so that a role is held out whatever other roles the data has.
        digest = hashlib.sha256(role.encode()).digest()
        is_held_out = int.from_bytes(digest[:8], "big") % SHARES == 0
        (held_out if is_held_out else trained).setdefault(role, []).append(text)
    if not held_out or not trained:
        raise InputError(f"data {str(data)!r} has too few roles to hold some out; add plays")
    return Roles(trained, held_out)


def _rows_of(file: Path) -> list[tuple[str, str]]:
    try:
        rows = pq.read_table(file, columns=["client", "text"]).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"data {str(file)!r} cannot be read ({error}); name its file") from None
    return [(row["client"], row["text"]) for row in rows]


def write_split(roles: Roles, folder: Path) -> None:
    """Writes a Parquet file of each split into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, texts in (("train", roles.trained), ("test", roles.held_out)):
        rows = [{"client": role, "text": text} for role, own in texts.items() for text in own]
        # The same rows give the same bytes, so a study that continues finds its own data.
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{split}-00000-of-00001.parquet")


def scenario_of(
    folder: Path,
    roles: Mapping[str, Sequence[str]],
    rounds: int,
    optimizer: str,
    overrides: Sequence[str] = (),
) -> "fedray.Scenario":
    """Scenario of a training.

    Args:
        folder: folder of the split data.
        roles: examples of the roles that train; each role is a device.
        rounds: rounds to train.
        optimizer: key of OPTIMIZERS.
        overrides: keys to set.
    """
    # The mean by examples, as in the paper's code: the largest role has weight 1.
    largest = max(map(len, roles.values()))
    weighting = {"kind": "clipped", "example_cap": largest, "least_mean_weight": 1e-6}
    server = OPTIMIZERS[optimizer]
    tables = {
        **SETTING,
        "population": {"devices": len(roles)},
        "rounds": {**SETTING["rounds"], "count": rounds},
        "data": {**DATA, "file": str(folder), "length": LENGTH},
        "training": {**TRAINING, "weighting": weighting, "server": server},
    }
    return fedray.Scenario.from_tables(tables).with_overrides(*overrides)


def _trained(
    scenario: "fedray.Scenario",
    directory: Path,
    name: str,
    request: Request,
    tell: StepProgress,
) -> "fedray.TrainedRun":
    """Reads the run of an optimiser, continues its training, or begins it."""
    out = directory / "runs" / name
    trace = trace_in(directory / "trace", scenario, request)
    if out.exists():
        trained = fedray.TrainedRun.open(out)
        if trained.document["scenario_digest"] != scenario.digest:
            raise InputError(
                f"output {str(out)!r} holds a training of another scenario; name another output"
            )
        return trained
    out.parent.mkdir(exist_ok=True)

    def show(progress: Any) -> None:
        # Other progress than that of rounds has no such number.
        if (done := getattr(progress, "trained", None)) is not None:
            tell.of_rounds(done, scenario.rounds.count)

    try:
        return fedray.train(trace, scenario, request.placement, out, show, is_resumed=True)
    except CheckpointError:
        return fedray.train(trace, scenario, request.placement, out, show)


def _model_of(name: str, scenario: "fedray.Scenario", trained: "fedray.TrainedRun") -> Model:
    training, columns = scenario.training, trained.metrics
    accuracies, rounds = columns["evaluation_accuracy"], scenario.rounds.count
    is_last = columns["round"] >= min(rounds - LAST_ROUNDS, rounds - 1)
    return Model(
        name,
        training.client.learning_rate,
        training.server.learning_rate,
        rounds,
        float(np.nanmean(accuracies[is_last])),
        float(columns["evaluation_accuracy_error"][-1]),
        trained.seconds_per_round,
    )


def _reproduced(study: Study, runs: "Mapping[str, fedray.TrainedRun]") -> Reproduced:
    best = study.models[0]
    low, high = (f"{100 * each:.1f}" for each in PUBLISHED)
    verdict = (
        f"{best.optimizer} predicts {100 * best.accuracy:.1f} % of characters after "
        f"{best.rounds:,} rounds; the paper's optimisers reach {low} to {high} %."
    )
    note = (
        f"Accuracy is the mean of the evaluations in the last {LAST_ROUNDS} rounds, on "
        f"{study.held_out_roles:,} held-out roles that do not train here; "
        "the paper's is that on other lines of the roles that train. No guarantee: no noise "
        "was added."
    )
    cells = {
        "optimiser": lambda each: each.optimizer,
        "local rate": lambda each: f"{each.local_rate:.4g}",
        "server rate": lambda each: f"{each.server_rate:.4g}",
        "accuracy": lambda each: with_error(each.accuracy, each.standard_error),
        "seconds per round": lambda each: f"{each.seconds_per_round:.3g}",
    }
    subject = Subject(
        f"{study.roles:,} roles of Shakespeare",
        runs="one training each",
        sample=f"{study.held_out_roles:,} held-out roles",
    )
    models = Table.of(
        "Held-out accuracy ± standard error",
        study.models,
        cells,
        subject=lambda each: replace(subject, condition=each.optimizer),
    )
    return Reproduced(
        "Shakespeare: federated optimisers",
        *(study.to_json(), [models], [note], verdict),
        best.accuracy >= AGREES_FROM,
        [_curves(study, runs)],
        subject,
    )


def _curves(study: Study, runs: "Mapping[str, fedray.TrainedRun]") -> Figure:
    lines = [MetricLine(name, each.metrics) for name, each in runs.items()]
    metrics = next(iter(runs.values())).task_metrics
    metric = next(each for each in metrics if each.name == "accuracy")
    figure = metric_curve(metric, lines, {})
    ends = np.array([0.0, study.models[0].rounds])
    published = np.full(2, PUBLISHED[0])
    reference = Series("least published", "line", ends, published, is_reference=True)
    return replace(figure, series=(*figure.series, reference))


REPRODUCTION = Reproduction(
    "shakespeare",
    "The published Shakespeare benchmark: five federated optimisers, without noise.",
    "Reddi et al. 2021, section 5",
    "1.3 h",
    run,
    (
        Option("data", Path | None, None, "Folder of plays (*.txt), or a Parquet file of roles."),
        Option("rounds", int, 1200, "Rounds of each training."),
        Option("optimizers", str, ",".join(OPTIMIZERS), "Optimisers, with commas between."),
    ),
    has_overrides=True,
    has_placement=True,
    has_figures=True,
    is_resumable=True,
)
