"""Every file of a log's folder is read, is a known mark, or is named in a refusal; and what is read is what the files say."""

import bz2
import gzip
import hashlib
import json
import lzma
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from drawn_folders import SEEDS, Folder, check_outcomes, drawn_log, log_rows

from fedray.audit.assumptions import assumptions_of_import
from fedray.audit.auditing import audit_trace
from fedray.audit.claims import read_claim
from fedray.base.errors import InputError
from fedray.base.file_form import form_of, unpacked
from fedray.base.rounding import up
from fedray.imports.importer import import_log
from fedray.imports.inspected import inspect_log
from fedray.trace.imported import ImportedTrace


def rows_of(trace: ImportedTrace) -> set[tuple[str, int]]:
    return {
        (trace.name_of(int(device)), int(trace.round_label(int(index))))
        for part in trace.accepted()
        for device, index in zip(part.device_ids, part.rounds, strict=True)
    }


def outcome_of(folder: Folder, place: Path) -> str:
    """What came of an import: "read" as its twin reads it, or "refused" by name; anything else fails."""
    out = place / "out"
    try:
        trace = import_log(
            folder.path, "device", "round", None, out, renumber=True, where=folder.where
        )
    except InputError as error:
        message = str(error)
        assert "\n" not in message
        if not folder.refusals and not log_rows(folder):
            return "without a row"
        assert folder.refusals or folder.doubts, message
        assert any(name in message for name in folder.names), message
        assert not out.exists()
        return "refused"
    assert not folder.refusals
    assert rows_of(trace) == log_rows(folder)
    assert len(trace.run["files"]) == len(folder.files)
    return "read"


@pytest.mark.slow
@pytest.mark.parametrize("first", SEEDS)
def test_a_folder_is_read_as_pyarrow_reads_each_of_its_files_or_refused_by_name(
    first: int, tmp_path: Path
) -> None:
    check_outcomes(first, tmp_path, drawn_log, outcome_of)


# Inputs on which the answer is known: min-sep 10, but for one device that stands in the second file.
KEPT = [
    (f"dev{device:02}", number) for device in range(20) for number in range(device % 10, 40, 10)
]
BROKEN = [("bad", 3), ("bad", 8)]
CLAIM = """
mechanism = { kind = "blt", theta = [0.95, 0.7], omega = [0.1, 0.2] }
noise_multiplier = 6.0
rounds = 40
min_sep = 10
max_participations = 4
epsilon = 2.29
delta = 1e-8
"""


def as_csv(rows: list[tuple[Any, Any]], head: str = "device,round") -> bytes:
    return "\n".join([head, *(f"{device},{number}" for device, number in rows), ""]).encode()


def as_parquet(rows: list[tuple[Any, Any]]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"device": [d for d, _ in rows], "round": [r for _, r in rows]}), sink)
    return sink.getvalue().to_pybytes()


def written(folder: Path, contents: Mapping[str, bytes]) -> Path:
    """A folder of files by their names."""
    for name, content in contents.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return folder


def imported(log: Path, rounds: int | None = None, **options: Any) -> ImportedTrace:
    number = len(list(log.parent.glob("trace*")))
    place = log.parent / f"trace{number}"
    devices = options.pop("device_column", "device")
    return import_log(log, devices, "round", rounds, place, renumber=rounds is None, **options)


def standing(trace: ImportedTrace, claim: str = CLAIM) -> tuple[bool | None, int | None, str]:
    """Whether the claim holds, the min-sep, and epsilon to four decimals, rounded up."""
    (trace.path.parent / "claim.toml").write_text(claim)
    audit = audit_trace(trace, claim=read_claim(trace.path.parent / "claim.toml"))
    assert audit.supported_epsilon is not None
    return audit.claim_holds, audit.min_sep, up(audit.supported_epsilon)


