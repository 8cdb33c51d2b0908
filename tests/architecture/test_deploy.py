"""What deploy/ says can be read, agrees with the constraints, and runs commands that exist."""

import re
import shlex
from pathlib import Path

import yaml

from fedray.scenario import Scenario

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


def arguments_of(command: str) -> list[str]:
    """What follows `python -m fedray run`; the scenario it names must ship."""
    words = shlex.split(command)
    start = words.index("fedray")
    assert words[start - 2 : start + 2] == ["python", "-m", "fedray", "run"]
    assert Scenario.from_toml(ROOT / words[start + 2]).name == "quickstart"
    return words[start + 3 :]


def test_the_job_runs_the_quickstart_on_the_cluster_it_is_given() -> None:
    job, claim = yaml.safe_load_all((DEPLOY / "rayjob.yaml").read_text())
    assert job["kind"] == "RayJob"
    assert arguments_of(job["spec"]["entrypoint"])[:2] == ["--address", "auto"]
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    assert head["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    mounted = head["containers"][0]["volumeMounts"][0]["mountPath"]
    assert shlex.split(job["spec"]["entrypoint"])[
        shlex.split(job["spec"]["entrypoint"]).index("--out") + 1
    ].startswith(mounted)


def test_one_ray_everywhere() -> None:
    """Driver and nodes must run the same Ray."""
    pinned = re.search(r"^ray==(\S+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    assert pinned is not None
    job = next(yaml.safe_load_all((DEPLOY / "rayjob.yaml").read_text()))
    assert job["spec"]["rayClusterSpec"]["rayVersion"] == pinned[1]
    assert f"rayproject/ray:{pinned[1]}-py311" in (DEPLOY / "Dockerfile").read_text()


def test_no_ray_is_allowed_that_asks_for_no_token_by_default() -> None:
    """Ray 2.59 is the first whose local clusters do; an older one would run anybody's code of this machine."""
    least = re.search(
        r'^  "ray>=(\d+)\.(\d+),', (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE
    )
    assert least is not None
    assert (int(least[1]), int(least[2])) >= (2, 59)


def test_the_cluster_file_and_the_job_command_can_be_read() -> None:
    cluster = yaml.safe_load((DEPLOY / "ray-cluster.yaml").read_text())
    assert cluster["max_workers"] == len(cluster["provider"]["worker_ips"])
    command = next(
        line
        for line in (DEPLOY / "README.md").read_text().splitlines()
        if line.startswith("ray job submit")
    )
    assert "--working-dir ." in command
    assert "--address" in arguments_of(command.partition(" -- ")[2])


def test_no_port_is_open_to_those_without_the_token() -> None:
    """Every `ray start` asks for it, and every node gets it; where the dashboard need not leave the head, it does not."""
    cluster = yaml.safe_load((DEPLOY / "ray-cluster.yaml").read_text())
    starts = [
        line
        for key in ("head_start_ray_commands", "worker_start_ray_commands")
        for line in cluster[key]
        if "ray start" in line
    ]
    assert len(starts) == 2
    assert all(line.startswith("RAY_AUTH_MODE=token ray start ") for line in starts)
    assert "--dashboard-host=127.0.0.1" in starts[0]
    assert list(cluster["file_mounts"]) == ["/home/ray/.ray/auth_token"]
    job = next(yaml.safe_load_all((DEPLOY / "rayjob.yaml").read_text()))
    assert job["spec"]["rayClusterSpec"]["authOptions"] == {"mode": "token"}
    assert "RAY_AUTH_MODE=token" in (DEPLOY / "README.md").read_text()
