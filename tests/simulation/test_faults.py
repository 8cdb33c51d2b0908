"""What goes wrong in a run, and the trace that it has all the same: processes that are killed, disks that are full, interruptions.

`reference` is the undisturbed run. Real processes are killed, each at three different moments of a run.
"""

import contextlib
import errno
import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import children_of

from fedray.base.errors import (
    AggregatorLost,
    CheckpointError,
    InputError,
    RunFailed,
    ShardLost,
    Starved,
)
from fedray.runs.learning import train
from fedray.runs.pipeline import resume_run, run_scenario
from fedray.runtime.placement import Placement
from fedray.runtime.workers import ArgumentLost, InProcessWorker, Ready, ThreadWorker
from fedray.trace.checkpoints import has_checkpoint
from fedray.trace.partial import MARK, TOKEN_FILE
from fedray.trace.reader import Trace
from fedray.trace.trained import TRAINING
from fedray.wire.messages import Progress, RunProgress, TrainingProgress

OVERRIDES = (
    "population.devices=100000", "rounds.count=18", "participation.timer_hours=1.0", "participation.round_separation=4", "rounds.look_ahead_minutes=2.0",
    "training.enabled=true", "training.cohort_sample=16", "training.evaluate_every=4", "training.checkpoint_every=7",
)  # fmt: skip
MOMENTS = (3, 8, 14)
"""The second follows a checkpoint of the aggregator, with an evaluation under way."""
KILLS = MOMENTS if "FEDRAY_ALL_MOMENTS" in os.environ else MOMENTS[1:2]
"""Moments at which Ray actors are killed, and runs interrupted: a new actor takes seconds to load; `make faults` has all."""
HERE = Placement(1, "in-process", checkpoint_seconds=0.0)
SELDOM = Placement(1, "in-process")
"""Checkpoints every half minute, which these runs do not take."""
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def reference(small, tmp_path_factory) -> Trace:
    return run_scenario(
        small(*OVERRIDES), Placement(1, "in-process"), tmp_path_factory.mktemp("faults") / "t"
    )


def assert_same(trace: Trace, reference: Trace) -> None:
    """The same result columns, byte for byte, model and metrics too, and nothing else lies about."""
    assert trace.digest == reference.digest
    for file in reference.path.rglob("*.parquet"):
        assert (trace.path / file.relative_to(reference.path)).read_bytes() == file.read_bytes()
    model = f"{TRAINING}/model.safetensors"
    assert (trace.path / model).read_bytes() == (reference.path / model).read_bytes()
    names = {path.relative_to(trace.path) for path in trace.path.rglob("*")}
    assert names == {path.relative_to(reference.path) for path in reference.path.rglob("*")}
    assert not list(trace.path.parent.glob("*.partial"))


def restarts_of(trace: Trace) -> int:
    """The restarts of its simulation and of its training."""
    return trace.run["restarts"] + (trace.trained.document["restarts"] if trace.trained else 0)


def done_by(progress: Progress, kind: type[Progress]) -> int | None:
    """Rounds that are simulated, or trained; None if the other is told of."""
    if not isinstance(progress, kind):
        return None
    return progress.committed if isinstance(progress, RunProgress) else progress.trained


def children_named(name: str) -> set[int]:
    """Descendants of this process whose title starts with a name; Ray titles its actors."""
    found = set()
    for process in children_of(os.getpid()):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{process}/cmdline").read_text(errors="replace").startswith(name):
                found.add(process)
    return found


