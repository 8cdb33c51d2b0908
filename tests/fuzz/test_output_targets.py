"""Options that name an output, drawn with targets: every target is written through, or stays with an error.

Nodes, pipes and links lie in private folders. The suite draws a few cases; with FEDRAY_ALL_SEEDS=1 it has all of them.
"""

import contextlib
import itertools
import os
import random
import select
import socket
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from fedray.audit.ledger import Ledger
from fedray.cli import app
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.trace.reader import Trace
from tests.conftest import small_scenario, write_trace, write_trained
from tests.trace.test_inspected import abandoned

ALL = "FEDRAY_ALL_SEEDS" in os.environ
IS_ROOT = os.geteuid() == 0
DRAWN, SEED = 24, 1
SETTING = ["--rounds", "8", "--min-sep", "2", "--max-participations", "2"]
COMMANDS = {
    "mechanism --page": ["mechanism", "tree", *SETTING, "--page", "OUT.html"],
    "mechanism --coefficients": ["mechanism", "identity", *SETTING, "--coefficients", "OUT.csv"],
    "mechanism --table": ["mechanism", "tree", *SETTING, "--table", "OUT.csv"],
    "optimize --out": ["optimize", "tree", *SETTING, "--out", "OUT.json"],
    "audit --page": ["audit", "TRACE", "--page", "OUT.html"],
    "audit --table": ["audit", "TRACE", "--table", "OUT.md"],
    "audit --events": ["audit", "TRACE", "--events", "OUT.json"],
    "audit --evidence csv": ["audit", "TRACE", "--claim", "CLAIM", "--evidence", "OUT.csv"],
    "audit --evidence": ["audit", "TRACE", "--claim", "CLAIM", "--evidence", "OUT.parquet"],
    "budget --statement": ["budget", "LEDGER", "--statement", "OUT.md"],
    "population --sessions": ["population", "small", "--devices", "100", "--days", "1", "--sessions", "OUT.parquet"],
    "answer --rows": ["answer", "ASKED", "--rows", "OUT.csv"],
    "answer --page": ["answer", "ASKED", "--page", "OUT.html"],
    "report --out": ["report", "TRACE", "--out", "OUT.html"],
    "import --propose-rounds": ["import", "LOG", "--inspect", "--propose-rounds", "OUT.csv"],
    "init": ["init", "OUT.toml"],
    "compare --page": ["compare", "MODEL", "OTHER", "--page", "OUT.html"],
}  # fmt: skip
"""Command lines, whose last argument is the output."""
NEW = ("audit --evidence csv", "audit --evidence", "import --propose-rounds", "init")
"""Commands that refuse a file that exists."""
NOT_RUN = {
    "answer --vocabulary": "another test has it, with the cost beside it",
    "audit-model --page": "trains first; as compare's",
    "compare-mechanisms --page": "trains first; as compare's",
    "fit-log --out": "fits for long; `write_output`, as all others",
    "fit-log --page": "the same",
    "fit-min-sep --runs": "an input",
    "audit --gauges": "`write_output`, as all others; tested with --until",
    "audit --history": "extended, and tested with --until",
    "audit --hold": "the same",
    "forecast --page": "takes long; as compare's",
    "forecast --in-force": "an input",
    "forecast --scenario": "an input",
    "stress --page": "takes long; as compare's",
}
"""Options with a file that no case has, and why."""
WRITTEN = ["plain", "file", "link", "links", "dangling", "pipe", "link to pipe", "descriptor", "descriptor of a file"]  # fmt: skip
REFUSED = ["loop", "socket", "directory"]
OF_ROOT = ["null", "link to null", "full", "full disk", "full disk behind a link"]
CASES = [*itertools.product(COMMANDS, [*WRITTEN, *REFUSED, *(OF_ROOT if IS_ROOT else [])])]
DRAWN_CASES = CASES if ALL else random.Random(SEED).sample(CASES, DRAWN)


