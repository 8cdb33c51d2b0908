"""The examples of a scenario's devices. A kind of data is imported when it is first used."""

import time
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

from fedray.clients.data.source import ExampleSource, OnRead
from fedray.scenario import Scenario
from fedray.scenario.data import FileData, SourceCodeData
from fedray.wire.messages import DataProgress, ProgressListener

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

        make_reader = partial(resolve_name(table.implementation), table)
        return RecordedExamples(scenario, table, make_reader, table.sha256, on_read)
    return resolve_name(table.implementation)(scenario, table)


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
