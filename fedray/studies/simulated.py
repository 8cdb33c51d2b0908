"""Outcomes of a study's simulated runs: each run is a task, and is kept as soon as it is done, so
that an interrupted study resumes.

The cache (`$XDG_CACHE_HOME/fedray/stress`, else `~/.cache/fedray/stress`) is keyed by all inputs of
an entry and by the code and libraries that compute it: a digest of the sources of every package
except tests. An entry with wrong digests (`fedray.base.kept`) is reported and computed again.
"""

import contextlib
import hashlib
import importlib.metadata
import io
import json
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from fedray.audit.guarantees import enforced_limits
from fedray.audit.participation import Patterns, read_patterns
from fedray.base.errors import Starved, TraceError
from fedray.base.kept import cache_folder, keep, read_kept
from fedray.base.source import source_digest
from fedray.base.storage import Bucket
from fedray.mechanisms.participation import MinSep
from fedray.runs.calibrated import ensures
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.runtime.tasks import TaskCounts, run_jobs
from fedray.scenario import Scenario
from fedray.trace.imported import ImportedTrace
from fedray.trace.provenance import package_versions
from fedray.trace.reader import Trace

_Job = TypeVar("_Job")
_Done = TypeVar("_Done")
_COLUMNS = ("device_ids", "counts", "rounds", "weights", "owner_ids")


@dataclass(frozen=True, slots=True)
class Truth:
    """Outcome of a run, simulated or assumed."""

    participation: MinSep | None
    """(n, b, k) of the run; None if it starved, however late."""
    patterns: Patterns | None = None
    """Patterns of the simulated run; None if it was not simulated."""
    days: float | None = None
    """Length of the simulated run; None if it was not simulated."""
    note: str = ""
    """Reason for an early end, or for the lack of participation."""
    has_failed: bool = False
    """Whether the run failed, which another attempt may not."""
    committed: int = 0
    """Committed rounds of a run that starved."""
    enforced: MinSep | None = None
    """(n, b, k) that the rules enforce at the recorded times of the rounds; None if none."""
    gaps: tuple[float, float] | None = None
    """Median and longest minutes between the starts of neighbouring rounds; None if unknown."""

    @property
    def min_sep(self) -> int | None:
        """Min-sep, or None if no device took part twice or the run starved."""
        found = self.participation
        return found.min_sep if found is not None and found.max_participations > 1 else None

    @property
    def binding(self) -> MinSep | None:
        """Limits that a guarantee may rest on: those enforced, else those that came about."""
        return self.enforced or self.participation


def simulated(scenario: Scenario, placement: Placement | None = None) -> Truth:
    """Returns the outcome of a run, by default simulated in this process; its trace is not kept.

    A run that starves, or releases nothing, has no participation but a note with the reason.
    """
    # A task that dies is run again as a whole, so checkpoints would be written for nothing.
    placement = placement or Placement(1, "in-process", checkpoint_seconds=math.inf)
    with tempfile.TemporaryDirectory(prefix="fedray-study-") as folder:
        try:
            trace = simulate(scenario, placement, Path(folder) / "trace")
            patterns = read_patterns(trace)
        except (Starved, TraceError) as error:
            # Without a committed round there is nothing to judge.
            return Truth(None, note=str(error))
        ended = "" if trace.run["ended"] == "completed" else trace.run["ended"]
        # The first rounds of a starved run do not represent the whole run: its figures would look
        # better than those of finished runs.
        if ended.startswith("starved"):
            return Truth(None, note=ended, committed=patterns.committed_rounds)
        # A run that spends its budget has ended as it should; the note says so.
        n = patterns.committed_rounds
        participation = MinSep(n, patterns.min_sep, patterns.max_participations)
        days = float(trace.rounds["closed"][-1]) / 86_400.0
        enforced = enforced_in(trace, scenario, patterns)
        return Truth(participation, patterns, days, ended, enforced=enforced, gaps=_gaps(trace))


def _gaps(trace: Trace) -> tuple[float, float] | None:
    started = trace.rounds["started"][trace.rounds["state"] == 0]
    gaps = np.diff(started) / 60.0
    return (float(np.median(gaps)), float(gaps.max())) if gaps.size else None


