"""Kinds of data by their tables. To add one: its table in fedray/scenario/data.py, its file here,
and a case in this file. A kind is imported when it is first used."""

import time
from collections.abc import Callable
from pathlib import Path

from clients.data.readers.reader import ClientFile
from clients.data.source import ExampleSource, OnRead
from fedray.messages import DataProgress, ProgressListener
from fedray.scenario import Scenario
from fedray.scenario.data import (
    AnyFileData,
    ClassesData,
    CustomData,
    FileData,
    LanguageData,
    LeafData,
    ParquetData,
    PflHdf5Data,
    PointsData,
    SourceCodeData,
    TffSqliteData,
)

TOLD_EVERY_SECONDS = 0.2
"""How often progress is told while data is read as a whole."""


def source_of(scenario: Scenario, on_read: OnRead | None = None) -> ExampleSource:
    """The examples of the devices of a scenario.

    Args:
        scenario: says which data, and who the devices are.
        on_read: is told how far data is that must be read as a whole first.

    Raises:
        InputError: they cannot be opened.
    """
    match scenario.data:
        case LanguageData():
            from clients.data.language import Language

            return Language(scenario)
        case ClassesData() as table:
            from clients.data.classes import Classes

            return Classes(scenario, table)
        case PointsData() as table:
            from clients.data.points import Points

            return Points(scenario, table)
        case CustomData() as table:
            from clients.data.custom import custom_source

            return custom_source(scenario, table)
        case SourceCodeData() as table:
            return _source_code(scenario, table, on_read)
        case TffSqliteData() | PflHdf5Data() | ParquetData() | LeafData() as table:
            from clients.data.recorded import RecordedExamples

            make = _opener(table, table.checked_path("file"))
            return RecordedExamples(scenario, table, make, table.sha256, on_read)


def build_index(scenario: Scenario, on_progress: ProgressListener | None = None) -> None:
    """Opens a file of data once, if it is there, so that workers of this machine find its index.

    Workers have a deadline to start, and the index of a large file may take longer.

    Args:
        scenario: says which data.
        on_progress: is told how many clients were read, a few times a second.

    Raises:
        InputError: the data cannot be opened.
    """
    if not isinstance(scenario.data, FileData) or not Path(scenario.data.file).exists():
        return
    last = time.monotonic()

    def tell(clients: int, count: int) -> None:
        nonlocal last
        if on_progress is not None and time.monotonic() - last >= TOLD_EVERY_SECONDS:
            last = time.monotonic()
            on_progress(DataProgress(clients, count))

    source_of(scenario, tell)


def _source_code(
    scenario: Scenario, table: SourceCodeData, on_read: OnRead | None
) -> ExampleSource:
    from clients.data.readers.source_code import SourceCode
    from clients.data.recorded import RecordedExamples
    from fedray.errors import InputError
    from fedray.scenario.standard_library import standard_library

    library = standard_library()
    if library.digest != table.sha256:
        raise InputError(
            f"data.sha256={table.sha256!r} is of another Python's standard library than this one "
            f"({library.digest}); use that Python"
        )
    return RecordedExamples(
        scenario, table, lambda folder: SourceCode(library), table.sha256, on_read
    )


def _opener(table: AnyFileData, path: Path) -> Callable[[Path], ClientFile]:
    """What opens a file of its kind, given the folder in the cache for its content."""

    def make(cache: Path) -> ClientFile:
        match table:
            case TffSqliteData():
                from clients.data.readers.tff_sqlite import TffSqlite

                return TffSqlite(path, cache)
            case PflHdf5Data():
                from clients.data.readers.pfl_hdf5 import PflHdf5

                return PflHdf5(path, table.tokens or table.inputs)
            case ParquetData():
                from clients.data.readers.parquet import ParquetFiles

                return ParquetFiles(path, table.client, cache)
            case LeafData():
                from clients.data.readers.leaf import LeafFiles

                wanted = (table.tokens,) if table.tokens else (table.inputs, table.targets)
                return LeafFiles(path, [column for column in wanted if column], cache)

    return make