def state_of(process: int) -> str:
    """As in /proc: R, S, T for stopped, Z; empty for a process that is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


class Killer:
    """Kills (or stops) the actors of one name that were not there before, or `most` of them, after given numbers of committed rounds."""

    def __init__(
        self,
        actor: str,
        moments: tuple[int, ...],
        number: int = signal.SIGKILL,
        most: int | None = None,
    ) -> None:
        self._actor, self._moments, self._signal = actor, list(moments), number
        self._most = most
        self._before = children_named(actor)

    def __call__(self, progress: Progress) -> None:
        kind = (
            TrainingProgress
            if any(name in self._actor for name in ("Aggregator", "Store", "Trainer"))
            else RunProgress
        )
        if self._moments and done_by(progress, kind) == self._moments[0]:
            self._moments.pop(0)
            # At work, a process has the title of its task; nothing new is asked of it meanwhile.
            end = time.monotonic() + 20.0
            while not (found := children_named(self._actor) - self._before):
                assert time.monotonic() < end
                time.sleep(0.02)
            for process in sorted(found)[: self._most]:
                os.kill(process, self._signal)


ALL_ACTORS = "FEDRAY_ALL_MOMENTS" in os.environ
TRAINERS = 2 if ALL_ACTORS else 1
"""Each loads torch anew."""
ENDLESSLY_DYING = [("ray::Shard", ShardLost), ("ray::Aggregator", AggregatorLost)][
    : 2 if ALL_ACTORS else 1
]
HUNG = ["ray::Shard", "ray::Aggregator", "ray::Trainer", "ray::Workers"][: 4 if ALL_ACTORS else 1]
"""Half a minute each, of waiting, so that the suite has one; `make faults` has all."""


@pytest.fixture
def each_alone(monkeypatch) -> None:
    """Every worker of a training has a process of its own, as on nodes of many CPUs."""
    monkeypatch.setattr("fedray.runtime.workers.FEW_CPUS", 0)


@pytest.mark.ray
@pytest.mark.slow  # it waits until a worker is taken to hang, which must be longer than an answer takes on a busy machine
@pytest.mark.parametrize("actor", HUNG)
@pytest.mark.usefixtures("ray_cluster")
def test_a_hung_worker_is_replaced_and_the_trace_is_the_same(
    reference: Trace, small, tmp_path: Path, caplog, request, actor: str
) -> None:
    """Its process is stopped, and answers nothing. More restarts do no harm, where a busy machine is slow to answer."""
    if actor != "ray::Workers":
        request.getfixturevalue("each_alone")
    is_trained = "Shard" not in actor
    scenario = small(*OVERRIDES, f"training.enabled={str(is_trained).lower()}")
    placement = Placement(
        1, worker_timeout_seconds=10.0, most_restarts=30, checkpoint_seconds=1e6, trainers=1
    )
    trace = run_scenario(
        scenario, placement, tmp_path / "t", Killer(actor, MOMENTS[1:2], signal.SIGSTOP)
    )
    assert restarts_of(trace) >= 1
    assert "did not answer within 10 s; it is restarted" in caplog.text
    assert trace.digest == reference.digest
    if is_trained:
        assert_same(trace, reference)
    latest = time.monotonic() + 60.0  # Ray asks a process to end, and kills it some seconds later
    while stopped := [process for process in children_named(actor) if state_of(process) == "T"]:
        assert time.monotonic() < latest, f"processes {stopped} were left behind, stopped"
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_killed_shards_come_back_and_the_trace_is_the_same(
    reference: Trace, small, tmp_path: Path
) -> None:
    """With the host of both of them, and a checkpoint after every window. Untrained: the trace is
    the same."""
    scenario = small(*OVERRIDES, "training.enabled=false")
    trace = run_scenario(
        scenario,
        Placement(2, checkpoint_seconds=0.0),
        tmp_path / "t",
        Killer("ray::Shard", KILLS),
    )
    assert trace.run["restarts"] == len(KILLS)
    assert trace.digest == reference.digest


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster", "each_alone")
def test_a_killed_aggregator_and_killed_trainers_come_back_and_the_model_is_the_same(
    reference: Trace, small, tmp_path: Path
) -> None:
    """With no checkpoint of the run to help. One of two trainers is killed in its part of an
    evaluation."""
    trainers = Killer("ray::Trainer", KILLS, most=1)
    aggregator = Killer("ray::Aggregator", tuple(moment + 2 for moment in KILLS))

    def kill(progress: Progress) -> None:
        trainers(progress)
        aggregator(progress)

    placement = Placement(1, checkpoint_seconds=1e6, trainers=2)
    trace = run_scenario(small(*OVERRIDES), placement, tmp_path / "t", kill)
    assert trace.trained is not None
    assert trace.trained.document["restarts"] == len(KILLS) * 2
    assert_same(trace, reference)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster", "each_alone")
def test_a_killed_store_comes_back_and_the_model_is_the_same(small, tmp_path: Path) -> None:
    """With no checkpoint of the run to help."""
    scenario = small(
        *OVERRIDES,
        "privacy.mechanism={kind='band-fhu', bands=3}",
        "privacy.trust={kind='devices', parameters=30320, scale=4096}",
    )
    undisturbed = run_scenario(scenario, Placement(1, "in-process"), tmp_path / "u")
    placement = Placement(1, checkpoint_seconds=1e6, trainers=TRAINERS)
    trace = run_scenario(scenario, placement, tmp_path / "t", Killer("ray::Store", KILLS))
    assert trace.trained is not None
    assert trace.trained.document["restarts"] == len(KILLS)
    assert_same(trace, undisturbed)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_a_killed_process_of_host_aggregator_and_trainers_comes_back_and_the_run_is_the_same(
    reference: Trace, small, tmp_path: Path, gauges
) -> None:
    """They share one where CPUs are few. Simulation and training, each in its thread, start it anew
    only once."""
    before = children_named("ray::Workers")
    seen: set[int] = set()
    killer = Killer("ray::Workers", KILLS)

    def kill(progress: Progress) -> None:
        seen.update(children_named("ray::Workers") - before)
        killer(progress)

    placement = Placement(1, checkpoint_seconds=1e6, trainers=2)
    trace = run_scenario(small(*OVERRIDES), placement, tmp_path / "t", kill)
    assert len(seen) == 1 + len(KILLS)
    assert trace.run["restarts"] == len(KILLS)
    assert trace.trained is not None
    assert trace.trained.document["restarts"] == len(KILLS) * 3
    assert_same(trace, reference)
    (shown,) = [values for (_, name), values in gauges.items() if name == "fedray_run_restarts"]
    assert list(dict.fromkeys(shown)) == list(range(1 + restarts_of(trace)))
    latest = time.monotonic() + 60.0
    while left := children_named("ray::Workers") - before:
        assert time.monotonic() < latest, f"processes {left} were left behind"
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster", "each_alone")
@pytest.mark.parametrize(("actor", "error"), ENDLESSLY_DYING)
def test_an_actor_that_keeps_dying_ends_the_run_which_can_be_resumed(
    reference: Trace, small, tmp_path: Path, actor: str, error: type
) -> None:
    placement = Placement(1, most_restarts=0, checkpoint_seconds=0.0, trainers=1)
    with pytest.raises(error, match=r"died.*continue with `resume="):
        run_scenario(small(*OVERRIDES), placement, tmp_path / "t", Killer(actor, (12,)))
    assert_same(resume_run(tmp_path / "t", HERE), reference)


class DyingWorker(InProcessWorker):
    """An aggregator that is lost at the first call of some method, and then once more."""

    method, deaths, most_restarts = "start", 2, 5

    def call(self, method: str, *arguments: Any) -> Ready[Any]:
        if method == DyingWorker.method and DyingWorker.deaths:
            DyingWorker.deaths -= 1
            raise AggregatorLost("the aggregator died (killed)")
        return super().call(method, *arguments)

    def restart(self) -> None:
        if self.restarts >= self.most_restarts:
            raise AggregatorLost(f"the aggregator died (killed), after {self.restarts} restarts")
        self.restarts += 1
        super().restart()


@pytest.mark.slow
@pytest.mark.parametrize("call", ["start", "commit", "state", "load"])
def test_an_aggregator_that_dies_at_any_call_is_started_anew(
    reference: Trace, small, tmp_path: Path, monkeypatch, call: str
) -> None:
    """At its start, and while it is told of a checkpoint on resume, as at every other call."""
    if call == "load":
        with pytest.raises(KeyboardInterrupt):
            run_scenario(small(*OVERRIDES), HERE, tmp_path / "t", interrupt_at(8, TrainingProgress))
    monkeypatch.setattr("fedray.server.learning.workers.InProcessWorker", DyingWorker)
    monkeypatch.setattr(DyingWorker, "method", call)
    monkeypatch.setattr(DyingWorker, "deaths", 2)
    once = Placement(1, "in-process")
    trace = (
        resume_run(tmp_path / "t", once)
        if call == "load"
        else run_scenario(small(*OVERRIDES), once, tmp_path / "t")
    )
    assert restarts_of(trace) == 2
    assert_same(trace, reference)


class LosingWorker(ThreadWorker):
    """A trainer to which the model is lost, with the machine of the aggregator, before one part of
    one evaluation."""

    asked, lost_at = itertools.count(), -1

    def call(self, method: str, *arguments: Any) -> Any:
        if method == "evaluate" and next(LosingWorker.asked) == LosingWorker.lost_at:
            lost: Future[Any] = Future()
            lost.set_exception(ArgumentLost("its owner has died"))
            return lost
        return super().call(method, *arguments)


@pytest.mark.slow
@pytest.mark.parametrize("lost_at", [7, 16])
def test_a_model_that_is_lost_before_one_trainer_evaluates_it_is_made_again(
    reference: Trace, small, tmp_path: Path, monkeypatch, lost_at: int
) -> None:
    """Three trainers share the evaluations of the initial model and of those after 4, 8, 12, 16 and
    all 18 rounds; the second one loses that after 8, and the last."""
    monkeypatch.setattr("fedray.clients.workers.ThreadWorker", LosingWorker)
    monkeypatch.setattr(LosingWorker, "asked", itertools.count())
    monkeypatch.setattr(LosingWorker, "lost_at", lost_at)
    placement = Placement(1, "in-process", trainers=3)
    assert_same(run_scenario(small(*OVERRIDES), placement, tmp_path / "t"), reference)
    # One evaluation is shared again.
    assert next(LosingWorker.asked) == 3 * 7


def test_an_aggregator_that_never_starts_ends_the_run(small, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("fedray.server.learning.workers.InProcessWorker", DyingWorker)
    monkeypatch.setattr(DyingWorker, "deaths", 100)
    with pytest.raises(AggregatorLost, match="after 5 restarts"):
        run_scenario(small(*OVERRIDES), Placement(1, "in-process"), tmp_path / "t")


DRIVER = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from fedray.runtime.placement import Placement
from fedray.wire.messages import RunProgress
from fedray.runs.learning import train
from fedray.runs.pipeline import resume_run, run_scenario
from fedray.scenario import Scenario
placement = Placement(1, "in-process", checkpoint_seconds=0.0)
def die(progress):
    if isinstance(progress, RunProgress) and progress.committed == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
if len(sys.argv) > 4:
    run_scenario(Scenario.from_toml(sys.argv[4]), placement, sys.argv[2], die)
else:
    resume_run(sys.argv[2], placement, on_progress=die)
"""


