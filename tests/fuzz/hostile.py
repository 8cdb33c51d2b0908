"""Hostile files, each read in a process of its own with limits of time and memory: python tests/fuzz/hostile.py [PART OF A NAME | --quick]

Data of every reader, and the content files of traces. What may come of a case: one FedrayError of one line. Everything else is a finding: another exception, a hang, memory
beyond the limit, the end of the process, the content or the digest of a file outside, something left in the cache.
"""

import contextlib
import hashlib
import io
import json
import os
import pickle
import re
import resource
import shutil
import signal
import socket
import sqlite3
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedray.base.errors import FedrayError
from fedray.clients.data import custom  # noqa: F401  (imported before the processes are forked)
from fedray.clients.data.factory import source_of
from fedray.clients.data.readers import parquet, tff_sqlite  # noqa: F401
from fedray.clients.data.source import FIRST_HELD_OUT, DamagedExamples
from fedray.scenario import Scenario
from fedray.scenario.content import PythonFile
from fedray.scenario.data_file import content_digest
from fedray.scenario.python_file import function_in

SECONDS = 60
MEMORY = 4 << 30
"""Most bytes that a case may have in memory."""
SECRET = 31_415_926
"""A number in the files outside."""
SLOW = (
    "sparse", "two billion", "400 million", "150 million", "by the thousand",
    "long texts", "vocabulary: 2 GiB", "100 MB",
)  # fmt: skip
"""Parts of the names of cases that take more than a second, or much memory, to make or to refuse."""
Table = dict[str, Any]
CASES: dict[str, Callable[[Path], Table]] = {}
"""Makes the files of a case in a folder, with others in `outside` beside it; gives the scenario's tables."""


def case(name: str) -> Callable[[Callable[[Path], Table]], Callable[[Path], Table]]:
    def add(make: Callable[[Path], Table]) -> Callable[[Path], Table]:
        assert name not in CASES
        CASES[name] = make
        return make

    return add


# What no reader should ever be given.


def varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(name: str, values: bytes, number: int) -> bytes:
    return field(1, field(1, name.encode()) + field(2, field(number, field(1, values))))


def example(pixels: bytes = struct.pack("<2f", 1.0, 2.0), label: bytes = b"\1") -> bytes:
    return field(1, feature("pixels", pixels, 2) + feature("label", label, 3))


def sqlite_file(file: Path, rows: int = 12, content: bytes | None = None) -> None:
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.execute(
            "CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)"
        )
        content = example() if content is None else content
        names = [("train", f"c{row // 3}", content) for row in range(rows)]
        connection.executemany("INSERT INTO examples VALUES (?, ?, ?)", names)
        connection.commit()


def parquet_file(file: Path, **columns: Any) -> None:
    rows = {
        "client": ["a", "a", "b", "b"],
        "inputs": [[1.0], [2.0], [3.0], [4.0]],
        "targets": [0, 1, 0, 1],
    }
    pq.write_table(pa.table({**rows, **columns}), file)


WRITERS: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "sqlite": ("d.sqlite", sqlite_file, "tff_sqlite"),
    "parquet": ("d.parquet", parquet_file, "parquet"),
}


def pipe(file: Path, write: Callable[[Path], None]) -> None:
    os.mkfifo(file)


def unix_socket(file: Path, write: Callable[[Path], None]) -> None:
    with contextlib.chdir(file.parent), socket.socket(socket.AF_UNIX) as listener:
        listener.bind(file.name)


def endless_device(file: Path, write: Callable[[Path], None]) -> None:
    file.symlink_to("/dev/zero")


def directory(file: Path, write: Callable[[Path], None]) -> None:
    (file / "deep").mkdir(parents=True)


def circle(file: Path, write: Callable[[Path], None]) -> None:
    file.symlink_to(file)


def empty(file: Path, write: Callable[[Path], None]) -> None:
    file.touch()


def sparse(file: Path, write: Callable[[Path], None]) -> None:
    with file.open("wb") as stream:
        stream.truncate((1 << 40) + 1)


