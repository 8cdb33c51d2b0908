"""Logs that grow: appends in any steps give the trace of one import of everything."""

import datetime
import gzip
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import fedray
from fedray.base.atomic import exchange
from fedray.base.errors import InputError
from fedray.cli import app
from fedray.imports.appended import append_log
from fedray.imports.importer import import_log
from fedray.imports.log import Log
from fedray.trace.imported import ImportedTrace

Row = dict[str, Any]
DAYS = 9
START = 1_770_000_000
TEXTS = {"device_column": "device", "round_column": "round", "renumber": True}


def content(trace: Path) -> dict[str, bytes]:
    """Every file of a trace, without the time of writing and the digest over it."""
    found = {str(each.relative_to(trace)): each.read_bytes() for each in trace.rglob("*.*")}
    found["run.json"] = re.sub(rb'"(written|document_digest)": "[^"]*"', b"", found["run.json"])
    return found


class GrowingLog:
    """A random log, of which more can be written day by day."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random.Random(seed)
        chance = self.random.random
        self.folder = folder
        self.options: dict[str, Any] = {"device_column": "device", "round_column": "round"}
        self.form = self.random.choice(["csv", "jsonl", "parquet"])
        self.grows = self.form != "parquet" and chance() < 0.5
        self.is_packed = self.form != "parquet" and chance() < 0.2
        self.ends_lines = self.is_packed or chance() < 0.7
        self.has_half = self.form == "parquet" and chance() < 0.3
        self.has_texts, self.has_times = chance() < 0.5, chance() < 0.7
        self.time_form = self.random.choice(list(FORMS))
        self.has_owner, self.has_list = chance() < 0.3, chance() < 0.4
        self.is_invalid = chance() < 0.3
        self.is_respelled = self.has_texts and chance() < 0.4
        if self.is_respelled:
            self.options["join_ids"] = chance() < 0.5
        if self.has_times:
            self.options |= {"time_column": "at", **FORMS[self.time_form][1]}
        if chance() < 0.3:
            period = ["time:day"] if self.has_times and self.time_form != "since" else []
            self.options["device_column"] = ["device", "app", *period]
        if self.has_owner:
            self.options["owner_column"] = "owner"
        if self.has_list:
            self.options["rounds_file"] = folder.with_name("released.csv")
        else:
            self.options["renumber"] = True
        if self.is_invalid:
            self.options["leave_out_invalid"] = True
        self.options["repeats"] = self.random.choice(["once", "each"])
        if chance() < 0.3:
            self.options["where"] = ["outcome=ok"]
        self.days = [self._day(day) for day in range(DAYS)]
        folder.mkdir()

    def _day(self, day: int) -> list[Row]:
        rows = []
        for _ in range(self.random.randrange(5, 30)):
            device = self.random.randrange(40)
            # Rounds of a day may go on the next day, when the list has them.
            second = START + 86_400 * day + 60 * self.random.randrange(1440)
            row: Row = {
                "device": f"dev-{chr(97 + device % 26)}{device}" if self.has_texts else device
            }
            if self.is_respelled and self.random.random() < 0.2:
                row["device"] = str(row["device"]).upper().replace("-", "_")
            row["round"] = 3 * day + self.random.randrange(5)
            row["owner"] = f"person{device // 2}"
            row["outcome"] = self.random.choice(["ok", "ok", "dropped"])
            row["app"] = self.random.choice(["x", "y"])
            row["at"] = FORMS[self.time_form][0](second)
            if self.is_invalid and self.random.random() < 0.2:
                row[self.random.choice(["device", "round", "at", "owner"])] = None
            rows += [row] * self.random.choice([1, 1, 1, 2])
        return rows

    def write(self, first: int, end: int) -> None:
        """Writes the days first .. end-1, into a new file or at the end of one."""
        rows = [row for day in self.days[first:end] for row in day]
        # New names may sort before old ones.
        file = self.folder / f"{self.random.randrange(10):02d}-{first}.{self.form}"
        if self.grows:
            file = self.folder / f"{self.random.randrange(2)}.{self.form}"
        if self.is_packed:
            file = file.with_name(f"{file.name}.gz")
        is_new = not file.exists()
        if self.form == "parquet":
            table = pa.Table.from_pylist(rows)
            if self.has_half:
                halves = np.arange(len(rows), dtype=np.float16) / 2
                table = table.append_column("share", pa.array(halves))
            pq.write_table(table, file)
        else:
            lines = [json.dumps(row) for row in rows]
            if self.form == "csv":
                lines = [",".join(map(_cell, row.values())) for row in rows]
                lines = [",".join(rows[0]), *lines] if is_new else lines
            text = "\n".join(lines) + "\n" * self.ends_lines
            if not is_new and not self.ends_lines:
                text = f"\n{text}"
            with file.open("ab") as stream:
                stream.write(gzip.compress(text.encode()) if self.is_packed else text.encode())
        if self.has_list:
            # The last two rounds are not released yet.
            listed = [each for each in range(3 * end + (0 if end < DAYS else 2)) if each % 7 != 3]
            self.options["rounds_file"].write_text("".join(f"{each}\n" for each in listed))


def _local(form: str) -> Callable[[int], str]:
    return lambda second: datetime.datetime.fromtimestamp(second, datetime.UTC).strftime(form)


FORMS: dict[str, tuple[Callable[[int], Any], dict[str, Any]]] = {
    "iso": (_local("%Y-%m-%dT%H:%M:%SZ"), {}),
    "minute": (_local("%Y-%m-%dT%H:%MZ"), {}),
    "local": (_local("%Y-%m-%d %H:%M:%S"), {"time_zone": "Europe/Berlin"}),
    "unix": (int, {}),
    "since": (lambda second: second - START, {"time_unit": "seconds"}),
    "days": (_local("%d.%m.%Y %H:%M"), {"time_format": "%d.%m.%Y %H:%M"}),
    "years": (_local("%y-%m-%d %H:%M:%S"), {"time_format": "%y-%m-%d %H:%M:%S"}),
}
"""Forms of times: how a second is written, and the options of an import that reads it."""


def _cell(value: Any) -> str:
    return "" if value is None else str(value)


def check_equal(seed: int, folder: Path) -> None:
    folder.mkdir()
    log = GrowingLog(seed, folder / "log")
    cuts = sorted(log.random.sample(range(1, DAYS), log.random.randrange(1, 6)))
    for place, (first, end) in enumerate(zip([0, *cuts], [*cuts, DAYS], strict=True)):
        log.write(first, end)
        # Later appends may leave the options out.
        options = log.options if not place or place % 2 else {}
        append_log(log.folder, folder / "steps", **options)
    append_log(log.folder, folder / "whole", **log.options)
    whole, steps = content(folder / "whole"), content(folder / "steps")
    assert whole == steps
    imported = import_log(log.folder, out=folder / "imported", **{"rounds": None, **log.options})
    assert imported.run["file_rows"] == ImportedTrace.open(folder / "steps").run["file_rows"]
    for name, found in content(imported.path).items():
        if name != "run.json":
            assert whole[name] == found
    assert imported.digest == ImportedTrace.open(folder / "steps").digest


@pytest.mark.parametrize("seed", range(6))
def test_appends_in_any_steps_give_the_trace_of_one_import(seed: int, tmp_path: Path) -> None:
    check_equal(seed, tmp_path / "one")


@pytest.mark.slow
def test_a_hundred_random_logs_cut_at_random_days_give_equal_traces(tmp_path: Path) -> None:
    for seed in range(100, 200):
        check_equal(seed, tmp_path / str(seed))


def write_day(folder: Path, day: int, rows: str) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / f"day-{day}.csv"
    file.write_text(f"device,round\n{rows}")
    return file


@pytest.fixture
def grown(tmp_path: Path) -> tuple[Path, Path]:
    """A log of two days, and its trace, to which it was appended."""
    folder, trace = tmp_path / "log", tmp_path / "trace"
    write_day(folder, 1, "ab-1,0\nab-2,0\nab-1,2\n")
    append_log(folder, trace, **TEXTS)
    write_day(folder, 2, "ab-2,4\nab-3,4\n")
    append_log(folder, trace)
    return folder, trace


def test_only_new_files_and_new_rows_are_parsed(
    grown: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, trace = grown
    parsed = []
    read_file = Log.read_file

    def counted(self: Log, *arguments: Any) -> Any:
        found = read_file(self, *arguments)
        parsed.append((self.found.files[arguments[0]].name, found.rows))
        return found

    monkeypatch.setattr(Log, "read_file", counted)
    write_day(folder, 3, "ab-4,5\nab-1,5\n")
    with (folder / "day-2.csv").open("a") as file:
        file.write("ab-5,6\n")
    assert append_log(folder, trace).run["file_rows"] == [3, 3, 2]
    assert parsed == [("day-2.csv", 1), ("day-3.csv", 2)]
    before = content(trace)
    append_log(folder, trace)
    assert len(parsed) == 2
    assert content(trace) == before


def test_times_of_the_rounds_file_that_change_change_the_trace(tmp_path: Path) -> None:
    folder, trace, listed = tmp_path / "log", tmp_path / "trace", tmp_path / "released.csv"
    write_day(folder, 1, "ab-1,0\nab-2,1\n")
    options = {"device_column": "device", "round_column": "round", "rounds_file": listed}
    for second in (5, 9):
        lines = (f"{each},{START + 60 * each + second}\n" for each in range(2))
        listed.write_text(f"round,time\n{''.join(lines)}")
        append_log(folder, trace, **options)
    append_log(folder, tmp_path / "whole", **options)
    assert content(trace) == content(tmp_path / "whole")


def test_a_time_that_was_cut_off_leaves_no_mark(tmp_path: Path) -> None:
    """Its minute would make all times rounded to minutes."""
    folder, trace = tmp_path / "log", tmp_path / "trace"
    folder.mkdir()
    file = folder / "1.csv"
    first, second = (f"{minute:02d}:{minute + 7:02d}" for minute in (10, 20))
    file.write_text(f"device,round,at\na,0,2026-03-01 12:{first}\nb,1,2026-03-01 12:{second[:2]}")
    options = {**TEXTS, "time_column": "at"}
    assert append_log(folder, trace, **options).run["times"]["step"] == 60
    with file.open("a") as stream:
        stream.write(f"{second[2:]}\n")
    append_log(folder, trace)
    append_log(folder, tmp_path / "whole", **options)
    assert content(trace) == content(tmp_path / "whole")


def test_a_new_first_file_is_judged_as_the_first_one(tmp_path: Path) -> None:
    """Its numbers are Unix seconds, but milliseconds since a start are told."""
    folder, trace = tmp_path / "log", tmp_path / "trace"
    folder.mkdir()
    (folder / "2.csv").write_text("device,round,at\na,0,10\nb,1,20\n")
    options = {**TEXTS, "time_column": "at", "time_unit": "milliseconds"}
    append_log(folder, trace, **options)
    before = content(trace)
    (folder / "1.csv").write_text(f"device,round,at\na,2,{START}\nb,3,{START + 9}\n")
    for place in (trace, tmp_path / "whole"):
        with pytest.raises(InputError, match="which is a Unix time in seconds"):
            append_log(folder, place, **options)
    assert content(trace) == before


def test_zeros_do_not_settle_the_unit(tmp_path: Path) -> None:
    folder, trace = tmp_path / "log", tmp_path / "trace"
    folder.mkdir()
    file = folder / "1.csv"
    file.write_text("device,round,at\na,0,0\n")
    options = {**TEXTS, "time_column": "at", "time_unit": "milliseconds"}
    append_log(folder, trace, **options)
    with file.open("a") as stream:
        stream.write(f"b,1,{START}\n")
    for place in (trace, tmp_path / "whole"):
        with pytest.raises(InputError, match="which is a Unix time in seconds"):
            append_log(folder, place, **options)


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_file_may_grow_by_an_empty_line(form: str, tmp_path: Path) -> None:
    file, trace = tmp_path / f"log.{form}", tmp_path / "trace"
    text = "device,round\na,0\nb,1\n"
    file.write_text(
        text if form == "csv" else '{"device":"a","round":0}\n{"device":"b","round":1}\n'
    )
    append_log(file, trace, **TEXTS)
    with file.open("a") as stream:
        stream.write("\n")
    append_log(file, trace)
    append_log(file, tmp_path / "whole", **TEXTS)
    assert content(trace) == content(tmp_path / "whole")


def test_a_condition_on_a_column_of_another_type_is_judged_again(tmp_path: Path) -> None:
    """Beside 0.5 the number 1 is 1.0 in one import, which is not the text 1."""
    file, trace = tmp_path / "log.jsonl", tmp_path / "trace"
    rows = [{"device": "a", "round": 0, "share": 1}, {"device": "b", "round": 1, "share": 1}]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    options = {**TEXTS, "where": ["share=1", "share=0.5"]}
    append_log(file, trace, **options)
    with file.open("a") as stream:
        stream.write('{"device": "c", "round": 2, "share": 0.5}\n')
    append_log(file, trace)
    append_log(file, tmp_path / "whole", **options)
    assert content(trace) == content(tmp_path / "whole")


def test_another_release_reads_all_files_again(
    grown: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hashes of rows, or its reasons to leave rows out, may be others."""
    folder, trace = grown
    monkeypatch.setattr("fedray.imports.appended.package_versions", lambda: {"duckdb": "9"})
    found: list[str] = []
    append_log(folder, trace, on_progress=found.append)
    assert found[0] == "all files are read again: they were read by other versions of packages"


