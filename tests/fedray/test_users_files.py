"""What a user has is not lost, what is somebody else's is not run, and no input or output ends in a traceback."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from fedray.audit.claims import read_claim
from fedray.base.atomic import whole_directory
from fedray.base.errors import InputError, ScenarioError, one_line, shown
from fedray.base.parsing import parse_toml
from fedray.mechanisms.files import read_strategy, write_strategy
from fedray.mechanisms.matrix_files import Matrix
from fedray.report.page import write_page
from fedray.runs.simulation import check_memory
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.trace.partial import new_directory

CODE = (
    "import numpy as np\ndef runs(device_ids, low, high, seed):\n    raise SystemExit('executed')\n"
)
CUSTOM = 'name = "s"\n[population]\ndevices = 20000\n[rounds]\ncount = 6\nreport_goal = 200\n[training]\nenabled = false\n[availability]\nmodel = "custom"\nfile = "mine.py"\n'  # fmt: skip


def one_error(err: str) -> str:
    """The error, which is the last line; what `run` says before it of its supply of devices, and of compiling after a checkout, is none."""
    *before, last = err.splitlines()
    assert all(line.startswith(("supply ", "compiling ")) for line in before)
    assert last.startswith("fedray: ")
    return last


@pytest.fixture
def scenario(tmp_path: Path, small) -> Path:
    (tmp_path / "s.toml").write_text(small().to_toml())
    return tmp_path / "s.toml"


@pytest.mark.parametrize("place", ["/dev/zero", "/dev/urandom"])
def test_an_endless_file_is_refused(place: str, fedray_command, tmp_path: Path) -> None:
    code, _, err = fedray_command("run", place, "--out", str(tmp_path / "t"))
    assert code == 2
    assert "more than 4,194,304 bytes" in one_error(err)
    for read in (read_claim, read_strategy):
        with pytest.raises(InputError, match="more than 4,194,304 bytes"):
            read(place)


def test_a_pipe_may_hold_a_scenario(scenario: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, scenario.read_bytes())
    os.close(writing)
    assert Scenario.from_toml(f"/dev/fd/{reading}") == Scenario.from_toml(scenario)
    os.close(reading)


def test_only_the_first_of_many_problems_are_listed(scenario: Path) -> None:
    many = "".join(f"key{place} = 1\n" for place in range(30_000))
    scenario.write_text(many + scenario.read_text())
    with pytest.raises(InputError, match="29,950 more problems are not listed$") as caught:
        Scenario.from_toml(scenario)
    assert len(caught.value.problems) == 50


@pytest.mark.parametrize(
    "shape", ["{key} = 1\n{rest}", "{rest}\n[{key}]\n", "{rest}\n[[ {key} ]]\n"]
)
@pytest.mark.parametrize("part", ["a", '"x y\\""', "'.'", "1 "])
def test_a_key_of_many_parts_is_refused_before_it_is_parsed(
    part: str, shape: str, scenario: Path
) -> None:
    rest = scenario.read_text()
    scenario.write_text(shape.format(key=".".join([part] * 20_000), rest=rest))
    with pytest.raises(InputError, match="a key of more than 32 parts"):
        Scenario.from_toml(scenario)
    assert parse_toml(shape.format(key=".".join([part] * 32), rest=""))


def test_devices_that_join_need_memory(small, monkeypatch) -> None:
    monkeypatch.setattr("os.sysconf", {"SC_PHYS_PAGES": 1 << 22, "SC_PAGE_SIZE": 1 << 12}.get)
    with pytest.raises(InputError, match=r"population.joins_per_day=1000000000.0 needs 37 GiB"):
        check_memory(small("population.joins_per_day=1e9"), Placement())
    check_memory(small("population.joins_per_day=1e8"), Placement())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ("seed = " + "9" * 5000, "4300"),
        ("seed = 0x" + "f" * 9000, "an integer of 36,000 bits"),
        ("population = " + "{a = " * 900 + "1" + "}" * 900, "nested too deeply"),
        ('name = "' + "x" * 100_000 + '"', "..."),
        ("seed = [" + "1, " * 50_000 + "]", "..."),
        (
            "[rounds]\ncount = 1\nreport_goal = 1\n[population]\ndevices = 9\n"
            + "x" * 100_000
            + " = 1",
            "xxx...xxx",
        ),
        ("seed = 1\nseed = 2", "not valid TOML"),
        ("name = '\\ud800'", ""),
    ],
)
def test_hostile_scenarios_get_one_short_line(
    fedray_command, tmp_path: Path, text: str, says: str
) -> None:
    (tmp_path / "s.toml").write_text(text)
    code, out, err = fedray_command("run", str(tmp_path / "s.toml"))
    assert (code, out) == (2, "")
    lines = err.splitlines()  # one for each mistake
    assert all(line.startswith("fedray: ") and len(line) < 500 for line in lines)
    assert says in lines[0] + lines[-1]


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("availability.model={a=1}", "availability.model = {'a': 1} is not one of"),
        ("availability.model=[]", "availability.model"),
        ("seed=" + "[" * 5000, "nested too deeply"),
        ("seed=" + "9" * 5000, "4300"),
        ("training.evaluate_every=0x" + "f" * 5000, "an integer of 20,000 bits"),
        ("privacy=1", "privacy"),
        ("privacy.mechanism=1", "privacy.mechanism"),
        ("x" * 5000, "must have the form table.key=value"),
        ("seed." + ".".join("x" * 2000) + "=1", "is a value, not a table"),
        ("rounds.count=" + "x" * 5000, "..."),
        ("rounds.count=\x1b[31m", "\\x1b[31m"),
    ],
)
def test_hostile_overrides_get_one_short_line(
    fedray_command, scenario: Path, override: str, says: str
) -> None:
    code, out, err = fedray_command("run", str(scenario), "--set", override)
    assert (code, out) == (2, "")
    assert says in one_error(err)
    assert len(err) < 1000
    with pytest.raises(ScenarioError):
        Scenario.from_toml(scenario).with_overrides(override)


@pytest.mark.parametrize("arguments", [["--out", "/"], ["--resume", "/"]])
def test_the_root_is_neither_output_nor_run(
    fedray_command, scenario: Path, arguments: list[str]
) -> None:
    code, _, err = fedray_command(
        "run", *([] if "--resume" in arguments else [str(scenario)]), *arguments
    )
    assert code == 2
    assert "has no name" in one_error(err)


def test_values_are_cut_at_80_characters_and_keep_their_end() -> None:
    assert shown("x" * 79) == repr("x" * 79)[:51] + "..." + repr("x" * 79)[-26:]
    assert len(shown(list(range(10_000)))) <= 80
    assert shown(10**5000) == "a int beyond printing"
    assert one_line(f"a {'b' * 500}\n c \x07") == f"a {'b' * 51}...{'b' * 26} c \\x07"
    path = "/" + "/".join(["a" * 40] * 6)
    assert one_line(path) == path


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"kind": "tree", "kind": "identity"}', "the key 'kind' occurs twice"),
        ("[" * 100_000, "nested too deeply"),
        ('{"kind": "toeplitz", "coefficients": [' + "1" * 5000 + "]}", "4300"),
        ('{"kind": "' + "x" * 50_000 + '"}', "..."),
        ("\ufeff{", "not valid JSON"),
    ],
)
def test_hostile_mechanism_files_get_one_short_line(
    fedray_command, tmp_path: Path, content: str, says: str
) -> None:
    (tmp_path / "m.json").write_text(content)
    settings = ["--rounds", "8", "--min-sep", "2", "--max-participations", "2"]
    code, out, err = fedray_command("mechanism", str(tmp_path / "m.json"), *settings)
    assert (code, out) == (2, "")
    assert says in one_error(err)
    assert len(err) < 1000


@pytest.mark.parametrize(
    "shape", ["(True, True)", "(2, True)", "(-1, -1)", "(2**40, 2**40)", "(2, 2)," + " " * 20_000]
)
def test_hostile_npy_headers_get_one_line(fedray_command, tmp_path: Path, shape: str) -> None:
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    (tmp_path / "m.npy").write_bytes(
        b"\x93NUMPY\x02\x00" + len(header).to_bytes(4, "little") + header + np.eye(2).tobytes()
    )
    code, _, err = fedray_command(
        "mechanism",
        str(tmp_path / "m.npy"),
        "--rounds",
        "2",
        "--min-sep",
        "1",
        "--max-participations",
        "1",
    )
    assert code == 2
    one_error(err)


def test_names_are_text_and_not_markup(capsys) -> None:
    from fedray.commands.frame.output import print_pieces
    from fedray.commands.frame.progress import progress_line
    from fedray.report.table import Table

    print_pieces([Table.headed("[/red] :smile:", [["a"], ["[bold]x[/nothing]"]])])
    assert "[bold]x[/nothing]" in (out := capsys.readouterr().out)
    assert "[/red] :smile:" in out
    with progress_line("[/red]") as status:
        status("[/blue]")


def fedray(arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["bash", "-c", arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )


@pytest.mark.slow
def test_full_closed_and_broken_output_have_no_traceback() -> None:
    command = f"{sys.executable} -m fedray"
    full = fedray(f"{command} schema > /dev/full")
    assert full.returncode == 1
    assert "No space left on device" in one_error(full.stderr)
    closed = fedray(f"{command} init --list >&-")
    assert (closed.returncode, closed.stderr) == (0, "")
    broken = fedray(f"(sleep 2; {command} schema; echo done $? >&2) | true")
    assert broken.stderr == "done 141\n"


def test_paths_that_are_no_text_are_told(fedray_command, trace_of, scenario: Path) -> None:
    """What Parquet's library cannot open is refused by its name; others are read, and printed escaped."""
    folder = Path(os.fsdecode(bytes(scenario.parent) + b"/t\xff"))
    for arguments in (
        ["audit", str(folder)],
        ["run", str(scenario), "--out", str(folder)],
        ["run", str(folder)],
    ):
        code, out, err = fedray_command(*arguments)
        assert (code, out) == (2, "")
        assert "t\\udcff" in one_error(err)
    assert not folder.with_name(f"{folder.name}.partial").exists()
    trace = trace_of([[0, 3], [1], [2, 4]], 5)
    code, out, err = fedray_command("report", str(trace.path), "--out", str(folder))
    assert (code, err) == (0, "")
    assert out.endswith("t\\udcff\n")
    assert folder.stat().st_size > 1000


