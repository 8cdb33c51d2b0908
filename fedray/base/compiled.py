"""Compiled functions: `njit` of numba, which keeps them on disk where this user can write."""

import os
from typing import Any

from fedray.base.errors import InputError
from fedray.base.kept import cache_folder, can_write

# numba would read it, and load compiled code from the folder that it names.
if os.path.lexists(".numba_config.yaml"):
    raise InputError("the working directory has a .numba_config.yaml; start in another directory")
try:
    from numba import njit
    from numba.core import config
except ValueError as error:  # of a variable, such as NUMBA_NUM_THREADS=0
    raise InputError(f"numba cannot start ({error}); unset its variables") from None

__all__ = ["njit"]

_settings: Any = config
if _settings.DISABLE_JIT:
    raise InputError("NUMBA_DISABLE_JIT is set, and only compiled code is tested; unset it")
_given = os.path.abspath(os.environ.get("NUMBA_CACHE_DIR") or os.devnull)
_beside = os.path.join(os.path.dirname(__file__), "__pycache__")
if not can_write(_given) and not can_write(_beside):
    _folder = str(cache_folder("numba"))
    if not can_write(_folder):
        raise InputError(
            f"compiled code can be kept neither beside fedray nor in {_folder!r}; set "
            "NUMBA_CACHE_DIR to a folder that only you can write"
        )
    os.environ["NUMBA_CACHE_DIR"] = _folder
    # A program may have imported numba before.
    _settings.reload_config()
