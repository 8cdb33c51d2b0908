"""`fedray import --inspect` reports all problems of a log at once, and the command to run next."""

import datetime
import decimal
import shlex
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedray.imports.importer import import_log
from fedray.imports.inspected import inspect_log
from fedray.imports.log_files import LogFiles
from fedray.trace.imported import ImportedTrace, open_trace

BAD = """client_id,attempt,timestamp
a,0,2026-03-01T10:00:00
b,0,2026-03-01T10:01:00
,0,2026-03-01T10:02:00
a,1,yesterday
c,1,2026-03-01T09:00:00
c,1,2026-03-01T09:00:05
d,x,2026-03-01T11:00:00
d,3,2026-03-01T12:00:00
f,3,
"""


def test_all_problems_are_told_at_once_with_their_first_rows(
    fedray_command, tmp_path: Path
) -> None:
    log = tmp_path / "bad.csv"
    log.write_text(BAD)
    code, out, _ = fedray_command("import", str(log), "--inspect")
    text = " ".join(out.split())
    assert code == 2
    for expected in [
        "1 row without a device (first: row 3)",
        "1 row with a round that is not an integer (first: row 7)",
        "1 row without a time (first: row 9); correct them, or leave out the column of times",
        "1 value such as 'yesterday' (device 'a', round '1'), which is",
        "1 row of the same device in the same round again (such as device 'c', round 1)",
    ]:
        assert expected in text, expected
    assert list(tmp_path.iterdir()) == [log]
    log.write_text(BAD.replace("yesterday", "2026-03-01T08:00:00"))
    text = " ".join(fedray_command("import", str(log), "--inspect")[1].split())
    assert "taken as UTC; is that so?" in text
    assert "1 round that ended before the round before began (first: round 1)" in text


