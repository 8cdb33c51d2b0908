"""Gboard's published runs at full size: simulated, audited, and compared row by row."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

import fedray
from fedray.mechanisms import Tree
from .gboard_rows import ROWS, PublishedRun, later_runs, published_runs, select
from .reproduction import (
    Document,
    InJson,
    Reproduced,
    Reproduction,
    Request,
    StepProgress,
    Subject,
    Table,
    agreement_figure,
    in_steps,
    up,
)

NOTES = (
    "Full-size simulations of the published federated runs of Gboard's language models; one reach "
    "per locale.",
    "Fitted: the locale's reach was chosen so that this row's min-sep comes out, and its agreement "
    "says nothing. Predicted: nothing was fitted on this row. Participations and days are fitted "
    "nowhere.",
    "Published min-seps count the rounds strictly between two participations, so the gap is one "
    "more; fedray's min-sep is the gap.",
    "Rows of McMahan, Xu, Zhang 2024 have the population, reach and timer of the locale's first "
    "row in Xu et al. 2023, since that paper prints none; repeats of a configuration share a run. "
    "Where it prints k = 1, no device came back: the min-sep is at least the number of rounds.",
    "A device that took part k times waited for k - 1 timers, so the published k bounds how many "
    "days a run took (an estimate).",
)
SUBJECT = Subject("Gboard's published runs, simulated", runs="one run each", unit="device")
CLOSE = 0.1
"""Relative difference up to which the verdict counts a min-sep as close to the printed one."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of a run, as simulated and as printed."""

    observed: float | None
    """Simulated value; None if unknown, such as the min-sep of a run in which no device came
    twice."""
    published: float | None
    """Printed value, or None."""

    @property
    def relative_difference(self) -> InJson[float | None]:
        """observed / published - 1; None unless both are known."""
        if self.published is None or self.observed is None:
            return None
        return self.observed / self.published - 1.0


@dataclass(frozen=True, slots=True)
class ReproducedRun(Document):
    """One row of the tables, simulated by its scenario and audited with tree aggregation."""

    name: str
    """Name of the row, such as nwp-en-GB."""
    reach: float
    """Share of the population that the task can use."""
    is_fitted: bool
    """Whether the scenario's reach was fitted on this row's own min-sep, so that its agreement says
    nothing."""
    min_sep: Compared
    """The gap; the published one is one more than the printed rounds between."""
    max_participations: Compared
    """k: largest number of rounds of one device."""
    rho: Compared
    """zCDP of tree aggregation for (min-sep, max participations), as the paper reports it."""
    epsilon: Compared
    """Epsilon of tree aggregation for (min-sep, max participations), at delta 1e-10."""
    trace_rho: float
    """zCDP of tree aggregation, exact for the simulated trace."""
    days: float
    """Simulated time to the last commit, in days."""
    published_days: tuple[float, float]
    """Smallest and largest number of days of the published run, as implied by its k;
    `PublishedRun.days`."""
    ended: str
    """End of the run: "completed", or the reason for an early one."""
    digest: str
    """The trace's digest."""
    wall_seconds: float
    """Seconds that the simulation took, without the audit."""


class ReproducedRuns(TypedDict):
    """`fedray reproduce gboard`."""

    runs: list[ReproducedRun]
    """The published runs, simulated."""


def run(request: Request, *, rows: str | None) -> Iterator[Reproduced]:
    """Simulates published runs and audits them, the cheap ones first; yields all results so far
    after every simulation.

    Args:
        request: its directory keeps each trace under its row's name.
        rows: comma-separated locales or names; None for all.

    Raises:
        InputError: if a row is unknown.
    """
    wanted = select(rows, [*published_runs(), *later_runs()])
    # Repeats of a configuration share a simulation, which has the name of the first.
    repeats: dict[str, list[PublishedRun]] = {}
    for published in wanted:
        repeats.setdefault(published.configuration, []).append(published)
    results: dict[str, ReproducedRun] = {}
    for published, tell in in_steps(
        request,
        [first for first, *_ in repeats.values()],
        name=lambda run: run.name,
        cost=lambda run: run.rounds * run.report_goal,
    ):
        # Traces of full size are large, so one that is not kept is removed after its row.
        with tempfile.TemporaryDirectory(prefix="fedray-reproduce-") as folder:
            trace_path = (request.out or Path(folder)) / published.name
            found = _reproduce(published, request, trace_path, tell)
        gap, k = found.min_sep.observed, found.max_participations.observed
        for each in repeats[published.configuration]:
            results[each.name] = replace(
                found,
                name=each.name,
                min_sep=Compared(gap, each.min_sep),
                max_participations=Compared(k, each.max_participations),
            )
        yield _reproduced([results[each.name] for each in wanted if each.name in results])


