"""The runs under a directory (finished, in progress, or interrupted) and studies of them.

Everything is read from the files that runs write, once for each listing. Digests are not checked:
an audit checks them. A folder whose files cannot be read is an entry that says so.
"""

import os
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import FiniteFloat

from fedray.audit.so_far import RoundsSoFar, bound_so_far
from fedray.base.document import Document
from fedray.base.errors import InputError, one_line
from fedray.base.parsing import finite_or_none, parse_json
from fedray.base.regular_file import read_regular_file
from fedray.base.storage import Bucket, fetched, is_of_bucket
from fedray.scenario import Scenario
from fedray.trace.checkpoints import has_checkpoint
from fedray.trace.imported import IMPORT_FORMAT
from fedray.trace.partial import UNFINISHED_FILE, is_locked
from fedray.trace.progress import PROGRESS_FILE, ProgressReport, read_progress
from fedray.trace.reader import Trace, read_document
from fedray.trace.schema import RUN_FILE
from fedray.trace.several_tasks import TASKS_FILE
from fedray.trace.trained import LIVE_TRAINING, TRAINING, TRAINING_FILE

PARTIAL = ".partial"
RESULTS_FILE, TABLE_FILE, PLAN_FILE = "results.json", "results.parquet", "plan.json"
MOST_LEVELS = 4
"""Number of folder levels that are searched: studies have folders of scenarios and seeds."""

Kind = Literal["run", "tasks", "import", "training", "sweep", "study"]
State = Literal["finished", "running", "elsewhere", "interrupted", "damaged"]


@dataclass(frozen=True, slots=True)
class Privacy:
    """Upper bounds on the privacy that a run has spent so far."""

    rho: float | None
    """Upper bound from the rules of participation and the times of the rounds so far; None without
    a proof, with the reason in `reason`."""
    epsilon: float | None
    """Epsilon of the bound, at `delta`."""
    delta: float
    """delta of epsilon."""
    rounds: int
    """Committed rounds after which the bounds hold."""
    reason: str
    """Basis of the bounds, or the reason why they are missing."""
    limit: dict[str, float]
    """The budget `privacy.stop_at` of the run, by figure; empty without one."""


@dataclass(frozen=True, slots=True)
class TaskSoFar:
    """One of several tasks of a run in progress."""

    done: int
    """Number of simulated rounds."""
    count: int | None
    """Number of rounds of the task, or None if unknown."""
    privacy: Privacy | None
    """Upper bound on the privacy spent so far; None before its first round."""


