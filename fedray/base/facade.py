"""Modules of the names that `fedray` offers, read from `fedray/__init__.pyi` without importing
anything.

The package lazy_loader reads stubs too, but refuses stubs that name other packages, of which
`mechanisms` is one.
"""

import ast
import re
from pathlib import Path

_FOLDER = Path(__file__).parent.parent
_LISTED = re.compile(r"^__all__ = (\[.*?\])$", re.MULTILINE | re.DOTALL)


def homes() -> dict[str, str]:
    """The module of each name. Where the stub has `*`, the module's `__all__` lists the names."""
    found = {}
    stub = ast.parse((_FOLDER / "__init__.pyi").read_text(encoding="utf-8"))
    for statement in stub.body:
        if isinstance(statement, ast.ImportFrom):
            module = statement.module or ""
            names = [alias.name for alias in statement.names]
            found |= dict.fromkeys(_listed(module) if names == ["*"] else names, module)
    return found


def _listed(module: str) -> list[str]:
    """Returns the names in `__all__` of a module of `fedray`."""
    file = _FOLDER.joinpath(*module.split(".")[1:]).with_suffix(".py")
    # Whole files take 20 ms to parse, which every start of the command would pay.
    listed = _LISTED.search(file.read_text(encoding="utf-8"))
    assert listed is not None, f"{file} has no __all__"
    return ast.literal_eval(listed[1])
