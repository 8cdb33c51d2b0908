"""A cluster of Ray whose nodes tests add and lose. It runs their programs one after the other, each on nodes of its own.

A process has one connection to Ray, and that of the tests is to the session's cluster: so this is a process of its own. A line of its input
has a program, its arguments, and whether it starts connected; a line of its output has the program's `result`, or the traceback of its error.
"""

import contextlib
import json
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import Any
from unittest import mock

import ray
from ray.cluster_utils import Cluster

ROOT = Path(__file__).resolve().parents[2]
STORE = {"object_store_memory": 90 * 2**20}


def result_of(cluster: Cluster, program: str, arguments: list[str], is_connected: bool) -> Any:
    """Runs a program; afterwards the cluster has no node but its head, which has no CPU.

    The program finds `cluster`, `arguments`, `add` (a node of so many CPUs), `patch` (an attribute, until it ends), and `told`, what fedray logs.
    """
    told: list[str] = []
    logger = logging.getLogger("fedray")
    logger.setLevel(logging.INFO)

    def note(record: logging.LogRecord) -> bool:
        told.append(record.getMessage())
        return True

    with contextlib.ExitStack() as undo:
        undo.callback(lambda: [cluster.remove_node(node) for node in list(cluster.worker_nodes)])
        undo.callback(ray.shutdown)
        undo.enter_context(mock.patch.dict(os.environ))
        logger.addFilter(note)
        undo.callback(logger.removeFilter, note)
        names = {
            "__name__": "__main__",  # so that Ray sends its functions whole
            "cluster": cluster,
            "arguments": arguments,
            "told": told,
            "add": lambda cpus, **more: cluster.add_node(num_cpus=cpus, **STORE, **more),
            "patch": lambda *what: undo.enter_context(mock.patch.object(*what)),
        }
        if is_connected:
            ray.init(cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        exec(compile(program, "program", "exec"), names)
        return names["result"]


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    head = {"num_cpus": 0, "include_dashboard": False, **STORE}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for line in sys.stdin:
        try:
            print("RESULT", json.dumps(result_of(cluster, *json.loads(line))), flush=True)
        except BaseException:
            print("FAILED", json.dumps(traceback.format_exc()), flush=True)
    cluster.shutdown()
