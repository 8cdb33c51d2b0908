"""Where actors run and what they hear: two nodes, of which one is lost; ports and tokens; what is sent to whom."""

import ipaddress
import json
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import children_of

from fedray.base.errors import InputError
from fedray.runs.pipeline import run_scenario
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario

PROGRAM = """
import json, ray
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from processes import lose
scenario, result = Scenario.from_toml(arguments[0]), {}
add(1)
for moment in json.loads(arguments[2]):
    node = add(1)
    cluster.wait_for_nodes()
    nodes = set()
    def look(progress):
        if progress.committed == 1:
            for actor in ray._private.state.actors().values():
                if actor["State"] == "ALIVE" and "Shard" in actor["ActorClassName"]:
                    nodes.add(actor["Address"]["NodeID"])
        if progress.committed == moment and node in cluster.worker_nodes:
            lose(cluster, node)
    trace = simulate(scenario, Placement(2, checkpoint_seconds=0.0), f"{arguments[1]}/{moment}", look)
    result[str(moment)] = [trace.digest, len(nodes), trace.run["restarts"]]
    if moment is None:
        cluster.remove_node(node)
"""


MOMENTS = [None, 2, 9, 20] if "FEDRAY_ALL_MOMENTS" in os.environ else [9]
"""When the second node is lost, in committed rounds; None for never. Half a minute each, so that the suite has one; `make faults` has all."""


@pytest.mark.slow
@pytest.mark.ray
def test_two_nodes_and_a_lost_one_change_nothing(
    small, tmp_path: Path, on_nodes: Callable[..., Any]
) -> None:
    """One shard runs on either node. The second node is lost at some moments: its shard goes on beside the first."""
    scenario = small(
        "population.devices=100000", "rounds.count=40", "rounds.look_ahead_minutes=2.0"
    )
    (tmp_path / "s.toml").write_text(scenario.to_toml())
    results = on_nodes(PROGRAM, tmp_path / "s.toml", tmp_path, json.dumps(MOMENTS))
    reference = simulate(
        Scenario.from_toml(tmp_path / "s.toml"), Placement(1, "in-process"), tmp_path / "reference"
    )
    assert {digest for digest, _, _ in results.values()} == {reference.digest}
    assert {nodes for _, nodes, _ in results.values()} == {2}
    # A new actor may land on the dying node, and die with it.
    assert [restarts > 0 for _, _, restarts in results.values()] == [
        moment is not None for moment in MOMENTS
    ]


@pytest.mark.ray
@pytest.mark.skipif(
    "PYTEST_XDIST_WORKER" not in os.environ, reason="all tests are in one process anyway"
)
def test_the_tests_of_the_session_s_cluster_are_one_group(request) -> None:
    """xdist may lose groups without a word; each of its processes would then start a cluster."""
    assert request.node.nodeid.endswith("@ray")


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_a_local_cluster_listens_on_the_loopback_interface_alone() -> None:
    """GCS, raylet, its agents, a worker, and this process, which other processes of the cluster call back."""
    import ray

    class Worker:
        def process(self) -> int:
            return os.getpid()

    worker: Any = ray.remote(Worker).options(num_cpus=0).remote()
    at_work: Any = ray.get(worker.process.remote())
    own = {os.getpid(): "driver", at_work: "worker"}
    heard = {}
    for process, name, address in listening_sockets():
        heard.setdefault(own.get(process, name), set()).add(address)
    ray.kill(worker)
    assert {"driver", "worker", "gcs_server", "raylet"} <= heard.keys()
    assert all(address.is_loopback for addresses in heard.values() for address in addresses), heard


CLIENT = """
import sys
from ray._raylet import GcsClient
GcsClient(address=sys.argv[1])
print("connected")
"""


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("token", ["own", "another", "none"])
def test_a_client_without_the_token_is_refused(token: str) -> None:
    """The loopback interface is every user's of this machine. With the token the same client connects."""
    import ray

    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")
    }
    if token != "none":
        environment["RAY_AUTH_MODE"] = "token"
        own = os.environ["RAY_AUTH_TOKEN"]
        environment["RAY_AUTH_TOKEN"] = own if token == "own" else own[::-1]
    address = ray.get_runtime_context().gcs_address
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, address],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode == 0, "connected" in done.stdout) == (
        (True, True) if token == "own" else (False, False)
    )
    assert token == "own" or "token is missing or incorrect" in done.stderr


