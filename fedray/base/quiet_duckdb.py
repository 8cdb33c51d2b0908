"""Connections to DuckDB, which sorts what memory does not hold."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb


def connected(settings: Mapping[str, Any]) -> "duckdb.DuckDBPyConnection":
    """Returns a connection without a progress bar: standard output belongs to the command, which
    may print JSON there.

    Args:
        settings: settings of DuckDB, by name.
    """
    # The import takes a tenth of a second.
    import duckdb

    connection = duckdb.connect(config=dict(settings))
    try:
        connection.execute("SET enable_progress_bar = false")
    except duckdb.InvalidInputException as error:
        # A notebook without ipywidgets has no bar, and DuckDB refuses the setting there.
        if "ipywidgets" not in str(error):
            connection.close()
            raise
    return connection
