"""The Ray session: whose code workers run, answers that outlive it, full clusters, addresses, one session per command."""

import json
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedray.base.errors import InputError, RunFailed
from fedray.base.source import ROOT, source_digest
from fedray.runs.pipeline import run_scenario
from fedray.runs.simulation import simulate
from fedray.runtime import session as sessions
from fedray.runtime.gauges import OF_A_RUN, RUN
from fedray.runtime.placement import Placement
from fedray.runtime.tasks import run_jobs
from fedray.trace.reader import Trace
from fedray.trace.trained import TrainedRun

HERE = Path(__file__).resolve()
MARKER = 'import os\nopen(os.environ["MARKER"], "a").write("code of the working directory ran")\nraise ImportError\n'


def run(
    program: str, cwd: Path, *arguments: Any, **environment: str
) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", f"import sys\nsys.path[0] = {str(ROOT)!r}\n{program}", *map(str, arguments)],
        cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip


def result_of(done: subprocess.CompletedProcess) -> Any:
    """What a program printed after RESULT, as JSON."""
    line = next((each for each in done.stdout.splitlines() if each.startswith("RESULT ")), None)
    assert line is not None, done.stdout + done.stderr
    return json.loads(line.removeprefix("RESULT "))


COMMAND = "from fedray.cli import main\nmain()"


@pytest.mark.slow
@pytest.mark.ray
def test_workers_import_nothing_from_the_working_directory(small, tmp_path: Path) -> None:
    """Neither a stranger's numpy.py nor another checkout of fedray there changes a run."""
    scenario = small("population.devices=5000", "rounds.count=3")
    (tmp_path / "s.toml").write_text(scenario.to_toml())
    (tmp_path / "numpy.py").write_text(MARKER)
    (tmp_path / "fedray").mkdir()
    (tmp_path / "fedray" / "__init__.py").write_text(MARKER)
    place = ("--place", "backend=ray", "--place", "shards=2")
    done = run(
        COMMAND,
        tmp_path,
        "--quiet",
        "run",
        "s.toml",
        "--out",
        "t",
        *place,
        MARKER=str(tmp_path / "ran"),
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists()
    reference = simulate(scenario, Placement(1, "in-process"), tmp_path / "reference")
    assert json.loads((tmp_path / "t" / "run.json").read_text())["digest"] == reference.digest


OWN_CLUSTER = """
import logging, ray, fedray
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.CRITICAL)
placement = fedray.Placement(2, backend="ray")
for work in (lambda: fedray.simulate(fedray.Scenario.from_toml(sys.argv[1]), placement), lambda: dict(fedray.run_jobs(abs, [1], placement))):
    try:
        work()
    except fedray.InputError as error:
        print("REFUSED", error)
"""


@pytest.mark.slow
@pytest.mark.ray
def test_a_worker_with_another_fedray_is_refused_in_one_line(small, tmp_path: Path) -> None:
    """The caller's own Ray puts its working directory first, where a fedray of another source lies."""
    (tmp_path / "s.toml").write_text(small("population.devices=5000", "rounds.count=3").to_toml())
    other = tmp_path / "other"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "fedray", other / "fedray", symlinks=False, ignore=ignored)
    with (other / "fedray" / "clients" / "shard.py").open("a") as file:
        file.write("# another\n")
    done = run(OWN_CLUSTER, other, tmp_path / "s.toml")
    refusals = [line for line in done.stdout.splitlines() if line.startswith("REFUSED")]
    assert len(refusals) == 2, done.stdout + done.stderr
    assert all(f"a Ray worker runs another fedray ({other})" in line for line in refusals)


