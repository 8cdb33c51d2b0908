"""What a log says is told or refused, never guessed: which rounds released, what repeated rows are, when it was, who is one device."""

import datetime
import gzip
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedray.audit.assumptions import assumptions_of_import
from fedray.audit.names import DeviceNames
from fedray.audit.participation import read_patterns
from fedray.audit.sensitivity import trace_sensitivity
from fedray.base.errors import InputError, RunFailed, TraceCorrupt, TraceVersion
from fedray.imports import importer
from fedray.imports.importer import UNRELEASED, import_log
from fedray.imports.log_times import shown_range
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import BLT, Identity, Tree
from fedray.trace.imported import ImportedTrace, open_trace

START = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)


@pytest.fixture
def log(tmp_path: Path):
    """Writes a CSV log; imports it from columns dev and round."""

    def import_text(text: str, rounds: int | None = None, **options) -> ImportedTrace:
        (tmp_path / "log.csv").write_text(text)
        number = len(list(tmp_path.glob("trace*")))
        device = options.pop("device_column", "dev")
        return import_log(
            tmp_path / "log.csv", device, "round", rounds, tmp_path / f"trace{number}", **options
        )

    return import_text


def rows_of(trace: ImportedTrace) -> list[tuple[str, int]]:
    """(device's name, our round) of every participation."""
    return [
        (trace.name_of(int(device)), int(index))
        for part in trace.accepted()
        for device, index in zip(part.device_ids, part.rounds, strict=True)
    ]


ATTEMPTS = np.flatnonzero(np.random.default_rng(3).random(60) < 0.8) + 1
"""The attempts, counted from 1, that released a model."""


@pytest.fixture
def gaps(tmp_path: Path):
    """A log whose rounds are attempts with gaps; its true patterns by device, counted in released rounds."""
    generator = np.random.default_rng(4)
    patterns = {
        f"d{device}": np.sort(generator.choice(ATTEMPTS.size, 5, replace=False))
        for device in range(30)
    }
    patterns["all"] = np.arange(0, ATTEMPTS.size, 9)
    rows = [(name, int(ATTEMPTS[index])) for name, pattern in patterns.items() for index in pattern]
    rows += [("cover", int(attempt)) for attempt in ATTEMPTS]
    patterns["cover"] = np.arange(ATTEMPTS.size)
    (tmp_path / "log.csv").write_text(
        "dev,round\n" + "".join(f"{name},{attempt}\n" for name, attempt in rows)
    )
    return tmp_path / "log.csv", patterns


def test_rounds_without_a_participation_are_refused_with_both_remedies(
    gaps, tmp_path: Path, fedray_command
) -> None:
    path, _ = gaps
    columns = ("--column", "device=dev", "--column", "round=round", "--out", str(tmp_path / "t"))
    code, _, stderr = fedray_command("import", str(path), *columns, "--rounds", "61")
    assert code == 2
    assert (
        f"has no participation in {61 - ATTEMPTS.size} of the rounds 0 .. 60 (such as 0, " in stderr
    )
    assert "`--rounds=logged`" in stderr
    assert "`--rounds='released.csv'`" in stderr
    assert not (tmp_path / "t").exists()
    code, _, stderr = fedray_command("import", str(path), *columns)
    assert (code, stderr) == (2, "fedray: --rounds and --out are needed; --inspect proposes both\n")
    for rounds, expected in (
        ("1.000", "must be a whole number, in digits only, such as 1000"),
        ("loged", "--rounds='loged' must be N, logged, or a file that exists"),
        ("0", "--rounds=0 must be from 1"),
    ):
        code, _, stderr = fedray_command("import", str(path), *columns, "--rounds", rounds)
        assert (code, stderr.count("\n")) == (2, 1)
        assert expected in stderr
    for more, expected in (
        (("--column", "time"), "must be ROLE=NAME; roles are device, round, owner, time"),
        (("--column", "start=t"), "must be ROLE=NAME; roles are device, round, owner, time"),
        (("--column", "round=r"), "--column round=... is given twice"),
        (("--time-format", "minutes"), "is neither one of s, ms, us, ns nor a format"),
        (
            ("--time-format", "%d.%m.%Y %H:%M", "--time-format", "ms"),
            "--time-format='ms' is a unit, beside which no other may be given",
        ),
        (
            ("--time-format", "%d.%m.%Y"),
            "--time-format='%d.%m.%Y' describes times, but there are none",
        ),
        (
            ("--time-format", "ms"),
            "--time-format='milliseconds' describes times, but there are none",
        ),
    ):
        code, _, stderr = fedray_command("import", str(path), *columns, "--rounds", "9", *more)
        assert (code, stderr.count("\n")) == (2, 1)
        assert expected in stderr
    code, _, stderr = fedray_command("import", str(path), *columns[2:], "--rounds", "logged")
    assert (code, stderr) == (2, "fedray: --column device=NAME must be given\n")


@pytest.mark.parametrize("by", ["ranks", "plain", "csv", "csv with times", "parquet"])
def test_gaps_in_round_numbers_are_closed(gaps, tmp_path: Path, by: str) -> None:
    """Min-sep and sensitivities are those of the released rounds, whichever way they are told."""
    path, patterns = gaps
    options: dict[str, Any] = (
        {"renumber": True} if by == "ranks" else {"rounds_file": tmp_path / "released"}
    )
    times = [
        (START + datetime.timedelta(minutes=7 * place)).isoformat()
        for place in range(ATTEMPTS.size)
    ]
    if by == "plain":
        (tmp_path / "released").write_text("\n".join(map(str, ATTEMPTS)))
    elif by.startswith("csv"):
        head, ends = (
            ("round", [""] * ATTEMPTS.size)
            if by == "csv"
            else ("round,time", [f",{time}" for time in times])
        )
        (tmp_path / "released").write_text(
            head + "\n" + "".join(f"{a}{end}\n" for a, end in zip(ATTEMPTS, ends, strict=True))
        )
    elif by == "parquet":
        options = {"rounds_file": tmp_path / "released.parquet"}
        pq.write_table(
            pa.table({"round": ATTEMPTS, "time": pa.array(times).cast(pa.timestamp("ms", "UTC"))}),
            options["rounds_file"],
        )
    trace = import_log(path, "dev", "round", None, tmp_path / "t", **options)
    found = read_patterns(trace)
    assert trace.committed_rounds == ATTEMPTS.size
    ends = np.cumsum(found.counts)
    for device, count, end in zip(found.device_ids, found.counts, ends, strict=True):
        assert (
            found.rounds[end - count : end].tolist()
            == patterns[trace.name_of(int(device))].tolist()
        )
    assert [int(trace.round_label(index)) for index in range(ATTEMPTS.size)] == ATTEMPTS.tolist()
    listed = trace.round_times()
    assert (listed is not None) == (by in ("csv with times", "parquet"))
    if listed is not None:
        assert listed[0] == pytest.approx(420.0 * np.arange(ATTEMPTS.size))
        assert listed[0].tolist() == listed[1].tolist()
        assert trace.run["times"]["origin"] == START.timestamp()
        assert trace.times(0) is None
    trace.verify()


