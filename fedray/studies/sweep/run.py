"""Runs a sweep: every cell a task, what was computed before taken from the cache of studies, so
that an interrupted sweep goes on."""

import io
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from fedray.base.atomic import write_directory
from fedray.base.document import InJson, InPlace, Key, NotInJson, json_of
from fedray.base.errors import Unsustainable, shown
from fedray.base.result import DrawnResult
from fedray.mechanisms.comparison import NOT_COMPARABLE
from fedray.mechanisms.optimize.design import default_cache as designs_cache
from fedray.mechanisms.participation import MinSep
from fedray.runs.sustainable import why_unsustainable
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.studies.simulated import (
    StudyCache,
    Truth,
    results_of_all,
    simulate_runs,
    simulated,
    study_digest,
)
from fedray.studies.sweep.cells import Row, assumed, judge
from fedray.studies.sweep.sweep import Cell, Sweep

Progress = Callable[[str], None]
LESS_IS_BETTER = (
    "rms_loss",
    "max_loss",
    "regret",
    "rms_prefix_error",
    "max_prefix_error",
    "sensitivity",
    "rho",
    "epsilon",
)


@dataclass(frozen=True, slots=True)
class CellResult:
    """The rows of one cell, in the order of the sweep's mechanisms."""

    cell: Cell
    """The values that are varied."""
    rows: tuple[Row, ...]
    """A row per mechanism, and per what it is made for."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where the better of two mechanisms changes: between two neighbouring values on the horizontal
    axis."""

    before: str
    """The mechanism that is better up to there."""
    after: str
    """The mechanism that is better from there."""
    low: float
    """The neighbouring value at which the one before is better."""
    high: float
    """The neighbouring value at which the one after is better."""
    at: float
    """Where they are equal, by linear interpolation between the two."""


class RowOfCell(NamedTuple):
    """A row of a sweep, with the values of its cell."""

    cell: InPlace[Mapping[str, Any]]
    """Value in the cell of each KEY that is varied."""
    row: InPlace[Row]


@dataclass(frozen=True, slots=True)
class SweepResult(DrawnResult):
    """All rows of a sweep, cell by cell, as tables, JSON or Arrow."""

    TABLES: ClassVar[str] = "fedray.studies.sweep.page:sweep_tables"
    FIGURES: ClassVar[str] = "fedray.studies.sweep.page:sweep_figures"
    PAGE: ClassVar[str] = "fedray.studies.sweep.page:sweep_page"

    sweep: NotInJson[Sweep]
    """What was asked for."""
    cells: NotInJson[tuple[CellResult, ...]]
    """In the sweep's order."""
    warnings: NotInJson[tuple[str, ...]] = ()
    """Cache entries that were not what they should be, and were computed anew."""
    note: ClassVar[InJson[str]] = NOT_COMPARABLE
    """Why mechanisms are not compared by their noise multipliers."""

    def __repr__(self) -> str:
        rows = sum(len(each.rows) for each in self.cells)
        return f"<SweepResult {shown(self.sweep.name)}: {len(self.cells):,} cells, {rows:,} rows>"

    @property
    def asked(self) -> Annotated[dict[str, Any], Key("sweep")]:
        """What was asked for: the keys of the sweep file."""
        return self.sweep.model_dump(mode="json", exclude_none=True)

    @property
    def rows(self) -> InJson[list[RowOfCell]]:
        """A row per cell and mechanism; in a cell, the least prefix error first."""
        return [
            RowOfCell({f"cell.{key}": value for key, value in each.cell.values}, row)
            for each in self.cells
            for row in sorted(each.rows, key=_error_to_sort_by)
        ]

    @property
    def overtakings(self) -> Annotated[list[Crossing], Key("crossings")]:
        """Where the better of two mechanisms changes along the horizontal axis."""
        return self.crossings()

    def table(self) -> list[dict[str, Any]]:
        """A flat row per cell and mechanism: the cell's values first, by their keys; in a cell, the
        least prefix error first."""
        return json_of(self.rows)

    def to_arrow(self) -> pa.Table:
        """`table` with a column per key. Values of a key that are of several types (a number, or
        "most") are text."""
        mixed = set()
        for key, values in self.sweep.vary.items():
            if len({type(value) for value in values}) > 1:
                # A column of Arrow has one type.
                mixed.add(f"cell.{key}")
        rows = [
            {key: str(value) if key in mixed else value for key, value in row.items()}
            for row in self.table()
        ]
        return pa.Table.from_pylist(rows)

    def _lines(self) -> dict[tuple[str, ...], list[tuple[float, float]]]:
        """y over x, by mechanism and the other values; numbers only."""
        lines: dict[tuple[str, ...], list[tuple[float, float]]] = {}
        for each in self.cells:
            # A key with a single value would be in every name.
            others = [
                f"{key.split('.')[-1]} {value}"
                for key, value in each.cell.values
                if key != self.sweep.x and self._varies(key)
            ]
            for row in each.rows:
                x = each.cell.get(self.sweep.x)
                y = getattr(row, self.sweep.y)
                if y is not None and isinstance(x, int | float):
                    line = lines.setdefault((row.mechanism, *others), [])
                    line.append((float(x), float(y)))
        return {name: sorted(points) for name, points in lines.items()}

    def crossings(self) -> list[Crossing]:
        """Where the better of two mechanisms changes, of every two at the same other values; none
        of figures of which less is not better."""
        if self.sweep.y not in LESS_IS_BETTER:
            return []
        lines = self._lines()
        found = []
        for first, second in itertools.combinations(lines, 2):
            # A line's name is its mechanism, then the other values.
            if first[1:] != second[1:]:
                continue
            name = ", ".join(first)
            other_name = ", ".join(second)
            found += _crossings(name, lines[first], other_name, lines[second])
        return found

    def _varies(self, key: str) -> bool:
        return len(self.sweep.vary[key]) > 1


