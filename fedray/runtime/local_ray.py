"""Surroundings that a local Ray cluster needs: a folder for its sockets, and a token."""

import os
import secrets
import sys

from fedray.base.errors import InputError
from fedray.base.kept import can_write

SESSION = "/ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
"""Longest path of a socket within the folder for temporary files."""
MOST_BYTES = 107 if sys.platform == "linux" else 103
"""Longest path of a Unix socket."""


def prepare_surroundings() -> None:
    """Checks the folder for Ray's temporary files, and provides a token if none can be stored.

    Raises:
        InputError: Ray could not start in the folder.
    """
    names = ["RAY_TMPDIR", "TMPDIR"] if sys.platform == "linux" else ["RAY_TMPDIR"]
    name = next(filter(os.environ.__contains__, names), names[-1])
    folder = os.environ.get(name, "/tmp")
    rules = (
        (folder.isascii(), "has characters that are not ASCII"),
        (os.path.isabs(folder), "is not an absolute path"),
        (len(folder + SESSION) <= MOST_BYTES, "is too long for Ray's sockets"),
        (can_write(folder), "cannot be written"),
    )
    for holds, rule in rules:
        if not holds:
            raise InputError.of(name, folder, rule, "set it to a short path such as /tmp")
    # Ray would write a token into the home directory.
    if not can_write(os.path.expanduser("~/.ray")) and "RAY_AUTH_TOKEN_PATH" not in os.environ:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