def test_the_digest_of_the_source_is_that_of_its_installation(tmp_path: Path) -> None:
    """Links of a checkout are folders of an installation."""
    ignored = shutil.ignore_patterns("__pycache__", "*.html.j2")
    shutil.copytree(ROOT / "fedray", tmp_path / "fedray", symlinks=False, ignore=ignored)
    program = f"import sys; sys.path[0] = {str(tmp_path)!r}\nfrom fedray.base import source\nprint(source.ROOT, source.source_digest())"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )  # fmt: skip
    assert done.stdout.split() == [str(tmp_path), source_digest()]


JOINED = """
import logging, numpy as np, ray, fedray
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": 90 * 2**20, "include_dashboard": False})
where = fedray.Placement(backend="ray", address=cluster.address)
jobs = [400 + i for i in range(8)]
first = dict(fedray.run_jobs(np.tri, jobs, where))
assert not ray.is_initialized()
for _ in range(2):
    dict(fedray.run_jobs(np.identity, jobs, where))
print("RIGHT", sum(np.array_equal(first[i], np.tri(n)) for i, n in enumerate(jobs)))
import os
os.environ["RAY_ADDRESS"] = cluster.address
from fedray.runtime.session import one_session, session
with one_session():
    dict(fedray.run_jobs(abs, [1, 2]))
    print("JOINED", ray.get_runtime_context().gcs_address == cluster.address)
    begun = ray.get_runtime_context().get_job_id()
    dict(fedray.run_jobs(abs, [3, 4], where))
    print("SHARED", ray.get_runtime_context().get_job_id() == begun)
    try:
        dict(fedray.run_jobs(abs, [1], fedray.Placement(address="127.0.0.1:1")))
    except fedray.InputError as error:
        print("REFUSED", error)
print("ENDED", not ray.is_initialized())
cluster.shutdown()
"""


@pytest.mark.slow
@pytest.mark.ray
def test_answers_outlive_the_session_on_a_joined_cluster(tmp_path: Path) -> None:
    """Ray's answers are views of the store of a cluster that lives on, and later batches overwrite it."""
    done = run(JOINED, tmp_path)
    found = dict(
        line.split(" ", 1)
        for line in done.stdout.splitlines()
        if line.isprintable() and " " in line
    )
    assert found.get("RIGHT") == "8", done.stdout + done.stderr
    assert [found.get(name) for name in ("JOINED", "SHARED", "ENDED")] == ["True"] * 3
    assert "to which this process is connected" in found["REFUSED"]


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_a_full_cluster_is_waited_for_aloud_and_not_for_ever(
    small, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, gauges
) -> None:
    import ray

    class Tenant:
        def cpus(self) -> int:
            return 1

    monkeypatch.setattr(sessions, "SECONDS_OF_SILENCE", 0.5)
    cpus = ray.cluster_resources()["CPU"]
    remote: Any = ray.remote(Tenant)
    tenant = remote.options(num_cpus=cpus).remote()
    ray.get(tenant.cpus.remote())
    soon = Placement(1, "ray", worker_timeout_seconds=2.0)
    scenario = small("population.devices=5000", "rounds.count=3")
    notes: list[str] = []
    wait = sessions.wait_for_cpus

    def watched(started: Any, cpus: float, placement: Placement, on_wait: Any) -> None:
        def look(waits: str) -> None:
            from fedray.watch.entries import list_runs  # a study, which may be deleted

            on_wait(waits)
            notes.extend(each.note for each in list_runs(tmp_path).entries)

        wait(started, cpus, placement, look)

    monkeypatch.setattr("fedray.runtime.reservation.wait_for_cpus", watched)
    with caplog.at_level(logging.WARNING, "fedray"):
        for work in (
            lambda: dict(run_jobs(abs, [-1], soon)),
            lambda: simulate(scenario, soon, tmp_path / "t"),
            lambda: run_scenario(
                scenario.with_overrides("training.enabled=true"), soon, tmp_path / "m"
            ),
        ):
            with pytest.raises(
                RunFailed, match=r"waited 2 s for \d CPUs?: 0 of \d are free; end other"
            ):
                work()
    assert sum("waiting for" in each.message for each in caplog.records) == 3
    assert len(notes) == 2
    assert all(each.startswith("waiting for ") for each in notes)
    waited = [values for (_, name), values in gauges.items() if name == "fedray_run_waiting_cpus"]
    assert [list(dict.fromkeys(each)) for each in waited] == [[0.0, 1.0], [0.0, cpus]]
    ray.kill(tenant)
    assert dict(run_jobs(abs, [-1], Placement(1, "ray"))) == {0: 1}


