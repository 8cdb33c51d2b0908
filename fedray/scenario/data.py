"""The table `data`: where the examples of the devices come from; see `clients/data`."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, Tag, ValidationInfo, model_validator

from fedray.base.table import Positive, Share, Table, told_apart_by
from fedray.scenario.content import PythonFile
from fedray.scenario.data_file import Digest, NamesDataFiles
from fedray.scenario.standard_library import standard_library

__all__ = [
    "ClassesData",
    "CustomData",
    "LanguageData",
    "LeafData",
    "ParquetData",
    "PflHdf5Data",
    "PointsData",
    "SourceCodeData",
    "TffSqliteData",
]

Name = Annotated[str, Field(min_length=1, max_length=200)]


class DataTable(Table):
    """The table of a kind of data; its `kind` says which."""

    implementation: ClassVar[str]
    """`module:name` of the source. Called with a scenario and this table, it returns an
    `ExampleSource`; for recorded clients it is called with this table and the cache folder of the
    data's content, and returns a `ClientFile`."""
    draws_counts: ClassVar[bool] = False
    """Whether how many examples a device has is drawn as the table `population` says. Otherwise the
    data says it, and `population.examples_median`, `_sigma` and `_max` are not used."""


class LanguageData(DataTable):
    """A seeded synthetic language; see clients/data/language.py.

    How many sentences a device has is drawn, as the table `population` says.
    """

    kind: Literal["language"] = "language"
    """A synthetic language."""
    implementation: ClassVar[str] = "fedray.clients.data.language:Language"
    draws_counts: ClassVar[bool] = True


class ClassesData(DataTable):
    """Synthetic classes, one Gaussian each; see clients/data/classes.py.

    How many examples a device has is drawn, as the table `population` says.
    """

    kind: Literal["classes"] = "classes"
    """Synthetic classes."""
    implementation: ClassVar[str] = "fedray.clients.data.classes:Classes"
    draws_counts: ClassVar[bool] = True
    shape: Annotated[
        tuple[Annotated[int, Field(ge=1, le=4096)], ...],
        Field(strict=False, min_length=1, max_length=4),
    ] = (20,)
    """Shape of an example's inputs, at most 2^20 numbers."""
    classes: Annotated[int, Field(ge=2, le=10_000)] = 10
    """Number of classes."""
    separation: Annotated[float, Field(ge=0, le=100)] = 3.0
    """Distance between the means of any two classes, in standard deviations of the noise. Exact if
    there are at most as many classes as inputs; else random around this value."""
    skew: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Concentration of the Dirichlet from which a device draws its shares of the classes: small
    ones make devices differ. None: all devices have all classes alike."""

    @model_validator(mode="after")
    def _is_not_too_large(self) -> Self:
        size = 1
        for each in self.shape:
            size *= each
        if size * self.classes > 1 << 26:
            raise ValueError(
                f"shape={list(self.shape)}, classes={self.classes}: the means of all classes have "
                "more than 2^26 numbers; lower one of them"
            )
        return self


class PointsData(DataTable):
    """Synthetic points around a centre of each device; see clients/data/points.py.

    How many points a device has is drawn, as the table `population` says.
    """

    kind: Literal["points"] = "points"
    """Synthetic points, whose mean is the optimum of the quadratic task."""
    implementation: ClassVar[str] = "fedray.clients.data.points:Points"
    draws_counts: ClassVar[bool] = True
    dimension: Annotated[int, Field(ge=1, le=1 << 26)] = 100
    """Numbers of a point."""
    between: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    """Standard deviation of a device's centre around the population's mean, per coordinate."""
    within: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    """Standard deviation of a point around its device's centre, per coordinate."""


class AssignedData(DataTable):
    """Keys that say which device has which client of the data; see clients/data/assignment.py."""

    held_out_share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the clients set apart for evaluation if the data has a single split. It is the same
    clients for every seed."""
    tie: Literal["none", "zone", "hour", "speed"] = "none"
    """Property of a device that its data depends on. "none": nothing. "zone": clients in
    `tie_order` are cut into one block per time zone, as large as the zone's share of the devices.
    "hour": clients follow, in order, the hour (UTC) of the middle of a device's night, so that the
    data of a round turns with the day (the block-cyclic data of semi-cyclic SGD); this needs the
    habit model. "speed": clients follow, in order, the training time of a device."""
    tie_strength: Share = 1.0
    """Share of the devices whose data follows `tie`; the others' is drawn from all clients."""
    tie_order: Literal["name", "examples"] = "name"
    """The order of clients for `tie`: by their names, or by how many examples they have."""


