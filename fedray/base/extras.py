"""Packages that only some uses of fedray need, and the extra of `pip install` that brings each."""

from fedray.base.errors import MissingExtra

EXTRAS = {
    "ray": "simulate",
    "numba": "simulate",
    "torch": "train",
    "PIL": "train",
    "google": "train",  # google.protobuf
    "safetensors": "train",
    "matplotlib": "figures",
    "tensorboard": "tensorboard",
}
"""The extra of `pyproject.toml` by the name under which a package is imported."""


def missing_extra(error: ModuleNotFoundError) -> MissingExtra | None:
    """Returns the error to raise for a module that was not found.

    Args:
        error: error of the failed import.

    Returns:
        An error with the command that installs the module, or None if no extra has the module, so
        that its absence is a defect.
    """
    # A module within a package comes with the extra of the package.
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    return MissingExtra(
        f"package {package!r} is not installed, and this needs it; "
        f"`pip install 'fedray[{EXTRAS[package]}]'` installs it"
    )