DRIVER_KILLS = MOMENTS if "FEDRAY_ALL_MOMENTS" in os.environ else MOMENTS[:2]
"""Each driver loads torch anew; `make faults` has all."""


@pytest.mark.slow
def test_a_driver_killed_again_and_again_can_be_resumed(
    reference: Trace, small, tmp_path: Path
) -> None:
    """A chain: killed, resumed and killed (`make faults`: and killed), resumed by another number of
    shards. The drivers have two threads for BLAS, where the reference has one."""
    (tmp_path / "s.toml").write_text(small(*OVERRIDES).to_toml())
    for moment in DRIVER_KILLS:
        first = [str(tmp_path / "s.toml")] if moment == DRIVER_KILLS[0] else []
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, str(ROOT), str(tmp_path / "t"), str(moment), *first],
            env={**os.environ, "OMP_NUM_THREADS": "2"},
            timeout=300,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL
        assert not (tmp_path / "t").exists()
    assert_same(resume_run(tmp_path / "t", Placement(2, "in-process")), reference)


def wait_for_checkpoint(process: subprocess.Popen[Any], directory: Path) -> None:
    """Until the run `t` in a directory has one, or has ended; two minutes at most."""
    latest = time.monotonic() + 120.0
    # What comes after the checkpoint takes a second, of which a tenth would be missed on a busy machine.
    while time.monotonic() < latest and process.poll() is None:
        if (directory / "t.partial" / "journal" / "000002.npz").exists():
            return
        time.sleep(0.01)


