"""Whether accuracy depends on the noise of a round's mean only (the signal-to-noise hypothesis).

Small simulations stand for large rounds on this hypothesis: `training.cohort_sample` trains a
sample of a round with its share of the noise, plans keep z / goal, and Xu et al. 2023 chose goals
by it (arXiv 2305.18465, section 3: noise multiplier 7 at 6,500 devices against 0.54 at 500). Here
rounds of different size train with equal noise per mean, on one trace, paired by seed.

    OUT/NAME/               as in the learning study, of which the trace and mechanism can be shared
      runs/blt-COHORT-SEED/ a trained run
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import numpy as np

import fedray
from fedray import InputError
from . import learning
from .reproduction import (
    Axis,
    Document,
    Figure,
    InPlace,
    MeanInterval,
    Metric,
    Progress,
    Reproduced,
    Reproduction,
    Series,
    Table,
    bounds_text,
    figure_text,
    mean_interval,
    paired_difference,
)

NOTE = (
    "All rounds of a scenario have one mechanism (a BLT) and the same noise per mean. Final values "
    "are means of the evaluations in the last fifth of the rounds; intervals are Student's over "
    "the seeds, 95 % each on its own, and changes are paired by seed."
)


@dataclass(frozen=True, slots=True)
class Cohort(Document):
    """Models of one round size in one metric."""

    metric: InPlace[Metric]
    """Name, unit, and which values are better."""
    devices: int
    """Devices of a round that train."""
    final: MeanInterval
    """Final value, over the seeds."""
    change: MeanInterval
    """Change from the smallest round size; 0 there."""


@dataclass(frozen=True, slots=True)
class RoundSizes(Document):
    """A study of one scenario."""

    scenario: str
    """Name of the scenario."""
    trace_digest: str
    """Digest of the trace that all trainings share."""
    noise_per_mean: float
    """Standard deviation of the noise in a round's mean, at clip norm 1."""
    seeds: tuple[int, ...]
    """`training.seed` of each training of a round size."""
    cohorts: tuple[Cohort, ...]
    """Round sizes in each metric, ascending."""


class RoundSizeStudies(TypedDict):
    """`fedray reproduce signal-to-noise`."""

    studies: list[RoundSizes]
    """A study per scenario."""


def run(
    scenario: Sequence[Path] = (),
    cohorts: Annotated[str, "Devices of a round that train, comma-separated."] = "50,150,650",
    seeds: Annotated[int, "Models of each round size."] = 5,
    data: Annotated[
        Path | None, "Folder of plays (*.txt), or a Parquet file of roles, for one more scenario."
    ] = None,
    overrides: Sequence[str] = (),
    placement: "fedray.Placement | None" = None,
    out: Path | None = None,
    on_progress: Progress = lambda _: None,
) -> Iterator[Reproduced]:
    """Trains models with rounds of every size, for one scenario after another.

    Raises InputError for impossible sizes or seeds.
    """
    documents: list[dict[str, Any]] = []
    for each, numbers, place in learning.settings_of(scenario, data, seeds, overrides, out):
        sizes = _sizes_of(cohorts, each)
        found = study(each, sizes, numbers, place, placement, on_progress)
        documents.append(found.to_json())
        yield _reproduced(found, documents)


def _sizes_of(cohorts: str, scenario: "fedray.Scenario") -> list[int]:
    goal = scenario.rounds.report_goal
    try:
        sizes = [int(each) for each in cohorts.split(",")]
    except ValueError:
        sizes = []
    if sizes != sorted(set(sizes)) or not sizes or not 1 <= sizes[0] <= sizes[-1] <= goal:
        rule = f"must be ascending numbers from 1 to rounds.report_goal={goal}"
        raise InputError.of("cohorts", cohorts, rule, "correct it, such as 50,150,650")
    return sizes


