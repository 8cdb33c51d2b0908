"""`fedray status`: runs under a directory, as a listing or as a page that follows them."""

from pathlib import Path
from typing import Any

import typer

from fedray.base.errors import InputError
from fedray.commands.output import print_json, print_pieces

MOST_PORT = 65_535


def status(
    directory: Path = Path("runs"), *, watch: int | None = None, as_json: bool = False
) -> None:
    """List the runs under a directory with their progress, or serve a page that follows them.

    The privacy of an unfinished run is an upper bound by its rules and the times of its rounds.
    Only this machine can open the page, which links to the pages of runs and compares trained runs.
    Ctrl-C ends it; the runs continue.

    Args:
        directory ([DIR]): directory that contains the runs
        watch (PORT): port on which to serve a page that follows the runs; 0: a free one
    """
    from fedray.watch.entries import Runs

    runs = Runs(directory)
    if watch is not None:
        # A server has no result that could be printed.
        if as_json:
            raise InputError("--json with --watch, which serves a page; leave one out")
        if not 0 <= watch <= MOST_PORT:
            raise InputError.of("watch", watch, f"must be a port from 0 to {MOST_PORT}")
        _serve(runs, directory, watch)
        return
    from fedray.watch.shown import status_text

    listing = runs.list()
    if as_json:
        print_json(listing.to_json())
    else:
        print_pieces(status_text(listing))


def _serve(runs: Any, directory: Path, port: int) -> None:
    from fedray.watch.server import WatchServer

    with WatchServer(runs, port) as server:
        typer.echo(f"watching {directory} at {server.address} (Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return  # the usual way to end it
