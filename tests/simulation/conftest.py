"""A cluster of several nodes, for the tests of this folder."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def on_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Runs a program on nodes that it adds to a cluster (`nodes.py` says how), and gives its `result`."""
    folder = tmp_path_factory.mktemp("nodes")
    command = [sys.executable, str(Path(__file__).with_name("nodes.py"))]
    pipe: Any = subprocess.PIPE
    with (
        (folder / "stderr").open("w") as log,
        subprocess.Popen(
            command, cwd=folder, stdin=pipe, stdout=pipe, stderr=log, text=True
        ) as host,
    ):
        asked: Any = host.stdin

        def run(program: str, *arguments: Any, is_connected: bool = True) -> Any:
            try:
                asked.write(json.dumps([program, [*map(str, arguments)], is_connected]) + "\n")
                asked.flush()
                for line in host.stdout or ():
                    kind, _, text = line.partition(" ")
                    if kind in ("RESULT", "FAILED"):
                        break
                else:
                    kind, text = "FAILED", json.dumps((folder / "stderr").read_text()[-5000:])
            except BaseException:
                host.kill()  # what it answers later is no answer to the next test
                raise
            assert kind == "RESULT", json.loads(text)
            return json.loads(text)

        yield run
        asked.close()
