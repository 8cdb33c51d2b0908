"""Whether accuracy depends only on the noise of a round's mean: rounds of different size.

Small simulations stand for large rounds on this hypothesis: `training.cohort_sample` trains a
sample of a round with its share of the noise, and plans keep z / goal. Xu et al. 2023 (section 3)
chose goals by it: a noise multiplier of 7 at 6,500 devices, which is 13 times as many as 500, for
0.54 at 500. Here samples of one round train with equal noise per mean, paired by seed.

    OUT/NAME/trace/            shared by all trainings of a scenario
    OUT/NAME/blt.json          the mechanism
    OUT/NAME/runs/SIZE-SEED/   the trained runs

An interrupted study continues from the files that are there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

import fedray
from .learning import Studied, named_scenarios, seeds_option, studied
from .reproduction import (
    Axis,
    Document,
    Figure,
    InJson,
    MeanInterval,
    Option,
    Reproduced,
    Reproduction,
    Request,
    Series,
    Subject,
    Table,
    interval_text,
    paired_difference,
    up,
)

POINTS = 2.0
"""Points of accuracy within which a larger round is "similar, or slightly better"."""
SHORT = ("rounds.count=100",)
"""Keys of a study that takes minutes."""
NOTES = (
    "All trainings have one mechanism, a BLT, and the same noise on the mean update. Changes are "
    "from the smallest size, seed by seed; intervals are 95 %, Student's over seeds.",
    f'The paper says "similar, or slightly better" of 13 times as many devices. It agrees if the '
    f"change is not below zero beyond its interval, and below {POINTS:g} points.",
)


@dataclass(frozen=True, slots=True)
class SampleSize(Document):
    """Models whose rounds have one number of devices."""

    devices: int
    """Devices of a round that train."""
    accuracy: MeanInterval
    """Accuracy after the last round, over seeds."""
    change: MeanInterval
    """Change from the smallest size, over seeds; 0 there."""


@dataclass(frozen=True, slots=True)
class RoundSizes(Document):
    """A study of one scenario."""

    scenario: str
    """Name of the scenario."""
    noise_per_mean: float
    """Standard deviation of the noise on a coordinate of a mean update, in clip norms."""
    sizes: tuple[SampleSize, ...]
    """Sizes, ascending."""
    comparison: "fedray.Comparison"
    """The trainings."""

    @property
    def agrees(self) -> InJson[bool]:
        """Whether the largest size is similar, or slightly better."""
        change = self.sizes[-1].change
        return change.high >= 0.0 and 100.0 * change.mean <= POINTS


@dataclass(frozen=True, slots=True)
class RoundSizeStudies(Document):
    """`fedray reproduce signal-to-noise`."""

    studies: tuple[RoundSizes, ...]
    """A study for each scenario."""


def run(request: Request, *, scenarios: str, sizes: str, seeds: int) -> Iterator[Reproduced]:
    """Trains models with samples of every size, for one scenario after another.

    Args:
        request: see `Request`; `out` keeps the traces and the trained runs.
        scenarios: names of scenarios, with commas between.
        sizes: devices of a round that train, ascending, with commas between.
        seeds: number of trainings of each size.

    Raises:
        InputError: a scenario or size is impossible, there are too few seeds, or `out` holds other
            trainings.
    """
    read = named_scenarios(scenarios, seeds, (*SHORT, *request.overrides))
    numbers = _sizes_of(sizes, min(each.rounds.report_goal for each in read.values()))
    found: list[RoundSizes] = []
    for each in studied(request, read):
        noisy = _with_blt(each)
        settings = [
            (
                f"{size}",
                f"{size:,} devices",
                noisy.with_overrides(f"training.cohort_sample={size}"),
            )
            for size in numbers
        ]
        comparison = each.compared(request, settings, seeds)
        noise = noisy.privacy.noise_multiplier / noisy.rounds.report_goal
        found.append(RoundSizes(each.name, noise, _changes(numbers, comparison), comparison))
        yield _reproduced(found)


def _sizes_of(sizes: str, goal: int) -> list[int]:
    try:
        numbers = [int(each) for each in sizes.split(",")]
    except ValueError:
        numbers = []
    if (
        len(numbers) < 2
        or numbers != sorted(set(numbers))
        or not 1 <= numbers[0] <= numbers[-1] <= goal
    ):
        rule = f"must be ascending numbers from 1 to rounds.report_goal={goal}"
        raise fedray.InputError.of("sizes", sizes, rule, "correct it, such as 50,150,650")
    return numbers


def _with_blt(study: Studied) -> "fedray.Scenario":
    """Returns the scenario with a BLT made for its trace, at the rho of its own mechanism."""
    (turns, rho), file = study.enforced(), study.folder / "blt.json"
    if not file.exists():
        fedray.write_strategy(
            fedray.optimize_mechanism(fedray.MechanismRequest("blt", turns)), file
        )
    keys = f"privacy.mechanism={file}", f"privacy.target_rho={rho!r}"
    return fedray.calibrated(study.scenario.with_overrides(*keys), study.trace)


def _changes(numbers: Sequence[int], comparison: "fedray.Comparison") -> tuple[SampleSize, ...]:
    smallest = comparison.groups[0].finals("accuracy")
    return tuple(
        SampleSize(
            size,
            comparison.mean(group, "accuracy"),
            paired_difference(group.finals("accuracy"), smallest),
        )
        for size, group in zip(numbers, comparison.groups, strict=True)
    )


def _reproduced(found: Sequence[RoundSizes]) -> Reproduced:
    last = found[-1]
    large = "; ".join(
        f"{each.scenario}: {each.sizes[-1].devices:,} devices instead of "
        f"{each.sizes[0].devices:,} change the accuracy by "
        f"{100.0 * each.sizes[-1].change.mean:+.1f} points"
        for each in found
    )
    return Reproduced(
        "Rounds of different size with equal noise on the mean",
        RoundSizeStudies(tuple(found)).to_json(),
        [_table(each) for each in found],
        NOTES,
        f"{large}.",
        all(each.agrees for each in found),
        [_figure(last)],
        last.comparison.of,
    )


def _table(study: RoundSizes) -> Table:
    cells = {
        "devices": lambda each: f"{each.devices:,}",
        "accuracy ± 95 %": lambda each: interval_text(each.accuracy, ".4f"),
        "change ± 95 %": lambda each: (
            "" if each is study.sizes[0] else interval_text(each.change, "+.4f")
        ),
    }
    noise = up(study.noise_per_mean)
    return Table.of(
        f"{study.scenario}: noise of {noise} clip norms on a coordinate of a mean",
        study.sizes,
        cells,
        subject=lambda each: Subject(
            condition=f"{each.devices:,} devices", sample=study.comparison.sample
        ),
    ).under(study.comparison.of)


def _figure(study: RoundSizes) -> Figure:
    sizes = np.array([each.devices for each in study.sizes], np.float64)
    mean, low, high = (
        np.array([getattr(each.accuracy, end) for each in study.sizes])
        for end in ("mean", "low", "high")
    )
    return Figure(
        "accuracy-devices",
        "Accuracy over the devices of a round",
        "Equal noise on the mean; the band is the 95 % interval of the mean over seeds.",
        Axis("Devices of a round that train", is_log=True),
        Axis("Held-out accuracy", starts_at_zero=False),
        (Series("blt", "line", sizes, mean, low=low, high=high),),
    )


REPRODUCTION = Reproduction(
    "signal-to-noise",
    "Rounds of 50, 150 and 650 devices with equal noise on the mean: is their accuracy equal?",
    "Xu et al. 2023, section 3",
    "3 min",
    run,
    (
        Option("scenarios", str, "language", "Scenarios, with commas between."),
        Option("sizes", str, "50,150,650", "Devices of a round that train, with commas between."),
        seeds_option("size"),
    ),
    has_overrides=True,
    has_placement=True,
    has_figures=True,
    is_resumable=True,
)
