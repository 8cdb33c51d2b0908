"""Descriptions of the keys of tables and documents: the strings in their classes, read on demand.

Pydantic can read these strings itself (`use_attribute_docstrings`). But it does so when a class is
made, by parsing the class's source, which took 0.4 s of the start of every process. Few processes
show a description.
"""

import ast
import functools
import inspect
import textwrap
from collections.abc import Mapping
from itertools import pairwise


@functools.cache
def descriptions_of(owner: type) -> Mapping[str, str]:
    """Returns descriptions of the fields and properties of a class, by name.

    The description of a field is `Field(description=...)`, else the string below it; for a property
    it is the first paragraph of its docstring. Fields without a description are left out, and so
    are all strings of a class without source, such as a class typed at a prompt.
    """
    found: dict[str, str] = {}
    # Base classes come first, so that the strings of subclasses win.
    for each in reversed(owner.__mro__):
        if each is not object and each.__module__ != "pydantic.main":
            found |= _own_descriptions(each)
    # Only models have this attribute. Pydantic is not imported here, since it loads slowly.
    fields = getattr(owner, "model_fields", {})
    given = {name: field.description for name, field in fields.items()}
    return found | {name: description for name, description in given.items() if description}


def _own_descriptions(owner: type) -> dict[str, str]:
    found = _strings_below_fields(owner)
    for name, value in vars(owner).items():
        if isinstance(value, property | functools.cached_property) and value.__doc__:
            found[name] = inspect.cleandoc(value.__doc__).partition("\n\n")[0]
    return found


def _strings_below_fields(table: type) -> dict[str, str]:
    try:
        source = inspect.getsource(table)
    except (OSError, TypeError):
        return {}
    # The source of a class within a function is indented.
    definition = ast.parse(textwrap.dedent(source)).body[0]
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, below in pairwise(definition.body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(description))),
            ):
                found[name] = inspect.cleandoc(description)
    return found
