"""Runs: simulation and training at the same time. While round t + 1 is simulated, round t is
trained. The models of several tasks are trained one by one after the simulation."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, overload

from fedray.audit.claims import Claim, claim_of_document
from fedray.base.errors import CheckpointError, InputError
from fedray.base.storage import Bucket, is_of_bucket, local_path
from fedray.clients.data.factory import build_index
from fedray.runs import learning, simulation
from fedray.runs.calibrated import calibrated
from fedray.runs.ensured import check_trace, guard_of
from fedray.runs.evaluations import Evaluations, check_metrics
from fedray.runs.learning import DeviceTime, LiveTraining, finish_training
from fedray.runs.preflight import preflight
from fedray.runs.simulation import (
    read_unfinished_scenario,
    resume,
    resume_any,
    simulate_checked,
)
from fedray.runtime.placement import LEAST_SECONDS, Placement
from fedray.scenario import Scenario, SeveralTasks
from fedray.scenario.several_tasks import tasks_of
from fedray.trace.imported import ImportedTrace, open_trace
from fedray.trace.partial import finished_directory, new_directory, with_resume_hint
from fedray.trace.reader import Trace
from fedray.trace.schema import RUN_FILE
from fedray.trace.several_tasks import TasksRun, is_of_tasks
from fedray.trace.stored import StoredRun
from fedray.trace.trained import TRAINING, TrainedRun
from fedray.trace.unfinished import read_unfinished
from fedray.wire.messages import ProgressListener
from fedray.wire.protocols import ReleaseGuard


@overload
def run_scenario(
    scenario: Scenario,
    placement: Placement | None = None,
    out: str | Path | None = None,
    on_progress: ProgressListener | None = None,
    on_start: Callable[[], None] | None = None,
    *,
    ensure: Claim | None = None,
) -> Trace: ...
@overload
def run_scenario(
    scenario: SeveralTasks,
    placement: Placement | None = None,
    out: str | Path | None = None,
    on_progress: ProgressListener | None = None,
    on_start: Callable[[], None] | None = None,
    *,
    ensure: Claim | None = None,
) -> TasksRun: ...
def run_scenario(
    scenario: Scenario | SeveralTasks,
    placement: Placement | None = None,
    out: str | Path | None = None,
    on_progress: ProgressListener | None = None,
    on_start: Callable[[], None] | None = None,
    *,
    ensure: Claim | None = None,
) -> Trace | TasksRun:
    """Simulates a scenario and, if its training is enabled, trains its model at the same time. The
    models of several tasks are trained after the simulation.

    The trace is that of `simulate`, and contains the trained run that `train` would return.

    Args:
        scenario: scenario to run, of one task or several.
        placement: workers and cluster, which affect only the duration.
        out: a new directory for the trace, or the traces of all tasks, or its URI in a bucket; by
            default one under runs/.
        on_progress: called with the progress of simulation and training.
        on_start: called when the shards are ready.
        ensure: claim that the rules of the scenario must ensure, and that every release is checked
            against before it is made. A release outside it ends the run, as `run["ended"]` says.

    Raises:
        InputError: the rules do not ensure the claim; nothing was started.
        Refused: the first release is outside the claim.
        FedrayError: see `simulate` and `train`. After a checkpoint, `resume_run` continues.
    """
    if out is not None and is_of_bucket(out):

        def run(local: Path) -> Any:
            return run_scenario(scenario, placement, local, on_progress, on_start, ensure=ensure)

        return _in_bucket(out, run, is_resumed=False)
    # Reading the data may take minutes, so this is checked first.
    checked = preflight(scenario)
    guard = None if ensure is None else guard_of(ensure, checked)
    return run_checked(checked.scenario, placement, out, on_progress, on_start, guard)


def run_checked(
    scenario: Scenario | SeveralTasks,
    placement: Placement | None,
    out: str | Path | None,
    on_progress: ProgressListener | None,
    on_start: Callable[[], None] | None,
    guard: ReleaseGuard | None = None,
) -> Any:
    """Runs a scenario of a `Preflight`, with the guard of its claim; see `run_scenario`."""
    # Choosing the placement may train devices, which need their data; and errors in data are
    # reported before the simulation.
    for task in tasks_of(scenario):
        build_index(task.scenario, on_progress)
        learning.check_report(task.scenario)
    if isinstance(scenario, SeveralTasks):
        check_metrics(scenario)
        for task in scenario.tasks:
            learning.rehearse(task.scenario)
        found = simulate_checked(scenario, placement, out, on_progress, on_start)
        return _trained(found, scenario, placement, on_progress)
    time_of_devices = DeviceTime(scenario)
    placement = _resolved(scenario, placement, time_of_devices)
    # A lack of memory is reported before a directory is made.
    simulation.check_memory(scenario, placement)
    directory = local_path(out) if out is not None else new_directory(scenario.name)
    if not scenario.training.enabled:
        return simulate_checked(scenario, placement, directory, on_progress, on_start, guard=guard)
    started = _live(scenario, placement, directory, on_progress, time_of_devices)
    with started as live:
        trace = simulate_checked(
            scenario, placement, directory, on_progress, on_start, live.add, guard
        )
        live.finish(trace)
    # A training that has stopped replaces the trace.
    return Trace.open(directory)


def resume_run(
    directory: str | Path,
    placement: Placement | None = None,
    scenario: Scenario | SeveralTasks | None = None,
    on_progress: ProgressListener | None = None,
    *,
    trust_code: bool = False,
    ensure: Claim | None = None,
) -> Trace | TasksRun | TrainedRun:
    """Continues a run of one task or several, or a training of a finished trace, from its last
    checkpoint. The result equals that of an uninterrupted run or training.

    Args:
        directory: `out` of the run.
        placement: workers and cluster from now on; they may differ from earlier ones.
        scenario: scenario of the run or training; None to use the recorded one.
        on_progress: called with the progress of simulation and training.
        trust_code: whether code in the directory may be run if `scenario` is not given, also if
            this user has not run it before.
        ensure: claim that the run was started with; None to use the recorded one, if it has one.

    Raises:
        CheckpointError: the directory holds no unfinished run, or one of another scenario or claim.
        InputError: the code is not trusted.
        FedrayError: see `run_scenario`.
    """
    if is_of_bucket(directory):

        def run(local: Path) -> Any:
            return resume_run(
                local, placement, scenario, on_progress, trust_code=trust_code, ensure=ensure
            )

        return _in_bucket(directory, run, is_resumed=True)
    has_tasks = _is_unfinished_run_of_tasks(directory)
    if scenario is not None and has_tasks != isinstance(scenario, SeveralTasks):
        raise CheckpointError(
            f"{str(directory)!r} was started with another scenario: only one of the two has "
            "several tasks; leave the scenario out"
        )
    if "trace" in (document := _unfinished(directory)):
        assert not isinstance(scenario, SeveralTasks)
        return train(
            document["trace"],
            scenario,
            placement,
            finished_directory(Path(directory)),
            on_progress,
            is_resumed=True,
            trust_code=trust_code,
            ensure=ensure,
        )
    if scenario is not None:
        scenario = calibrated(scenario)
    claim = ensured_claim(directory, ensure)
    if has_tasks or isinstance(scenario, SeveralTasks):
        several: Any = scenario
        return _resume_tasks(directory, placement, several, on_progress, trust_code)
    # The trace is complete, so only the training can be left.
    if (Path(directory) / RUN_FILE).exists():
        trace = Trace.open(directory)
        _finish_training(trace, placement or Placement(), on_progress, scenario, trust_code)
        return Trace.open(directory)
    partial, kept, _ = read_unfinished_scenario(directory, scenario)
    if scenario is None and not trust_code:
        kept.demand_trust()
    time_of_devices = DeviceTime(kept)
    placement = _resolved(kept, placement, time_of_devices)
    out = finished_directory(partial)
    guard = None if claim is None else guard_of(claim, preflight(kept))
    if not kept.training.enabled:
        return resume(out, placement, scenario, on_progress, trust_code=trust_code, guard=guard)
    started = _live(kept, placement, out, on_progress, time_of_devices, is_resumed=True)
    with started as live:
        trace = resume(
            out, placement, scenario, on_progress, live.add, trust_code=trust_code, guard=guard
        )
        live.finish(trace)
    return Trace.open(out)


def _in_bucket(uri: str | Path, run: Callable[[Path], Any], *, is_resumed: bool) -> Any:
    with StoredRun(Bucket(uri), is_resumed) as stored:
        found = run(stored.directory)
        stored.publish()
    return type(found).open(uri)


def complete_run(
    directory: str | Path, scenario: Scenario | SeveralTasks
) -> Trace | TasksRun | None:
    """Returns the run of a scenario in a directory; None if it, or its training, is not complete.

    Raises CheckpointError if the directory holds a run of another scenario.
    """
    if is_of_tasks(directory):
        run = TasksRun.open(directory)
        document, traces = run.document, run.traces
    elif (Path(directory) / RUN_FILE).exists():
        run = Trace.open(directory)
        document, traces = run.run, {"": run}
    else:
        return None
    if document["scenario_digest"] != scenario.digest:
        raise CheckpointError(
            f"{str(directory)!r} is a complete run of another scenario; give another directory"
        )
    return None if _untrained(traces) else run


def _resume_tasks(
    directory: str | Path,
    placement: Placement | None,
    several: SeveralTasks | None,
    on_progress: ProgressListener | None,
    trust_code: bool,
) -> TasksRun:
    if is_of_tasks(directory):
        found = TasksRun.open(directory)
        # If all traces are complete, only trainings can be left.
        if not _untrained(found.traces):
            raise _nothing_left(found.path)
    else:
        path = resume_any(
            directory, placement, several, on_progress, kind=SeveralTasks, trust_code=trust_code
        )
        found = TasksRun.open(path)
    return _trained(found, several, placement, on_progress, trust_code=trust_code)


def _is_unfinished_run_of_tasks(directory: str | Path) -> bool:
    """Whether an unfinished run is of several tasks. Raises CheckpointError without such a run."""
    # A run of one task has its tables at the top level, and no table of this name.
    return is_of_tasks(directory) or "tasks" in _unfinished(directory).get("scenario", {})


def _unfinished(directory: str | Path) -> dict[str, Any]:
    """Returns the unfinished.json of a run or training, given its `out`; an empty one if all its
    traces are complete. Raises CheckpointError."""
    if is_of_tasks(directory) or (Path(directory) / RUN_FILE).exists():
        return {}
    return read_unfinished(Path(directory).absolute())[1]


def recorded_scenario(directory: str | Path) -> Scenario | SeveralTasks:
    """Returns the scenario of an interrupted run, given its `out`. Raises CheckpointError."""
    if is_of_tasks(directory):
        document = TasksRun.open(directory).document
        return SeveralTasks.of_document(document, str(directory), Path(directory))
    if (Path(directory) / RUN_FILE).exists():
        return learning.scenario_of(Trace.open(directory))
    kind = SeveralTasks if _is_unfinished_run_of_tasks(directory) else Scenario
    return read_unfinished_scenario(directory, None, kind)[1]


def train(
    trace: Trace | ImportedTrace | str | Path,
    scenario: Scenario | None = None,
    placement: Placement | None = None,
    out: str | Path | None = None,
    on_progress: ProgressListener | None = None,
    *,
    is_resumed: bool = False,
    trust_code: bool = False,
    ensure: Claim | None = None,
) -> TrainedRun:
    """Trains a model on the participations of a trace.

    The model is a function of the trace and of the scenario's tables `data`, `training` and
    `privacy`.

    Args:
        trace: trace of `simulate`; the devices of a log have no data.
        scenario: source of data, training and mechanism; by default the trace's own, or the
            recorded one of a training that continues. Its other tables must equal the trace's.
        placement: workers and cluster, which only affect the duration, except that a GPU for the
            aggregator changes its noise.
        out: a new directory; by default one under runs/.
        on_progress: function that is called with the progress after every round.
        is_resumed: whether to continue from the last checkpoint of a training with this `out`.
        trust_code: whether the code of a custom task that came with the trace may be run.
        ensure: claim that the rules and the trace must ensure; it is recorded. A training that
            continues keeps its own.

    Raises:
        InputError: the claim is not ensured, and nothing is trained; else see
            `fedray.runs.learning.train`.
        CheckpointError: `out` has no unfinished training of this scenario, or one that was started
            without this claim.
        AggregatorLost, TrainerLost: a worker was lost too often.
    """
    opened = open_trace(trace) if isinstance(trace, str | Path) else trace
    claim = ensure
    if is_resumed and out is not None:
        claim = ensured_claim(out, ensure)
        if scenario is None:
            _, scenario = learning.unfinished_training(local_path(out))
    if claim is not None:
        check_trace(claim, opened, learning.scenario_to_train(opened, scenario))
    return learning.train(
        opened,
        scenario,
        placement,
        out,
        on_progress,
        is_resumed=is_resumed,
        trust_code=trust_code,
        ensured=None if claim is None else claim.to_document(),
    )


def ensured_claim(directory: str | Path, given: Claim | None = None) -> Claim | None:
    """Returns the claim that a run, complete or not, must ensure, given its `out`; None without
    one. Raises CheckpointError if the given claim is another one."""
    place = Path(directory)
    if is_of_tasks(place):
        document = TasksRun.open(place).document
    elif (place / RUN_FILE).exists():
        document = Trace.open(place).run
    else:
        place, document, _ = read_unfinished(place.absolute())
    kept = document.get("ensured")
    if given is not None and (kept is None or kept["digest"] != given.digest):
        started = "without a claim to ensure" if kept is None else "with another claim to ensure"
        raise CheckpointError(
            f"{str(directory)!r} was started {started}; leave the claim out, or start a new run"
        )
    return None if kept is None else claim_of_document(kept, str(place), place)


def _resolved(
    scenario: Scenario, placement: Placement | None, time_of_devices: DeviceTime
) -> Placement:
    def seconds() -> float:
        simulated = simulation.predicted_seconds(scenario)
        # If this already decides, no device needs to be trained.
        if simulated >= LEAST_SECONDS or not scenario.training.enabled:
            return simulated
        return simulated + learning.predicted_seconds(scenario, time_of_devices)

    return (placement or Placement()).resolved(seconds)


def _finish_training(
    trace: Trace,
    placement: Placement,
    on_progress: ProgressListener | None,
    scenario: Scenario | None,
    trust_code: bool,
) -> None:
    """Trains the model of a run whose trace is already complete."""
    if not _untrained({"": trace}):
        raise _nothing_left(trace.path)
    with _hint(trace.path):
        finish_training(trace, placement, on_progress, scenario, trust_code=trust_code)


@contextlib.contextmanager
def _live(
    scenario: Scenario,
    placement: Placement,
    directory: Path,
    on_progress: ProgressListener | None,
    time_of_devices: DeviceTime,
    is_resumed: bool = False,
) -> Iterator[LiveTraining]:
    """Starts a training, and the cluster that it shares with the simulation."""
    training = LiveTraining(
        scenario, placement, directory, is_resumed, on_progress, time_of_devices
    )
    with _hint(directory), training as live:
        yield live


@contextlib.contextmanager
def _hint(directory: Path) -> Iterator[None]:
    """Adds to an error after the trace is complete how to resume the training."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        # Until the trace is complete, the simulation's own errors say how to resume.
        if isinstance(error, InputError) or not (directory / RUN_FILE).exists():
            raise
        raise with_resume_hint(error, directory) from None


