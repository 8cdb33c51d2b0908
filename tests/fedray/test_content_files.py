"""Files that the tables of a trace name: only those in the trace are read, and only if they are regular and small."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedray.base.errors import InputError, ScenarioError
from fedray.base.kept import cache_folder
from fedray.scenario import Scenario
from fedray.scenario.availability import CustomAvailability
from fedray.scenario.python_file import function_in
from fedray.scenario.tasks import CustomTask

CODE = b"def runs(*arguments):\n    return 31415\n"
DIGEST = hashlib.sha256(CODE).hexdigest()
Table = dict[str, Any]


NEEDED = {"population": {"devices": 1000}, "rounds": {"count": 2, "report_goal": 100}}


def recorded(folder: Path, **tables: Table) -> Scenario:
    return Scenario.from_tables({**NEEDED, **tables}, directory=folder, is_recorded=True)


def own_scenario(folder: Path) -> Scenario:
    table = {"model": "custom", "file": "own.py"}
    return Scenario.from_tables({**NEEDED, "availability": table}, directory=folder)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """The folder of a trace, with files outside."""
    (tmp_path / "own.py").write_bytes(CODE)
    np.save(tmp_path / "own.npy", np.eye(2))
    (tmp_path / "trace").mkdir()
    return tmp_path / "trace"


def trusted_after(folder: Path, own: Table, theirs: Table, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the table of a stranger's trace runs without trust once the user ran their own table, with the same code."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    file = {"model": "custom", "file": "own.py", "sha256": DIGEST}
    (folder / "trace" / f"{DIGEST}.py").write_bytes(CODE)
    mine = Scenario.from_tables({**NEEDED, "availability": {**file, **own}}, directory=folder)
    mine.availability.remember()  # pyright: ignore[reportAttributeAccessIssue]
    foreign = recorded(folder / "trace", availability={**file, **theirs})
    try:
        foreign.demand_trust()
    except InputError:
        return False
    return True


@pytest.mark.parametrize(
    ("own", "theirs", "is_trusted"),
    [
        ({}, {}, True),
        ({}, {"file": "renamed.py"}, True),
        ({"parameters": {"a": 1, "b": "x"}}, {"parameters": {"b": "x", "a": 1}}, True),
        ({}, {"function": "system"}, False),
        ({"parameters": {"a": 1}}, {"parameters": {"a": 2}}, False),
        ({"parameters": {"a": 1}}, {}, False),
    ],
)
def test_trust_covers_the_function_and_the_parameters(
    own: Table, theirs: Table, is_trusted: bool, trace: Path, monkeypatch
) -> None:
    assert trusted_after(trace.parent, own, theirs, monkeypatch) is is_trusted


def test_trust_in_availability_is_no_trust_in_a_task_with_the_same_code(
    trace: Path, monkeypatch
) -> None:
    assert trusted_after(trace.parent, {}, {}, monkeypatch)
    task = {"kind": "custom", "file": "own.py", "sha256": DIGEST}
    with pytest.raises(InputError, match="trust_code=True"):
        recorded(trace, training={"task": task}).demand_trust_of_training()


@pytest.mark.parametrize("place", ["cache", "./cache", "../cache", "", "~/cache"])
def test_a_relative_cache_is_ignored(place: str, tmp_path: Path, monkeypatch) -> None:
    """As the XDG specification says: a downloaded folder could bring a cache with its own trust."""
    monkeypatch.setenv("XDG_CACHE_HOME", place)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder("trusted") == tmp_path / ".cache" / "fedray" / "trusted"


def test_the_content_in_a_trace_is_read(trace: Path) -> None:
    (trace / f"{DIGEST}.py").write_bytes(CODE)
    table = {"model": "custom", "file": "own.py", "sha256": DIGEST}
    assert recorded(trace, availability=table).availability.content == CODE  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("file", ["../own.py", "{outside}/own.py"])
@pytest.mark.parametrize("sha256", ["", DIGEST, "0" * 64])
def test_a_path_out_of_a_trace_is_not_followed(file: str, sha256: str, trace: Path) -> None:
    table = {"model": "custom", "file": file.format(outside=trace.parent), "sha256": sha256}
    with pytest.raises(ScenarioError, match=r"trace/[0-9a-f]*\.py' \(No such file") as caught:
        recorded(trace, availability=table)
    assert sha256 == DIGEST or DIGEST not in str(caught.value)


def test_a_matrix_out_of_a_trace_is_not_read(trace: Path) -> None:
    mechanism = {"kind": "matrix", "file": str(trace.parent / "own.npy")}
    with pytest.raises(ScenarioError, match=r"trace/\.npy' cannot be read"):
        recorded(trace, privacy={"noise_multiplier": 1.0, "mechanism": mechanism})


SPECIAL: dict[str, tuple[Callable[[Path], Any], str]] = {
    "pipe": (os.mkfifo, "it is a pipe"),
    "device": (lambda file: file.symlink_to("/dev/zero"), "it (leads out of|is a device)"),
    "link": (lambda file: file.symlink_to("../own.py"), "it leads out of"),
    "large": (lambda file: file.write_bytes(bytes(1 << 21)), "it has more than 1,048,576 bytes"),
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_a_content_file_that_is_not_regular_inside_and_small_is_one_line(
    kind: str, trace: Path
) -> None:
    put, reason = SPECIAL[kind]
    put(trace / f"{DIGEST}.py")
    with pytest.raises(ScenarioError, match=reason):
        recorded(trace, availability={"model": "custom", "file": "own.py", "sha256": DIGEST})
    if kind != "link":  # a user may name a link of their own
        put(trace / "own.py")
        with pytest.raises(ScenarioError, match=reason):
            own_scenario(trace)


@pytest.mark.parametrize("nested", ["signs", "sums"])
def test_python_that_is_nested_beyond_the_parser_is_one_line(nested: str, trace: Path) -> None:
    code = {"signs": b"x = " + b"-" * 200_000 + b"1", "sums": b"x = 1" + b" + 1" * 100_000}[nested]
    (trace / "own.py").write_bytes(code)
    with pytest.raises(ScenarioError, match="is not a readable Python file"):
        own_scenario(trace)
    digest = hashlib.sha256(code).hexdigest()
    (trace / f"{digest}.py").write_bytes(code)
    kept = recorded(trace, availability={"model": "custom", "file": "own.py", "sha256": digest})
    assert isinstance(kept.availability, CustomAvailability)
    # As after trust_code=True.
    with pytest.raises(InputError, match="is not a readable Python file"):
        function_in(kept.availability, "runs")


@pytest.mark.parametrize(
    "override",
    [
        "training.task.file=own.py",
        "training.file=own.py",
        'training.task={kind="custom", file="own.py"}',
    ],
)
def test_an_override_that_names_the_recorded_path_reads_the_file_as_it_is_now(
    override: str, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (trace / f"{DIGEST}.py").write_bytes(CODE)
    task = {"kind": "custom", "file": "own.py", "sha256": DIGEST}
    old = recorded(trace, training={"task": task})
    monkeypatch.chdir(trace.parent)
    Path("own.py").write_bytes(b"# edited\n" + CODE)
    assert old.with_overrides("training.seed=7").training.task == old.training.task
    new = old.with_overrides(override).training.task
    assert isinstance(new, CustomTask)
    assert new.content == b"# edited\n" + CODE
    # Whoever gives the digest too wants exactly that content.
    both = old.with_overrides("training.task.file=own.py", f"training.task.sha256={DIGEST}")
    assert both.training.task == old.training.task


@pytest.mark.parametrize(
    "override", ["availability.file=new.py", 'availability={model="custom", file="new.py"}']
)
def test_a_path_in_an_override_is_relative_to_the_working_directory(
    override: str, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (trace / "scenario.toml").write_text(
        "[population]\ndevices = 1000\n[rounds]\ncount = 2\nreport_goal = 100\n"
        '[availability]\nmodel = "custom"\nfile = "../own.py"\n'
    )
    monkeypatch.chdir(trace.parent)
    Path("new.py").write_bytes(b"# new\n" + CODE)
    for overrides, content in (([override], b"# new\n" + CODE), ([], CODE)):
        read = Scenario.from_toml("trace/scenario.toml", overrides).availability
        assert isinstance(read, CustomAvailability)
        assert read.content == content


def test_a_file_that_an_override_of_a_stored_scenario_names_is_not_the_stored_one(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan writes a scenario with the digest of its code, and the code beside it."""
    (trace / f"{DIGEST}.py").write_bytes(CODE)
    (trace / "scenario.toml").write_text(
        "[population]\ndevices = 1000\n[rounds]\ncount = 2\nreport_goal = 100\n"
        f'[availability]\nmodel = "custom"\nfile = "gone.py"\nsha256 = "{DIGEST}"\n'
    )
    monkeypatch.chdir(trace.parent)
    Path("new.py").write_bytes(b"# new\n" + CODE)
    read = Scenario.from_toml("trace/scenario.toml", ["availability . file = new.py"]).availability
    assert isinstance(read, CustomAvailability)
    assert read.content == b"# new\n" + CODE
