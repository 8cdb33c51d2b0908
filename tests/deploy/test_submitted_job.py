"""Jobs on a real cluster of one node, which asks for the token: the commands of deploy/README.md and
deploy/rayjob.yaml as they stand there, but for ports, places and sizes.

`make faults` runs this, for it takes minutes and the extra `cluster`: a job's files lie where no
kernel was compiled before. The node is started by the command of deploy/ray-cluster.yaml and told to
stay on the loopback interface.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from processes import children_of
from shown import commands_of

from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.trace.reader import Trace

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
README = commands_of(DEPLOY / "README.md")
SMALL = (
    "population.devices=20000",
    "rounds.count=12",
    "rounds.report_goal=200",
    "training.enabled=false",
)
pytestmark = [
    pytest.mark.outside,
    pytest.mark.slow,
    pytest.mark.ray,
    pytest.mark.skipif(
        "FEDRAY_ALL_MOMENTS" not in os.environ,
        reason="takes minutes and the extra `cluster`; `make faults` has both",
    ),
]


class Head:
    """A head node, and the terminal of somebody who has its token.

    address: of its dashboard, which jobs are submitted to.
    environment: variables of that terminal, README's among them.
    """

    def __init__(self, address: str, environment: dict[str, str]) -> None:
        self.address = address
        self.environment = environment

    def submit(self, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a `ray job submit ...` from the repository's root, to this head."""
        command = re.sub(r"--address http://\S+", f"--address {self.address}", command)
        return self.run(command, **environment)

    def run(self, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            shlex.split(command),
            cwd=ROOT, env={**self.environment, **environment},
            capture_output=True, text=True, timeout=900, check=False,
        )  # fmt: skip


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def start_command(port: int, dashboard: int, others: list[int], files: Path) -> str:
    """That of ray-cluster.yaml's head, at ports of its own, and without the list of machines."""
    cluster = yaml.safe_load((DEPLOY / "ray-cluster.yaml").read_text())
    command = cluster["head_start_ray_commands"][-1]
    command = command.replace("--port=6379", f"--port={port}")
    command = re.sub(r" --autoscaling-config=\S+", "", command)
    client, agent = others
    return (
        f"{command} --block --dashboard-port={dashboard} --ray-client-server-port={client} "
        f"--dashboard-agent-listen-port={agent} --node-ip-address=127.0.0.1 --num-cpus=1 "
        f"--object-store-memory={200 * 2**20} --temp-dir={files}"
    )


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    # Ray's sockets lie in there, and a socket's path has at most 107 characters.
    home = Path(tempfile.mkdtemp(prefix="fedray-"))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    environment |= {
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray would replace the loopback address by the machine's own, as for a node among others.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    }
    port, dashboard, *others = free_ports(4)
    made = Head(f"http://127.0.0.1:{dashboard}", environment)
    for command in README:
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            environment[name] = value
        elif command.startswith(("ray get-auth-token", "chmod")):
            done = made.run(command.replace("~", str(home)))
            assert done.returncode == 0, done.stderr
    start = start_command(port, dashboard, others, home / "ray")
    with (home / "start.log").open("w") as log:
        # The shell reads the variable before the command, and becomes the command.
        node = subprocess.Popen(
            ["/bin/sh", "-c", f"exec env {start}"],
            cwd=ROOT, env=environment, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        wait_for(dashboard, node, home / "start.log")
        yield made
    finally:
        end(node)
        shutil.rmtree(home, ignore_errors=True)


def wait_for(port: int, node: "subprocess.Popen[bytes]", log: Path) -> None:
    for _ in range(180):
        assert node.poll() is None, log.read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(1)
    pytest.fail(
        f"nobody listens at port {port}; is the extra `cluster` installed? {log.read_text()}"
    )


def end(node: "subprocess.Popen[bytes]") -> None:
    """Ends the node and checks that nothing it started is left; what is, is killed by its id."""
    started = set(children_of(node.pid))
    node.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        node.wait(90)
    for _ in range(100):
        left = [process for process in started if is_alive(process)]
        if not left:
            break
        time.sleep(0.2)
    for process in [node.pid, *left]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    node.wait()
    assert left == []


def is_alive(process: int) -> bool:
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z"
    return False


def with_sizes(command: str, out: Path) -> str:
    """The command of a run with another place for the trace, and small."""
    options = " ".join(f"--set {value}" for value in SMALL)
    return re.sub(r"--out \S+", f"--out {out} {options}", command)


def of_the_readme() -> str:
    return next(line for line in README if line.startswith("ray job submit"))


@pytest.mark.parametrize(
    "environment",
    [{"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_TOKEN": "0123456789abcdef0123456789abcdef"}],
    ids=["no token", "another token"],
)
def test_a_job_of_somebody_without_the_token_is_refused(
    head: Head, environment: dict[str, str], tmp_path: Path
) -> None:
    done = head.submit(with_sizes(of_the_readme(), tmp_path / "t"), **environment)
    assert done.returncode != 0
    assert "AuthenticationError" in done.stderr
    assert not (tmp_path / "t").exists()


def test_others_on_the_machine_cannot_read_the_token(head: Head) -> None:
    token = Path(head.environment["HOME"], ".ray", "auth_token")
    assert token.stat().st_mode & 0o077 == 0


def of_the_ray_job() -> str:
    """As KubeRay submits it: without files, from the directory in which the head was started."""
    job = next(yaml.safe_load_all((DEPLOY / "rayjob.yaml").read_text()))
    return f"ray job submit --address http://127.0.0.1:8265 -- {job['spec']['entrypoint']}"


@pytest.mark.parametrize("command", [of_the_readme, of_the_ray_job])
def test_a_submitted_job_leaves_the_trace_of_a_run_in_one_process(
    head: Head,
    command: Callable[[], str],
    tmp_path: Path,
    fedray_command: Callable[..., tuple[int, str, str]],
) -> None:
    done = head.submit(with_sizes(command(), tmp_path / "there"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "succeeded" in done.stdout + done.stderr
    there: Any = Trace.open(tmp_path / "there")
    scenario = Scenario.from_toml(ROOT / "scenarios" / "quickstart.toml", SMALL)
    here = simulate(scenario, Placement(1, "in-process"), tmp_path / "here")
    assert there.digest == here.digest
    code, printed, told = fedray_command("audit", str(tmp_path / "there"))
    assert code == 0, told
    assert "observed min-sep" in printed


SWEEP = """
name = "goals"
scenario = "small.toml"
x = "rounds.report_goal"
y = "epsilon"
vary = {"rounds.report_goal" = [100, 200], seed = [1, 2]}
[[mechanisms]]
kind = "tree"
"""
STUDIES = {
    "sweep sweep.toml": "results.json",
    "plan small.toml --epsilon 20 --timers 24 --seeds 2 --scale 1": "plan.json",
}


@pytest.mark.parametrize("place", ["env", "env -u RAY_ADDRESS"], ids=["joined", "local"])
@pytest.mark.parametrize("study", STUDIES)
def test_a_submitted_study_is_that_of_one_process(
    head: Head,
    study: str,
    place: str,
    tmp_path: Path,
    fedray_command: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job has the address of its cluster in RAY_ADDRESS; without it, it starts a cluster of its own."""
    files = tmp_path / "files"
    files.mkdir()
    scenario = Scenario.from_toml(ROOT / "scenarios" / "quickstart.toml", SMALL)
    (files / "small.toml").write_text(scenario.to_toml())
    (files / "sweep.toml").write_text(SWEEP)
    command = f"{study} --out"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    done = head.submit(
        f"ray job submit --address http://127.0.0.1:8265 --working-dir {files} -- "
        f"{place} XDG_CACHE_HOME={tmp_path} fedray --quiet {command} {tmp_path / 'there'}"
    )
    assert (tmp_path / "there").exists(), done.stdout + done.stderr
    monkeypatch.chdir(files)
    in_process = ("--place", "backend=in-process")
    code, _, told = fedray_command(*shlex.split(command), str(tmp_path / "here"), *in_process)
    assert code == done.returncode == 0, told
    there, here = (
        json.loads((tmp_path / name / STUDIES[study]).read_text()) for name in ("there", "here")
    )
    # A plan names its command, which has the place.
    assert there | {"command": ""} == here | {"command": ""}
