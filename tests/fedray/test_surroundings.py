"""Users who can write little, and environment variables that people set: the same digests, or one line."""

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from numba.core.caching import _CacheLocator

from fedray.base.errors import InputError, RunFailed
from fedray.base.kept import cache_folder
from fedray.runs.simulation import simulate
from fedray.runtime.local_ray import LONGEST, private_surroundings
from fedray.runtime.placement import Placement
from fedray.runtime.session import session

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
# The interpreter may lie in the home of root, which nobody may read: they are given leave to read everything, and to write nothing more.
AS_NOBODY = (
    "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
    "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search",
)  # fmt: skip


def fedray(
    *arguments: str, before: tuple[str, ...] = (), folder: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    return python(
        "-m", "fedray", "--quiet", *arguments, before=before, folder=folder, **environment
    )


def python(
    *arguments: str, before: tuple[str, ...] = (), folder: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*before, sys.executable, *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=500,
    )


@pytest.fixture
def unwritable(monkeypatch) -> None:
    """A home that cannot be written, whoever runs the tests."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/dev/null")


def test_caches_lie_in_the_home_or_in_a_private_folder(
    monkeypatch, unwritable, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    private = tmp_path / f"fedray-{os.geteuid()}"
    assert cache_folder("numba") == private / "numba"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder("numba") == tmp_path / "home" / ".cache" / "fedray" / "numba"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_folder("numba") == tmp_path / "x" / "fedray" / "numba"


@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", "TMPDIR", "HOME"])
def test_a_relative_folder_which_a_stranger_may_have_packed_is_no_cache(
    variable: str, monkeypatch, unwritable, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    monkeypatch.setenv(variable, "packed")
    assert cache_folder("trusted") == Path("/nonexistent/fedray/trusted")


@pytest.mark.parametrize("how", ["writable by others", "a link", "a file", "another user's"])
def test_a_folder_that_another_user_could_have_filled_is_no_cache(
    how: str, monkeypatch, unwritable, tmp_path: Path
) -> None:
    """numba unpickles what it finds there."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    private = tmp_path / f"fedray-{os.geteuid()}"
    match how:
        case "writable by others":
            private.mkdir()
            private.chmod(0o777)
        case "a link":
            (tmp_path / "other").mkdir()
            private.symlink_to(tmp_path / "other")
        case "a file":
            private.touch()
        case _:
            if os.geteuid():
                pytest.skip("only root can give a folder away")
            private.mkdir(mode=0o700)
            os.chown(private, NOBODY, NOBODY)
    assert cache_folder("numba") == Path("/nonexistent/fedray/numba")


def share_compiled(folder: Path, but: str) -> None:
    """Copies what was compiled beside the sources to where numba looks for it in `folder`, to save minutes.

    The functions of the file `but` are left out: the other user compiles and keeps them.
    """
    assert folder.parent.is_dir()
    for place, _, names in os.walk(ROOT / "fedray", followlinks=True):
        source = Path(place).parent
        target = folder / _CacheLocator.get_suitable_cache_subpath(str(source / "any.py"))
        for name in names:
            if name.endswith((".nbi", ".nbc")) and not name.startswith(but.removesuffix("py")):
                target.mkdir(parents=True, exist_ok=True)
                shutil.copy2(Path(place) / name, target)
    for each in (folder.parent, folder, *folder.rglob("*")):
        os.chown(each, NOBODY, NOBODY)


@pytest.mark.slow
@pytest.mark.outside
def test_whoever_can_write_neither_the_installation_nor_a_home_simulates(small) -> None:
    if os.geteuid() or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv, to become a user who owns nothing")
    folder = Path(mkdtemp(dir="/tmp"))  # pytest's own folders are closed to other users
    try:
        os.chown(folder, NOBODY, NOBODY)
        (folder / "s.toml").write_text(small("rounds.count=3").to_toml())

        def run(*arguments: str, start: Callable[..., Any] = fedray) -> None:
            where = {"before": AS_NOBODY, "folder": folder}
            done = start(*arguments, **where, HOME="/", TMPDIR=str(folder))
            assert (done.returncode, done.stderr) == (0, ""), done.stderr[-2000:]

        kept = folder / f"fedray-{NOBODY}" / "numba"
        run("-c", "import fedray.base.compiled", start=python)  # makes the private folder
        share_compiled(kept, but="census.py")
        run("run", "s.toml", "--out", "t")
        assert {each.stat().st_uid for each in kept.rglob("census.*.nbc")} == {NOBODY}
        run("verify", "t")
        run("population", "s.toml")
        run("plan", "s.toml", "--epsilon", "50", "--timers", "1", "--seeds", "2")
        run("run", "s.toml", "--out", "r", "--place", "backend=ray", "--place", "shards=2")
        digests = [json.loads((folder / each / "run.json").read_text())["digest"] for each in "tr"]
        assert digests[0] == digests[1]
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["TMPDIR", "RAY_TMPDIR"])
@pytest.mark.parametrize("folder", ["/tmp/é", "x", "", "/dev/null/none", "/tmp/" + "x" * LONGEST])
def test_a_folder_in_which_ray_cannot_start_is_named(name: str, folder: str, monkeypatch) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv(name, folder)
    with (
        pytest.raises(InputError, match=f"^{name}=.* must be a folder .*; unset it") as error,
        private_surroundings(),
    ):
        pass
    assert "\n" not in str(error.value)


