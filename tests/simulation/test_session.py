"""The Ray session: whose code workers run, answers that outlive it, full clusters, addresses, one session per command."""

import logging
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedray.base.errors import InputError, RunFailed
from fedray.base.source import ROOT, source_digest
from fedray.runs.pipeline import run_scenario
from fedray.runs.simulation import simulate
from fedray.runtime import nodes
from fedray.runtime import session as sessions
from fedray.runtime.gauges import OF_A_RUN, RUN
from fedray.runtime.placement import Placement
from fedray.runtime.tasks import run_jobs
from fedray.scenario import Scenario
from fedray.trace.reader import Trace
from fedray.trace.trained import TrainedRun

OWN_CLUSTER = """
import logging, sys
sys.path[0] = sys.argv[2]
import ray, fedray
ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.CRITICAL)
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
    done = subprocess.run(
        [sys.executable, "-c", OWN_CLUSTER, tmp_path / "s.toml", ROOT],
        cwd=other, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
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
import os, numpy as np, ray, fedray
from fedray.runtime.session import has_own_cluster, one_session
add(2)
where = fedray.Placement(backend="ray", address=cluster.address)
jobs = [400 + i for i in range(8)]
first = dict(fedray.run_jobs(np.tri, jobs, where))
assert not ray.is_initialized()
for _ in range(2):
    dict(fedray.run_jobs(np.identity, jobs, where))
result = [sum(np.array_equal(first[i], np.tri(n)) for i, n in enumerate(jobs))]
os.environ["RAY_ADDRESS"] = cluster.address
with one_session():
    dict(fedray.run_jobs(abs, [1, 2]))
    result.append(ray.get_runtime_context().gcs_address == cluster.address and not has_own_cluster())
    begun = ray.get_runtime_context().get_job_id()
    dict(fedray.run_jobs(abs, [3, 4], where))
    result.append(ray.get_runtime_context().get_job_id() == begun)
    try:
        dict(fedray.run_jobs(abs, [1], fedray.Placement(address="127.0.0.1:1")))
    except fedray.InputError as error:
        refused = str(error)
result += [not ray.is_initialized(), refused]
"""


@pytest.mark.slow
@pytest.mark.ray
def test_answers_outlive_the_session_on_a_joined_cluster(on_nodes: Callable[..., Any]) -> None:
    """Ray's answers are views of the store of a cluster that lives on, and later batches overwrite it."""
    *found, refused = on_nodes(JOINED, is_connected=False)
    assert found == [8, True, True, True]
    assert "to which this process is connected" in refused


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_a_full_cluster_is_waited_for_aloud_and_not_for_ever(
    small, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, gauges
) -> None:
    import ray

    class Tenant:
        def cpus(self) -> int:
            return 1

    monkeypatch.setattr(nodes, "SECONDS_OF_SILENCE", 0.5)
    monkeypatch.setattr(nodes, "SECONDS_OF_A_LOOK", 0.2)
    cpus = ray.cluster_resources()["CPU"]
    remote: Any = ray.remote(Tenant)
    tenant = remote.options(num_cpus=cpus).remote()
    ray.get(tenant.cpus.remote())
    soon = Placement(1, "ray", worker_timeout_seconds=4.0)
    scenario = small("population.devices=5000", "rounds.count=3")
    notes: list[str] = []

    class Watched(nodes.Wait):
        def __init__(self, placement: Placement, on_wait: Callable[[str], None]) -> None:
            def look(waits: str) -> None:
                from fedray.watch.entries import list_runs  # a study, which may be deleted

                on_wait(waits)
                notes.extend(each.note for each in list_runs(tmp_path).entries)

            super().__init__(placement, look)

    monkeypatch.setattr("fedray.runtime.reservation.Wait", Watched)
    with caplog.at_level(logging.WARNING, "fedray"):
        for work in (
            lambda: dict(run_jobs(abs, [-1], soon)),
            lambda: simulate(scenario, soon, tmp_path / "t"),
            lambda: run_scenario(
                scenario.with_overrides("training.enabled=true"), soon, tmp_path / "m"
            ),
        ):
            with pytest.raises(
                RunFailed, match=r"waited 4 s for (1 to )?\d CPUs?: 0 of \d are free; end other"
            ):
                work()
    assert sum("waiting for" in each.message for each in caplog.records) == 3
    assert len(notes) == 2
    assert all(each.startswith("waiting for ") for each in notes)
    waited = [values for (_, name), values in gauges.items() if name == "fedray_run_waiting_cpus"]
    assert [list(dict.fromkeys(each)) for each in waited] == [[0.0, 1.0], [0.0, 2.0]]
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
import errno, ray, fedray
full = add(1).node_id
add(1)
cluster.wait_for_nodes()
def work(job):
    import time
    time.sleep(0.5)
    node = ray.get_runtime_context().get_node_id()
    if job == "nowhere" or node == full:
        try:
            raise OSError(errno.ENOSPC, "no space")
        except OSError:
            raise fedray.RunFailed("part.parquet cannot be written") from None
    return node