def test_rows_in_rounds_that_released_nothing_are_left_out_counted_and_named(
    log, tmp_path: Path
) -> None:
    (tmp_path / "released.txt").write_text("2\n5\n9\n")
    trace = log("dev,round\na,2\na,4\na,9\nb,3\nb,4\n", rounds_file=tmp_path / "released.txt")
    assert rows_of(trace) == [("a", 0), ("a", 2)]
    assert [(each.reason, each.rows, each.example) for each in trace.left_out] == [
        (UNRELEASED, 3, "rounds 3, 4")
    ]
    assert not trace.incompleteness
    assert trace.run["empty_rounds"] == 1
    assert any(
        "In 1 of them no device of this log took part." in text
        for text in [it.text for it in assumptions_of_import(trace)]
    )
    with pytest.raises(InputError, match="3 of them in rounds that the rounds file does not have"):
        (tmp_path / "released.txt").write_text("7\n")
        log("dev,round\na,2\na,4\na,9\n", rounds_file=tmp_path / "released.txt")


BAD_LISTS = {
    "repeat": ("3\n4\n3\n", "lists round 3 more than once"),
    "order": ("3\n5\n4\n", "must list rounds in order of release, but 4 comes after 5"),
    "order of time": (
        "round,time\n3,2026-03-02T00:00:00Z\n4,2026-03-01T00:00:00Z\n",
        "but 4 comes after 3; sort the file by time",
    ),
    "word": ("3\nfour\n", "has rounds that are not integers"),
    "word in csv": ("round\n3\nfour\n", "has rounds that are not integers"),
    "negative": ("-3\n4\n", "has round -3"),
    "empty": ("", "it is empty; remove it"),
    "no rows": ("round\n", "lists no round"),
    "no column": (
        "a,b\n1,2\n",
        "has the columns 'a, b'; name the column of rounds 'round' or 'round'",
    ),
    "missing": ("round,time\n1,2026-03-01T00:00:00Z\n,2026-03-01T00:00:00Z\n", "1 lines without"),
    "huge": ("99999999999999999999\n", "has round 99999999999999999999; rounds must be from 0 to"),
    "another header": ("released\n3\n", "has the columns 'released'; name the column of rounds"),
    "a comment": ("# released\n3\n", "has the columns '# released'; name the column"),
    "a sign": ("+3\n4\n", "has the columns '+3'; name the column of rounds"),
    "a real": ("3.0\n4.0\n", "has the columns '3.0'; name the column of rounds"),
    "a space inside": ("3 4\n5\n", "has the columns '3 4'; name the column of rounds"),
    "two columns without a header": ("3,x\n4,x\n", "has the columns '3, x'; name the column"),
    "a flag": (
        "round,released\n3,1\n4,0\n",
        "may only have rounds and their times; keep only released rounds, and drop the column "
        "'released'",
    ),
    "a state": ("round,state\n3,committed\n4,aborted\n", "drop the column 'state'"),
    "two columns of times": (
        "round,time,at\n3,2026-03-01T00:00:00Z,2026-03-01T00:00:00Z\n",
        "drop the column 'at'",
    ),
}


@pytest.mark.parametrize("case", BAD_LISTS)
def test_a_list_of_rounds_that_is_in_doubt_is_refused(log, tmp_path: Path, case: str) -> None:
    content, expected = BAD_LISTS[case]
    (tmp_path / "released.csv").write_text(content)
    with pytest.raises(InputError) as refused:
        log("dev,round\na,2\n", rounds_file=tmp_path / "released.csv")
    assert expected in str(refused.value)
    assert not (tmp_path / "trace0").exists()


MARK = "\ufeff"
PLAIN_LISTS = {
    "digits": b"3\n4\n9\n",
    "a byte order mark": f"{MARK}3\n4\n9\n".encode(),
    "Windows": f"{MARK}3\r\n4\r\n9\r\n".encode(),
    "carriage returns": b"3\r4\r9\r",
    "quotes": b'"3"\n"4"\n"9"\n',
    "spaces": b" 3 \n 4\n9 \n",
    "blank lines": b"\n\n3\n\n4\n9",
    "no end": b"3\n4\n9",
    "leading zeros": b"03\n04\n09\n",
    "a header": b"round\n3\n4\n9\n",
    "a header and a byte order mark": f"{MARK}round\n3\n4\n9\n".encode(),
    "a quoted header": f'{MARK}"round"\n"3"\n4\n9\n'.encode(),
}


@pytest.mark.parametrize("form", PLAIN_LISTS)
@pytest.mark.parametrize("suffix", [".txt.gz", ".csv"])
def test_a_list_never_loses_its_first_line(log, tmp_path: Path, form: str, suffix: str) -> None:
    """In any form: a round that is lost brings participations closer together, or leaves them out."""
    content = PLAIN_LISTS[form]
    file = tmp_path / f"released{suffix}"
    file.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    trace = log("dev,round\na,3\na,4\na,9\n", rounds_file=file)
    assert [trace.round_label(index) for index in range(trace.committed_rounds)] == ["3", "4", "9"]
    assert rows_of(trace) == [("a", 0), ("a", 1), ("a", 2)]


def test_a_list_may_be_one_round_without_an_end(log, tmp_path: Path) -> None:
    file = tmp_path / "released"
    file.write_bytes(b"3")
    assert rows_of(log("dev,round\na,3", rounds_file=file)) == [("a", 0)]


def test_a_log_without_a_suffix_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    text, table, packed = tmp_path / "log.txt", tmp_path / "log.bin", tmp_path / "log.gzip"
    text.write_text("dev,round\na,0\nb,1\n")
    pq.write_table(pa.table({"dev": ["a", "b"], "round": [0, 1]}), table)
    packed.write_bytes(gzip.compress(text.read_bytes(), mtime=0))
    for number, file in enumerate((text, table, packed)):
        trace = import_log(file, "dev", "round", 2, tmp_path / f"trace{number}")
        assert rows_of(trace) == [("a", 0), ("b", 1)]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_files_in_utf_16_are_refused_by_that_name(log, tmp_path: Path, encoding: str) -> None:
    (tmp_path / "released.csv").write_bytes("3\n4\n".encode(encoding))
    with pytest.raises(InputError, match="released.csv' cannot be .* to UTF-8, for example with"):
        log("dev,round\na,3\n", rounds_file=tmp_path / "released.csv")
    file = tmp_path / "wide.csv"
    file.write_bytes("dev,round\na,0\nb,1\n".encode(encoding))
    with pytest.raises(InputError, match="wide.csv' cannot be .* to UTF-8, for example with"):
        import_log(file, "dev", "round", 2, tmp_path / "t")


