"""The table of columns: files are written, read, checked and described as it says."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from fedray.base.errors import TraceCorrupt
from fedray.trace.columns import COLUMNS, Column, columns_in, schema_of
from fedray.trace.files import read_columns
from fedray.trace.schema import PARTICIPATIONS
from fedray.trace.writer import encode_part

BUFFERED = {"rounds": {"mode": "buffered"}}
OWNERS = {"population": {"owners": {"shares": [1.0]}}}
RUNS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "usual": ({}, set()),
    "buffered": (BUFFERED, {"version"}),
    "owners": (OWNERS, {"owner_id"}),
    "both": (BUFFERED | OWNERS, {"version", "owner_id"}),
    "damaged": ({"rounds": 3, "population": "owners"}, set()),
}
"""Tables of scenarios, and the columns that only their runs have."""
EACH = pytest.mark.parametrize("tables", [tables for tables, _ in RUNS.values()], ids=list(RUNS))


def values_of(column: Column, size: int = 100) -> NDArray:
    """Distinct values; texts as codes, and each fifth of a column that may have nulls is NaN."""
    values = np.arange(size)
    if column.texts:
        return (values % len(column.texts)).astype(column.dtype)
    if column.field.nullable:
        return np.where(values % 5 == 0, np.nan, values)
    return values.astype(column.dtype)


def written(tables: dict[str, Any], file: Path) -> dict[str, NDArray]:
    """Writes a part with the columns of a run, and returns their values."""
    values = {each.name: values_of(each) for each in columns_in(PARTICIPATIONS, tables)}
    # The order of the columns follows from the table.
    part = encode_part(0, 1000, dict(reversed(values.items())))
    assert part.parquet is not None
    assert list(part.column_digests) == list(values)
    file.write_bytes(part.parquet)
    return values


@pytest.mark.parametrize("run", RUNS)
def test_a_run_has_the_columns_of_its_scenario(run: str) -> None:
    tables, more = RUNS[run]
    names = {each.name for each in columns_in(PARTICIPATIONS, tables)}
    assert names - {each.name for each in COLUMNS[PARTICIPATIONS] if each.is_in is None} == more


@EACH
def test_values_are_read_as_they_were_written(tables: dict[str, Any], tmp_path: Path) -> None:
    values = written(tables, tmp_path / "part")
    found = read_columns(tmp_path / "part", schema_of(columns_in(PARTICIPATIONS, tables)))
    assert list(found) == list(values)
    for name, column in values.items():
        assert found[name].dtype == column.dtype
        np.testing.assert_array_equal(found[name], column)


@EACH
def test_a_file_has_the_encodings_of_the_table(tables: dict[str, Any], tmp_path: Path) -> None:
    written(tables, tmp_path / "part")
    group = pq.ParquetFile(tmp_path / "part").metadata.row_group(0)
    for place, column in enumerate(columns_in(PARTICIPATIONS, tables)):
        stored = group.column(place)
        assert stored.path_in_schema == column.name
        assert stored.has_dictionary_page == bool(column.texts)
        assert column.texts or column.encoding in stored.encodings
        assert stored.compression == column.compression.replace("NONE", "UNCOMPRESSED")


def test_a_file_with_a_column_that_its_run_lacks_is_refused(tmp_path: Path) -> None:
    written(BUFFERED, tmp_path / "part")
    with pytest.raises(TraceCorrupt, match="has columns"):
        read_columns(tmp_path / "part", schema_of(columns_in(PARTICIPATIONS, {})))


def test_columns_that_the_table_lacks_are_refused() -> None:
    values = {each.name: values_of(each) for each in columns_in(PARTICIPATIONS, {})}
    with pytest.raises(ValueError, match="column 'nonsense' of participations is unknown"):
        encode_part(0, 1000, {**values, "nonsense": values["round"]})
    del values["examples"]
    with pytest.raises(ValueError, match="column 'examples' of participations is missing"):
        encode_part(0, 1000, values)


@pytest.mark.parametrize("file", COLUMNS)
def test_every_column_has_one_name_and_a_meaning(file: str) -> None:
    columns = COLUMNS[file]
    assert len({each.name for each in columns}) == len(columns)
    assert not [each.name for each in columns if not each.meaning.endswith(".")]
    # Texts are known by a column's name, whatever its file.
    assert {each.name for each in columns if each.texts} == {
        each.name for each in columns if each.type == "text"
    }
