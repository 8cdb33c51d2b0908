"""Import: what a log says is what the trace says, whatever its order, its format and the sizes at which files are cut."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedray.audit.assumptions import assumptions_of_import
from fedray.audit.auditing import audit_trace
from fedray.audit.participation import read_patterns
from fedray.base import quiet_duckdb
from fedray.base.errors import InputError, TraceCorrupt
from fedray.base.quiet_duckdb import connected
from fedray.imports.importer import REPEATED, import_log
from fedray.mechanisms.registry import BLT, Tree
from fedray.trace.imported import ImportedTrace, open_trace

NAMES = {
    "integers": lambda device: 3 * device + 2**63,
    "signed": lambda device: device - 4,
    "strings": lambda device: f"phone {device:03d}\u00e9",
    "bytes": lambda device: bytes([device, 0, 255 - device]),
    "categories": lambda device: f"c{device}",
}


def write_log(path: Path, names: list, rounds: list, kind: str) -> Path:
    if kind == "csv":
        lines = [
            "extra,dev,round",
            *(f'x,"{name}",{index}' for name, index in zip(names, rounds, strict=True)),
        ]
        path.with_suffix(".csv").write_text("\n".join(lines) + "\n")
        return path.with_suffix(".csv")
    types = {
        "integers": pa.uint64(),
        "signed": pa.int32(),
        "strings": pa.large_string(),
        "bytes": pa.binary(),
    }
    column = pa.array(names, types.get(kind, pa.string()))
    table = pa.table(
        {
            "dev": column.dictionary_encode() if kind == "categories" else column,
            "round": pa.array(rounds, pa.int64()),
        }
    )
    pq.write_table(table, path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def list_of_rounds(folder: Path, rounds: int) -> Path:
    """A rounds file that lists 0 .. rounds-1."""
    (folder / "released.txt").write_text("".join(f"{index}\n" for index in range(rounds)))
    return folder / "released.txt"


def patterns_by_name(trace: ImportedTrace) -> dict[str, list[int]]:
    patterns = read_patterns(trace)
    ends = np.cumsum(patterns.counts)
    return {
        trace.name_of(int(device)): patterns.rounds[end - count : end].tolist()
        for device, count, end in zip(patterns.device_ids, patterns.counts, ends, strict=True)
    }


def shown(name: object) -> str:
    return name.hex() if isinstance(name, bytes) else str(name)


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 11)), min_size=1, max_size=120),
    st.sampled_from([*NAMES, "csv"]),
    st.integers(1, 9),
    st.integers(1, 7),
)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_an_imported_log_has_the_log_s_patterns(
    tmp_path_factory, rows, kind, part_rows, group
) -> None:
    """In any order, with repeated rows, for devices of any kind of name, however small the parts and groups are."""
    folder = tmp_path_factory.mktemp("import")
    name_of = NAMES.get(kind, NAMES["strings"])
    log = write_log(
        folder / "log", [name_of(device) for device, _ in rows], [index for _, index in rows], kind
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedray.imports.importer.PART_ROWS", part_rows)
        patch.setattr("fedray.imports.importer.NAMES_PER_GROUP", group)
        patch.setattr("fedray.trace.imported.NAMES_PER_GROUP", group)
        patch.setattr("fedray.imports.importer.BATCH_ROWS", 7)
        patch.setattr("fedray.imports.log_files.BATCH_ROWS", 7)
        trace = import_log(
            log,
            "dev",
            "round",
            None,
            folder / "trace",
            rounds_file=list_of_rounds(folder, 12),
            repeats="once",
        )
        expected = {
            shown(name_of(device)): sorted({i for d, i in rows if d == device})
            for device, _ in rows
        }
        assert patterns_by_name(trace) == expected
        trace.verify()
    repeated = sum(count - 1 for count in Counter(rows).values())
    assert [(each.reason, each.rows) for each in trace.left_out] == (
        [(REPEATED, repeated)] if repeated else []
    )
    assert trace.run["rows"] + repeated == trace.run["rows_read"] == len(rows)
    assert sorted(path.name for path in (folder / "trace").iterdir()) == [
        "devices.parquet", "log_rounds.parquet", "participations", "run.json",
    ]  # fmt: skip


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 10**18 - 1)), min_size=1, max_size=60),
    st.sampled_from(["each", "once"]),
    st.integers(1, 9),
)
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_ranks_and_repeats_are_what_counting_by_hand_gives(
    tmp_path_factory, rows, repeats, part_rows
) -> None:
    """Whatever numbers the log uses, ours are 0, 1, .. in their order; with each, a device has a round as often as the log."""
    folder = tmp_path_factory.mktemp("import")
    log = write_log(
        folder / "log",
        [f"d{device}" for device, _ in rows],
        [number for _, number in rows],
        "strings",
    )
    numbers = sorted({number for _, number in rows})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedray.imports.importer.PART_ROWS", part_rows)
        patch.setattr("fedray.imports.log_files.BATCH_ROWS", 7)
        patch.setattr("fedray.imports.importer.BATCH_ROWS", 7)
        trace = import_log(
            log, "dev", "round", None, folder / "trace", renumber=True, repeats=repeats
        )
        patch.setattr("fedray.imports.importer.BATCH_ROWS", 3)
        again = import_log(
            log, "dev", "round", None, folder / "again", renumber=True, repeats=repeats
        )
        assert (again.digest, again.run["parts"]) == (trace.digest, trace.run["parts"])
    expected = {
        f"d{device}": sorted(numbers.index(i) for d, i in rows if d == device) for device, _ in rows
    }
    if repeats == "once":
        expected = {name: sorted(set(rounds)) for name, rounds in expected.items()}
    assert patterns_by_name(trace) == expected
    assert trace.committed_rounds == len(numbers)
    assert [trace.round_label(index) for index in range(len(numbers))] == list(map(str, numbers))
    assert not trace.incompleteness
    trace.verify()


def test_an_import_is_audited_like_our_own_trace(trace_of, tmp_path: Path) -> None:
    patterns = [[0, 7, 15], [1, 9], [2], [3, 4, 5, 6], [8, 10, 11, 12, 13, 14, 16]]
    own = trace_of(patterns, 17)
    rows = [(device, index) for device, pattern in enumerate(patterns) for index in pattern]
    np.random.default_rng(0).shuffle(rows)
    log = write_log(
        tmp_path / "log",
        [f"d{device}" for device, _ in rows],
        [int(index) for _, index in rows],
        "strings",
    )
    imported = import_log(log, "dev", "round", 17, tmp_path / "imported")
    for strategy in (Tree(), BLT(theta=(0.7, 0.4), omega=(0.9, 0.5))):
        mine, other = (
            audit_trace(each, 2.0, 1e-8, strategy, show_devices=True) for each in (own, imported)
        )
        assert other.mechanisms[0].binding_device == f"d{mine.mechanisms[0].binding_device}"
        for name in ("observed", "observed_limits"):
            ours, theirs = getattr(mine.mechanisms[0], name), getattr(other.mechanisms[0], name)
            assert (ours.rho, ours.epsilon) == (theirs.rho, theirs.epsilon)
        assert other.device_privacy == mine.device_privacy
        assert other.frontier == mine.frontier


MALFORMED = {
    "no such device column": ("a,round\nx,1\n", "--column device='dev' is not a column"),
    "no such round column": ("dev,b\nx,1\n", "--column round='round' is not a column"),
    "negative round": (
        "dev,round\nx,1\ny,-3\n",
        "1 row with a negative round (such as device 'y', round '-3')",
    ),
    "round beyond": (
        "dev,round\nx,1\ny,5\nz,6\n",
        "2 rows with a round beyond rounds-1=4 (such as device 'y', round '5')",
    ),
    "huge round": (
        "dev,round\nx,99999999999999999999\n",
        "1 row with a round beyond rounds-1=4",
    ),
    "mixed types": (
        "dev,round\nx,1\ny,one\nz,2.5\n",
        "2 rows with a round that is not an integer (such as device 'y', round 'one')",
    ),
    "no device": (
        "dev,round\n,1\nx,2\n",
        "1 row without a device (such as device missing, round '1')",
    ),
    "no round": (
        "dev,round\nx,\nx,2\n",
        "1 row without a round (such as device 'x', round missing)",
    ),
    "no rows": ("dev,round\n", "has no participation (0 rows"),
    "empty file": ("", "it is empty; remove it"),
    "two columns with the same name": (
        "dev,dev,round\nx,y,1\n",
        "--column device='dev' is the name of 2 columns",
    ),
    "ragged": ("dev,round\nx,1\ny,2,3\n", "Expected 2 columns, got 3"),
    "ragged later": ("dev,round\n" + "x,1\n" * 10 + "y\n", "Expected 2 columns, got 1"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_logs_get_one_clear_line_and_leave_nothing(
    tmp_path: Path, case: str, fedray_command
) -> None:
    content, expected = MALFORMED[case]
    log, out = tmp_path / "log.csv", tmp_path / "out"
    log.write_text(content)
    code, stdout, stderr = fedray_command(
        "import",
        str(log),
        "--column",
        "device=dev",
        "--column",
        "round=round",
        "--rounds",
        "5",
        "--out",
        str(out),
    )
    assert (code, stdout) == (2, "")
    assert expected in stderr
    assert stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.csv"]


def test_rows_that_are_left_out_are_counted_and_named(tmp_path: Path, fedray_command) -> None:
    log = tmp_path / "log.csv"
    log.write_text("dev,round\nx,1\nx,1\n,2\ny,3\ny,-1\ny,-2\n")
    arguments = (
        "--column",
        "device=dev",
        "--column",
        "round=round",
        "--rounds",
        "logged",
        "--out",
        str(tmp_path / "t"),
    )
    code, stdout, _ = fedray_command(
        "import", str(log), *arguments, "--leave-out-invalid", "--repeats", "once", "--json"
    )
    assert code == 0
    document = json.loads(stdout)
    assert {each["reason"]: each["rows"] for each in document["left_out"]} == {
        "without a device": 1,
        "with a negative round": 2,
        REPEATED: 1,
    }
    assert (document["rows_read"], document["rows"], document["devices"]) == (6, 2, 2)
    trace = open_trace(tmp_path / "t")
    assert isinstance(trace, ImportedTrace)
    assert trace.incompleteness
    assert trace.incompleteness.endswith(
        "no claim about this trace can be confirmed: 2 rows with a negative round; 1 row without a device."
    )
    assert trace.incompleteness in [it.text for it in assumptions_of_import(trace)]
    code, stdout, _ = fedray_command(
        "audit", str(tmp_path / "t"), "--noise-multiplier", "2", "--json"
    )
    assert code == 0
    assert json.loads(stdout)["mechanisms"] == []  # a log does not say how noise was added


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1.5, 2.0]), "devices must be integers, strings or bytes"),
        (pa.array([True, False]), "devices must be integers, strings or bytes"),
    ],
)
def test_devices_of_other_types_are_refused(
    tmp_path: Path, column: pa.Array, expected: str
) -> None:
    pq.write_table(pa.table({"dev": column, "round": [0, 1]}), tmp_path / "log.parquet")
    with pytest.raises(InputError, match=expected):
        import_log(tmp_path / "log.parquet", "dev", "round", 5, tmp_path / "t")


@pytest.mark.parametrize("kind", [pa.uint64(), pa.int8(), pa.float64(), pa.string(), pa.float32()])
def test_rounds_of_any_type_that_holds_whole_numbers(tmp_path: Path, kind: pa.DataType) -> None:
    rounds = pa.array([4, 0, 3]).cast(kind)
    pq.write_table(pa.table({"dev": ["b", "a", "b"], "round": rounds}), tmp_path / "log.parquet")
    trace = import_log(
        tmp_path / "log.parquet", "dev", "round", None, tmp_path / "t", renumber=True
    )
    assert patterns_by_name(trace) == {"a": [0], "b": [1, 2]}
    assert [trace.round_label(index) for index in range(3)] == ["0", "3", "4"]


def test_a_directory_of_files_is_one_log(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    write_log(folder / "one", ["a", "b"], [0, 1], "strings")
    write_log(folder / "two", ["b", "a"], [3, 2], "strings")
    assert patterns_by_name(import_log(folder, "dev", "round", 4, tmp_path / "t")) == {
        "a": [0, 2],
        "b": [1, 3],
    }
    write_log(folder / "three", ["c"], [0], "csv")
    with pytest.raises(InputError, match="both Parquet and CSV files .*one.parquet.*three.csv"):
        import_log(folder, "dev", "round", 5, tmp_path / "u")


def test_an_output_whose_name_is_a_pattern_does_not_read_another_import_s_rows(
    tmp_path: Path,
) -> None:
    """DuckDB takes *, ? and [ in names of files for patterns; another import may be unfinished."""
    (tmp_path / "tz.partial").mkdir()
    other = pa.table({"device": ["z"], "round": pa.array([0], pa.int64())})
    pq.write_table(other, tmp_path / "tz.partial" / "staged.parquet")
    log = write_log(tmp_path / "log", ["a", "b"], [0, 1], "strings")
    for name in ("t*", "t?", "t[z]"):
        trace = import_log(log, "dev", "round", 2, tmp_path / name)
        assert patterns_by_name(trace) == {"a": [0], "b": [1]}


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """Sorting would go wrong on it, and rounds with it."""
    names = pa.array([b"\xff\xfe", b"ok"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 2, names.buffers())
    pq.write_table(pa.table({"dev": text, "round": [0, 1]}), tmp_path / "log.parquet")
    with pytest.raises(InputError, match="UTF8"):
        import_log(tmp_path / "log.parquet", "dev", "round", 5, tmp_path / "t")
    assert not (tmp_path / "t").exists()


def test_files_of_other_types_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    write_log(folder / "one", [12], [0], "integers")
    write_log(folder / "two", ["0012"], [1], "strings")
    with pytest.raises(InputError, match="convert all files to the same types"):
        import_log(folder, "dev", "round", 5, tmp_path / "t")


@pytest.mark.parametrize("memory", [-1, 0, 5])
def test_memory_that_makes_no_sense_is_refused(tmp_path: Path, memory: int) -> None:
    log = write_log(tmp_path / "log", ["a"], [0], "strings")
    with pytest.raises(InputError, match=f"memory_mebibytes={memory} must be from 64"):
        import_log(log, "dev", "round", 5, tmp_path / "t", memory_mebibytes=memory)


def test_an_import_that_lost_a_part_or_a_name_is_noticed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("fedray.imports.importer.PART_ROWS", 2)
    log = write_log(tmp_path / "log", ["a", "a", "b", "b", "c"], [0, 1, 0, 1, 0], "strings")
    trace = import_log(log, "dev", "round", 2, tmp_path / "t")
    document = json.loads((trace.path / "run.json").read_text())
    assert len(document["parts"]) > 1
    left_out = {"reason": "r", "rows": 1, "example": ["x"], "may_be_participation": True}
    changed = [
        ("rows of", {**document, "parts": document["parts"][:-1]}),
        ("left_out", {**document, "left_out": [{}]}),
        ("left_out", {**document, "left_out": [left_out]}),
        ("lacks packages", {k: value for k, value in document.items() if k != "packages"}),
    ]
    for expected, each in changed:
        (trace.path / "run.json").write_text(json.dumps(each))
        with pytest.raises(TraceCorrupt, match=expected):
            open_trace(trace.path, verify=False)
    (trace.path / "run.json").write_text(json.dumps(document))
    table = pq.read_table(trace.path / "devices.parquet")
    pq.write_table(table.take([1, 0, 2]), trace.path / "devices.parquet")
    with pytest.raises(TraceCorrupt, match="does not have the digest"):
        open_trace(trace.path).verify()
    with pytest.raises(TraceCorrupt, match="does not have the digest"):
        open_trace(trace.path).name_of(0)
    assert open_trace(trace.path, verify=False).name_of(0) == "b"
    (trace.path / "devices.parquet").unlink()
    with pytest.raises(TraceCorrupt, match=r"devices\.parquet is missing"):
        open_trace(trace.path)


def test_a_changed_import_is_noticed(tmp_path: Path) -> None:
    trace = import_log(
        write_log(tmp_path / "log", ["a", "b", "b"], [1, 0, 2], "strings"),
        "dev",
        "round",
        3,
        tmp_path / "t",
    )
    part = trace.path / trace.run["parts"][0]["file"]
    table = pq.read_table(part)
    pq.write_table(
        table.set_column(1, table.schema.field("round"), [pa.array([0, 1, 2], pa.uint32())]), part
    )
    with pytest.raises(TraceCorrupt, match="does not have the digest that run.json records"):
        read_patterns(open_trace(tmp_path / "t"))
    document = json.loads((trace.path / "run.json").read_text())
    (trace.path / "run.json").write_text(json.dumps({**document, "rounds": 2}))
    with pytest.raises(
        TraceCorrupt, match=r"log_rounds.parquet has 3 rows, but run.json records 2"
    ):
        read_patterns(open_trace(tmp_path / "t", verify=False))
    with pytest.raises(TraceCorrupt, match="the digest that it records of itself"):
        open_trace(tmp_path / "t")


@pytest.mark.parametrize("key", ["round_column", "where", "rows", "packages"])
def test_keys_of_run_json_have_their_types_even_unverified(tmp_path: Path, key: str) -> None:
    log = write_log(tmp_path / "log", ["a", "b"], [1, 0], "strings")
    trace = import_log(log, "dev", "round", 2, tmp_path / "t")
    for wrong in (None, 2.5):
        (trace.path / "run.json").write_text(json.dumps({**trace.run, key: wrong}))
        with pytest.raises(TraceCorrupt, match=f"lacks {key}, or has values of another type"):
            open_trace(tmp_path / "t", verify=False)


def test_duckdb_fetches_no_extension_from_the_network() -> None:
    with connected({}) as connection:
        names = ("autoinstall_known_extensions", "autoload_known_extensions")
        found = connection.sql(
            f"SELECT {', '.join(f'current_setting({name!r})' for name in names)}"
        )
        assert found.fetchall() == [(False, False)]


def test_an_import_opens_a_connection_once_for_all_queries_and_closes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new one takes as long as a query of a small log."""
    opened: list[str] = []
    closed = 0
    new = quiet_duckdb.new_connection

    class Noted:
        """A connection that notes that it is closed."""

        def __init__(self, settings: Mapping[str, Any]) -> None:
            opened.append(str(settings))
            self._connection = new(settings)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._connection, name)

        def close(self) -> None:
            nonlocal closed
            closed += 1
            self._connection.close()

    monkeypatch.setattr(quiet_duckdb, "new_connection", Noted)
    log = tmp_path / "log.csv"
    log.write_text("dev,round\na,0\nb,1\na,2\n")
    import_log(log, "dev", "round", 3, tmp_path / "t", repeats="refuse")
    assert len(opened) == len(set(opened)) == closed > 0