def enforced_in(
    trace: Trace | ImportedTrace, scenario: Scenario | None, patterns: Patterns
) -> MinSep | None:
    """Returns (n, b, k) that the rules enforce at the recorded times of the rounds; None if they
    let a device take part in every round, were broken, or are unknown."""
    found = enforced_limits(trace, scenario, None, patterns).participation
    return found if ensures(found) else None


INTERRUPTED = "interrupted; what was simulated is kept, run it again to continue"
"""Message of an interrupted study."""


class StudyCache:
    """Results of studies on disk. A damaged entry is computed again, with a warning.

    Args:
        bucket: URI of a folder of copies in a bucket, for other machines.
    """

    def __init__(self, bucket: str | None = None) -> None:
        self._folder = cache_folder("stress")
        self._bucket = Bucket(bucket) if bucket is not None else None
        self.warnings: list[str] = []
        if self._bucket is not None:
            kept = {each: self._folder / Path(each).name for each in self._bucket.files("/cells")}
            self._bucket.fetch({each: file for each, file in kept.items() if not file.exists()})

    def truth(self, digest: str) -> Truth | None:
        """Returns the kept outcome of the simulated run with this digest."""
        content = self.read(f"{digest}.npz.zst", digest)
        if content is None:
            return None
        plain = pa.CompressedInputStream(pa.BufferReader(content), "zstd").read()
        with np.load(io.BytesIO(plain), allow_pickle=False) as arrays:
            head = json.loads(arrays["head"].tobytes())
            if head["participation"] is None:
                return Truth(None, note=head["note"], committed=head["committed"])
            participation = MinSep(**head["participation"])
            # Entries of `simulated_limits` have no patterns.
            patterns = None
            if "rounds" in arrays:
                columns = {name: arrays[name] for name in _COLUMNS if name in arrays}
                patterns = Patterns(participation.rounds, **columns)
            enforced = MinSep(**head["enforced"]) if head["enforced"] else None
            gaps = head["gaps"] and (head["gaps"][0], head["gaps"][1])
            days, note = head["days"], head["note"]
            return Truth(participation, patterns, days, note, enforced=enforced, gaps=gaps)

    def read(self, name: str, request: str) -> bytes | None:
        """Returns the content of an entry if it was written for this request, a digest."""
        try:
            return read_kept(self._folder / name, request)
        except ValueError as reason:
            self.warnings.append(f"cache entry {name} {reason}; computed again")
            return None

    def keep(self, name: str, request: str, content: bytes) -> None:
        """Keeps an entry for this request, a digest."""
        # A full or read-only disk only costs the time of computing again.
        with contextlib.suppress(OSError):
            keep(self._folder / name, request, content)
            if self._bucket is not None:
                self._bucket.put({f"/cells/{name}": self._folder / name})


def _with_entry(
    simulate_one: Callable[[Scenario], Truth], scenario: Scenario
) -> tuple[Truth, bytes]:
    """Returns the outcome of a run and its content in the cache. A task makes both, because the
    driver serves all nodes."""
    truth = simulate_one(scenario)
    head = {
        "participation": asdict(truth.participation) if truth.participation else None,
        "enforced": asdict(truth.enforced) if truth.enforced else None,
        "days": truth.days,
        "note": truth.note,
        "committed": truth.committed,
        "gaps": truth.gaps,
    }
    # One array of bytes holds all values that are not arrays, so that an entry is one file.
    arrays = {"head": np.frombuffer(json.dumps(head).encode(), np.uint8)}
    if truth.patterns is not None:
        columns = {name: getattr(truth.patterns, name) for name in _COLUMNS}
        arrays |= {name: each for name, each in columns.items() if each is not None}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # pyright: ignore[reportArgumentType]
    # Zip, as of `np.savez_compressed`, takes twenty times as long.
    return truth, pa.compress(buffer.getbuffer(), codec="zstd", asbytes=True)


def simulated_limits(scenario: Scenario) -> Truth:
    """As `simulated`, without the patterns, which take a thousand times the space of the rest."""
    return replace(simulated(scenario), patterns=None)


