"""The runs under a directory (finished, in progress, or interrupted) and studies of them.

Everything is read from the files that runs write; no state here would be lost with the process.
Documents are parsed, but digests are not checked: an audit checks them.
"""

import contextlib
import itertools
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from os.path import lexists
from pathlib import Path
from stat import S_ISLNK
from threading import Thread
from typing import Annotated, Any, Literal

import numpy as np

from fedray.audit.so_far import RoundsSoFar, bound_so_far
from fedray.base.document import Document
from fedray.base.errors import InputError, one_line
from fedray.base.parsing import finite_or_none, parse_json
from fedray.base.regular_file import read_regular_file
from fedray.scenario import Scenario
from fedray.trace.checkpoints import has_checkpoint
from fedray.trace.imported import IMPORT_FORMAT
from fedray.trace.partial import UNFINISHED_FILE, is_locked
from fedray.trace.progress import PROGRESS_FILE, ProgressReport, read_progress
from fedray.trace.schema import REPORT_FILE, ROUNDS_FILE, RUN_FILE, STATES
from fedray.trace.several_tasks import TASKS_FILE
from fedray.trace.trained import METRICS_FILE, TRAINING, TRAINING_FILE

PARTIAL, LIVE_TRAINING = ".partial", f".{TRAINING}.partial"
RESULTS_FILE, TABLE_FILE, PLAN_FILE = "results.json", "results.parquet", "plan.json"
MOST_LEVELS = 4
"""Number of folder levels that are searched: studies have folders of scenarios and seeds."""
MOST_ENTRIES = 2000
MOST_FOLDERS = 20_000
"""Largest number of folders that are searched."""
LONGEST_DOCUMENT = 16 << 20
"""Largest size of a file that is read, bytes; a larger one counts as damaged."""
LONGEST_KEPT = 1 << 20
"""Largest size of a document that is kept parsed, bytes."""
MOST_ROUNDS, MOST_METRICS, LONGEST_TEXT = 1_000_000, 64, 200
"""Limits on the content of files: rounds of a run, metrics of a training, characters of a name."""
SECONDS_FOR_BOUNDS = 10.0
"""Seconds that a listing waits for bounds on privacy; later listings have the slower ones."""
SHARE_FOR_BOUNDS = 0.05
"""Share of a watcher's time that bounds may take, since some mechanisms take long."""

Kind = Literal["run", "tasks", "import", "training", "sweep", "study"]
State = Literal["finished", "running", "elsewhere", "interrupted", "damaged"]


@dataclass(frozen=True, slots=True)
class Privacy:
    """Upper bounds on the privacy that a run has spent so far.

    rho: upper bound from the rules of participation and the times of the rounds so far; None
        without a proof, with the reason in `reason`.
    epsilon: epsilon of the bound, at `delta`.
    delta: delta of epsilon.
    rounds: committed rounds after which the bounds hold.
    reason: basis of the bounds, or the reason why they are missing.
    limit: the budget `privacy.stop_at` of the run, by figure; empty without one.
    """

    rho: float | None
    epsilon: float | None
    delta: float
    rounds: int
    reason: str
    limit: dict[str, float]