def test_a_page_that_cannot_be_written_leaves_the_trace_and_its_figures(
    fedray_command, scenario: Path, monkeypatch
) -> None:
    """As on a disk that the trace has filled."""
    import fedray.runs.simulation as simulation
    from fedray.runtime.placement import Placement

    def refuse(*_: object, **__: object) -> Path:
        raise InputError(
            "report 'r' cannot be written (No space left on device); free space there and run again"
        )

    run = simulation.simulate
    monkeypatch.setattr("fedray.report.page.write_own_page", refuse)
    monkeypatch.setattr(
        simulation,
        "simulate",
        lambda value, _, out, tell, start=None: run(value, Placement(1, "in-process"), out, tell),
    )
    code, out, err = fedray_command("run", str(scenario), "--out", str(scenario.parent / "t"))
    assert code == 1
    assert "epsilon" in out
    assert "is complete but lacks a page" in err
    assert fedray_command("audit", str(scenario.parent / "t"))[0] == 0


def test_a_link_in_a_trace_is_replaced_and_not_followed(
    trace_of, fedray_command, tmp_path: Path
) -> None:
    """A trace may come from a stranger, and nobody has named its page."""
    trace = trace_of([[0, 3], [1], [2, 4]], 5)
    (tmp_path / "mine.txt").write_text("keep")
    (trace.path / "report.html").symlink_to(tmp_path / "mine.txt")
    assert fedray_command("report", str(trace.path), "--title", "Ours")[0] == 0
    assert (tmp_path / "mine.txt").read_text() == "keep"
    assert not (trace.path / "report.html").is_symlink()
    assert "<h1>Ours</h1>" in (trace.path / "report.html").read_text()


