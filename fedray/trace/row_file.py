"""Files of rows for other programs, as Parquet or CSV: written batch by batch, so that any number
of rows fits in memory."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from fedray.base.atomic import whole_file
from fedray.base.errors import InputError
from fedray.trace.files import first_line

RowForm = Literal["parquet", "csv"]
ROW_SUFFIXES: dict[str, RowForm] = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv"}


@contextlib.contextmanager
def new_row_file(file: Path, argument: str) -> Iterator[Path]:
    """Yields a name to write rows under; the file is complete when the block ends, or absent.

    Args:
        file: its path; an existing file is replaced.
        argument: the user's argument that names it.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        with whole_file(file) as new:
            yield new
    except (OSError, pa.ArrowException) as error:
        raise InputError.of(
            argument,
            str(file),
            f"cannot be written ({first_line(error)})",
            "name a place that can be written",
        ) from None


def write_rows(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, file: Path, form: RowForm
) -> int:
    """Writes rows; in CSV also a line of column names.

    Args:
        batches: rows of this schema, in order.
        schema: the columns.
        file: the path.
        form: the file's form.

    Returns:
        Number of rows.

    Raises:
        OSError: the file cannot be written.
        pyarrow.ArrowException: the same.
    """
    total = 0
    with contextlib.ExitStack() as stack:
        if form == "parquet":
            writer = stack.enter_context(pq.ParquetWriter(file, schema, compression="zstd"))
        else:
            writer = stack.enter_context(arrow_csv.CSVWriter(file, schema))
        for batch in batches:
            writer.write_batch(batch)
            total += batch.num_rows
    return total
