"""Connections to DuckDB, which sorts data that memory does not hold."""

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb

_free: ContextVar["dict[str, duckdb.DuckDBPyConnection] | None"] = ContextVar("_free", default=None)
"""Connections that nothing uses now, by their settings; None outside `kept_connections`."""


@contextlib.contextmanager
def kept_connections() -> Iterator[None]:
    """A context in which connections are used again, because a new one takes as long as a query of
    a small log; they are closed at its end."""
    kept: dict[str, duckdb.DuckDBPyConnection] = {}
    token = _free.set(kept)
    try:
        yield
    finally:
        _free.reset(token)
        # An error that is kept keeps this frame, and should keep no connection.
        while kept:
            kept.popitem()[1].close()


@contextlib.contextmanager
def connected(settings: Mapping[str, Any]) -> Iterator["duckdb.DuckDBPyConnection"]:
    """A context with a connection that nothing else uses. It may have views of earlier queries.

    Args:
        settings: settings of DuckDB, by name.
    """
    kept, key = _free.get(), repr(sorted(settings.items()))
    connection = None if kept is None else kept.pop(key, None)
    if connection is None:
        connection = new_connection(settings)
    try:
        yield connection
    except BaseException:
        # A query may still run.
        connection.close()
        raise
    if kept is None or key in kept:
        connection.close()
    else:
        kept[key] = connection


def new_connection(settings: Mapping[str, Any]) -> "duckdb.DuckDBPyConnection":
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
