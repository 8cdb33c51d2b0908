"""Logs that grow: appends in any steps give the trace of one import of everything."""

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

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
        self.has_texts, self.has_times = chance() < 0.5, chance() < 0.6
        self.time_form = self.random.choice(["iso", "unix", "minute"])
        self.has_owner, self.has_list = chance() < 0.3, chance() < 0.4
        self.is_invalid = chance() < 0.3
        if self.has_times:
            self.options["time_column"] = "at"
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
        for _ in range(self.random.randrange(1, 30)):
            device = self.random.randrange(40)
            # Rounds of a day may go on the next day, when the list has them.
            second = START + 86_400 * day + 60 * self.random.randrange(1440)
            row: Row = {
                "device": f"dev-{chr(97 + device % 26)}{device}" if self.has_texts else device
            }
            row["round"] = 3 * day + self.random.randrange(5)
            row["owner"] = f"person{device // 2}"
            row["outcome"] = self.random.choice(["ok", "ok", "dropped"])
            row["at"] = {
                "iso": f"{_iso(second)}Z",
                "unix": second,
                "minute": f"{_iso(second)[:16]}Z",
            }[self.time_form]
            if self.is_invalid and self.random.random() < 0.1:
                row["device"] = None
            rows += [row] * self.random.choice([1, 1, 1, 2])
        return rows

    def write(self, first: int, end: int) -> None:
        """Writes the days first .. end-1, into a new file or at the end of one."""
        rows = [row for day in self.days[first:end] for row in day]
        # New names may sort before old ones.
        file = self.folder / f"{self.random.randrange(10):02d}-{first}.{self.form}"
        if self.grows:
            file = self.folder / f"{self.random.randrange(2)}.{self.form}"
        is_new = not file.exists()
        if self.form == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), file)
        else:
            lines = [json.dumps(row) for row in rows]
            if self.form == "csv":
                lines = [",".join(map(_cell, row.values())) for row in rows]
                lines = [",".join(rows[0]), *lines] if is_new else lines
            with file.open("a") as stream:
                stream.write("".join(f"{line}\n" for line in lines))
        if self.has_list:
            # The last two rounds are not released yet.
            listed = [each for each in range(3 * end + (0 if end < DAYS else 2)) if each % 7 != 3]
            self.options["rounds_file"].write_text("".join(f"{each}\n" for each in listed))


def _cell(value: Any) -> str:
    return "" if value is None else str(value)


def _iso(second: int) -> str:
    import datetime

    return datetime.datetime.fromtimestamp(second, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S")


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
        (_changed, "'day-1.csv', whose rows of before were changed"),
        (_vanished, "lacks 'day-1.csv'"),
        (_rewritten, "'day-1.csv', whose rows of before were changed"),
        (_shorter, "'day-1.csv', whose rows of before were changed"),
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


def test_the_first_append_needs_the_columns(tmp_path: Path) -> None:
    write_day(tmp_path / "log", 1, "a,0\nb,1\n")
    with pytest.raises(InputError, match="device_column=None is needed for the first import"):
        append_log(tmp_path / "log", tmp_path / "trace", renumber=True)
    assert not (tmp_path / "trace").exists()


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
