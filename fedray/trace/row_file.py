"""Writes files of rows for other programs, as Parquet or CSV, batch by batch, so that memory does
not limit the number of rows."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from fedray.base.atomic import new_output
from fedray.base.errors import InputError
from fedray.trace.files import first_line

RowForm = Literal["parquet", "csv"]
ROW_SUFFIXES: dict[str, RowForm] = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv"}


def row_form_of(file: Path, argument: str) -> RowForm:
    """Returns the form of a file's suffix. Raises InputError, which names the user's argument."""
    form = ROW_SUFFIXES.get(file.suffix.lower())
    if form is None:
        rule = f"has a suffix that is none of {', '.join(ROW_SUFFIXES)}"
        raise InputError.of(argument, str(file), rule, "rename the file")
    return form


@contextlib.contextmanager
def new_row_file(file: Path, argument: str) -> Iterator[Path]:
    """Yields a temporary path to write to; when the block ends, the output is complete, or absent.

    Args:
        file: path that the user gave, as `write_output` has it.
        argument: name of the user's argument with the path.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        with new_output(file) as new:
            yield new
    except BrokenPipeError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise InputError.of(
            argument,
            str(file),
            f"cannot be written ({first_line(error)})",
            "give a writable path",
        ) from None


def write_rows(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, file: Path, form: RowForm
) -> int:
    """Writes rows to a file; CSV gets a line of column names.

    Args:
        batches: batches of rows with this schema, in order.
        schema: columns of the file.
        file: path of the file.
        form: format of the file.

    Returns:
        Number of rows written.

    Raises:
        OSError: the file cannot be written.
        pyarrow.ArrowException: the rows cannot be converted, or the file cannot be written.
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