def _changed(folder: Path) -> None:
    (folder / "day-1.csv").write_text("device,round\nab-1,0\nab-9,0\nab-1,2\n")


def _vanished(folder: Path) -> None:
    (folder / "day-1.csv").unlink()


def _rewritten(folder: Path) -> None:
    (folder / "day-1.csv").write_text("device,round\nab-9,0\nab-2,0\nab-1,2\nab-1,7\n")


def _shorter(folder: Path) -> None:
    (folder / "day-1.csv").write_text("device,round\nab-1,0\n")


def _other_spelling(folder: Path) -> None:
    write_day(folder, 3, "AB_1,5\n")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_changed, "'day-1.csv', whose rows that were imported before have changed"),
        (_vanished, "lacks 'day-1.csv'"),
        (_rewritten, "'day-1.csv', whose rows that were imported before have changed"),
        (_shorter, "'day-1.csv', whose rows that were imported before have changed"),
        (_other_spelling, "differ only in writing"),
    ],
)
def test_an_append_that_is_refused_leaves_the_trace_as_it_was(
    grown: tuple[Path, Path], change: Callable[[Path], None], words: str
) -> None:
    folder, trace = grown
    before = content(trace)
    change(folder)
    with pytest.raises(InputError, match=words):
        append_log(folder, trace)
    assert content(trace) == before
    assert sorted(each.name for each in trace.parent.iterdir()) == ["log", "trace"]