def test_a_header_that_may_be_a_round_is_refused(tmp_path: Path) -> None:
    """A log whose column of rounds is named 0."""
    (tmp_path / "log.csv").write_text("dev,0\na,0\na,1\n")
    (tmp_path / "released.txt").write_text("0\n1\n")
    with pytest.raises(InputError, match="begins with '0', a round or a name"):
        import_log(
            tmp_path / "log.csv",
            "dev",
            "0",
            None,
            tmp_path / "t",
            rounds_file=tmp_path / "released.txt",
        )


def test_rounds_may_be_out_of_order_of_number_if_times_say_so(log, tmp_path: Path) -> None:
    (tmp_path / "released.csv").write_text("time,round\n1767225600,7\n1767225700,3\n")
    trace = log("dev,round\na,3\nb,7\n", rounds_file=tmp_path / "released.csv")
    assert rows_of(trace) == [("a", 1), ("b", 0)]
    assert trace.round_label(0) == "7"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"rounds": 3, "renumber": True},
            "must be given in one way",
        ),
        ({"rounds": 0}, "rounds=0 must be from 1"),
        ({"renumber": True, "rounds_file": True}, "must be given in one way"),
        ({"rounds": 3, "rounds_file": True}, "must be given in one way"),
        ({"rounds_file": "nowhere"}, "nowhere' does not exist"),
        ({"renumber": True, "repeats": "twice"}, "repeats='twice' is none of refuse, once, each"),
        ({"renumber": True, "where": ["dev"]}, "where='dev' must be COLUMN=VALUE"),
        ({"renumber": True, "where": ["x=1"]}, "where='x' is not a column"),
        ({"renumber": True, "delimiter": "ab"}, "delimiter='ab' must be one character"),
        (
            {"renumber": True, "time_zone": "UTC"},
            "time_zone='UTC' describes times, but there are none",
        ),
        (
            {"renumber": True, "delimiter": ";"},
            "it has dev,round; its first line has no ';', but delimiter=',' would split it",
        ),
        ({"renumber": True, "time_column": "round"}, "column 'round' is given twice"),
        ({"renumber": True, "device_column": ["dev", "dev"]}, "column 'dev' is given twice"),
    ],
)
def test_options_that_contradict_each_other_or_the_log_are_refused(
    log, tmp_path: Path, options: dict, expected: str
) -> None:
    (tmp_path / "released.txt").write_text("2\n4\n")
    if options.get("rounds_file") is True:
        options = {**options, "rounds_file": tmp_path / "released.txt"}
    with pytest.raises(InputError, match=expected):
        log("dev,round\na,2\na,4\n", **options)


def test_rounds_out_of_range_are_never_left_out(log) -> None:
    """They are participations like others: dropping them would make the trace look better than it was."""
    with pytest.raises(InputError) as refused:
        log("dev,round\na,0\na,1\nb,2\nc,\n", 2, leave_out_invalid=True)
    assert "1 row with a round beyond rounds-1=1" in str(refused.value)
    assert "leave_out_invalid" not in str(refused.value)
    assert "renumber=True" in str(refused.value)
    assert log("dev,round\na,0\na,1\nb,2\nc,\n", 3, leave_out_invalid=True).incompleteness


def test_a_log_without_any_usable_row_is_refused_although_invalid_rows_may_be_left_out(
    log, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"has no participation \(2 rows"):
        log("dev,round\n,1\na,\n", renumber=True, leave_out_invalid=True)
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


def test_a_rounds_file_with_two_columns_of_one_name_is_refused(log, tmp_path: Path) -> None:
    """It is not known which of them has the rounds."""
    (tmp_path / "released.csv").write_text("round,round\n0,1\n1,0\n")
    with pytest.raises(InputError, match="has two columns with the same name"):
        log("dev,round\na,0\n", rounds_file=tmp_path / "released.csv")


REPEATED_LOG = "dev,round\na,0\na,3\na,3\nb,1\nb,2\nb,2\nb,2\n"


def test_repeated_rows_are_refused_until_somebody_says_what_they_are(
    log, tmp_path: Path, fedray_command
) -> None:
    with pytest.raises(
        InputError,
        match=r"has 3 rows of the same device in the same round again \(such as device 'a', round 3; "
        r"device 'b', round 2; device 'b', round 2\)",
    ):
        log(REPEATED_LOG, 4)
    once = log(REPEATED_LOG, 4, repeats="once")
    assert rows_of(once) == [("a", 0), ("a", 3), ("b", 1), ("b", 2)]
    assert any(
        "Rows that repeat another row's device and round: 3. They are records" in text
        for text in [it.text for it in assumptions_of_import(once)]
    )
    code, _, stderr = fedray_command(
        "import", str(tmp_path / "log.csv"), "--column", "device=dev", "--column", "round=round", "--rounds", "4", "--out",
        str(tmp_path / "u"),
    )  # fmt: skip
    assert code == 2
    assert "--repeats='once'" in stderr
    assert "--repeats='each'" in stderr


@pytest.mark.parametrize(
    "strategy", [Identity(), Tree(), BLT(theta=(0.7, 0.4), omega=(0.9, 0.5))], ids=lambda s: s.kind
)
def test_contributions_of_their_own_all_count(log, strategy) -> None:
    """Each: the trace's sensitivity is the largest norm of the columns as often as the device contributed."""
    trace = log(REPEATED_LOG, 4, repeats="each")
    assert rows_of(trace) == [("a", 0), ("a", 3), ("a", 3), ("b", 1), ("b", 2), ("b", 2), ("b", 2)]
    assert trace.left_out == []
    patterns = read_patterns(trace)
    assert (patterns.min_sep, patterns.max_participations) == (0, 4)
    G = strategy.gram(4)
    expected = max(
        float(np.sqrt(G[np.ix_(rounds, rounds)].sum())) for rounds in ([0, 3, 3], [1, 2, 2, 2])
    )
    found = trace_sensitivity(strategy, patterns)
    assert found.value == pytest.approx(expected, rel=1e-12)
    assert found.is_exact
    once = trace_sensitivity(strategy, read_patterns(log(REPEATED_LOG, 4, repeats="once")))
    assert once.value < found.value <= 3 * strategy.participation_sensitivity(MinSep(4, 1, 2)).value


