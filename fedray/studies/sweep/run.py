"""Runs a sweep: every cell a task, what was computed before taken from the cache, so that an
interrupted sweep goes on.

The cache (`$XDG_CACHE_HOME/fedray/stress`, else `~/.cache/fedray/stress`) is keyed by all inputs of
a cell and by the code and libraries that compute it: a digest of the sources of every package but
the tests. An entry whose digests (`fedray.kept`) are wrong is told of and computed anew.
"""

import contextlib
import hashlib
import importlib.metadata
import io
import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedray.atomic import write_directory
from fedray.audit.participation import Patterns
from fedray.cluster import ROOT, TaskCounts, run_tasks
from fedray.errors import shown
from fedray.kept import keep, read_kept
from fedray.mechanisms.comparison import NOT_COMPARABLE
from fedray.mechanisms.optimize.design import default_cache as designs_cache
from fedray.mechanisms.participation import MinSep
from fedray.part_done import PartDone
from fedray.placement import Placement
from fedray.result import DrawnResult
from fedray.scenario import Scenario
from fedray.studies.sweep.cells import Row, Truth, assumed, judge, simulated
from fedray.studies.sweep.sweep import Cell, Sweep
from fedray.trace.provenance import package_versions

_SOURCES = ("fedray", "fedray/mechanisms", "fedray/clients", "fedray/server")
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


@dataclass(frozen=True, slots=True)
class SweepResult(DrawnResult):
    """All rows of a sweep, cell by cell, as tables, JSON or Arrow."""

    sweep: Sweep
    """What was asked for."""
    cells: tuple[CellResult, ...]
    """In the sweep's order."""
    warnings: tuple[str, ...] = ()
    """Cache entries that were not what they should be, and were computed anew."""

    def __repr__(self) -> str:
        rows = sum(len(each.rows) for each in self.cells)
        return f"<SweepResult {shown(self.sweep.name)}: {len(self.cells):,} cells, {rows:,} rows>"

    def table(self) -> list[dict[str, Any]]:
        """A flat row per cell and mechanism: the cell's values first, by their keys; in a cell, the
        least prefix error first."""
        rows = []
        for each in self.cells:
            values = {f"cell.{key}": value for key, value in each.cell.values}
            for row in sorted(each.rows, key=_error_to_sort_by):
                rows.append({**values, **row.to_json()})
        return rows

    def to_json(self) -> dict[str, Any]:
        """One JSON object, as in results.json: the sweep, a row per cell and mechanism, and the
        crossings."""
        return {
            "sweep": self.sweep.model_dump(mode="json", exclude_none=True),
            "note": NOT_COMPARABLE,
            "rows": self.table(),
            "crossings": [asdict(each) for each in self.crossings()],
        }

    def to_arrow(self) -> pa.Table:
        """`table` with a column per key. Values of a key that are of several types (a number, or
        "most") are text."""
        mixed = set()
        for key, values in self.sweep.vary.items():
            if len({type(value) for value in values}) > 1:
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
        RunFailed: if a task dies for good.
    """
    cells = sweep.cells()
    cache = _Cache(default_cache() if has_cache else None)
    designs = designs_cache() if has_cache else None
    tell = on_progress or (lambda _: None)
    placement = placement or Placement()
    scenarios = [cell.scenario_of(scenario) if scenario is not None else None for cell in cells]
    truths = _truths(sweep, cells, scenarios, placement, cache, tell)
    distribution = tuple(truth.participation for truth in truths if truth.participation is not None)
    jobs = [
        _Judgement(sweep, *each, distribution, designs)
        for each in zip(cells, scenarios, truths, strict=True)
    ]
    digests = [job.digest for job in jobs]
    rows: dict[int, tuple[Row, ...]] = {}
    for index, digest in enumerate(digests):
        known = cache.rows(digest)
        if known is not None:
            rows[index] = known
    missing = [index for index in range(len(jobs)) if index not in rows]
    missing_jobs = [jobs[index] for index in missing]
    tell(PartDone(f"{len(rows)} of {len(jobs)} cells judged", len(rows), len(jobs)))
    # Each cell is kept as soon as it is done, so that an interrupted sweep goes on.

    def say_judged(counts: TaskCounts) -> None:
        tell(counts.line("cells judged", kept=len(jobs) - len(missing)))

    for place, found in run_tasks(_judged, missing_jobs, placement, say_judged):
        index = missing[place]
        rows[index] = tuple(found)
        cache.keep_rows(digests[index], rows[index])
    results = tuple(CellResult(cell, rows[index]) for index, cell in enumerate(cells))
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


def default_cache() -> Path:
    """Where cells are kept: beside the cache of mechanisms, and as that one of the user's."""
    return designs_cache().with_name("stress")


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
        used = {"estimate", "mechanisms", "noise_multiplier", "noise_per_report", "delta"}
        sweep = self.sweep.model_dump(mode="json", include=used)
        objectives = [self.sweep.objective_of(spec) for spec in self.sweep.mechanisms]
        scenario_digest = self.scenario.digest if self.scenario is not None else None
        participation = self.truth.participation
        truth = asdict(participation) if participation is not None else None
        # Else a cell that is added to a sweep would make all others be judged again.
        needs_all = any("distribution" in spec.made_for for spec in self.sweep.mechanisms)
        distribution = [asdict(each) for each in self.distribution] if needs_all else []
        values = list(self.cell.values)
        return _digest("judgement", sweep, objectives, values, scenario_digest, truth, distribution)