def _reproduce(
    published: PublishedRun, request: Request, path: Path, tell: StepProgress
) -> ReproducedRun:
    scenario = published.scenario(request.overrides)

    def show(progress: Any) -> None:
        tell.of_rounds(progress.committed, progress.count)

    trace = fedray.simulate(scenario, request.placement, path, show)
    # The published runs used the tree, whatever mechanism the scenario has.
    audit = fedray.audit_trace(trace, mechanism=Tree())
    tree = audit.mechanisms[0]
    days = float(trace.rounds["closed"][-1]) / 86_400.0
    reach = scenario.population.reach
    # A simulated run always has a noise multiplier, and so a rho.
    assert tree.observed.rho is not None
    return ReproducedRun(
        name=published.name,
        reach=reach,
        # A reach set by an override was not fitted on anything.
        is_fitted=published.is_fitted and reach == published.scenario().population.reach,
        min_sep=Compared(audit.min_sep, published.min_sep),
        max_participations=Compared(audit.max_participations, published.max_participations),
        rho=Compared(tree.observed_limits.rho, published.rho),
        epsilon=Compared(tree.observed_limits.epsilon, published.epsilon),
        trace_rho=tree.observed.rho,
        days=days,
        published_days=published.days,
        ended=trace.run["ended"],
        digest=trace.digest,
        wall_seconds=trace.run["wall_seconds"],
    )


def _reproduced(runs: Sequence[ReproducedRun]) -> Reproduced:
    differences = [each.min_sep.relative_difference for each in runs]
    near = sum(each is not None and abs(each) <= CLOSE for each in differences)
    right = sum(each.max_participations.relative_difference == 0.0 for each in runs)
    min_seps = [(each.name, each.min_sep.published, each.min_sep.observed) for each in runs]
    rhos = [(each.name, each.rho.published, each.rho.observed) for each in runs]
    seen = "For the (min-sep, max participations) seen."
    on_line = "On the line, simulated and published agree."
    return Reproduced(
        title="Gboard runs, reproduced",
        document={"runs": [each.to_json() for each in runs]},
        shown=[_table(runs)],
        notes=NOTES,
        verdict=f"Of {len(runs)} runs, {near} have a min-sep within {CLOSE:.0%} of the published "
        f"one, and {right} the published max participations.",
        drawn=[
            agreement_figure("min-sep", "Min-sep", on_line, min_seps),
            agreement_figure("rho", "rho of tree aggregation", seen, rhos),
        ],
        subject=SUBJECT,
    )


def _table(runs: Sequence[ReproducedRun]) -> Table:
    cells = {
        "run": lambda run: run.name,
        "reach": lambda run: f"{run.reach:g}",
        "min-sep is": lambda run: "fitted" if run.is_fitted else "predicted",
        "min-sep (gap)": lambda run: _beside_published(run.min_sep, "{:.0f}".format),
        "max part.": lambda run: _beside_published(run.max_participations, "{:.0f}".format),
        "rho, (b, k)": lambda run: _beside_published(run.rho),
        "epsilon, (b, k)": lambda run: _beside_published(run.epsilon),
        "rho, trace": lambda run: up(run.trace_rho, 3),
        "days": lambda run: "{:.1f} / {:.0f} to {:.0f}".format(run.days, *run.published_days),
    }
    title = "Observed / published, and the relative difference"
    return Table.of(title, runs, cells, subject=lambda run: replace(SUBJECT, condition=run.name))


def _beside_published(
    figure: Compared, shown: Callable[[float], str] = lambda value: up(value, 2)
) -> str:
    seen = "none (k = 1)" if figure.observed is None else shown(figure.observed)
    relative = figure.relative_difference
    off = f", {100 * relative:+.1f} %" if relative else ""
    return f"{seen} / {'-' if figure.published is None else f'{figure.published:g}'}{off}"


REPRODUCTION = Reproduction(
    "gboard",
    "Gboard's published runs at full size: min-sep, participations, rho and epsilon.",
    "Xu et al. 2023, tables 1 and 2; McMahan, Xu, Zhang 2024, table 4",
    "20 min",
    run,
    (ROWS,),
    has_overrides=True,
    has_placement=True,
    has_figures=True,
)