def test_the_proposed_command_imports_the_log(fedray_command, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.csv").write_text(
        "device;round;time\na;0;2026-03-01T10:00:00Z\na;1;2026-03-05T10:00:00Z\n"
    )
    code, out, _ = fedray_command("import", "log.csv", "--inspect")
    assert code == 0
    command = shlex.split(out.splitlines()[-1].removeprefix("next "))
    assert fedray_command(*command[1:])[0] == 0
    assert Path("log-trace/run.json").is_file()


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        ("round_status,round,device\nok,0,a\nok,1,b\n", []),
        ("round,device\n0,a\n0,A\n1,a\n", ["--join-ids"]),
    ],
    ids=["a word before the numbers", "repeats of joined ids"],
)
def test_the_proposed_command_is_for_this_log(
    fedray_command, tmp_path: Path, monkeypatch, rows: str, options: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.csv").write_text(rows)
    code, out, _ = fedray_command("import", "log.csv", "--inspect", *options)
    assert code == 0
    command = shlex.split(out.splitlines()[-1].removeprefix("next "))
    assert fedray_command(*command[1:])[0] == 0


@pytest.mark.parametrize("time", ["", "01.03.2026"])
def test_the_proposed_command_leaves_out_times_that_the_import_refuses(
    fedray_command, tmp_path: Path, monkeypatch, time: str
) -> None:
    monkeypatch.chdir(tmp_path)
    at = "2026-03-0{}T10:00:00Z".format
    rows = f"a,0,{at(1)}\na,0,{at(1)}\nb,0,{at(2)}\na,1,{time}\na,1,{at(3)}\n"
    Path("log.csv").write_text("device,round,reported_at\n" + rows)
    given = ("--column", "time=reported_at", "--time-zone", "Europe/Berlin")
    code, out, _ = fedray_command("import", "log.csv", "--inspect", *given)
    assert code == 2
    assert "the command leaves out the times" in out
    assert "corrected log" not in out
    command = shlex.split(out.splitlines()[-1].removeprefix("next "))
    code, _, err = fedray_command(*command[1:])
    assert code == 0, err
    trace = open_trace("log-trace")
    assert (trace.run["rows"], trace.run["times"]) == (5, None)
    Path("log.csv").write_text("device,round,reported_at\n,0,\n" + rows)
    assert (
        "the command is for the corrected log"
        in fedray_command("import", "log.csv", "--inspect")[1]
    )


def test_a_device_with_two_owners_is_told_with_its_first_row_and_refused(
    fedray_command, tmp_path: Path
) -> None:
    log = tmp_path / "log.csv"
    log.write_text("device,round,owner\nb,0,y\na,0,x\na,1,x\nb,1,z\nb,2,y\na,3,w\n")
    code, out, _ = fedray_command("import", str(log), "--inspect")
    assert code == 2
    assert "device 'a' has the owners 'w' and 'x' in the log (2 such devices)" in " ".join(
        out.split()
    )
    columns = [f"--column={role}={role}" for role in ("device", "round", "owner")]
    code, _, err = fedray_command(
        "import", str(log), *columns, "--rounds=logged", "--out", str(tmp_path / "t")
    )
    assert code == 2
    assert "has the owners" in err
    log.write_text("device,round,owner\nb,0,y\na,0,x\na,1,x\nb,1,y\n")
    assert inspect_log(log, {}).is_importable


def test_rounds_without_a_time_have_no_place_in_the_order(tmp_path: Path) -> None:
    """Round 1 has no time: round 2 is compared with round 0."""
    log = tmp_path / "log.csv"
    log.write_text("device,round,time\na,0,100\nb,1,\nc,2,200\n")
    assert not any(
        "ended before" in each for each in inspect_log(log, {}, time_unit="seconds").notes
    )
    log.write_text("device,round,time\na,0,300\nb,1,\nc,2,200\n")
    (note,) = (
        each for each in inspect_log(log, {}, time_unit="seconds").notes if "ended before" in each
    )
    assert "1 round that ended before the round before began (first: round 2)" in note


def test_what_is_said_about_rows_is_passed_on_to_the_command(
    fedray_command, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("-x.csv").write_text("device,round\na,0\na,0\n,1\nb,2\n")
    given = ("--inspect", "--repeats", "once", "--leave-out-invalid")
    code, out, _ = fedray_command("import", *given, "--", "-x.csv")
    text = " ".join(out.split())
    assert code == 0
    assert "1 row without a device (first: row 3), left out" in text
    assert "--repeats each" not in text
    command = shlex.split(out.splitlines()[-1].removeprefix("next "))
    assert {"--leave-out-invalid", "once", "--out=-x-trace"} <= {*command}
    assert fedray_command(*command[1:])[0] == 0
    assert Path("-x-trace/run.json").is_file()


@pytest.mark.parametrize(
    ("names", "roles"),
    [
        ("installation_id,iteration,event_time", ["device", "round", "time"]),
        ("client_id,roundNumber,eventTime", ["device", "round", "time"]),
        ("userid,attempt,datetime,update,uptime,timer_hours,valid", ["device", "round", "time"]),
        ("PHONE,ROUND,update,personal", ["device", "round"]),
    ],
)
def test_roles_are_guessed_from_whole_words(tmp_path: Path, names: str, roles: list[str]) -> None:
    log = tmp_path / "log.csv"
    log.write_text(f"{names}\n{','.join('1' for _ in names.split(','))}\n")
    guessed = [each[-1] for each in inspect_log(log, {}).columns]
    assert guessed == roles + [""] * (len(guessed) - len(roles))


def run_proposed(fedray_command, log: Path, *options: str) -> ImportedTrace:
    """The trace of the command that --inspect proposes for a log, in the working directory."""
    code, out, _ = fedray_command("import", str(log), "--inspect", *options)
    assert code == 0, out
    command = shlex.split(out.splitlines()[-1].removeprefix("next "))
    code, _, err = fedray_command(*command[1:])
    assert code == 0, err
    trace = open_trace(f"{log.stem}-trace")
    assert isinstance(trace, ImportedTrace)
    return trace


UNIX = {10: 1, 13: 1_000, 16: 1_000_000, 19: 1_000_000_000}


@pytest.mark.parametrize("digits", UNIX)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_the_proposed_command_counts_a_hard_log_rightly(
    fedray_command, tmp_path: Path, monkeypatch, digits: int, suffix: str
) -> None:
    """Times are Unix numbers in a column without a telling name; devices are numbers that look like
    times; some rows are copies, one is a retry, and some were not accepted."""
    monkeypatch.chdir(tmp_path)
    start = 1_772_366_400
    rows = [
        (
            1_700_000_000 + device,
            number,
            (start + 3600 * number + device) * UNIX[digits],
            "accepted",
        )
        for number in range(5)
        for device in range(8)
    ]
    retry = (*rows[3][:2], rows[3][2] + 60 * UNIX[digits], "accepted")
    lost = [(*row[:2], row[2] + 1, "rejected") for row in rows[:7]]
    everything = [*rows, *rows[5:30], retry, *lost, *lost[:2]]
    names = ("user_id", "iteration", "logged", "outcome")
    table = pa.table(dict(zip(names, zip(*everything, strict=True), strict=True)))
    log = Path(f"log.{suffix}")
    if suffix == "parquet":
        pq.write_table(table, log)
    else:
        lines = [",".join(map(str, row)) for row in everything]
        log.write_text("\n".join([",".join(names), *lines]) + "\n")
    trace = run_proposed(fedray_command, log)
    run = trace.run
    assert (run["where"], run["filtered_rows"]) == (["outcome=accepted"], 9)
    assert (run["rows"], run["devices"], run["rounds"]) == (41, 8, 5)
    assert run["repeated_rows"] == 1
    assert [each.rows for each in trace.left_out] == [25]
    assert run["times"]["column"] == "logged"
    text = " ".join(inspect_log(log, {}).notes)
    assert "41 rows of 8 devices in 5 rounds count" in text
    assert "outcome has the values 'accepted' 66, 'rejected' 9" in text


def test_the_command_has_a_place_for_columns_that_were_not_found(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("Geraet;Runde\na;0\nb;1\n")
    found = inspect_log(log, {"round": ["Runde"]})
    assert found.problems == ("no column looks like the device; give --column device=NAME",)
    assert " ".join(found.command).startswith(
        f"fedray import {log} --column round=Runde --column device=NAME"
    )


def test_copies_without_a_time_count_each_and_a_note_names_the_remedy(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    rows = "a,0,1772366400,1772366400\nb,0,1772366401,1772366400\n"
    log.write_text("device,round,a,b\n" + rows * 2)
    found = inspect_log(log, {})
    assert "each" in found.command
    (note,) = (each for each in found.notes if "--repeats each" in each)
    assert note.endswith("or --column time=NAME, by which copies are found")
    assert "a and b look like times; give --column time=NAME" in found.notes
    with_time = inspect_log(log, {"time": ["a"]})
    assert "--repeats" not in with_time.command
    assert "2 rows equal to another row in every column (such as" in " ".join(with_time.notes)


@pytest.mark.parametrize("values", [("true", "false"), ("1", "0")])
def test_a_column_of_truth_values_is_proposed_as_a_condition(
    fedray_command, tmp_path: Path, monkeypatch, values: tuple[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    yes, no = values
    Path("log.csv").write_text(f"device,round,isIncluded\na,0,{yes}\nb,0,{no}\na,1,{yes}\n")
    trace = run_proposed(fedray_command, Path("log.csv"))
    assert (trace.run["where"], trace.run["rows"]) == ([f"isIncluded={yes}"], 2)


ODD = {
    "uuid": pa.array([uuid.UUID(int=7).bytes, None, uuid.UUID(int=9).bytes], pa.uuid()),
    "json": pa.array(["{}", None, "[]"], pa.json_()),
    "list": pa.array([[1], [2], None]),
    "fixed list": pa.array([[1, 2]] * 3, pa.list_(pa.int64(), 2)),
    "list of structs": pa.array([[{"a": 1}], [], None]),
    "struct": pa.array([{"a": 1, "b": [1]}] * 3),
    "map": pa.array([[("a", 1)]] * 3, pa.map_(pa.string(), pa.int64())),
    "dictionary": pa.array(["a", "b", "a"]).dictionary_encode(),
    "text view": pa.array(["a", "b", "a"], pa.string_view()),
    "large text": pa.array(["a", "b", None], pa.large_string()),
    "bytes": pa.array([b"\xff", b"", None]),
    "bytes view": pa.array([b"\xff", b"", None], pa.binary_view()),
    "nothing": pa.nulls(3),
    "truth": pa.array([True, False, None]),
    "half": pa.array([1.0, float("nan"), 2.0], pa.float16()),
    "double": pa.array([1.0, float("nan"), float("inf")]),
    "decimal": pa.array([decimal.Decimal(1)] * 3, pa.decimal128(10, 2)),
    "long decimal": pa.array([decimal.Decimal(1)] * 3, pa.decimal256(60, 0)),
    "unsigned": pa.array([1, 2**64 - 1, 0], pa.uint64()),
    "duration": pa.array([1, 2, 3], pa.duration("ns")),
    "date": pa.array([datetime.date(2026, 1, 1)] * 3),
    "hour": pa.array([1, 2, 3], pa.time64("ns")),
    "odd times": pa.array([2**63 - 1, -(2**63) + 1, 3], pa.timestamp("ns")),
    "far times": pa.array([2**62, -(2**62), 3], pa.timestamp("ms", "UTC")),
    "times": pa.array([1, 2, None], pa.timestamp("us", "Asia/Kathmandu")),
}


def test_columns_of_all_types_are_described_beside_each_other(
    fedray_command, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    columns = {"device": pa.array(["a", "b", "c"]), "round": pa.array([0, 1, 1]), **ODD}
    pq.write_table(pa.table(columns), "log.parquet")
    found = inspect_log(Path("log.parquet"), {"time": ["unsigned"]}, time_unit="seconds")
    assert [each[0] for each in found.columns] == [*columns]
    distinct = {each[0]: each[2] for each in found.columns}
    assert (distinct["map"], distinct["list"], distinct["uuid"]) == ("many", "many", "2")
    assert found.problems == ()
    command = found.command[1:]
    assert fedray_command(*command)[0] == 0


@pytest.mark.slow  # 10 s each: an inspection and perhaps an import for every type
@pytest.mark.parametrize("name", ["device", "round", "time", "owner", "outcome"])
def test_columns_of_every_type_may_be_given_in_every_role(
    fedray_command, tmp_path: Path, monkeypatch, name: str
) -> None:
    """A log is importable as proposed, or has a problem of one line."""
    monkeypatch.chdir(tmp_path)
    for kind, column in ODD.items():
        columns = {"device": pa.array(["a", "b", "c"]), "round": pa.array([0, 1, 1]), name: column}
        log = Path(f"{kind}.parquet")
        pq.write_table(pa.table(columns), log)
        found = inspect_log(log, {})
        assert [each[0] for each in found.columns] == [*columns]
        if found.is_importable:
            run_proposed(fedray_command, log)
        else:
            assert all("\n" not in each for each in found.problems)
            assert name != "outcome" or "times" in kind  # one row has none


def test_devices_of_uuids_are_imported_as_their_bytes(
    fedray_command, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    devices = [uuid.UUID(int=number) for number in (0, 5, 7)]
    columns = {
        "device": pa.array([each.bytes for each in devices], pa.uuid()),
        "round": pa.array([0, 1, 2]),
    }
    pq.write_table(pa.table(columns), "log.parquet")
    (problem,) = inspect_log(Path("log.parquet"), {}).problems
    assert "1 row whose device means no id" in problem
    trace = run_proposed(fedray_command, Path("log.parquet"), "--keep-id", devices[0].hex)
    assert trace.names_of([0, 1, 2]) == [each.hex for each in devices]


def test_a_log_is_read_once_and_in_pieces(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("fedray.imports.log_files.BATCH_BYTES", 1)
    log = tmp_path / "log.parquet"
    pq.write_table(pa.table({"device": ["a", "b", "c"], "round": [0, 1, 2]}), log)
    rows, read = [], LogFiles.batches

    def counting(files: LogFiles):
        for batch in read(files):
            rows.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(LogFiles, "batches", counting)
    assert inspect_log(log, {}).is_importable
    assert rows == [1, 1, 1]


def test_rounds_with_few_rows_are_named(tmp_path: Path) -> None:
    """They may have been abandoned, and then released nothing."""
    rows = [f"d{device},{number}" for number in range(5) for device in range(20)]
    found = []
    for few in (2, 1):
        log = tmp_path / f"{few}.csv"
        log.write_text("\n".join(["device,round", *rows, *(f"d{i},5" for i in range(few))]) + "\n")
        found.append([each for each in inspect_log(log, {}).notes if "of the median" in each])
    assert [len(each) for each in found] == [0, 1]
    start = "1 round with under a tenth of the median's rows (5); if abandoned, list the others"
    assert found[1][0].startswith(start)
    trace = import_log(log, "device", "round", None, tmp_path / "t", renumber=True)
    assert found[1][0] in [it.text for it in trace.rests_on]


def test_the_next_command_has_every_format_of_times(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("device,round,at\na,0,24.12.2025 10:00\nb,0,2025-12-24 10:01\n")
    formats = ["%d.%m.%Y %H:%M", "%Y-%m-%d %H:%M"]
    found = inspect_log(log, {"time": ["at"]}, time_format=formats)
    assert not found.problems
    given = zip(found.command, found.command[1:], strict=False)
    assert [value for option, value in given if option == "--time-format"] == formats