TIMES = ["2026-03-01T12:00:00Z", "2026-03-01T12:00:00.500Z", "2026-03-04T11:59:59Z"]
SECONDS = [0.0, 0.5, 3 * 86400.0 - 1.0]
UNIX = [START.timestamp() + each for each in SECONDS]
FORMS = {
    "ISO 8601 in UTC": TIMES,
    "other offsets": [
        "2026-03-01T13:00:00+01:00",
        "2026-03-01T07:00:00.500-05:00",
        "2026-03-04T11:59:59+00:00",
    ],
    "ISO 8601 without an offset from UTC, taken as UTC": [
        time.replace("T", " ").removesuffix("Z") for time in TIMES
    ],
    "with the word": [time.replace("T", " ").replace("Z", " UTC") for time in TIMES],
    "numbers, Unix seconds": [f"{each:.3f}" for each in UNIX],
    "numbers, Unix milliseconds": [f"{1e3 * each:.0f}" for each in UNIX],
    "numbers, Unix microseconds": [f"{1e6 * each:.0f}" for each in UNIX],
    "numbers, Unix nanoseconds": [f"{1e9 * each:.0f}" for each in UNIX],
}


@pytest.mark.parametrize("form", FORMS)
def test_times_of_any_form_are_the_same_seconds(log, form: str) -> None:
    first, second, third = FORMS[form]
    trace = log(f"round,at,dev\n1,{third},a\n0,{first},b\n0,{second},a\n", 2, time_column="at")
    times = trace.times(0)
    assert times is not None
    assert rows_of(trace) == [("a", 0), ("a", 1), ("b", 0)]
    assert times[0] == pytest.approx([SECONDS[1], SECONDS[2], SECONDS[0]], abs=1e-6)
    assert trace.run["times"]["origin"] == START.timestamp()
    if "," in form or form.startswith("ISO"):
        assert trace.run["times"]["form"] == form
    round_times = trace.round_times()
    assert round_times is not None
    assert round_times[0] == pytest.approx([SECONDS[0], SECONDS[2]], abs=1e-6)
    assert round_times[1] == pytest.approx([SECONDS[1], SECONDS[2]], abs=1e-6)
    trace.verify()


@pytest.mark.parametrize(
    "kind", [pa.timestamp("s"), pa.timestamp("ns", "Europe/Berlin"), pa.int64(), pa.float64()]
)
def test_times_of_parquet_s_own_types(tmp_path: Path, kind: pa.DataType) -> None:
    whole = pa.array([int(START.timestamp()) + each for each in (0, 60)], pa.int64())
    times = (
        whole.cast(pa.timestamp("s")).cast(kind)
        if pa.types.is_timestamp(kind)
        else whole.cast(kind)
    )
    pq.write_table(
        pa.table({"dev": [1, 2], "round": [0, 1], "at": times}), tmp_path / "log.parquet"
    )
    trace = import_log(
        tmp_path / "log.parquet", "dev", "round", 2, tmp_path / "t", time_column="at"
    )
    times = trace.times(0)
    assert times is not None
    assert times[0].tolist() == [0.0, 60.0]


DOUBTFUL = {
    "small numbers": (
        ["12", "500"],
        "12 (device 'a', round '0'), which is not a Unix time from 2000 to 2100 in any unit; give their unit, such as `time_unit='seconds'`",
    ),
    "two units": (
        [f"{START.timestamp():.0f}", f"{1e3 * START.timestamp():.0f}"],
        "(device 'a', round '1') among Unix seconds",
    ),
    "dates": (
        ["2026-03-01", "2026-03-02"],
        "2 values such as '2026-03-01' (device 'a', round '0'), which is not ISO 8601 with a time of day",
    ),
    "some offsets": (
        ["2026-03-01T12:00:00Z", "2026-03-01T12:00:00"],
        "1 value such as '2026-03-01T12:00:00' (device 'a', round '1') without an offset from UTC, "
        "unlike others",
    ),
    "words": (["yesterday, noon", "today, noon"], "2 values such as 'yesterday, noon'"),
    "days before months": (
        ["2026-03-01 18:30", "24.12.2026 18:30"],
        "1 value such as '24.12.2026 18:30' (device 'a', round '1'), which is not ISO 8601 with a time of day. Accepted",
    ),
    "an offset later": (
        ["2026-03-01T12:00:00", "2026-03-01T12:00:00+01:00"],
        "'2026-03-01T12:00:00+01:00' (device 'a', round '1') with an offset from UTC, unlike others",
    ),
    "an offset in most": (
        ["2026-03-01T12:00:00", TIMES[0], TIMES[1]],
        "1 value such as '2026-03-01T12:00:00' (device 'a', round '0') without an offset",
    ),
    "a zero before text": (
        ["0", TIMES[0], TIMES[1]],
        "1 value such as '0' (device 'a', round '0'), which is not ISO 8601",
    ),
    "text before numbers": (
        [TIMES[0], f"{UNIX[0]:.0f}", f"{UNIX[1]:.0f}"],
        "'2026-03-01T12:00:00Z' (device 'a', round '0'), which is not a number, unlike others",
    ),
    "no such month": (
        [*TIMES, "2026-13-01T12:00:00Z"],
        "'2026-13-01T12:00:00Z' (device 'a', round '3'), which is not a time: month must",
    ),
    "no such day": (
        ["2026-03-01T12:00:00", "2026-02-29T12:00:00", "2026-02-28T12:00:00"],
        "'2026-02-29T12:00:00' (device 'a', round '1'), which is not a time: day is out",
    ),
    "no such hour": (
        [TIMES[0], "2026-03-01T25:00:00Z", TIMES[1]],
        "'2026-03-01T25:00:00Z' (device 'a', round '1'), which is not a time: hour must",
    ),
    "a leap second": (
        [TIMES[0], "2016-12-31T23:59:60Z", TIMES[1]],
        "'2016-12-31T23:59:60Z' (device 'a', round '1'), which is a leap second",
    ),
    "no such offset": (
        [TIMES[0], "2026-03-01T12:00:00+25:00"],
        "'2026-03-01T12:00:00+25:00' (device 'a', round '1'), which is not a time",
    ),
    "beyond nanoseconds": (
        [TIMES[0], "9999-12-31T23:59:59Z"],
        "'9999-12-31T23:59:59Z' (device 'a', round '1'), which is not a time from 2000 to 2100. Acc",
    ),
    "not finite": (
        [f"{START.timestamp():.0f}", "inf"],
        "a number that is not finite, 1 value such as inf (device 'a', round '1')",
    ),
    "number, then text": (
        [f"{START.timestamp():.0f}", "2026-03-01T12:00:00Z"],
        "'2026-03-01T12:00:00Z' (device 'a', round '1'), which is not a number, unlike others",
    ),
}