def listening_sockets() -> list[tuple[int, str, ipaddress.IPv4Address | ipaddress.IPv6Address]]:
    """(process, its program, address) of every TCP socket on which this process or a descendant listens, without the cluster of `on_nodes`."""
    addresses = {}
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, _, state, *fields = line.split()
            if state == "0A":
                addresses[fields[5]] = address_of(local.partition(":")[0])
    found = []
    for process in [os.getpid(), *children_of(os.getpid(), without="nodes.py")]:
        for link in Path(f"/proc/{process}/fd").glob("*"):
            try:
                target, program = os.readlink(link), os.readlink(f"/proc/{process}/exe")
            except OSError:
                continue
            if target.startswith("socket:") and target[8:-1] in addresses:
                found.append((process, Path(program).name, addresses[target[8:-1]]))
    return found


def address_of(hexadecimal: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """As /proc/net writes it: words of four bytes in the machine's order. An IPv4 address that is mapped to IPv6 is that one."""
    words = np.frombuffer(bytes.fromhex(hexadecimal), ">u4").astype("=u4").tobytes()
    if len(words) == 4:
        return ipaddress.IPv4Address(words)
    address = ipaddress.IPv6Address(words)
    return address.ipv4_mapped or address


@pytest.fixture
def laden(small, tmp_path: Path) -> Scenario:
    """A scenario with a matrix of 0.7 MB and a recording of 0.5 MB."""
    rounds, sessions = 300, 20_000
    np.save(tmp_path / "C.npy", np.eye(rounds) + np.tril(np.full((rounds, rounds), 1e-4), -1))
    rng = np.random.default_rng(0)
    numbers = np.arange(sessions)
    start = np.round(86_400 * (numbers // 5000) + rng.uniform(0, 60_000, sessions))
    rows = {"device": numbers % 5000, "start": start, "end": start + 20_000}
    pq.write_table(pa.table(rows), tmp_path / "r.parquet")
    return small(
        f'privacy.mechanism={{kind="matrix",file="{tmp_path}/C.npy"}}',
        f'availability={{model="replay",file="{tmp_path}/r.parquet"}}',
        "rounds.count=3",
    )


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(
    ("key", "rule"),
    [
        ("aggregator_gpus", "but the cluster has 0; leave it out for the CPU"),
        ("trainer_gpus", "leaves room for 0 of 1 trainers on 0 GPUs; leave it out for the CPU"),
    ],
)
def test_a_gpu_that_the_cluster_has_not_is_refused_at_once(
    small, tmp_path: Path, key: str, rule: str
) -> None:
    """Ray would wait for a node that has one."""
    placement = Placement(1, **{key: 0.5})  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match=f"{key}=0.5 {rule}"):
        run_scenario(small("training.enabled=true"), placement, tmp_path / "t")
    assert list(tmp_path.iterdir()) == []


def test_content_is_sent_once_and_only_to_those_who_use_it(laden: Scenario) -> None:
    """The recording to shards, the matrix to the aggregator; the rest of a scenario is 5 kB or so."""
    matrix, recording = laden.privacy.mechanism.matrix.nbytes, len(laden.availability.content)  # pyright: ignore[reportAttributeAccessIssue]
    sizes = [
        len(pickle.dumps(part, protocol=5))
        for part in (laden.for_shards(), laden.for_aggregator(), laden.for_trainers())
    ]
    assert sizes[0] == pytest.approx(recording, abs=20_000)
    assert sizes[1] == pytest.approx(matrix, abs=20_000)
    assert sizes[2] < 20_000
    assert len(pickle.dumps(laden, protocol=5)) > sum(sizes)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("is_own", [False, True], ids=["a cluster", "this machine"])
def test_what_is_sent_is_enough(
    laden: Scenario, tmp_path: Path, monkeypatch, caplog, is_own: bool
) -> None:
    """Trace, model and metrics are those of a run in one process, to the bit: groups are fixed and sums exact. Shards, trainers and aggregator
    are sent an object each, and the trainers the initial model. On a cluster that this process has started, it has the shards."""
    import ray

    caplog.set_level(logging.INFO, "fedray")
    monkeypatch.setattr("fedray.runs.simulation.has_own_cluster", lambda: is_own)
    sent, put = [], ray.put
    monkeypatch.setattr(ray, "put", lambda value: sent.append(type(value)) or put(value))
    laden = laden.with_overrides(
        "training.enabled=true", "training.cohort_sample=16", "training.devices_at_once=8", "training.evaluate_every=2", "population.devices=140000"
    )  # fmt: skip
    there, here = (
        run_scenario(laden, Placement(3, backend, trainers=trainers), tmp_path / backend)
        for backend, trainers in (("ray", 2), ("in-process", None))
    )
    assert (there.run["shards"], there.digest) == (3, here.digest)
    assert there.trained is not None
    assert here.trained is not None
    assert there.trained.document["trainers"] == 2
    assert (there.trained.parameters() == here.trained.parameters()).all()
    for name, column in there.trained.metrics.items():
        assert np.array_equal(column, here.trained.metrics[name], equal_nan=True)
    assert sent == [*[Scenario] * (2 if is_own else 3), np.ndarray]
    shards = "3 shards in this process, 2 trainers" if is_own else "3 shards, 2 trainers"
    assert f": {shards}, aggregator on CPU" in caplog.messages[0]


SWEEP = """
import os, threading
from pathlib import Path
from fedray.runtime.placement import Placement
from fedray.studies.sweep.run import run_sweep
from fedray.studies.sweep.sweep import Sweep
from processes import lose
file, at, count = arguments[0], int(arguments[1]), int(arguments[2])
os.environ["XDG_CACHE_HOME"] = arguments[3]
nodes = [add(1) for _ in range(count)]
cluster.wait_for_nodes()
said = []
def look(text):
    said.append(text)
    if len(nodes) == count and text.startswith(f"{at} of ") and "runs simulated" in text:
        # A moment later: the node that has just finished a run has begun the next one by then.
        threading.Timer(0.5, lose, [cluster, nodes.pop()]).start()
sweep, scenario = Sweep.from_toml(Path(file))
first = run_sweep(sweep, scenario, Placement(), on_progress=look)
before = len(said)
again = run_sweep(sweep, scenario, Placement(), on_progress=said.append)
result = [first.table(), said, len(said) - before, again.table() == first.table()]
"""
CELLS, NODES = (200, 4) if "FEDRAY_ALL_MOMENTS" in os.environ else (6, 2)
"""Runs of the sweep, and nodes of the cluster; `make faults` has more."""


@pytest.mark.slow
@pytest.mark.ray
def test_a_sweep_on_nodes_of_which_one_is_lost_has_every_cell_once(
    small, tmp_path: Path, on_nodes: Callable[..., Any]
) -> None:
    """Runs on the lost node are begun again elsewhere, and counted; a second time nothing is run."""
    # Long enough that the lost node is in the middle of a run.
    scenario = small("population.devices=200000", "rounds.count=100", "rounds.report_goal=500")
    (tmp_path / "small.toml").write_text(scenario.to_toml())
    (tmp_path / "sweep.toml").write_text(
        f"""
name = "seeds"
scenario = "small.toml"
x = "seed"
vary = {{seed = {list(range(CELLS))}}}
[[mechanisms]]
kind = "identity"
"""
    )
    rows, told, told_again, is_same = on_nodes(
        SWEEP, tmp_path / "sweep.toml", CELLS // 3, NODES, tmp_path / "cache"
    )
    assert sorted(row["cell.seed"] for row in rows) == list(range(CELLS))
    assert all(row["rounds"] == 100 for row in rows)
    assert f"{CELLS} of {CELLS} runs simulated" in [text.split(",")[0] for text in told]
    assert any("lost and begun again" in text for text in told)
    # All runs and cells are kept.
    assert told_again == 2
    assert is_same