def test_a_parquet_file_that_grew_was_rewritten(tmp_path: Path) -> None:
    file, trace = tmp_path / "log.parquet", tmp_path / "trace"
    pq.write_table(pa.table({"device": [1, 2], "round": [0, 1]}), file)
    append_log(file, trace, **TEXTS)
    pq.write_table(pa.table({"device": [1, 2, 3] * 50, "round": list(range(150))}), file)
    with pytest.raises(InputError, match=r"log\.parquet.*a Parquet file does not grow"):
        append_log(file, trace)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"repeats": "once"}, r"repeats='once' differs .* which had 'refuse'"),
        ({"device_column": "round"}, r"device_column=.*'round'.* which had .*'device'"),
        ({"rounds": 5}, "rounds=5 differs from the first import, which had None"),
    ],
)
def test_options_that_differ_are_refused_with_both_values(
    grown: tuple[Path, Path], option: Mapping[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        append_log(*grown, **option)


def test_a_trace_that_kept_no_rows_cannot_be_appended_to(tmp_path: Path) -> None:
    write_day(tmp_path / "log", 1, "a,0\nb,1\n")
    import_log(tmp_path / "log", "device", "round", None, tmp_path / "trace", renumber=True)
    with pytest.raises(InputError, match="does not keep the rows of its log"):
        append_log(tmp_path / "log", tmp_path / "trace", **TEXTS)


def test_the_first_append_needs_the_columns(tmp_path: Path, fedray_command) -> None:
    write_day(tmp_path / "log", 1, "a,0\nb,1\n")
    with pytest.raises(InputError, match="`device_column=NAME` is needed for the first import"):
        append_log(tmp_path / "log", tmp_path / "trace", renumber=True)
    assert not (tmp_path / "trace").exists()
    options = ("--append", str(tmp_path / "trace"), "--rounds", "logged")
    code, _, said = fedray_command("import", str(tmp_path / "log"), *options)
    assert code == 2
    assert "--column device=NAME` is needed for the first import" in said


def test_new_columns_are_compared_in_old_rows_too(tmp_path: Path) -> None:
    """Files with other columns change by what rows are compared: all are then read again."""
    folder, trace = tmp_path / "log", tmp_path / "trace"
    folder.mkdir()
    options = {**TEXTS, "time_column": "at", "repeats": "each"}
    (folder / "1.csv").write_text(f"device,round,at\na,0,{START}\na,0,{START}\nb,0,{START + 9}\n")
    append_log(folder, trace, **options)
    (folder / "2.csv").write_text(f"device,round,at,try\na,1,{START + 20},1\nb,1,{START + 30},1\n")
    append_log(folder, trace)
    append_log(folder, tmp_path / "whole", **options)
    assert content(trace) == content(tmp_path / "whole")


@pytest.mark.parametrize("ends", ["a,0\nb,1", "a,0\nb,1\n"])
def test_a_last_line_without_an_end_is_read_again(tmp_path: Path, ends: str) -> None:
    folder, trace = tmp_path / "log", tmp_path / "trace"
    file = write_day(folder, 1, ends)
    append_log(folder, trace, **TEXTS)
    with file.open("a") as stream:
        stream.write("2\nc,12\n" if ends.endswith("1") else "a,12\nc,3\n")
    append_log(folder, trace)
    append_log(folder, tmp_path / "whole", **TEXTS)
    assert content(trace) == content(tmp_path / "whole")
    found = ImportedTrace.open(trace)
    assert found.round_label(found.run["rounds"] - 1) == "12"


def test_an_interrupted_append_leaves_the_old_trace_and_can_be_repeated(
    grown: tuple[Path, Path],
) -> None:
    folder, trace = grown
    before = content(trace)
    write_day(folder, 3, "ab-7,8\n")
    program = (
        "import os, sys, fedray.trace.partial as partial\n"
        "def ends(new, old):\n"
        "    if sys.argv[3] == 'after': exchange(new, old)\n"
        "    os._exit(9)\n"
        "exchange, partial.exchange = partial.exchange, ends\n"
        "import fedray\n"
        "fedray.append_log(sys.argv[1], sys.argv[2])\n"
    )
    for moment in ("before", "after"):
        arguments = [sys.executable, "-c", program, str(folder), str(trace), moment]
        assert subprocess.run(arguments, check=False).returncode == 9
        if moment == "before":
            assert {k: v for k, v in content(trace).items() if "." in k} == before
    write_day(folder, 4, "ab-8,9\n")
    append_log(folder, trace)
    append_log(folder, trace.with_name("whole"), **TEXTS)
    assert content(trace) == content(trace.with_name("whole"))
    assert not trace.with_name("trace.partial").exists()


def test_a_link_in_place_of_the_trace_is_not_replaced(tmp_path: Path) -> None:
    write_day(tmp_path / "log", 1, "a,0\nb,1\n")
    append_log(tmp_path / "log", tmp_path / "real", **TEXTS)
    (tmp_path / "trace").symlink_to("real")
    with pytest.raises(InputError, match="exists already"):
        append_log(tmp_path / "log", tmp_path / "trace")
    assert (tmp_path / "trace").is_symlink()


def test_directories_are_exchanged_where_there_is_no_such_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    monkeypatch.setattr("fedray.base.atomic.ctypes.CDLL", lambda *_, **__: object())
    exchange(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old" / "file").read_text() == "new"
    assert (tmp_path / "new" / "file").read_text() == "old"
    assert len(os.listdir(tmp_path)) == 2


def test_the_command_appends_with_the_options_of_the_first_time(tmp_path: Path) -> None:
    folder, trace = str(tmp_path / "log"), str(tmp_path / "trace")
    write_day(tmp_path / "log", 1, "a,0\nb,1\n")
    columns = ["--column", "device=device", "--column", "round=round", "--rounds", "logged"]
    assert CliRunner().invoke(app, ["import", folder, *columns, "--append", trace]).exit_code == 0
    write_day(tmp_path / "log", 2, "c,2\n")
    assert CliRunner().invoke(app, ["import", folder, "--append", trace]).exit_code == 0
    assert ImportedTrace.open(trace).run["rows"] == 3
    refused = CliRunner().invoke(app, ["import", folder, "--append", trace, "--repeats", "once"])
    # `command` of the CLI gives exit code 2 to this error.
    assert isinstance(refused.exception, InputError)
    words = "--repeats='once' differs from the first import, which had 'refuse'"
    assert words in str(refused.exception)


def test_python_offers_the_append(tmp_path: Path) -> None:
    write_day(tmp_path / "log", 1, "a,0\nb,1\n")
    trace = fedray.append_log(tmp_path / "log", tmp_path / "trace", **TEXTS)
    assert trace.run["rows"] == 2
