"""Recorded data: files that other code wrote are read back exactly, and damaged ones are one line."""

import json
import sqlite3
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_contract import CHECKS

from fedray.base.errors import InputError
from fedray.clients.data import recorded
from fedray.clients.data.factory import source_of
from fedray.clients.data.form import END, PADDING, START, UNKNOWN
from fedray.clients.data.source import FIRST_HELD_OUT, DamagedExamples
from fedray.clients.tasks.keyboard_lstm import KeyboardLstm
from fedray.scenario.tasks import KeyboardLstmTask

Clients = dict[str, dict[str, list]]
"""Columns by client."""
WORDS = ["the", "cat", "sat", "on", "the", "mat", "and", "the", "dog", "sat", "on", "the", "cat"]


def numbers(clients: int, seed: int) -> Clients:
    """Clients with 1 to 4 examples each, of 2 x 3 inputs and a class of 5."""
    draws = np.random.default_rng(seed)
    made = {}
    for client in range(clients):
        count = 1 + client % 4
        made[f"c{client:02}"] = {
            "x": draws.integers(0, 256, (count, 2, 3)).astype(float).tolist(),
            "y": draws.integers(0, 5, count).tolist(),
        }
    made["c00"]["y"][0] = 4  # so that there are five classes
    return made


def texts(clients: int, seed: int) -> Clients:
    draws = np.random.default_rng(seed)
    return {
        f"c{client:02}": {
            "text": [
                " ".join(draws.choice(WORDS, draws.integers(1, 9))) for _ in range(1 + client % 3)
            ]
        }
        for client in range(clients)
    }


def rows_of(clients: Clients) -> list[tuple[str, dict[str, list], int]]:
    """(client, its columns, row) of all rows."""
    return [
        (name, columns, row)
        for name, columns in clients.items()
        for row in range(len(next(iter(columns.values()))))
    ]


# tf.Example, by hand: tag bytes are number << 3 | wire type.


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def example(features: dict[str, Any]) -> bytes:
    out = b""
    for name, values in features.items():
        if isinstance(values, bytes):
            feature = field(1, field(1, values))
        elif isinstance(values[0], float):
            feature = field(2, field(1, struct.pack(f"<{len(values)}f", *values)))
        else:
            feature = field(3, field(1, b"".join(map(varint, values))))
        out += field(1, field(1, name.encode()) + field(2, feature))
    return field(1, out)


def tff_features(columns: dict[str, list], row: int) -> dict[str, Any]:
    if "text" in columns:
        return {"tokens": columns["text"][row].encode(), "score": [7]}
    return {"pixels": np.ravel(columns["x"][row]).tolist(), "label": [columns["y"][row]]}


def write_sqlite(path: Path, splits: dict[str, Clients]) -> None:
    rows = [
        (split, name, example(tff_features(columns, row)))
        for split, clients in splits.items()
        for name, columns, row in rows_of(clients)
    ]
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)"
    )
    connection.execute(
        "CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)"
    )
    connection.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
    connection.commit()
    connection.close()


def write_parquet(path: Path, splits: dict[str, Clients]) -> None:
    path.mkdir()
    for split, clients in splits.items():
        rows = [
            {"client": name, **{column: values[row] for column, values in columns.items()}}
            for name, columns, row in rows_of(clients)
        ]
        half = (len(rows) + 1) // 2
        for number, part in enumerate(filter(None, (rows[:half], rows[half:]))):
            file = path / f"{split}-{number:05}-of-00002.parquet"
            pq.write_table(pa.Table.from_pylist(part), file, row_group_size=3)


KINDS: dict[str, tuple[str, Callable[[Path, dict[str, Clients]], None], dict, dict]] = {
    "sqlite": ("d.sqlite", write_sqlite, {"kind": "tff_sqlite", "shape": [2, 3]}, {"tokens": "tokens"}),
    "parquet": ("d", write_parquet, {"kind": "parquet", "inputs": "x", "targets": "y"}, {"tokens": "text"}),
}  # fmt: skip
"""Name of the file, what writes it, the table for numbers, and what it has besides for texts."""


