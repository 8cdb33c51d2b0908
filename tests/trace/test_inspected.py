"""`fedray import --inspect` reports all problems of a log at once, and the command to run next."""

import datetime
import decimal
import re
import shlex
import uuid
import zoneinfo
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedray.audit.assumptions import assumptions_of_import
from fedray.base.errors import InputError
from fedray.base.periods import PERIODS
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


def test_beside_append_the_proposed_command_appends(
    fedray_command, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log").mkdir()
    Path("log/1.csv").write_text("device,round\na,0\nb,1\n")
    code, out, _ = fedray_command("import", "log", "--inspect", "--append", "live")
    assert code == 0
    command = shlex.split(out.splitlines()[-1].removeprefix("next "))
    assert "--append=live" in command
    assert not any(each.startswith("--out") for each in command)
    # The first time it makes the trace, and then adds to it.
    assert fedray_command(*command[1:])[0] == 0
    Path("log/2.csv").write_text("device,round\na,2\n")
    assert fedray_command(*command[1:])[0] == 0
    refused = fedray_command("import", "log", "--inspect", "--append", "live", "--out", "other")
    assert refused[0] == 2
    assert "--append and --out both name the trace" in refused[2]


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
    assert found[1][0] in [it.text for it in assumptions_of_import(trace)]


WRONG = {
    "--repeats=60": "--repeats='60' is none of refuse, once, each",
    "--rounds=-1": "--rounds=-1 must be from 1 to",
    "--rounds=0": "--rounds=0 must be from 1 to",
    "--rounds=none.csv": "must be N, logged, or a file that exists",
    "--rounds=log.csv": "but may only have rounds and their times",
    "--out=log.csv": "output 'log.csv' exists already",
    "--where=x": "--where='x' must be COLUMN=VALUE",
    "--delimiter=xx": "--delimiter='xx' must be one character",
    "--time-zone=UTC": "--time-zone='UTC' describes times, but there are none",
    "--column=owner=device": "column 'device' is given twice",
}


@pytest.mark.parametrize("option", WRONG)
def test_options_that_the_import_refuses_are_refused_by_the_inspection(
    fedray_command, tmp_path: Path, monkeypatch, option: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.csv").write_text("device,round\na,0\nb,1\n")
    given = ["import", "log.csv", "--column=device=device", "--column=round=round"]
    if option == "--column=owner=device":
        given[2] = "--column=device=round"
    needed = ["--rounds=2"] * ("rounds" not in option) + ["--out=t"] * ("out" not in option)
    code, _, refused = fedray_command(*given, option, *needed)
    assert (code, list(tmp_path.iterdir())) == (2, [tmp_path / "log.csv"])
    code, _, inspected = fedray_command(*given, "--inspect", option)
    assert (code, list(tmp_path.iterdir())) == (2, [tmp_path / "log.csv"])
    if option != "--column=owner=device":
        assert WRONG[option] in inspected
    assert inspected == refused


def test_counts_are_those_of_the_import_under_the_same_options(
    fedray_command, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.csv").write_text("device,round\na,0\na,0\nA,1\nb,2\nc,5\n")
    Path("released.csv").write_text("round\n0\n1\n2\n3\n")
    given = ["log.csv", "--column=device=device", "--column=round=round"]
    of_repeats = {}
    for repeats in ("once", "each"):
        for rounds in ("logged", "released.csv"):
            for join in ("--join-ids", "--no-join-ids"):
                options = [*given, f"--repeats={repeats}", f"--rounds={rounds}", join]
                code, said, _ = fedray_command("import", *options, "--inspect")
                assert code == 0
                out = f"{repeats}-{rounds}{join}"
                assert fedray_command("import", *options, f"--out={out}")[0] == 0
                run = open_trace(out).run
                expected = (
                    f"{run['rows']} rows of {run['devices']} devices in {run['rounds']} rounds"
                )
                assert expected in " ".join(said.split())
                assert shlex.split(said.splitlines()[-1])[-3] == rounds
                of_repeats[repeats, rounds, join] = run["rows"], run["devices"], run["rounds"]
    assert len({*of_repeats.values()}) == 7
    before = sorted(tmp_path.iterdir())
    code, said, _ = fedray_command("import", *given, "--inspect", "--rounds=3", "--out=new/t")
    assert sorted(tmp_path.iterdir()) == before
    text = " ".join(said.split())
    assert code == 2
    assert (
        "1 row with a round beyond rounds-1=2 (first: row 5); correct them, or give --rounds logged"
        in text
    )


MONTHS = "user,round,at\n" + "".join(
    f"u{user},{place},2026-{month}T23:30:0{user}Z\n"
    for place, month in enumerate(["01-30", "01-31", "02-01", "04-01"])
    for user in range(3)
)


@pytest.mark.parametrize(
    ("period", "zone", "devices"),
    [
        ("day", None, 12),
        ("week", None, 6),
        ("month", None, 9),
        ("quarter", None, 6),
        ("year", None, 3),
        ("month", "America/New_York", 9),
        ("month", "Pacific/Kiritimati", 9),
    ],
)
def test_a_device_may_be_one_in_a_period_of_the_times(
    fedray_command, tmp_path: Path, monkeypatch, period: str, zone: str | None, devices: int
) -> None:
    """Windows are those of UTC, as in a ledger, whatever zone the log has."""
    monkeypatch.chdir(tmp_path)
    text = MONTHS
    if zone is not None:
        local = zoneinfo.ZoneInfo(zone)
        text = re.sub(
            r"2026\S+Z",
            lambda at: (
                f"{datetime.datetime.fromisoformat(at[0]).astimezone(local):%Y-%m-%d %H:%M:%S}"
            ),
            MONTHS,
        )
    Path("log.csv").write_text(text)
    given = [f"--column=device=time:{period}", "--column=device=user", "--column=time=at"]
    given += [f"--time-zone={zone}"] * (zone is not None)
    code, said, _ = fedray_command("import", "log.csv", "--inspect", *given)
    assert code == 0
    assert f"12 rows of {devices} devices in 4 rounds count" in said
    command = shlex.split(said.splitlines()[-1].removeprefix("next "))
    assert fedray_command(*command[1:])[0] == 0
    trace = open_trace("log-trace")
    assert isinstance(trace, ImportedTrace)
    days = ["2026-01-30", "2026-01-31", "2026-02-01", "2026-04-01"]
    windows = [PERIODS[period](datetime.date.fromisoformat(day)) for day in days]
    names = {f"u{user}|{window}" for user in range(3) for window in windows}
    assert {*trace.names_of(range(devices))} == names
    assert trace.unit == f"combination of {period} of the time (UTC) and 'user' in the log"
    assert any("group privacy" in each.text for each in assumptions_of_import(trace))


def test_names_of_devices_in_periods_cannot_be_mistaken(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text(
        "user,round,at\na|2026-01,0,2026-02-01T00:00:01Z\na,1,2026-01-05T00:00:02Z\n,2,2026-01-01T00:00:01Z\n"
    )
    found = inspect_log(log, {"device": ["user", "time:month"], "time": ["at"]})
    assert found.problems[0].startswith("1 row without a device (first: row 3)")
    trace = import_log(
        log, ["user", "time:month"], "round", None, tmp_path / "t", time_column="at", renumber=True,
        leave_out_invalid=True,
    )  # fmt: skip
    assert trace.run["devices"] == 2
    assert trace.names_of([0, 1]) == ["a\\|2026-01|2026-02", "a|2026-01"]


@pytest.mark.parametrize(
    ("devices", "form", "expected"),
    [
        (["time:month"], {}, "needs a column of the device beside it"),
        (["user", "time:decade"], {}, "'time:decade' is not one of day, week, month"),
        (["user", "time:month"], {"time_unit": "seconds"}, "needs times with a date"),
    ],
)
def test_periods_that_cannot_be_are_refused(
    tmp_path: Path, devices: list[str], form: dict[str, str], expected: str
) -> None:
    log = tmp_path / "log.csv"
    log.write_text("user,round\na,0\n")
    (problem,) = inspect_log(log, {"device": ["user", "time:month"]}).problems
    assert problem == "no column looks like the time; give --column time=NAME"
    log.write_text("user,round,at\na,0,5\na,1,7\n")
    unit = form.get("time_unit")
    with pytest.raises(InputError, match=expected):
        import_log(log, devices, "round", 2, tmp_path / "t", time_column="at", time_unit=unit)


def abandoned(at: str = "{:%Y-%m-%dT%H:%M:%SZ}", shift: int = 0) -> str:
    """A log of 30 rounds of 12 devices, of which two have one row each."""
    lines = ["device,round,at"]
    for place in range(30):
        for device in range(1 if place in (5, 7) else 12):
            moment = datetime.datetime(2026, 1, 30, 9, 0, 13) + datetime.timedelta(
                hours=13 * (place if place != 9 else place + shift), seconds=7 * device + place
            )
            lines.append(f"u{device},{place},{at.format(moment)}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("at", "given"),
    [
        ("{:%Y-%m-%dT%H:%M:%SZ}", []),
        ("{:%d.%m.%Y %H:%M:%S}", ["--time-format=%d.%m.%Y %H:%M:%S", "--time-zone=Europe/Berlin"]),
        ("{:%S}", ["--time-format=s"]),
        ("", None),
    ],
)
def test_a_list_without_abandoned_rounds_is_proposed_and_taken(
    fedray_command, tmp_path: Path, monkeypatch, at: str, given: list[str] | None
) -> None:
    monkeypatch.chdir(tmp_path)
    text = abandoned(at)
    if at == "{:%S}":
        lines = text.splitlines()
        text = "\n".join(
            [lines[0], *(f"{e.rsplit(',', 1)[0]},{i}.5" for i, e in enumerate(lines[1:]))]
        )
    if given is None:
        text = re.sub(",(at)?$", "", text, flags=re.MULTILINE)
    Path("log.csv").write_text(text)
    options = ["import", "log.csv", "--inspect", *(given or [])]
    options += [] if given is None else ["--column=time=at"]
    code, said, _ = fedray_command(*options, "--propose-rounds=released.csv")
    assert code == 0
    text = " ".join(said.split())
    assert "'released.csv' lists 28 rounds; it leaves out 5, 7, which look abandoned" in text
    assert "that is your decision" in text
    command = shlex.split(said.splitlines()[-1].removeprefix("next "))
    code, _, err = fedray_command(*command[1:])
    assert code == 0, err
    trace = open_trace("log-trace")
    assert isinstance(trace, ImportedTrace)
    assert [trace.round_label(place) for place in range(28)] == [
        str(each) for each in range(30) if each not in (5, 7)
    ]
    assert trace.run["rows"] == 28 * 12
    listed = Path("released.csv").read_text().splitlines()[0]
    assert listed == ("round" if given is None else "round,time")
    assert (trace.run["times"] or {}).get("rounds_file_form", "") != "" or given is None
    before = Path("released.csv").read_bytes()
    code, _, err = fedray_command(*options, "--propose-rounds=released.csv")
    assert (code, Path("released.csv").read_bytes()) == (2, before)
    assert "exists already; name a new file" in err


@pytest.mark.parametrize("given", [[], ["--delimiter=;"]])
def test_a_proposed_list_has_the_delimiter_of_the_log(
    fedray_command, tmp_path: Path, monkeypatch, given: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.csv").write_text(abandoned().replace(",", ";"))
    code, said, _ = fedray_command(
        "import", "log.csv", "--inspect", "--propose-rounds=r.csv", *given
    )
    assert code == 0
    assert Path("r.csv").read_text().startswith("round;time\n0;2026-01-30T")
    command = shlex.split(said.splitlines()[-1].removeprefix("next "))
    code, _, err = fedray_command(*command[1:])
    assert code == 0, err


def test_a_proposed_list_has_no_times_that_contradict_its_order(
    fedray_command, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.csv").write_text(abandoned(shift=5))
    code, said, _ = fedray_command("import", "log.csv", "--inspect", "--propose-rounds=r.csv")
    assert code == 0
    assert "without times, by which their order would be another" in " ".join(said.split())
    assert Path("r.csv").read_text().splitlines()[0] == "round"
    command = shlex.split(said.splitlines()[-1].removeprefix("next "))
    assert fedray_command(*command[1:])[0] == 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            ["--inspect", "--propose-rounds=r.csv"],
            "has nothing to list: no round has under a tenth",
        ),
        (["--inspect", "--propose-rounds=r.csv", "--rounds=2"], "but others are given"),
        (["--propose-rounds=r.csv", "--rounds=2", "--out=t"], "is of --inspect"),
        (["--inspect", "--propose-rounds=no/r.csv"], "has nothing to list"),
    ],
)
def test_a_list_that_cannot_be_proposed_is_refused(
    fedray_command, tmp_path: Path, monkeypatch, options: list[str], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.csv").write_text("device,round\na,0\nb,1\n")
    given = ["--column=device=device", "--column=round=round"]
    code, _, err = fedray_command("import", "log.csv", *given, *options)
    assert code == 2
    assert expected in err
    assert list(tmp_path.iterdir()) == [tmp_path / "log.csv"]


def test_no_list_is_written_for_a_log_with_problems(
    fedray_command, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.csv").write_text(abandoned() + ",3,2026-03-01T12:00:00Z\n")
    code, said, _ = fedray_command("import", "log.csv", "--inspect", "--propose-rounds=r.csv")
    assert code == 2
    assert "'r.csv' is written once the problems are corrected" in " ".join(said.split())
    assert not Path("r.csv").exists()


def test_doubts_about_times_are_noted(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("device,round,at\na,0,01.03.2026 10:00\nb,0,02.03.2026 11:00\n")
    found = inspect_log(log, {"time": ["at"]}, time_format="%d.%m.%Y %H:%M")
    assert sum("is above 12" in each for each in found.notes) == 1
    assert sum("multiples of 3,600 s" in each for each in found.notes) == 1


def test_the_next_command_has_every_format_of_times(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("device,round,at\na,0,24.12.2025 10:00\nb,0,2025-12-24 10:01\n")
    formats = ["%d.%m.%Y %H:%M", "%Y-%m-%d %H:%M"]
    found = inspect_log(log, {"time": ["at"]}, time_format=formats)
    assert not found.problems
    given = zip(found.command, found.command[1:], strict=False)
    assert [value for option, value in given if option == "--time-format"] == formats


@pytest.mark.parametrize(
    "second",
    [
        "device,round\nb,0\n",
        "note,device,round\nx,b,0\n",
        "device,note,round,note\nb,x,0,y\n",
        "outcome,device,round,size\nlate,b,0,1\n",
    ],
    ids=["without", "in another place", "twice", "of its own"],
)
def test_columns_that_the_import_does_not_need_may_differ_between_files(
    tmp_path: Path, second: str
) -> None:
    log = tmp_path / "log"
    log.mkdir()
    (log / "1.csv").write_text("device,round,note\na,0,x\n")
    (log / "2.csv").write_text(second)
    found = inspect_log(log, {})
    assert found.is_importable
    wanted = ["device", "round", "note", *second.splitlines()[0].split(",")]
    assert {each[0] for each in found.columns} == set(wanted)
    assert import_log(log, "device", "round", 1, tmp_path / "trace").run["rows"] == 2


def test_a_column_may_have_another_type_in_a_later_file_if_no_role_needs_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.mkdir()
    for name, row in (
        ("1", '{"device":"a","round":0,"x":1}'),
        ("2", '{"x":"1","device":"b","round":0}'),
    ):
        (log / name).write_text(row + "\n")
    found = inspect_log(log, {})
    assert [each[:4] for each in found.columns if each[0] == "x"] == [
        ("x", "int64", "1", "1"),
        ("x", "text, whole numbers", "1", "1"),
    ]
    assert found.is_importable
    (problem,) = inspect_log(log, {"device": ["x"]}).problems
    assert "convert all files to the same types" in problem


def test_a_column_may_have_several_roles(fedray_command, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.csv").write_text("phone,person,round\np1,u1,0\np1,u2,0\n")
    given = ("device=person", "device=phone", "owner=person", "round=round")
    options = [word for each in given for word in ("--column", each)]
    trace = run_proposed(fedray_command, Path("own.csv"), *options)
    assert (trace.run["device_columns"], trace.run["owner_column"]) == (
        ["person", "phone"],
        "person",
    )
    assert trace.run["devices"] == 2


def test_a_field_that_comes_too_late_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("fedray.imports.log_files.BLOCK_BYTES", 1 << 10)
    row = '{{"device":"d{0}","round":0,"time":"2026-03-01T12:00:{0:02d}Z"{1}}}\n'.format
    log = tmp_path / "log.jsonl"
    log.write_text("".join(row(n, ',"error":"lost"' if n == 50 else "") for n in range(60)))
    with pytest.raises(InputError, match=r"has the field 'error' \(line 51\) for the first time"):
        import_log(log, "device", "round", 1, tmp_path / "trace", time_column="time")
    with pytest.raises(InputError, match=r"has the field 'error' \(line 51\)"):
        inspect_log(log, {})