@pytest.mark.parametrize("case", DOUBTFUL)
def test_times_in_doubt_are_refused(log, case: str) -> None:
    values, expected = DOUBTFUL[case]
    lines = "".join(f'a,{place},"{value}"\n' for place, value in enumerate(values))
    with pytest.raises(InputError) as refused:
        log("dev,round,at\n" + lines, len(values), time_column="at")
    assert expected in str(refused.value)
    assert "column 'at' of log" in str(refused.value)
    assert "such as 2026-03-01T12:00:00Z, timestamps, Unix numbers such as 1772366400" in str(
        refused.value
    )


def test_rows_without_a_time_are_counted_and_refused_with_a_remedy(log) -> None:
    words = ["", "NULL", " unknown ", "2026-03-01T12:00:00Z"]
    lines = "".join(f'a,{place},"{word}"\n' for place, word in enumerate(words))
    with pytest.raises(InputError) as refused:
        log("dev,round,at\n" + lines, 4, time_column="at")
    text = "has rows that cannot be used: 3 rows without a time (such as device 'a', round '0'); "
    assert f"{text}correct the log; or leave out the column of times" in str(refused.value)
    assert log("dev,round,at\n" + lines, 4).run["rows"] == 4


OUTSIDE = {
    "zero in text": ([TIMES[0], "1970-01-01T00:00:00Z"], {}, "1970-01-01T00:00:00Z"),
    "local": (["2026-03-01 12:00", "2199-01-01 00:00"], {}, "2199-01-01 00:00"),
    "local of a zone": (
        ["2026-03-01 12:00", "1999-12-31 00:00"],
        {"time_zone": "Europe/Berlin"},
        "1999-12-31 00:00",
    ),
    "a format": (
        ["01.03.2026 12:00", "01.01.1970 00:00"],
        {"time_format": "%d.%m.%Y %H:%M"},
        "01.01.1970 00:00",
    ),
    "numbers": ([f"{START.timestamp():.0f}", "0"], {}, "0"),
    "numbers of a unit": (
        [f"{START.timestamp():.0f}", "0"],
        {"time_unit": "seconds"},
        "0",
    ),
    "seconds": (pa.array([UNIX[0], 0]).cast(pa.int64()).cast(pa.timestamp("s")), {}, "1970-01-01"),
    "far": (
        pa.array([UNIX[0] * 1e3, 253_402_300_799_000]).cast(pa.int64()).cast(pa.timestamp("ms")),
        {},
        "9999-12-31 23:59:59",
    ),
    "with a zone": (
        pa.array([UNIX[0] * 1e9, 1.0]).cast(pa.int64()).cast(pa.timestamp("ns", "UTC")),
        {},
        "1970-01-01 00:00:00.000000001",
    ),
    "beyond Python": (
        pa.array([int(UNIX[0]), 4_102_444_800_00]).cast(pa.timestamp("s")),
        {},
        "14970-",
    ),
}


@pytest.mark.parametrize("form", OUTSIDE)
@pytest.mark.parametrize("is_first", [False, True])
def test_times_before_2000_or_after_2100_are_refused_in_every_form(
    tmp_path: Path, form: str, is_first: bool
) -> None:
    """They stand for missing ones, and would make waits look longer than any timer. The message
    names the wrong row, not a good one."""
    values, options, expected = OUTSIDE[form]
    if is_first:
        values = values[::-1]
    table = {"dev": ["a", "a"], "round": [0, 1], "at": values}
    pq.write_table(pa.table(table), tmp_path / "log.parquet")
    with pytest.raises(InputError) as refused:
        import_log(
            tmp_path / "log.parquet",
            "dev",
            "round",
            2,
            tmp_path / "t",
            time_column="at",
            **options,
        )
    message = str(refused.value)
    assert re.search("before 2000 or after 2100|among Unix|from 2000 to 2100", message)
    assert expected in message
    assert f"(device 'a', round {0 if is_first else 1})" in message
    assert not (tmp_path / "t").exists()


def test_a_wrong_number_among_unix_times_is_named_in_whichever_batch(log, monkeypatch) -> None:
    monkeypatch.setattr("fedray.imports.log_files.BLOCK_BYTES", 64)
    lines = "".join(f"a,{place},{UNIX[0] + place:.0f}\n" for place in range(40))
    for first, last in (("a,40,0\n", ""), ("", "a,40,0\n")):
        with pytest.raises(InputError, match=r"such as 0 \(device 'a', round '40'\) among Unix"):
            text = f"dev,round,at\n{first}{lines}{last}"
            log(text, renumber=True, time_column="at", time_unit="seconds")


def test_a_space_before_an_offset_is_read(log) -> None:
    """As git, Ruby and PostgreSQL write times."""
    for spaced, origin in (
        ("2026-03-01 17:30:00 +0530", START.timestamp()),
        ("2026-03-01 07:00:00.5 -05:00", START.timestamp() + 0.5),
        ("2026-03-01 12:00:00 Z", START.timestamp()),
    ):
        trace = log(f"dev,round,at\na,0,{spaced}\n", 1, time_column="at")
        assert trace.run["times"]["origin"] == origin
        assert trace.run["times"]["form"] == "ISO 8601 in UTC"


def test_numbers_from_any_start_are_times_once_their_unit_is_told(log) -> None:
    trace = log("dev,round,at\na,0,500\na,1,90500\n", 2, time_column="at", time_unit="milliseconds")
    times = trace.times(0)
    assert times is not None
    assert times[0].tolist() == [0.0, 90.0]


def test_text_of_a_format_is_read_as_that_format_says(log, tmp_path: Path, monkeypatch) -> None:
    """Those of the released rounds too; times without an offset are UTC."""
    released = tmp_path / "released.csv"
    released.write_text("round;at\n0;24.12.2025 18:30\n1;01.03.2026 07:05\n")
    lines = "dev;round;at\na;0;24.12.2025 18:30\na;1;1.3.2026 7:06\n"
    german = {"time_column": "at", "time_format": "%d.%m.%Y %H:%M", "delimiter": ";"}
    trace = log(lines, rounds_file=released, **german)
    times = trace.times(0)
    assert times is not None
    span = datetime.datetime(2026, 3, 1, 7, 6) - datetime.datetime(2025, 12, 24, 18, 30)
    assert times[0].tolist() == [0.0, span.total_seconds()]
    told = trace.run["times"]
    origin = datetime.datetime(2025, 12, 24, 18, 30, tzinfo=datetime.UTC)
    assert told["origin"] == origin.timestamp()
    form = "text of the form '%d.%m.%Y %H:%M' without an offset from UTC, taken as UTC"
    assert told["form"] == told["rounds_file_form"] == form
    # Whoever imports may be anywhere.
    monkeypatch.setenv("TZ", "Europe/Berlin")
    with_offset = log(
        "dev,round,at\na,0,2025-12-24 18h30 +0100\n",
        1,
        time_column="at",
        time_format="%Y-%m-%d %Hh%M %z",
    )
    assert with_offset.run["times"]["origin"] == origin.timestamp() - 3600.0
    assert with_offset.run["times"]["form"] == "text of the form '%Y-%m-%d %Hh%M %z' in UTC"