def cut(file: Path, write: Callable[[Path], None]) -> None:
    write(file)
    os.truncate(file, file.stat().st_size * 2 // 3)


def noise(file: Path, write: Callable[[Path], None]) -> None:
    write(file)
    content = bytearray(file.read_bytes())
    draws = np.random.default_rng(1).integers(0, 256, len(content) // 2, np.uint8)
    content[len(content) // 2 - len(draws) // 2 :] = draws.tobytes()
    file.write_bytes(content)


def endless_memory(file: Path, write: Callable[[Path], None]) -> None:
    file.symlink_to("/proc/self/mem")


BROKEN = {
    "pipe": pipe, "socket": unix_socket, "device": endless_device, "directory": directory, "circle of links": circle,
    "empty": empty, "sparse": sparse, "cut": cut, "noise": noise, "memory of the process": endless_memory,
}  # fmt: skip


def add_broken(
    kind: str, what: str, break_: Callable[[Path, Callable[[Path], None]], None]
) -> None:
    name, write, table_kind = WRITERS[kind]

    @case(f"{kind}: {what}")
    def make(folder: Path) -> Table:
        break_(folder / name, write)
        return {"kind": table_kind, "file": name}


for _kind in WRITERS:
    for _what, _break in BROKEN.items():
        add_broken(_kind, _what, _break)


def folder_case(name: str) -> Callable[[Callable[[Path, Path], None]], None]:
    """A folder of data with a good file, to which a function adds another; it is given that file and the folder outside."""

    def add(make: Callable[[Path, Path], None]) -> None:
        @case(f"folder: {name}")
        def made(folder: Path) -> Table:
            parquet_file(folder / "a.parquet")
            make(folder / "b.parquet", folder.parent / "outside")
            return {"kind": "parquet", "file": "."}

    return add


for _what, _break in {**BROKEN, "link to itself": circle}.items():
    if _what != "directory":

        def _add(file: Path, outside: Path, break_: Any = _break) -> None:
            break_(file, lambda new: parquet_file(new, client=["c", "c", "d", "d"]))

        folder_case(_what)(_add)


@folder_case("link to a text outside")
def _(file: Path, outside: Path) -> None:
    file.symlink_to("/etc/passwd")


@folder_case("link to the folder itself")
def _(file: Path, outside: Path) -> None:
    (file.parent / "sub").mkdir()
    (file.parent / "sub" / "back").symlink_to(file.parent)


@folder_case("links between two folders")
def _(file: Path, outside: Path) -> None:
    for name, other in (("x", "y"), ("y", "x")):
        (file.parent / name).mkdir()
        (file.parent / name / "to").symlink_to(file.parent / other)


@folder_case("a file deeper than a path may be long")
def _(file: Path, outside: Path) -> None:
    here = os.open(file.parent, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=here)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("b.parquet", os.O_CREAT, dir_fd=here))


for _name in ("text", "text.xz", "data.tar.gz", "data.zip", "data.sqlite"):

    def _other(file: Path, outside: Path, name: str = _name) -> None:
        starts = {"text": b"client,inputs", "text.xz": b"\xfd7zXZ\0", "data.tar.gz": b"\x1f\x8b", "data.zip": b"PK\3\4", "data.sqlite": b"SQLite format 3\0"}  # fmt: skip
        (file.parent / name).write_bytes(starts[name] + b"\n1,2\n" * 99)

    folder_case(_name)(_other)


@case("folder: link of a stranger's folder that leads out")
def _(folder: Path) -> Table:
    """The digest is right, so only its place forbids the file."""
    (folder / "data").mkdir()
    outside = folder.parent / "outside" / "secret.parquet"
    parquet_file(outside, inputs=[[float(SECRET)]] * 4)
    (folder / "data" / "in.parquet").symlink_to(outside)
    return {"kind": "parquet", "file": str(folder / "data"), "sha256": content_digest(folder / "data"), "is_recorded": True}  # fmt: skip


@case("folder: linked folder of a stranger's folder that leads out")
def _(folder: Path) -> Table:
    (folder / "data").mkdir()
    parquet_file(folder.parent / "outside" / "secret.parquet", inputs=[[float(SECRET)]] * 4)
    (folder / "data" / "in").symlink_to(folder.parent / "outside")
    return {"kind": "parquet", "file": str(folder / "data"), "sha256": content_digest(folder / "data"), "is_recorded": True}  # fmt: skip


# SQLite.


def sqlite_case(name: str, suffix: str = ".sqlite") -> Callable[[Callable[[Path], None]], None]:
    def add(make: Callable[[Path], None]) -> None:
        @case(f"sqlite: {name}")
        def made(folder: Path) -> Table:
            make(folder / f"d{suffix}")
            return {"kind": "tff_sqlite", "file": f"d{suffix}"}

    return add


for _name, _sql in {
    "view without end": "CREATE VIEW examples AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
    " SELECT 'train' AS split_name, i AS client_id, x'00' AS serialized_example_proto, i AS rowid FROM n",
    "view of a product": "CREATE TABLE t(a); INSERT INTO t WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 5000)"
    " SELECT i FROM n; CREATE VIEW examples AS SELECT 'train' AS split_name, 'a' AS client_id, x'00' AS serialized_example_proto,"
    " 1 AS rowid FROM t, t AS u, t AS v, t AS w WHERE t.a + u.a + v.a + w.a < 0",
    "virtual table": "CREATE VIRTUAL TABLE examples USING fts5(split_name, client_id, serialized_example_proto);"
    " INSERT INTO examples VALUES ('train', 'a', 'x')",
    "table without rowid": "CREATE TABLE examples(split_name TEXT, client_id TEXT PRIMARY KEY, serialized_example_proto BLOB) WITHOUT ROWID;"
    " INSERT INTO examples VALUES ('train', 'a', x'00')",
    "computed blobs": "CREATE TABLE examples(split_name TEXT, client_id TEXT, n INT, serialized_example_proto BLOB AS (zeroblob(900000000)));"
    " INSERT INTO examples VALUES ('train', 'a', 1), ('train', 'b', 1)",
    "blob of 100 MB": "CREATE TABLE examples(split_name TEXT, client_id TEXT, serialized_example_proto BLOB);"
    " INSERT INTO examples VALUES ('train', 'a', zeroblob(100000000)), ('train', 'b', zeroblob(100000000))",
    "text for bytes": "CREATE TABLE examples(split_name TEXT, client_id TEXT, serialized_example_proto BLOB);"
    " INSERT INTO examples VALUES ('train', 'a', 'text'), ('train', 'b', 7)",
    "null names": "CREATE TABLE examples(split_name TEXT, client_id TEXT, serialized_example_proto BLOB);"
    " INSERT INTO examples VALUES (NULL, x'ff', NULL)",
    "text that is not UTF-8": "CREATE TABLE examples(split_name TEXT, client_id TEXT, serialized_example_proto BLOB);"
    " INSERT INTO examples VALUES ('train', CAST(x'ff80' AS TEXT), x'00')",
    "no columns": "CREATE TABLE examples(a)",
}.items():

    def _run_sql(file: Path, sql: str = _sql) -> None:
        with contextlib.closing(sqlite3.connect(file)) as connection:
            connection.executescript(sql)

    sqlite_case(_name)(_run_sql)


@sqlite_case("view that is listed as a table")
def _(file: Path) -> None:
    sqlite_file(file)
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.executescript(
            "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = 'CREATE VIEW examples AS WITH RECURSIVE n(i) AS"
            " (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT ''train'' AS split_name, i AS client_id,"
            " x''00'' AS serialized_example_proto, i AS rowid FROM n'"
        )


@sqlite_case("pages that come again")
def _(file: Path) -> None:
    """Every child of the root is the first one, in two levels: its rows come again, without end were it deep."""
    sqlite_file(file, 2000, example() + b"\0" * 500)
    content = bytearray(file.read_bytes())
    root = content[4096:8192]
    assert root[0] == 5  # an interior page of a table
    cells = struct.unpack(">H", root[3:5])[0]
    for cell in range(cells):
        place = 4096 + struct.unpack(">H", root[12 + 2 * cell : 14 + 2 * cell])[0]
        content[place : place + 4] = struct.pack(">I", 3)
    file.write_bytes(content)


for _name, _content in {
    "NaN in an example": example(struct.pack("<2f", float("nan"), 1.0)),
    "example that is cut": example()[:-3],
    "example of endless varints": b"\x0a" + b"\xff" * 50,
    "example that is no message": b"\x00" * 50,
    "length beyond the message": b"\x0a\xff\xff\xff\xff\x0f",
    "negative length": b"\x0a" + b"\xff" * 9 + b"\x01",
    "empty example": b"",
    "negative class": example(label=varint(2**64 - 1)),
    "class of 2^60": example(label=varint(2**60)),
}.items():

    def _with_content(file: Path, content: bytes = _content) -> None:
        sqlite_file(file, content=content)

    sqlite_case(_name)(_with_content)


# Parquet.


def parquet_case(name: str, **keys: Any) -> Callable[[Callable[[Path], None]], None]:
    def add(make: Callable[[Path], None]) -> None:
        @case(f"parquet: {name}")
        def made(folder: Path) -> Table:
            make(folder / "d.parquet")
            return {"kind": "parquet", "file": "d.parquet", **keys}

    return add


def png(width: int, height: int) -> bytes:
    import zlib

    packer = zlib.compressobj(9)
    row = bytes(1 + width)
    rows = b"".join(packer.compress(row * 1000) for _ in range(height // 1000)) + packer.flush()
    out = b"\x89PNG\r\n\x1a\n"
    for kind, content in (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        (b"IDAT", rows),
        (b"IEND", b""),
    ):
        out += (
            struct.pack(">I", len(content))
            + kind
            + content
            + struct.pack(">I", zlib.crc32(kind + content))
        )
    return out


@parquet_case("two billion rows in a few kilobytes")
def _(file: Path) -> None:
    ones = pa.DictionaryArray.from_arrays(pa.array(np.zeros(10_000_000, np.int32)), pa.array(["a"]))
    zeros = pa.array(np.zeros(10_000_000, np.int8))
    table = pa.table({"client": ones, "inputs": zeros, "targets": zeros})
    with pq.ParquetWriter(file, table.schema) as writer:
        for _ in range(30):
            writer.write_table(table)


@parquet_case("one text ten thousand times", tokens="inputs")
def _(file: Path) -> None:
    texts = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(10_000, np.int32)), pa.array(["x" * 1_000_000])
    )
    table = pa.table({"client": ["a"] * 5000 + ["b"] * 5000, "inputs": texts})
    pq.write_table(table, file, dictionary_pagesize_limit=1 << 28)


@parquet_case("long texts in lists", tokens="inputs")
def _(file: Path) -> None:
    texts = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(20_000, np.int32)), pa.array(["x" * 1_000_000])
    )
    lists = pa.ListArray.from_arrays(pa.array(np.arange(0, 20_001, 5, dtype=np.int32)), texts)
    table = pa.table({"client": ["a"] * 2000 + ["b"] * 2000, "inputs": lists})
    pq.write_table(table, file, dictionary_pagesize_limit=1 << 28)