def task_name(job: int) -> str:
    import ray

    if job < 0:
        raise ValueError(f"job {job}")
    return str(ray.get_runtime_context().get_task_name())


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_tasks_have_names_and_a_failed_one_can_have_a_result() -> None:
    where = Placement(1, "ray")
    named = dict(run_jobs(task_name, [1, 2], where, names=["judge a=1", "judge a=2"]))
    assert named == {0: "judge a=1", 1: "judge a=2"}
    assert dict(run_jobs(task_name, [1], where)) == {0: "task_name"}
    told = lambda place, error: f"{place} {str(error).splitlines()[-1]}"  # noqa: E731
    found = dict(run_jobs(task_name, [1, -1], where, on_error=told))
    assert found == {0: "task_name", 1: "1 ValueError: job -1"}
    here = dict(run_jobs(task_name, [-1], Placement(1, "in-process"), on_error=told))
    assert here == {0: "0 job -1"}


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_a_run_shows_every_gauge_with_its_name(
    small, tmp_path: Path, gauges, fedray_command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulation and its training, each in its thread, and a bound by the command."""
    scenario = small("training.enabled=true", "training.cohort_sample=2")
    (tmp_path / "s.toml").write_text(scenario.to_toml())
    monkeypatch.chdir(tmp_path)
    code, _, told = fedray_command("run", "s.toml", "--out", "t", "--place", "backend=ray")
    assert code == 0, told
    (run,) = {run for run, _ in gauges}
    assert run.startswith(f"fedray-{scenario.name}-{scenario.digest[:8]}-")
    last = {name.removeprefix(f"{RUN}_"): values[-1] for (_, name), values in gauges.items()}
    assert last.keys() == OF_A_RUN.keys()
    assert last["round"] == last["rounds"] == last["trained_round"] == scenario.rounds.count
    assert last["restarts"] == last["waiting_cpus"] == 0.0
    assert last["simulated_seconds"] >= Trace.open(tmp_path / "t").rounds["closed"][-1]
    assert min(last["eligible"], last["epsilon"], last["train_loss"]) > 0.0


def test_a_job_of_ray_has_the_metadata_of_its_run() -> None:
    assert sessions._job({"scenario": "s", "digest": "d"}).metadata == {
        "scenario": "s",
        "digest": "d",
    }


FULL = """
import errno, json, logging, sys, ray, fedray
from ray.cluster_utils import Cluster
store = {"object_store_memory": 90 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, **store})
cluster.add_node(num_cpus=1, **store)
ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
cluster.wait_for_nodes()
head, warned = cluster.head_node.node_id, []
logging.getLogger("fedray").addFilter(lambda record: warned.append(record.getMessage()) or True)
def work(job):
    import time
    time.sleep(0.5)
    node = ray.get_runtime_context().get_node_id()
    if job == "nowhere" or node == head:
        try:
            raise OSError(errno.ENOSPC, "no space")
        except OSError:
            raise fedray.RunFailed("part.parquet cannot be written") from None
    return node
