"""Data that leads out of its file, and copies in the cache that somebody changed. `tests/fuzz/hostile.py` has many more."""

import json
import lzma
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedray.base.errors import InputError
from fedray.clients.data.source import FIRST_HELD_OUT, ExampleSource

CLIENTS = {name: {"x": [[1.0 * number, 2.0]], "y": [number]} for number, name in enumerate("abcd")}


def external_storage(file: h5py.File, outside: Path) -> None:
    storage = [(str(outside / "values"), 0, 16)]
    file.create_dataset("train/a/inputs", shape=(1, 2), dtype="f8", external=storage)


def external_link(file: h5py.File, outside: Path) -> None:
    file["train/a/inputs"] = h5py.ExternalLink(str(outside / "o.h5"), "/z/inputs")


def link_of_a_client(file: h5py.File, outside: Path) -> None:
    file["train/a"] = h5py.ExternalLink(str(outside / "o.h5"), "/z")


def soft_link_to_a_link(file: h5py.File, outside: Path) -> None:
    file["metadata/way"] = h5py.ExternalLink(str(outside / "o.h5"), "/z/inputs")
    file["train/a/inputs"] = h5py.SoftLink("/metadata/way")


def virtual_data_set(file: h5py.File, outside: Path) -> None:
    layout = h5py.VirtualLayout(shape=(1, 2), dtype="f8")
    layout[:] = h5py.VirtualSource(str(outside / "o.h5"), "z/inputs", shape=(1, 2))
    file.require_group("train/a").create_virtual_dataset("inputs", layout)


@pytest.mark.parametrize(
    "lead_out",
    [external_storage, external_link, link_of_a_client, soft_link_to_a_link, virtual_data_set],
)
def test_an_hdf5_record_that_leads_out_of_its_file_is_refused_by_name(
    lead_out: Callable[[h5py.File, Path], None], tmp_path: Path, source
) -> None:
    np.ones(2).tofile(tmp_path / "values")
    with h5py.File(tmp_path / "o.h5", "w") as file:
        file["z/inputs"] = np.ones((1, 2))
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["train/b/inputs"] = np.ones((1, 2))
        lead_out(file, tmp_path)
    with pytest.raises(InputError, match=r"d\.h5: train/a/inputs is .*(link|virtual|external)"):
        source({"kind": "pfl_hdf5", "file": "d.h5", "targets": ""})


def write_leaf(folder: Path) -> dict:
    (folder / "d.json").write_text(json.dumps({"user_data": CLIENTS}))
    return {"kind": "leaf", "file": "d.json"}


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
@pytest.mark.parametrize("write", [write_leaf, write_lzma, write_sqlite, write_parquet])
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


def test_leaf_that_is_nested_beyond_the_bound_is_one_line(tmp_path: Path, source) -> None:
    (tmp_path / "d.json").write_text('{"user_data": {"a": {"x": ' + "[" * 20_000)
    with pytest.raises(InputError, match=r"d\.json: values are nested more than 64 deep"):
        source({"kind": "leaf", "file": "d.json"})


def test_a_folder_of_data_with_a_link_that_leads_out_is_refused(tmp_path: Path, source) -> None:
    write_leaf(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.json").symlink_to("../d.json")
    with pytest.raises(InputError, match=r"a\.json: it leads out of"):
        source({"kind": "leaf", "file": "folder"})


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