@pytest.mark.parametrize("case", ["xz", "no suffix", "linked", "gzip in its name"])
def test_the_second_file_of_a_folder_counts(case: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    first, second = as_csv(KEPT), as_csv(BROKEN)
    if case == "xz":
        written(log, {"part-0.csv": first, "part-1.csv.xz": lzma.compress(second)})
    elif case == "no suffix":
        written(log, {"part-0.csv": first, "part-1": second})
    elif case == "linked":
        written(log / "2026-01", {"log.csv": first})
        written(tmp_path / "store", {"log.csv": second})
        (log / "2026-02").symlink_to("../store")
    else:
        written(log, {"part-0.parquet": as_parquet(KEPT), "part-1.parquet.gzip": as_parquet(BROKEN)})  # fmt: skip
    trace = imported(log, 40)
    assert trace.run["rows"] == 82
    assert standing(trace) == (False, 5, "2.4969")


@pytest.mark.parametrize("mark", [".ipynb_checkpoints/log-checkpoint.csv", "_temporary/0/part-1"])
def test_files_of_marks_are_no_data_and_are_named(mark: str, tmp_path: Path) -> None:
    log = written(tmp_path / "log", {"log.csv": as_csv(KEPT), mark: as_csv(BROKEN)})
    name = mark.split("/")[0]
    trace = imported(log, 40)
    assert standing(trace) == (True, 10, "2.2801")
    text = f"The log is complete: 1 file, 713 bytes; 1 skipped mark ({name!r})."
    assert text in [each.text for each in assumptions_of_import(trace)]
    assert trace.run["skipped_files"] == [name]
    notes = inspect_log(log, {"device": ["device"], "round": ["round"]}).notes
    assert f"the log is 1 file, 713 bytes; 1 skipped mark ({name!r})" in notes


def test_a_table_with_removed_rows_is_refused_and_its_present_state_is_read(tmp_path: Path) -> None:
    attempts = [(f"d{d:02}", r) for d in range(18) for r in range(d % 9, 60, 9)]
    kept = [each for each in attempts if each[1] % 3 != 2]
    gone = [each for each in attempts if each[1] % 3 == 2]
    contents = {"part-0.parquet": kept, "part-1.parquet": gone, "day=1/part-2.parquet": kept[:3]}
    table = written(tmp_path / "delta", {name: as_parquet(rows) for name, rows in contents.items()})
    written(table, {"_delta_log/0.json": b"{}"})
    for folder in (table, table / "day=1"):
        with pytest.raises(InputError, match="is a Delta table .*export the present state"):
            imported(folder)
    trace = imported(written(tmp_path / "current", {"part-0.parquet": as_parquet(kept)}))
    claim = CLAIM.replace("min_sep = 10", "min_sep = 9").replace("max_participations = 4", "max_participations = 7")  # fmt: skip
    claim = claim.replace("epsilon = 2.29\n", "").replace("rounds = 40\n", "")
    assert trace.committed_rounds == 40
    assert standing(trace, claim) == (False, 6, "3.4675")


@pytest.mark.parametrize(
    ("contents", "log", "says"),
    [
        ({"t/_delta_log/0": b"{}", "t/day=1/p": as_csv(KEPT)}, "today -> t/day=1", "a Delta table"),
        ({"t/_delta_log/0": b"{}", "t/day=1/p": as_csv(KEPT), "log/p": as_csv(BROKEN)}, "log/q -> ../t/day=1", "a Delta table"),
        ({"t/_delta_log/0": b"{}", "t/p": as_csv(KEPT), "log/p": as_csv(BROKEN)}, "log/q -> ../t/p", "a Delta table"),
        ({"t/_delta_log/0": b"{}", "t/p": as_csv(KEPT)}, "t/p", "a Delta table"),
        ({"t/_delta_log/0": b"{}", "t/Xy/p": as_csv(KEPT)}, "t/Xy", "a Delta table"),
        ({"t/_change_data/p": as_csv(KEPT)}, "t/_change_data", "the history of a Delta table"),
        ({"t/metadata/v1.metadata.json": b"", "t/data/0110/p": as_csv(KEPT)}, "t/data/0110", "an Iceberg table"),
        ({"t/_spark_metadata/0": b"v1", "t/p": as_csv(KEPT)}, "t", "the output of a Spark stream"),
        ({"t/_committed_1": b'{"added": ["p"], "removed": ["o"]}', "t/p": as_csv(KEPT)}, "t", "the output of transactions"),
        ({"t/_committed_1": b'{"added": ["p"], "removed": []}', "t/p": as_csv(KEPT), "t/o": as_csv(BROKEN)}, "t", "the output of transactions"),
        ({"t/_started_1": b"", "t/p": as_csv(KEPT)}, "t/p", "the output of transactions"),
        ({"t/base_1/p": as_csv(KEPT), "t/delta_1_1/p": as_csv(BROKEN)}, "t", "a transactional table of Hive"),
        ({"t/base_1/p": as_csv(KEPT), "t/delta_1_1/p": as_csv(BROKEN)}, "t/base_1", "a transactional table of Hive"),
    ],
)  # fmt: skip
def test_no_part_of_a_table_is_read(
    contents: Mapping[str, bytes], log: str, says: str, tmp_path: Path
) -> None:
    written(tmp_path, contents)
    link, _, target = log.partition(" -> ")
    if target:
        (tmp_path / link).symlink_to(target)
    place = tmp_path / (link.split("/")[0] if target else link)
    with pytest.raises(InputError, match=f"is {says} .*export the present state"):
        imported(place)


def test_folders_whose_files_all_count_are_read(tmp_path: Path) -> None:
    mark = b'{"added": ["p"], "removed": []}'
    names = {"_committed_1": mark, "_started_1": b"", "_SUCCESS": b"", "p": as_csv(BROKEN)}
    for name, contents in {"a": names, "b": {"base_1/p": as_csv(BROKEN)}}.items():
        log = written(tmp_path / name, contents)
        (log / "linked").mkdir()
        written(tmp_path / f"store {name}", {"1": as_csv(KEPT[:2]), "2": as_csv(KEPT[2:])})
        for each in "12":
            (log / "linked" / each).symlink_to(tmp_path / f"store {name}" / each)
        assert imported(log).run["rows"] == 82


def test_files_that_were_read_are_recorded_with_size_and_digest(tmp_path: Path) -> None:
    contents = {"b.csv": as_csv(BROKEN), "a/c": gzip.compress(as_csv(KEPT), mtime=0)}
    log = written(tmp_path / "log", {**contents, "_SUCCESS": b"", "sums.md5": b"x"})
    trace = imported(log, 40)
    assert trace.run["files"] == [
        {"name": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in sorted(contents.items())
    ]
    assert trace.run["skipped_files"] == ["_SUCCESS", "sums.md5"]


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    log = written(tmp_path / "log", {"a": as_csv(KEPT), "b": as_csv(BROKEN)})

    def change(text: str) -> None:
        (log / "a").write_bytes(as_csv(KEPT[1:]))

    with pytest.raises(InputError, match="'a' was changed while it was read"):
        imported(log, 40, on_progress=change)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (("a", "b"), "holds a file twice: 'a' and 'b'"),
        (("a", "sub/copy_of_a"), "holds a file twice: 'a' and 'sub/copy_of_a'"),
    ],
)
def test_a_copy_of_a_file_is_refused(names: tuple[str, ...], says: str, tmp_path: Path) -> None:
    log = written(tmp_path / "log", {**dict.fromkeys(names, as_csv(KEPT)), "c": as_csv(BROKEN)})
    with pytest.raises(InputError, match=says):
        imported(log, 40)


