"""The order of mechanisms at equal privacy, by models that are trained with each.

A trace is simulated once. Every mechanism then has the noise for one rho, that of the scenario's
own mechanism, and trains a model per seed. The trainings of a seed share cohorts, data and initial
model, so mechanisms are compared seed by seed.

    OUT/NAME/trace/             shared by all trainings of a scenario
    OUT/NAME/mechanisms/        the optimised mechanisms
    OUT/NAME/runs/KIND-SEED/    the trained runs

An interrupted study continues from the files that are there.
"""

import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import fedray
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
    comparison_of,
    in_steps,
    interval_text,
    paired_difference,
    share_of,
    trace_in,
    up,
)

RECIPES = Path(__file__).resolve().parent / "learning"
"""Folder of the scenarios."""
SCENARIOS = {"language": 1.0, "source_code": 3.0}
"""Scenarios whose data are shipped or part of Python, with the time of each."""
ORDER = ("banded-toeplitz", "blt", "tree-full", "tree", "identity")
"""Order of the literature at equal privacy, the best first."""
PRINTED = {"banded-toeplitz": "23.21", "blt": "23.13", "tree-full": "22.54"}
"""Accuracy in % of next words of Stack Overflow at the smaller epsilon (McMahan, Xu, Zhang 2024,
table 3): BandMF of 342 bands, the best BLT for 6 participations, and TreeAgg-Full."""
NOTES = (
    "Every mechanism has the noise for one rho. A gain is the accuracy of a mechanism minus that "
    "of the next one, seed by seed, with Student's 95 % interval; the order is confirmed if the "
    "interval is above zero, and reversed if it is below.",
    "Printed accuracies are of another data set and model, so only their order is compared. The "
    "paper has no figure for the online tree and for independent noise; that the tree is better, "
    "and worse than tree-full, is of Kairouz et al. 2021.",
)


def verdict_of(gain: MeanInterval) -> str:
    """Returns "confirmed" or "reversed" if the interval of a gain excludes zero, else "not
    decided"."""
    if not gain.is_from_zero:
        return "not decided"
    return "confirmed" if gain.mean > 0 else "reversed"


def counted_verdicts(verdicts: Sequence[str]) -> str:
    """Returns how many verdicts there are of each kind."""
    kinds = "confirmed", "not decided", "reversed"
    return ", ".join(f"{verdicts.count(each)} {each}" for each in kinds)


@dataclass(frozen=True, slots=True)
class Neighbours(Document):
    """Two mechanisms, the first of which is better in the literature."""

    first: str
    """Kind of the better mechanism."""
    second: str
    """Kind of the other one."""
    gain: MeanInterval
    """Accuracy of the first minus that of the second, over seeds."""

    @property
    def verdict(self) -> InJson[str]:
        """ "confirmed", "reversed" or "not decided"."""
        return verdict_of(self.gain)


@dataclass(frozen=True, slots=True)
class TrainedOrder(Document):
    """The order of mechanisms on one scenario."""

    scenario: str
    """Name of the scenario."""
    rho: float
    """rho of all mechanisms."""
    neighbours: tuple[Neighbours, ...]
    """Pairs of the literature's order, the best first."""
    comparison: "fedray.Comparison"
    """The trainings."""


@dataclass(frozen=True, slots=True)
class LearningStudies(Document):
    """`fedray reproduce learning`."""

    studies: tuple[TrainedOrder, ...]
    """A study for each scenario."""

    @property
    def verdicts(self) -> list[str]:
        """Verdicts of all pairs."""
        return [pair.verdict for each in self.studies for pair in each.neighbours]


def run(request: Request, *, scenarios: str, seeds: int) -> Iterator[Reproduced]:
    """Trains models with every mechanism, for one scenario after another.

    Args:
        request: see `Request`; `out` keeps the traces and the trained runs.
        scenarios: names of SCENARIOS, with commas between.
        seeds: number of trainings of each mechanism.

    Raises:
        InputError: a scenario is unknown, there are too few seeds, or `out` holds other trainings.
    """
    found: list[TrainedOrder] = []
    for each in studied(request, named_scenarios(scenarios, seeds, request.overrides)):
        _, rho = each.enforced()
        comparison = fedray.compare_mechanisms(
            each.trace,
            ORDER,
            each.folder,
            rho=rho,
            seeds=seeds,
            scenario=each.scenario,
            placement=request.placement,
            on_progress=each.on_progress,
        )
        found.append(TrainedOrder(each.name, rho, neighbours_of(comparison), comparison))
        yield _reproduced(LearningStudies(tuple(found)))


