"""Compiled functions: `njit` of numba, and the folders of compiled code. It is run whenever it is
found, so they are folders in which only this user can write."""

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

__all__ = ["HAS_TORCH_FOLDER", "TORCH_FOLDER", "compiled_folder", "njit"]


def compiled_folder(name: str, variable: str) -> str:
    """Returns the private folder of a compiler.

    Args:
        name: name of the compiler.
        variable: environment variable that gives it another folder.

    Raises:
        InputError: this user can keep files in no private folder.
    """
    folder = str(cache_folder(name))
    if not can_write(folder):
        raise InputError(
            f"compiled code cannot be kept in {folder!r}; set {variable} to a folder that only you "
            "can write"
        )
    return folder


_settings: Any = config
if _settings.DISABLE_JIT:
    raise InputError("NUMBA_DISABLE_JIT is set, and only compiled code is tested; unset it")
_given = os.path.abspath(os.environ.get("NUMBA_CACHE_DIR") or os.devnull)
_beside = os.path.join(os.path.dirname(__file__), "__pycache__")
if not can_write(_given) and not can_write(_beside):
    os.environ["NUMBA_CACHE_DIR"] = compiled_folder("numba", "NUMBA_CACHE_DIR")
    # A program may have imported numba before.
    _settings.reload_config()

TORCH_FOLDER = "TORCHINDUCTOR_CACHE_DIR"
"""Environment variable with the folder of torch's compiled code."""
# Set here, since torch reads it at its first derivative. Its default is a name in /tmp, which
# another user can take first.
_folder = str(cache_folder("torch"))
if can_write(_folder):
    os.environ.setdefault(TORCH_FOLDER, _folder)
HAS_TORCH_FOLDER = TORCH_FOLDER in os.environ
