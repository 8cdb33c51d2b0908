"""Verifies a run: simulates its recorded scenario again, and compares the digests of all columns.

A trace is a function of its scenario, so anyone can repeat it. Equal digests show that the trace is
the outcome of the recorded scenario, and was neither edited nor selected row by row. A trained
model depends on the arithmetic of the machine too: other versions of packages, or other devices,
may change its last bits.
"""

import math
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar

from fedray.base.document import InJson
from fedray.base.errors import InputError
from fedray.base.result import Result
from fedray.report.subject import Subject
from fedray.report.table import Table
from fedray.runs.learning import scenario_of, train
from fedray.runs.simulation import CommitListener, simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario, SeveralTasks
from fedray.server.rounds.pace import COSTS_VERSION
from fedray.trace.files import check_scenario_digest
from fedray.trace.imported import open_trace
from fedray.trace.learned_from import is_trained_run, opened_training
from fedray.trace.model_files import BEST_FILE, MODEL_FILE
from fedray.trace.provenance import package_versions
from fedray.trace.reader import Trace
from fedray.trace.schema import LOSSES_DIGEST, LOSSES_FILE, METRICS_FILE, ROUNDS_FILE
from fedray.trace.several_tasks import TasksRun, is_of_tasks
from fedray.trace.trained import TrainedRun
from fedray.wire.messages import ProgressListener


@dataclass(frozen=True)
class Verification(Result):
    """Comparison of a run with its repetition."""

    TABLES: ClassVar[str] = "fedray.runs.verified:verification_tables"
    SUBJECT: ClassVar[str] = "fedray.runs.verified:verification_subject"

    path: Path
    """Directory of the run."""
    digest: str
    """Recorded digest of the trace, of the traces of all tasks, or of the model."""
    compared: int
    """Number of compared digests."""
    difference: str
    """The first difference, as a sentence; empty if all digests are equal."""
    other_versions: dict[str, tuple[str, str]]
    """Recorded and present version of packages that are not the same."""

    @property
    def is_equal(self) -> InJson[bool]:
        """Whether every digest of the repetition is the recorded one."""
        return not self.difference

    @property
    def reason(self) -> str:
        """A sentence on a possible cause of a difference."""
        if not self.other_versions:
            return "the run was changed, or its machine computes differently"
        changed = ", ".join(
            f"{name} {then} (now {now})" for name, (then, now) in self.other_versions.items()
        )
        return f"the run was made with {changed}, whose draws or arithmetic may differ; use these"


def verification_subject(found: Verification) -> Subject:
    """Returns the subject of a comparison: the run and its repetition."""
    return Subject(f"run {found.path.name}")


def verification_tables(found: Verification) -> list[Table]:
    """Returns the table of a verification."""
    verdict = f"equal in all {found.compared:,} digests" if found.is_equal else found.difference
    rows = (("run", str(found.path)), ("digest", found.digest), ("again", verdict))
    return [Table("", ("", ""), rows)]


def verify_run(
    directory: str | Path,
    placement: Placement | None = None,
    on_progress: ProgressListener | None = None,
    *,
    trace: str | Path | None = None,
    trust_code: bool = False,
) -> Verification:
    """Repeats a run in a temporary folder, and compares the digests of all columns.

    Args:
        directory: trace of one task or several, or a trained run.
        placement: workers and cluster, which cannot change a trace.
        on_progress: called with the progress.
        trace: trace of a trained run that is not inside it.
        trust_code: whether custom code that came with the run may be run.

    Raises:
        InputError: the run is a log, a single task of several, or a model without its trace.
        TraceCorrupt: a file of the run does not have its recorded digest.
        FedrayError: see `fedray.simulate` and `fedray.train`.
    """
    path = Path(directory)
    # A repetition is not continued, so it needs no checkpoints.
    here = replace(placement or Placement(), checkpoint_seconds=math.inf)
    with tempfile.TemporaryDirectory(prefix="fedray-verify-") as folder:
        again = Path(folder) / "again"
        if is_of_tasks(path):
            tasks = TasksRun.open(path)
            several = SeveralTasks.of_document(tasks.document, str(path), path)
            _check_scenario(several, tasks.document, trust_code, path)
            tasks.verify()
            repeated = simulate(several, here, again, on_progress)
            pairs = _pairs_of_tasks(tasks, repeated)
            # Each trace records the packages of the whole run.
            first = next(iter(tasks.traces.values())).run
            return _compared(path, tasks.digest, first, pairs)
        if is_trained_run(path):
            trained, of_trace, model = opened_training(path, trace)
            trained.verify()
            if not trust_code:
                model.demand_trust()
            learned = train(of_trace, model, here, again, on_progress, trust_code=trust_code)
            pairs = zip(_figures_of(trained), _figures_of(learned), strict=True)
            digest = trained.document["model_sha256"]
            return _compared(path, digest, trained.document, pairs)
        opened = open_trace(path)
        if not isinstance(opened, Trace):
            raise InputError(
                f"trace {str(path)!r} was imported from a log, so there is no scenario to simulate "
                "again; import the log again and compare the digest that `fedray import` prints"
            )
        if isinstance(opened.run.get("task"), dict):
            raise InputError(
                f"trace {str(path)!r} is of one of several tasks, which depend on each other; give "
                "the directory of the whole run"
            )
        scenario = scenario_of(opened)
        _check_scenario(scenario, opened.run, trust_code, path)
        opened.verify()
        repeated = simulate(scenario, here, again, on_progress, on_commit=_end_of(opened))
        pairs = zip_longest(_digests_of(opened), _digests_of(repeated))
        return _compared(path, opened.digest, opened.run, pairs)


