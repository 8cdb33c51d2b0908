"""The published Shakespeare benchmark: federated optimisers on a model of the next character.

Reddi et al. 2021 (Adaptive Federated Optimization, section 5) train a two-layer LSTM on ten roles a
round for 1,200 rounds, without noise. All trainings here share the rounds of one trace. Accuracy is
that on roles that never train, beside n-grams of the same training text; the paper's is that on
other lines of the roles that train.

    OUT/
      data/             the roles, split into those that train and those that are held out
      trace/            ten roles a round, drawn alike for all optimisers
      runs/NAME/        a trained run of each optimiser

An interrupted study continues from the files that are there.
"""

import hashlib
import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

import fedray
from fedray import InputError
from fedray.scenarios.reproduction import (
    Axis,
    CheckpointError,
    Document,
    Figure,
    InJson,
    NotInJson,
    PartDone,
    Progress,
    Reproduced,
    Reproduction,
    Series,
    Table,
    TrainingProgress,
)

LENGTH = 80
"""Characters of an example."""
PUBLISHED = 0.569, 0.575
"""Least and largest accuracy of the paper's optimisers (Table 1)."""
AGREES_FROM = 0.55
"""Accuracy from which the best optimiser agrees with the paper: about what 5-grams reach, on other
roles than the paper's."""
LAST_ROUNDS = 100
"""A model's accuracy is the mean of its evaluations in the last rounds, as in the paper."""
EVALUATED = 64
"""Most examples of a held-out role."""
LONGEST_CONTEXT = 5
"""Longest context of the n-grams, characters."""
END = "\0"
"""Character for the end of a text that is shorter than an example, which a model predicts too."""
SHARES = 10
"""One in this many roles is held out."""

# Best learning rates of the paper, from the parameter study in its published code. Adaptivity
# (epsilon) is tau of the paper.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "fedavg": {"kind": "sgd", "momentum": 0.0, "learning_rate": 1.0},
    "fedavgm": {"kind": "sgd", "momentum": 0.9, "learning_rate": 10**-0.5},
    "fedadagrad": {"kind": "adagrad", "beta1": 0.0, "learning_rate": 10**-0.5, "epsilon": 0.1},
    "fedadam": {"kind": "adam", "learning_rate": 0.01, "epsilon": 1e-3},
    "fedyogi": {"kind": "yogi", "learning_rate": 0.01, "epsilon": 1e-3},
}
"""Table `training.server` by the name of the optimiser."""
LOCAL_RATE = 1.0
"""The paper's learning rate of devices, the same for all optimisers."""


class Roles(NamedTuple):
    """Examples by role: those that train, and those that are held out."""

    trained: Mapping[str, list[str]]
    held_out: Mapping[str, list[str]]


@dataclass(frozen=True, slots=True)
class TrainedOptimizer(Document):
    """A model of one optimiser."""

    name: str
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
    run: NotInJson["fedray.TrainedRun"]


@dataclass(frozen=True, slots=True)
class Study(Document):
    """Optimisers beside n-grams and the paper."""

    optimizers: tuple[TrainedOptimizer, ...]
    """Trained optimisers, the best first."""
    ngrams: tuple[float, ...]
    """Accuracy of n-grams on the same characters, by the length of the context from 0."""
    roles: int
    """Roles that train."""
    held_out_roles: int
    """Roles that are held out."""

    @property
    def published(self) -> InJson[tuple[float, float]]:
        """Least and largest accuracy in the paper."""
        return PUBLISHED