found = dict(fedray.run_jobs(work, ["there"] * 6))
counts = []
nowhere = dict(fedray.run_jobs(work, ["nowhere"], None, counts.append, lambda place, error: str(error)))
print("RESULT", json.dumps([list(found), head in found.values(), len(warned), warned[0], nowhere[0], counts[-1].lost]))
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.slow
@pytest.mark.ray
def test_tasks_move_from_a_node_with_a_full_disk_and_end_where_all_are_full(tmp_path: Path) -> None:
    done = run(FULL, tmp_path)
    places, is_on_head, count, warning, reason, lost = result_of(done)
    assert sorted(places) == list(range(6))
    assert not is_on_head
    # Once for a node of each batch: one in the first, two in the second.
    assert count == 3
    assert re.fullmatch(r"fedray: the disk of node \S+ is full; its tasks move to others", warning)
    assert re.search(r"was lost \(the disk of node \S+ is full\)", reason)
    assert lost == 2


GROWING = """
import json, logging, threading, time, ray, fedray
from ray.cluster_utils import Cluster
store = {"object_store_memory": 90 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **store})
ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
def work(job):
    import time
    begun = time.time()
    time.sleep(2)
    return begun, time.time()
found, counts = [], []
def tasks():
    found.extend(times for _, times in fedray.run_jobs(work, list(range(12)), None, counts.append))
# Ray adds nodes in the main thread only.
thread = threading.Thread(target=tasks)
thread.start()
time.sleep(3)
cluster.add_node(num_cpus=2, **store)
while not counts:
    time.sleep(0.1)
cluster.add_node(num_cpus=2, **store)
thread.join()
at_once = max(sum(begun <= at < end for begun, end in found) for at, _ in found)
print("RESULT", json.dumps([len(found), at_once, counts[0].running]))
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.slow
@pytest.mark.ray
def test_tasks_fill_nodes_that_join_a_cluster_without_any(tmp_path: Path) -> None:
    """Beside two that run on the first node two wait, so that a cluster that can grow does."""
    done = run(GROWING, tmp_path)
    assert result_of(done) == [12, 4, 4]


def test_only_directories_of_this_process_are_searched_by_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", ["/a", "/b"])
    paths = sessions._DriverPaths()
    paths.extend(["/b", "/c"])
    assert paths == ["/b"]


def test_an_address_where_nobody_listens_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(InputError, match=r"address='127.0.0.1:1' cannot be joined"):
        dict(run_jobs(abs, [1]))


RESERVED = """
import json, logging, threading, time, ray
from ray.cluster_utils import Cluster
from fedray.runs.pipeline import run_scenario
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
store = {"object_store_memory": 90 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **store})
head = cluster.head_node.node_id
for _ in range(2):
    cluster.add_node(num_cpus=2, **store)
ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
cluster.wait_for_nodes()
logging.getLogger("fedray").setLevel(logging.INFO)
logging.getLogger("fedray").addHandler(logging.StreamHandler(sys.stdout))
scenario, seen = Scenario.from_toml(sys.argv[1]), {}
def look(progress):
    if "free" not in seen:
        actors = [each for each in ray._private.state.actors().values() if each["State"] == "ALIVE"]
        seen["on_head"] = sum(each["Address"]["NodeID"] == head for each in actors)
        named = ray.util.list_named_actors(all_namespaces=True)
        seen["names"] = sorted(each["name"] for each in named)
        seen["namespaces"] = sorted({each["namespace"][:-7] for each in named})
        seen["nodes"] = len({each["Address"]["NodeID"] for each in actors})
        time.sleep(1.0)  # Ray's figures are some tenths of a second old
        seen["free"] = ray.available_resources().get("CPU", 0.0)
digests = {}
def run(name, listen=None):
    digests[name] = run_scenario(scenario, Placement(2, "ray", trainers=2), f"{sys.argv[2]}/{name}", listen).digest
run("first", look)
for _ in range(50):
    time.sleep(0.2)
    if ray.available_resources().get("CPU", 0.0) == 4.0:
        break
seen["afterwards"] = ray.available_resources().get("CPU", 0.0)
both = [threading.Thread(target=run, args=(name,)) for name in ("second", "third")]
for each in both:
    each.start()
for each in both:
    each.join()
