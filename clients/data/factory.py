"""The examples of a scenario's devices. The module of a kind is imported when it is first used."""

import time
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

from fedray.scenario import Scenario
from fedray.scenario.data import FileData, SourceCodeData
from fedray.wire.messages import DataProgress, ProgressListener
from .source import ExampleSource, OnRead

TOLD_EVERY_SECONDS = 0.2
"""Least time between two reports of progress, seconds."""


def source_of(scenario: Scenario, on_read: OnRead | None = None) -> ExampleSource:
    """Returns the examples of the devices of a scenario.

    Args:
        scenario: scenario with data and devices.
        on_read: listener for data that must be read as a whole first.

    Raises:
        InputError: the data cannot be opened.
    """
    table = scenario.data
    if isinstance(table, FileData):
        # Checked first, so that no folder is made in the cache for a content that has changed.
        table.checked_path("file")
    if isinstance(table, FileData | SourceCodeData):
        from .recorded import RecordedExamples

        make_reader = partial(resolve_name(table.implementation), table)
        return RecordedExamples(scenario, table, make_reader, table.sha256, on_read)
    return resolve_name(table.implementation)(scenario, table)


def build_index(scenario: Scenario, on_progress: ProgressListener | None = None) -> None:
    """Opens an existing file of data once, so that workers of this machine find its index.

    Workers have a deadline to start, and the index of a large file may take longer.

    Args:
        scenario: scenario with the data.
        on_progress: listener for the number of clients read, a few times a second.

    Raises:
        InputError: the data cannot be opened.
    """
    if not isinstance(scenario.data, FileData) or not Path(scenario.data.file).exists():
        return
    last = time.monotonic()

    def report(clients: int, count: int) -> None:
        nonlocal last
        if on_progress is not None and time.monotonic() - last >= TOLD_EVERY_SECONDS:
            last = time.monotonic()
            on_progress(DataProgress(clients, count))

    source_of(scenario, report)