found = dict(fedray.run_jobs(work, ["there"] * 6))
counts = []
nowhere = dict(fedray.run_jobs(work, ["nowhere"], None, counts.append, lambda place, error: str(error)))
result = [list(found), full in found.values(), told, nowhere[0], counts[-1].lost]
"""


@pytest.mark.slow
@pytest.mark.ray
def test_tasks_move_from_a_node_with_a_full_disk_and_end_where_all_are_full(
    on_nodes: Callable[..., Any],
) -> None:
    places, is_on_full, told, reason, lost = on_nodes(FULL)
    assert sorted(places) == list(range(6))
    assert not is_on_full
    # Once for a node of each batch: one in the first, two in the second.
    assert len(told) == 3
    assert re.fullmatch(r"fedray: the disk of node \S+ is full; its tasks move to others", told[0])
    assert re.search(r"was lost \(the disk of node \S+ is full\)", reason)
    assert lost == 2


GROWING = """
import threading, time, fedray
folder = arguments[0]
def work(job):
    import pathlib, time
    begun = time.time()
    pathlib.Path(folder, str(job)).touch()
    # After the first two, four run at once; a busy machine may take long to add the second node.
    while job > 1 and len(list(pathlib.Path(folder).iterdir())) < 6 and time.time() < begun + 60:
        time.sleep(0.05)
    return begun, time.time()
found, counts = [], []
def tasks():
    found.extend(times for _, times in fedray.run_jobs(work, list(range(12)), None, counts.append))
# Ray adds nodes in the main thread only.
thread = threading.Thread(target=tasks)
thread.start()
time.sleep(1)
add(2)
while not counts:
    time.sleep(0.1)
add(2)
thread.join()
at_once = max(sum(begun <= at < end for begun, end in found) for at, _ in found)
result = [len(found), at_once, counts[0].running]
"""


@pytest.mark.slow
@pytest.mark.ray
def test_tasks_fill_nodes_that_join_a_cluster_without_any(
    tmp_path: Path, on_nodes: Callable[..., Any]
) -> None:
    """Beside two that run on the first node two wait, so that a cluster that can grow does."""
    assert on_nodes(GROWING, tmp_path) == [12, 4, 4]


def test_only_directories_of_this_process_are_searched_by_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", ["/a", "/b"])
    paths = sessions._DriverPaths()
    paths.extend(["/b", "/c"])
    assert paths == ["/b"]


@pytest.fixture
def unconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the process had no cluster, while that of the tests lives on."""
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.shutdown", lambda: None)


@pytest.mark.usefixtures("unconnected")
def test_an_address_where_nobody_listens_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(InputError, match=r"address='127.0.0.1:1' cannot be joined"):
        dict(run_jobs(abs, [1]))