def test_equal_files_of_different_levels_and_files_without_rows_are_no_copies(
    tmp_path: Path,
) -> None:
    names = ("round=1/p.csv", "round=2/p.csv")
    log = written(tmp_path / "log", dict.fromkeys(names, b"device\na\nb\n"))
    assert rows_of(imported(log)) == {("a", 1), ("a", 2), ("b", 1), ("b", 2)}
    # The same levels in another order are the same rows.
    copy = dict.fromkeys(("day=1/round=2/p", "round=2/day=1/p"), b"device\na\n")
    with pytest.raises(InputError, match="holds a file twice"):
        imported(written(tmp_path / "copy", copy))
    empty = [as_csv([]), gzip.compress(as_csv([]), mtime=0)]
    for number, content in enumerate(empty):
        files = dict.fromkeys(("part-0", "part-1"), content)
        log = written(tmp_path / f"empty{number}", {**files, "part-2": as_csv(BROKEN)})
        assert rows_of(imported(log)) == set(BROKEN)
    files = dict.fromkeys(("part-0", "part-1"), as_parquet([]))
    log = written(tmp_path / "parquet", {**files, "part-2": as_parquet(BROKEN)})
    assert rows_of(imported(log)) == set(BROKEN)
    # A line of JSON Lines is a row, and so is one that ends with a carriage return.
    for number, content in enumerate((b'{"device": "a", "round": 1}', b"device,round\ra,1\r")):
        files = dict.fromkeys(("part-0", "part-1"), content)
        with pytest.raises(InputError, match="holds a file twice"):
            imported(written(tmp_path / f"row{number}", files))


def as_sqlite(file: Path) -> None:
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE log (device, round)")
    connection.commit()
    connection.close()


ROWS = pa.table({"device": ["a", "b"] * 500, "round": list(range(1000))})