print("RESULT", json.dumps([seen, digests]))
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.slow
@pytest.mark.ray
def test_a_run_reserves_its_cpus_and_leaves_a_head_without_any_alone(small, tmp_path: Path) -> None:
    """Two nodes of two CPUs: one shard and one trainer on each. Two runs at once take turns."""
    scenario = small(
        "population.devices=150000", "rounds.count=3", "training.enabled=true", "training.cohort_sample=4"
    )  # fmt: skip
    (tmp_path / "s.toml").write_text(scenario.to_toml())
    done = run(RESERVED, tmp_path, tmp_path / "s.toml", tmp_path)
    seen, digests = result_of(done)
    names = {
        "names": ["workers-0", "workers-1"],
        "namespaces": [f"fedray-{scenario.name}-{scenario.digest[:8]}"],
    }
    assert seen == {"on_head": 0, "nodes": 2, "free": 0.0, "afterwards": 4.0, **names}
    reference = simulate(scenario, Placement(1, "in-process"), tmp_path / "reference")
    assert digests == dict.fromkeys(("first", "second", "third"), reference.digest)
    where = "Ray, local cluster, 4 CPUs: 2 shards, 2 trainers, aggregator on CPU"
    assert done.stdout.splitlines().count(where) == 3


EMPTY = """
import json, logging, threading, time, ray
from ray.cluster_utils import Cluster
from fedray.base.errors import RunFailed
from fedray.runs.pipeline import run_scenario
from fedray.runtime import session as sessions
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
sessions.SECONDS_OF_SILENCE = 0.5
store = {"object_store_memory": 90 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **store})
ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
told = []
logging.getLogger("fedray").addFilter(lambda record: told.append(record.getMessage()) or True)
scenario, digests = Scenario.from_toml(sys.argv[1]), []
try:
    run_scenario(scenario, Placement(backend="ray", worker_timeout_seconds=2.0), f"{sys.argv[2]}/never")
except RunFailed as error:
    told.append(str(error))
def run():
    digests.append(run_scenario(scenario, Placement(2, "ray", trainers=1), f"{sys.argv[2]}/soon").digest)
# Ray adds nodes in the main thread only.
thread = threading.Thread(target=run)
thread.start()
time.sleep(3)
cluster.add_node(num_cpus=2, **store)
time.sleep(3)
early = list(digests)
cluster.add_node(num_cpus=2, **store)
thread.join()
print("RESULT", json.dumps([told, early, digests]))
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.slow
@pytest.mark.ray
def test_a_run_waits_for_the_first_nodes_of_a_cluster_and_not_for_ever(
    small, tmp_path: Path
) -> None:
    """Two shards and a trainer take three CPUs, which the second node brings."""
    scenario = small(
        "population.devices=150000", "rounds.count=3", "training.enabled=true", "training.cohort_sample=4"
    )  # fmt: skip
    (tmp_path / "s.toml").write_text(scenario.to_toml())
    told, early, digests = result_of(run(EMPTY, tmp_path, tmp_path / "s.toml", tmp_path))
    assert told[0] == "fedray: waiting for 1 CPU: 0 of 0 are free (`ray status`)"
    assert told[1].startswith("waited 2 s for 1 CPU: 0 of 0 are free; end other programs")
    assert told[2] == "fedray: waiting for 3 CPUs: 0 of 0 are free (`ray status`)"
    reference = simulate(scenario, Placement(1, "in-process"), tmp_path / "reference")
    assert (early, digests) == ([], [reference.digest])


CHANGING = """
import json, logging, time, ray
from ray._raylet import GcsClient
from ray.cluster_utils import Cluster
from ray.core.generated import autoscaler_pb2
from fedray.runs.learning import train
from fedray.runs.simulation import simulate
from fedray.runtime import reservation
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.wire.messages import TrainingProgress
reservation.SECONDS_BETWEEN_LOOKS = 0.0
store = {"object_store_memory": 90 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **store})
for _ in range(2):
    cluster.add_node(num_cpus=1, **store)
ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
cluster.wait_for_nodes()
told = []
logging.getLogger("fedray").addFilter(lambda record: told.append(record.getMessage()) or True)
scenario, left, where, new = Scenario.from_toml(sys.argv[1]), [], [], []
def drain(name):
    (node,) = {each["Address"]["NodeID"] for each in ray._private.state.actors().values() if each["State"] == "ALIVE" and each["Name"] == name} - {*new}
    reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    assert GcsClient(address=cluster.address).drain_node(node, reason, "test", 0)[0]
    left.append(node)