@pytest.mark.usefixtures("unconnected")
def test_a_cluster_of_another_python_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray itself compares; the remedy is not that of a cluster that is not there."""
    import ray
    from ray._private.utils import check_version_info

    of_cluster = {"ray_version": ray.__version__, "python_version": "3.99.0"}
    monkeypatch.setattr(sessions, "_probe", lambda address: None)
    monkeypatch.setattr("ray.init", lambda *_, **__: check_version_info(of_cluster, "node h"))
    rule = r"cannot be joined \(Version mismatch: .*Python: 3\.99\.0 .*; install the cluster's versions"
    with pytest.raises(InputError, match=rule):
        dict(run_jobs(abs, [1], Placement(backend="ray", address="h:1")))


@pytest.mark.parametrize("package", sessions.COMPUTING)
def test_a_worker_with_another_version_of_what_computes_is_refused(package: str) -> None:
    """A package that a side lacks is no reason: only a training needs torch."""
    digest, *versions = sessions.own_code()
    place = sessions.COMPUTING.index(package)
    own = versions[place]
    versions[place] = "0.1"
    with pytest.raises(InputError, match=f"has {package} {re.escape(own)}, and this .* 0.1"):
        sessions.check_code((digest, *versions))
    versions[place] = ""
    sessions.check_code((digest, *versions))


@pytest.fixture(scope="module")
def three_rounds(small, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Trace, str]:
    """A scenario's file, its trace in this process, and its model's digest."""
    folder = tmp_path_factory.mktemp("three")
    scenario = small(
        "population.devices=150000", "rounds.count=3", "training.enabled=true", "training.cohort_sample=4"
    )  # fmt: skip
    (folder / "s.toml").write_text(scenario.to_toml())
    trace = run_scenario(scenario, Placement(1, "in-process"), folder / "here")
    assert trace.trained is not None
    return folder / "s.toml", trace, trace.trained.document["model_sha256"]


RESERVED = """
import threading, time, ray
from fedray.base.errors import RunFailed
from fedray.runs.pipeline import run_scenario
from fedray.runtime import nodes
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
patch(nodes, "SECONDS_OF_SILENCE", 0.5)
patch(nodes, "SECONDS_OF_A_LOOK", 0.2)
scenario, seen, digests = Scenario.from_toml(arguments[0]), {}, {}
try:
    run_scenario(scenario, Placement(backend="ray", worker_timeout_seconds=4.0), f"{arguments[1]}/never")
except RunFailed as error:
    told.append(str(error))
def look(progress):
    if "free" not in seen:
        actors = [each for each in ray._private.state.actors().values() if each["State"] == "ALIVE"]
        seen["on_head"] = sum(each["Address"]["NodeID"] == cluster.head_node.node_id for each in actors)
        named = ray.util.list_named_actors(all_namespaces=True)
        seen["names"] = sorted(each["name"] for each in named)
        seen["namespaces"] = sorted({each["namespace"][:-7] for each in named})
        seen["nodes"] = len({each["Address"]["NodeID"] for each in actors})
        time.sleep(1.0)  # Ray's figures are some tenths of a second old
        seen["free"] = ray.available_resources().get("CPU", 0.0)
def run(name, listen=None):
    digests[name] = run_scenario(scenario, Placement(2, "ray", trainers=2), f"{arguments[1]}/{name}", listen).digest
def begin(*what):
    # Ray adds nodes in the main thread only.
    threads = [threading.Thread(target=run, args=each) for each in what]
    for each in threads:
        each.start()
    return threads
(first,) = begin(("first", look))
time.sleep(2)
add(2)
time.sleep(2)
early = list(digests)
add(2)
first.join()
for _ in range(50):
    time.sleep(0.2)
    if ray.available_resources().get("CPU", 0.0) == 4.0:
        break
seen["afterwards"] = ray.available_resources().get("CPU", 0.0)
for each in begin(("second",), ("third",)):
    each.join()
result = [told, early, seen, digests]
"""


@pytest.mark.slow
@pytest.mark.ray
def test_a_run_waits_for_its_nodes_and_reserves_their_cpus(
    three_rounds: tuple[Path, Trace, str], tmp_path: Path, on_nodes: Callable[..., Any]
) -> None:
    """It does not wait for ever. Two shards and two trainers take four CPUs, which the second node brings: one shard and one trainer
    on each. The head, which has no CPU, is left alone. Two runs at once take turns."""
    told, early, seen, digests = on_nodes(RESERVED, three_rounds[0], tmp_path)
    assert told[0] == "fedray: waiting for 1 CPU: 0 of 0 are free (`ray status`)"
    assert told[1].startswith("waited 4 s for 1 CPU: 0 of 0 are free; end other programs")
    assert told[2] == "fedray: waiting for 1 to 4 CPUs: 0 of 0 are free (`ray status`)"
    assert early == []
    scenario = Scenario.from_toml(three_rounds[0])
    names = {
        "names": ["workers-0", "workers-1"],
        "namespaces": [f"fedray-{scenario.name}-{scenario.digest[:8]}"],
    }
    assert seen == {"on_head": 0, "nodes": 2, "free": 0.0, "afterwards": 4.0, **names}
    assert digests == dict.fromkeys(("first", "second", "third"), three_rounds[1].digest)
    where = "Ray, local cluster, 4 CPUs: 2 shards, 2 trainers, aggregator on CPU"
    assert told.count(where) == 3


BESIDE_OTHERS = """
import os, signal, threading, time, ray
from ray._raylet import GcsClient
from ray.core.generated import autoscaler_pb2
from fedray.runs.simulation import simulate
from fedray.runtime import nodes
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from processes import lose
patch(nodes, "SECONDS_OF_SILENCE", 0.5)
patch(nodes, "SECONDS_OF_A_LOOK", 0.2)
@ray.remote(num_cpus=1, max_retries=0)
def stay():
    time.sleep(600)
