"""Random folders of data files, and slow readable twins of their readers: every data file is read by pyarrow, whatever its name.

A folder has 2 to 9 data files of any suffix, compression and type, in subfolders, linked folders and the levels of a partitioned data set,
beside marks and foreign files. What was drawn says whether a reader must read it, must refuse it, or may do either.
"""

import bz2
import contextlib
import gzip
import io
import json
import lzma
import os
import random
import shutil
import sqlite3
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.feather as feather
import pyarrow.orc as orc
import pyarrow.parquet as pq

SUFFIXES = {
    "CSV": ("", ".csv", ".CSV", ".txt", ".tsv", ".csv.1", ".parquet", ".json"),
    "JSON": ("", ".jsonl", ".json", ".ndjson", ".txt", ".csv"),
    "Parquet": ("", ".parquet", ".pq", ".parquet.gzip", ".snappy.parquet", ".csv", ".c000"),
}
PACKINGS = {"": ("",), "gzip": (".gz", ".GZ", "", ".bz2"), "bz2": (".bz2", ""), "zstd": (".zst", ".zstd", ""), "lz4": (".lz4", ""), "xz": (".xz", "")}  # fmt: skip
TEXTS = (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()))
WHOLES = (pa.int32(), pa.int64(), pa.uint16(), pa.uint64(), pa.decimal128(38, 0), pa.decimal128(12, 0))  # fmt: skip
ROUNDS = (*WHOLES, pa.int8(), pa.dictionary(pa.int8(), pa.int64()))
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
FORBIDDEN = ("text", "empty file", "sqlite", "zip", "tar", "orc", "feather", "binary", "copy", "loop", "pipe", "broken link", "json array", "Delta", "Hudi", "Iceberg")  # fmt: skip
"""Kinds of foreign files and tables, each of which must be refused."""
AT_ONCE = 25
SEEDS = range(0, 300, AT_ONCE) if "FEDRAY_ALL_SEEDS" in os.environ else [0]
"""First seeds of the folders of a test, for `check_outcomes`."""


@dataclass
class DataFile:
    """A data file that was drawn: its path, format, compression, and the values of the levels above it."""

    path: Path
    kind: str
    packing: str = ""
    levels: dict[str, str | None] = field(default_factory=dict)


@dataclass
class Folder:
    """A folder that was drawn.

    refusals: what it has that must be refused.
    doubts: what it has that may be refused.
    """

    path: Path
    files: list[DataFile] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    where: tuple[str, ...] = ()

    @property
    def names(self) -> set[str]:
        """Names of all files and folders in it, by which it may be refused."""
        walked = os.walk(self.path)
        return {name for _, folders, files in walked for name in (*folders, *files)}


def check_outcomes(
    first: int,
    place: Path,
    drawn: Callable[[Path, random.Random], Folder],
    outcome_of: Callable[[Folder, Path], str],
) -> None:
    """Draws AT_ONCE folders and reads each.

    Args:
        first: seed of the first folder.
        place: directory for the folders.
        drawn: draws a folder in a directory.
        outcome_of: reads a folder, with room for files in a directory: "read", or "refused", and anything else fails.
    """
    outcomes: Counter[str] = Counter()
    for seed in range(first, first + AT_ONCE):
        here = place / str(seed)
        here.mkdir()
        outcomes[outcome_of(drawn(here, random.Random(seed)), here)] += 1
    # It can tell: neither outcome is rare.
    assert outcomes["read"] >= 8
    assert outcomes["refused"] >= 2


def packed(content: bytes, packing: str) -> bytes:
    if packing in ("gzip", "bz2", "xz"):
        return {"gzip": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}[packing](content)
    if not packing:
        return content
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, packing) as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


def unpacked(content: bytes, packing: str) -> bytes:
    if packing in ("gzip", "bz2", "xz"):
        unpack: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.decompress, "bz2": bz2.decompress, "xz": lzma.decompress}  # fmt: skip
        return unpack[packing](content)
    return (
        pa.CompressedInputStream(pa.BufferReader(content), packing).read() if packing else content
    )


# Logs.


