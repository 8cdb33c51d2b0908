"""The table `data`: where the examples of the devices come from; see `clients/data`."""

import json
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, Tag, ValidationInfo, model_validator

from fedray.base.regular_file import read_regular_file
from fedray.base.table import Positive, Share, Table, told_apart_by
from fedray.scenario.content import PythonFile
from fedray.scenario.data_file import Digest, NamesDataFiles
from fedray.scenario.standard_library import standard_library

__all__ = [
    "ClassesData",
    "CustomData",
    "LanguageData",
    "ParquetData",
    "PointsData",
    "SourceCodeData",
    "TffSqliteData",
    "VocabularyCost",
]

MOST_COST_BYTES = 1 << 20
"""Largest file on the cost of a vocabulary."""
Name = Annotated[str, Field(min_length=1, max_length=200)]


class DataTable(Table):
    """The table of a kind of data; the key `kind` selects it."""

    implementation: ClassVar[str]
    """`module:name` of the source. Called with a scenario and this table, it returns an
    `ExampleSource`; for recorded clients it is called with this table, and returns a
    `ClientFile`."""
    draws_counts: ClassVar[bool] = False
    """Whether the number of examples on a device is drawn from the distribution in `population`. If
    not, the data determines it, and `examples_median`, `examples_sigma` and `examples_max` are not
    used."""


class LanguageData(DataTable):
    """A seeded synthetic language; see clients/data/language.py.

    The number of sentences on a device is drawn from the distribution in the table `population`.
    """

    kind: Literal["language"] = "language"
    """A synthetic language."""
    implementation: ClassVar[str] = "fedray.clients.data.language:Language"
    draws_counts: ClassVar[bool] = True


class ClassesData(DataTable):
    """Synthetic classes, each with a Gaussian distribution of inputs; see clients/data/classes.py.

    The number of examples on a device is drawn from the distribution in the table `population`.
    """

    kind: Literal["classes"] = "classes"
    """Synthetic classes."""
    implementation: ClassVar[str] = "fedray.clients.data.classes:Classes"
    draws_counts: ClassVar[bool] = True
    shape: Annotated[
        tuple[Annotated[int, Field(ge=1, le=4096)], ...],
        Field(strict=False, min_length=1, max_length=4),
    ] = (20,)
    """Shape of an example's inputs; their number times `classes` is at most 2^26."""
    classes: Annotated[int, Field(ge=2, le=10_000)] = 10
    """Number of classes."""
    separation: Annotated[float, Field(ge=0, le=100)] = 3.0
    """Distance between the means of any two classes, in standard deviations of the noise. Exact if
    there are at most as many classes as inputs; else random around this value."""
    skew: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Concentration of the Dirichlet distribution of a device's shares of the classes; the smaller
    it is, the more devices differ. Default: all classes are equally likely on all devices."""

    @model_validator(mode="after")
    def _is_not_too_large(self) -> Self:
        size = 1
        for each in self.shape:
            size *= each
        if size * self.classes > 1 << 26:
            raise ValueError(
                f"shape={list(self.shape)}, classes={self.classes}: the means of all classes have "
                "more than 2^26 numbers in total; lower one of the two"
            )
        return self


class PointsData(DataTable):
    """Synthetic points around a centre of each device; see clients/data/points.py.

    The number of points on a device is drawn from the distribution in the table `population`.
    """

    kind: Literal["points"] = "points"
    """Synthetic points, whose mean is the optimum of the quadratic task."""
    implementation: ClassVar[str] = "fedray.clients.data.points:Points"
    draws_counts: ClassVar[bool] = True
    dimension: Annotated[int, Field(ge=1, le=1 << 26)] = 100
    """Number of coordinates of a point."""
    between: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    """Standard deviation of a device's centre around the population's mean, per coordinate."""
    within: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    """Standard deviation of a point around its device's centre, per coordinate."""