def test_names_beside_a_mechanism_follow_no_links(tmp_path: Path) -> None:
    """The new file of a rename and a matrix have names of fedray's own."""
    (tmp_path / "mine.txt").write_text("keep")
    matrix = Matrix.from_matrix(np.eye(3), "m.npy")
    own = f"m-{matrix.sha256[:16]}.npy"
    for name in (own, f"m.json.{os.getpid()}.new"):
        (tmp_path / name).symlink_to(tmp_path / "mine.txt")
    write_strategy(matrix, tmp_path / "m.json")
    assert (tmp_path / "mine.txt").read_text() == "keep"
    assert not (tmp_path / own).is_symlink()
    assert read_strategy(tmp_path / "m.json") == matrix


def test_a_new_directory_is_there_whole_or_not_and_removes_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "t.partial").mkdir()
    (tmp_path / "t.partial" / "mine.txt").write_text("keep")
    with pytest.raises(OSError, match="full"), whole_directory(tmp_path / "t") as new:
        (new / "file").write_text("")
        raise OSError("full")
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["t.partial", "mine.txt"]
    with whole_directory(tmp_path / "t") as new:
        (new / "file").write_text("")
    with pytest.raises(OSError, match="not empty"), whole_directory(tmp_path / "t"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t", "t.partial"]


def at_once(count: int, work: Callable[[int], object]) -> None:
    """In so many threads, started together; files are the kernel's, to which threads and processes are alike."""
    start = threading.Barrier(count)

    def run(number: int) -> object:
        start.wait()
        return [work(number) for _ in range(10)]

    with ThreadPoolExecutor(count) as pool:
        for each in [pool.submit(run, number) for number in range(count)]:
            each.result()


def test_four_audits_that_write_one_page_leave_one_whole_page(tmp_path: Path) -> None:
    pages = [f"<!doctype html>{number}" * 50_000 for number in range(4)]
    at_once(4, lambda number: write_page(pages[number], tmp_path / "report.html"))
    assert (tmp_path / "report.html").read_text() in pages
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_six_writers_of_one_mechanism_leave_a_whole_one(tmp_path: Path) -> None:
    made = [Matrix.from_matrix(np.eye(50) * (number + 1), "m.npy") for number in range(6)]

    def work(number: int) -> None:
        write_strategy(made[number], tmp_path / "m.json")
        assert read_strategy(tmp_path / "m.json") in made

    at_once(6, work)
    assert not list(tmp_path.glob(".*"))
    assert len(list(tmp_path.iterdir())) == 7


def test_where_nothing_can_be_written_nothing_is_left_and_one_line_is_told(
    fedray_command, trace_of, scenario: Path
) -> None:
    """/proc takes no files, not even of root's."""
    trace = trace_of([[0, 3], [1], [2, 4]], 5)
    (scenario.parent / "log.csv").write_text("dev,round\na,0\n")
    columns = ["--column", "device=dev", "--column", "round=round", "--rounds", "1"]
    for arguments in (
        ["run", str(scenario), "--out", "/proc/t"],
        ["report", str(trace.path), "--out", "/proc/page.html"],
        ["import", str(scenario.parent / "log.csv"), *columns, "--out", "/proc/t"],
        [
            "optimize",
            "tree",
            "--rounds",
            "8",
            "--min-sep",
            "2",
            "--max-participations",
            "2",
            "--out",
            "/proc/m.json",
        ],
    ):
        before = sorted(scenario.parent.rglob("*"))
        code, _, err = fedray_command(*arguments)
        assert code == 2
        assert "cannot be" in one_error(err)
        assert sorted(scenario.parent.rglob("*")) == before


@pytest.mark.parametrize("arguments", [("--help",), ("audit", "TRACE", "--json")])
def test_a_closed_pipe_is_not_taken_for_a_broken_claim(arguments, trace_of) -> None:
    path = trace_of([[0], [1]], 2).path
    given = [str(path) if each == "TRACE" else each for each in arguments]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "fedray", *given],
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_runs_that_start_in_one_second_have_names_of_their_own(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len({new_directory("small") for _ in range(20)}) == 20


def test_code_that_came_with_a_trace_is_not_run_unless_trusted(
    tmp_path: Path, fedray_command, monkeypatch
) -> None:
    """Code that the user has run before needs no other trust, wherever it comes from."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "s.toml").write_text(CUSTOM)
    own = Scenario.from_toml(tmp_path / "s.toml")  # one's own file, by its name
    digest = own.availability.sha256  # pyright: ignore[reportAttributeAccessIssue]
    assert own.with_overrides("seed=3").seed == 3
    trace = tmp_path / "trace"
    trace.mkdir()
    (trace / f"{digest}.py").write_text(CODE)
    (trace / "s.toml").write_text(own.to_toml())
    for command in (["run", "--out", str(tmp_path / "t")], ["canary"]):
        code, out, err = fedray_command(command[0], str(trace / "s.toml"), *command[1:])
        assert (code, out) == (2, "")
        assert f"(sha256 {digest})" in one_error(err)
        assert "--trust-code" in err
    with pytest.raises(InputError, match="trust_code=True"):
        Scenario.from_toml(trace / "s.toml")
    assert Scenario.from_toml(trace / "s.toml", trust_code=True) == own
    assert (
        Scenario.from_tables(own.to_tables(), directory=trace) == own
    )  # read, as an audit does, and not run
    own.availability.remember()  # pyright: ignore[reportAttributeAccessIssue]
    assert Scenario.from_toml(trace / "s.toml") == own
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "stranger"))
    with pytest.raises(InputError, match="trust_code=True"):
        Scenario.from_toml(trace / "s.toml")


def test_a_resumed_run_asks_before_it_runs_code(tmp_path: Path, monkeypatch) -> None:
    from fedray.runs import simulation

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "s.toml").write_text(CUSTOM)
    own = Scenario.from_toml(tmp_path / "s.toml")
    (tmp_path / "t.partial").mkdir()
    (tmp_path / "t.partial" / f"{own.availability.sha256}.py").write_text(CODE)  # pyright: ignore[reportAttributeAccessIssue]
    found = (
        tmp_path / "t.partial",
        {"scenario": own.to_tables(), "scenario_digest": own.digest},
        "run",
    )
    monkeypatch.setattr(simulation, "read_unfinished", lambda directory: found)
    with pytest.raises(InputError, match="trust_code=True"):
        simulation.resume(tmp_path / "t")
    for trusted in ({"trust_code": True}, {"scenario": own}):
        with pytest.raises(
            InputError, match="checkpoint"
        ) as caught:  # there is none: it came so far
            simulation.resume(tmp_path / "t", **trusted)
        assert not re.search("trust", str(caught.value))


def test_errors_of_scenarios_are_errors_of_input() -> None:
    assert issubclass(ScenarioError, InputError)