def run_sweep(
    sweep: Sweep,
    scenario: Scenario | None = None,
    placement: Placement | None = None,
    has_cache: bool = True,
    on_progress: Progress | None = None,
) -> SweepResult:
    """Runs all cells of a sweep: first what happens in them, then how the mechanisms fare.

    Args:
        sweep: what is varied, and which mechanisms are judged.
        scenario: of the sweep; None if its cells are settings.
        placement: where the tasks run.
        has_cache: whether to keep cells and mechanisms, and to take those that were kept.
        on_progress: hears how many cells are done.

    Returns:
        The rows of every cell, in the sweep's order.

    Raises:
        Unsustainable: no cell can commit its rounds; a cell that cannot counts as starved.
        RunFailed: if a task dies for good.
    """
    cells = sweep.cells()
    cache = StudyCache(has_cache)
    designs = designs_cache() if has_cache else None
    tell = on_progress or (lambda _: None)
    placement = placement or Placement()
    scenarios = [cell.scenario_of(scenario) if scenario is not None else None for cell in cells]
    _check_that_some_cell_is_sustainable(scenarios)
    truths = _truths(sweep, cells, scenarios, placement, cache, tell)
    # Cells that starved have no outcome that a mechanism could be made for.
    distribution = tuple(truth.participation for truth in truths if truth.participation is not None)
    jobs = [
        _Judgement(sweep, *each, distribution, designs)
        for each in zip(cells, scenarios, truths, strict=True)
    ]
    digests = [job.digest for job in jobs]
    rows = results_of_all(
        _judged,
        jobs,
        [_kept_rows(cache, digest) for digest in digests],
        lambda place, found: _keep_rows(cache, digests[place], found),
        placement,
        lambda counts: tell(counts.line("cells judged")),
    )
    results = tuple(CellResult(*each) for each in zip(cells, rows, strict=True))
    return SweepResult(sweep, results, tuple(cache.warnings))