class FormedData(NamesDataFiles, DataTable):
    """Keys that say what an example of recorded data is; see clients/data/form.py."""

    tokens: str = ""
    """Column of text: raw words, or whole numbers that stand for words. Where it is given, an
    example is a text (field `tokens`), and the other columns are not read."""
    inputs: str = "inputs"
    """Column of the inputs, such as pixels: numbers (field `inputs`)."""
    targets: str = "targets"
    """Column of the targets (field `targets`): whole numbers are classes, reals are values. Empty:
    no targets."""
    scale: Positive = 1.0
    """Factor on the inputs, such as 0.00392156862745098 for bytes."""
    shape: (
        Annotated[
            tuple[Annotated[int, Field(ge=1, le=1 << 20)], ...],
            Field(strict=False, min_length=1, max_length=4),
        ]
        | None
    ) = None
    """Shape that the inputs of an example are given; none: as they are."""
    # Columns of whole numbers are refused from 2^40 on when they are read.
    values: Annotated[int, Field(ge=0, le=1 << 40)] = 0
    """Number of classes or tokens: they are 0 to values - 1. 0 counts them, which reads all data
    once."""
    length: Annotated[int, Field(ge=1, le=4096)] = 20
    """Words of a text that are learned; longer texts are cut, shorter ones padded."""
    unit: Literal["word", "character"] = "word"
    """Token of a raw text: a word between white space, or a character."""
    vocabulary: Annotated[int, Field(ge=1, le=1 << 24)] = 10_000
    """Number of most frequent words that have a token; all others are the unknown word. Words are
    counted over the training clients, which reads all data once. A counted vocabulary is not
    private: it is a function of the data without noise."""
    vocabulary_file: str = ""
    """A file with the vocabulary instead, a word a line, relative to the scenario's directory;
    recorded as an absolute path."""
    vocabulary_sha256: Digest = ""
    """SHA-256 of that file; filled in when it is read, checked where given."""
    digest_keys: ClassVar[dict[str, str]] = {"vocabulary_file": "vocabulary_sha256"}

    @model_validator(mode="after")
    def _has_columns(self) -> Self:
        # Targets without inputs make no example: a model has nothing to predict them from.
        if not self.tokens and not self.inputs:
            raise ValueError(
                "tokens='', inputs='': an example needs a column; name one that the data has"
            )
        return self


class FileData(FormedData, AssignedData):
    """Keys of all data in a file of clients."""

    file: Annotated[str, Field(min_length=1)]
    """The file, or where the kind allows it a folder of files, relative to the scenario's
    directory; recorded as an absolute path."""
    sha256: Digest = ""
    """SHA-256 of the file, or of the names and digests of a folder's; filled in when it is read,
    checked where given."""
    split: str = ""
    """Split whose clients the devices have; empty: "train", or the only one."""
    held_out_split: str = ""
    """Split whose clients are held out for evaluation; empty: "test" if there is one, else
    `held_out_share` of the clients."""
    digest_keys: ClassVar[dict[str, str]] = {
        "file": "sha256",
        "vocabulary_file": "vocabulary_sha256",
    }


class TffSqliteData(FileData):
    """A SQLite file of TensorFlow Federated (EMNIST, Shakespeare, Stack Overflow), also compressed
    (.lzma); see clients/data/readers/tff_sqlite.py."""

    kind: Literal["tff_sqlite"] = "tff_sqlite"
    """A SQLite file of TensorFlow Federated."""
    implementation: ClassVar[str] = "fedray.clients.data.readers.tff_sqlite:TffSqlite.of"
    # These are the names in EMNIST's file.
    inputs: str = "pixels"
    """Feature of the inputs (field `inputs`)."""
    targets: str = "label"
    """Feature of the targets (field `targets`); empty: no targets."""


