"""Published runs, simulated: observed figures beside published ones, row by row."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedray.audit.audit import audit_trace
from fedray.placement import Placement
from fedray.scenario import Scenario
from fedray.simulation import simulate
from mechanisms.registry import Tree
from scenarios.gboard import PublishedRun, select


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a run. observed: None where there is none, such as the min-sep of a run in
    which no device came twice. published: None where it is not."""

    observed: float | None
    published: float | None

    @property
    def relative_difference(self) -> float | None:
        """observed / published - 1."""
        return (
            None
            if self.published is None or self.observed is None
            else self.observed / self.published - 1.0
        )


@dataclass(frozen=True, slots=True)
class ReproducedRun:
    """One row.

    min_sep: the gap; the published one is converted by `gap_of`. rho and epsilon are of tree
    aggregation for the observed (min-sep, max participations), as the paper reports them; trace_rho
    is exact for the trace. wall_seconds: simulation, without the audit.
    """

    name: str
    """Of the row, such as nwp-en-GB."""
    reach: float
    """Share of the population that the task can use."""
    min_sep: Figure
    max_participations: Figure
    """k: most rounds of one device."""
    rho: Figure
    epsilon: Figure
    trace_rho: float
    days: float
    """Simulated time to the last commit."""
    ended: str
    """How the run ended; "completed", or why it did not."""
    digest: str
    """The trace's digest."""
    wall_seconds: float

    def to_json(self) -> dict[str, Any]:
        """As in `fedray reproduce --json`."""
        document = asdict(self)
        for name in ("min_sep", "max_participations", "rho", "epsilon"):
            document[name]["relative_difference"] = getattr(self, name).relative_difference
        return document


def reproduce_gboard(
    rows: str | None = None,
    overrides: Sequence[str] = (),
    out: Path | None = None,
    placement: Placement | None = None,
    on_row: Callable[[list[ReproducedRun]], None] | None = None,
) -> list[ReproducedRun]:
    """Simulates published runs and audits them.

    Args:
        rows: comma-separated locales or names; None for all.
        overrides: keys set in every scenario, as "table.key=value".
        out: directory in which each trace is kept under its row's name; None keeps none.
        placement: where the simulations run.
        on_row: hears of all results so far after every row.

    Raises:
        InputError: if a row is unknown.
    """
    results = []
    for published in select(rows):
        with tempfile.TemporaryDirectory(prefix="fedray-reproduce-") as folder:
            results.append(
                _reproduce(published, overrides, (out or Path(folder)) / published.name, placement)
            )
        if on_row is not None:
            on_row(results)
    return results


GAP_NOTE = (
    "Published min-seps count the rounds strictly between two participations, so the gap is "
    "one more; fedray's min-sep is the gap."
)


def _reproduce(
    published: PublishedRun, overrides: Sequence[str], trace_path: Path, placement: Placement | None
) -> ReproducedRun:
    scenario = Scenario.from_toml(published.file, overrides)
    trace = simulate(scenario, placement, trace_path)
    audit = audit_trace(trace, mechanism=Tree())
    tree = audit.mechanisms[0]
    # A run of ours always has a noise multiplier, and so a rho.
    assert tree.observed.rho is not None
    return ReproducedRun(
        name=published.name,
        reach=scenario.population.reach,
        min_sep=Figure(audit.min_sep if audit.max_participations > 1 else None, published.min_sep),
        max_participations=Figure(audit.max_participations, published.max_participations),
        rho=Figure(tree.observed_limits.rho, published.rho),
        epsilon=Figure(tree.observed_limits.epsilon, published.epsilon),
        trace_rho=tree.observed.rho,
        days=float(trace.rounds["closed"][-1]) / 86_400.0,
        ended=trace.run["ended"],
        digest=trace.digest,
        wall_seconds=trace.run["wall_seconds"],
    )