def simulate_runs(
    scenarios: Sequence[Scenario],
    simulate_one: Callable[[Scenario], Truth],
    placement: Placement,
    cache: StudyCache,
    on_counts: Callable[[TaskCounts], None],
    on_error: Callable[[Exception], Truth] | None = None,
) -> list[Truth]:
    """Returns the outcome of every scenario; simulates each without a kept outcome once, by
    `simulated` or `simulated_limits`. Without `on_error`, raises RunFailed if a task dies for
    good."""
    # The function is part of the key, because the two keep different truths of one scenario.
    digests = [study_digest(simulate_one.__name__, each.digest) for each in scenarios]
    runs = dict(zip(digests, scenarios, strict=True))
    distinct = list(runs)
    known = [cache.truth(digest) for digest in distinct]
    try:
        found = results_of_all(
            partial(_with_entry, simulate_one),
            list(runs.values()),
            [None if truth is None else (truth, b"") for truth in known],
            lambda place, done: cache.keep(f"{distinct[place]}.npz.zst", distinct[place], done[1]),
            placement,
            on_counts,
            [f"simulate goal={each.rounds.report_goal} seed={each.seed}" for each in runs.values()],
            None if on_error is None else (lambda _, error: (on_error(error), b"")),
        )
    except KeyboardInterrupt:
        # The command prints the message, so it says whether running again helps.
        raise KeyboardInterrupt(INTERRUPTED) from None
    of_digest = dict(zip(distinct, found, strict=True))
    return [of_digest[digest][0] for digest in digests]


def results_of_all(
    work: Callable[[_Job], _Done],
    jobs: Sequence[_Job],
    known: Sequence[_Done | None],
    keep_result: Callable[[int, _Done], None],
    placement: Placement,
    on_counts: Callable[[TaskCounts], None],
    names: Sequence[str],
    on_error: Callable[[int, Exception], _Done] | None = None,
) -> list[_Done]:
    """Returns the result of each job; runs the jobs without a known one as `run_jobs`. If all jobs
    fail, raises the first error.

    Args:
        known: result of each job that was done before, else None.
        keep_result: called with a job's place and its result as soon as it is done, so that an
            interrupted study resumes.
        on_counts: called with the progress, first and whenever a job is done or lost.
        names, on_error: as of `run_jobs`; results of `on_error` are not kept.
    """
    # None means that nothing is known, so no result of a job may be None.
    results = {place: each for place, each in enumerate(known) if each is not None}
    missing = [place for place in range(len(jobs)) if place not in results]
    kept = len(results)

    # Tasks only count missing jobs, so kept ones are added.
    def on_tasks(counts: TaskCounts) -> None:
        on_counts(replace(counts, kept=kept))

    # Progress is reported before the first job is done, even if all are known.
    on_tasks(TaskCounts(len(missing)))
    missing_jobs = [jobs[place] for place in missing]
    errors: dict[int, Exception] = {}

    def fail(index: int, error: Exception) -> _Done:
        errors[missing[index]] = error
        assert on_error is not None
        return on_error(missing[index], error)

    # Jobs end in any order, and each result goes to its own place.
    for index, result in run_jobs(
        work,
        missing_jobs,
        placement,
        on_tasks,
        fail if on_error is not None else None,
        [names[place] for place in missing],
    ):
        place = missing[index]
        results[place] = result
        if place not in errors:
            keep_result(place, result)
    if errors and len(errors) == len(jobs):
        raise next(iter(errors.values()))
    return [results[place] for place in range(len(jobs))]


def study_digest(*inputs: Any) -> str:
    """Digest of inputs, which are JSON, and of the code and the libraries that use them."""
    # The order of keys means nothing in a table, so it must not change the digest.
    # Designs depend on scipy as well, which a trace does not name.
    optimiser = {"scipy": importlib.metadata.version("scipy")}
    # No entry may outlive a change of the code that computed it.
    code = [source_digest(), {**package_versions(), **optimiser}]
    text = json.dumps([code, *inputs], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