# Validated, because its values come from files that may be of any release, or damaged.
@pydantic.dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A run, import, training or study in the directory."""

    path: str
    """Relative to the directory, with slashes; for an unfinished entry, its future path."""
    kind: Kind
    """"run", a simulated run; "tasks", a run of several tasks; "import", an imported log;
    "training", a training that is stored apart from its trace; "sweep"; or "study", any other
    study."""
    state: State
    """"finished"; "running", in a process on this machine; "elsewhere", in a process on another
    machine or on a system without /proc, of which only the last report is known; "interrupted", if
    its process has ended; or "damaged", if it cannot be read."""
    name: str = ""
    """Name of the scenario; empty without one."""
    written: str = ""
    """Time of completion, ISO 8601; empty until then."""
    done: int | None = None
    """Rounds simulated, or trained if nothing is simulated; None if unknown."""
    count: int | None = None
    """Number of rounds of the run, or None if unknown."""
    trained: int | None = None
    """Number of rounds trained; None if nothing is trained."""
    simulated_seconds: FiniteFloat | None = None
    """Seconds since the start of the simulated time."""
    eligible: int | None = None
    """Estimated number of devices that are eligible now."""
    may_come: int | None = None
    """Estimated number of eligible devices that no rule holds back now."""
    train_loss: FiniteFloat | None = None
    """Mean loss of the last round of a training in progress."""
    evaluation: dict[str, FiniteFloat | None] = field(default_factory=dict)
    """Its last held-out metrics, by name."""
    privacy: Privacy | None = None
    """Upper bound on the privacy spent so far, for a run in progress; None without a bound yet, for
    an entry that has `tasks`, and for a finished one, whose audit is exact."""
    tasks: dict[Annotated[str, "task"], TaskSoFar] = field(default_factory=dict)
    """Tasks of an unfinished run of several, by name; empty for other entries."""
    shards: int | None = None
    """Number of workers that simulate the population."""
    trainers: int | None = None
    """Number of workers that train devices."""
    wall_seconds: FiniteFloat | None = None
    """Wall-clock seconds since the work began or was resumed."""
    seconds_left: FiniteFloat | None = None
    """An estimate, or None if unknown."""
    told: FiniteFloat | None = None
    """Seconds since the last report of an entry in progress."""
    resume: str = ""
    """Command that resumes an interrupted entry; empty if it cannot be resumed."""
    note: str = ""
    """Further remark, such as how a run ended, what it waits for, or why it has had no round for
    most of a day."""


@dataclass(frozen=True, slots=True)
class Listing(Document):
    """The entries of a directory."""

    directory: str
    """Its absolute path, or its URI in a bucket."""
    entries: tuple[Entry, ...]
    """Entries in progress first, then interrupted ones, then the rest, the latest first."""


def list_runs(directory: str | Path) -> Listing:
    """Returns the runs under a directory, or a run that it is itself. Raises InputError if it does
    not exist."""
    # Only documents are listed, so a bucket's other objects stay there.
    root = Path(os.path.abspath(fetched(directory, ".json")))
    if not root.is_dir():
        raise InputError(
            f"{str(directory)!r} is no directory; name one under which `fedray run` writes, "
            "such as runs"
        )
    named = Bucket(directory).name if is_of_bucket(directory) else str(root)
    above, folders = root, [*_folders(root, 0)]
    if any((root / name).exists() for name in (RUN_FILE, TASKS_FILE, TRAINING_FILE)):
        # Tasks of a run are entries too, but a run's model is not.
        above, folders = root.parent, [root, *(folders if (root / TASKS_FILE).exists() else [])]
    found = [entry for each in folders if (entry := entry_of(each, above)) is not None]
    # A reader of a bucket does not know the copy.
    found = [replace(each, note=each.note.replace(str(root), named)) for each in found]
    order = {"running": 0, "elsewhere": 1, "interrupted": 2}
    # Sorted twice: by time, then stably by state.
    found.sort(key=lambda each: (each.written, each.path), reverse=True)
    found.sort(key=lambda each: order.get(each.state, 3))
    return Listing(named, tuple(found))


def _folders(folder: Path, level: int) -> Iterator[Path]:
    """Yields the folders below one that are not part of a run; links are not followed."""
    if level:
        yield folder
    marks = (RUN_FILE, TRAINING_FILE, UNFINISHED_FILE, PROGRESS_FILE)
    is_run = folder.name.endswith(PARTIAL) or any((folder / name).exists() for name in marks)
    if level == MOST_LEVELS or (level and is_run):
        return
    try:
        inside = sorted(folder.iterdir())
    except OSError:  # it vanished during the search, or may not be read
        return
    for each in inside:
        if not each.name.startswith(".") and each.is_dir() and not each.is_symlink():
            yield from _folders(each, level + 1)


def entry_of(folder: Path, root: Path) -> Entry | None:
    """Returns the entry of a folder below the directory `root`; None if it is another folder."""
    whole = folder.with_name(folder.name.removesuffix(PARTIAL))
    entry = Entry(path=whole.relative_to(root).as_posix(), kind="run", state="finished")
    try:
        return _read(folder, entry, root)
    # An error in one folder must not hide the others.
    except Exception as error:
        # A run that has just finished has left the folder of the unfinished one.
        if not folder.exists():
            return None
        return replace(entry, state="damaged", note=one_line(f"{error}")[:200])


def _read(folder: Path, entry: Entry, root: Path) -> Entry | None:
    if folder.name.endswith(PARTIAL):
        # A training beside its run is listed with it.
        run = folder.with_name(folder.name.removesuffix(LIVE_TRAINING))
        is_live = folder.name.endswith(LIVE_TRAINING)
        if is_live and ((run / RUN_FILE).exists() or run.with_name(run.name + PARTIAL).exists()):
            return None
        return _unfinished(folder, entry, root)
    # The folder of several tasks has a folder for each, which is an entry too.
    for file, kind in ((TASKS_FILE, "tasks"), (TRAINING_FILE, "training")):
        if (folder / file).exists():
            document = parse_json(read_regular_file(folder / file))
            trained = document["rounds"] if kind == "training" else None
            entry = replace(entry, kind=kind, written=document["written"], trained=trained)
            return replace(entry, name=document["scenario"]["name"])
    if (folder / RUN_FILE).exists():
        return _run(folder, entry)
    # Studies record no time in a file of a common form, so that of the file counts.
    files = [folder / name for name in (RESULTS_FILE, PLAN_FILE)]
    times = [file.stat().st_mtime for file in files if file.is_file()]
    if not times:
        return None
    written = datetime.fromtimestamp(max(times), UTC).isoformat(timespec="seconds")
    kind = "sweep" if (folder / TABLE_FILE).is_file() else "study"
    return replace(entry, kind=kind, name=folder.name, written=written)


def _run(folder: Path, entry: Entry) -> Entry:
    document = read_document(folder)
    entry = replace(entry, written=document["written"])
    if document["format"] == IMPORT_FORMAT:
        return replace(entry, kind="import", done=document["rounds"])
    scenario, ended = document["scenario"], document["ended"]
    count = scenario["rounds"]["count"]
    done = count if ended == "completed" else None
    entry = replace(entry, name=scenario["name"], done=done, count=count, note=ended)
    if (folder / TRAINING / TRAINING_FILE).exists():
        model = parse_json(read_regular_file(folder / TRAINING / TRAINING_FILE))
        # A run is over when its model is trained, which is later than its trace is whole.
        return replace(entry, written=model["written"], trained=model["rounds"])
    live = folder.with_name(f"{folder.name}{LIVE_TRAINING}")
    if not live.is_dir():
        return entry
    # The trace is complete, and its model is still in training.
    trace = Trace.open(folder, verify=False)
    is_committed = trace.rounds["state"] == 0
    times = {name: column[is_committed] for name, column in trace.rounds.items()}
    # A task of a run cannot be resumed by itself, only the run.
    whole = folder.parent if (folder.parent / TASKS_FILE).exists() else folder
    entry = _with_progress(entry, live, read_progress(live), f"run --resume {_quoted(whole)}")
    return replace(
        entry,
        done=int(is_committed.sum()),
        simulated_seconds=float(trace.rounds["closed"][-1]),
        privacy=_bound(trace.scenario, folder, times),
        note=entry.note if ended == "completed" else ended,
    )


def _unfinished(partial: Path, entry: Entry, root: Path) -> Entry | None:
    told = read_progress(partial)
    if told is None and (partial / PROGRESS_FILE).exists():
        raise InputError(f"{PROGRESS_FILE} cannot be read")
    is_there = (partial / UNFINISHED_FILE).exists()
    if told is None and not is_there:
        return None  # it may have begun a moment ago, or it is not a run
    scenario: dict[str, Any] = {}
    if is_there:
        scenario = parse_json(read_regular_file(partial / UNFINISHED_FILE))["scenario"]
        count = scenario.get("rounds", {}).get("count")
        entry = replace(entry, name=scenario.get("name", ""), count=count)
    whole = root / entry.path
    if told is not None and told.kind == "training":
        entry = replace(entry, kind="training")
        return _with_progress(entry, partial, told, f"train --resume {_quoted(whole)}")
    entry = _with_progress(entry, partial, told, f"run --resume {_quoted(whole)}")
    if told is not None:
        entry = _with_privacy(entry, partial, scenario, told)
    training = read_progress(whole.with_name(f"{whole.name}{LIVE_TRAINING}"))
    if training is None:
        return entry
    # Simulation and training run side by side: the slower one ends the run.
    both = (entry.seconds_left, training.seconds_left if entry.seconds_left else None)
    known = [seconds for seconds in both if seconds is not None]
    return replace(entry, seconds_left=max(known, default=None), **_training_facts(training))


def _with_progress(entry: Entry, partial: Path, told: ProgressReport | None, resume: str) -> Entry:
    """Returns the entry with the content of a progress file, and the state of its process."""
    state = _state_of(told)
    # A process that has just started, or is stopping, has no report.
    if state == "interrupted" and is_locked(partial):
        state = "running"
    can_resume = state == "interrupted" and has_checkpoint(partial)
    entry = replace(entry, state=state, resume=f"fedray {resume}" if can_resume else "")
    if told is None:
        return entry
    entry = replace(
        entry,
        count=told.count,
        # A process that compiles reports nothing for minutes. The clock may have been set back.
        wall_seconds=max(0.0, (time.time() if state == "running" else told.told) - told.begun),
        seconds_left=told.seconds_left if state != "interrupted" else None,
        told=max(0.0, time.time() - told.told),
        note=f"waiting for {told.facts['waiting']}" if "waiting" in told.facts else "",
    )
    if told.kind == "training":
        return replace(entry, **_training_facts(told))
    starving = told.facts.get("starving")
    return replace(
        entry,
        done=told.done,
        simulated_seconds=told.facts.get("simulated_seconds"),
        eligible=told.facts.get("eligible_estimate"),
        may_come=told.facts.get("may_come"),
        note=f"starving, {starving}" if starving else entry.note,
        shards=told.facts.get("shards"),
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
    names = ("trainers", "train_loss", "evaluation")
    return {"trained": told.done} | {each: told.facts[each] for each in names if each in told.facts}


def _with_privacy(
    entry: Entry, partial: Path, scenario: dict[str, Any], told: ProgressReport
) -> Entry:
    """Returns the entry with the bounds of a simulation, or of each of its tasks."""
    if not (of_tasks := told.facts.get("tasks")):
        return replace(entry, privacy=_bound(scenario, partial, told.facts.get("rounds", {})))
    tasks = {}
    for name, times in of_tasks.items():
        # The scenario of each task lies within that of the run.
        tables = scenario["tasks"][name]["scenario"]
        bound = _bound(tables, partial, times)
        tasks[name] = TaskSoFar(len(times["opened"]), tables["rounds"]["count"], bound)
    return replace(entry, kind="tasks", tasks=tasks)


def _bound(tables: dict[str, Any], folder: Path, times: Mapping[str, Any]) -> Privacy | None:
    """Returns the bound after the rounds with these times; None before the first."""
    done = len(times.get("opened", ()))
    if not done:
        return None
    try:
        scenario = Scenario.from_tables(
            tables, source=str(folder), directory=folder, is_recorded=True
        )
        found = bound_so_far(scenario, RoundsSoFar.of(times))
    # Without a bound, the progress of the run is known all the same.
    except Exception as error:
        reason = one_line(f"{error}" or type(error).__name__)
        return Privacy(None, None, 0.0, done, reason, {})
    stop_at = scenario.privacy.stop_at
    limit = {} if stop_at is None else {"rho": stop_at.rho, "epsilon": stop_at.epsilon}
    return Privacy(
        finite_or_none(found.rho),
        finite_or_none(found.epsilon),
        found.delta,
        done,
        found.reason,
        {name: most for name, most in limit.items() if most is not None},
    )


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