def run(
    data: Annotated[Path | None, "Parquet file of `fedray data shakespeare`."] = None,
    rounds: Annotated[int, "Rounds of each training."] = 1200,
    optimizers: Annotated[str, "Optimisers, with commas between."] = ",".join(OPTIMIZERS),
    tuning: Annotated[
        bool, "Evaluate on a tenth of the training roles, to choose learning rates (--set)."
    ] = False,
    overrides: Sequence[str] = (),
    placement: "fedray.Placement | None" = None,
    out: Path | None = None,
    on_progress: Progress = lambda _: None,
) -> Iterator[Reproduced]:
    """Trains a model with every optimiser.

    Args:
        data: file with the columns `client` and `text`.
        rounds: rounds of each training.
        optimizers: names, with commas between.
        tuning: whether the held-out roles are left out, and training roles stand in for them.
        overrides: keys set in every scenario, such as learning rates.
        placement: place of the trainings.
        out: directory of the study; None keeps nothing.
        on_progress: listener.

    Raises:
        InputError: an optimiser is unknown, or the data is missing or not such a file.
    """
    names = [each.strip() for each in optimizers.split(",")]
    unknown = [name for name in names if name not in OPTIMIZERS]
    if unknown:
        raise InputError.of(
            "optimizers", unknown[0], f"must be among {', '.join(OPTIMIZERS)}", "correct it"
        )
    if data is None:
        raise InputError("data is missing: name the Parquet file of `fedray data shakespeare`")
    with tempfile.TemporaryDirectory(prefix="fedray-shakespeare-") as folder:
        directory = Path(os.path.abspath(out or folder))
        roles = roles_of(data, tuning)
        _write_split(roles, directory / "data")
        on_progress("counting n-grams")
        ngrams = ngram_accuracies(_texts(roles.trained), _texts(roles.held_out, EVALUATED))
        scenario = scenario_of(directory / "data", roles.trained, rounds, overrides)
        found: list[TrainedOptimizer] = []
        for name in names:
            on_progress(f"training {name}, {len(found) + 1} of {len(names)}")
            trained = _trained(scenario, name, overrides, placement, directory, on_progress)
            found.append(trained)
            ranked = tuple(sorted(found, key=lambda each: -each.accuracy))
            study = Study(ranked, ngrams, len(roles.trained), len(roles.held_out))
            yield _reproduced(study, tuning)


def roles_of(data: Path, tuning: bool) -> Roles:
    """Reads roles, and holds out one in SHARES by the digest of its name.

    Args:
        data: Parquet file with the columns `client` and `text`.
        tuning: whether roles of the next digest are held out, and the first ones left out.
    """
    try:
        rows = pq.read_table(data, columns=["client", "text"]).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"data {str(data)!r} cannot be read ({error}); name its file") from None
    roles: dict[str, list[str]] = {}
    for row in rows:
        roles.setdefault(row["client"], []).append(row["text"])
    shares = {role: _share_of(role) for role in roles}
    held_out = {role: texts for role, texts in roles.items() if shares[role] == int(tuning)}
    trained = {role: texts for role, texts in roles.items() if shares[role] > int(tuning)}
    if not held_out or not trained:
        raise InputError(
            f"data {str(data)!r} has {len(roles)} roles, too few to hold some out; name a file of "
            "several plays"
        )
    return Roles(trained, held_out)


def _share_of(role: str) -> int:
    # A digest, so that a role is held out whatever other roles the file has.
    return int.from_bytes(hashlib.sha256(role.encode()).digest()[:8], "big") % SHARES


