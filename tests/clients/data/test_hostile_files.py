"""Data that leads out of its file, or is not in order. `tests/fuzz/hostile.py` has many more."""

import pickle
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedray.base.errors import InputError
from fedray.clients.data.factory import source_of
from fedray.scenario import Scenario


def write_sqlite(folder: Path) -> dict:
    """Rows of each client lie apart."""
    with sqlite3.connect(folder / "d.sqlite") as connection:
        connection.execute("CREATE TABLE examples(split_name, client_id, serialized_example_proto)")
        # An Example with the feature `pixels`, of one float.
        content = bytes.fromhex("0a140a120a06706978656c73120812060a0400008040")
        rows = [("train", name, content) for name in "abab"]
        connection.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
    connection.close()
    return {"kind": "tff_sqlite", "file": "d.sqlite", "targets": ""}


def write_parquet(folder: Path) -> dict:
    rows = {"client": ["a", "b", "a", "b"], "inputs": [1.0, 2.0, 3.0, 4.0]}
    pq.write_table(pa.table(rows), folder / "d.parquet")
    return {"kind": "parquet", "file": "d.parquet", "targets": ""}


@pytest.mark.parametrize("write", [write_sqlite, write_parquet])
def test_rows_of_a_client_that_lie_apart_are_refused(
    write: Callable[[Path], dict], tmp_path: Path, source
) -> None:
    with pytest.raises(InputError, match="rows of client 'a' of split .* sort the file"):
        source(write(tmp_path))


@pytest.mark.parametrize("linked", ["a file", "a folder"])
def test_links_lead_out_of_a_users_own_folder_and_of_no_trace_s(
    linked: str, tmp_path: Path, scenario_of
) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    for place in (outside, folder):
        place.mkdir()
    rows = {"client": ["a", "a", "b", "b"], "inputs": [1.0, 2.0, 3.0, 4.0]}
    pq.write_table(pa.table(rows), outside / "d.parquet")
    (folder / "in").symlink_to(outside / "d.parquet" if linked == "a file" else outside)
    table = {"kind": "parquet", "file": "folder", "targets": ""}
    own = scenario_of(table)
    for scenario in (own, own.with_overrides("rounds.count=3"), pickle.loads(pickle.dumps(own))):
        assert source_of(scenario).held_out_devices == 1
    tables = own.to_tables()
    recorded = Scenario.from_tables(tables, directory=tmp_path, is_recorded=True)
    # An override makes the rest of a trace's tables no more the user's own than before.
    for scenario in (recorded, recorded.with_overrides("rounds.count=3")):
        with pytest.raises(InputError, match="'in': it leads out of"):
            source_of(scenario)
    named = recorded.with_overrides(f"data.file={folder}")
    assert source_of(named).held_out_devices == 1


def test_a_view_for_a_table_is_not_computed(tmp_path: Path, source) -> None:
    with sqlite3.connect(tmp_path / "d.sqlite") as connection:
        connection.execute(
            "CREATE VIEW examples AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
            " SELECT 'train' AS split_name, i AS client_id, x'00' AS serialized_example_proto,"
            " i AS rowid FROM n"
        )
    connection.close()
    with pytest.raises(InputError, match="not authorized"):
        source({"kind": "tff_sqlite", "file": "d.sqlite"})
