"""Versions of fedray, Python and the packages whose code affects results."""

import platform
from functools import cache
from importlib import metadata

PACKAGES = (
    "fedray",
    "numpy",
    "numba",
    "pyarrow",
    "ray",
    "torch",
    "pydantic",
    "scipy",
    "dp-accounting",
)


def package_versions() -> dict[str, str]:
    """Returns the installed versions of Python and of packages that may change a result, by name,
    without importing them."""
    return {"python": platform.python_version(), **_installed_versions()}


@cache  # reading a version parses the package's metadata, and a run writes several documents
def _installed_versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions
