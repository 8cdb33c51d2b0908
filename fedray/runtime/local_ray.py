"""Surroundings that a local Ray cluster needs: a folder for its sockets, and a token."""

import os
import secrets
import sys

from fedray.base.errors import InputError
from fedray.base.kept import can_write

SOCKET = "/ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
LONGEST = (107 if sys.platform == "linux" else 103) - len(SOCKET)
"""Longest folder for temporary files, since the system limits paths of sockets."""


def prepare_surroundings() -> None:
    """Checks the folder for Ray's temporary files, and provides a token if none can be stored.

    Raises:
        InputError: Ray could not start in the folder.
    """
    # On macOS, Ray does not read TMPDIR.
    names = ["RAY_TMPDIR", "TMPDIR"] if sys.platform == "linux" else ["RAY_TMPDIR"]
    name = next(filter(os.environ.__contains__, names), names[-1])
    folder = os.environ.get(name, "/tmp")
    if not (folder.isascii() and len(folder) <= LONGEST and can_write(folder)):
        rule = f"must be a folder that you can write, in at most {LONGEST} ASCII characters from /"
        raise InputError.of(name, folder, rule, "unset it, or set it to /tmp")
    # Ray would write a token into the home directory.
    if not can_write(os.path.expanduser("~/.ray")) and "RAY_AUTH_TOKEN_PATH" not in os.environ:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