@parquet_case("names of clients of a megabyte")
def _(file: Path) -> None:
    names = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(20_000, np.int32)), pa.array(["x" * 1_000_000])
    )
    numbers = pa.array(np.random.default_rng(0).random(20_000))
    pq.write_table(
        pa.table({"client": names, "inputs": numbers, "targets": numbers}),
        file,
        dictionary_pagesize_limit=1 << 28,
    )


@parquet_case("a row of 400 million zeros")
def _(file: Path) -> None:
    values = pa.array(np.zeros(400_000_000, np.int8))
    lists = pa.ListArray.from_arrays(pa.array([0, 400_000_000, 400_000_000], pa.int32()), values)
    pq.write_table(pa.table({"client": ["a", "b"], "inputs": lists, "targets": [0, 1]}), file)


@parquet_case("long texts that must be sorted", tokens="inputs")
def _(file: Path) -> None:
    texts = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(6000, np.int32)), pa.array(["x" * 1_000_000])
    )
    small = pa.array([f"t{i}" for i in range(6000)])
    table = pa.table({"client": ["a", "b"] * 3000, "inputs": small, "other": texts})
    pq.write_table(table, file, dictionary_pagesize_limit=1 << 28)


def picture_case(name: str, *pictures: bytes) -> None:
    def make(file: Path) -> None:
        cells = [{"bytes": each, "path": "p"} for each in pictures]
        parquet_file(file, inputs=cells)

    parquet_case(name)(make)


