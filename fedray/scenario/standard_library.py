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
    """The library of the Python that runs this.

    files: every module with source, by its dotted name, in order of the names.
    digest: SHA-256 of Python's version and of all names and contents.
    """

    files: dict[str, Path]
    digest: str


@cache
def standard_library() -> StandardLibrary:
    """The modules that Python itself names as its own and whose source is there, but for tests.

    Distributions may leave out or change some of them, so that the same version has another digest
    elsewhere.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    found: dict[str, Path] = {}
    for name in sys.stdlib_module_names:
        module = root / f"{name}.py"
        # A module that is compiled into Python has neither a file nor a folder, and is left out.
        files = [module] if module.is_file() else (root / name).rglob("*.py")
        for file in files:
            parts = file.relative_to(root).with_suffix("").parts
            if _TESTS.isdisjoint(parts):
                found[".".join(parts)] = file
    # The set of names has another order in every process, and the digest must not.
    files = dict(sorted(found.items()))
    digest = hashlib.sha256(platform.python_version().encode())
    for name, file in files.items():
        # Hashing each file by itself keeps the borders between files in the digest.
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(f"\n{content} {name}".encode())
    return StandardLibrary(files, digest.hexdigest())