@pytest.mark.parametrize(
    ("time_format", "value", "expected"),
    [
        # pyarrow and C read the 31st of February as the 3rd of March.
        ("%d.%m.%Y %H:%M", "31.02.2025 18:30", "1 value such as '31.02.2025 18:30' (device 'a', "),
        (
            "%d.%m.%Y %H:%M",
            "24.12.2025 18:30:12",
            "which does not match `time_format='%d.%m.%Y %H:%M'`",
        ),
        ("%d.%m.%Y %H:%M", "24.12.25 18:30", "before 2000 or after 2100; use %y for"),
        ("%d.%m.%Y", "24.12.2025", "'%d.%m.%Y' does not name a date with a time of day"),
        ("%d.%m.%Y %I:%M", "24.12.2025 06:30", "does not name a date with a time of day"),
        ("%H:%M", "18:30", "does not name a date with a time of day"),
        ("dd.mm.yyyy", "24.12.2025", "does not name a date with a time of day"),
        ("%d.%m.%Y %Q", "24.12.2025", "time_format='%d.%m.%Y %Q' cannot be read"),
        ("%é", "24.12.2025", "time_format='%é' cannot be read"),
    ],
)
def test_a_format_that_does_not_read_every_time_is_refused(
    log, time_format: str, value: str, expected: str
) -> None:
    with pytest.raises(InputError) as refused:
        log(f"dev,round,at\na,0,{value}\n", 1, time_column="at", time_format=time_format)
    assert expected in str(refused.value)


def test_two_formats_of_times_are_read_if_they_agree(log) -> None:
    lines = "dev,round,at\na,0,{}\na,1,2025-12-24 19:30\n"
    german, american, iso = "%d.%m.%Y %H:%M", "%m.%d.%Y %H:%M", "%Y-%m-%d %H:%M"
    trace = log(lines.format("24.12.2025 18:30"), 2, time_column="at", time_format=[german, iso])
    assert trace.times(0)[0].tolist() == [0.0, 3600.0]
    assert trace.run["times"]["form"].startswith(f"text of the form {german!r} or {iso!r} without")
    # The third of March is the same day in both.
    formats = [german, american, iso]
    same = log(lines.format("03.03.2025 18:30"), 2, time_column="at", time_format=formats)
    assert same.times(0)[0][0] == 0.0
    for value, given, expected in (
        ("03.04.2025 18:30", formats, "1 value such as '03.04.2025 18:30' (device 'a', round '0')"),
        ("03.04.2025 18:30", formats, f"`time_format={american!r}` and"),
        ("24/12/2025", [german, iso], "which does not match `time_format="),
        ("24.12.2025 18:30", [german, iso + " %z"], "have %z; all or none must have it"),
    ):
        with pytest.raises(InputError) as refused:
            log(lines.format(value), 2, time_column="at", time_format=given)
        assert expected in str(refused.value)


def test_local_times_are_those_of_their_zone(log) -> None:
    """A night in which clocks are put forward is an hour shorter."""
    lines = "dev,round,at\na,0,2026-03-28 12:00\na,1,2026-03-29 12:00\n"
    trace = log(lines, 2, time_column="at", time_zone="Europe/Berlin")
    times = trace.times(0)
    assert times is not None
    assert times[0].tolist() == [0.0, 23 * 3600.0]
    origin = datetime.datetime(2026, 3, 28, 11, tzinfo=datetime.UTC)
    assert trace.run["times"]["origin"] == origin.timestamp()
    form = "text of the form '%Y-%m-%d %H:%M', local times of Europe/Berlin"
    told = {"time_column": "at", "time_zone": "Europe/Berlin", "time_format": "%Y-%m-%d %H:%M"}
    same = log(lines, 2, **told)
    assert same.run["times"]["form"] == form
    assert same.digest == trace.digest


@pytest.mark.parametrize(
    ("zone", "value", "expected"),
    [
        ("Europe/Berlin", "2025-10-26T02:30", "1 value such as '2025-10-26T02:30' (device 'a',"),
        ("Europe/Berlin", "2026-03-29T02:30", "showed twice or never, because they were changed;"),
        ("Europe/Berlim", "2026-03-29T12:30", "time_zone='Europe/Berlim' is not known"),
        ("Europe/Berlin", "2026-03-29T12:30Z", "ISO 8601 with an offset from UTC, but time_zone="),
        ("Europe/Berlin", "1772366400", "numbers, which count from a moment, but time_zone="),
    ],
)
def test_local_times_in_doubt_are_refused(log, zone: str, value: str, expected: str) -> None:
    with pytest.raises(InputError) as refused:
        log(f"dev,round,at\na,0,{value}\n", 1, time_column="at", time_zone=zone)
    assert expected in str(refused.value)


def test_a_format_is_for_text_alone(log, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="time_unit='seconds' is for numbers, but `time_format="):
        given = {"time_unit": "seconds", "time_format": "%d.%m.%Y %H:%M"}
        log("dev,round,at\na,0,12\n", 1, time_column="at", **given)
    file = tmp_path / "log.parquet"
    pq.write_table(pa.table({"dev": [1], "round": [0], "at": pa.array([START])}), file)
    with pytest.raises(InputError, match="time_format=.* is for text; leave it out"):
        import_log(
            file, "dev", "round", 1, tmp_path / "t", time_column="at", time_format="%d.%m.%Y %H:%M"
        )


def test_a_csv_that_cannot_be_parted_names_the_delimiter_that_could(log) -> None:
    for text, named in (("dev;round\na,b;0\n", "';'"), ("dev\tround\na,b\t0\n", "'tab'")):
        with pytest.raises(
            InputError, match=f"but delimiter={named} would split it\\); correct it"
        ):
            log(text, 1)


def test_rounds_that_time_contradicts_are_reported(log) -> None:
    trace = log(
        f"dev,round,at\na,0,{TIMES[2]}\nb,1,{TIMES[0]}\nc,1,{TIMES[1]}\n", 2, time_column="at"
    )
    assert trace.run["rounds_out_of_order"] == 1
    assert any(
        "1 rounds ended before the round numbered just before them began" in text
        for text in [it.text for it in assumptions_of_import(trace)]
    )