picture_case("picture of 400 million pixels", *[png(20_000, 20_000)] * 4)
picture_case("pictures of 150 million pixels", *[png(15_000, 10_000)] * 4)
picture_case(
    "picture that is a program",
    *[b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"] * 4,
)
picture_case("picture that is cut", *[png(1000, 1000)[:60]] * 4)


@parquet_case("pictures by the thousand")
def _(file: Path) -> None:
    cell = {"bytes": png(9000, 9000), "path": "p"}
    pq.write_table(
        pa.table({"client": ["a"] * 100 + ["b"], "inputs": [cell] * 101, "targets": [0] * 101}),
        file,
    )


for _name, _columns in {
    "NaN": {"inputs": [[1.0], [float("nan")], [1.0], [1.0]]},
    "empty cells": {"inputs": [[1.0], None, [1.0], [1.0]]},
    "clients that are lists": {"client": [["a"], ["a"], ["b"], ["b"]]},
    "clients that are bytes": {"client": [b"\xff", b"\xff", b"\xfe", b"\xfe"]},
    "clients that are records": {"client": [{"a": 1}] * 4},
    "clients that are null": {"client": [None] * 4},
    "clients that are decimals of a map": {
        "client": pa.array([[("a", 1)]] * 4, pa.map_(pa.string(), pa.int32()))
    },
    "records for numbers": {"inputs": [{"a": 1}] * 4},
    "dates for numbers": {"inputs": pa.array([0, 1, 2, 3], pa.timestamp("us"))},
    "ragged": {"inputs": [[1.0], [1.0, 2.0], [1.0], [1.0]]},
    "texts for classes": {"targets": ["a", "b", "c", "d"]},
    "negative classes": {"targets": [-1, 0, 1, 2]},
    "huge classes": {"targets": pa.array([2**63] * 4, pa.uint64())},
    "null type": {"inputs": pa.nulls(4)},
}.items():

    def _with_columns(file: Path, columns: Any = _columns) -> None:
        parquet_file(file, **columns)

    parquet_case(_name)(_with_columns)


@parquet_case("page that is damaged")
def _(file: Path) -> None:
    parquet_file(file)
    content = bytearray(file.read_bytes())
    content[4:60] = b"\xff" * 56
    file.write_bytes(content)


@parquet_case("footer longer than the file")
def _(file: Path) -> None:
    parquet_file(file)
    content = file.read_bytes()
    file.write_bytes(content[:-8] + struct.pack("<I", 2**31 - 1) + b"PAR1")


@case("parquet: name that is a pattern")
def _(folder: Path) -> Table:
    """Rows must be sorted, and a pattern would take the other file too."""
    outside = folder.parent / "outside"
    parquet_file(outside / "d.parquet", client=["z"] * 4, inputs=[[float(SECRET)]] * 4)
    parquet_file(folder / "[a-z]*.parquet", client=["a", "b", "a", "b"])
    (folder / "sub").symlink_to(outside)
    return {"kind": "parquet", "file": "[a-z]*.parquet", "inputs": "nothing"}


# Files that a table names beside its data.


def named_case(name: str, make: Callable[[Path], object]) -> None:
    @case(f"vocabulary: {name}")
    def made(folder: Path) -> Table:
        parquet_file(folder / "d.parquet", inputs=["a b", "b c", "a b", "b c"])
        make(folder / "words.txt")
        names = {"tokens": "inputs", "vocabulary_file": "words.txt"}
        return {"kind": "parquet", "file": "d.parquet", **names}


def _large_vocabulary(file: Path) -> None:
    with file.open("wb") as stream:
        stream.truncate(2 << 30)


named_case("pipe", os.mkfifo)
named_case("device", lambda file: file.symlink_to("/dev/zero"))
named_case("2 GiB", _large_vocabulary)
named_case("empty", lambda file: file.touch())
named_case("not UTF-8", lambda file: file.write_bytes(b"\xff\xfe\n\xff"))


# Content that a trace carries: tables that are read as those of a trace in the folder.

DEEP_PYTHON = {
    "deep brackets": b"x = " + b"[" * 100_000 + b"]" * 100_000,
    "deep signs": b"x = " + b"-" * 200_000 + b"1",
    "deep sum": b"x = 1" + b" + 1" * 100_000,
    "deep calls": b"x = f" + b"(f" * 5_000 + b")" * 5_000,
    "deep attributes": b"x = f" + b".a" * 100_000,
    "null bytes": b"x = 1\0",
    "not UTF-8": b"# -*- coding: utf-16 -*-\nx = 1 \xff",
}


def content_case(name: str, make: Callable[[Path, Path], tuple[Table, bool]]) -> None:
    @case(f"content: {name}")
    def made(folder: Path) -> Table:
        outside = folder.parent / "outside" / "secret.py"
        outside.write_text(f"def runs(*a): return {SECRET}\n")
        table, is_recorded = make(folder, outside)
        return {"availability": table, "is_recorded": is_recorded}


def custom_table(content: bytes, file: str = "own.py") -> Table:
    return {"model": "custom", "file": file, "sha256": hashlib.sha256(content).hexdigest()}


def add_special(name: str, put: Callable[[Path, Path], None]) -> None:
    def make(folder: Path, outside: Path) -> tuple[Table, bool]:
        table = custom_table(outside.read_bytes())
        put(folder / f"{table['sha256']}.py", outside)
        return table, True

    content_case(name, make)

    def make_own(folder: Path, outside: Path) -> tuple[Table, bool]:
        put(folder / "own.py", folder)
        return {"model": "custom", "file": "own.py"}, False

    if "out" not in name:
        content_case(f"{name}, of the user", make_own)


add_special("pipe", lambda file, outside: os.mkfifo(file))
add_special("device", lambda file, outside: file.symlink_to("/dev/zero"))
add_special("socket", lambda file, outside: unix_socket(file, sqlite_file))
add_special("link out", lambda file, outside: file.symlink_to(outside))
add_special("directory", lambda file, outside: file.mkdir())
add_special("sparse", lambda file, outside: sparse(file, sqlite_file))
content_case("path out", lambda folder, outside: ({"model": "custom", "file": str(outside)}, True))
content_case(
    "path up", lambda folder, outside: ({"model": "custom", "file": "../outside/secret.py"}, True)
)
content_case(
    "path out, other digest", lambda folder, outside: (custom_table(b"", str(outside)), True)
)

for _name, _content in DEEP_PYTHON.items():

    def _kept(folder: Path, outside: Path, content: bytes = _content) -> tuple[Table, bool]:
        table = custom_table(content)
        (folder / f"{table['sha256']}.py").write_bytes(content)
        return table, True

    def _own(folder: Path, outside: Path, content: bytes = _content) -> tuple[Table, bool]:
        (folder / "own.py").write_bytes(content)
        return {"model": "custom", "file": "own.py"}, False

    content_case(_name, _kept)
    content_case(f"{_name}, of the user", _own)


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


HEADER = "{'descr': '<f8', 'fortran_order': False, 'shape': SHAPE, }"


def npy_of(shape: str) -> bytes:
    header = HEADER.replace("SHAPE", shape).ljust(500) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()


class Bomb:
    def __reduce__(self) -> Any:
        return os.abort, ()


RECORDINGS = {
    "pickle": pickle.dumps(Bomb()),
    "array of a pickle": npy(np.array([Bomb()], object)),
    "too many rows": npy_of("(1 << 60, 3)"),
    "2^50 rows": npy_of(f"({1 << 50}, 3)"),
    "deep shape": npy_of("(" * 80 + ")" * 80),
    "NaN": npy(np.array([[0.0, np.nan, 1.0]])),
    "device of 2^52": npy(np.array([[2.0**52, 0.0, 1.0]])),
    "half a device": npy(np.array([[0.5, 0.0, 1.0]])),
    "out of order": npy(np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])),
    "no rows": npy(np.zeros((0, 3))),
    "one number": npy(np.array(1.0)),
    "zip": b"PK\3\4" + bytes(100),
    "nothing": b"",
}
for _name, _content in RECORDINGS.items():

    def _recording(folder: Path, outside: Path, content: bytes = _content) -> tuple[Table, bool]:
        digest = hashlib.sha256(content).hexdigest()
        (folder / f"{digest}.npy").write_bytes(content)
        return {"model": "replay", "file": "own.parquet", "sha256": digest}, True

    content_case(f"recording, {_name}", _recording)