at = [add(1) for _ in range(3)]
cluster.wait_for_nodes()
tenants = [stay.options(label_selector={"ray.io/node-id": node.node_id}).remote() for node in at]
time.sleep(2)
digests = []
def run():
    digests.append(simulate(Scenario.from_toml(arguments[0]), Placement(1, "ray"), arguments[1]).digest)
waits = threading.Thread(target=run)
waits.start()
def until(text):
    end = time.time() + 60
    while not any(text in each for each in told) and time.time() < end:
        time.sleep(0.1)
until("0 of 3 are free")
lose(cluster, at[0])
until("0 of 2 are free")
reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
assert GcsClient(address=cluster.address).drain_node(at[1].node_id, reason, "test", 0)[0]
until("0 of 1 are free")
before = len(digests)
add(1)
waits.join(120)
ray.cancel(tenants[2], force=True)
result = [told, before, digests]
"""


@pytest.mark.slow
@pytest.mark.ray
def test_a_waiting_run_starts_on_a_node_that_joins_after_others_were_lost_and_drained(
    three_rounds: tuple[Path, Trace, str], tmp_path: Path, on_nodes: Callable[..., Any]
) -> None:
    """All nodes that were there when it began to wait are of no use to it; the figures are of today."""
    told, before, digests = on_nodes(BESIDE_OTHERS, three_rounds[0], tmp_path / "t")
    assert (before, digests) == (0, [three_rounds[1].digest])
    waits = [each for each in told if "waiting for" in each]
    assert [f"fedray: waiting for 1 CPU: 0 of {n} are free (`ray status`)" for n in (3, 2, 1)] == [
        each for each in dict.fromkeys(waits) if ": 0 of" in each
    ]


STREAM = """
import threading, time, ray
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
add(2)
cluster.wait_for_nodes()
@ray.remote(num_cpus=1, max_retries=0)
def work():
    time.sleep(0.7)
live, ended, is_over = [work.remote() for _ in range(6)], 0, threading.Event()
def stream():
    global live, ended
    while not is_over.is_set():
        ready, live = ray.wait(live, num_returns=1)
        ended += 1
        live.append(work.remote())
thread = threading.Thread(target=stream)
thread.start()
time.sleep(3)
where = Placement(1, "ray", worker_timeout_seconds=60.0)
digest = simulate(Scenario.from_toml(arguments[0]), where, arguments[1]).digest
during = ended
is_over.set()
thread.join()
for each in live:
    ray.cancel(each, force=True)
result = [told, digest, during]
"""


@pytest.mark.slow
@pytest.mark.ray
def test_a_run_gets_a_cpu_beside_tasks_that_follow_each_other_on_every_one(
    three_rounds: tuple[Path, Trace, str], tmp_path: Path, on_nodes: Callable[..., Any]
) -> None:
    """Three tasks for each CPU, whose place another takes as soon as one ends: no two CPUs are free at a time, and none is for long."""
    told, digest, during = on_nodes(STREAM, three_rounds[0], tmp_path / "t")
    assert digest == three_rounds[1].digest
    assert during >= 4
    assert sum("1 CPU: 1 shard" in each for each in told) == 1


LOST_EARLY = """
from fedray.runs.pipeline import run_scenario
from fedray.runtime import reservation
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from processes import lose
nodes = [add(1) for _ in range(2)]
cluster.wait_for_nodes()
claimed = reservation._Needs.claimed
def claimed_and_lost(needs, wait):
    claim = claimed(needs, wait)
    lose(cluster, nodes[0])
    return claim