ELSEWHERE = """
import sys
sys.path[0] = sys.argv.pop(1)
from fedray.cli import main
main()
"""
"""The command, with the repository on this process's path alone: Ray's workers do not inherit it."""
STRANGER = 'import os\nopen(os.environ["RAN"], "a").write("code of the working directory ran")\nraise ImportError\n'


@pytest.mark.slow
@pytest.mark.ray
def test_the_command_in_another_directory_finds_the_code_and_goes_on_after_a_sigint(
    reference: Trace, small, tmp_path: Path, start
) -> None:
    """`fedray run SCENARIO --resume` starts and is interrupted once it has a checkpoint: one line, exit 130; `--resume` finishes it; its report is there too.

    The workers found the code: what they had settled is in the checkpoint. A stranger's numpy.py and another fedray in that directory are not
    imported.
    """
    (tmp_path / "fedray").mkdir()
    for name in ("numpy.py", "fedray/__init__.py"):
        (tmp_path / name).write_text(STRANGER)
    (tmp_path / "s.toml").write_text(small(*OVERRIDES, "training.enabled=false").to_toml())
    command = [sys.executable, "-m", "fedray", "run"]
    process = start(
        [sys.executable, "-c", ELSEWHERE, str(ROOT), "run", "s.toml", "--resume", str(tmp_path / "t"), "--place", "checkpoint_seconds=0", "--json", "--place", "backend=ray", "--place", "shards=2"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"RAN": str(tmp_path / "ran")},
    )  # fmt: skip
    wait_for_checkpoint(process, tmp_path)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert out == ""
    assert err.splitlines()[-1] == (
        f"fedray: interrupted; the last checkpoint is kept; continue with `--resume={str(tmp_path / 't')!r}`"
    )
    done = subprocess.run(
        [*command, "--resume", str(tmp_path / "t"), "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["digest"] == reference.digest
    assert not (tmp_path / "ran").exists()
    assert {path.name for path in (tmp_path / "t").iterdir()} == {
        "participations",
        "rounds.parquet",
        "run.json",
        "report.html",
    }


@pytest.mark.skipif(
    "FEDRAY_ALL_MOMENTS" not in os.environ,
    reason="Ray takes a minute to notice; `make faults` has them",
)
@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
def test_a_run_whose_ray_was_killed_can_be_resumed(
    reference: Trace, small, tmp_path: Path, start, name: str
) -> None:
    """Ray ends the driver, or the driver hangs and is killed too, or it does not notice and finishes."""
    (tmp_path / "s.toml").write_text(small(*OVERRIDES).to_toml())
    process = start(
        [sys.executable, "-m", "fedray", "run", str(tmp_path / "s.toml"), "--out", str(tmp_path / "t"), "--place", "checkpoint_seconds=0", "--place", "backend=ray"],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_for_checkpoint(process, tmp_path)
    [ray] = [
        child
        for child in children_of(process.pid)
        if Path(os.readlink(f"/proc/{child}/exe")).name == name
    ]
    os.kill(ray, signal.SIGKILL)
    try:
        process.wait(timeout=90)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    trace = (
        Trace.open(tmp_path / "t")
        if (tmp_path / "t").exists()
        else resume_run(tmp_path / "t", Placement(2, "in-process"))
    )
    assert trace.digest == reference.digest


@pytest.mark.slow
@pytest.mark.parametrize("moment", KILLS)
def test_an_interrupted_run_can_be_resumed(
    reference: Trace, small, tmp_path: Path, moment: int
) -> None:
    with pytest.raises(KeyboardInterrupt, match="continue with `resume="):
        run_scenario(small(*OVERRIDES), HERE, tmp_path / "t", interrupt_at(moment))
    assert_same(resume_run(tmp_path / "t", HERE), reference)


FILES = {
    "t.partial/journal/000002.npz": 1,
    "t.partial/checkpoints/000002-": 1,
    "t.partial/participations/devices-": 2,
    "t.partial/rounds.parquet": 1,
    "t.partial/run.json": 1,
    "t.training.partial/metrics.parquet": 1,
    "t.training.partial/model.safetensors": 1,
    "t.training.partial/training.json": 1,
}
"""What does not fit, and which of that name."""


@pytest.mark.slow
@pytest.mark.parametrize("name", list(FILES))
def test_a_full_disk_stops_the_run_with_one_line_and_freed_space_lets_it_go_on(
    reference: Trace, small, tmp_path: Path, monkeypatch, name: str
) -> None:
    """Whatever file it is that does not fit. What was whole before is kept."""
    is_full, sync, count = [True], os.fsync, [0]

    def fail(handle: int) -> None:
        """The disk is found to be full when the file is brought to it."""
        written = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if written.is_relative_to(tmp_path):
            relative = written.with_name(written.name.removeprefix(".")).relative_to(tmp_path)
            count[0] += str(relative).startswith(name)
            if is_full[0] and str(relative).startswith(name) and count[0] == FILES[name]:
                os.truncate(handle, 10)
                raise OSError(errno.ENOSPC, "No space left on device")
        sync(handle)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(
        RunFailed,
        match=r"cannot be written \(No space left on device\); free space.*continue with `resume=",
    ) as error:
        run_scenario(small(*OVERRIDES), HERE, tmp_path / "t", None)
    assert "\n" not in str(error.value)
    assert (tmp_path / "t").exists() == ("training" in name)
    assert not list(tmp_path.rglob("*.new"))
    is_full[0] = False
    assert_same(resume_run(tmp_path / "t", HERE), reference)


@pytest.mark.slow
def test_a_run_whose_trace_is_whole_goes_on_with_its_training(
    reference: Trace, small, tmp_path: Path
) -> None:
    """It is interrupted in the last round that is trained, when all has been simulated."""
    with pytest.raises(KeyboardInterrupt, match="continue with `resume="):
        run_scenario(small(*OVERRIDES), HERE, tmp_path / "t", interrupt_at(18, TrainingProgress))
    assert Trace.open(tmp_path / "t").trained is None
    assert_same(resume_run(tmp_path / "t", HERE), reference)
    with pytest.raises(CheckpointError, match="is complete; give the `out`"):
        resume_run(tmp_path / "t", HERE)


def interrupt_at(rounds: int, kind: type[Progress] = RunProgress) -> Callable[[Progress], None]:
    """A listener that interrupts the run once so many rounds are simulated, or trained."""

    def interrupt(progress: Progress) -> None:
        if done_by(progress, kind) == rounds:
            raise KeyboardInterrupt

    return interrupt


ORPHANED = """
import os, threading
from pathlib import Path
from fedray.wire.messages import RunProgress, TrainingProgress
from fedray.runs.pipeline import run_scenario
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.trace.unfinished import Journal
Journal.save_if_due = lambda *arguments: None

def end(progress):
    if isinstance(progress, TrainingProgress) and progress.trained == 3:
        os._exit(1)
    if isinstance(progress, RunProgress) and progress.committed >= 10:
        # On a busy machine the trace could be whole before the third round is trained.
        threading.Event().wait()

scenario = Scenario.from_toml(Path("s.toml"))
run_scenario(scenario, Placement(1, "in-process", checkpoint_seconds=0.0), Path("t"), end)
"""
"""A run whose process vanishes when the training has a checkpoint, and the simulation has none."""


@pytest.mark.slow
def test_a_training_whose_run_left_no_checkpoint_is_replaced_by_the_next_run(
    reference: Trace, small, tmp_path: Path
) -> None:
    (tmp_path / "s.toml").write_text(small(*OVERRIDES).to_toml())
    path = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", ORPHANED], cwd=tmp_path, env=path, check=False)
    assert has_checkpoint(tmp_path / "t.training.partial")
    with pytest.raises(CheckpointError, match="start the run again, which replaces it"):
        resume_run(tmp_path / "t", HERE)
    shutil.rmtree(tmp_path / "t.partial")
    (tmp_path / "s.toml").unlink()
    assert_same(run_scenario(small(*OVERRIDES), HERE, tmp_path / "t"), reference)


@pytest.fixture
def unfinished(small, tmp_path: Path) -> Path:
    """A run that was interrupted, at tmp_path / "t"; the last journal file belongs to its newest checkpoint alone."""
    with pytest.raises(KeyboardInterrupt):
        run_scenario(small("rounds.look_ahead_minutes=2.0"), HERE, tmp_path / "t", interrupt_at(9))
    return tmp_path / "t.partial"


def test_another_scenario_is_refused(unfinished: Path, small, tmp_path: Path) -> None:
    look = "rounds.look_ahead_minutes=2.0"
    with pytest.raises(
        CheckpointError, match=r"is of another scenario .*: seed was \d+, and is 99;"
    ):
        resume_run(tmp_path / "t", HERE, small(look, "seed=99"))
    with pytest.raises(CheckpointError, match=r"rounds.look_ahead_minutes was 2.0, and is 30.0"):
        resume_run(tmp_path / "t", HERE, small("name=renamed"))
    assert (
        resume_run(
            tmp_path / "t", HERE, small("rounds.look_ahead_minutes=2.0", "name=renamed")
        ).run["ended"]
        == "completed"
    )


def test_a_new_run_does_not_overwrite_an_unfinished_one(
    unfinished: Path, small, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="has an unfinished run .*; resume it, or remove it"):
        run_scenario(small(), HERE, tmp_path / "t")
    assert len(checkpoints_of(unfinished)) == 2


def checkpoints_of(partial: Path) -> list[Path]:
    """Oldest first."""
    return sorted((partial / "checkpoints").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        "truncated",
        "pickled",
        "missing journal",
        "edited scenario",
        "renamed",
        "no checkpoint",
        "nothing",
    ],
)
def test_what_cannot_be_taken_up_is_refused(unfinished: Path, tmp_path: Path, damage: str) -> None:
    checkpoints = checkpoints_of(unfinished)
    file = unfinished / "unfinished.json"
    match damage:
        case "truncated":
            for checkpoint in checkpoints:
                checkpoint.write_bytes(checkpoint.read_bytes()[:-200])
        case "pickled":
            for checkpoint in checkpoints:
                np.savez(checkpoint, head=np.array({"evil": 1}, dtype=object))
        case "missing journal":
            (unfinished / "journal" / "000000.npz").unlink()
        case "edited scenario":
            file.write_text(file.read_text().replace('"seed": 7', '"seed": 8'))
        case "renamed":  # the name is no part of the scenario's digest
            file.write_text(file.read_text().replace('"name": "small"', '"name": "large"'))
        case "no checkpoint":
            for checkpoint in checkpoints:
                checkpoint.unlink()
    with pytest.raises(CheckpointError) as error:
        resume_run(tmp_path / ("t" if damage != "nothing" else "elsewhere"), HERE)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "t").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        "a bit of the checkpoint",
        "its last bytes",
        "a bit of its journal",
        "both, and a killed resume",
    ],
)
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(
    unfinished: Path, small, tmp_path: Path, caplog, damage: str
) -> None:
    """The trace is the same; what was passed over is told, and noted in run.json."""
    newest, journal = checkpoints_of(unfinished)[-1], sorted((unfinished / "journal").iterdir())[-1]
    for file in (
        [newest]
        if "checkpoint" in damage or "bytes" in damage
        else [journal]
        if "its journal" in damage
        else [newest, journal]
    ):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content[:-50] if "bytes" in damage else content)
    if "killed" in damage:  # and then goes on from what the resumed run has saved
        with pytest.raises(KeyboardInterrupt):
            resume_run(tmp_path / "t", HERE, on_progress=interrupt_at(11))
        assert len(checkpoints_of(unfinished)) == 2
    trace = resume_run(tmp_path / "t", HERE)
    assert (
        trace.digest
        == run_scenario(small("rounds.look_ahead_minutes=2.0"), HERE, tmp_path / "reference").digest
    )
    [note] = trace.run["notes"]
    assert "is damaged or of another run" in note
    assert "continues from" in note
    assert note in caplog.text