def _write_split(roles: Roles, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for split, texts in (("train", roles.trained), ("test", roles.held_out)):
        rows = [{"client": role, "text": text} for role, own in texts.items() for text in own]
        file = folder / f"{split}-00000-of-00001.parquet"
        # The same rows give the same bytes, so a study that continues finds its own data.
        pq.write_table(pa.Table.from_pylist(rows), file)


def _texts(roles: Mapping[str, list[str]], most: int | None = None) -> list[str]:
    return [text for own in roles.values() for text in own[:most]]


def scenario_of(
    folder: Path,
    roles: Mapping[str, Sequence[str]],
    rounds: int,
    overrides: Sequence[str] = (),
) -> "fedray.Scenario":
    """Scenario of the benchmark, with FedAvg.

    Args:
        folder: folder of the split data.
        roles: examples of the roles that train; each role is a device.
        rounds: rounds to train.
        overrides: keys to set.
    """
    # Every device is there at all times and never fails: the paper draws ten of all roles.
    tables: dict[str, Any] = {
        "name": "shakespeare",
        "description": "Next characters of Shakespeare's roles, as Reddi et al. 2021",
        "seed": 1,
        "population": {"devices": len(roles)},
        "availability": {"model": "always_on"},
        "participation": {"timer_hours": 0.0},
        "latency": {"failure_probability": 0.0},
        "rounds": {
            "count": rounds,
            "report_goal": 10,
            "over_selection": 1.0,
            "report_timeout_minutes": 10_000.0,
        },
        "data": {
            "kind": "parquet",
            "file": str(folder),
            "tokens": "text",
            "unit": "character",
            "length": LENGTH,
            "vocabulary": 86,
        },
        "training": {
            "cohort_sample": 10,
            # Measured: roles differ a hundredfold in size, and a group pads to its longest.
            "devices_at_once": 1,
            "evaluate_every": 20,
            "evaluation_devices": 100_000,
            "evaluation_examples": EVALUATED,
            "task": {
                "kind": "keyboard_lstm",
                "cell": "lstm",
                "layers": 2,
                "hidden": 256,
                "embedding": 8,
                "projected": False,
            },
            "client": {"learning_rate": LOCAL_RATE, "batch_size": 4, "epochs": 1.0},
            # The mean by examples, as in the paper's code: the largest role has weight 1.
            "weighting": {
                "kind": "clipped",
                "example_cap": max(map(len, roles.values())),
                "least_mean_weight": 1e-6,
            },
            "server": OPTIMIZERS["fedavg"],
        },
        "privacy": {"mechanism": {"kind": "none"}, "clipping": {"kind": "none"}},
    }
    return fedray.Scenario.from_tables(tables).with_overrides(*overrides)


def _trained(
    scenario: "fedray.Scenario",
    name: str,
    overrides: Sequence[str],
    placement: "fedray.Placement | None",
    directory: Path,
    on_progress: Progress,
) -> TrainedOptimizer:
    """Trains one optimiser, continues its training, or reads its run."""
    trace_folder, out = directory / "trace", directory / "runs" / name
    if trace_folder.exists():
        trace = fedray.Trace.open(trace_folder)
    else:
        untrained = scenario.with_overrides("training.enabled=false")
        trace = fedray.simulate(untrained, placement, trace_folder)
    table = ",".join(f"{key}={value!r}" for key, value in OPTIMIZERS[name].items())
    own = scenario.with_overrides(f"training.server={{{table}}}", *overrides)
    if out.exists():
        trained = fedray.TrainedRun.open(out)
        if trained.document.get("scenario_digest") != own.digest:
            raise InputError(
                f"output {str(out)!r} holds a training of another scenario; name another output"
            )
    else:
        out.parent.mkdir(exist_ok=True)
        trained = _learned(trace, own, placement, out, on_progress)
    accuracy, error = _accuracy(trained)
    return TrainedOptimizer(
        name,
        own.training.client.learning_rate,
        own.training.server.learning_rate,
        int(trained.document["rounds"]),
        accuracy,
        error,
        trained.seconds_per_round,
        trained,
    )


def _learned(
    trace: "fedray.Trace",
    scenario: "fedray.Scenario",
    placement: "fedray.Placement | None",
    out: Path,
    on_progress: Progress,
) -> "fedray.TrainedRun":
    def tell(progress: Any) -> None:
        if isinstance(progress, TrainingProgress):
            text = f"{out.name}: {progress.trained:,} of {progress.count:,} rounds"
            on_progress(PartDone(text, progress.trained, progress.count))

    try:
        return fedray.train(trace, scenario, placement, out, tell, is_resumed=True)
    except CheckpointError:
        return fedray.train(trace, scenario, placement, out, tell)


def _accuracy(trained: "fedray.TrainedRun") -> tuple[float, float]:
    """Mean accuracy of the evaluations in the last rounds, and the error of the last."""
    columns = trained.metrics
    first = min(trained.document["rounds"] - LAST_ROUNDS, columns["round"][-1])
    is_last = (columns["round"] >= first) & np.isfinite(columns["evaluation_accuracy"])
    error = columns["evaluation_accuracy_error"][is_last][-1]
    return float(columns["evaluation_accuracy"][is_last].mean()), float(error)


def ngram_accuracies(
    trained: Sequence[str], held_out: Sequence[str], longest: int = LONGEST_CONTEXT
) -> tuple[float, ...]:
    """Share of characters that n-grams predict, by the length of the context from 0.

    The prediction is the most frequent next character of the context in the training texts; of a
    context that they lack, that of the next shorter one. Texts are examples of the model: contexts
    begin with each, and the end of a short one counts as a character.

    Args:
        trained: training texts.
        held_out: texts to predict.
        longest: longest context.
    """
    ended = [[f"{text}{END}"[:LENGTH] for text in texts] for texts in (trained, held_out)]
    known = {character: 2 + rank for rank, character in enumerate(sorted(set("".join(ended[0]))))}
    train, test = (_padded(texts, known, longest) for texts in ended)
    values = len(known) + 2
    is_target, targets = test[:, longest:] > 0, test[:, longest:]
    guesses = np.zeros_like(targets)
    shares = []
    for length in range(longest + 1):
        seen = _contexts(train, length, longest, values)
        contexts, nexts = _most_frequent(seen, train[:, longest:], values)
        asked = _contexts(test, length, longest, values)
        places = np.minimum(np.searchsorted(contexts, asked), contexts.size - 1)
        guesses = np.where(contexts[places] == asked, nexts[places], guesses)
        # The number of an unknown character is 1, which no training text has.
        shares.append(float((guesses == targets)[is_target].mean()))
    return tuple(shares)


def _padded(texts: Sequence[str], known: Mapping[str, int], longest: int) -> NDArray[np.int64]:
    """Numbers of characters [texts, longest + LENGTH]: 0 before and after a text, 1 for unknown
    characters."""
    padded = np.zeros((len(texts), longest + LENGTH), np.int64)
    for row, text in zip(padded, texts, strict=True):
        numbers = [known.get(character, 1) for character in text]
        row[longest : longest + len(numbers)] = numbers
    return padded


def _contexts(
    padded: NDArray[np.int64], length: int, longest: int, values: int
) -> NDArray[np.int64]:
    """A number for the `length` characters before each character, [texts, LENGTH]."""
    number = np.zeros((len(padded), LENGTH), np.int64)
    for back in range(1, length + 1):
        number = number * values + padded[:, longest - back : longest - back + LENGTH]
    return number


def _most_frequent(
    contexts: NDArray[np.int64], targets: NDArray[np.int64], values: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Contexts, ascending, and the most frequent next character of each."""
    is_target = targets > 0
    pairs = contexts[is_target] * values + targets[is_target]
    numbers, counts = np.unique(pairs, return_counts=True)
    found, nexts = np.divmod(numbers, values)
    # Stable, so that of equally frequent characters the first one counts.
    order = np.lexsort((-counts, found))
    ordered, first = np.unique(found[order], return_index=True)
    return ordered, nexts[order][first]


def _reproduced(study: Study, tuning: bool) -> Reproduced:
    best = study.optimizers[0]
    share = f"{100 * best.accuracy:.1f} %"
    low, high = (f"{100 * each:.1f}" for each in PUBLISHED)
    agrees = tuning or best.accuracy >= AGREES_FROM
    verdict = (
        f"{best.name} predicts {share} of the characters of held-out roles after {best.rounds:,} "
        f"rounds; the paper's optimisers reach {low} to {high} %, and n-grams "
        f"{100 * max(study.ngrams):.1f} %."
    )
    notes = (
        f"Accuracy is the mean of the evaluations in the last {LAST_ROUNDS} rounds, on "
        f"{study.held_out_roles:,} roles that never train; the paper's is that on other lines of "
        "the roles that train. No guarantee: no noise was added.",
    )
    tables = [_optimizers_table(study), _ngrams_table(study)]
    title = "Shakespeare: federated optimisers, and what n-grams reach"
    if tuning:
        title = "Shakespeare: learning rates, on training roles"
    document = study.to_json()
    return Reproduced(title, document, tables, notes, verdict, agrees, [_curves(study)])


def _optimizers_table(study: Study) -> Table:
    cells = {
        "optimiser": lambda each: each.name,
        "local rate": lambda each: f"{each.local_rate:.4g}",
        "server rate": lambda each: f"{each.server_rate:.4g}",
        "rounds": lambda each: f"{each.rounds:,}",
        "accuracy": lambda each: f"{each.accuracy:.4f} ({each.standard_error:.4f})",
        "seconds per round": lambda each: f"{each.seconds_per_round or math.nan:.3g}",
    }
    note = "Standard errors in brackets: held-out roles are the sample."
    return Table.of("Held-out accuracy", study.optimizers, cells, note)


def _ngrams_table(study: Study) -> Table:
    facts = [(f"context of {length}", f"{share:.4f}") for length, share in enumerate(study.ngrams)]
    return Table.facts("Held-out accuracy of n-grams", facts)


def _curves(study: Study) -> Figure:
    lines, last = [], 1.0
    for each in study.optimizers:
        columns = each.run.metrics
        is_known = np.isfinite(columns["evaluation_accuracy"])
        x = columns["round"][is_known].astype(np.float64) + 1.0
        last = max(last, float(x[-1]))
        lines.append(Series(each.name, "line", x, columns["evaluation_accuracy"][is_known]))
    ends = np.array([0.0, last])
    for name, value in (
        ("published, least", PUBLISHED[0]),
        (f"n-grams of context {len(study.ngrams) - 1}", study.ngrams[-1]),
    ):
        lines.append(Series(name, "line", ends, np.full(2, value), is_reference=True))
    return Figure(
        "accuracy",
        "Accuracy on held-out roles",
        "Dashed: the least accuracy of the paper's optimisers after 1,200 rounds, and n-grams of "
        "the same training text.",
        Axis("Rounds"),
        Axis("Share of characters", starts_at_zero=False),
        tuple(lines),
    )


REPRODUCTION = Reproduction(
    "The published Shakespeare benchmark: five federated optimisers, without noise.",
    run,
    has_figures=True,
    is_resumable=True,
)