def _untrained(traces: Mapping[str, Trace]) -> list[str]:
    """Returns the tasks whose models are still to be trained."""
    return [
        name
        for name, trace in traces.items()
        if trace.scenario["training"]["enabled"]
        # A task without a committed round has nothing to train on.
        and trace.committed_rounds
        and not (trace.path / TRAINING).exists()
    ]


def _trained(
    found: TasksRun,
    several: SeveralTasks | None,
    placement: Placement | None,
    on_progress: ProgressListener | None,
    *,
    trust_code: bool = False,
) -> TasksRun:
    """Trains the models of all tasks that are still to be trained; returns the run with them."""
    # A caller who gives the scenarios already has and trusts their code.
    given = {task.name: task.scenario for task in several.tasks} if several is not None else {}
    here = placement or Placement()
    for name in _untrained(found.traces):
        trace, scenario = found.traces[name], given.get(name)
        try:
            finish_training(
                trace,
                here,
                on_progress,
                scenario,
                Evaluations(found.traces, name),
                trust_code=trust_code,
            )
        except (Exception, KeyboardInterrupt) as error:
            raise with_resume_hint(error, found.path) from None
    return TasksRun.open(found.path)


def _nothing_left(path: Path) -> CheckpointError:
    how = ""
    if (path / RUN_FILE).exists() and (run := Trace.open(path).run).get("stopped"):
        how = f" ({run['ended']}), and its other rounds do not exist"
    return CheckpointError(f"{str(path)!r} is complete{how}; give the `out` of an interrupted run")
