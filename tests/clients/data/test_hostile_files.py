"""Data that leads out of its file, and copies in the cache that somebody changed. `tests/fuzz/hostile.py` has many more."""

import lzma
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedray.base.errors import InputError
from fedray.clients.data.source import FIRST_HELD_OUT, ExampleSource


def write_lzma(folder: Path) -> dict:
    write_sqlite(folder)
    (folder / "d.sqlite.lzma").write_bytes(lzma.compress((folder / "d.sqlite").read_bytes()))
    return {"kind": "tff_sqlite", "file": "d.sqlite.lzma", "targets": ""}


def write_sqlite(folder: Path) -> dict:
    """Rows of each client lie apart, so that a copy is made."""
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


def changed_in_place(copy: Path) -> None:
    """The size, and the time of the last modification, stay the same."""
    before, content = copy.stat(), bytearray(copy.read_bytes())
    content[len(content) // 2 :] = content[: len(content) - len(content) // 2]
    copy.write_bytes(content)
    os.utime(copy, ns=(before.st_atime_ns, before.st_mtime_ns))


def emptied(copy: Path) -> None:
    copy.write_bytes(b"")


def exchanged_for_a_link(copy: Path) -> None:
    copy.rename(copy.parent.parent / "elsewhere")
    copy.symlink_to(copy.parent.parent / "elsewhere")


def exchanged_for_a_pipe(copy: Path) -> None:
    copy.unlink()
    os.mkfifo(copy)


def without_its_digest(copy: Path) -> None:
    copy.with_name(f"{copy.name}.sha256").unlink()


@pytest.mark.parametrize(
    "damage",
    [changed_in_place, emptied, exchanged_for_a_link, exchanged_for_a_pipe, without_its_digest],
)
@pytest.mark.parametrize("write", [write_lzma, write_sqlite, write_parquet])
def test_a_damaged_copy_in_the_cache_is_made_again(
    write: Callable[[Path], dict],
    damage: Callable[[Path], None],
    tmp_path: Path,
    cache: Path,
    source,
) -> None:
    table = write(tmp_path)
    expected = examples_of(source(table))
    copies = [file for file in cache.rglob("*") if file.suffix in (".sqlite", ".parquet")]
    assert copies
    content = [copy.read_bytes() for copy in copies]
    for copy in copies:
        damage(copy)
    with pytest.warns(UserWarning, match="it is made again"):
        again = source(table)
    assert examples_of(again) == expected
    assert [copy.read_bytes() for copy in copies] == content
    assert not any(copy.is_symlink() for copy in copies)


def examples_of(opened: ExampleSource) -> list:
    devices = np.array([0, 1, 2, FIRST_HELD_OUT], np.uint64)
    return [
        opened.examples(each, np.zeros((1, 1), np.int64))["inputs"].tolist()
        for each in devices[:, None]
    ]


def test_a_file_beside_the_copies_is_not_read(tmp_path: Path, cache: Path, source) -> None:
    table = write_parquet(tmp_path)
    expected = examples_of(source(table))
    (folder,) = (cache / "data").glob("*/gathered")
    pq.write_table(pa.table({"client": ["z"], "inputs": [9.0]}), folder / "more.parquet")
    for index in folder.parent.glob("*.index"):
        index.unlink()
    assert examples_of(source(table)) == expected


def test_an_archive_that_unpacks_beyond_the_bound_leaves_nothing(
    tmp_path: Path, cache: Path, source
) -> None:
    (tmp_path / "d.sqlite.xz").write_bytes(lzma.compress(bytes(65 << 20), preset=0))
    with pytest.raises(InputError, match="more than 100 times its size"):
        source({"kind": "tff_sqlite", "file": "d.sqlite.xz"})
    (folder,) = (cache / "data").iterdir()
    assert [(file.name, file.stat().st_size) for file in folder.iterdir()] == [("lock", 0)]


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
