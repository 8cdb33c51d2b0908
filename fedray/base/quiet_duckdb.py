"""Connections to DuckDB, which sorts what memory does not hold."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb


def connected(settings: Mapping[str, Any]) -> "duckdb.DuckDBPyConnection":
    """A connection without a progress bar: standard output belongs to the command, which may print
    JSON there.

    Args:
        settings: of DuckDB, by name.
    """
    # The import takes a tenth of a second.
    import duckdb

    connection = duckdb.connect(config=dict(settings))
    try:
        connection.execute("SET enable_progress_bar = false")
    except duckdb.InvalidInputException as error:
        # In a notebook without ipywidgets there is no bar, and DuckDB refuses to be told so.
        if "ipywidgets" not in str(error):
            connection.close()
            raise
    return connection
