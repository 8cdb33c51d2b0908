"""Runs that are under way: watch, status."""

from pathlib import Path
from typing import Annotated

import typer

from fedray.commands.output import JsonFlag, print_json, print_pieces

RunsArgument = Annotated[
    Path, typer.Argument(metavar="[DIR]", help="Where runs are written; default: runs.")
]


def watch(
    directory: RunsArgument = Path("runs"),
    port: Annotated[
        int, typer.Option(min=0, max=65_535, metavar="P", help="0: a free one, which is printed.")
    ] = 0,
) -> None:
    """Serve a local page that follows the runs under a directory: rounds, time left, loss, privacy.

    Only this machine can open it. It links to the pages of runs, and compares trained runs. Ctrl-C
    ends it; the runs go on.
    """
    from fedray.watch.entries import Runs
    from fedray.watch.server import WatchServer

    with WatchServer(Runs(directory), port) as server:
        typer.echo(f"watching {directory} at {server.address} (Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return  # there is no other way to end it


def status(directory: RunsArgument = Path("runs"), as_json: JsonFlag = False) -> None:
    """Tell which runs are under a directory, in which state they are, and how far.

    Privacy of a run under way is an upper bound, by its rules and the times of its rounds.
    """
    from fedray.watch.entries import Runs
    from fedray.watch.shown import status_text

    listing = Runs(directory).list()
    if as_json:
        print_json(listing.to_json())
        return
    print_pieces(status_text(listing))