class Studied(NamedTuple):
    """A scenario of a study, with the trace that its trainings share."""

    name: str
    """Name of the scenario."""
    scenario: "fedray.Scenario"
    """The scenario."""
    trace: "fedray.Trace"
    """The trace."""
    folder: Path
    """Directory of the trace and the trainings."""
    on_progress: Callable[[str], None]
    """Listener of the trainings."""

    def enforced(self) -> tuple["fedray.MinSep", float]:
        """Returns the participation and the rho that the rules of the trace ensure at the
        scenario's own mechanism and noise."""
        (own,) = fedray.audit_trace(self.trace, scenario=self.scenario).mechanisms
        assert own.enforced.participation is not None, "a timer limits how often a device comes"
        assert own.enforced.rho is not None, "noise of the server gives a rho"
        return own.enforced.participation, own.enforced.rho

    def compared(
        self,
        request: Request,
        settings: Sequence[tuple[str, str, "fedray.Scenario"]],
        seeds: int,
    ) -> "fedray.Comparison":
        """Trains every setting with the seeds from 1 on, or opens what was trained, and compares
        them.

        Args:
            request: request, with the placement.
            settings: start of the names of a setting's directories, its label and its scenario.
            seeds: number of trainings of each.
        """
        wanted = {
            (place, seed): (
                scenario.with_overrides(f"training.seed={seed}"),
                self.folder / "runs" / f"{name}-{seed}",
            )
            for place, (name, _, scenario) in enumerate(settings)
            for seed in range(1, seeds + 1)
        }
        trained = fedray.train_many(self.trace, wanted, request.placement, self.on_progress)
        labels = [label for _, label, _ in settings]
        return comparison_of([*trained.values()], self.trace, None, labels)


def studied(request: Request, scenarios: Mapping[str, "fedray.Scenario"]) -> Iterator[Studied]:
    """Simulates the traces of scenarios, or opens them, and yields each, the cheap ones first.

    Args:
        request: request, whose `out` keeps a directory for each scenario.
        scenarios: scenarios by their names in SCENARIOS.
    """
    with tempfile.TemporaryDirectory(prefix="fedray-study-") as temporary:
        out = (request.out or Path(temporary)).absolute()
        for name, tell in in_steps(request, [*scenarios], lambda name: name, SCENARIOS.__getitem__):
            trace = trace_in(out / name / "trace", scenarios[name], request)
            yield Studied(
                *(name, scenarios[name], trace, out / name),
                lambda line, tell=tell: tell(share_of(line)),
            )


def named_scenarios(
    scenarios: str, seeds: int, overrides: Sequence[str]
) -> dict[str, "fedray.Scenario"]:
    """Returns the scenarios that a text names with commas, with keys set as "table.key=value".
    Raises InputError for an unknown one, and for fewer than two seeds."""
    if seeds < 2:
        raise fedray.InputError.of("seeds", seeds, "must be at least 2", "3 give an interval")
    names = [each.strip() for each in scenarios.split(",")]
    if len(set(names)) < len(names) or not set(names) <= SCENARIOS.keys():
        rule = f"must name some of {', '.join(SCENARIOS)}, each once"
        raise fedray.InputError.of("scenarios", scenarios, rule, "correct it")
    return {name: fedray.Scenario.from_toml(RECIPES / f"{name}.toml", overrides) for name in names}


def neighbours_of(comparison: "fedray.Comparison") -> tuple[Neighbours, ...]:
    """Returns each pair of the literature's order, with its gain in accuracy."""
    groups = {each.label: each for each in comparison.groups}
    return tuple(
        Neighbours(
            *(first, second),
            paired_difference(groups[first].finals("accuracy"), groups[second].finals("accuracy")),
        )
        for first, second in itertools.pairwise(ORDER)
    )


def _reproduced(found: LearningStudies) -> Reproduced:
    verdicts, last = found.verdicts, found.studies[-1]
    return Reproduced(
        "What models learn under each mechanism",
        found.to_json(),
        [_order_table(each) for each in found.studies],
        NOTES,
        f"Of {len(verdicts)} neighbours in the literature's order: {counted_verdicts(verdicts)}.",
        "reversed" not in verdicts,
        [each for each in last.comparison.figures() if each.name == "accuracy"],
        last.comparison.of,
    )


def _order_table(study: TrainedOrder) -> Table:
    comparison = study.comparison
    groups = {each.label: each for each in comparison.groups}
    pairs = {each.first: each for each in study.neighbours}

    def gain(kind: str) -> str:
        return interval_text(pairs[kind].gain, "+.4f") if kind in pairs else ""

    cells = {
        "mechanism": str,
        "printed accuracy, %": lambda kind: PRINTED.get(kind, "-"),
        "noise mult.": lambda kind: up(groups[kind].noise_multiplier or 0.0),
        "accuracy ± 95 %": lambda kind: interval_text(
            comparison.mean(groups[kind], "accuracy"), ".4f"
        ),
        "gain over the next ± 95 %": gain,
        "order": lambda kind: pairs[kind].verdict if kind in pairs else "",
    }
    return Table.of(
        f"{study.scenario}: mechanisms at rho {up(study.rho)}",
        ORDER,
        cells,
        subject=lambda kind: Subject(condition=kind, sample=comparison.sample),
    ).under(comparison.of)


def seeds_option(trainings: str) -> Option:
    """Returns the option of the number of seeds."""
    return Option("seeds", int, 3, f"Trainings of each {trainings}.")


REPRODUCTION = Reproduction(
    "learning",
    "The order of mechanisms at equal privacy, by models that are trained with each.",
    "McMahan, Xu, Zhang 2024, table 3; Kairouz et al. 2021",
    "5 min",
    run,
    (
        Option("scenarios", str, ",".join(SCENARIOS), "Scenarios, with commas between."),
        seeds_option("mechanism"),
    ),
    has_overrides=True,
    has_placement=True,
    has_figures=True,
    is_resumable=True,
)