def nodes():
    actors = [each for each in ray._private.state.actors().values() if each["State"] == "ALIVE"]
    where.append(sorted({each["Address"]["NodeID"] for each in actors}))
def simulated(progress):
    if progress.committed == 3 and not left:
        drain("shards-1")
    if progress.committed == scenario.rounds.count and len(where) == 0:
        nodes()
trace = simulate(scenario, Placement(2, "ray"), f"{sys.argv[2]}/trace", simulated)
cluster.add_node(num_cpus=1, **store)
def trained(progress):
    if not isinstance(progress, TrainingProgress):
        return
    if progress.trained == 2 and len(left) == 1:
        new.append(cluster.add_node(num_cpus=2, **store).node_id)
    if progress.trained == 6 and len(left) == 1:
        drain("workers-0")
    if progress.trained == 9:
        nodes()
run = train(trace, scenario, Placement(backend="ray"), f"{sys.argv[2]}/model", trained)
of_training = [run.document[each] for each in ("trainers", "restarts")]
print("RESULT", json.dumps([trace.digest, trace.run["restarts"], of_training, left, where, told]))
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.slow
@pytest.mark.ray
def test_a_run_leaves_drained_nodes_and_trains_on_joined_ones(small, tmp_path: Path) -> None:
    """A simulation on two nodes loses one. Its training, on the other and a third, gets a fourth of
    two CPUs, and then leaves the node of its aggregator. Trace and model stay the same."""
    scenario = small(
        "population.devices=150000", "training.enabled=true", "training.cohort_sample=8"
    )
    (tmp_path / "s.toml").write_text(scenario.to_toml())
    found = result_of(run(CHANGING, tmp_path, tmp_path / "s.toml", tmp_path))
    digest, restarts, of_training, left, (simulated, trained), told = found
    here = run_scenario(scenario, Placement(1, "in-process"), tmp_path / "here")
    assert (digest, restarts) == (here.digest, 1)
    assert here.trained is not None
    model = TrainedRun.open(tmp_path / "model")
    assert (model.parameters() == here.trained.parameters()).all()
    # Of the first two nodes; then of the third, the fourth and the one that stayed.
    assert of_training == [4, 2]
    assert len(simulated) == 1
    assert len(trained) == 2
    assert left[0] not in simulated
    assert left[1] not in trained
    assert sum("leaves its node, which is being drained or lost" in each for each in told) == 3