def drawn_log(place: Path, rng: random.Random) -> Folder:
    """A folder of a log with the columns device and round, and perhaps outcome; no device is twice in a round."""
    found = Folder(place / "log")
    found.path.mkdir()
    kind = rng.choice(["CSV", "JSON", "Parquet", "Parquet"])
    is_text = rng.random() < 0.6
    ids: list[Any] = [
        f"dev{n:03}" if is_text else n + rng.choice([0, 2**63 - 40]) for n in range(30)
    ]
    has_outcome = rng.random() < 0.4
    found.where = ("outcome=accepted",) if has_outcome else ()
    partitioned = rng.choice([None, None, None, "round", "outcome" if has_outcome else "day"])
    pairs = [(device, number) for device in ids for number in range(8)]
    rng.shuffle(pairs)
    count = rng.randint(2, 9)
    for number in range(count):
        taken, pairs = pairs[: rng.randint(1, 12)], pairs[12:]
        levels: dict[str, str | None] = {}
        if partitioned == "round":
            only = taken[0][1]
            taken = [pair for pair in taken if pair[1] == only]
            levels = {"round": str(only)}
        elif partitioned == "outcome":
            levels = {"outcome": rng.choice(["accepted", "late", "a/b %", None])}
        elif partitioned == "day":
            levels = {"day": "2026-09-01 10:00", "_hour": "3"}
        columns: dict[str, list[Any]] = {"device": [d for d, _ in taken], "round": [r for _, r in taken]}  # fmt: skip
        if has_outcome:
            columns["outcome"] = [rng.choice(["accepted", "late"]) for _ in taken]
        columns["extra"] = [f"row {number} {row}" for row in range(len(taken))]
        for name, value in levels.items():
            is_repeated = rng.random() < 0.1 and name in columns
            if is_repeated:
                found.doubts.append("a column in file and folder")
                # What a folder says is what counts, or the two are found to differ.
                columns[name] = [value if name == "outcome" else int(value or 0)] * len(taken)
            else:
                columns.pop(name, None)
        file_kind = kind if rng.random() < 0.97 else rng.choice(["CSV", "JSON", "Parquet"])
        if file_kind != kind:
            found.doubts.append("several formats")
        if file_kind != "CSV" and not is_text and rng.random() < 0.05:
            columns["device"] = [f"dev{each}" for each in columns["device"]]
            found.doubts.append("text beside numbers")
        _write_log_file(found, columns, levels, file_kind, number, rng)
    _add_others(found, rng)
    return found


def _write_log_file(
    found: Folder,
    columns: dict[str, list[Any]],
    levels: dict[str, str | None],
    kind: str,
    number: int,
    rng: random.Random,
) -> None:
    names = list(columns)
    rng.shuffle(names)
    rows = [dict(zip(names, row, strict=True)) for row in zip(*(columns[name] for name in names), strict=True)]  # fmt: skip
    packing = rng.choice([*PACKINGS, "", ""]) if kind != "Parquet" else ""
    name = f"part-{number}{rng.choice(SUFFIXES[kind])}{rng.choice(PACKINGS[packing])}"
    if kind == "CSV":
        lines = [",".join(names)] + [",".join(str(row[name]) if row[name] is not None else "" for name in names) for row in rows]  # fmt: skip
        mark = "\ufeff" if rng.random() < 0.1 else ""
        content = (mark + rng.choice(["\n", "\r\n"]).join(lines) + "\n").encode()
    elif kind == "JSON":
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        if any(isinstance(each, int) and each >= 2**63 for each in columns["device"]) and any(isinstance(each, int) and each < 0 for each in columns["device"]):  # fmt: skip
            found.doubts.append("numbers beyond a type")
    else:
        content = _parquet(columns, names, rng)
    path = _placed(found, name, levels, number, rng)
    path.write_bytes(packed(content, packing))
    found.files.append(DataFile(path, kind, packing, levels))


def _parquet(columns: dict[str, list[Any]], names: list[str], rng: random.Random) -> bytes:
    arrays = {}
    for name in names:
        values = columns[name]
        if any(isinstance(each, str) for each in values):
            kind = rng.choice(TEXTS)
        else:
            largest = max((each for each in values if each is not None), default=0)
            fitting = ROUNDS if largest < 100 else (pa.uint64(), pa.decimal128(38, 0), *([pa.int64()] if largest < 2**63 else []))  # fmt: skip
            kind = rng.choice(fitting)
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        given = [Decimal(each) if pa.types.is_decimal(kind) and each is not None else each for each in values]  # fmt: skip
        array = pa.array(given, plain)
        arrays[name] = array.dictionary_encode() if plain != kind else array
    buffer = io.BytesIO()
    packing = rng.choice(["snappy", "gzip", "zstd", "none", "lz4"])
    pq.write_table(
        pa.table(arrays), buffer, compression=packing, row_group_size=rng.choice([3, 100])
    )
    return buffer.getvalue()