def test_what_is_not_known_of_a_round_s_times_makes_them_wider(log, tmp_path: Path) -> None:
    """A timer's bound rests on the earliest and latest time of a round: too narrow an interval would promise too much."""
    (tmp_path / "released.csv").write_text("".join(f"{index}\n" for index in range(5)))
    text = f"dev,round,at\na,1,{TIMES[0]}\nb,1,{TIMES[1]}\nc,3,{TIMES[2]}\n"
    found = log(text, rounds_file=tmp_path / "released.csv", time_column="at").round_times()
    assert found is not None
    assert found[0].tolist() == pytest.approx([-np.inf, 0.0, 0.0, SECONDS[2], SECONDS[2]])
    assert found[1].tolist() == pytest.approx(
        [SECONDS[1], SECONDS[1], SECONDS[2], SECONDS[2], np.inf]
    )
    (tmp_path / "released.csv").write_text(
        "round,time\n"
        + "".join(f"{index},2026-03-0{index + 1}T12:00:00.250Z\n" for index in (0, 1, 3))
    )
    found = log(text, rounds_file=tmp_path / "released.csv", time_column="at").round_times()
    assert found is not None
    started = [0.25, 86400.25, 3 * 86400.0 + 0.25]
    assert found[0].tolist() == pytest.approx([started[0], 0.0, SECONDS[2]])
    assert found[1].tolist() == pytest.approx([started[0], started[1], started[2]])


def test_rows_that_do_not_meet_the_conditions_are_filtered_not_invalid(log) -> None:
    text = "dev,round,outcome,os\na,0,accepted,x\na,,dropped,x\nb,1,late,y\nc,1,accepted,z\n,7,dropped,\nd,0,accepted,\n"
    trace = log(text, 2, where=["outcome=accepted", "outcome=late", "os=x", "os=y", "os="])
    assert rows_of(trace) == [("a", 0), ("b", 1), ("d", 0)]
    assert (trace.filtered_rows, trace.left_out, trace.incompleteness) == (3, [], "")
    assert any(
        "os=y" in text and "; rows without: 3." in text
        for text in [it.text for it in assumptions_of_import(trace)]
    )
    with pytest.raises(
        InputError,
        match=r"where=\['outcome=ACCEPTED'\] matches none of the 6 rows of log '.*log.csv': column 'outcome' has 'accepted', 'dropped', 'late', but "
        r"'ACCEPTED' is wanted; values must match exactly",
    ):
        log(text, 2, where=["outcome=ACCEPTED"])


def test_conditions_on_columns_of_other_types(tmp_path: Path) -> None:
    table = {
        "dev": [1, 2, 3],
        "round": [0, 1, 0],
        "ok": [True, True, None],
        "size": [3, 4, 3],
        "kind": pa.array(["x", "y", "x"]),
    }
    table["kind"] = table["kind"].dictionary_encode()
    pq.write_table(pa.table(table), tmp_path / "log.parquet")
    for place, (where, devices) in enumerate(
        {"ok=True": [1, 2], "ok=": [3], "size=3": [1, 3], "kind=y": [2]}.items()
    ):
        trace = import_log(
            tmp_path / "log.parquet",
            "dev",
            "round",
            None,
            tmp_path / f"t{place}",
            renumber=True,
            where=[where],
        )
        assert [name for name, _ in rows_of(trace)] == list(map(str, devices))


def test_several_columns_name_a_device_without_confusion(log) -> None:
    """Values that hold the separator, or its escape, do not run together."""
    rows = [("a|b", "c"), ("a", "b|c"), ("a\\", "b|c"), ("a\\|b", "c"), ("a", "b|c")]
    lines = "".join(f"{first},{second},{place}\n" for place, (first, second) in enumerate(rows))
    options = {"device_column": ["dev", "month"], "join_ids": False}
    trace = log("dev,month,round\n" + lines, 5, **options)
    assert trace.run["devices"] == 4
    assert sorted(rows_of(trace)) == sorted(
        [("a\\|b|c", 0), ("a|b\\|c", 1), ("a\\\\|b\\|c", 2), ("a\\\\\\|b|c", 3), ("a|b\\|c", 4)]
    )
    assert trace.unit == "combination of 'dev' and 'month' in the log"
    assert assumptions_of_import(trace)[0].text.startswith("A person behind several of these units")
    with pytest.raises(InputError, match="2 rows without a device"):
        log("dev,month,round\na,,0\n,b,0\n", 1, device_column=["dev", "month"])


def test_other_delimiters(log) -> None:
    assert rows_of(log("dev;round\na,b;0\n", 1, delimiter=";")) == [("a,b", 0)]
    assert rows_of(log("dev\tround\na\t0\n", 1, delimiter="tab")) == [("a", 0)]


def test_a_condition_without_a_row_names_a_few_values_of_however_many_there_are(log) -> None:
    with pytest.raises(InputError) as refused:
        log(
            "dev,round,os\n" + "".join(f"a,{index},v{index}\n" for index in range(300)),
            300,
            where=["os=x", "os=y"],
        )
    assert "has 'v0', 'v1', 'v2', 'v3', 'v4', ..., but 'x' or 'y' is wanted" in str(refused.value)
    assert len(str(refused.value)) < 400


def test_examples_of_what_was_left_out_have_the_hash_that_pages_show_and_no_name(
    log, tmp_path: Path
) -> None:
    text = (
        "dev,round\nalice-phone,0\nalice-phone,0\nbob-phone,1\nalice-phone,\n,1\nmallory-phone,-1\n"
    )
    trace = log(text, 2, repeats="once", leave_out_invalid=True)
    names = {trace.name_of(device): DeviceNames(trace).of(device) for device in range(2)}
    found = {each.reason: each.example for each in trace.left_out}
    assert found["without a round"] == f"device {names['alice-phone']}, round missing"
    assert found["without a device"] == "device missing, round '1'"
    assert (
        found["of the same device in the same round again"]
        == f"device {names['alice-phone']}, round 0"
    )
    assert re.fullmatch(r"device #[0-9a-f]{12}, round '-1'", found["with a negative round"])
    assert "phone" not in json.dumps(trace.run)
    with pytest.raises(
        InputError, match="such as device 'mallory-phone', round '-1'"
    ):  # whoever has the log must find the row
        log(text, 2, repeats="once")