REFUSED = """
import json, logging, time, ray
from ray.cluster_utils import Cluster
from fedray.runtime.placement import Placement
from fedray.runtime.reservation import cluster_nodes, reserved
store = {"object_store_memory": 90 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, **store})
ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
def joined():
    return [each.trainers for each in own.joined(cluster_nodes(), Placement(backend="ray", aggregator_gpus=1.0))]
with reserved(Placement(backend="ray"), lambda cpus: 1, {"scenario": "s", "digest": "d" * 64}, print, trains=False) as own:
    cluster.add_node(num_cpus=2, **store)
    cluster.wait_for_nodes()
    other = ray.util.placement_group([{"CPU": 1}])
    ray.get(other.ready())
    found = [joined()]
    ray.util.remove_placement_group(other)
    time.sleep(3)
    found.append(ray.available_resources().get("CPU", 0.0))
    cluster.add_node(num_cpus=3, **store)
    cluster.wait_for_nodes()
    found.append(joined())
print("RESULT", json.dumps(found))
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.slow
@pytest.mark.ray
def test_a_joined_node_whose_cpus_are_not_free_is_left_to_others(tmp_path: Path) -> None:
    """An aggregator on a GPU, which a new node lacks, is no reason to refuse the node."""
    assert result_of(run(REFUSED, tmp_path)) == [[], 2.0, [3]]


SENT = """
import json, logging, ray
from ray.cluster_utils import Cluster
from fedray.base.source import source_digest
from fedray.runtime import session as sessions
from fedray.runtime.placement import Placement
# Directories of the driver are on its machine only.
sessions._DriverPaths.extend = lambda *_: None
joined, join = [], ray.init
ray.init = lambda *arguments, **options: joined.append(options) or join(*arguments, **options)
store = {"object_store_memory": 90 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, **store})
def copies():
    with sessions.session(Placement(address=cluster.address)):
        nodes = {each["NodeID"] for each in ray.nodes() if each["Alive"]}
        probe = ray.remote(num_cpus=0)(own)
        asked = [probe.options(label_selector={"ray.io/node-id": each}).remote() for each in nodes]
        return sum("runtime_env" in each for each in joined), len(nodes), len({*ray.get(asked)} | {source_digest()})
def own():
    from fedray.base.source import source_digest
    return source_digest()
found = [copies()]
# A node whose fedray is of no use.
cluster.add_node(num_cpus=1, env_vars={"PYTHONPATH": sys.argv[1]}, **store)
found.append(copies())
print("RESULT", json.dumps(found))
cluster.shutdown()
"""


@pytest.mark.slow
@pytest.mark.ray
def test_the_code_is_sent_only_if_a_node_has_another(tmp_path: Path) -> None:
    (tmp_path / "fedray").mkdir()
    (tmp_path / "fedray" / "__init__.py").write_text("raise ImportError")
    found = result_of(run(SENT, tmp_path, tmp_path))
    # Copies sent, nodes, and distinct sources, of the driver and all nodes.
    assert found == [[0, 1, 1], [1, 2, 1]]


CLIENT = """
import json, logging, socket, subprocess, ray
from ray.util.client.server.server import init_and_serve, shutdown_with_server
from fedray.trace.reader import Trace
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
options = {"num_cpus": 2, "object_store_memory": 90 * 2**20, "include_dashboard": False, "log_to_driver": False}
server = init_and_serve("127.0.0.1", port, address="local", logging_level=logging.ERROR, **options)
command = [sys.executable, "-m", "fedray", "run", sys.argv[1], "--out", sys.argv[2], "--place", f"address=ray://127.0.0.1:{port}"]
done = subprocess.run(command, capture_output=True, text=True, timeout=300)
trace = Trace.open(sys.argv[2]) if done.returncode == 0 else None
print("RESULT", json.dumps([done.stderr[-2000:]] if trace is None else [trace.digest, trace.trained.document["model_sha256"], trace.trained.document["trainers"]]))
shutdown_with_server(server.grpc_server)
"""


@pytest.mark.slow
@pytest.mark.ray
def test_a_client_of_ray_runs_the_same(small, tmp_path: Path) -> None:
    scenario = small(
        "population.devices=150000", "rounds.count=3", "training.enabled=true", "training.cohort_sample=4"
    )  # fmt: skip
    (tmp_path / "s.toml").write_text(scenario.to_toml())
    here = run_scenario(scenario, Placement(1, "in-process"), tmp_path / "here")
    assert here.trained is not None
    found = result_of(run(CLIENT, tmp_path, tmp_path / "s.toml", tmp_path / "there"))
    assert found == [here.digest, here.trained.document["model_sha256"], 2]