patch(reservation._Needs, "claimed", claimed_and_lost)
trace = run_scenario(Scenario.from_toml(arguments[0]), Placement(2, "ray", trainers=2), arguments[1])
result = [trace.digest, trace.trained.document["model_sha256"], trace.run["restarts"], told]
"""


@pytest.mark.slow
@pytest.mark.ray
def test_workers_whose_node_is_lost_before_they_start_are_started_on_another(
    three_rounds: tuple[Path, Trace, str], tmp_path: Path, on_nodes: Callable[..., Any]
) -> None:
    """Ray itself would wait for the node to come back."""
    digest, model, restarts, told = on_nodes(LOST_EARLY, three_rounds[0], tmp_path / "t")
    assert (digest, model) == (three_rounds[1].digest, three_rounds[2])
    assert restarts == 1
    assert any("did not start, because its node is being drained or lost" in each for each in told)


SMALL_TRAINING = """
import time, ray
from fedray.runs.learning import train
from fedray.runs.pipeline import run_scenario
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.wire.messages import TrainingProgress
for cpus in (1, 2, 2):
    add(cpus)
cluster.wait_for_nodes()
free = []
def look(progress):
    if isinstance(progress, TrainingProgress) and progress.trained == 1:
        time.sleep(1.0)  # Ray's figures are some tenths of a second old
        free.append(ray.available_resources().get("CPU", 0.0))
scenario, where = Scenario.from_toml(arguments[0]), Placement(backend="ray")
trace = run_scenario(scenario, where, arguments[1] + "/t", look)
run = train(trace, scenario, where, arguments[1] + "/m", look)
result = [free, trace.trained.document["trainers"], run.document["trainers"], run.document["model_sha256"]]
"""


@pytest.mark.slow
@pytest.mark.ray
def test_a_small_run_leaves_most_cpus_to_others(
    three_rounds: tuple[Path, Trace, str], tmp_path: Path, on_nodes: Callable[..., Any]
) -> None:
    """Of five CPUs it has one for its shard, and one for a trainer and the aggregator, which take turns; on a node of one CPU, all do."""
    free, *trainers, model = on_nodes(SMALL_TRAINING, three_rounds[0], tmp_path)
    assert free in ([3.0, 4.0], [4.0, 4.0])
    assert trainers == [1, 1]
    assert model == three_rounds[2]


CHANGING = """
import ray
from ray._raylet import GcsClient
from ray.core.generated import autoscaler_pb2
from fedray.runs import learning
from fedray.runs.learning import train
from fedray.runs.simulation import simulate
from fedray.runtime import reservation
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.wire.messages import TrainingProgress
patch(reservation, "SECONDS_BETWEEN_LOOKS", 0.0)
patch(learning, "SECONDS_OF_A_TRAINER", 1e-9)
for _ in range(2):
    add(1)
cluster.wait_for_nodes()
scenario, left, where, new = Scenario.from_toml(arguments[0]), [], [], []
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
trace = simulate(scenario, Placement(2, "ray"), f"{arguments[1]}/trace", simulated)
add(1)
def trained(progress):
    if not isinstance(progress, TrainingProgress):
        return
    if progress.trained == 2 and len(left) == 1:
        new.append(add(2).node_id)
    if progress.trained == 6 and len(left) == 1:
        drain("workers-0")
    if progress.trained == 9:
        nodes()
run = train(trace, scenario, Placement(backend="ray"), f"{arguments[1]}/model", trained)
of_training = [run.document[each] for each in ("trainers", "restarts")]
result = [trace.digest, trace.run["restarts"], of_training, left, where, told]
"""


@pytest.mark.slow
@pytest.mark.ray
def test_a_run_leaves_drained_nodes_and_trains_on_joined_ones(
    small, tmp_path: Path, on_nodes: Callable[..., Any]
) -> None:
    """A simulation on two nodes loses one. Its training, on the other and a third, gets a fourth of
    two CPUs, and then leaves the node of its aggregator. Trace and model stay the same."""
    scenario = small(
        "population.devices=150000", "training.enabled=true", "training.cohort_sample=8", "training.devices_at_once=1"
    )  # fmt: skip
    (tmp_path / "s.toml").write_text(scenario.to_toml())
    found = on_nodes(CHANGING, tmp_path / "s.toml", tmp_path)
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
import time, ray
from fedray.runtime.placement import Placement
from fedray.runtime.nodes import cluster_nodes
from fedray.runtime.reservation import reserved
def joined(trainers=1):
    return [each.trainers for each in own.joined(cluster_nodes(), Placement(backend="ray", aggregator_gpus=1.0), trainers)]
add(1)
with reserved(Placement(backend="ray"), lambda cpus: 1, {"scenario": "s", "digest": "d" * 64}, print, most_trainers=4) as own:
    add(2)
    cluster.wait_for_nodes()
    other = ray.util.placement_group([{"CPU": 1}])
    ray.get(other.ready())
    result = [joined()]
    ray.util.remove_placement_group(other)
    time.sleep(3)
    result.append(ray.available_resources().get("CPU", 0.0))
    for trainers in (4, 1):
        add(3)
        cluster.wait_for_nodes()
        result.append(joined(trainers))
"""