def _recording_in_a_pipe(folder: Path, outside: Path) -> tuple[Table, bool]:
    os.mkfifo(folder / "own.parquet")
    return {"model": "replay", "file": "own.parquet"}, False


content_case("recording in a pipe", _recording_in_a_pipe)


def matrix_case(name: str, put: Callable[[Path, Path], str]) -> None:
    @case(f"content: matrix, {name}")
    def made(folder: Path) -> Table:
        outside = folder.parent / "outside" / "secret.npy"
        np.save(outside, np.eye(2) * SECRET)
        file = put(folder, outside)
        digest = (
            hashlib.sha256((np.eye(2) * SECRET).tobytes()).hexdigest() if file == "m.npy" else ""
        )
        if file == "m.npy":
            (folder / "m.npy").rename(folder / f"{digest}.npy")
        table = {"kind": "matrix", "file": file, "sha256": digest}
        return {"privacy": {"noise_multiplier": 1.0, "mechanism": table}, "is_recorded": True}


matrix_case("path out", lambda folder, outside: str(outside))
matrix_case("path up", lambda folder, outside: "../outside/secret.npy")
matrix_case("pipe", lambda folder, outside: os.mkfifo(folder / "m.npy") or "m.npy")
matrix_case("link out", lambda folder, outside: (folder / "m.npy").symlink_to(outside) or "m.npy")