class AssignedData(DataTable):
    """Keys that assign clients of the data to devices; see clients/data/assignment.py."""

    held_out_share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the clients set apart for evaluation if the data has a single split. They are the
    same clients for every seed."""
    tie: Literal["none", "zone", "hour", "speed"] = "none"
    """Property of a device that its data depends on. "none": nothing. "zone": clients in
    `tie_order` are cut into one block per time zone, as large as the zone's share of the devices.
    "hour": clients follow, in order, the hour (UTC) of the middle of a device's night, so that the
    data of a round turns with the day (the block-cyclic data of semi-cyclic SGD); this needs the
    habit model. "speed": clients follow, in order, the training time of a device."""
    tie_strength: Share = 1.0
    """Share of the devices whose data follows `tie`; other devices draw from all clients."""
    tie_order: Literal["name", "examples"] = "name"
    """Order of clients for `tie`: by name, or by number of examples."""


class VocabularyCost(Table):
    """Privacy that devices spent on a vocabulary, as `fedray answer` recorded it."""

    trust: str
    """Kind of the trust model of the question."""
    mechanism: str
    """Mechanism that answered."""
    theorem: str
    """Theorem behind the privacy of a window."""
    windows: Annotated[int, Field(ge=1)]
    """Largest number of windows in which the rules permit a device to answer."""
    delta: Annotated[float, Field(gt=0, lt=1)]
    """Delta at which the event is accounted for."""
    event: dict[str, Any]
    """Spending of a device in these windows."""
    vocabulary_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 of the vocabulary that the event is about."""
    run: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Digest of the scenario whose run found the words: another run may find the same ones."""


class FormedData(NamesDataFiles, DataTable):
    """Keys that define an example of recorded data; see clients/data/form.py."""

    tokens: str = ""
    """Column of text: raw text, or integers that stand for words. If it is given, an example is a
    text (field `tokens`), and the other columns are not read."""
    inputs: str = "inputs"
    """Column of the inputs, such as pixels: numbers (field `inputs`). Integers become float32 too:
    a module that takes whole numbers, as an embedding does, calls inputs.long()."""
    targets: str = "targets"
    """Column of the targets (field `targets`): integers are classes, floating-point numbers are
    values. Empty: no targets."""
    scale: Positive = 1.0
    """Factor on the inputs, such as 0.00392156862745098 for bytes."""
    shape: (
        Annotated[
            tuple[Annotated[int, Field(ge=1, le=1 << 20)], ...],
            Field(strict=False, min_length=1, max_length=4),
        ]
        | None
    ) = None
    """Shape to which the inputs of an example are reshaped. Default: they keep their shape."""
    # Columns of whole numbers are refused from 2^40 on when they are read.
    values: Annotated[int, Field(ge=0, le=1 << 40)] = 0
    """Number of classes or tokens, which are the integers from 0 to values - 1. With 0 they are
    counted, which reads all data once."""
    length: Annotated[int, Field(ge=1, le=4096)] = 20
    """Number of tokens of each text that are learned; longer texts are cut, shorter ones padded."""
    unit: Literal["word", "character"] = "word"
    """Unit of raw text that becomes a token: a word between white space, or a character."""
    vocabulary: Annotated[int, Field(ge=1, le=1 << 24)] = 10_000
    """Number of most frequent words that have a token; all others are the unknown word. Words are
    counted over the training clients, which reads all data once. A counted vocabulary is not
    private, because it is a function of the data without noise."""
    vocabulary_file: str = ""
    """A file with the vocabulary, one word per line, to use instead of counting words; relative to
    the scenario's directory, recorded as an absolute path."""
    vocabulary_sha256: Digest = ""
    """SHA-256 of the vocabulary file; filled in when it is read, and checked if given."""
    vocabulary_cost: VocabularyCost | None = None
    """Table: the cost of a private vocabulary; filled in from the file beside it, which `fedray
        answer` wrote. The audit of a training composes both."""
    digest_keys: ClassVar[dict[str, str]] = {"vocabulary_file": "vocabulary_sha256"}

    @property
    def is_counted(self) -> bool:
        """Whether words, tokens or classes are those of the data, found without noise."""
        return not (self.vocabulary_file or self.values)

    @model_validator(mode="after")
    def _finds_the_cost(self, info: ValidationInfo) -> Self:
        file, cost = Path(f"{self.vocabulary_file}.json"), self.vocabulary_cost
        is_recorded = (info.context or {}).get("is_recorded")
        if cost is None and not is_recorded and self.vocabulary_file and file.is_file():
            try:
                document = json.loads(read_regular_file(file, MOST_COST_BYTES))
                cost = VocabularyCost.model_validate(document["cost"])
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"vocabulary_file: {str(file)!r} beside it does not say what it cost "
                    f"({error}); write both by `Answers.write_vocabulary`"
                ) from None
            object.__setattr__(self, "vocabulary_cost", cost)  # frozen, and not yet handed out
        if cost is not None and cost.vocabulary_sha256 != self.vocabulary_sha256:
            raise ValueError(
                "vocabulary_cost: it is about a file with sha256 "
                f"{cost.vocabulary_sha256}, not about vocabulary_file={self.vocabulary_file!r}; "
                "write both by `Answers.write_vocabulary`"
            )
        return self

    @model_validator(mode="after")
    def _has_columns(self) -> Self:
        # Targets without inputs make no example: a model has nothing to predict them from.
        if not self.tokens and not self.inputs:
            raise ValueError(
                "tokens='', inputs='': an example needs a column; set tokens or inputs to a column "
                "of the data"
            )
        return self


