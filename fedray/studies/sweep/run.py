"""Runs a sweep: every cell is a task, and is kept in the cache of studies, so that an interrupted
sweep resumes."""

import io
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Annotated, Any, ClassVar, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from fedray.audit.calibration import check_server_noise
from fedray.base.document import Document, IfAny, InJson, InPlace, Key, NotInJson, json_of
from fedray.base.errors import InputError, Unsustainable, one_line, shown
from fedray.base.kept import cache_folder
from fedray.base.result import DrawnResult
from fedray.base.rounding import SAME, as_set
from fedray.mechanisms.comparison import NOT_COMPARABLE
from fedray.runs.sustainable import why_unsustainable
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.studies.simulated import (
    StudyCache,
    Truth,
    results_of_all,
    simulate_runs,
    simulated,
)
from fedray.studies.sweep.cells import Judgement, Row
from fedray.studies.sweep.sweep import Cell, Sweep, Value

Progress = Callable[[str], None]
_Values = tuple[tuple[str, Value], ...]
OF_THE_CELL = ("min_sep", "max_participations", "days", "noise_multiplier")
"""Plotted figures that all mechanisms of a cell share; less is better for the others."""
ERRORS = ("rms_prefix_error", "max_prefix_error", "rms_error")
"""Errors of sums, in the order of `MeanErrors`: over the report goal they are those of means."""