def made(kind: str, folder: Path, splits: dict[str, Clients], is_text: bool = False) -> dict:
    """Writes the file; gives the table."""
    name, write, table, for_texts = KINDS[kind]
    if not (folder / name).exists():
        write(folder / name, splits)
    return {**table, "file": name, **(for_texts if is_text else {})}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("is_text", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_keeps_the_contract(
    kind: str, is_text: bool, check, tmp_path: Path, scenario_of
) -> None:
    make = texts if is_text else numbers
    table = made(kind, tmp_path, {"train": make(9, 1), "test": make(4, 2)}, is_text)
    scenario = scenario_of(table)
    check(lambda: source_of(scenario))


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_read_back_exactly(kind: str, tmp_path: Path, source) -> None:
    splits = {"train": numbers(9, 1), "test": numbers(4, 2)}
    table = made(kind, tmp_path, splits)
    expected = {split: _keys(clients) for split, clients in splits.items()}
    for _ in range(2):  # the second time from the cache
        opened = source({**table, "scale": 0.5})
        assert opened.fields["targets"].values == 5
        assert opened.held_out_devices == 4
        assert _found(opened, np.arange(9)) == expected["train"]
        held_out = FIRST_HELD_OUT + np.arange(4, dtype=np.uint64)
        assert _found(opened, held_out) == expected["test"]


def _keys(clients: Clients) -> set[str]:
    return {
        json.dumps([(0.5 * np.array(columns["x"])).tolist(), columns["y"]])
        for columns in clients.values()
    }


def _found(opened, devices) -> set[str]:
    """Every device's data in the order of its positions."""
    found = set()
    for device in np.asarray(devices, np.uint64):
        count = int(opened.examples_on(np.array([device]))[0])
        fields = opened.examples(np.array([device]), np.arange(count)[None])
        found.add(json.dumps([fields["inputs"][0].tolist(), fields["targets"][0].tolist()]))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_tokens_of_the_counted_vocabulary(kind: str, tmp_path: Path, source) -> None:
    """Against a count of our own; held-out words do not count."""
    splits = {"train": texts(9, 1), "test": {"t0": {"text": ["zebra zebra zebra the"]}}}
    table = made(kind, tmp_path, splits, is_text=True)
    opened = source({**table, "vocabulary": 3, "length": 4})
    spoken = [text.split() for columns in splits["train"].values() for text in columns["text"]]
    counts: dict[str, int] = {}
    for word in [word for text in spoken for word in text]:
        counts[word] = counts.get(word, 0) + 1
    words = sorted(counts, key=lambda word: (-counts[word], word))[:3]
    field = opened.fields["tokens"]
    assert (field.shape, field.values, field.padding, field.unknown) == ((5,), 7, 0, 1)
    expected = sorted(_tokens(text, words) for text in spoken)
    found = []
    for device in np.arange(9, dtype=np.uint64)[:, None]:
        count = int(opened.examples_on(device)[0])
        found += opened.examples(device, np.arange(count)[None])["tokens"][0].tolist()
    assert sorted(found) == expected
    held_out = opened.examples(np.array([FIRST_HELD_OUT]), np.zeros((1, 1), np.int64))["tokens"]
    the = 4 + words.index("the")
    assert held_out[0, 0].tolist() == [START, UNKNOWN, UNKNOWN, UNKNOWN, the]


def _tokens(text: list[str], words: list[str]) -> list[int]:
    numbers = [START, *(4 + words.index(word) if word in words else UNKNOWN for word in text), END]
    return (numbers + 5 * [PADDING])[:5]


def test_texts_may_be_whole_numbers_characters_or_of_a_given_vocabulary(
    tmp_path: Path, source
) -> None:
    whole = {"a": {"x": [[5, 9], [1, 2, 3, 4]]}, "b": {"x": [[7]]}}
    write_parquet(tmp_path / "d", {"train": whole, "test": {"c": whole["a"], "d": whole["b"]}})
    table = {"kind": "parquet", "file": "d", "tokens": "x", "length": 2}
    opened = source(table)
    field = opened.fields["tokens"]
    assert (field.values, field.unknown) == (10, None)
    devices = np.array([d for d in range(2) if opened.examples_on(np.array([d], np.uint64)) == 2])
    found = opened.examples(devices.astype(np.uint64), np.array([[0, 1]]))["tokens"][0]
    assert found.tolist() == [[5, 9, 0], [1, 2, 3]]
    assert source({**table, "values": 50}).fields["tokens"].values == 50

    letters = {"a": {"x": ["ab a"]}, "b": {"x": ["ba"]}}
    write_parquet(
        tmp_path / "e", {"train": letters, "test": {"c": letters["a"], "d": letters["b"]}}
    )
    (tmp_path / "words.txt").write_text("b\na\n")
    given = {"kind": "parquet", "file": "e", "tokens": "x", "unit": "character", "length": 5,
             "vocabulary_file": "words.txt"}  # fmt: skip
    opened = source(given)
    found = opened.examples(np.arange(2, dtype=np.uint64), np.zeros((2, 1), np.int64))["tokens"]
    assert {tuple(each) for each in found[:, 0].tolist()} == {
        (2, 5, 4, 1, 5, 3),
        (2, 4, 5, 3, 0, 0),
    }
    model = KeyboardLstm(KeyboardLstmTask(hidden=2, embedding=2), 1, opened.fields)
    units = ["nats per character", "", "share of characters"]
    assert [metric.unit for metric in model.metrics[:3]] == units
    in_words = KeyboardLstm(KeyboardLstmTask(hidden=2, embedding=2), 1, source(table).fields)
    assert in_words.metrics[0].unit == "nats per word"


class _Hdf5(dict):
    """Nested data sets, as h5py has them."""

    def __init__(self, path: Path) -> None:
        super().__init__(json.loads(path.read_text(), object_hook=self._group))

    @staticmethod
    def _group(found: dict) -> dict:
        return {key: np.array(v) if isinstance(v, list) else v for key, v in found.items()}

    def __enter__(self) -> "_Hdf5":
        return self

    def __exit__(self, *_: object) -> None:
        return None


@pytest.mark.parametrize("kind", ["leaf", "hdf5"])
def test_the_conversions_of_the_page_give_the_same_numbers(
    kind: str, tmp_path: Path, source, monkeypatch
) -> None:
    page = Path(__file__).parents[3] / "docs" / "data.md"
    names: dict[str, Any] = {}
    exec(page.read_text().partition("```python\n")[2].partition("```")[0], names)
    splits = {"train": numbers(9, 1), "test": numbers(4, 2)}
    if kind == "leaf":
        for split, clients in splits.items():
            (tmp_path / "in" / split).mkdir(parents=True)
            document = {"users": list(clients), "user_data": clients}
            (tmp_path / "in" / split / "all_data_0.json").write_text(json.dumps(document))
        names["convert_leaf"](tmp_path / "in", tmp_path / "d")
    else:
        (tmp_path / "d.h5").write_text(json.dumps({**splits, "metadata": {"vocabulary": ["the"]}}))
        monkeypatch.setitem(sys.modules, "h5py", SimpleNamespace(File=_Hdf5))
        names["convert_hdf5"](tmp_path / "d.h5", tmp_path / "d")
    opened = source({"kind": "parquet", "file": "d", "inputs": "x", "targets": "y", "scale": 0.5})
    assert _found(opened, np.arange(9)) == _keys(splits["train"])
    assert _found(opened, FIRST_HELD_OUT + np.arange(4, dtype=np.uint64)) == _keys(splits["test"])


def test_images_are_decoded(tmp_path: Path, source) -> None:
    import io

    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (6, 4, 5), np.uint8)
    cells = []
    for picture in pixels:
        buffer = io.BytesIO()
        Image.fromarray(picture).save(buffer, "png")
        cells.append({"bytes": buffer.getvalue(), "path": None})
    columns = {"writer_id": list("aabbcc"), "image": cells, "character": list(range(6))}
    pq.write_table(pa.table(columns), tmp_path / "d.parquet")
    table = {"kind": "parquet", "file": "d.parquet", "client": "writer_id", "inputs": "image",
             "targets": "character", "shape": [1, 4, 5]}  # fmt: skip
    opened = source(table)
    assert opened.fields["inputs"].shape == (1, 4, 5)
    found = opened.examples(np.arange(2, dtype=np.uint64), np.array([[0, 1], [0, 1]]))
    for images, classes in zip(found["inputs"], found["targets"], strict=True):
        assert (images[:, 0] == pixels[classes]).all()


