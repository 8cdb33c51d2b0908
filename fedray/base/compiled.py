"""Compiled functions: `njit` of numba, which keeps them on disk where this user can write."""

import os
from pathlib import Path
from typing import Any

from fedray.base.errors import InputError
from fedray.base.kept import cache_folder, can_write

try:
    from numba import njit
    from numba.core import config
except ValueError as error:  # of a variable, such as NUMBA_NUM_THREADS=0
    raise InputError(
        f"numba cannot start ({error}); unset variables such as NUMBA_NUM_THREADS"
    ) from None

__all__ = ["njit"]


def _choose_folder() -> None:
    """Makes numba keep compiled functions beside their source, or else in the user's cache."""
    settings: Any = config  # numba makes its names when it reads the environment
    if settings.DISABLE_JIT:
        raise InputError(
            "NUMBA_DISABLE_JIT is set, but interpreted kernels compute other numbers; unset it"
        )
    beside = Path(__file__).with_name("__pycache__")
    given = os.environ.get("NUMBA_CACHE_DIR")
    if not given and can_write(str(beside)):
        return
    folder = os.path.abspath(given or cache_folder("numba"))
    if not can_write(folder):
        raise InputError(
            f"compiled code can be kept neither beside fedray nor in {folder!r}; set "
            "NUMBA_CACHE_DIR to a folder that only you can write"
        )
    os.environ["NUMBA_CACHE_DIR"] = folder
    # A program may have imported numba before.
    settings.reload_config()


_choose_folder()
