"""Two nodes, and one that is lost: a cluster of real raylets, in a process of its own (the session's cluster has one node)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedray.placement import Placement
from fedray.scenario import Scenario
from fedray.simulation import simulate

PROGRAM = """
import json, logging, os, sys
sys.path.insert(0, sys.argv[1])
os.environ["PYTHONPATH"] = sys.argv[1]
from fedray.placement import Placement
from fedray.scenario import Scenario
from fedray.simulation import simulate
from ray.cluster_utils import Cluster
import ray
memory = 80 * 2**20
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": memory, "include_dashboard": False})
ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
scenario, out = Scenario.from_toml(sys.argv[2]), {}
for moment in json.loads(sys.argv[4]):
    node = cluster.add_node(num_cpus=1, object_store_memory=memory)
    cluster.wait_for_nodes()
    nodes = set()
    def look(progress):
        if progress.committed == 1:
            for actor in ray._private.state.actors().values():
                if actor["State"] == "ALIVE" and "ShardBody" in actor["ActorClassName"]:
                    nodes.add(actor["Address"]["NodeID"])
        if progress.committed == moment and cluster.worker_nodes:
            cluster.remove_node(node, allow_graceful=False)
    trace = simulate(scenario, Placement(2, checkpoint_seconds=0.0), f"{sys.argv[3]}/{moment}", look)
    out[str(moment)] = [trace.digest, len(nodes), trace.run["restarts"]]
    if moment is None:
        cluster.remove_node(node)
ray.shutdown()
cluster.shutdown()
print("RESULT", json.dumps(out))
"""


MOMENTS = [None, 2, 9, 20] if "FEDRAY_ALL_MOMENTS" in os.environ else [None, 9]
"""When the second node is lost, in committed rounds. Half a minute each, so that the suite has one; `make faults` has all."""


@pytest.mark.slow
@pytest.mark.ray
def test_two_nodes_and_a_lost_one_change_nothing(small, tmp_path: Path) -> None:
    """One shard runs on either node. The second node is lost at some moments: its shard goes on beside the first."""
    scenario = small("population.devices=100000", "rounds.count=40", "rounds.look_ahead_minutes=2.0")
    (tmp_path / "s.toml").write_text(scenario.to_toml())
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, root, str(tmp_path / "s.toml"), str(tmp_path), json.dumps(MOMENTS)],
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), None)
    assert line is not None, done.stdout + done.stderr
    results = json.loads(line.removeprefix("RESULT "))
    reference = simulate(Scenario.from_toml(tmp_path / "s.toml"), Placement(1, "in-process"), tmp_path / "reference")
    assert {digest for digest, _, _ in results.values()} == {reference.digest}
    assert {nodes for _, nodes, _ in results.values()} == {2}
    # A new actor may land on the dying node, and die with it.
    assert [restarts > 0 for _, _, restarts in results.values()] == [moment is not None for moment in MOMENTS]