# Running them.


class Finding(AssertionError):
    """What should not be."""


def read(tables: Table, folder: Path) -> None:
    """Reads everything that a scenario with these tables names."""
    others = {key: value for key, value in tables.items() if key in ("availability", "privacy")}
    own = {key: value for key, value in tables.items() if key != "is_recorded"}
    data = {} if others else {"data": own}
    together = {
        "seed": 3,
        "population": {"devices": 1000},
        "rounds": {"count": 2, "report_goal": 10},
        "training": {"enabled": False},
        **others,
        **data,
    }
    scenario = Scenario.from_tables(
        together, directory=folder, is_recorded=tables.get("is_recorded", False)
    )
    if isinstance(scenario.availability, PythonFile):
        # As with trust_code=True, after which the code is compiled.
        function_in(scenario.availability, "runs")
    if others:
        return
    source = source_of(scenario)
    held_out = FIRST_HELD_OUT + np.arange(source.held_out_devices, dtype=np.uint64)
    for device in np.concatenate([np.arange(40, dtype=np.uint64), held_out])[:, None]:
        count = int(source.examples_on(device)[0])
        for values in source.examples(device, np.arange(count)[None]).values():
            if (values == SECRET).any():
                raise Finding("read from outside")


def outcome(tables: Table, folder: Path) -> str:
    try:
        read(tables, folder)
    except (FedrayError, DamagedExamples) as error:
        message = (
            str(error) if isinstance(error, FedrayError) else next(iter(error.problems.values()))
        )
        secrets = [
            hashlib.sha256(file.read_bytes()).hexdigest()
            for file in (folder.parent / "outside").iterdir()
            if file.is_file()
        ]
        if len(message.splitlines()) != 1 or len(message) > 2500:
            return f"FOUND a message of {len(message)} characters: {message[:200]!r}"
        named = str(tables.get("sha256")) + json.dumps(tables)
        if any(each in message and each not in named for each in secrets) or str(SECRET) in message:
            return f"FOUND a digest or content from outside: {message}"
        return f"refused: {message}"
    except Finding as error:
        return f"FOUND {error}"
    except BaseException as error:
        return f"FOUND {type(error).__name__}: {error} {traceback.format_exc(limit=-3)}"
    return "read"