@dataclass(frozen=True, slots=True)
class TaskSoFar:
    """One of several tasks of a run in progress.

    done: number of simulated rounds.
    count: number of rounds of the task, or None if unknown.
    privacy: upper bound on the privacy spent so far; None before its first round.
    """

    done: int
    count: int | None
    privacy: Privacy | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A run, import, training or study in the directory.

    path: relative to the directory, with slashes; for an unfinished entry, its future path.
    kind: "run", a simulated run; "tasks", a run of several tasks; "import", an imported log;
        "training", a training that is stored apart from its trace; "sweep"; or "study", any other
        study.
    state: "finished"; "running", in a process on this machine; "elsewhere", in a process on another
        machine or on a system without /proc, of which only the last report is known; "interrupted",
        if its process has ended; or "damaged", if it cannot be read.
    name: name of the scenario; empty without one.
    written: time of completion, ISO 8601; empty until then.
    report: its page, relative to the directory; empty without one.
    done: rounds simulated, or trained if nothing is simulated; None if unknown.
    count: number of rounds of the run, or None if unknown.
    trained: number of rounds trained; None if nothing is trained.
    simulated_seconds: seconds since the start of the simulated time.
    eligible: estimated number of devices that are eligible now.
    may_come: estimated number of eligible devices that no rule holds back now.
    train_loss: mean loss of the last trained round.
    evaluation: the last held-out metrics, by name.
    privacy: upper bound on the privacy spent so far, for a run in progress or a finished one; None
        without a bound yet, and for an entry that has `tasks`.
    tasks: tasks of an unfinished run of several, by name; empty for other entries.
    shards: number of workers that simulate the population.
    trainers: number of workers that train devices.
    wall_seconds: wall-clock seconds of the run, or since it began or resumed.
    seconds_left: an estimate, or None if unknown.
    told: seconds since the last report of an entry in progress.
    trace_digest: digest of the trace, or of a training's trace.
    model: the trained run, relative to the directory, for comparisons; empty without one.
    resume: command that resumes an interrupted entry; empty if it cannot be resumed.
    note: further remark, such as how a run ended, or why it has had no round for most of a day.
    """

    path: str
    kind: Kind
    state: State
    name: str = ""
    written: str = ""
    report: str = ""
    done: int | None = None
    count: int | None = None
    trained: int | None = None
    simulated_seconds: float | None = None
    eligible: int | None = None
    may_come: int | None = None
    train_loss: float | None = None
    evaluation: dict[str, float | None] = field(default_factory=dict)
    privacy: Privacy | None = None
    tasks: dict[Annotated[str, "task"], TaskSoFar] = field(default_factory=dict)
    shards: int | None = None
    trainers: int | None = None
    wall_seconds: float | None = None
    seconds_left: float | None = None
    told: float | None = None
    trace_digest: str = ""
    model: str = ""
    resume: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Listing(Document):
    """The entries of a directory.

    directory: its absolute path.
    entries: entries in progress first, then interrupted ones, then the rest, the latest first.
    has_more: whether the directory has further entries.
    """

    directory: str
    entries: tuple[Entry, ...]
    has_more: bool


class Runs:
    """The runs under a directory. Parsed files are kept while they are unchanged.

    Args:
        directory: directory of the runs.

    Raises:
        InputError: the directory does not exist.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(os.path.abspath(directory))
        if not self.directory.is_dir():
            raise InputError(
                f"{str(directory)!r} is no directory; name one under which `fedray run` writes, "
                "such as runs"
            )
        self._documents: dict[Path, tuple[tuple[int, int, int], Any]] = {}
        self._bounds: dict[Path, _Bound] = {}
        self._bounds_until = 0.0

    def list(self) -> Listing:
        """Returns the present entries."""
        found: list[Entry] = []
        has_more = False
        self._bounds_until = time.monotonic() + SECONDS_FOR_BOUNDS
        for place, folder in enumerate(self._folders(self.directory, 0)):
            entry = self.entry(folder)
            has_more = place == MOST_FOLDERS or (entry is not None and len(found) == MOST_ENTRIES)
            if has_more:
                break
            if entry is not None:
                found.append(entry)
        order = {"running": 0, "elsewhere": 1, "interrupted": 2}
        # Sorted twice: by time, then stably by state.
        found.sort(key=lambda each: (each.written, each.path), reverse=True)
        found.sort(key=lambda each: order.get(each.state, 3))
        return Listing(str(self.directory), tuple(found), has_more)

    def _folders(self, folder: Path, level: int) -> Iterator[Path]:
        """Yields the folder, and the folders below it that are not part of a run; links are not
        followed."""
        if level:
            yield folder
        if level == MOST_LEVELS or (level and _is_of_run(folder)):
            return
        names: list[str] = []
        # A folder may vanish, or lose its permission, during the search.
        with contextlib.suppress(OSError), os.scandir(folder) as inside:
            names = sorted(
                each.name
                for each in inside
                if not each.name.startswith(".") and each.is_dir(follow_symlinks=False)
            )
        for name in names:
            yield from self._folders(folder / name, level + 1)

    def entry(self, folder: Path) -> Entry | None:
        """Returns the entry of a folder below the directory; None if it has none of its own."""
        try:
            return self._entry(folder)
        # An error in one folder must not hide the others.
        except Exception as error:
            return self._damaged(folder, "run", f"{type(error).__name__}: {error}")

    def _entry(self, folder: Path) -> Entry | None:
        # The entry of its run covers it, so it has no entry of its own.
        if folder.name.endswith(LIVE_TRAINING) and self._belongs(folder):
            return None
        if folder.name.endswith(PARTIAL):
            return self._unfinished(folder)
        if lexists(folder / TASKS_FILE):
            # Each of its traces has an entry of its own.
            return self._finished(folder, "tasks", TASKS_FILE)
        if lexists(folder / RUN_FILE):
            return self._finished(folder, "run", RUN_FILE)
        if lexists(folder / TRAINING_FILE):
            return self._finished(folder, "training", TRAINING_FILE)
        return self._study(folder)

    def _belongs(self, training: Path) -> bool:
        """Returns whether the training belongs to a run beside it, and is listed with it."""
        run = training.with_name(training.name.removesuffix(LIVE_TRAINING))
        partial = run.with_name(f"{run.name}{PARTIAL}")
        return (run / RUN_FILE).is_file() or (partial / UNFINISHED_FILE).is_file()

    def _finished(self, folder: Path, kind: Kind, file: str) -> Entry:
        document = self._document(folder / file)
        if not isinstance(document, dict):
            return self._damaged(folder, kind, f"{file} cannot be read")
        entry = Entry(
            path=self._relative(folder),
            kind=kind,
            state="finished",
            name=_text(_table(document, "scenario"), "name"),
            written=_text(document, "written"),
            report=self._report_of(folder),
            shards=_number(document, "shards"),
            wall_seconds=_real(document, "wall_seconds"),
            trace_digest=_text(document, "trace_digest") or _text(document, "digest"),
        )
        if kind == "run":
            return self._finished_run(entry, folder, document)
        return replace(entry, **self._trained(folder)) if kind == "training" else entry

    def _finished_run(self, entry: Entry, folder: Path, document: dict[str, Any]) -> Entry:
        is_log = document.get("format") == IMPORT_FORMAT
        scenario = _table(document, "scenario")
        count = _number(_table(scenario, "rounds"), "count")
        is_whole = _text(document, "ended") == "completed"
        entry = replace(
            entry,
            kind="import" if is_log else "run",
            done=_number(document, "rounds") if is_log else (count if is_whole else None),
            count=count,
            note=_text(document, "ended"),
        )
        if not is_log and time.monotonic() < self._bounds_until:
            of_trace = self._of_whole_trace(folder, scenario)
            entry = replace(entry, privacy=of_trace.get("privacy"))
        inside = folder / TRAINING
        live = folder.with_name(f"{folder.name}{LIVE_TRAINING}")
        # A link may lead out of the directory.
        if (inside / TRAINING_FILE).is_file() and not inside.is_symlink():
            return replace(entry, **self._trained(inside))
        if live.is_dir():
            # The trace is complete, and its model is still in training.
            command = "run --resume"
            entry = self._with_progress(entry, live, read_progress(live), f"{command} {_HERE}")
            entry = replace(entry, **self._of_whole_trace(folder, scenario), note=_late(entry.note))
            # This is the trace of one task, and only the run of all tasks can be resumed.
            if entry.resume and (folder.parent / TASKS_FILE).is_file():
                whole = f"fedray {command} {shlex.quote(str(folder.parent))}"
                entry = replace(entry, resume=whole)
        return entry

    def _of_whole_trace(self, folder: Path, scenario: dict[str, Any]) -> dict[str, Any]:
        """Returns the fields of an entry for a complete simulation whose model is still in
        training."""
        file = folder / ROUNDS_FILE
        rounds = self._kept(file, _committed_rounds) or {}
        if not _length(rounds):
            return {}
        return {
            "done": _length(rounds),
            "simulated_seconds": rounds["closed"][-1],
            "privacy": self._privacy(folder, folder, scenario, rounds),
        }

    def _trained(self, folder: Path) -> dict[str, Any]:
        """Returns the fields of an entry for a trained run."""
        document = self._document(folder / TRAINING_FILE)
        if not isinstance(document, dict):
            return {"note": f"{TRAINING}/{TRAINING_FILE} cannot be read"}
        return {
            # A run is over when its model is trained, which is later than its trace is whole.
            "written": _text(document, "written"),
            "wall_seconds": _real(document, "wall_seconds"),
            "trained": _number(document, "rounds"),
            "trainers": _number(document, "trainers"),
            "model": self._relative(folder),
            **self._last_metrics(folder),
        }

    def _last_metrics(self, folder: Path) -> dict[str, Any]:
        file = folder / METRICS_FILE
        return self._kept(file, _last_row) or {}

    def _unfinished(self, partial: Path) -> Entry | None:
        told = read_progress(partial)
        document = self._document(partial / UNFINISHED_FILE)
        whole = partial.with_name(partial.name.removesuffix(PARTIAL))
        if told is None and lexists(partial / PROGRESS_FILE):
            return self._damaged(whole, "run", f"{PROGRESS_FILE} cannot be read")
        if told is None and not isinstance(document, dict):
            return None  # it may have begun a moment ago, or it is not a run
        scenario = _table(document, "scenario") if isinstance(document, dict) else {}
        is_training = told is not None and told.kind == "training"
        entry = Entry(
            path=self._relative(whole),
            kind="training" if is_training else "run",
            state="interrupted",
            name=_text(scenario, "name"),
            count=_number(_table(scenario, "rounds"), "count"),
        )
        command = f"train --resume {_HERE}" if is_training else f"run --resume {_HERE}"
        entry = self._with_progress(entry, partial, told, command)
        if told is not None and not is_training:
            entry = replace(entry, **self._spent(partial, scenario, told))
        live = whole.with_name(f"{whole.name}{LIVE_TRAINING}")
        training = read_progress(live)
        if training is None:
            return entry
        # Simulation and training run side by side: the slower one ends the run.
        both = (entry.seconds_left, training.seconds_left if entry.seconds_left else None)
        known = [seconds for seconds in both if seconds is not None]
        entry = replace(entry, seconds_left=max(known, default=None))
        return replace(entry, **_training_facts(training))

    def _with_progress(
        self, entry: Entry, partial: Path, told: ProgressReport | None, resumes: str
    ) -> Entry:
        """Returns the entry with the content of a progress file, and the state of its process."""
        state = _state_of(told)
        # A process that has just started, or is stopping, has no report.
        if state == "interrupted" and is_locked(partial):
            state = "running"
        resume = ""
        if state == "interrupted" and has_checkpoint(partial):
            whole = shlex.quote(str(self.directory / entry.path))
            resume = f"fedray {resumes}".replace(_HERE, whole)
        if told is None:
            return replace(entry, state=state, resume=resume)
        facts = told.facts
        now = time.time()
        entry = replace(
            entry,
            state=state,
            resume=resume,
            count=told.count,
            # The clock may have been set back while the run went on.
            wall_seconds=max(0.0, told.told - told.begun),
            seconds_left=told.seconds_left if state != "interrupted" else None,
            told=max(0.0, now - told.told),
        )
        if told.kind == "training":
            return replace(entry, **_training_facts(told))
        return replace(
            entry,
            done=told.done,
            simulated_seconds=_real(facts, "simulated_seconds"),
            eligible=_number(facts, "eligible_estimate"),
            may_come=_number(facts, "may_come"),
            note=_starving(facts),
            shards=_number(facts, "shards"),
        )

    def _spent(
        self, partial: Path, scenario: dict[str, Any], told: ProgressReport
    ) -> dict[str, Any]:
        """Returns the fields of an entry for the privacy of a simulation or its tasks."""
        of_tasks = _table(told.facts, "tasks")
        if not of_tasks:
            rounds = _table(told.facts, "rounds")
            return {"privacy": self._privacy(partial, partial, scenario, rounds)}
        tasks: dict[str, TaskSoFar] = {}
        for name in of_tasks:
            # The scenario of each task lies within that of the run.
            tables = _table(_table(_table(scenario, "tasks"), name), "scenario")
            rounds = _table(of_tasks, name)
            tasks[name] = TaskSoFar(
                _length(rounds),
                _number(_table(tables, "rounds"), "count"),
                self._privacy(partial / name, partial, tables, rounds),
            )
        return {"kind": "tasks", "tasks": tasks}

    def _privacy(
        self, key: Path, partial: Path, tables: dict[str, Any], rounds: dict[str, Any]
    ) -> Privacy | None:
        """Returns the bound after the last reported rounds, or after earlier ones if computing it
        takes long."""
        kept = self._bounds.get(key)
        done = _length(rounds)
        if not done:
            return None
        is_due = kept is None or time.monotonic() >= kept.next
        if kept is None or (is_due and kept.privacy.rounds != done):
            late = Privacy(None, None, 0.0, done, "its computation takes long; look again", {})
            # Until the computation ends, no other one begins.
            self._bounds[key] = _Bound(late if kept is None else kept.privacy, math.inf)
            worker = Thread(target=self._compute, args=(key, partial, tables, rounds), daemon=True)
            worker.start()
            worker.join(max(0.0, self._bounds_until - time.monotonic()))
        return self._bounds[key].privacy

    def _compute(
        self, key: Path, partial: Path, tables: dict[str, Any], rounds: dict[str, Any]
    ) -> None:
        begun = time.monotonic()
        privacy = _bound(partial, tables, rounds)
        taken = time.monotonic() - begun
        # The next bound waits long enough that bounds take no more than their share of the time.
        self._bounds[key] = _Bound(privacy, begun + taken / SHARE_FOR_BOUNDS)

    def _study(self, folder: Path) -> Entry | None:
        files = [folder / name for name in (RESULTS_FILE, PLAN_FILE)]
        # A folder with neither results nor a plan is not a study.
        times = [file.lstat().st_mtime for file in files if file.is_file()]
        if not times:
            return None
        return Entry(
            path=self._relative(folder),
            kind="sweep" if (folder / TABLE_FILE).is_file() else "study",
            state="finished",
            name=folder.name,
            written=_iso(max(times)),
            report=self._report_of(folder),
        )

    def _damaged(self, folder: Path, kind: Kind, problem: str) -> Entry:
        note = one_line(problem)[:LONGEST_TEXT]
        return Entry(path=self._relative(folder), kind=kind, state="damaged", note=note)

    def _report_of(self, folder: Path) -> str:
        report = folder / REPORT_FILE
        is_there = report.is_file() and not report.is_symlink()
        return self._relative(report) if is_there else ""

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.directory).as_posix()

    def _document(self, file: Path) -> Any:
        return self._kept(file, parse_json)

    def _kept(self, file: Path, parse: Callable[[bytes], Any]) -> Any:
        """Returns the parsed content of a file, parsed again if the file has changed; None if it
        cannot be read."""
        try:
            stat = file.lstat()
            # A changed file differs in one of these facts.
            form = stat.st_mtime_ns, stat.st_size, stat.st_ino
            known = self._documents.get(file)
            if known is not None and known[0] == form:
                return known[1]
            # Links are not followed, and no file of another run is this run's.
            content = None if S_ISLNK(stat.st_mode) else parse(_content(file))
        except (OSError, ValueError):
            return None
        if stat.st_size <= LONGEST_KEPT:
            self._documents[file] = form, content
        return content