def _judged(job: _Judgement) -> list[Row]:
    return judge(job.sweep, job.cell, job.scenario, job.truth, job.distribution, job.designs)


def _truths(
    sweep: Sweep,
    cells: list[Cell],
    scenarios: list[Scenario | None],
    placement: Placement,
    cache: "_Cache",
    tell: Progress,
) -> list[Truth]:
    """What happens in each cell, simulated once for all cells that have the same scenario."""
    wanted = [each for each in scenarios if each is not None]
    digests = [_digest("truth", each.digest) for each in wanted]
    # Cells that differ in their mechanisms alone share a run.
    runs = dict(zip(digests, wanted, strict=True))
    if not runs:
        return [assumed(sweep, cell) for cell in cells]
    truths: dict[str, Truth] = {}
    for digest in runs:
        known = cache.truth(digest)
        if known is not None:
            truths[digest] = known
    missing = [digest for digest in runs if digest not in truths]
    tell(PartDone(f"{len(truths)} of {len(runs)} runs simulated", len(truths), len(runs)))
    missing_runs = [runs[digest] for digest in missing]

    def say_simulated(counts: TaskCounts) -> None:
        tell(counts.line("runs simulated", kept=len(runs) - len(missing)))

    for place, truth in run_tasks(simulated, missing_runs, placement, say_simulated):
        truths[missing[place]] = truth
        cache.keep_truth(missing[place], truth)
    return [truths[digest] for digest in digests]


class _Cache:
    """Cells on disk; None keeps nothing. What is not as it was written is computed anew, and told
    in `warnings`; what cannot be written is left alone."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self.warnings: list[str] = []

    def rows(self, digest: str) -> tuple[Row, ...] | None:
        content = self._read(f"{digest}.json", digest)
        if content is None:
            return None
        return tuple(Row(**row) for row in json.loads(content))

    def keep_rows(self, digest: str, rows: tuple[Row, ...]) -> None:
        text = json.dumps([row.to_json() for row in rows])
        self._write(f"{digest}.json", digest, text.encode())

    def truth(self, digest: str) -> Truth | None:
        content = self._read(f"{digest}.npz", digest)
        if content is None:
            return None
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            head = json.loads(arrays["head"].tobytes())
            if head["participation"] is None:
                return Truth(None, note=head["note"])
            participation = MinSep(**head["participation"])
            patterns = Patterns(
                participation.rounds,
                arrays["device_ids"],
                arrays["counts"],
                arrays["rounds"],
                arrays.get("weights"),
            )
            return Truth(participation, patterns, head["days"], head["note"])

    def keep_truth(self, digest: str, truth: Truth) -> None:
        head = {
            "participation": asdict(truth.participation) if truth.participation else None,
            "days": truth.days,
            "note": truth.note,
        }
        arrays = {"head": np.frombuffer(json.dumps(head).encode(), np.uint8)}
        if truth.patterns is not None:
            names = ["device_ids", "counts", "rounds"]
            names += ["weights"] if truth.patterns.weights is not None else []
            arrays |= {name: getattr(truth.patterns, name) for name in names}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # pyright: ignore[reportArgumentType]
        self._write(f"{digest}.npz", digest, buffer.getvalue())

    def _read(self, name: str, request: str) -> bytes | None:
        """The content of an entry, if it is the one that was written for this request."""
        if self._folder is None:
            return None
        try:
            return read_kept(self._folder / name, request)
        except ValueError as reason:
            self.warnings.append(f"cache entry {name} {reason}; computed anew")
            return None

    def _write(self, name: str, request: str, content: bytes) -> None:
        if self._folder is not None:
            # A full or read-only disk costs the time of computing again, and nothing else.
            with contextlib.suppress(OSError):
                keep(self._folder / name, request, content)


def _digest(*inputs: Any) -> str:
    text = json.dumps([_code_digest(), *inputs], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@lru_cache(maxsize=1)
def _code_digest() -> str:
    optimisers = {name: importlib.metadata.version(name) for name in ("scipy", "jax")}
    versions = {**package_versions(), **optimisers}
    digest = hashlib.sha256(json.dumps(versions, sort_keys=True).encode())
    for folder in _SOURCES:
        for file in sorted((ROOT / folder).rglob("*.py")):
            # Of our own code too, so that no kept cell outlives a change of what it was computed
            # by.
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _crossings(
    first: str, points: list[tuple[float, float]], second: str, others: list[tuple[float, float]]
) -> Iterator[Crossing]:
    """Where the difference of two lines changes its sign; places where both are the same are passed
    over, since they may only touch."""
    other = dict(others)
    shared = [(x, y - other[x]) for x, y in points if x in other and y != other[x]]
    for (low, before), (high, after) in itertools.pairwise(shared):
        if before * after < 0:
            better, worse = (first, second) if before < 0 else (second, first)
            at = low + (high - low) * before / (before - after)
            yield Crossing(better, worse, low, high, at)