@dataclass(frozen=True, slots=True)
class CellResult:
    """The rows of one cell, in the order of the sweep's mechanisms."""

    cell: Cell
    """The varied values."""
    rows: tuple[Row, ...]
    """A row per mechanism and purpose."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """A change of the better of two mechanisms between neighbouring values on the x axis."""

    before: str
    """The mechanism that is better below."""
    after: str
    """The mechanism that is better above."""
    low: float
    """The last value at which the one before is better."""
    high: float
    """The next value, at which the one after is better."""
    at: float
    """Value at which they are equal, by linear interpolation."""
    cell: InPlace[Mapping[str, Any]] = field(default_factory=dict)
    """Value of each other varied KEY."""


@dataclass(frozen=True, slots=True)
class MeanErrors(Document):
    """Errors of a row over the report goal of its cell, at clip norm 1, if report goals vary."""

    mean_rms_prefix_error: IfAny[float] = None
    """rms_prefix_error over the report goal. Absent if all cells have one goal."""
    mean_max_prefix_error: IfAny[float] = None
    """max_prefix_error over the report goal; absent likewise."""
    mean_rms_error: IfAny[float] = None
    """rms_error over the report goal; absent likewise, and without a target."""


class RowOfCell(NamedTuple):
    """A row of a sweep, with the values of its cell."""

    cell: InPlace[Mapping[str, Any]]
    """Value of each varied KEY in this cell."""
    row: InPlace[Row]
    mean: InPlace[MeanErrors]


@dataclass(frozen=True, slots=True)
class SweepResult(DrawnResult):
    """All rows of a sweep, cell by cell, as tables, JSON or Arrow."""

    TABLES: ClassVar[str] = "fedray.studies.sweep.page:sweep_tables"
    SUBJECT: ClassVar[str] = "fedray.studies.sweep.page:sweep_subject"
    FIGURES: ClassVar[str] = "fedray.studies.sweep.page:sweep_figures"
    PAGE: ClassVar[str] = "fedray.studies.sweep.page:sweep_page"
    HEADLINE: ClassVar[str] = "fedray.studies.sweep.page:sweep_verdict"

    sweep: NotInJson[Sweep]
    """The requested sweep."""
    cells: NotInJson[tuple[CellResult, ...]]
    """In the sweep's order."""
    warnings: NotInJson[tuple[str, ...]] = ()
    """Damaged cache entries, which were computed again, and failed cells."""
    note: ClassVar[InJson[str]] = NOT_COMPARABLE
    """Reason not to compare mechanisms by their noise multipliers."""

    def __repr__(self) -> str:
        rows = sum(len(each.rows) for each in self.cells)
        return f"<SweepResult {shown(self.sweep.name)}: {len(self.cells):,} cells, {rows:,} rows>"

    @property
    def asked(self) -> Annotated[dict[str, Any], Key("sweep")]:
        """The requested sweep: the keys of its file."""
        return self.sweep.model_dump(mode="json", exclude_none=True)

    @property
    def rows(self) -> InJson[list[RowOfCell]]:
        """A row per cell and mechanism; in a cell, the least prefix error first."""
        of_mean = ERRORS if self.sweep.has_goals else ()
        return [
            RowOfCell(
                {f"cell.{key}": value for key, value in each.cell.values},
                row,
                MeanErrors(*(self.figure(each.cell, row, name) for name in of_mean)),
            )
            for each in self.cells
            for row in sorted(each.rows, key=_error_to_sort_by)
        ]

    @property
    def overtakings(self) -> Annotated[list[Crossing], Key("crossings")]:
        """Changes of the better of two mechanisms along the horizontal axis."""
        return self.crossings()

    @property
    def is_of_cell(self) -> bool:
        """Whether all mechanisms of a cell share the plotted figure."""
        y, target = self.sweep.y, self.sweep.target_epsilon
        return y in OF_THE_CELL and (target is None or y != "noise_multiplier")

    @property
    def has_rivals(self) -> bool:
        """Whether cells have several mechanisms, which are compared at one rho."""
        return any(len(each.rows) > 1 for each in self.cells)

    @property
    def has_one_rho(self) -> bool:
        """Whether the mechanisms of all cells are compared at one rho."""
        rhos = [row.common_rho for each in self.cells for row in each.rows if row.common_rho]
        return not rhos or max(rhos) - min(rhos) <= float(SAME) * max(rhos)

    def figure(self, cell: Cell, row: Row, name: str) -> float | None:
        """Returns a figure of a row; an error is that of the mean if report goals vary.

        Args:
            cell: cell of the row.
            row: the row.
            name: field of `Row`.
        """
        value = getattr(row, name)
        if value is None or name not in ERRORS or not self.sweep.has_goals:
            return value
        assert cell.report_goal is not None, "a goal that varies is in each cell"
        return value / cell.report_goal

    def table(self) -> list[dict[str, Any]]:
        """`rows` as flat mappings: the cell's values first, by their keys."""
        return json_of(self.rows)

    def to_arrow(self) -> pa.Table:
        """`table` with a column per key. Keys with values of several types are text."""
        # A column of Arrow has one type.
        mixed = {
            f"cell.{key}"
            for key, values in self.sweep.varied.items()
            if len(set(map(type, values))) > 1
        }
        table = self.table()
        # Arrow takes its columns from the first row, which may lack figures of persons.
        keys = dict.fromkeys(key for row in table for key in row)
        rows = [
            {key: as_set(row[key]) if key in mixed else row.get(key) for key in keys}
            for row in table
        ]
        return pa.Table.from_pylist(rows)

    def others_of(self, cell: Cell, axes: tuple[str, ...]) -> list[tuple[str, Any]]:
        """Returns the values of a cell on keys that have several, other than the axes, and without
        a seed over which figures are means."""
        if self.sweep.has_means:
            axes += ("seed",)
        names = self.sweep.names
        return [each for each in cell.values if each[0] in names and each[0] not in axes]

    def _lines(self) -> dict[tuple[str, _Values], list[tuple[float, float]]]:
        """y over x, by mechanism and the other values; means over seeds."""
        x, y = self.sweep.x, self.sweep.y
        lines: dict[tuple[str, _Values], dict[float, list[float]]] = {}
        for each in self.cells:
            others = tuple(self.others_of(each.cell, (x,)))
            for row in each.rows:
                if (value := self.figure(each.cell, row, y)) is not None:
                    line = lines.setdefault((row.mechanism, others), {})
                    line.setdefault(float(each.cell.get(x)), []).append(float(value))
        return {
            name: sorted((at, fmean(values)) for at, values in points.items())
            for name, points in lines.items()
        }

    def crossings(self) -> list[Crossing]:
        """Changes of the better of two mechanisms at equal other values. No mechanism is better for
        an epsilon that it was calibrated to."""
        is_target = self.sweep.y == "epsilon" and self.sweep.target_epsilon is not None
        if self.sweep.y in OF_THE_CELL or is_target:
            return []
        found = []
        for (first, points), (second, other) in itertools.combinations(self._lines().items(), 2):
            (name, values), (rival, others) = first, second
            if values == others:
                cell = {f"cell.{key}": value for key, value in values}
                crossed = _crossings(name, points, rival, other)
                found += [replace(each, cell=cell) for each in crossed]
        return found


