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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
        """ "confirmed" or "reversed" if the interval excludes zero, else "not decided"."""
        if not self.gain.is_from_zero:
            return "not decided"
        return "confirmed" if self.gain.mean > 0 else "reversed"


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
    names = named_scenarios(scenarios, seeds)
    found: list[TrainedOrder] = []
    with tempfile.TemporaryDirectory(prefix="fedray-learning-") as temporary:
        folder = (request.out or Path(temporary)).absolute()
        for name, tell in in_steps(
            request, names, name=lambda name: name, cost=lambda name: SCENARIOS[name]
        ):
            scenario = fedray.Scenario.from_toml(RECIPES / f"{name}.toml", request.overrides)
            trace = trace_in(folder / name / "trace", scenario, request)
            rho = rho_of(scenario, trace)
            comparison = fedray.compare_mechanisms(
                trace,
                ORDER,
                folder / name,
                rho=rho,
                seeds=seeds,
                scenario=scenario,
                placement=request.placement,
                on_progress=lambda line, tell=tell: tell(share_of(line)),
            )
            found.append(TrainedOrder(name, rho, neighbours_of(comparison), comparison))
            yield _reproduced(LearningStudies(tuple(found)))


def named_scenarios(scenarios: str, seeds: int) -> list[str]:
    """Returns the names of scenarios in a text with commas. Raises InputError for an unknown one,
    and for fewer than two seeds."""
    if seeds < 2:
        raise fedray.InputError.of("seeds", seeds, "must be at least 2", "3 give an interval")
    names = [each.strip() for each in scenarios.split(",")]
    if len(set(names)) < len(names) or not set(names) <= SCENARIOS.keys():
        rule = f"must name some of {', '.join(SCENARIOS)}, each once"
        raise fedray.InputError.of("scenarios", scenarios, rule, "correct it")
    return names


def rho_of(scenario: "fedray.Scenario", trace: "fedray.Trace") -> float:
    """Returns the rho that the rules of a trace ensure at the scenario's own mechanism and
    noise."""
    (own,) = fedray.audit_trace(trace, scenario=scenario).mechanisms
    assert own.enforced.rho is not None, "a timer and noise of the server give a rho"
    return own.enforced.rho


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
    counts = ", ".join(
        f"{verdicts.count(each)} {each}" for each in ("confirmed", "not decided", "reversed")
    )
    return Reproduced(
        "What models learn under each mechanism",
        found.to_json(),
        [_order_table(each) for each in found.studies],
        NOTES,
        f"Of {len(verdicts)} neighbours in the literature's order: {counts}.",
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