def study(
    scenario: "fedray.Scenario",
    sizes: Sequence[int],
    seeds: Sequence[int],
    directory: Path,
    placement: "fedray.Placement | None" = None,
    on_progress: Progress = lambda _: None,
) -> RoundSizes:
    """Trains models with rounds of every size and seed on one trace.

    Args:
        scenario: scenario to simulate and train; its own noise determines the rho of the BLT.
        sizes: devices of a round that train, ascending.
        seeds: seeds of the trainings, at least two.
        directory: directory of the study; results that are there are read.
        placement: place of the trainings, each a task in one process.
        on_progress: listener.
    """
    trace = learning.trace_of(scenario, directory / "trace", placement, on_progress)

    def make(requests: learning.Requests) -> learning.Strategies:
        return learning.made(requests, directory / "mechanisms", placement)

    mechanisms = learning.Study(scenario, trace, ("blt",), (), make)
    trainings = {}
    for size, seed in itertools.product(sizes, seeds):
        own = mechanisms.scenario_of("blt", seed)
        training = own.training.model_copy(update={"cohort_sample": size})
        sampled = own.model_copy(update={"training": training})
        trainings[size, seed] = sampled, directory / "runs" / f"blt-{size}-{seed}"
    runs = fedray.train_many(trace, trainings, placement, on_progress)
    noise = mechanisms.mechanisms["blt"].noise_multiplier / scenario.rounds.report_goal
    metrics = next(iter(runs.values())).task_metrics
    found = [each for metric in metrics for each in _cohorts(metric, sizes, seeds, runs)]
    return RoundSizes(scenario.name, trace.digest, noise, tuple(seeds), tuple(found))


def _cohorts(
    metric: Metric,
    sizes: Sequence[int],
    seeds: Sequence[int],
    runs: "Mapping[tuple[int, int], fedray.TrainedRun]",
) -> Iterator[Cohort]:
    values = {
        size: {seed: learning.final_value(runs[size, seed], metric.name) for seed in seeds}
        for size in sizes
    }
    for size, own in values.items():
        change = paired_difference(own, values[sizes[0]])
        yield Cohort(metric, size, mean_interval(own.values()), change)


def _reproduced(found: RoundSizes, documents: Sequence[dict[str, Any]]) -> Reproduced:
    last = found.cohorts[-1]
    change = last.change
    words = "differs" if change.is_from_zero else "does not differ detectably"
    cells = {
        "metric": lambda each: f"{each.metric.name} ({each.metric.better} is better)",
        "devices": lambda each: f"{each.devices:,}",
        "final value": lambda each: figure_text(each.final.mean),
        "95 % interval": lambda each: bounds_text(each.final),
        "change": lambda each: figure_text(each.change.mean, "+.4f"),
        "its 95 % interval": lambda each: bounds_text(each.change, "+.4f"),
    }
    title = f"Rounds of different size with equal noise per mean: {found.scenario}"
    noise = f"The noise of a mean has standard deviation {found.noise_per_mean:.4g}."
    return Reproduced(
        title=title,
        document={"studies": list(documents)},
        kept=documents[-1],
        folder=found.scenario,
        shown=[Table.of(title, found.cohorts, cells)],
        notes=[noise, NOTE],
        verdict=f"Between {found.cohorts[0].devices:,} and {last.devices:,} devices a round, "
        f"{last.metric.name} {words}: {change.mean:+.4f} {bounds_text(change, '+.4f')}.",
        drawn=_figures(found),
    )


def _figures(found: RoundSizes) -> list[Figure]:
    figures = []
    for metric in dict.fromkeys(each.metric for each in found.cohorts):
        own = [each for each in found.cohorts if each.metric == metric]
        ends = {end: [getattr(each.final, end) for each in own] for end in ("mean", "low", "high")}
        mean, low, high = map(np.array, ends.values())
        sizes = np.array([each.devices for each in own], np.float64)
        figures.append(
            Figure(
                f"{metric.name}-devices",
                f"Final {metric.title} over the devices of a round",
                "Equal noise per mean; the band is the 95 % interval of the mean over seeds.",
                Axis("Devices of a round", is_log=True),
                Axis(f"Held-out {metric.title}{metric.in_unit}", starts_at_zero=False),
                (Series("blt", "line", sizes, mean, low=low, high=high),),
            )
        )
    return figures


REPRODUCTION = Reproduction(
    "Rounds of 50, 150 and 650 devices with equal noise per mean: is their accuracy equal?",
    run,
    has_figures=True,
    is_resumable=True,
)
