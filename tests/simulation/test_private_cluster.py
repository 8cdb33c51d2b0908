"""A local cluster and other users of the machine; and the user's own token for other clusters."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedray.base.source import ROOT

NOBODY = 65534

LOOKED_AT = """
import json, os, sys
from pathlib import Path
import ray
from fedray.runtime.placement import Placement
from fedray.runtime.session import has_own_cluster, session
from tests.simulation.processes import children_of
parent = Path(sys.argv[1])
def attempts(token):
    # In a child, because a process does not get its rights back.
    reading, writing = os.pipe()
    if not (child := os.fork()):
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            files = [private, folder, *inside, *(f"/proc/{each}/environ" for each in processes)]
            opened = []
            for each in files:
                try:
                    os.close(os.open(each, os.O_RDONLY))
                    opened.append(str(each))
                except PermissionError:
                    pass
            lines = [Path(f"/proc/{each}/cmdline").read_bytes() for each in processes]
            os.write(writing, json.dumps([len(files), opened, any(token.encode() in each for each in lines)]).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    return json.loads(os.read(reading, 1 << 20))
before = dict(os.environ)
with session(Placement(object_store_megabytes=100)):
    assert has_own_cluster()
    (private,) = parent.iterdir()
    folder = Path(ray._private.worker._global_node.get_session_dir_path())
    inside = [each for each in folder.rglob("*") if not each.is_dir()]
    processes = [os.getpid(), *children_of(os.getpid())]
    assert len(inside) > 10 and len(processes) > 4 and folder.parent.parent == private
    token = os.environ["RAY_AUTH_TOKEN"]
    found = {
        "mode": private.stat().st_mode & 0o777,
        "read by others": attempts(token) if os.geteuid() == 0 else None,
        "in files": [str(each) for each in inside if each.is_file() and token.encode() in each.read_bytes()],
    }
assert not has_own_cluster()
found["left"] = [each.name for each in parent.iterdir()]
found["home"] = [each.name for each in Path.home().iterdir()]
found["changed"] = [name for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_MODE") if os.environ.get(name) != before.get(name)]
print(json.dumps(found))
"""


def result_of(program: str, *arguments: str, **environment: str) -> Any:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def short() -> Any:
    """A folder with a short name, which the paths of sockets need, that all users can enter."""
    folder = Path("/tmp") / f"o{os.getpid()}"
    folder.mkdir()
    yield folder
    folder.rmdir()


@pytest.mark.slow
@pytest.mark.ray
def test_other_users_can_read_nothing_of_a_local_cluster(short: Path, tmp_path: Path) -> None:
    """Neither its files nor its token, which is in no file, no command line and not left behind."""
    found = result_of(LOOKED_AT, str(short), RAY_TMPDIR=str(short), HOME=str(tmp_path))
    count_opened_told = found.pop("read by others")
    assert found == {"mode": stat.S_IRWXU, "in files": [], "left": [], "home": [], "changed": []}
    if count_opened_told is None:
        pytest.skip("only root can become another user")
    count, *rest = count_opened_told
    assert count > 15
    assert rest == [[], False]


JOINED_AFTERWARDS = """
import json, os, sys
import ray
from ray.cluster_utils import Cluster
import fedray
from fedray.runtime.local_ray import read_again
def token(job):
    return os.environ.get("RAY_AUTH_TOKEN", "")
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, "object_store_memory": 90 << 20})
where = fedray.Placement(backend="ray", address=cluster.address)
first = dict(fedray.run_jobs(abs, [-1], where))[0]
local = dict(fedray.run_jobs(token, [1], fedray.Placement(object_store_megabytes=100)))[0]
again = dict(fedray.run_jobs(abs, [-2], where))[0]
os.environ["RAY_AUTH_TOKEN"] = local
os.environ["RAY_AUTH_MODE"] = "token"
refused = ""
read_again()
try:
    dict(fedray.run_jobs(abs, [-3], where))
except fedray.InputError as error:
    refused = str(error)
print(json.dumps([first, again, len(local), local == sys.argv[1], refused]))
"""


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize(
    "place",
    ["home", "variable", "file", "none"] if "FEDRAY_ALL_SEEDS" in os.environ else ["home"],
)
def test_a_user_s_token_opens_another_cluster_before_and_after_a_local_one(
    place: str, tmp_path: Path
) -> None:
    """And the token of the local cluster, which is another, does not."""
    token = "0123456789abcdef" * 4
    file = tmp_path / (".ray/auth_token" if place == "home" else "token")
    file.parent.mkdir(exist_ok=True)
    if place in ("file", "home"):
        file.write_text(token)
    given = {
        "variable": {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token},
        "file": {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(file)},
        "home": {"RAY_AUTH_MODE": "token"},
        "none": {},
    }[place]
    *found, refused = result_of(JOINED_AFTERWARDS, token, HOME=str(tmp_path), **given)
    assert found == [1, 2, 64, False]
    assert place == "none" or "cannot be joined" in refused