def test_files_of_another_run_are_refused(unfinished: Path, small, tmp_path: Path) -> None:
    """Even those of the same scenario, with checkpoints at the same moments, whether journal, checkpoints or both are exchanged."""
    with pytest.raises(KeyboardInterrupt):
        run_scenario(
            small("rounds.look_ahead_minutes=2.0", "seed=8"),
            HERE,
            tmp_path / "other",
            interrupt_at(9),
        )
    other = tmp_path / "other.partial"
    for exchanged in (["journal"], ["journal", "checkpoints"], ["checkpoints"]):
        kept = tmp_path / "-".join(exchanged)
        shutil.copytree(unfinished, kept.with_name(f"{kept.name}.partial"))
        for folder in exchanged:
            shutil.rmtree(kept.with_name(f"{kept.name}.partial") / folder)
            shutil.copytree(other / folder, kept.with_name(f"{kept.name}.partial") / folder)
        with pytest.raises(CheckpointError, match="of another run"):
            resume_run(kept, HERE)


@pytest.mark.slow
def test_no_flipped_bit_of_an_unfinished_run_changes_the_trace(
    unfinished: Path, small, tmp_path: Path
) -> None:
    """One bit of any of its files: refused, or resumed to the same trace."""
    reference = run_scenario(small("rounds.look_ahead_minutes=2.0"), HERE, tmp_path / "reference")
    files = sorted(
        path
        for path in unfinished.rglob("*")
        if path.is_file() and path.name not in ("lock", "token")
    )
    generator = np.random.default_rng(5)
    for flip in range(400 if "FEDRAY_ALL_MOMENTS" in os.environ else len(files)):
        copy = tmp_path / f"{flip}.partial"
        shutil.copytree(unfinished, copy)
        file = copy / files[flip % len(files)].relative_to(unfinished)
        content = bytearray(file.read_bytes())
        content[generator.integers(len(content))] ^= 1 << int(generator.integers(8))
        file.write_bytes(content)
        try:
            trace = resume_run(tmp_path / f"{flip}", Placement(1, "in-process"))
        except InputError:
            continue
        assert trace.digest == reference.digest, file
        assert trace.run["scenario"] == reference.run["scenario"], file


