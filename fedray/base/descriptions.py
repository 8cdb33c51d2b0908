"""What the keys of tables and of documents mean: the strings in their classes, read when somebody
asks.

Pydantic can read these strings itself (`use_attribute_docstrings`). But it does so where a class is
made, by parsing the class's source, which took 0.4 s of the start of every process. Few processes
show a description.
"""

import ast
import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from pydantic import BaseModel, GetJsonSchemaHandler

_ENTRY = re.compile(r"^(\w+(?:, \w+)*): (.*(?:\n {4}.*)*)", re.MULTILINE)
"""An entry of a docstring about fields: names, and a text whose further lines are indented."""


class Described(BaseModel):
    """A value whose fields are described by the strings below them, in its JSON schema too."""

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: Any, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        written = handler(core_schema)
        properties = handler.resolve_ref_schema(written).get("properties", {})
        for name, description in descriptions_of(cls).items():
            if name in properties:
                properties[name].setdefault("description", description)
        return written


@functools.cache
def descriptions_of(table: type[BaseModel]) -> Mapping[str, str]:
    """What the fields of a class mean, by name.

    Returns:
        Of each field what `Field(description=...)` says, else the string below it. A field without
        either is left out; so are all strings of a class whose source is not there, as that of
        one that was typed at a prompt.
    """
    found: dict[str, str] = {}
    # Subclasses come last, so that their strings win.
    for each in reversed(table.__mro__):
        if issubclass(each, BaseModel) and each is not BaseModel:
            found |= _strings_below_fields(each)
    given = {name: field.description for name, field in table.model_fields.items()}
    found |= {name: description for name, description in given.items() if description}
    return {name: found[name] for name in table.model_fields if name in found}


@functools.cache
def attributes_of(owner: type) -> Mapping[str, str]:
    """What the fields and properties of a class mean, by name.

    Returns:
        Of a property the first paragraph of its docstring, and of a field its entry in the
        docstring of the class ("rows: of the trace."), else the string below it; each on one line.
        Attributes without any are left out.
    """
    found = _strings_below_fields(owner)
    # Entries of the docstring come after the strings below fields, and win.
    for names, entry in _ENTRY.findall(inspect.cleandoc(owner.__doc__ or "")):
        found |= dict.fromkeys(names.split(", "), entry)
    for name, value in vars(owner).items():
        if isinstance(value, property | functools.cached_property) and value.__doc__:
            found[name] = inspect.cleandoc(value.__doc__).partition("\n\n")[0]
    return {name: " ".join(text.split()) for name, text in found.items()}


def arguments_of(function: Callable[..., Any]) -> Mapping[str, str]:
    """Descriptions of the arguments of a function, by name, as its docstring lists them."""
    listed = (inspect.getdoc(function) or "").partition("Args:\n")[2].partition("\n\n")[0]
    return dict(_ENTRY.findall(textwrap.dedent(listed)))


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
