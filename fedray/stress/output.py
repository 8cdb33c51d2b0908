"""New directories that are there whole or not at all."""

import contextlib
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from fedray.atomic import sync_directory, write_whole
from fedray.errors import FedrayError, InputError


def write_directory(out: Path, files: Mapping[str, bytes]) -> None:
    """Writes files, by name, into a new directory. Raises InputError if it exists, or cannot be written.

    The files are written under a name that nobody can guess, which then becomes `out`; nothing else is ever removed.
    """
    if out.is_symlink() or out.exists():
        raise InputError(f"output {str(out)!r} exists already; name a new directory, or remove it first")
    partial = out.with_name(f".{out.name[:180]}.{secrets.token_hex(8)}.new")
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise _unwritable(out, error) from None
    try:
        for name, content in files.items():
            write_whole(partial / name, content, f"output {str(out)!r}", InputError)
        partial.rename(out)
        sync_directory(out.parent)
    except (OSError, FedrayError, KeyboardInterrupt) as error:
        with contextlib.suppress(OSError):
            shutil.rmtree(partial)
        raise (_unwritable(out, error) if isinstance(error, OSError) else error) from None


def _unwritable(out: Path, error: OSError) -> InputError:
    return InputError(f"output {str(out)!r} cannot be written ({error.strerror or error}); name a writable directory")
