"""The kinds of data by `data.kind`. A kind is imported when it is first used. To add one:
ARCHITECTURE.md, "To add"."""

import time
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

from fedray.clients.data.source import ExampleSource, OnRead
from fedray.messages import DataProgress, ProgressListener
from fedray.scenario import Scenario
from fedray.scenario.data import FileData, SourceCodeData

SOURCES = {
    "classes": "fedray.clients.data.classes:Classes",
    "custom": "fedray.clients.data.custom:custom_source",
    "language": "fedray.clients.data.language:Language",
    "points": "fedray.clients.data.points:Points",
}
"""What takes a scenario and its table, and is an `ExampleSource`."""
READERS = {
    "leaf": "fedray.clients.data.readers.leaf:LeafFiles.of",
    "parquet": "fedray.clients.data.readers.parquet:ParquetFiles.of",
    "pfl_hdf5": "fedray.clients.data.readers.pfl_hdf5:PflHdf5.of",
    "source_code": "fedray.clients.data.readers.source_code:SourceCode.of",
    "tff_sqlite": "fedray.clients.data.readers.tff_sqlite:TffSqlite.of",
}
"""What takes its table and the folder in the cache for the data's content, and is a `ClientFile`:
recorded clients, which `RecordedExamples` gives to devices."""

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
    table = scenario.data
    if isinstance(table, FileData):
        # Before there is a folder in the cache for another content than the file has.
        table.checked_path("file")
    if isinstance(table, FileData | SourceCodeData):
        from fedray.clients.data.recorded import RecordedExamples

        make_reader = partial(resolve_name(READERS[table.kind]), table)
        return RecordedExamples(scenario, table, make_reader, table.sha256, on_read)
    return resolve_name(SOURCES[table.kind])(scenario, table)


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
