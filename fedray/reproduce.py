"""Published runs, simulated: observed beside published, row by row."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedray.audit.audit import audit_trace
from fedray.errors import InputError
from fedray.placement import Placement
from fedray.scenario import Scenario
from fedray.simulation import simulate
from scenarios.gboard import PublishedRun, select


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a run. published: None where it is not."""

    observed: float
    published: float | None

    @property
    def relative_difference(self) -> float | None:
        """observed / published - 1."""
        return None if self.published is None else self.observed / self.published - 1.0


@dataclass(frozen=True, slots=True)
class ReproducedRun:
    """One row. rho and epsilon are of tree aggregation for the observed (min-sep, max participations), as the paper reports them;
    trace_rho is exact for the trace. wall_seconds: simulation, without the audit."""

    name: str
    reach: float
    min_sep: Figure
    max_participations: Figure
    rho: Figure
    epsilon: Figure
    trace_rho: float
    days: float
    ended: str
    digest: str
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
    """Runs the scenarios of the chosen rows (comma-separated locales or names; None for all).

    Traces are kept as `out`/<row> if a directory is given. `on_row` hears of all results so far after every row. Raises
    InputError for unknown rows.
    """
    try:
        chosen = select(rows)
    except ValueError as error:
        raise InputError(str(error)) from None
    results = []
    for published in chosen:
        with tempfile.TemporaryDirectory(prefix="fedray-reproduce-") as folder:
            results.append(_reproduce(published, overrides, (out or Path(folder)) / published.name, placement))
        if on_row is not None:
            on_row(results)
    return results


def table_rows(results: Sequence[ReproducedRun]) -> list[list[str]]:
    """What is printed: a heading, then a row per run; each figure observed / published and their relative difference."""
    heading = ["run", "reach", "min-sep", "", "max part.", "rho, (b, k)", "", "epsilon, (b, k)", "", "rho, trace", "days"]
    return [heading, *(_cells(result) for result in results)]


def _cells(result: ReproducedRun) -> list[str]:
    def pair(figure: Figure, form: str) -> str:
        return f"{figure.observed:{form}} / {'-' if figure.published is None else format(figure.published, form)}"

    def difference(figure: Figure) -> str:
        return "" if figure.relative_difference is None else f"{100 * figure.relative_difference:+.1f} %"

    return [
        result.name,
        f"{result.reach:g}",
        pair(result.min_sep, ".0f"),
        difference(result.min_sep),
        pair(result.max_participations, ".0f"),
        pair(result.rho, ".2f"),
        difference(result.rho),
        pair(result.epsilon, ".2f"),
        difference(result.epsilon),
        f"{result.trace_rho:.3f}",
        f"{result.days:.1f}",
    ]


def _reproduce(published: PublishedRun, overrides: Sequence[str], trace_path: Path, placement: Placement | None) -> ReproducedRun:
    scenario = Scenario.from_toml(published.file, overrides)
    trace = simulate(scenario, placement, trace_path)
    audit = audit_trace(trace)
    tree = next(mechanism for mechanism in audit.mechanisms if mechanism.name == "tree")
    return ReproducedRun(
        name=published.name,
        reach=scenario.population.reach,
        min_sep=Figure(audit.min_sep, published.min_sep),
        max_participations=Figure(audit.max_participations, published.max_participations),
        rho=Figure(tree.schema_rho, published.rho),
        epsilon=Figure(tree.schema_epsilon, published.epsilon),
        trace_rho=tree.rho,
        days=float(trace.rounds["closed"][-1]) / 86_400.0,
        ended=trace.run["ended"],
        digest=trace.digest,
        wall_seconds=trace.run["wall_seconds"],
    )
