"""Data that leads out of its file, or is not in order. `tests/fuzz/hostile.py` has many more."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedray.base.errors import InputError


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


def test_a_folder_of_data_with_a_link_that_leads_out_is_refused(tmp_path: Path, source) -> None:
    write_parquet(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.parquet").symlink_to("../d.parquet")
    with pytest.raises(InputError, match=r"a\.parquet: it leads out of"):
        source({"kind": "parquet", "file": "folder"})


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