def test_a_ray_that_cannot_start_is_one_line_with_the_remedy(monkeypatch) -> None:
    ray = pytest.importorskip("ray")

    def late(**options: Any) -> None:
        raise Exception("The current node timed out during startup.\nSee the log.")

    monkeypatch.setattr(ray, "init", late)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with (
        pytest.raises(RunFailed, match="backend=in-process$") as error,
        session(Placement(1, "ray")),
    ):
        pass
    assert "\n" not in str(error.value)
    assert "timed out during startup" in str(error.value)


SURROUNDINGS = """
import os, shutil, stat, sys
from pathlib import Path
from fedray.runtime.local_ray import LONGEST, SOCKET, private_surroundings
os.environ |= {"RAY_AUTH_MODE": "the user's", "RAY_AUTH_TOKEN": "the user's"}
parent = Path(sys.argv[1] + "x" * (LONGEST - len(sys.argv[1])))
os.environ["RAY_TMPDIR"] = str(parent)
try:
    with private_surroundings() as folder:
        assert len(f"{folder}{SOCKET.partition('/r')[2]}") == 107
        (private,) = parent.iterdir()
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
        assert folder.parent == private
        token = os.environ["RAY_AUTH_TOKEN"]
        assert (len(token), os.environ["RAY_AUTH_MODE"]) == (64, "token")
    assert list(parent.iterdir()) == []
    assert os.environ["RAY_AUTH_TOKEN"] == os.environ["RAY_AUTH_MODE"] == "the user's"
    with private_surroundings():
        assert os.environ["RAY_AUTH_TOKEN"] != token
finally:
    shutil.rmtree(parent)
"""


def test_the_longest_folder_is_accepted_and_has_a_private_one_for_as_long_as_the_cluster() -> None:
    """In a process of its own, because Ray reads the token of a cluster again."""
    subprocess.run([sys.executable, "-c", SURROUNDINGS, "/tmp/"], check=True)


@pytest.mark.slow
def test_a_run_that_needs_ray_is_refused_before_anything_starts(small, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(small().to_toml())
    where = ["--place", "backend=ray", "--place", "shards=2"]
    done = fedray("run", "s.toml", "--out", "t", *where, folder=tmp_path, TMPDIR="/tmp/é")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("fedray: TMPDIR=")
    assert [each.name for each in tmp_path.iterdir()] == ["s.toml"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value"), [("NUMBA_DISABLE_JIT", "1"), ("NUMBA_NUM_THREADS", "0")]
)
def test_variables_with_which_nothing_can_be_simulated_are_named(
    name: str, value: str, small, tmp_path: Path
) -> None:
    (tmp_path / "s.toml").write_text(small().to_toml())
    done = fedray("run", "s.toml", "--out", "t", folder=tmp_path, **{name: value})
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr[-1000:]
    assert "numba" in done.stderr.lower()


@pytest.mark.slow
def test_without_docstrings_commands_have_no_help_and_the_same_digest(
    small, tmp_path: Path
) -> None:
    scenario = small("rounds.count=3")
    (tmp_path / "s.toml").write_text(scenario.to_toml())
    variables = {"PYTHONOPTIMIZE": "2", "PYTHONWARNINGS": "error"}
    done = fedray("run", "s.toml", "--out", "t", "--json", folder=tmp_path, **variables)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[-1000:]
    here = simulate(scenario, Placement(1, "in-process"), tmp_path / "here")
    assert json.loads(done.stdout)["digest"] == here.digest


def test_a_configuration_of_numba_in_the_working_directory_is_refused(tmp_path: Path) -> None:
    """numba would load compiled code from the folder that it names."""
    (tmp_path / ".numba_config.yaml").write_text("cache_dir: theirs\n")
    program = "from fedray.base import compiled"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "has a .numba_config.yaml" in done.stderr
    assert not (tmp_path / "theirs").exists()


FUSED = """
import torch
from fedray.base import compiled
# A training on the CPU comes first, which makes torch choose a folder.
torch.func.grad(torch.sin)(torch.ones(()))
from fedray.server.learning.noise import compiled_step
compiled_step()
from torch._inductor.runtime.cache_dir_utils import cache_dir
print(cache_dir())
"""


@pytest.mark.slow
@pytest.mark.parametrize("given", ["", "own"])
def test_torch_keeps_compiled_code_where_only_this_user_writes(given: str, tmp_path: Path) -> None:
    """And not in the folder for temporary files, where another user can take its name first."""
    temporary, home = tmp_path / "tmp", tmp_path / "home"
    temporary.mkdir()
    (home / ".cache").mkdir(parents=True)
    own = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / given)} if given else {}
    done = python("-c", FUSED, folder=tmp_path, HOME=str(home), TMPDIR=str(temporary), **own)
    assert done.returncode == 0, done.stderr[-2000:]
    place = tmp_path / given if given else home / ".cache" / "fedray" / "torch"
    assert (Path(done.stdout.strip()), place.is_dir()) == (place, True)
    assert list(temporary.iterdir()) == []