def test_every_option_that_names_a_file_has_a_case_or_a_reason() -> None:
    group: Any = get_command(app)
    named = {
        f"{name} {option.opts[-1]}"
        for name, command in group.commands.items()
        for option in command.params
        # `--table` is the same option of every command that prints tables.
        if option.metavar == "FILE" and option.opts[-1] != "--table"
    }
    assert len(named) > 10
    assert named - {case.removesuffix(" csv") for case in COMMANDS} == NOT_RUN.keys()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What command lines name: traces, a claim that is broken, a ledger, a trained model."""
    folder = tmp_path_factory.mktemp("inputs")
    trace = Trace.open(write_trace(folder / "trace", [[0, 3], [1, 2], [2, 4]], 5))
    question = "values={kind='words',words=50,exponent=0.8,per_device=2.0},question={kind='open_histogram',most_keys=2}"
    asked = small_scenario(
        "population.devices=3000",
        "rounds={mode='upload-then-train',count=2,report_goal=50,uploads={window_hours=8.0,windows=2,schedule={kind='all'}}}",
        f"analytics={{{question},trust=[{{kind='server'}}],epsilon=2.0,delta=1e-6}}",
    )
    simulate(asked, Placement(1, "in-process"), folder / "asked")
    Ledger.create(folder / "ledger", 2.0, 1e-6, "quarter", "device")
    (folder / "claim.toml").write_text("mechanism = 'tree'\nnoise_multiplier = 5.0\nmin_sep = 3\n")
    for seed, name in enumerate(("model", "other")):
        settings = f"training.seed={seed}"
        write_trained(folder / name, trace, {"accuracy": 0.5}, settings, knows_trace=True)
    (folder / "log.csv").write_text(abandoned())
    names = {
        "LOG": "log.csv",
        "TRACE": "trace",
        "ASKED": "asked",
        "LEDGER": "ledger",
        "CLAIM": "claim.toml",
    }
    return {
        key: str(folder / name)
        for key, name in {**names, "MODEL": "model", "OTHER": "other"}.items()
    }


@pytest.fixture(scope="module")
def full_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system with room for names only."""
    place = tmp_path_factory.mktemp("full")
    command = ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this root cannot mount")
    try:
        (place / "rest").write_bytes(bytes(8192))
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@dataclass
class Target:
    """What the output's name leads to.

    name: path to give as the output.
    kept: paths that must not be replaced, with their inode and target.
    content: function that returns what was written.
    """

    name: str
    kept: list[Path]
    content: Callable[[], bytes]

    def __post_init__(self) -> None:
        self._before = [self._state(each) for each in self.kept]

    def check_kept(self) -> None:
        assert [self._state(each) for each in self.kept] == self._before

    @staticmethod
    def _state(path: Path) -> tuple[int, int, str]:
        found = path.lstat()
        return (
            found.st_ino,
            stat.S_IFMT(found.st_mode),
            os.readlink(path) if path.is_symlink() else "",
        )


@contextlib.contextmanager
def heard(descriptor: int) -> Iterator[Callable[[], bytes]]:
    """Within: a thread reads a pipe; the function ends it, and returns what it read."""
    parts, is_over = [], threading.Event()

    def read() -> None:
        while True:
            was_over = is_over.is_set()
            select.select([descriptor], [], [], 0.01)
            with contextlib.suppress(BlockingIOError):
                if part := os.read(descriptor, 1 << 16):
                    parts.append(part)
                    continue
            if was_over:
                return

    def end() -> bytes:
        is_over.set()
        thread.join()
        return b"".join(parts)

    os.set_blocking(descriptor, False)
    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield end
    finally:
        end()
        os.close(descriptor)


