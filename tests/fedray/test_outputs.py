"""Outputs beside which other files lie, folders that all users write, and standard streams that take less than a command prints."""

import itertools
import json
import os
import random
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedray.audit.ledger import Ledger
from fedray.base import atomic
from fedray.base.atomic import is_taken, write_beside, write_output
from fedray.base.errors import InputError
from fedray.mechanisms.files import read_strategy, write_strategy
from fedray.mechanisms.matrix_files import Matrix
from fedray.trace.reader import Trace

ALL = "FEDRAY_ALL_SEEDS" in os.environ
NOBODY = 65534


def test_a_matrix_is_found_by_each_name_of_its_mechanism(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "latest.json").symlink_to("made/m.json")
    matrix = Matrix.from_matrix(np.eye(3), "m.npy")
    write_strategy(matrix, tmp_path / "latest.json")
    assert read_strategy(tmp_path / "latest.json") == matrix
    assert read_strategy(tmp_path / "made" / "m.json") == matrix


def test_what_belongs_to_an_output_lies_beside_each_of_its_names(tmp_path: Path) -> None:
    """As the cost of private words, without which they would count as known for free."""
    (tmp_path / "store").mkdir()
    (tmp_path / "a.txt").symlink_to("b.txt")
    (tmp_path / "b.txt").symlink_to("store/c.txt")
    write_beside(tmp_path / "a.txt", lambda each: f"{each.name}.json", b"cost", "words")
    found = {str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*.json")}
    assert found == {"a.txt.json", "b.txt.json", "store/c.txt.json"}


def test_a_pipe_has_nothing_beside_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.json")
    with pytest.raises(InputError, match=r"m.json' cannot be written \(another file must lie"):
        write_strategy(Matrix.from_matrix(np.eye(3), "m.npy"), tmp_path / "m.json")
    assert [each.name for each in tmp_path.iterdir()] == ["m.json"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link away")
@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize("owner", ["another user", "own", "owner of the folder"])
def test_a_link_that_another_user_put_into_a_shared_folder_is_not_followed(
    kind: str, owner: str, tmp_path: Path
) -> None:
    shared, mine = tmp_path / "shared", tmp_path / "mine.txt"
    shared.mkdir()
    shared.chmod(0o1777)
    mine.write_text("keep")
    planted = shared / "page.html"
    reading = None
    if kind == "link":
        planted.symlink_to(mine)
    else:
        os.mkfifo(planted)
        reading = os.open(planted, os.O_RDONLY | os.O_NONBLOCK)
    if owner != "own":
        os.chown(planted, NOBODY, NOBODY, follow_symlinks=False)
    if owner == "owner of the folder":
        os.chown(shared, NOBODY, NOBODY)
    try:
        if owner == "another user":
            with pytest.raises(InputError, match="another user put it into a folder"):
                write_output(planted, b"new", "page")
        else:
            write_output(planted, b"new", "page")
        followed = owner != "another user"
        if reading is None:
            assert mine.read_text() == ("new" if followed else "keep")
        else:
            assert os.read(reading, 9) == (b"new" if followed else b"")
    finally:
        if reading is not None:
            os.close(reading)
    assert stat.S_IFMT(planted.lstat().st_mode) in (stat.S_IFLNK, stat.S_IFIFO)


def test_an_output_must_be_new_unless_nothing_is_lost(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    for name, target in (("dangling", "none"), ("link", "file"), ("loop", "loop")):
        (tmp_path / name).symlink_to(target)
    taken = {each.name: is_taken(each) for each in tmp_path.iterdir()}
    assert taken == {"pipe": False, "dangling": False, "file": True, "link": True, "loop": True}
    assert is_taken(tmp_path)
    assert not is_taken(tmp_path / "none")


def test_a_zero_byte_in_a_name_is_a_mistake_of_the_caller(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="zero byte"):
        write_output(tmp_path / "a\0b", b"", "page")


def test_lines_that_were_printed_stand_before_an_output_to_the_same_place(tmp_path: Path) -> None:
    """With `--page /dev/stdout > FILE`, opening the path again would overwrite the file."""
    program = (
        "import sys; from pathlib import Path; from fedray.base.atomic import write_output\n"
        "print('before'); write_output(Path('/dev/stdout'), b'page\\n', 'page'); print('after')"
    )
    with (tmp_path / "out").open("wb") as out:
        subprocess.run([sys.executable, "-c", program], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "before\npage\nafter\n"


def test_links_end_after_forty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "MOST_LINKS", 3)
    for number in range(3):
        (tmp_path / str(number)).symlink_to(str(number + 1))
    with pytest.raises(InputError, match="Too many levels of symbolic links"):
        write_output(tmp_path / "0", b"", "page")
    write_output(tmp_path / "1", b"x", "page")
    assert (tmp_path / "3").read_bytes() == b"x"


SETTING = ["--rounds", "8", "--min-sep", "2", "--max-participations", "2"]
PRINTING = {
    "audit --json": ["audit", "TRACE", "--json"],
    "audit --verbose": ["audit", "TRACE", "--verbose"],
    "mechanism": ["mechanism", "tree", *SETTING],
    "mechanism --json": ["mechanism", "tree", *SETTING, "--json"],
    "optimize": ["optimize", "tree", *SETTING],
    "status": ["status", "FOLDER"],
    "status --json": ["status", "FOLDER", "--json"],
    "schema": ["schema"],
    "init --list": ["init", "--list"],
    "budget": ["budget", "LEDGER"],
    "--help": ["--help"],
    "--version": ["--version"],
}
"""Commands that print on standard output only."""
STREAMS = ("full", "full at once", "closed", "stderr full")
STREAM_CASES = [*itertools.product(PRINTING, STREAMS, ("1", ""))]
DRAWN_CASES = STREAM_CASES if ALL else random.Random(2).sample(STREAM_CASES, 6)


@pytest.fixture(scope="module")
def printed_of(tmp_path_factory: pytest.TempPathFactory, shared_trace_of: Any) -> dict[str, str]:
    """Paths in the command lines."""
    trace = shared_trace_of([[0, 3], [1, 2], [2, 4]], 5)
    ledger = tmp_path_factory.mktemp("printed") / "ledger"
    Ledger.create(ledger, 2.0, 1e-6, "quarter", "device")
    return {"TRACE": str(trace.path), "LEDGER": str(ledger), "FOLDER": str(trace.path.parent)}


def run(line: list[str], unbuffered: str, most_bytes: int | None = None, **streams: Any) -> Any:
    """Runs a command whose files may have so many bytes. The system then takes only the beginning of
    a text, as on a disk that fills."""
    limited = [] if most_bytes is None else ["prlimit", f"--fsize={most_bytes}"]
    return subprocess.run(
        [*limited, sys.executable, "-m", "fedray", *line],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered, "PYTHONDONTWRITEBYTECODE": "1"},
        timeout=300,
        check=False,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},
    )


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prlimit") is None, reason="needs prlimit")
@pytest.mark.parametrize(("command", "stream", "unbuffered"), DRAWN_CASES)
def test_a_command_whose_output_is_cut_does_not_end_with_0(
    command: str, stream: str, unbuffered: str, printed_of: dict[str, str], tmp_path: Path
) -> None:
    line = [printed_of.get(each, each) for each in PRINTING[command]]
    whole = run(line, "")
    assert (whole.returncode, whole.stderr) == (0, b"")
    if stream == "closed":
        reading, writing = os.pipe()
        os.close(reading)
        done = run(line, unbuffered, stdout=writing)
        os.close(writing)
        assert (done.returncode, done.stderr) == (141, b"")
        return
    with (tmp_path / "file").open("wb") as file:
        if stream == "stderr full":
            # Nothing was to be printed there, so nothing is lost.
            done = run(line, unbuffered, 0, stderr=file)
            assert (done.returncode, done.stdout) == (0, whole.stdout)
            return
        taken = 0 if stream == "full at once" else len(whole.stdout) // 2
        done = run(line, unbuffered, taken, stdout=file)
    assert done.returncode == 1
    assert done.stderr.startswith(b"fedray: standard output or an input failed (")
    assert done.stderr.count(b"\n") == 1
    assert (tmp_path / "file").read_bytes() == whole.stdout[:taken]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prlimit") is None, reason="needs prlimit")
@pytest.mark.parametrize("unbuffered", ["1", ""])
def test_a_message_that_is_lost_does_not_end_a_run_but_shows_in_its_exit_code(
    unbuffered: str, small: Any, tmp_path: Path
) -> None:
    """The files of the run are smaller than the limit, which standard error has reached."""
    (tmp_path / "s.toml").write_text(small("rounds.count=3").to_toml())
    limit = 64 << 20
    with (tmp_path / "stderr").open("wb") as file:
        file.seek(limit)
        line = ["run", str(tmp_path / "s.toml"), "--out", str(tmp_path / "t"), "--json"]
        done = run(line, unbuffered, limit, stderr=file)
    assert (tmp_path / "stderr").stat().st_size == 0
    assert done.returncode == 1
    assert json.loads(done.stdout)["digest"] == Trace.open(tmp_path / "t").digest


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.parametrize("unbuffered", ["1", ""])
def test_a_full_disk_under_the_output_is_told(
    unbuffered: str, printed_of: dict[str, str], tmp_path: Path
) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this root cannot mount")
    try:
        with (tmp_path / "a.json").open("wb") as file:
            done = run(["audit", printed_of["TRACE"], "--json"], unbuffered, stdout=file)
        assert (tmp_path / "a.json").stat().st_size == 4096
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
    assert b"No space left on device" in done.stderr


CLOSING = """
import errno, os
from fedray.commands.frame.exit_codes import exit_code
close = os.close
def refuse(descriptor):
    close(descriptor)
    raise OSError(errno.EDQUOT, "Disk quota exceeded")
os.close = refuse
code = exit_code(lambda: print("whole"))
os.close = close
os.fstat(1)
raise SystemExit(code)
"""


def test_an_error_that_shows_when_the_output_is_closed_is_told() -> None:
    """As of a network file system. The command's own descriptor stays open."""
    done = subprocess.run([sys.executable, "-c", CLOSING], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"whole\n")
    assert b"Disk quota exceeded" in done.stderr
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_a_new_content_keeps_the_permissions_of_a_file(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "statement.md"
    file.write_bytes(b"old")
    file.chmod(mode)
    write_output(file, b"new", "statement")
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"new", mode)
