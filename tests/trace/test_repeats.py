"""Rows that name a device and round again: copies are dropped, repeats are counted and listed."""

import json
import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedray.audit.assumptions import assumptions_of_import
from fedray.audit.auditing import audit_trace
from fedray.audit.participation import read_patterns
from fedray.base.errors import InputError
from fedray.imports import importer
from fedray.imports.importer import import_log
from fedray.imports.inspected import inspect_log
from fedray.mechanisms.registry import Tree
from fedray.trace.imported import COPIED, ImportedTrace

HEADER = "device,round,time,size\n"
ROWS = "a,0,2026-03-01T10:00:00Z,1\nb,0,2026-03-01T10:05:00Z,1\na,1,2026-03-02T10:00:00Z,1\n"
COPY = "a,0,2026-03-01T10:00:00Z,1\n"
RETRY = "a,0,2026-03-01T10:01:00Z,1\n"


def imported(folder: Path, text: str, **options) -> ImportedTrace:
    (folder / "log.csv").write_text(text)
    options = {"time_column": "time", "renumber": True, **options}
    out = folder / f"trace{len(list(folder.iterdir()))}"
    return import_log(folder / "log.csv", "device", "round", None, out, **options)


def test_copies_are_dropped_without_a_question_and_counted(tmp_path: Path) -> None:
    trace = imported(tmp_path, HEADER + ROWS + COPY * 3)
    assert trace.digest == imported(tmp_path, HEADER + ROWS).digest
    (left,) = trace.left_out
    assert (left.reason, left.rows, trace.incompleteness) == (COPIED, 3, "")
    assert trace.run["repeated_rows"] == 0
    text = "Rows equal to another row in every column, their time included, are copies of one"
    assert f"{text} record: 3." in [it.text for it in assumptions_of_import(trace)]
    audit = audit_trace(trace, 2.0, 1e-6, [Tree()])
    assert f"{text} record: 3." in json.dumps(audit.to_json())


def test_one_retry_among_copies_is_refused_and_listed(tmp_path: Path) -> None:
    text = HEADER + ROWS + COPY * 5 + RETRY
    with pytest.raises(InputError, match=r"1 row of the same .* \(such as device 'a', round 0\)"):
        imported(tmp_path, text)
    once, each = (imported(tmp_path, text, repeats=meaning) for meaning in ("once", "each"))
    assert [(part.rows) for part in once.left_out] == [5, 1]
    assert [part.rows for part in each.left_out] == [5]
    assert (once.run["rows"], each.run["rows"]) == (3, 4)
    for trace in (once, each):
        assert trace.run["repeated_rows"] == 1
        (said,) = (
            text
            for text in [it.text for it in assumptions_of_import(trace)]
            if "repeat another" in text
        )
        assert "device and round: 1. " in said
        # Rows that are left out have examples already.
        assert ("Among them: device #" in said) == (trace is each)


def test_the_audit_of_a_log_names_its_retries(fedray_command, tmp_path: Path) -> None:
    trace = imported(tmp_path, HEADER + ROWS + COPY + RETRY, repeats="each")
    given = ("--mechanism", "tree", "--noise-multiplier", "4")
    text = " ".join(fedray_command("audit", str(trace.path), *given)[1].split())
    assert "left out 1 row equal to another row in every column, such as device #" in text
    assert "note Rows that repeat another row's device and round: 1. Each is" in text


@pytest.mark.parametrize(
    ("text", "options"),
    [
        # Another column tells the rows apart, which may be a number of the update.
        (HEADER + ROWS + COPY.replace(",1\n", ",2\n"), {}),
        # Nothing tells two contributions of a sampler that draws with replacement apart.
        (HEADER + ROWS + COPY, {"time_column": None}),
        # The time is that of the round, which all of its rows have.
        (HEADER + ROWS.replace("10:05", "10:00") + COPY, {}),
        # The first of two columns of one name is equal, the other is not.
        ("device,round,time,x,x\n" + "a,0,2026-03-01T10:00:00Z,1,1\n"
         "b,0,2026-03-01T10:05:00Z,1,1\na,0,2026-03-01T10:00:00Z,1,2\n", {}),
    ],
    ids=["another value", "no time", "time of the round", "two columns of one name"],
)  # fmt: skip
def test_rows_that_may_be_contributions_of_their_own_are_never_dropped(
    tmp_path: Path, text: str, options: dict
) -> None:
    """Dropping them could make a device's sensitivity too small."""
    with pytest.raises(InputError, match="the same device in the same round again"):
        imported(tmp_path, text, **options)
    trace = imported(tmp_path, text, repeats="each", **options)
    assert read_patterns(trace).participations == text.count("\n") - 1
    assert trace.left_out == []


def test_rows_that_cannot_be_compared_are_never_copies(tmp_path: Path) -> None:
    """DuckDB has no half-precision floats."""
    columns = {
        "device": ["a", "a", "b"],
        "round": [0, 0, 0],
        "time": [1_772_366_400, 1_772_366_400, 1_772_366_401],
    }
    for kind, rows in ((pa.float16(), 3), (pa.float32(), 2)):
        table = pa.table({**columns, "half": pa.array([1.0] * 3, kind)})
        pq.write_table(table, tmp_path / "log.parquet")
        out = tmp_path / str(kind)
        trace = import_log(
            tmp_path / "log.parquet", "device", "round", 1, out, time_column="time", repeats="each"
        )
        assert trace.run["rows"] == rows