def _end_of(trace: Trace) -> CommitListener:
    """Returns a listener that ends a repetition where the training of a run has ended it."""
    last = trace.committed_rounds if trace.run.get("stopped") else math.inf
    return lambda index, *_: trace.run["ended"] if index + 1 >= last else None


_Named = tuple[str, Any] | None


def _check_scenario(
    scenario: Scenario | SeveralTasks, document: dict[str, Any], trust_code: bool, path: Path
) -> None:
    check_scenario_digest(scenario.digest, document, path)
    # Code in the directory may come from a stranger.
    if not trust_code:
        scenario.demand_trust()


def _pairs_of_tasks(one: TasksRun, other: TasksRun) -> Iterator[tuple[_Named, _Named]]:
    for name, trace in one.traces.items():
        prefix = f"task {name}: "
        yield from zip_longest(_digests_of(trace, prefix), _digests_of(other.traces[name], prefix))


def _digests_of(trace: Trace, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the name and value of everything in run.json that follows from the scenario."""
    run = trace.run
    yield f"{prefix}how the run ended", run["ended"]
    yield f"{prefix}{ROUNDS_FILE}", run["rounds_digest"]
    yield f"{prefix}{LOSSES_FILE}", run.get(LOSSES_DIGEST)
    for part in run["parts"]:
        for key in ("first_device", "end_device", "rows"):
            yield f"{prefix}{key} of {part['file']}", part[key]
        for column, digest in part["columns"].items():
            yield f"{prefix}column {column} of {part['file']}", digest


def _figures_of(trained: TrainedRun) -> Iterator[tuple[str, Any]]:
    yield METRICS_FILE, trained.document["metrics_digest"]
    yield MODEL_FILE, trained.document["model_sha256"]
    yield BEST_FILE, trained.document.get("best")


def _compared(
    path: Path, digest: str, document: dict[str, Any], pairs: Iterable[tuple[_Named, _Named]]
) -> Verification:
    difference, compared = "", 0
    for recorded, again in pairs:
        compared += 1
        if recorded != again and not difference:
            difference = _difference(recorded, again)
    then, now = dict(document["packages"]), package_versions()
    # The choice between samplers determines a trace, and has a version of its own.
    if "samplers" in document:
        then["costs of samplers"] = document["samplers"].get("costs_version")
        now = {**now, "costs of samplers": COSTS_VERSION}
    others = {
        name: (str(then.get(name)), str(now.get(name)))
        for name in now
        if then.get(name) != now.get(name)
    }
    return Verification(path, digest, compared, difference, others)


def _difference(recorded: _Named, again: _Named) -> str:
    if recorded is None or again is None or recorded[0] != again[0]:
        only, where = (again, "repetition") if recorded is None else (recorded, "recorded run")
        assert only is not None
        return f"{only[0]} is only in the {where}"
    (name, then), (_, now) = recorded, again
    return f"{name} differs: {str(then)[:12]} is recorded, {str(now)[:12]} came again"