def run_sweep(
    sweep: Sweep,
    scenario: Scenario | None = None,
    placement: Placement | None = None,
    on_progress: Progress | None = None,
    bucket: str | None = None,
) -> SweepResult:
    """Simulates or assumes the outcome of every cell of a sweep, then judges the mechanisms.

    Args:
        sweep: varied values and judged mechanisms.
        scenario: scenario of the sweep; None if its cells are settings.
        placement: where the tasks run.
        on_progress: called with the number of finished cells.
        bucket: URI of a folder in a bucket, where the cache is kept too.

    Returns:
        The rows of every cell, in the sweep's order.

    Raises:
        InputError: the sweep has a trace, for `run_grid`.
        Unsustainable: no cell can commit its rounds; a cell that cannot counts as starved.
        FedrayError: every cell failed; a cell that fails while others do not is rows with a note.
    """
    if sweep.trace is not None:
        raise InputError.of("sweep", sweep.name, "has a trace to train on", "use run_grid")
    cells = sweep.cells()
    cache = StudyCache(bucket=bucket)
    designs = cache_folder("designs")
    listen = on_progress or (lambda _: None)
    placement = placement or Placement()
    scenarios = [cell.scenario_of(scenario) if scenario is not None else None for cell in cells]
    reasons = [None if each is None else why_unsustainable(each) for each in scenarios]
    if all(reasons):
        raise Unsustainable(f"no cell of the sweep can be run; the first one: {reasons[0]}")
    # Either all cells have a scenario, or none has.
    wanted = [each for each in scenarios if each is not None]
    for each in wanted:
        check_server_noise(each, "a sweep")
    truths = [Truth(sweep.setting_of(cell)) for cell in cells if not wanted] or simulate_runs(
        wanted,
        simulated,
        placement,
        cache,
        lambda counts: listen(counts.line("runs simulated")),
        _failed,
    )
    # Cells that starved have no outcome that a mechanism could be made for.
    distribution = tuple(truth.participation for truth in truths if truth.participation is not None)
    jobs = [
        Judgement(sweep, *each, distribution, designs)
        for each in zip(cells, scenarios, truths, strict=True)
    ]
    digests = [job.digest for job in jobs]
    failed = {place for place, truth in enumerate(truths) if truth.has_failed}

    def keep_rows(place: int, found: tuple[Row, ...]) -> None:
        if place not in failed:
            _keep_rows(cache, digests[place], found)

    def rows_of_failed(place: int, error: Exception) -> tuple[Row, ...]:
        failed.add(place)
        return replace(jobs[place], truth=_failed(error)).rows()

    rows = results_of_all(
        Judgement.rows,
        jobs,
        [_kept_rows(cache, digest) for digest in digests],
        keep_rows,
        placement,
        lambda counts: listen(counts.line("cells judged")),
        [f"judge {cell}" for cell in cells],
        rows_of_failed,
    )
    results = tuple(CellResult(*each) for each in zip(cells, rows, strict=True))
    warnings = list(cache.warnings)
    if failed:
        note = rows[min(failed)][0].note
        warnings.append(f"{len(failed)} of {len(cells)} cells {note}; run again to repeat them")
    return SweepResult(sweep, results, tuple(warnings))


def _failed(error: Exception) -> Truth:
    return Truth(None, note=f"failed: {one_line(str(error))}", has_failed=True)


def result_files(result: Any, page: str) -> dict[str, bytes]:
    """Returns results.parquet, results.json and report.html of a result."""
    table = io.BytesIO()
    pq.write_table(result.to_arrow(), table, compression="zstd")
    document = json.dumps(result.to_json(), indent=1) + "\n"
    return {
        "results.parquet": table.getvalue(),
        "results.json": document.encode(),
        "report.html": page.encode(),
    }


def _error_to_sort_by(row: Row) -> float:
    """The regret, which is in proportion to the error in a cell; rows without one come last."""
    return math.inf if row.regret is None else row.regret


def _kept_rows(cache: StudyCache, digest: str) -> tuple[Row, ...] | None:
    content = cache.read(f"{digest}.json", digest)
    return None if content is None else tuple(Row(**row) for row in json.loads(content))


def _keep_rows(cache: StudyCache, digest: str, rows: tuple[Row, ...]) -> None:
    text = json.dumps([row.to_json() for row in rows])
    cache.keep(f"{digest}.json", digest, text.encode())


def _crossings(
    first: str, points: list[tuple[float, float]], second: str, others: list[tuple[float, float]]
) -> Iterator[Crossing]:
    """Yields changes of sign of the difference of two lines; skips points where the lines are
    equal, because they may touch without crossing."""
    other = dict(others)
    shared = [(x, y - other[x]) for x, y in points if x in other and y != other[x]]
    for (low, before), (high, after) in itertools.pairwise(shared):
        if before * after < 0:
            # The difference is first minus second, and less is better.
            better, worse = (first, second) if before < 0 else (second, first)
            at = low + (high - low) * before / (before - after)
            yield Crossing(better, worse, low, high, at)
