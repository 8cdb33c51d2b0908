"""The steps of deploy/Dockerfile, run without Docker: in a directory in place of the image's root,
and with a Python environment in place of the image's.

Three things differ from `docker build`. FROM is not run: the environment has the dependencies
already, those of the tests, and no Ray image. So pip installs fedray alone (`--no-deps`,
`--no-build-isolation`, no index), and a conflict with what Ray's image holds is not seen. The user
is the one who runs the tests, so that ownership (`--chown`) is not tested.
"""

import fnmatch
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

from fedray.trace.reader import Trace

pytestmark = pytest.mark.outside

ROOT = Path(__file__).resolve().parents[2]
IMAGE_HOME = "/home/ray"


def steps_of(dockerfile: Path) -> list[tuple[str, str]]:
    """(instruction, the rest of its line) of every step, in order."""
    lines = re.sub(r"\\\n\s*", "", dockerfile.read_text()).splitlines()
    steps = [line.partition(" ") for line in lines if line and not line.startswith("#")]
    return [(instruction, rest) for instruction, _, rest in steps]


class Image:
    """What the steps made so far.

    root: stands for the image's `/`.
    where: the working directory, in the image's terms.
    environment: variables of the commands; their `pip` and `python` are those of the environment.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.where = Path("/")
        (root / IMAGE_HOME[1:]).mkdir(parents=True)
        python = root / "python"
        venv.create(python, symlinks=True)
        site = next((python / "lib").glob("python*/site-packages"))
        # What stands in a .pth file comes after the environment's own packages.
        ours = [path for path in sys.path if path.endswith("site-packages")]
        (site / "dependencies.pth").write_text("\n".join(ours) + "\n")
        pip = python / "bin" / "pip"
        pip.write_text(f'#!/bin/sh\nexec "{python}/bin/python" -m pip "$@"\n')
        pip.chmod(0o755)
        self.environment = {
            "PATH": f"{python}/bin:/usr/bin:/bin",
            "HOME": str(root / IMAGE_HOME[1:]),
            "PIP_NO_DEPS": "1",
            "PIP_NO_INDEX": "1",
            # pip reads the variable as the option's value, and the option is "isolation".
            "PIP_NO_BUILD_ISOLATION": "0",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "OMP_NUM_THREADS": "1",
        }

    def path(self, inside: str) -> Path:
        """Where a path of the image lies; a relative one is below the working directory."""
        return self.root / str(self.where / inside)[1:]

    def step(self, instruction: str, rest: str) -> None:
        if instruction == "WORKDIR":
            self.where /= rest
            self.path(".").mkdir(parents=True, exist_ok=True)
        elif instruction == "COPY":
            *sources, target = [word for word in shlex.split(rest) if not word.startswith("--")]
            assert sources == ["."]
            copy_context(self.path(target))
        elif instruction == "RUN":
            self.run(rest.replace(IMAGE_HOME, f"{self.root}{IMAGE_HOME}"))
        else:
            assert instruction == "FROM", f"{instruction} is not known to this test"

    def run(self, command: str) -> str:
        """Runs a command of the image's shell in the working directory; gives what it prints."""
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=self.path("."), env=self.environment,
            capture_output=True, text=True, timeout=900, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout


def copy_context(target: Path) -> None:
    """Copies the repository without what .dockerignore names."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    # Docker's patterns are relative to the root; `**/` is any depth. No other form is used.
    anywhere = [pattern[3:] for pattern in patterns if pattern.startswith("**/")]
    assert all("/" not in pattern.removeprefix("**/") for pattern in patterns)

    def ignored(directory: str, names: list[str]) -> set[str]:
        here = patterns if Path(directory) == ROOT else []
        return {
            name
            for name in names
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in [*here, *anywhere])
        }

    shutil.copytree(ROOT, target, symlinks=True, ignore=ignored, dirs_exist_ok=True)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    made = Image(tmp_path_factory.mktemp("image"))
    for instruction, rest in steps_of(ROOT / "deploy" / "Dockerfile"):
        made.step(instruction, rest)
    return made


@pytest.mark.slow
def test_the_image_has_what_it_needs_and_no_runs_or_environments(image: Image) -> None:
    names = {path.name for path in image.path(".").iterdir()}
    assert {"fedray", "clients", "scenarios", "pyproject.toml", "constraints.txt"} <= names
    assert not names & {".git", ".venv", "runs", "tests", "docs", "site"}
    copied = [path for path in image.path(".").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in copied) < 20e6


@pytest.mark.slow
def test_fedray_is_installed_whole_wherever_the_image_is_used(image: Image) -> None:
    where = image.run("cd / && python -c 'import fedray.clients.shard as s; print(s.__file__)'")
    assert Path(where.strip()).is_relative_to(image.root / "python")
    version = image.run("cd / && fedray --version")
    expected = re.search(r'^__version__ = "(.+)"', (ROOT / "fedray/__init__.py").read_text(), re.M)
    assert expected is not None
    assert expected[1] in version


@pytest.mark.slow
@pytest.mark.skipif(
    "FEDRAY_ALL_MOMENTS" not in os.environ,
    reason="the image compiles every kernel anew, for half a minute; `make faults` waits for it",
)
def test_the_image_runs_the_quickstart_from_its_directory(image: Image) -> None:
    """As the job of rayjob.yaml does, but without a cluster, a model, and most devices."""
    small = "population.devices=20000 rounds.count=3 rounds.report_goal=100 training.enabled=false"
    options = " ".join(f"--set {value}" for value in small.split())
    run = "python -m fedray --quiet run scenarios/quickstart.toml --place backend=in-process --out trace"
    image.run(f"{run} {options}")
    assert Trace.open(image.path("trace")).run["ended"] == "completed"


def test_all_that_the_image_installs_is_an_extra_and_has_a_version() -> None:
    """pip takes a constraint that names no version for none, and a misspelt extra for a warning."""
    installs = [rest for step, rest in steps_of(ROOT / "deploy" / "Dockerfile") if "pip" in rest]
    extras = re.findall(r"\.\[([\w,]+)\]", installs[0])[0].split(",")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = project["optional-dependencies"]
    assert set(extras) <= set(known)
    pinned = {
        canonical(line.partition("==")[0])
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    }
    wanted = [*project["dependencies"]]
    for extra in {*extras, "simulate", "train", "figures"}:
        wanted += [name for name in known[extra] if not name.startswith("fedray[")]
    names = {canonical(re.split(r"[\[<>=]", requirement)[0]) for requirement in wanted}
    assert names <= pinned


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
