"""Clip norm and noise by phase, at constant privacy (McMahan et al. 2018, figures 4 and 8).

The noise of a round is the noise multiplier times its clip norm. A smaller norm therefore has less
noise and shortens more updates, and privacy is the same. The paper trains a language model with
several norms from the start, and again from a snapshot of the largest one, the baseline. At first
norms of 0.5 to 0.63 of the baseline were best, later 0.4. Here a schedule of clip norms takes the
place of the snapshot, so that the trainings of a seed share rounds, data and noise.

    OUT/NAME/trace/                   shared by all trainings of a scenario
    OUT/NAME/runs/FIRST-LATER-SEED/   the trained runs

An interrupted study continues from the files that are there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import fedray
from .learning import counted_verdicts, named_scenarios, seeds_option, studied, verdict_of
from .reproduction import (
    Document,
    InJson,
    MeanInterval,
    Option,
    Reproduced,
    Reproduction,
    Request,
    Subject,
    Table,
    figure_text,
    given,
    interval_text,
    mean_interval,
    paired_difference,
    up,
)

KEYS = ("privacy.noise_multiplier=4", "rounds.count=160", "training.cohort_sample=12")
"""Keys of a study that takes minutes. On the language the noise on a mean update is 0.7 clip
norms."""
STATEMENTS = (
    "privacy is the same for all norms",
    "at first the norm below the baseline is better",
    "later the norm below the best one of the first phase is better",
)
NOTES = (
    "All trainings of a scenario have one noise multiplier, so noise follows the clip norm and rho "
    "is the same. First: accuracy after the first half of the rounds, with this norm from the "
    "start. Later: after all rounds, with the largest norm in the first half and this one then. "
    "Fixed: after all rounds with this norm.",
    "Changes are from the largest norm, the baseline, seed by seed; intervals are 95 %, Student's "
    "over seeds. A statement is confirmed if its interval is above zero, and reversed if it is "
    "below. Printed are the norms over the baseline's that were best: 0.5 to 0.63 at first, 0.4 "
    "later. The figures have no other cells in print.",
)


@dataclass(frozen=True, slots=True)
class ClipNorm(Document):
    """Models of one clip norm."""

    norm: float
    """The clip norm."""
    noise_per_mean: float
    """Standard deviation of the noise on a coordinate of a mean update."""
    first: MeanInterval
    """Accuracy after the first phase with this norm, over seeds."""
    later: MeanInterval
    """Accuracy after the last round with this norm in the later phase, and the baseline before."""
    fixed: MeanInterval
    """Accuracy after the last round with this norm in all rounds."""
    first_change: MeanInterval
    """`first` minus that of the baseline; 0 there."""
    later_change: MeanInterval
    """`later` minus that of the baseline; 0 there."""


@dataclass(frozen=True, slots=True)
class ClipPhases(Document):
    """A study of one scenario."""

    scenario: str
    """Name of the scenario."""
    rho: tuple[float, ...]
    """Enforced rho of the trainings without repetition: one value, or privacy depends on norms."""
    first_rounds: int
    """Rounds of the first phase."""
    norms: tuple[ClipNorm, ...]
    """Clip norms, the baseline first, then smaller ones."""
    gain_later: MeanInterval
    """Later phase: accuracy of the norm below the best one of the first phase, minus that of the
    best one; NaN if that is the smallest."""
    comparison: "fedray.Comparison"
    """The trainings."""

    @property
    def best_first(self) -> InJson[float]:
        """The norm with the largest accuracy after the first phase."""
        return max(self.norms, key=lambda each: each.first.mean).norm

    @property
    def best_later(self) -> InJson[float]:
        """The norm with the largest accuracy in the later phase."""
        return max(self.norms, key=lambda each: each.later.mean).norm

    @property
    def verdicts(self) -> InJson[list[str]]:
        """Verdicts on the STATEMENTS: "confirmed", "reversed" or "not decided"."""
        return [
            "confirmed" if len(self.rho) == 1 else "reversed",
            verdict_of(self.norms[1].first_change),
            verdict_of(self.gain_later),
        ]


@dataclass(frozen=True, slots=True)
class ClipSchedules(Document):
    """`fedray reproduce clip-schedule`."""

    studies: tuple[ClipPhases, ...]
    """A study for each scenario."""


def run(request: Request, *, scenarios: str, norms: str, seeds: int) -> Iterator[Reproduced]:
    """Trains models with every norm in both phases, for one scenario after another.

    Args:
        request: see `Request`; `out` keeps the traces and the trained runs.
        scenarios: names of scenarios, with commas between.
        norms: clip norms, descending, with commas between; the first is the baseline.
        seeds: number of trainings of each setting.

    Raises:
        InputError: a scenario or norm is impossible, rounds or seeds are too few, or `out` holds
            other trainings.
    """
    read = named_scenarios(scenarios, seeds, (*KEYS, *request.overrides))
    numbers, found = _norms_of(norms), list[ClipPhases]()
    changes = {name: _first_rounds(scenario) for name, scenario in read.items()}
    pairs = [*((each, each) for each in numbers), *((numbers[0], each) for each in numbers[1:])]
    for each in studied(request, read):
        # A step to the same norm changes nothing, so all trainings are of one form.
        first_rounds = changes[each.name]
        settings = [
            (
                f"{a:g}-{b:g}",
                f"{a:g}" if a == b else f"{a:g}, then {b:g}",
                each.scenario.with_overrides(
                    f"privacy.clip_norm={a!r}",
                    f"privacy.clipping={{kind='schedule',steps=[{{from_round={first_rounds},"
                    f"norm={b!r}}}]}}",
                ),
            )
            for a, b in pairs
        ]
        comparison = each.compared(request, settings, seeds)
        found.append(_phases(each.name, first_rounds, numbers, comparison))
        yield _reproduced(found)


def _norms_of(norms: str) -> list[float]:
    try:
        numbers = [float(each) for each in norms.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) < 2 or not all(a > b > 0 for a, b in pairwise(numbers)):
        rule = "must be two or more descending numbers above 0"
        raise fedray.InputError.of("norms", norms, rule, "correct it, such as 2,1,0.5")
    return numbers


def _first_rounds(scenario: "fedray.Scenario") -> int:
    """Returns half of the rounds, or fewer, after which the model is evaluated."""
    count = scenario.rounds.count
    every = scenario.training.rounds_between(count)
    if count < 2 * every:
        rule = f"must be at least twice the {every} rounds between two evaluations"
        raise fedray.InputError.of("rounds.count", count, rule, "raise it")
    # After the other rounds its accuracy is not known.
    return count // 2 // every * every


def _phases(
    name: str, first_rounds: int, numbers: Sequence[float], comparison: "fedray.Comparison"
) -> ClipPhases:
    fixed, changed = comparison.groups[: len(numbers)], comparison.groups[len(numbers) :]
    first: list[Mapping[int, float]] = [
        {
            seed: float(run.metrics["evaluation_accuracy"][first_rounds - 1])
            for seed, run in group.runs.items()
        }
        for group in fixed
    ]
    # The baseline has its norm in the later phase too.
    later = [group.finals("accuracy") for group in (fixed[0], *changed)]
    privacy = fixed[0].first.document["scenario"]
    noise = privacy["privacy"]["noise_multiplier"] / privacy["rounds"]["report_goal"]
    rows = tuple(
        ClipNorm(
            *(norm, noise * norm, mean_interval(a.values()), mean_interval(b.values())),
            comparison.mean(group, "accuracy"),
            *(paired_difference(a, first[0]), paired_difference(b, later[0])),
        )
        for norm, group, a, b in zip(numbers, fixed, first, later, strict=True)
    )
    best = max(range(len(rows)), key=lambda place: rows[place].first.mean)
    below = later[best + 1] if best + 1 < len(rows) else {}
    rho = {group.rho["enforced"] for group in comparison.groups if group.rho is not None}
    return ClipPhases(
        name,
        tuple(sorted(each for each in rho if each is not None)),
        first_rounds,
        rows,
        paired_difference(below, later[best]),
        comparison,
    )


def _reproduced(found: Sequence[ClipPhases]) -> Reproduced:
    last = found[-1]
    best = "; ".join(
        f"{each.scenario}: the best clip norm is {each.best_first:g} at first and "
        f"{each.best_later:g} later"
        for each in found
    )
    verdicts = [verdict for each in found for verdict in each.verdicts]
    return Reproduced(
        "Clip norms by phase at constant privacy",
        ClipSchedules(tuple(found)).to_json(),
        [table for each in found for table in _tables(each)],
        NOTES,
        f"{best}. Of {len(verdicts)} statements: {counted_verdicts(verdicts)}.",
        "reversed" not in verdicts,
        [each for each in last.comparison.figures() if each.name == "accuracy"],
        last.comparison.of,
    )


def _tables(study: ClipPhases) -> list[Table]:
    def change(of: MeanInterval, row: ClipNorm) -> str:
        return "" if row is study.norms[0] else interval_text(of, "+.4f")

    baseline = study.norms[0].norm
    cells = {
        "clip norm": lambda each: given(each.norm),
        "over the baseline's": lambda each: figure_text(each.norm / baseline, ".3g"),
        "noise": lambda each: figure_text(each.noise_per_mean, ".2g"),
        "first ± 95 %": lambda each: interval_text(each.first, ".4f"),
        "change at first": lambda each: change(each.first_change, each),
        "later ± 95 %": lambda each: interval_text(each.later, ".4f"),
        "change later": lambda each: change(each.later_change, each),
        "fixed ± 95 %": lambda each: interval_text(each.fixed, ".4f"),
    }
    rho = ", ".join(up(each) for each in study.rho)
    rows = Table.of(
        f"{study.scenario}: clip norms at rho {rho}, changed after {study.first_rounds} rounds",
        study.norms,
        cells,
        subject=lambda each: Subject(
            condition=f"clip norm {each.norm:g}", sample=study.comparison.sample
        ),
    ).under(study.comparison.of)
    statements = Table.headed(
        f"{study.scenario}: statements",
        [("statement", "here"), *zip(STATEMENTS, study.verdicts, strict=True)],
    )
    return [rows, statements]


REPRODUCTION = Reproduction(
    "clip-schedule",
    "Clip norms and noise that fall together during a training, at constant privacy.",
    "McMahan et al. 2018, figures 4 and 8",
    "2 min",
    run,
    (
        Option("scenarios", str, "language", "Scenarios, with commas between."),
        Option("norms", str, "2,1,0.5,0.25", "Clip norms, descending, with commas between."),
        seeds_option("setting"),
    ),
    has_overrides=True,
    has_placement=True,
    has_figures=True,
    is_resumable=True,
)