def in_a_process(work: Callable[[], str], limit: float = SECONDS) -> tuple[str, int, float]:
    """(result, most bytes in memory, seconds) of work in a forked process that is ended after `limit` seconds."""
    reading, writing = os.pipe()
    start = time.monotonic()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            os.close(reading)
            signal.alarm(0)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_AS, (4 * MEMORY, 4 * MEMORY))
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            os.write(writing, work().encode(errors="replace")[:60_000])
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() - start > limit:
            os.kill(pid, signal.SIGKILL)
            _, _, usage = os.wait4(pid, 0)
            os.close(reading)
            return f"FOUND a hang of {limit} s", usage.ru_maxrss << 10, limit
        time.sleep(0.005)
    with os.fdopen(reading, "rb") as stream:
        result = stream.read().decode()
    seconds = time.monotonic() - start
    return (
        (result if not status else f"FOUND the end of the process ({status})"),
        usage.ru_maxrss << 10,
        seconds,
    )


def run_case(name: str, root: Path) -> tuple[str, int, float]:
    """(what becomes of a case, most bytes in memory, seconds)."""
    folder, cache = root / "folder", root / "cache"
    folder.mkdir(parents=True)
    (root / "outside").mkdir()
    os.environ["XDG_CACHE_HOME"] = str(cache)
    # Some bombs take long to make.
    made, _, _ = in_a_process(lambda: json.dumps(CASES[name](folder)), 10 * SECONDS)
    if not made.startswith("{"):
        raise RuntimeError(f"{name} cannot be made: {made}")
    result, memory, seconds = in_a_process(lambda: outcome(json.loads(made), folder))
    if memory > MEMORY:
        result = f"FOUND {memory / 2**30:.1f} GiB of memory; {result}"
    if result == "read" and not re.match("content: .*", name):
        result = "FOUND that it was read"
    return result, memory, seconds


def main() -> int:
    part = sys.argv[1] if len(sys.argv) > 1 else ""
    found, most, longest = 0, 0, 0.0
    if part == "--quick":
        names = [name for name in CASES if not any(each in name for each in SLOW)]
    else:
        names = [name for name in CASES if part in name]
    for name in names:
        root = Path(tempfile.mkdtemp(prefix="fedray-hostile-"))
        try:
            result, memory, seconds = run_case(name, root)
        finally:
            shutil.rmtree(root)
        found += result.startswith("FOUND")
        most, longest = max(most, memory), max(longest, seconds)
        print(f"{name:45} {seconds:6.2f} s {memory / 2**20:7.0f} MiB  {result[:300]}", flush=True)
    print(
        f"{len(names)} cases, {found} findings; most memory {most / 2**30:.2f} GiB, longest {longest:.1f} s"
    )
    return min(found, 1)


if __name__ == "__main__":
    sys.exit(main())