@pytest.mark.slow  # 10 s: sixty imports
def test_copies_and_repeats_are_what_counting_by_hand_gives(tmp_path: Path, monkeypatch) -> None:
    """Whatever batches the rows come in; rounds of one time have no copies."""
    rng = random.Random(3)
    for case in range(30):
        rows = [
            (f"d{rng.randrange(4)}", rng.randrange(3), rng.randrange(3), rng.randrange(2))
            for _ in range(rng.choice([1, 5, 40]))
        ]
        size, batches = rng.choice([1, 2, 3, 100]), importer.queried
        monkeypatch.setattr(
            importer,
            "queried",
            lambda *args, batches=batches, size=size: (
                batch.slice(start, size)
                for batch in batches(*args)
                for start in range(0, batch.num_rows, size)
            ),
        )
        times_of, devices_of = {}, {}
        for device, number, second, _ in rows:
            times_of.setdefault(number, set()).add(second)
            devices_of.setdefault(number, set()).add(device)
        pairs = Counter(row[:2] for row in rows)
        text = "device,round,time,size\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)
        for repeats in ("each", "once"):
            # With "each", two devices that share a time show that times are not their own.
            has_copies = {
                number: len(times) > 1
                and (repeats == "once" or len(times) >= len(devices_of[number]))
                for number, times in times_of.items()
            }
            kept = [
                row
                for row, count in Counter(rows).items()
                for _ in range(1 if has_copies[row[1]] else count)
            ]
            expected = len(kept) if repeats == "each" else len(pairs)
            (tmp_path / f"{case}{repeats}").mkdir()
            trace = imported(
                tmp_path / f"{case}{repeats}", text, repeats=repeats, time_unit="seconds"
            )
            assert trace.run["rows"] == expected
            assert trace.run["repeated_rows"] == len(kept) - len(pairs)
            copies = [each.rows for each in trace.left_out if each.reason == COPIED]
            assert sum(copies) == len(rows) - len(kept)
            trace.verify()
            if repeats == "once":
                first, last = trace.times(0) or ([], [])
                assert sorted(zip(first, last, strict=True)) == sorted(
                    (
                        min(of_pair) - min(row[2] for row in rows),
                        max(of_pair) - min(row[2] for row in rows),
                    )
                    for of_pair in ([row[2] for row in rows if row[:2] == pair] for pair in pairs)
                )
        monkeypatch.undo()


def test_times_of_batches_hide_no_contributions(tmp_path: Path) -> None:
    """Draws with replacement, whose rows have the time of their batch: each is a contribution."""
    rows = "".join(
        f"{device},{number},2026-03-01T1{number}:0{int(device == 'e')}:00Z,1\n"
        for number in range(2)
        for device in "aaabcde"
    )
    trace = imported(tmp_path, HEADER + rows, repeats="each")
    assert read_patterns(trace).participations == 14
    assert trace.left_out == []


AGAIN = {"device": "a", "round": 0, "time": 1_772_366_400}
OTHER = {"device": "b", "round": 0, "time": 1_772_366_401}


@pytest.mark.parametrize(
    ("one", "other", "is_copy"),
    [
        ({"try": 1, "shard": 2}, {"shard": 1, "try": 2}, False),
        ({"try": 1, "shard": 2}, {"shard": 2, "try": 1}, True),
        ({"try": 1, "shard": 2}, {"try": 1, "piece": 2}, False),
        ({"try": 1}, {"try": 1, "shard": 2}, False),
        ({"try": 1, "shard": None}, {"try": 1}, True),
        ({"try": 1}, {"try": "1"}, False),
        ({"try": 1}, {"try": True}, False),
    ],
)
def test_rows_of_two_files_are_compared_by_the_names_of_their_columns(
    tmp_path: Path, one: dict, other: dict, is_copy: bool
) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    files = ([AGAIN | one, OTHER | dict.fromkeys(one, 7)], [AGAIN | other])
    # CSV has no types.
    for kind in ("json", "csv") if type(other["try"]) is int else ("json",):
        for number, rows in enumerate(files):
            text = [json.dumps(row) for row in rows]
            if kind == "csv":
                cells = [
                    ["" if each is None else str(each) for each in row.values()] for row in rows
                ]
                text = [",".join(each) for each in ([*rows[0]], *cells)]
            (folder / f"{number}").write_text("\n".join(text) + "\n")
        check_copy(folder, tmp_path / kind, is_copy)


def check_copy(folder: Path, out: Path, is_copy: bool) -> None:
    def given() -> ImportedTrace:
        return import_log(folder, "device", "round", 1, out, time_column="time")

    # The inspection compares the same columns.
    notes = inspect_log(folder, {}, rounds={"rounds": 1}).notes
    if is_copy:
        assert [(each.reason, each.rows) for each in given().left_out] == [(COPIED, 1)]
        assert any(each.startswith(f"1 row {COPIED}") for each in notes)
        return
    with pytest.raises(InputError, match="has 1 row of the same device in the same round again"):
        given()
    assert any(each.startswith("1 row of the same device in the same") for each in notes)