def test_a_share_is_held_out_where_there_is_one_split_and_is_the_same_for_every_seed(
    tmp_path: Path, source
) -> None:
    table = made("sqlite", tmp_path, {"train": numbers(40, 1)})
    held_out = FIRST_HELD_OUT + np.arange(10, dtype=np.uint64)
    one, other = (source({**table, "held_out_share": 0.25}, seed=seed) for seed in (1, 2))
    assert one.held_out_devices == 10
    assert _found(one, held_out) == _found(other, held_out)
    devices = np.arange(30)
    assert _found(one, devices) == _found(other, devices)
    assert not _found(one, devices) & _found(one, held_out)
    assert len(_found(one, devices) | _found(one, held_out)) == 40
    assert (one.examples_on(devices.astype(np.uint64)) != other.examples_on(devices.astype(np.uint64))).any()  # fmt: skip


def test_the_index_is_built_once_and_anew_when_it_is_damaged(
    tmp_path: Path, cache: Path, source, monkeypatch
) -> None:
    table = made("sqlite", tmp_path, {"train": numbers(9, 1), "test": numbers(4, 2)})
    before = _found(source(table), np.arange(9))
    from fedray.clients.data.readers.tff_sqlite import TffSqlite

    reading = TffSqlite.clients
    monkeypatch.setattr(TffSqlite, "clients", lambda self: pytest.fail("it was built again"))
    assert _found(source(table), np.arange(9)) == before
    monkeypatch.setattr(TffSqlite, "clients", reading)
    for suffix in ("index", "contents"):
        (file,) = cache.rglob(f"*.{suffix}")
        content = bytearray(file.read_bytes())
        content[-3] ^= 1
        file.write_bytes(content)
        if suffix == "index":
            with pytest.warns(UserWarning, match="built again"):
                assert _found(source(table), np.arange(9)) == before
        assert _found(source(table), np.arange(9)) == before