def _placed(
    found: Folder, name: str, levels: dict[str, str | None], number: int, rng: random.Random
) -> Path:
    """A path for a data file: its folders are made, and perhaps linked."""
    parts = [
        f"{key}={NO_VALUE if value is None else quote(value, safe='')}"
        for key, value in levels.items()
    ]
    if rng.random() < 0.3:
        parts.insert(rng.randint(0, len(parts)), f"sub {number % 2}")
    is_linked, is_file_linked = rng.random() < 0.15, rng.random() < 0.1
    if is_linked or is_file_linked:
        store = found.path.parent / "store" / str(number)
        real = store.joinpath(*parts) if is_linked else store
        real.mkdir(parents=True)
        if is_linked:
            (found.path / f"linked {number}").symlink_to(store)
            return found.path.joinpath(f"linked {number}", *parts, name)
        folder = found.path.joinpath(*parts)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(real / "real")
        return folder / name
    folder = found.path.joinpath(*parts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def log_rows(folder: Folder) -> set[tuple[str, int]]:
    """The (device, round) of every participation: each data file is read whole, by its true format."""
    found = set()
    for file in folder.files:
        content = unpacked(file.path.read_bytes(), file.packing)
        for row in _rows_of(file.kind, content):
            full = {**row, **file.levels}
            if all(str(full.get(each.partition("=")[0])) == each.partition("=")[2] for each in folder.where):  # fmt: skip
                found.add((str(full["device"]), int(full["round"])))
    return found


def _rows_of(kind: str, content: bytes) -> Iterable[dict[str, Any]]:
    if kind == "JSON":
        return [json.loads(line) for line in content.decode().splitlines()]
    if kind == "Parquet":
        table = pq.read_table(io.BytesIO(content))
        return table.cast(pa.schema([(each.name, each.type.value_type if pa.types.is_dictionary(each.type) else each.type) for each in table.schema])).to_pylist()  # fmt: skip
    names = content.decode("utf-8-sig").splitlines()[0].split(",")
    texts = arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
    return arrow_csv.read_csv(io.BytesIO(content), convert_options=texts).to_pylist()


# Marks and foreign files, of both kinds of folder.


def _add_others(found: Folder, rng: random.Random) -> None:
    folders = [found.path, *{file.path.parent for file in found.files if not file.path.parent.is_symlink()}]  # fmt: skip
    folders = sorted(each for each in folders if "store" not in str(each.resolve()))
    for _ in range(rng.choice([0, 0, 1, 3])):
        _add_mark(rng.choice(folders), found, rng)
    if rng.random() < 0.3:
        what = rng.choice(FORBIDDEN)
        _add_forbidden(what, rng.choice(folders), found, rng)
        found.refusals.append(what)


def _add_mark(folder: Path, found: Folder, rng: random.Random) -> None:
    what = rng.choice(["_SUCCESS", ".part-0.crc", "sums.md5", ".ipynb_checkpoints", "_temporary", ".DS_Store"])  # fmt: skip
    copied = rng.choice(found.files).path
    if what in (".ipynb_checkpoints", "_temporary"):
        (folder / what / "0").mkdir(parents=True, exist_ok=True)
        shutil.copy(copied, folder / what / "0" / "part-0.csv")
    else:
        (folder / what).write_bytes(b"" if what == "_SUCCESS" else copied.read_bytes())


def _add_forbidden(what: str, folder: Path, found: Folder, rng: random.Random) -> None:
    table = pa.table({"device": ["x"], "round": [1]})
    if what == "text":
        (folder / "README").write_text("# Where this is from\n\nFrom there.\n")
    elif what == "empty file":
        (folder / "part-00099").touch()
    elif what == "sqlite":
        with contextlib.closing(sqlite3.connect(folder / "log.db")) as connection:
            connection.execute("CREATE TABLE log (device, round)")
            connection.commit()
    elif what in ("zip", "tar"):
        buffer = io.BytesIO()
        if what == "zip":
            with zipfile.ZipFile(buffer, "w") as archive:
                archive.writestr("a.csv", "device,round\nx,1\n")
        else:
            with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
                archive.addfile(tarfile.TarInfo("a.csv"))
        (folder / f"more.{rng.choice(['csv', what, 'tar.gz'])}").write_bytes(buffer.getvalue())
    elif what == "orc":
        orc.write_table(table, str(folder / "part.orc"))
    elif what == "feather":
        feather.write_feather(table, str(folder / "part.feather"))
    elif what == "binary":
        (folder / "part.snappy").write_bytes(bytes(range(256)) * 3)
    elif what == "copy":
        # Beside its original, because other levels make other rows of the same content.
        copied = rng.choice(found.files).path
        shutil.copy(copied, copied.with_name("again.bak"))
    elif what == "loop":
        (folder / "loop").symlink_to(found.path)
    elif what == "pipe":
        os.mkfifo(folder / "part.csv")
    elif what == "broken link":
        (folder / "part.csv").symlink_to("nowhere")
    elif what == "json array":
        (folder / "log.json").write_text('[{"device": "x", "round": 1}]')
    elif what == "Delta":
        (found.path / "_delta_log").mkdir()
    elif what == "Hudi":
        (found.path / ".hoodie").mkdir()
    else:
        (found.path / "metadata").mkdir()
        (found.path / "metadata" / "v1.metadata.json").write_text("{}")


# Training data.


def drawn_data(place: Path, rng: random.Random) -> Folder:
    """A folder of Parquet files of clients, each in one file, with the columns user, x and y; perhaps with splits."""
    found = Folder(place / "data")
    found.path.mkdir()
    style = rng.choice(["none", "none", "folders", "Hugging Face", "other folders"])
    users = [f"u{number:02}" if rng.random() < 0.9 else str(number) for number in range(60)]
    rng.shuffle(users)
    splits = ["train", "test"] if style in ("folders", "Hugging Face") else [""]
    for number in range(rng.randint(2, 9)):
        taken, users = users[: rng.randint(1, 6)], users[6:]
        split = splits[number % len(splits)]
        rows = [(user, [float(number), float(place)], place % 3) for user in taken for place in range(rng.randint(1, 4))]  # fmt: skip
        kind = rng.choice(TEXTS[:2] + TEXTS[3:])
        names = [user for user, _, _ in rows]
        if all(name.isdigit() for name in names):
            kind = rng.choice([pa.int32(), pa.int64(), pa.decimal128(38, 0)])
            names = [Decimal(name) if pa.types.is_decimal(kind) else int(name) for name in names]
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        table = pa.table(
            {
                "user": pa.array(names, plain).dictionary_encode() if plain != kind else pa.array(names, plain),
                "x": pa.array([x for _, x, _ in rows], rng.choice([pa.list_(pa.float32()), pa.list_(pa.float64())])),
                "y": pa.array([y for _, _, y in rows], rng.choice([pa.int8(), pa.int64()])),
            }
        )  # fmt: skip
        name = f"part-{number}{rng.choice(SUFFIXES['Parquet'])}"
        if style == "Hugging Face":
            name = f"{split}-{number:05}-of-00009{rng.choice(['.parquet', '.parquet.gzip', ''])}"
        levels: dict[str, str | None] = {}
        path = _placed(found, name, levels, number, rng)
        if style in ("folders", "other folders"):
            folder = path.parent / (split or f"shard {number % 2}")
            folder.mkdir(exist_ok=True)
            if path.is_symlink():
                os.rename(path, folder / name)
            path = folder / name
        pq.write_table(table, path, compression=rng.choice(["snappy", "gzip", "none"]), row_group_size=rng.choice([2, 100]))  # fmt: skip
        found.files.append(DataFile(path, "Parquet", "", {"split": split}))
    _add_others(found, rng)
    return found


def data_rows(folder: Folder) -> dict[tuple[str, str], list[tuple[list[float], int]]]:
    """The examples of every (split, user): each data file is read whole."""
    found: dict[tuple[str, str], list[tuple[list[float], int]]] = {}
    for file in folder.files:
        for row in _rows_of("Parquet", file.path.read_bytes()):
            key = file.levels["split"] or "", str(row["user"])
            found.setdefault(key, []).append((row["x"], row["y"]))
    return found