@pytest.mark.parametrize(
    ("name", "write", "what", "command"),
    [
        ("x.orc", lambda file: orc.write_table(ROWS, str(file)), "an ORC file", "python -c"),
        ("x.feather", lambda file: feather.write_feather(ROWS, str(file)), "an Arrow", "python -c"),
        ("x.db", as_sqlite, "a SQLite database", "sqlite3 -header -csv x.db 'SELECT"),
        ("x.avro", lambda file: file.write_bytes(b"Obj\x01\0\0"), "an Avro file", "read_avro"),
        ("x.json", lambda file: file.write_text('[\n{"device": "a"}]'), "one JSON array", "jq -c"),
    ],
)
def test_other_formats_are_named_with_the_command_that_converts_them(
    name: str, write: Callable[[Path], None], what: str, command: str, tmp_path: Path
) -> None:
    write(tmp_path / name)
    with pytest.raises(InputError, match=f"it is {what}") as refused:
        imported(tmp_path / name)
    message = str(refused.value)
    assert command in message
    if "python -c" in message and "pyarrow" in message:
        words = shlex.split(message.partition("convert it: ")[2].rpartition(")")[0])
        subprocess.run([sys.executable, *words[1:]], cwd=tmp_path, check=True)
        trace = imported(tmp_path / "x.parquet")
        assert rows_of(trace) == {(row["device"], row["round"]) for row in ROWS.to_pylist()}


@pytest.mark.parametrize("pack", [lambda content: content, gzip.compress, lzma.compress])
def test_json_lines_keep_text_as_text_and_whole_numbers_whole(
    pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    def lines(*devices: Any) -> bytes:
        rows = ({"device": each, "round": number, "at": f"2026-03-0{number + 1}T00:00:00Z"} for number, each in enumerate(devices))  # fmt: skip
        return pack("".join(json.dumps(row) + "\n" for row in rows).encode())

    def devices(name: str, *given: Any) -> set[str]:
        (tmp_path / name).write_bytes(lines(*given))
        trace = imported(tmp_path / name, time_column="at")
        assert trace.run["times"]["form"] == "ISO 8601 in UTC"
        return {device for device, _ in rows_of(trace)}

    assert devices("text", "0012", "2026-03-01") == {"0012", "2026-03-01"}
    # The largest is not a float64, and the least is not a uint64.
    assert devices("whole", 2**64 - 1, 2**53 + 1) == {str(2**64 - 1), str(2**53 + 1)}
    assert devices("signed", -(2**63), 2**53 + 1) == {str(-(2**63)), str(2**53 + 1)}
    for mixed in ((12, "0012"), (1.5, 2), (-1, 2**63)):
        with pytest.raises(InputError, match="mixed|is of type double"):
            devices("mixed", *mixed)


def test_levels_of_a_partitioned_log_are_columns(tmp_path: Path) -> None:
    log = written(
        tmp_path / "log",
        {
            "round=3/part": b"device,state\na,ok\nb,late\n",
            "round=10/day=2026-09-01 10%3A00/part": b"state,device\nok,a\n",
            "round=10/day=__HIVE_DEFAULT_PARTITION__/part": b"device,state\nc,ok\n",
        },
    )
    with pytest.raises(InputError, match=r"day='|'day' is not a column of .*round=3/part"):
        imported(log, where=["day=2026-09-01 10:00"])
    assert rows_of(imported(log, where=["state=ok"])) == {("a", 3), ("a", 10), ("c", 10)}
    only = written(tmp_path / "only", {"round=1/day=x%2Fy/p": b"device\na\n", "round=1/day=__HIVE_DEFAULT_PARTITION__/p": b"device\nb\n"})  # fmt: skip
    assert rows_of(imported(only, where=["day=x/y"])) == {("a", 1)}
    assert rows_of(imported(only, where=["day="])) == {("b", 1)}
    found = inspect_log(only, {})
    columns = {each[0]: each for each in found.columns}
    assert columns["round"][-1] == "round"
    assert columns["day"][2:5] == ("1", "1", "'x/y'")
    with pytest.raises(InputError, match=r"1 row without a device"):
        imported(only, device_column="day")
    # Names of devices are in no document that others may read.
    named = written(tmp_path / "named", {"device=secret/round=1/p": b"x\n1\n", "device=other/round=2/p": b"x\n2\n"})  # fmt: skip
    trace = imported(named)
    assert rows_of(trace) == {("secret", 1), ("other", 2)}
    assert "secret" not in (trace.path / "run.json").read_text()


def test_a_file_may_repeat_the_name_of_its_folder_but_not_contradict_it(tmp_path: Path) -> None:
    log = written(tmp_path / "log", {"round=3/p": as_csv([("a", 3), ("b", 3)])})
    assert rows_of(imported(log)) == {("a", 3), ("b", 3)}
    written(log, {"round=4/p": as_csv([("a", 4), ("b", 3)])})
    with pytest.raises(InputError, match=r"round=4/p' has values in the column 'round' other than"):
        imported(log)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.string(), pa.large_string()),
        (pa.string_view(), pa.dictionary(pa.int8(), pa.string())),
        (pa.int32(), pa.int64()),
        (pa.uint8(), pa.uint64()),
        (pa.int64(), pa.uint64()),
        (pa.decimal128(38, 0), pa.int16()),
        (pa.decimal128(9, 0), pa.dictionary(pa.int8(), pa.int64())),
        (pa.binary(), pa.large_binary()),
        (pa.null(), pa.string()),
    ],
    ids=str,
)
def test_columns_of_equal_values_are_one_column_whatever_their_types(
    one: pa.DataType, other: pa.DataType, tmp_path: Path
) -> None:
    """As devices, owners, rounds and conditions."""
    (tmp_path / "log").mkdir()
    values: list[Any] = ["7", "8"] if "str" in f"{one}{other}" else [7, 8]
    values = [b"\xff7", b"\xff8"] if "binary" in str(one) else values
    for number, kind in enumerate((one, other)):
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        given = [None, None] if pa.types.is_null(kind) else values
        given = [Decimal(each) for each in values] if pa.types.is_decimal(kind) else given
        column = pa.array(given, plain)
        column = column if plain == kind else column.dictionary_encode()
        table = pa.table({"device": column, "round": [2 * number, 2 * number + 1], "owner": column})
        pq.write_table(table, tmp_path / "log" / str(number))
    where = () if "binary" in str(one) else ("owner=7", "owner=8", "owner=")
    options = {"leave_out_invalid": True, "owner_column": "owner", "where": where}
    trace = imported(tmp_path / "log", **options)
    names = [each.hex() if isinstance(each, bytes) else str(each) for each in values]
    first = 0 if not pa.types.is_null(one) else 2
    assert rows_of(trace) == {(names[place % 2], place) for place in range(first, 4)}
    if values == [7, 8]:
        numbers = tmp_path / "numbers"
        numbers.mkdir()
        for number in range(2):
            table = pq.read_table(tmp_path / "log" / str(number))
            pq.write_table(pa.table({"round": table["device"], "device": ["a", "b"] if number else ["c", "d"]}), numbers / str(number))  # fmt: skip
        assert rows_of(imported(numbers)) == {("a", 7), ("b", 8), ("c", 7), ("d", 8)}