@pytest.mark.slow
@pytest.mark.ray
def test_a_joined_node_whose_cpus_are_not_free_is_left_to_others(
    on_nodes: Callable[..., Any],
) -> None:
    """An aggregator on a GPU, which a new node lacks, is no reason to refuse the node; enough trainers are."""
    assert on_nodes(REFUSED) == [[], 2.0, [], [3]]


SENT = """
import ray
from fedray.base.source import source_digest
from fedray.runtime import session as sessions
from fedray.runtime.placement import Placement
# Directories of the driver are on its machine only.
patch(sessions._DriverPaths, "extend", lambda *_: None)
joined, join = [], ray.init
patch(ray, "init", lambda *arguments, **options: joined.append(options) or join(*arguments, **options))
def copies():
    with sessions.session(Placement(address=cluster.address)):
        nodes = {each["NodeID"] for each in ray.nodes() if each["Alive"]}
        probe = ray.remote(num_cpus=0)(own)
        asked = [probe.options(label_selector={"ray.io/node-id": each}).remote() for each in nodes]
        return sum("runtime_env" in each for each in joined), len(nodes), len({*ray.get(asked)} | {source_digest()})
def own():
    from fedray.base.source import source_digest
    return source_digest()
result = [copies()]
# A node whose fedray is of no use.
add(1, env_vars={"PYTHONPATH": arguments[0]})
result.append(copies())
"""


@pytest.mark.slow
@pytest.mark.ray
def test_the_code_is_sent_only_if_a_node_has_another(
    tmp_path: Path, on_nodes: Callable[..., Any]
) -> None:
    (tmp_path / "fedray").mkdir()
    (tmp_path / "fedray" / "__init__.py").write_text("raise ImportError")
    # Copies sent, nodes, and distinct sources, of the driver and all nodes.
    assert on_nodes(SENT, tmp_path, is_connected=False) == [[0, 1, 1], [1, 2, 1]]


CLIENT = """
import logging, socket, subprocess, sys
from ray.util.client.server.server import init_and_serve
from fedray.base.source import ROOT
from fedray.trace.reader import Trace
add(2)
cluster.wait_for_nodes()
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server, _ = init_and_serve("127.0.0.1", port, address=cluster.address, logging_level=logging.ERROR, log_to_driver=False)
command = [sys.executable, "-m", "fedray", "run", arguments[0], "--out", arguments[1], "--place", f"address=ray://127.0.0.1:{port}"]
done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
server.grpc_server.stop(0)
assert done.returncode == 0, done.stderr
trace = Trace.open(arguments[1])
result = [trace.digest, trace.trained.document["model_sha256"], trace.trained.document["trainers"]]
"""


@pytest.mark.slow
@pytest.mark.ray
def test_a_client_of_ray_runs_the_same(
    three_rounds: tuple[Path, Trace, str], tmp_path: Path, on_nodes: Callable[..., Any]
) -> None:
    scenario, here, model = three_rounds
    found = on_nodes(CLIENT, scenario, tmp_path / "there", is_connected=False)
    assert found == [here.digest, model, 1]


OTHER_PACKAGE = """
import fedray
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
add(1, env_vars={"PYTHONPATH": arguments[1]})
cluster.wait_for_nodes()
result = []
for work in (lambda: fedray.simulate(Scenario.from_toml(arguments[0]), Placement(1, "ray"), arguments[2]), lambda: dict(fedray.run_jobs(abs, [1]))):
    try:
        work()
    except fedray.InputError as error:
        result.append(str(error))
"""


@pytest.mark.slow
@pytest.mark.ray
def test_a_worker_with_another_numpy_is_refused_in_one_line(
    three_rounds: tuple[Path, Trace, str], tmp_path: Path, on_nodes: Callable[..., Any]
) -> None:
    (tmp_path / "numpy-0.1.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: numpy\nVersion: 0.1\n"
    (tmp_path / "numpy-0.1.dist-info" / "METADATA").write_text(metadata)
    refused = on_nodes(OTHER_PACKAGE, three_rounds[0], tmp_path, tmp_path / "t")
    assert len(refused) == 2
    assert all(each.startswith("a Ray worker has numpy 0.1, and this") for each in refused)
