"""Processes of a test, as /proc lists them."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def children_of(process: int, without: str = "\n") -> Iterator[int]:
    """All descendants of a process, apart from those with a word in their command, and their descendants."""
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, file.read_text().split()):
                if without not in Path(f"/proc/{child}/cmdline").read_text(errors="replace"):
                    yield child
                    yield from children_of(child, without)


def lose(cluster: Any, node: Any) -> None:
    """Lose a node of a `ray.cluster_utils.Cluster` as a machine is lost: with all its processes, at once.

    Ray ends the raylet alone, and what worked on the node may outlive it by seconds.
    """
    raylet = node.all_processes["raylet"][0].process.pid
    for process in list(children_of(raylet)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    cluster.remove_node(node, allow_graceful=False)