def test_the_two_ends_of_the_times_are_shown_uncut() -> None:
    noon = START.timestamp()
    assert shown_range(noon, noon + 60) == (
        "2026-03-01T12:00:00+00:00",
        "2026-03-01T12:01:00+00:00",
    )
    assert shown_range(noon, noon + 0.25) == (
        "2026-03-01T12:00:00+00:00",
        "2026-03-01T12:00:00.250000+00:00",
    )
    assert shown_range(noon + 0.999999, noon + 1) == (
        "2026-03-01T12:00:00.999999+00:00",
        "2026-03-01T12:00:01+00:00",
    )
    assert shown_range(0.5, noon) == ("0.5 s", f"{noon:.15g} s")


@pytest.mark.parametrize("repeats", ["once", "each"])
def test_repeated_rows_last_from_their_first_to_their_last_time(
    log, monkeypatch, repeats: str
) -> None:
    """Whatever batches the rows come in."""
    rows = "a,0,5\na,0,1\na,0,9\na,0,4\na,1,20\nb,0,3\nb,1,31\nb,1,30\n"
    told = {"time_column": "at", "time_unit": "seconds", "repeats": repeats}
    for size in (1, 2, 3, 5, 100):
        batches = importer.queried
        monkeypatch.setattr(
            importer,
            "queried",
            lambda *args, batches=batches, size=size: (
                batch.slice(start, size)
                for batch in batches(*args)
                for start in range(0, batch.num_rows, size)
            ),
        )
        trace = log("dev,round,at\n" + rows, 2, **told)
        monkeypatch.undo()
        times = trace.times(0)
        assert times is not None
        first, last = times
        if repeats == "each":
            assert (first == last).all()
            assert first.tolist() == [0, 3, 4, 8, 19, 2, 29, 30]
        else:
            assert (first.tolist(), last.tolist()) == ([0, 19, 2, 29], [8, 19, 2, 30])
        said = any(
            "It lasted from the first to the last" in text
            for text in [it.text for it in assumptions_of_import(trace)]
        )
        assert said == (repeats == "once")
        trace.verify()


def test_the_order_of_rounds_is_checked_across_a_round_without_participations(
    log, tmp_path: Path
) -> None:
    (tmp_path / "released.txt").write_text("0\n1\n2\n")
    told = {"rounds_file": tmp_path / "released.txt", "time_column": "at", "time_unit": "seconds"}
    for later, expected in (("200", 1), ("400", 0)):
        trace = log(f"dev,round,at\na,0,300\nb,2,{later}\n", **told)
        assert trace.run["rounds_out_of_order"] == expected


def test_an_import_of_another_version_is_refused(log) -> None:
    trace = log("dev,round\na,0\nb,1\n", 2)
    document = {**trace.run, "version": 2}
    (trace.path / "run.json").write_text(json.dumps(document))
    with pytest.raises(TraceVersion, match="version=2, this release reads 4; import the log again"):
        open_trace(trace.path)


@pytest.mark.parametrize("what", ["times", "log_rounds"])
def test_changed_times_and_numbers_of_rounds_are_noticed(log, what: str) -> None:
    trace = log(f"dev,round,at\na,4,{TIMES[0]}\na,7,{TIMES[2]}\n", renumber=True, time_column="at")
    file = trace.path / (
        "log_rounds.parquet" if what == "log_rounds" else trace.run["parts"][0]["file"]
    )
    table = pq.read_table(file)
    name = "log_round" if what == "log_rounds" else "time"
    changed = pa.array([4, 8], pa.int64()) if what == "log_rounds" else pa.array([0.0, 1.0])
    field = table.schema.field(name)
    pq.write_table(table.set_column(table.schema.get_field_index(name), field, [changed]), file)
    damaged = open_trace(trace.path)
    assert isinstance(damaged, ImportedTrace)
    with pytest.raises(TraceCorrupt, match="changed"):
        damaged.round_label(1) if what == "log_rounds" else damaged.times(0)
    with pytest.raises(TraceCorrupt, match="changed"):
        damaged.verify()


def test_a_header_that_is_not_utf8_is_one_line(tmp_path: Path, fedray_command) -> None:
    (tmp_path / "log.csv").write_bytes("dev,größe,round\na,1,0\n".encode("latin-1"))
    code, _, stderr = fedray_command(
        "import", str(tmp_path / "log.csv"), "--column", "device=dev", "--column", "round=round", "--rounds", "1", "--out",
        str(tmp_path / "t"),
    )  # fmt: skip
    assert (code, stderr.count("\n")) == (2, 1)
    assert "not UTF-8" in stderr
    (tmp_path / "list.csv").write_bytes("größe,round\n1,0\n".encode("latin-1"))
    (tmp_path / "log.csv").write_text("dev,round\na,0\n")
    with pytest.raises(InputError, match="list.csv' cannot be read"):
        import_log(
            tmp_path / "log.csv",
            "dev",
            "round",
            None,
            tmp_path / "t",
            rounds_file=tmp_path / "list.csv",
        )


def test_newlines_in_quotes_across_blocks_are_part_of_the_value(log, monkeypatch) -> None:
    monkeypatch.setattr("fedray.imports.log_files.BLOCK_BYTES", 64)
    lines = "".join(f'"line\none of\n{place}",{place}\n' for place in range(50))
    trace = log("dev,round\n" + lines, 50)
    assert sorted(index for _, index in rows_of(trace)) == list(range(50))


def test_names_of_files_that_are_not_utf8_are_one_line(tmp_path: Path) -> None:
    name = os.fsdecode(b"log\xff.csv")
    try:
        (tmp_path / name).write_text("dev,round\na,0\n")
    except OSError:
        pytest.skip("this file system has no such names")
    with pytest.raises(InputError, match="cannot be read"):
        import_log(tmp_path / name, "dev", "round", 1, tmp_path / "t")
    with pytest.raises(InputError, match="path that is not UTF-8"):
        import_log(tmp_path / "log.csv", "dev", "round", 1, tmp_path / os.fsdecode(b"t\xff"))


def test_a_sort_that_lacks_memory_says_so_in_one_line_and_leaves_nothing(
    log, monkeypatch, tmp_path: Path
) -> None:
    """Little memory means one thread, which 10^7 rows pass with 64 MiB; less than any thread needs is refused by DuckDB."""
    monkeypatch.setattr("fedray.imports.importer.LEAST_MEMORY", 1)
    text = "dev,round\n" + "".join(
        f"a rather long name of a device {place},0\n" for place in range(60_000)
    )
    with pytest.raises(RunFailed, match="raise memory_mebibytes=1") as failed:
        log(text, 1, memory_mebibytes=1)
    assert "\n" not in str(failed.value)
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


@pytest.mark.parametrize("when", ["rows read", "rows sorted"])
def test_an_interrupted_import_leaves_nothing(log, tmp_path: Path, when: str) -> None:
    def interrupt(text: str) -> None:
        if when in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        log("dev,round\na,0\n", 1, on_progress=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]