class PflHdf5Data(FileData):
    """An HDF5 file of pfl-research; see clients/data/readers/pfl_hdf5.py."""

    kind: Literal["pfl_hdf5"] = "pfl_hdf5"
    """An HDF5 file with data sets {split}/{client}/{column}."""
    implementation: ClassVar[str] = "fedray.clients.data.readers.pfl_hdf5:PflHdf5"


class ParquetData(FileData):
    """Parquet files with a client column, such as the ones of Hugging Face; see
    clients/data/readers/parquet.py."""

    kind: Literal["parquet"] = "parquet"
    """Parquet files with a column of clients."""
    implementation: ClassVar[str] = "fedray.clients.data.readers.parquet:ParquetFiles.of"
    client: Name = "client"
    """Column that names the client of a row."""


class LeafData(FileData):
    """JSON files of LEAF; see clients/data/readers/leaf.py."""

    kind: Literal["leaf"] = "leaf"
    """JSON files of LEAF."""
    implementation: ClassVar[str] = "fedray.clients.data.readers.leaf:LeafFiles"
    # LEAF's files name the columns of every client so.
    inputs: str = "x"
    """Key of the inputs (field `inputs`)."""
    targets: str = "y"
    """Key of the targets (field `targets`); empty: no targets."""


class SourceCodeData(FormedData, AssignedData):
    """Real text that every machine has: the source of Python's standard library. A module is a
    client, a line an example; see clients/data/readers/source_code.py."""

    kind: Literal["source_code"] = "source_code"
    """The source of Python's standard library."""
    implementation: ClassVar[str] = "fedray.clients.data.readers.source_code:SourceCode"
    # The reader makes this one column, so no other can be named.
    tokens: Annotated[str, Field(pattern="^words$")] = "words"
    """Words are names, numbers and single signs."""
    sha256: Digest = ""
    """SHA-256 of Python's version and of all modules; filled in, checked where given."""

    @model_validator(mode="after")
    def _identify(self, info: ValidationInfo) -> Self:
        if (info.context or {}).get("is_recorded"):
            return self  # perhaps of another Python: held to it when it is opened
        # The text differs between versions of Python, and a trained model depends on it.
        digest = standard_library().digest
        if self.sha256 not in ("", digest):
            raise ValueError(
                f"sha256={self.sha256!r} is of another Python's standard library than this one "
                f"({digest}); use that Python, or leave the key out"
            )
        object.__setattr__(self, "sha256", digest)  # frozen, and not yet handed out
        return self


AnyRecordedData = (
    Annotated[TffSqliteData, Tag("tff_sqlite")]
    | Annotated[PflHdf5Data, Tag("pfl_hdf5")]
    | Annotated[ParquetData, Tag("parquet")]
    | Annotated[LeafData, Tag("leaf")]
    | Annotated[SourceCodeData, Tag("source_code")]
)
"""The tables of recorded clients."""


class CustomData(PythonFile, FormedData, AssignedData):
    """A Python file of the user's own, which imports all it needs.

    `data(seed)` returns an `ExampleSource` (clients/data/source.py); keys of this table about the
    form and the assignment of examples are then unused. Or it returns an object with
    `num_partitions` and `load_partition(number)`, such as a dataset of Flower Datasets, whose
    partitions are clients of the data. `seed` is the scenario's.
    """

    kind: Literal["custom"] = "custom"
    """Data of the user's own."""
    implementation: ClassVar[str] = "fedray.clients.data.custom:custom_source"
    table: ClassVar[str] = "data"

    def __eq__(self, other: object) -> bool:
        # The inherited equality of a Python file would count where the vocabulary lies.
        return NamesDataFiles.__eq__(self, other)

    def __hash__(self) -> int:
        return hash(self.sha256)


AnyData = Annotated[
    Annotated[LanguageData, Tag("language")]
    | Annotated[ClassesData, Tag("classes")]
    | Annotated[PointsData, Tag("points")]
    | AnyRecordedData
    | Annotated[CustomData, Tag("custom")],
    told_apart_by("kind", "language"),
]
"""Tables of all kinds of data, distinguished by `kind`."""
