"""Surroundings of a local Ray cluster that other users of the machine can neither enter nor read: a
private folder for its files and sockets, and a token of its own."""

import contextlib
import os
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from fedray.base.errors import InputError
from fedray.base.kept import can_write

RANDOM_BYTES = 2
"""Random bytes in the name of a private folder, which is short for the sake of its sockets."""
SOCKET = (
    f"/fr{'ab' * RANDOM_BYTES}/r/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
)
LONGEST = (107 if sys.platform == "linux" else 103) - len(SOCKET)
"""Longest folder for temporary files, since the system limits paths of sockets."""


@contextlib.contextmanager
def private_surroundings() -> Iterator[Path]:
    """Within: a cluster that starts gets a token from the environment, and processes of it may join
    it. Yields a new folder for its files that only this user can reach; it is removed at the end.

    A token that the user has for other clusters is in force again afterwards.

    Raises:
        InputError: Ray could not start in the folder for temporary files.
    """
    folder = _private_folder(_temporary_folder())
    # By default Ray would write a token into the home directory, where all users may read it. The
    # user's own mode may be to do without one, on another cluster.
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    try:
        with environment(token):
            read_again()
            # Ray lets all users write in its folder, so that lies in one that they cannot enter.
            yield folder / "r"
    finally:
        read_again()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Sets environment variables, or removes them if they are None, for a block."""
    before = {name: os.environ.get(name) for name in values}
    try:
        _set(values)
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def read_again() -> None:
    """Makes Ray forget the mode and the token that it has read in this process."""
    compiled: Any = import_module("ray._raylet")
    compiled.Config.initialize("")
    compiled.AuthenticationTokenLoader.instance().reset_cache()


def _temporary_folder() -> Path:
    # On macOS, Ray does not read TMPDIR.
    names = ["RAY_TMPDIR", "TMPDIR"] if sys.platform == "linux" else ["RAY_TMPDIR"]
    name = next(filter(os.environ.__contains__, names), names[-1])
    folder = os.environ.get(name, "/tmp")
    if not (folder.isascii() and len(folder) <= LONGEST and can_write(folder)):
        rule = f"must be a folder that you can write, in at most {LONGEST} ASCII characters from /"
        raise InputError.of(name, folder, rule, "unset it, or set it to /tmp")
    return Path(folder)


def _private_folder(parent: Path) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    while True:
        folder = parent / f"fr{secrets.token_hex(RANDOM_BYTES)}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder
