"""`fedray status`: runs under a directory, as a listing."""

from pathlib import Path

from fedray.commands.frame.output import print_json, print_pieces


def status(directory: Path = Path("runs"), *, as_json: bool = False) -> None:
    """List the runs under a directory with their progress.

    The privacy of an unfinished run is an upper bound by its rules and the times of its rounds.

    Args:
        directory ([DIR|URI]): directory that contains the runs
    """
    from fedray.watch.entries import list_runs
    from fedray.watch.shown import status_text

    listing = list_runs(directory)
    if as_json:
        print_json(listing.to_json())
    else:
        print_pieces(status_text(listing))