class FileData(FormedData, AssignedData):
    """Keys that all kinds of data in a file of clients have."""

    file: Annotated[str, Field(min_length=1)]
    """The file, or a folder of files if the kind allows it, relative to the scenario's directory;
    recorded as an absolute path."""
    sha256: Digest = ""
    """SHA-256 of the file, or of the names and digests of a folder's files; filled in when it is
    read, and checked if given."""
    split: str = ""
    """Split whose clients are assigned to devices; empty: "train", or the only split."""
    held_out_split: str = ""
    """Split whose clients are held out for evaluation; empty: "test" if there is one, else
    `held_out_share` of the clients."""
    digest_keys: ClassVar[dict[str, str]] = {
        "file": "sha256",
        "vocabulary_file": "vocabulary_sha256",
    }


class TffSqliteData(FileData):
    """A SQLite file of TensorFlow Federated (EMNIST, Shakespeare, Stack Overflow); see
    clients/data/readers/tff_sqlite.py."""

    kind: Literal["tff_sqlite"] = "tff_sqlite"
    """A SQLite file of TensorFlow Federated."""
    implementation: ClassVar[str] = "fedray.clients.data.readers.tff_sqlite:TffSqlite.of"
    # The defaults are the names in EMNIST's file.
    inputs: str = "pixels"
    """Feature of the inputs (field `inputs`)."""
    targets: str = "label"
    """Feature of the targets (field `targets`); empty: no targets."""


class ParquetData(FileData):
    """Parquet files with a client column, such as those from Hugging Face; see
    clients/data/readers/parquet.py."""

    kind: Literal["parquet"] = "parquet"
    """Parquet files with a column of clients."""
    implementation: ClassVar[str] = "fedray.clients.data.readers.parquet:ParquetFiles.of"
    client: Name = "client"
    """Column that names the client of a row."""


class SourceCodeData(FormedData, AssignedData):
    """Real text that every machine has: the source code of Python's standard library. Each module
    is a client, and each line an example; see clients/data/readers/source_code.py."""

    kind: Literal["source_code"] = "source_code"
    """The source of Python's standard library."""
    implementation: ClassVar[str] = "fedray.clients.data.readers.source_code:SourceCode"
    # The reader makes only this column, so no other name is possible.
    tokens: Annotated[str, Field(pattern="^words$")] = "words"
    """Column of text, always "words". Words are names, numbers and single signs."""
    sha256: Digest = ""
    """SHA-256 of Python's version and of all modules; filled in, and checked if given."""

    @model_validator(mode="after")
    def _identify(self, info: ValidationInfo) -> Self:
        if (info.context or {}).get("is_recorded"):
            return self  # it may be another Python's; the digest is checked when the data is opened
        # The text differs between versions of Python, and a trained model depends on it.
        digest = standard_library().digest
        if self.sha256 not in ("", digest):
            raise ValueError(
                f"sha256={self.sha256!r} is not the digest of this Python's standard library "
                f"({digest}); use the Python that it belongs to, or leave the key out"
            )
        object.__setattr__(self, "sha256", digest)  # frozen, and not yet handed out
        return self


AnyRecordedData = (
    Annotated[TffSqliteData, Tag("tff_sqlite")]
    | Annotated[ParquetData, Tag("parquet")]
    | Annotated[SourceCodeData, Tag("source_code")]
)
"""The tables of recorded clients."""


class CustomData(PythonFile, FormedData, AssignedData):
    """The user's own data, from a Python file that imports all it needs.

    `data(seed)` returns an `ExampleSource` (clients/data/source.py); keys of this table about the
    form and the assignment of examples are then unused. It may instead return an object with
    `num_partitions` and `load_partition(number)`, such as a dataset from Flower Datasets, whose
    partitions are clients of the data. `seed` is the scenario's seed.
    """

    kind: Literal["custom"] = "custom"
    """The user's own data."""
    implementation: ClassVar[str] = "fedray.clients.data.custom:custom_source"
    table: ClassVar[str] = "data"


AnyData = Annotated[
    Annotated[LanguageData, Tag("language")]
    | Annotated[ClassesData, Tag("classes")]
    | Annotated[PointsData, Tag("points")]
    | AnyRecordedData
    | Annotated[CustomData, Tag("custom")],
    told_apart_by("kind", "language"),
]
"""Tables of all kinds of data, distinguished by `kind`."""