@contextlib.contextmanager
def target_of(kind: str, folder: Path, suffix: str, disk: Callable[[], Path]) -> Iterator[Target]:
    """Within: a target of a kind, whose name ends with a suffix."""
    name, real, other = (folder / f"{each}{suffix}" for each in ("out", "real", "other"))
    with contextlib.ExitStack() as stack:

        def pipe(path: Path) -> Callable[[], bytes]:
            os.mkfifo(path)
            return stack.enter_context(heard(os.open(path, os.O_RDONLY | os.O_NONBLOCK)))

        def node(path: Path, minor: int) -> None:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, minor))

        def opened(descriptor: int) -> str:
            # Names with a suffix lead to the descriptor, which has none.
            name.symlink_to(f"/dev/fd/{descriptor}")
            return str(name)

        match kind:
            case "plain":
                yield Target(str(name), [], name.read_bytes)
            case "file":
                name.write_text("before")
                yield Target(str(name), [], name.read_bytes)
            case "link" | "dangling":
                name.symlink_to(real.name)
                if kind == "link":
                    real.write_text("before")
                yield Target(str(name), [name], real.read_bytes)
            case "links":
                (folder / "sub").mkdir()
                name.symlink_to(other)
                other.symlink_to("sub/../sub/real")
                (folder / "sub" / "real").write_text("before")
                yield Target(str(name), [name, other], (folder / "sub" / "real").read_bytes)
            case "loop":
                name.symlink_to(other)
                other.symlink_to(name)
                yield Target(str(name), [name, other], bytes)
            case "pipe":
                yield Target(str(name), [], pipe(name))
            case "link to pipe":
                content = pipe(real)
                name.symlink_to(real)
                yield Target(str(name), [name, real], content)
            case "descriptor":
                reading, writing = os.pipe()
                content = stack.enter_context(heard(reading))
                stack.callback(os.close, writing)
                yield Target(opened(writing), [name], content)
            case "descriptor of a file":
                real.write_bytes(b"before ")
                file = stack.enter_context(real.open("ab"))
                yield Target(
                    opened(file.fileno()),
                    [name, real],
                    lambda: real.read_bytes().removeprefix(b"before "),
                )
            case "socket":
                with socket.socket(socket.AF_UNIX) as listening:
                    # The path of a socket is short, so it is bound from its folder.
                    here = os.open(".", os.O_RDONLY)
                    os.chdir(folder)
                    listening.bind(name.name)
                    os.fchdir(here)
                    os.close(here)
                    yield Target(str(name), [name], bytes)
            case "directory":
                name.mkdir()
                yield Target(str(name), [name], bytes)
            case "null" | "full":
                node(name, 3 if kind == "null" else 7)
                yield Target(str(name), [name], bytes)
            case "link to null":
                node(real, 3)
                name.symlink_to(real)
                yield Target(str(name), [name, real], bytes)
            case "full disk":
                yield Target(str(disk() / name.name), [], bytes)
            case "full disk behind a link":
                there = disk() / name.name
                name.symlink_to(there)
                yield Target(str(name), [name], bytes)
            case _:
                raise AssertionError(kind)


@pytest.fixture(scope="module")
def plain() -> dict[str, bytes]:
    """Content that a command writes to a new file, by the command."""
    return {}


@pytest.mark.parametrize(("command", "kind"), DRAWN_CASES)
def test_a_target_is_written_through_or_stays(
    command: str,
    kind: str,
    inputs: dict[str, str],
    plain: dict[str, bytes],
    fedray_command: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    *line, out = (inputs.get(each, each) for each in COMMANDS[command])
    # A claim that is broken ends with 1, whatever is written.
    done = int("--claim" in line)
    if command not in plain:
        file = tmp_path / out.replace("OUT", "first")
        code, _, err = fedray_command("--quiet", *line, str(file))
        assert code == done, err
        plain[command] = file.read_bytes()
        assert len(plain[command]) > 30
    folder = tmp_path / "targets"
    folder.mkdir()
    disk = lambda: request.getfixturevalue("full_disk")  # noqa: E731
    with target_of(kind, folder, out.removeprefix("OUT"), disk) as target:
        code, _, err = fedray_command("--quiet", *line, target.name)
        target.check_kept()
        if kind in ("file", "link", "links") and command in NEW:
            assert (code, target.content()) == (2, b"before")
        elif "full" in kind or kind in REFUSED:
            assert code == 2
            assert err.splitlines()[-1].startswith("fedray: ")
            assert not Path(target.name).is_file()
        else:
            assert code == done, err
            assert target.content() == (b"" if "null" in kind else plain[command])
    left = {each.name.partition(".")[0] for each in folder.rglob("*")}
    assert left <= {"out", "real", "other", "sub"}
    if "full disk" in kind:
        assert [each.name for each in disk().iterdir()] == ["rest"]
