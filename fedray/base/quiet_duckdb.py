"""Connections to DuckDB, which sorts data that memory does not hold."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb


def connected(settings: Mapping[str, Any]) -> "duckdb.DuckDBPyConnection":
    """Returns a connection without a progress bar, and without extensions from the network.

    Args:
        settings: settings of DuckDB, by name.
    """
    # The import takes a tenth of a second.
    import duckdb

    # A query may name a function of an extension, which DuckDB would fetch.
    offline = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    connection = duckdb.connect(config={**offline, **settings})
    try:
        # Standard output belongs to the command, which may print JSON there.
        connection.execute("SET enable_progress_bar = false")
    except duckdb.InvalidInputException as error:
        # A notebook without ipywidgets shows no bar, and DuckDB refuses the setting.
        if "ipywidgets" not in str(error):
            connection.close()
            raise
    return connection