_LARGEST = sys.float_info.max
_HERE = "{DIR}"
"""Placeholder of a run's directory in a command."""


@dataclass(frozen=True, slots=True)
class _Bound:
    privacy: Privacy
    next: float
    """Time from which it may be computed again, by time.monotonic."""


def _bound(partial: Path, tables: dict[str, Any], columns: dict[str, Any]) -> Privacy:
    try:
        scenario = Scenario.from_tables(
            tables, source=str(partial), directory=partial, is_recorded=True
        )
        rounds = RoundsSoFar(
            opened=np.asarray(columns["opened"], np.float64),
            started=np.asarray(columns["started"], np.float64),
            closed=np.asarray(columns["closed"], np.float64),
        )
        found = bound_so_far(scenario, rounds)
    # The files may be of another version, half written or hostile, so the reason is shown.
    except Exception as error:
        reason = one_line(f"{error}" or type(error).__name__)[:LONGEST_TEXT]
        return Privacy(None, None, 0.0, _length(columns), reason, {})
    stop_at = scenario.privacy.stop_at
    limit = {} if stop_at is None else {"rho": stop_at.rho, "epsilon": stop_at.epsilon}
    return Privacy(
        finite_or_none(found.rho),
        finite_or_none(found.epsilon),
        found.delta,
        rounds.opened.size,
        found.reason,
        {name: most for name, most in limit.items() if most is not None},
    )


