"""Names of earlier versions, with the replacement of each.

A command, option, key or value of a key that was removed is refused with its replacement instead of
a guess at its spelling.
"""

REMOVED = {
    "status --watch": "repeat `fedray status`, and use `--tensorboard` for curves",
    "population --format": "write .parquet or .csv, which docs/populations.md converts for tools",
    "data.kind = 'leaf'": "convert the files to Parquet as docs/data.md shows",
    "data.kind = 'pfl_hdf5'": "convert the file to Parquet as docs/data.md shows",
}
"""Replacement of each removed name: a command, a command with an option, the full path of a key in
a file, or `key = 'value'`."""


def removed(name: str) -> str | None:
    """Returns the refusal of a removed name in one sentence; None for any other name."""
    instead = REMOVED.get(name)
    return instead and f"{name} was removed; {instead}"