def test_clients_that_were_read_are_kept_within_bounds(tmp_path: Path, source, monkeypatch) -> None:
    table = made("sqlite", tmp_path, {"train": numbers(9, 1), "test": numbers(4, 2)})
    monkeypatch.setattr(recorded, "DECODED_BYTES", 200)
    opened = source(table)
    assert len(_found(opened, np.arange(9))) == 9
    assert opened._decoded_bytes <= 200
    assert opened._decoded_bytes == sum(
        values.nbytes for fields in opened._decoded.values() for values in fields.values()
    )


# What is wrong with data.


def damage_table(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("ALTER TABLE examples RENAME TO samples")
    connection.commit()
    connection.close()


def damage_example(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("UPDATE examples SET serialized_example_proto = x'0AFF' WHERE rowid = 4")
    connection.commit()
    connection.close()


def damage_feature(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute(
        "UPDATE examples SET serialized_example_proto = ? WHERE rowid = 4", (example({"y": [1]}),)
    )
    connection.commit()
    connection.close()


def truncate(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def overwrite(path: Path) -> None:
    path.write_bytes(b"x" * 5000)


def drop_column(path: Path) -> None:
    file = path / "train-00000-of-00002.parquet"
    pq.write_table(pq.read_table(file).drop_columns(["client"]), file)


def change_pixels(path: Path, change) -> None:
    """Changes the pixels of the second example of a client."""
    file = path / "train-00000-of-00002.parquet"
    table = pq.read_table(file)
    names, column = table["client"].to_pylist(), table["x"].to_pylist()
    place = next(p for p in range(1, len(names)) if names.index(names[p]) == p - 1)
    column[place] = change(column[place])
    array = pa.array(column, table.schema.field("x").type)
    where = table.schema.get_field_index("x")
    pq.write_table(table.set_column(where, "x", array), file)


def empty_cell(path: Path) -> None:
    change_pixels(path, lambda pixels: None)


def not_finite(path: Path) -> None:
    change_pixels(path, lambda pixels: [[float("nan")] * len(row) for row in pixels])


def truncate_parquet(path: Path) -> None:
    truncate(path / "train-00000-of-00002.parquet")


@pytest.mark.parametrize(
    ("kind", "damage", "says"),
    [
        ("sqlite", damage_table, "no such table: examples"),
        ("sqlite", damage_example, "d.sqlite: row 4 (client 'c02') is not a tf.train.Example"),
        ("sqlite", damage_feature, "d.sqlite: row 4 (client 'c02') has no feature 'pixels'"),
        ("sqlite", truncate, "d.sqlite"),
        ("sqlite", overwrite, "d.sqlite is not a SQLite file"),
        ("parquet", truncate_parquet, "train-00000-of-00002.parquet is not a readable Parquet file"),
        ("parquet", drop_column, "train-00000-of-00002.parquet has no column 'client'"),
        ("parquet", empty_cell, "column 'x', has an empty cell"),
        ("parquet", not_finite, "first in example 1 of the client, counted from 0"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_one_line(kind: str, damage, says: str, tmp_path: Path, source) -> None:
    table = made(kind, tmp_path, {"train": numbers(9, 1), "test": numbers(4, 2)})
    damage(tmp_path / table["file"])
    with pytest.raises(InputError) as told:
        source(table)
    assert says in str(told.value)
    assert "\n" not in str(told.value)
    if damage is drop_column:
        # The data is not at fault.
        assert str(told.value).endswith("; name one of them")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"split": "trian"}, "split='trian' is not in the data, which has test, train"),
        ({"held_out_split": "train"}, "is the split that is trained on"),
        ({"shape": [7]}, "cannot be given the shape (7,)"),
        ({"inputs": "nothing"}, "has no feature 'nothing'"),
        ({"tokens": "label"}, "has a text that is not a list of whole numbers"),
        ({"vocabulary_file": "d.sqlite", "tokens": "pixels"}, "has a text that is not a list"),
    ],
)
def test_a_table_that_the_data_does_not_fit_is_one_line(
    changes: dict, says: str, tmp_path: Path, source
) -> None:
    table = made("sqlite", tmp_path, {"train": numbers(9, 1), "test": numbers(4, 2)})
    with pytest.raises(InputError) as told:
        source({**table, **changes})
    assert says in str(told.value)
    assert "\n" not in str(told.value)


def test_damage_that_no_count_meets_is_told_for_the_devices(tmp_path: Path, source) -> None:
    """With `values` given, only the first client is read when the data is opened."""
    table = made("sqlite", tmp_path, {"train": numbers(9, 1), "test": numbers(4, 2)})
    damage_example(tmp_path / "d.sqlite")
    opened = source({**table, "values": 5})
    devices = np.arange(9, dtype=np.uint64)
    with pytest.raises(DamagedExamples) as told:
        opened.examples(devices, np.zeros((9, 1), np.int64))
    ((device, problem),) = told.value.problems.items()
    assert "row 4 (client 'c02') is not a tf.train.Example" in problem
    others = devices[devices != device]
    assert opened.examples(others, np.zeros((8, 1), np.int64))["inputs"].shape == (8, 1, 2, 3)
    few = source({**table, "values": 4})
    with pytest.raises(DamagedExamples, match="data.values says 4 values"):
        few.examples(devices, np.zeros((9, 1), np.int64))