def _state_of(told: ProgressReport | None) -> State:
    if told is None or told.has_ended:
        return "interrupted"
    is_running = None if told.process is None else told.process.is_running()
    # Only the machine on which a process runs knows whether it still runs.
    if is_running is None:
        return "elsewhere"
    return "running" if is_running else "interrupted"


def _training_facts(told: ProgressReport) -> dict[str, Any]:
    """Returns the fields of an entry for a training in progress."""
    evaluation = _table(told.facts, "evaluation")
    return {
        "trained": told.done,
        "trainers": _number(told.facts, "trainers"),
        "train_loss": _real(told.facts, "train_loss"),
        "evaluation": _reals(evaluation),
    }


def _starving(facts: Any) -> str:
    reason = _text(facts, "starving")
    return f"starving, {reason}" if reason else ""


def _late(note: str) -> str:
    """Returns the note of a run whose model is still in training, for which "completed" would be
    misleading."""
    return "" if note == "completed" else note


def _content(file: Path) -> bytes:
    return read_regular_file(file, LONGEST_DOCUMENT, inside=file.parent)


def _columns(content: bytes) -> dict[str, list[Any]]:
    """Returns the columns of floats, and `state`, of a Parquet file. Raises ValueError if it is
    damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(content))
        groups = [file.metadata.row_group(place) for place in range(file.metadata.num_row_groups)]
        # A small file may state any number of rows.
        if sum(group.num_rows for group in groups) > MOST_ROUNDS:
            raise ValueError("it has too many rows")
        names = [
            each.name
            for each in file.schema_arrow
            if pa.types.is_float64(each.type) or each.name == "state"
        ]
        table = file.read(names[:MOST_METRICS], use_threads=False)
    except pa.ArrowException as error:
        raise ValueError(str(error)) from None
    return {name: table[name].to_pylist() for name in table.column_names}


def _committed_rounds(content: bytes) -> dict[str, list[Any]]:
    """Returns the times of the committed rounds of a trace."""
    columns = _columns(content)
    is_committed = [state == STATES[0] for state in columns.get("state", [])]
    names = ("opened", "started", "closed")
    return {name: list(itertools.compress(columns.get(name, []), is_committed)) for name in names}


def _last_row(content: bytes) -> dict[str, Any]:
    """Returns the loss and the metrics after the last round of a trained run."""
    values = _columns(content)
    prefix = "evaluation_"
    # Most rounds have no evaluation, so the latest one may lie further back.
    measures = {
        name.removeprefix(prefix): next(
            (each for each in reversed(column) if each is not None), None
        )
        for name, column in values.items()
        if name.startswith(prefix) and not name.endswith("_error")
    }
    losses = values.get("train_loss") or [None]
    return {
        "train_loss": _real({"loss": losses[-1]}, "loss"),
        "evaluation": _reals(measures),
    }


def _is_of_run(folder: Path) -> bool:
    """Whether a folder is one run, below which no other is searched."""
    files = (RUN_FILE, TRAINING_FILE, UNFINISHED_FILE, PROGRESS_FILE)
    return folder.name.endswith(PARTIAL) or any(lexists(folder / name) for name in files)


def _length(rounds: dict[str, Any]) -> int:
    """Returns the number of rounds, from the first column."""
    opened = rounds.get("opened")
    return len(opened) if isinstance(opened, list) else 0


def _table(document: Any, key: str) -> dict[str, Any]:
    value = document.get(key) if isinstance(document, dict) else None
    return value if isinstance(value, dict) else {}


def _text(document: Any, key: str) -> str:
    value = document.get(key)
    return one_line(value)[:LONGEST_TEXT] if isinstance(value, str) else ""


def _number(document: Any, key: str) -> int | None:
    value = document.get(key)
    # A bool is an int in Python, but not a count.
    is_count = isinstance(value, int) and not isinstance(value, bool)
    # Readers of JSON may keep numbers as floats, which are exact up to here.
    return value if is_count and abs(value) < 2**53 else None


def _real(document: Any, key: str) -> float | None:
    value = document.get(key)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # An int may be larger than any float, which the comparison allows.
    return float(value) if is_number and abs(value) < _LARGEST else None


def _reals(document: dict[str, Any]) -> dict[str, float | None]:
    """Returns the first MOST_METRICS values by name, None for one that is not a number. The limit
    exists because a file may have any number of names."""
    names = list(document)[:MOST_METRICS]
    return {one_line(name)[:LONGEST_TEXT]: _real(document, name) for name in names}


def _iso(seconds: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