def test_a_journal_is_read_once_on_resume_however_many_shards_hear_it(
    unfinished: Path, tmp_path: Path, monkeypatch
) -> None:
    read, load = [], np.load
    monkeypatch.setattr(
        np, "load", lambda file, **options: read.append(Path(file).name) or load(file, **options)
    )
    resume_run(tmp_path / "t", Placement(3, "in-process"))
    segments = [name for name in read if "-" not in name and name.endswith(".npz")]
    assert len(segments) > 3
    assert len(set(segments)) == len(segments)


@pytest.mark.slow
def test_a_resume_that_fails_at_once_loses_nothing(
    unfinished: Path, tmp_path: Path, monkeypatch
) -> None:
    before = {path: path.read_bytes() for path in unfinished.rglob("*") if path.suffix == ".npz"}

    def fail(path: Path, **_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", fail)
        with pytest.raises(InputError, match="cannot be made .*No space left"):
            resume_run(tmp_path / "t", HERE)
    assert {
        path: path.read_bytes() for path in unfinished.rglob("*") if path.suffix == ".npz"
    } == before
    assert resume_run(tmp_path / "t", HERE).run["ended"] == "completed"


def test_what_a_killed_run_left_does_not_get_into_the_next(small, tmp_path: Path) -> None:
    """Killed before its first checkpoint, so that nothing can be resumed."""
    left = tmp_path / "t.partial"
    (left / "journal").mkdir(parents=True)
    for name in ("model.npz", "0123.npy", "unfinished.json", "journal/000000.npz"):
        (left / name).write_text("old")
    (left / TOKEN_FILE).write_text(MARK)
    trace = run_scenario(small(), HERE, tmp_path / "t")
    names = {path.name for path in trace.path.iterdir()}
    assert names == {"participations", "rounds.parquet", "run.json"}


def test_a_starved_run_without_a_round_keeps_no_checkpoint(small, tmp_path: Path) -> None:
    with pytest.raises(Starved):
        run_scenario(
            small(
                "population.devices=300",
                "rounds.max_days=0.5",
                "participation.timer_violators=1e-6",
            ),
            HERE,
            tmp_path / "t",
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_run_goes_on_only_on_the_kind_of_device_it_was_started_on(
    reference: Trace, small, tmp_path: Path, monkeypatch
) -> None:
    """A GPU would draw other noise. It is given another name here; run.json has it."""
    with pytest.raises(KeyboardInterrupt):
        run_scenario(small(*OVERRIDES), HERE, tmp_path / "t", interrupt_at(8, TrainingProgress))
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(
            "fedray.server.learning.aggregator.kind_of_device", lambda device: "cuda NVIDIA H200"
        )
        with pytest.raises(
            CheckpointError,
            match="trained on 'cpu', and its noise goes on only there; .* on 'cuda NVIDIA H200'",
        ):
            resume_run(tmp_path / "t", HERE)
    trained = resume_run(tmp_path / "t", HERE).trained
    assert trained is not None
    assert trained.document["aggregator_device"] == "cpu"


LOCK_HOLDER = """
import pathlib, sys, time
from fedray.trace.partial import Lock
lock = Lock(pathlib.Path(sys.argv[1]))
print("held")
time.sleep(600)
"""


@pytest.mark.slow
def test_two_processes_do_not_write_one_run(unfinished: Path, tmp_path: Path, start) -> None:
    """The other one holds the directory's lock, until it is killed."""
    other = start(
        [sys.executable, "-uc", LOCK_HOLDER, str(unfinished)], cwd=ROOT, stdout=subprocess.PIPE
    )
    other.stdout.readline()
    with pytest.raises(InputError, match="is being written by another process"):
        resume_run(tmp_path / "t", HERE)
    other.kill()
    other.wait()
    assert resume_run(tmp_path / "t", HERE).run["ended"] == "completed"


def test_a_run_interrupted_before_it_began_leaves_nothing(small, tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_scenario(small(), SELDOM, tmp_path / "deep" / "t", on_start=interrupt)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("moment", [1, 3, 8])
def test_a_run_interrupted_before_its_first_checkpoint_can_be_resumed(
    small, tmp_path: Path, monkeypatch, moment: int
) -> None:
    monkeypatch.setattr("fedray.trace.unfinished.MARK_SECONDS", 0.0)
    monkeypatch.setattr("fedray.trace.unfinished.MOST_SHARE", math.inf)
    plain = small(*OVERRIDES, "training.enabled=false")
    whole = run_scenario(plain, SELDOM, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt, match="continue with `resume="):
        run_scenario(plain, SELDOM, tmp_path / "t", interrupt_at(moment))
    # Twice, so that a resumed run is interrupted too.
    with pytest.raises(KeyboardInterrupt, match="continue with `resume="):
        resume_run(tmp_path / "t", SELDOM, on_progress=interrupt_at(moment + 1))
    assert resume_run(tmp_path / "t", SELDOM).digest == whole.digest


@pytest.mark.slow
def test_a_training_interrupted_after_its_first_round_can_be_resumed(
    reference: Trace, small, tmp_path: Path
) -> None:
    scenario = small(*OVERRIDES)
    with pytest.raises(KeyboardInterrupt, match="continue with `resume="):
        train(reference, scenario, SELDOM, tmp_path / "m", interrupt_at(2, TrainingProgress))
    found = train(reference, scenario, SELDOM, tmp_path / "m", is_resumed=True)
    whole = train(reference, scenario, SELDOM, tmp_path / "whole")
    assert found.document["model_sha256"] == whole.document["model_sha256"]
