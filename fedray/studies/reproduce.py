"""Published runs, simulated: observed figures beside published ones, row by row."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedray.audit.audit import audit_trace
from fedray.base.document import Document, InJson
from fedray.mechanisms.registry import Tree
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenarios.gboard import PublishedRun, relative_pace, select


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a run, as simulated and as printed."""

    observed: float | None
    """In the simulation; None where there is none, such as the min-sep of a run in which no device
    came twice."""
    published: float | None
    """As printed; None where it is not."""

    @property
    def relative_difference(self) -> InJson[float | None]:
        """observed / published - 1; None where one of them is not known."""
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
    min_sep: Figure
    """The gap; the published one is converted by `gap_of`."""
    max_participations: Figure
    """k: most rounds of one device."""
    rho: Figure
    """zCDP of tree aggregation for (min-sep, max participations), as the paper reports it."""
    epsilon: Figure
    """Epsilon of the same, at delta 1e-10."""
    trace_rho: float
    """zCDP of tree aggregation, exact for the simulated trace."""
    days: float
    """Simulated time to the last commit, in days."""
    published_days: tuple[float, float]
    """Between how many days the published run took, as its k implies; `PublishedRun.days`."""
    relative_pace: float | None
    """Rounds in a timer's length on average, over the min-sep; None where there is none, or no
    timer."""
    published_relative_pace: tuple[float, float]
    """Between which values that of the published run lies; `PublishedRun.relative_pace`."""
    ended: str
    """How the run ended; "completed", or why it did not."""
    digest: str
    """The trace's digest."""
    wall_seconds: float
    """Seconds that the simulation took, without the audit."""


def reproduce_gboard(
    rows: str | None = None,
    overrides: Sequence[str] = (),
    out: Path | None = None,
    placement: Placement | None = None,
    on_row: Callable[[list[ReproducedRun]], None] | None = None,
) -> list[ReproducedRun]:
    """Simulates published runs and audits them.

    Args:
        rows: comma-separated locales or names, or a user's CSV file; None for all.
        overrides: keys set in every scenario, as "table.key=value".
        out: directory in which each trace is kept under its row's name; None keeps none.
        placement: where the simulations run.
        on_row: hears of all results so far after every row.

    Raises:
        InputError: if a row is unknown, or the file is no table of runs.
    """
    results = []
    for published in select(rows):
        # Traces of full size are large, so what nobody keeps goes after every row.
        with tempfile.TemporaryDirectory(prefix="fedray-reproduce-") as folder:
            trace_path = (out or Path(folder)) / published.name
            results.append(_reproduce(published, overrides, trace_path, placement))
        if on_row is not None:
            on_row(results)
    return results


FIT_NOTE = (
    "Fitted: the locale's reach was chosen so that this row's min-sep comes out, and its agreement "
    "says nothing. Predicted: nothing was fitted on this row. Participations, days and pace are "
    "fitted nowhere."
)


GAP_NOTE = (
    "Published min-seps count the rounds strictly between two participations, so the gap is "
    "one more; fedray's min-sep is the gap."
)


PACE_NOTE = (
    "A device that took part k times waited for k - 1 timers, so the published k tells between "
    "how many days a run took (an estimate). Relative pace is the mean number of rounds in a "
    "timer's length over the min-sep. Where the published one is above the simulated one, the "
    "published run had slower days, compared with its mean, than the simulation has: no value of "
    "reach gives both its min-sep and its k."
)


def _reproduce(
    published: PublishedRun, overrides: Sequence[str], trace_path: Path, placement: Placement | None
) -> ReproducedRun:
    scenario = published.scenario(overrides)
    trace = simulate(scenario, placement, trace_path)
    # The published runs used the tree, whatever the scenario's own mechanism is.
    audit = audit_trace(trace, mechanism=Tree())
    tree = audit.mechanisms[0]
    # Where no device came twice, the audit has the number of rounds, which is no min-sep.
    min_sep = audit.min_sep if audit.max_participations > 1 else None
    days = float(trace.rounds["closed"][-1]) / 86_400.0
    reach = scenario.population.reach
    timer_hours = scenario.participation.timer_hours
    pace = None
    if min_sep is not None and timer_hours > 0.0:
        pace = relative_pace(trace.committed_rounds, days, timer_hours, min_sep)
    # A run of ours always has a noise multiplier, and so a rho.
    assert tree.observed.rho is not None
    return ReproducedRun(
        name=published.name,
        reach=reach,
        # A reach that an override sets was fitted on nothing.
        is_fitted=published.is_fitted and reach == published.scenario().population.reach,
        min_sep=Figure(min_sep, published.min_sep),
        max_participations=Figure(audit.max_participations, published.max_participations),
        rho=Figure(tree.observed_limits.rho, published.rho),
        epsilon=Figure(tree.observed_limits.epsilon, published.epsilon),
        trace_rho=tree.observed.rho,
        days=days,
        published_days=published.days,
        relative_pace=pace,
        published_relative_pace=published.relative_pace,
        ended=trace.run["ended"],
        digest=trace.digest,
        wall_seconds=trace.run["wall_seconds"],
    )
