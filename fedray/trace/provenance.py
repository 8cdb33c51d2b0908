"""What made a trace: versions of fedray, Python and the packages whose code decides results."""

import platform
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
    """Installed versions of what may change a result, by name of the package, without importing
    anything; a package that is not installed is left out."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions
