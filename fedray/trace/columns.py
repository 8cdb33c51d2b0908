"""The columns of a trace and of a trained run, in one table: name, type, form in the file, the runs
that have it, unit and meaning. The writer, the reader, `fedray schema` and the documentation follow
from it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedray.base.document import NotInJson
from fedray.trace.schema import (
    LOSSES_FILE,
    METRICS_FILE,
    OUTCOMES,
    PARTICIPATIONS,
    ROUNDS_FILE,
    STATES,
)

Tables = Mapping[str, Any]
"""Tables of a run's scenario, as run.json has them; a changed document may have anything there."""
_OR_NULL = " or null"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a file of a trace."""

    name: str
    """Name of the column in the file."""
    type: str
    """Parquet type, such as "uint32", with "or null" if a value may be missing."""
    unit: str
    """Unit, such as "seconds"; empty if there is none. Times count from the start of the run."""
    meaning: str
    """Description, as a sentence."""
    texts: NotInJson[tuple[str, ...]] = ()
    """Permitted texts of a column of the type "text", which the file stores as a dictionary. The
    position of a text is its code in memory and in the digest."""
    encoding: NotInJson[Literal["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"]] = "PLAIN"
    """Parquet encoding of the numbers of a participation; other files, which are small, have the
    encodings that the library chooses."""
    compression: NotInJson[Literal["ZSTD", "NONE"]] = "ZSTD"
    """Compression of the column of a participation; other files are compressed as a whole."""
    is_in: NotInJson[Callable[[Tables], bool] | None] = None
    """Function of the tables of a run's scenario that returns whether the run has the column; None
    for a column of every run."""

    @property
    def field(self) -> pa.Field:
        """The column in a schema of the Parquet library."""
        name = self.type.removesuffix(_OR_NULL)
        # Dictionary codes are only how text is stored.
        kind = pa.dictionary(pa.int8(), pa.string()) if self.texts else pa.type_for_alias(name)
        return pa.field(self.name, kind, nullable=self.type.endswith(_OR_NULL))

    @property
    def dtype(self) -> np.dtype:
        """Type of the values in memory; texts are codes, and NaN stands for null."""
        # numpy has the same names of types.
        return np.dtype(np.uint8 if self.texts else self.type.removesuffix(_OR_NULL))

    def to_arrow(self, values: NDArray) -> pa.Array:
        """Returns values of the type `dtype` as they are in the file."""
        if self.texts:
            codes = pa.array(values.astype(np.int8))
            return pa.DictionaryArray.from_arrays(codes, pa.array(self.texts))
        mask = np.isnan(values) if self.field.nullable else None
        return pa.array(values, type=self.field.type, mask=mask)


def is_buffered(tables: Tables) -> bool:
    """Returns whether a run's rounds are buffers of reports."""
    rounds = tables.get("rounds")
    return isinstance(rounds, dict) and rounds.get("mode") == "buffered"


def has_owners(tables: Tables) -> bool:
    """Returns whether a run had owners of devices."""
    population = tables.get("population")
    return isinstance(population, dict) and "owners" in population


# Sorted ids differ little. Byte-stream split groups the similar upper bytes of times, which are
# otherwise nearly random, so compressing them costs more than it saves.
COLUMNS: Mapping[str, tuple[Column, ...]] = {
    PARTICIPATIONS: (
        Column("round", "uint32", "",
               "The round that the device was selected for; abandoned attempts have the number "
               "of the round that they attempted."),
        Column("device_id", "uint64", "",
               "The device: 0, 1, 2, ...", encoding="DELTA_BINARY_PACKED"),
        Column("checkin_time", "double", "seconds",
               "When the device checked in; with stored uploads, when it uploaded.",
               encoding="BYTE_STREAM_SPLIT", compression="NONE"),
        Column("report_time", "double or null", "seconds",
               "When the device reported; null if it never did.",
               encoding="BYTE_STREAM_SPLIT", compression="NONE"),
        Column("outcome", "text", "",
               f"Outcome of the participation: {', '.join(OUTCOMES)}.", texts=OUTCOMES),
        Column("examples", "uint32", "examples",
               "Number of examples on the device; `training.client` limits how many of them "
               "are used."),
        Column("version", "uint32", "rounds",
               "Only for buffered rounds: number of rounds released when the device started. "
               "The round minus the version is the staleness.", is_in=is_buffered),
        Column("owner_id", "uint64", "",
               "Only with `population.owners`: the person who owns the device, named by the id "
               "of the person's first device.", encoding="DELTA_BINARY_PACKED", is_in=has_owners),
    ),
    ROUNDS_FILE: (
        Column("round", "uint32", "",
               "Number of the committed round, from 0; an abandoned attempt has the number of "
               "the round that it attempted."),
        Column("opened", "double", "seconds",
               "When selection began; with stored uploads, when their window ended."),
        Column("started", "double", "seconds",
               "When devices were selected, or the attempt was abandoned."),
        Column("closed", "double", "seconds", "When the round was committed or abandoned."),
        Column("selected", "uint32", "devices", "Number of devices selected."),
        Column("reported", "uint32", "devices",
               "Number of selected devices that reported, late ones included."),
        Column("accepted", "uint32", "devices",
               "Number of devices whose reports were used; 0 if the attempt was abandoned."),
        Column("state", "text", "",
               f"Outcome of the attempt: {' or '.join(STATES)}.", texts=STATES),
        Column("eligible_estimate", "uint64", "devices",
               "Estimated number of devices that were eligible at the start of the look-ahead "
               "window in which the attempt started."),
    ),
    LOSSES_FILE: (
        Column("device_id", "uint64", "", "The device that lost its history."),
        Column("time", "double", "seconds", "When the device lost it."),
    ),
    METRICS_FILE: (
        Column("round", "uint32", "", "The round."),
        Column("train_loss", "double or null", "of the task",
               "Mean loss of the round's devices before they trained; null if no device "
               "trained."),
        Column("clipped_share", "double", "share",
               "Share of the round's devices whose update was scaled down."),
        Column("trained", "uint32", "devices", "Number of devices whose update is in the sum."),
        Column("without_examples", "uint32", "devices", "Number of devices without data."),
        Column("damaged", "uint32", "devices", "Number of devices whose data cannot be read."),
        Column("not_finite", "uint32", "devices",
               "Number of devices whose update has a NaN or an infinity, and counts as 0."),
        Column("zeroed", "uint32", "devices",
               "Number of devices whose update was so long that it counts as 0."),
        Column("clip_norm", "double or null", "L2 norm",
               "Norm to which updates were clipped; null if not recorded."),
        Column("counted_norm", "double or null", "L2 norm",
               "Norm up to which updates were counted as short; null if short updates were not "
               "counted."),
    ),
}  # fmt: skip
"""Columns by file, in the order of the file and of its digest. metrics.parquet also has, for each
metric of the task, evaluation_NAME and evaluation_NAME_error, which are null in rounds that were
not evaluated."""
TEXTS = {each.name: each.texts for file in COLUMNS.values() for each in file if each.texts}
"""Permitted texts of each column that has any."""


def columns_in(file: str, tables: Tables) -> list[Column]:
    """Returns the columns that a file has in a run.

    Args:
        file: key of COLUMNS.
        tables: tables of the run's scenario.
    """
    return [each for each in COLUMNS[file] if each.is_in is None or each.is_in(tables)]


def columns_named(file: str, names: Iterable[str]) -> list[Column]:
    """Returns the columns of a file by their names, in the order of the file.

    Raises:
        ValueError: a name is unknown, or a column that every run has is missing.
    """
    given = set(names)
    known = {each.name for each in COLUMNS[file]}
    needed = {each.name for each in COLUMNS[file] if each.is_in is None}
    for wrong, rule in ((given - known, "is unknown"), (needed - given, "is missing")):
        if wrong:
            raise ValueError(
                f"column {min(wrong)!r} of {file} {rule}; COLUMNS in fedray/trace/columns.py "
                "lists them"
            )
    return [each for each in COLUMNS[file] if each.name in given]


def schema_of(columns: Iterable[Column]) -> pa.Schema:
    """Returns a schema of the Parquet library."""
    return pa.schema([each.field for each in columns])


def arrow_table(columns: Sequence[Column], values: Mapping[str, NDArray]) -> pa.Table:
    """Returns columns as they are in their file.

    Args:
        columns: columns in order.
        values: values of each by name, texts as codes, NaN for null.
    """
    arrays = [each.to_arrow(values[each.name]) for each in columns]
    return pa.table(arrays, schema=schema_of(columns))


ROUND_SCHEMA = schema_of(COLUMNS[ROUNDS_FILE])
LOSS_SCHEMA = schema_of(COLUMNS[LOSSES_FILE])
