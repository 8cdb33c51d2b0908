"""Public names of a package, imported when first used.

The package's stub, `__init__.pyi`, lists them for type checkers too. The package lazy_loader also
reads stubs, but refuses stubs that name other packages.
"""

import ast
import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from fedray.base.extras import missing_extra
from fedray.base.nearest import did_you_mean

_FOLDER = Path(__file__).parent.parent
_LISTED = re.compile(r"^__all__ = (\[.*?\])$", re.MULTILINE | re.DOTALL)


def lazily(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` of a package for the names in its stub.

    Args:
        package: full name, such as "fedray.scenario".
    """

    def load(name: str) -> Any:
        if name == "__all__":
            return names()
        if name not in homes(package):
            remedy = did_you_mean(name, names(), f"it has {', '.join(names())}")
            raise AttributeError(f"module {package!r} has no attribute {name!r}; {remedy}")
        home = homes(package)[name]
        return import_module(home) if home == f"{package}.{name}" else _offered(home, name)

    def names() -> list[str]:
        return sorted(homes(package))

    return load, names


def _offered(home: str, name: str) -> Any:
    try:
        return getattr(import_module(home), name)
    except ModuleNotFoundError as error:
        if (lacks := missing_extra(error)) is not None:
            raise lacks from None
        raise


@cache
def homes(package: str) -> dict[str, str]:
    """Returns the module of each name in a package's stub, without importing it.

    If the stub has `*`, the module's `__all__` lists the names. A subpackage is its own home.
    """
    found = {}
    stub = ast.parse((_path(package) / "__init__.pyi").read_text(encoding="utf-8"))
    for statement in stub.body:
        if isinstance(statement, ast.ImportFrom):
            module = statement.module or ""
            names = [alias.name for alias in statement.names]
            if module == package:
                found |= {name: f"{package}.{name}" for name in names}
            else:
                found |= dict.fromkeys(_listed(module) if names == ["*"] else names, module)
    return found


def _listed(module: str) -> list[str]:
    """Returns the names in `__all__` of a module of `fedray`."""
    file = _path(module).with_suffix(".py")
    # Whole files take 20 ms to parse, which every start of the command would pay.
    listed = _LISTED.search(file.read_text(encoding="utf-8"))
    assert listed is not None, f"{file} has no __all__"
    return ast.literal_eval(listed[1])


def _path(module: str) -> Path:
    return _FOLDER.joinpath(*module.split(".")[1:])
