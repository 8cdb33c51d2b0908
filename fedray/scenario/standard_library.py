"""The source of Python's standard library, as text that every machine has."""

import hashlib
import platform
import sys
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_TESTS = {"test", "tests", "idle_test"}
"""Folders that distributions often leave out."""


@dataclass(frozen=True, slots=True)
class StandardLibrary:
    """The library of the running Python."""

    files: dict[str, Path]
    """Modules with source by dotted name, sorted by name."""
    digest: str
    """SHA-256 of Python's version and of all names and contents."""


@cache
def standard_library() -> StandardLibrary:
    """Returns the modules that Python lists as its own and whose source is present, without tests.

    Distributions may leave out or change some of them, so the same version may have another digest
    elsewhere.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    found: dict[str, Path] = {}
    for name in sys.stdlib_module_names:
        module = root / f"{name}.py"
        # A module that is compiled into Python has neither a file nor a folder, so it is left out.
        files = [module] if module.is_file() else (root / name).rglob("*.py")
        for file in files:
            parts = file.relative_to(root).with_suffix("").parts
            if _TESTS.isdisjoint(parts):
                found[".".join(parts)] = file
    # The order of a set differs between processes, but that of the digest must not.
    files = dict(sorted(found.items()))
    digest = hashlib.sha256(platform.python_version().encode())
    for name, file in files.items():
        # Each file is hashed by itself, so that the boundaries between files affect the digest.
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(f"\n{content} {name}".encode())
    return StandardLibrary(files, digest.hexdigest())