@pytest.mark.parametrize("value", [10**18, 2**63 + 1, 2**64 - 1, 10**30])
def test_a_round_above_the_limit_is_too_large_in_every_type(value: int, tmp_path: Path) -> None:
    kinds = [
        pa.string(),
        pa.decimal128(38, 0),
        pa.float64(),
        *([pa.uint64()] if value < 2**64 else []),
    ]
    for kind in kinds:
        given = {"string": str(value), "double": float(value)}.get(str(kind), Decimal(value) if "decimal" in str(kind) else value)  # fmt: skip
        pq.write_table(
            pa.table({"device": ["a"], "round": pa.array([given], kind)}), tmp_path / "log"
        )
        with pytest.raises(InputError, match=r"1 row with a round beyond 10\^18"):
            imported(tmp_path / "log")


@pytest.mark.parametrize(
    ("packed", "between"),
    [
        (lzma.compress, b""),
        (lzma.compress, bytes(8)),
        (lzma.compress, bytes(8192)),
        (bz2.compress, b""),
        (bz2.compress, bz2.compress(b"")),
    ],
)
def test_all_streams_of_a_compressed_file_are_read(
    packed: Callable[[bytes], bytes], between: bytes, tmp_path: Path
) -> None:
    first, second = packed(b"device,round\na,0\n"), packed(b"b,0\n")
    log = tmp_path / "log"
    log.write_bytes(
        (between if packed is bz2.compress else b"") + first + between + second + between
    )
    with unpacked(log, form_of(log).packing) as stream:
        assert stream.read(100) == b"device,round\na,0\nb,0\n"
    for damaged in (first[:-9], first + b"other,0\n" * 9):
        log.write_bytes(damaged)
        with pytest.raises(InputError, match="cannot be read"):
            imported(log)


@pytest.mark.parametrize(
    ("rows", "count"),
    [
        ('a,0,x\n"b,1\nc,2,y\n"d,3,z\n', 0),
        ('a,0,"x\nb,0,y\n', 0),
        ('a,0,"x\nb,0,y"\n', 1),
        ('a,0,"say ""x""\nb,0,y"\nb,0,\n\n', 2),
        ('a,0,x"y"z\r\nb,0,y', 2),
    ],
)
def test_no_quote_swallows_rows(rows: str, count: int, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_bytes(b"device,round,note\n" + rows.encode())
    if count:
        assert imported(log).run["rows"] == count
        return
    with pytest.raises(InputError, match=r"has a quoted value up to line \d that does not end"):
        imported(log)