def write_results(result: SweepResult, out: Path, page: str) -> None:
    """Writes results.parquet, results.json and report.html.

    Args:
        result: the sweep's.
        out: a new directory.
        page: the content of report.html.

    Raises:
        InputError: if the directory cannot be written.
    """
    table = io.BytesIO()
    pq.write_table(result.to_arrow(), table, compression="zstd")
    document = json.dumps(result.to_json(), indent=1) + "\n"
    files = {
        "results.parquet": table.getvalue(),
        "results.json": document.encode(),
        "report.html": page.encode(),
    }
    write_directory(out, files)


def _check_that_some_cell_is_sustainable(scenarios: list[Scenario | None]) -> None:
    reasons = [None if each is None else why_unsustainable(each) for each in scenarios]
    if all(reasons):
        raise Unsustainable(f"no cell of the sweep can be run; the first one: {reasons[0]}")


def _error_to_sort_by(row: Row) -> float:
    """The prefix error; rows without one come last."""
    return math.inf if row.rms_prefix_error is None else row.rms_prefix_error


@dataclass(frozen=True)
class _Judgement:
    sweep: Sweep
    cell: Cell
    scenario: Scenario | None
    truth: Truth
    distribution: tuple[MinSep, ...]
    designs: Path | None

    @property
    def digest(self) -> str:
        """Digest of everything that the rows depend on, and of nothing else: a cell that is judged
        the same way in two sweeps is computed once."""
        # A field that is missing here lets rows of another sweep be taken for this one's.
        used = {"estimate", "mechanisms", "noise_multiplier", "noise_per_report", "delta"}
        sweep = self.sweep.model_dump(mode="json", include=used)
        # What is plotted decides objectives, and is not among the fields above.
        objectives = [self.sweep.objective_of(spec) for spec in self.sweep.mechanisms]
        scenario_digest = self.scenario.digest if self.scenario is not None else None
        participation = self.truth.participation
        # The scenario's digest stands for the patterns, which follow from it.
        truth = asdict(participation) if participation is not None else None
        # Else a cell that is added to a sweep would make all others be judged again.
        needs_all = any("distribution" in spec.made_for for spec in self.sweep.mechanisms)
        distribution = [asdict(each) for each in self.distribution] if needs_all else []
        # A report goal among the values may decide z.
        values = list(self.cell.values)
        inputs = (sweep, objectives, values, scenario_digest, truth, distribution)
        return study_digest("judgement", *inputs)


def _judged(job: _Judgement) -> tuple[Row, ...]:
    return tuple(judge(job.sweep, job.cell, job.scenario, job.truth, job.distribution, job.designs))


def _truths(
    sweep: Sweep,
    cells: list[Cell],
    scenarios: list[Scenario | None],
    placement: Placement,
    cache: StudyCache,
    tell: Progress,
) -> list[Truth]:
    """What happens in each cell, simulated once for all cells that have the same scenario."""
    # The cells of a sweep all have a scenario, or none has.
    wanted = [each for each in scenarios if each is not None]
    if not wanted:
        return [assumed(sweep, cell) for cell in cells]
    return simulate_runs(
        wanted, simulated, placement, cache, lambda counts: tell(counts.line("runs simulated"))
    )


def _kept_rows(cache: StudyCache, digest: str) -> tuple[Row, ...] | None:
    content = cache.read(f"{digest}.json", digest)
    return None if content is None else tuple(Row(**row) for row in json.loads(content))


def _keep_rows(cache: StudyCache, digest: str, rows: tuple[Row, ...]) -> None:
    text = json.dumps([row.to_json() for row in rows])
    cache.keep(f"{digest}.json", digest, text.encode())


def _crossings(
    first: str, points: list[tuple[float, float]], second: str, others: list[tuple[float, float]]
) -> Iterator[Crossing]:
    """Where the difference of two lines changes its sign; places where both are the same are passed
    over, since they may only touch."""
    other = dict(others)
    shared = [(x, y - other[x]) for x, y in points if x in other and y != other[x]]
    for (low, before), (high, after) in itertools.pairwise(shared):
        if before * after < 0:
            # The difference is first minus second, and less is better.
            better, worse = (first, second) if before < 0 else (second, first)
            at = low + (high - low) * before / (before - after)
            yield Crossing(better, worse, low, high, at)
